"""Create the tiny folders in `gliner/` with the package gliner 0.2.29.

Run `python make_gliner.py [FOLDER NAME...]` with gliner, transformers 5.16 and torch 2.13. In
addition to the gliner files, `expected.json` contains the entities in `TEXTS` for each of
`SETTINGS`, and `expected.npz` contains the logits (words, widths, labels) of each text.
`write(folder, name)` creates folders for tests that compare with gliner.
"""

import json
import pathlib
import sys

import numpy as np
import tokenizers
import torch
import transformers
from gliner import GLiNER
from gliner.config import GLiNERConfig
from tokenizers import models, normalizers, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent / "gliner"
TEXTS = [
    "Anna Lee met Bob in Paris.",
    "",
    "well-known state_of_the-art -x- a--b _c_ e-mail: a.b@c.de, 3.50 €!",
    "Zoë ate 🍕🍕 in São-Paulo…\tno\u00a0\u200bspace\r\nΑθήνα 東京都 हिन्दी",
    "x",
    "Anna saw Bob and Bob saw Anna in the old town of Paris , near the river . " * 3,
    "  leading and trailing  ",
]
LABELS = ["person", "city", "date of birth"]
DESCRIPTIONS = {"PER": "a person", "LOC": "a city or river"}
SETTINGS = {
    "flat": {"labels": LABELS, "threshold": 0.5},
    "nested": {"labels": LABELS, "threshold": 0.6, "nested": True},
    "several": {"labels": LABELS, "threshold": 0.55, "multi_label": True},
    "nested_several": {"labels": LABELS, "threshold": 0.7, "nested": True, "multi_label": True},
    "described": {"labels": DESCRIPTIONS, "threshold": 0.4},
    "many": {"labels": [f"kind {i}" for i in range(12)], "threshold": 0.8},
}
TRAINING = [*TEXTS, *LABELS, *DESCRIPTIONS.values(), "kind 0 1 2 3 4 5 6 7 8 9 10 11"] * 3
# {name: (encoder, settings of gliner, whether safetensors)}
FOLDERS = {
    "bert": ("bert", {"hidden_size": 16}, True),
    "bert_wider": ("bert", {"hidden_size": 24, "num_rnn_layers": 0, "max_width": 5}, False),
    "bert_two_lstm": ("bert", {"hidden_size": 16, "num_rnn_layers": 2, "max_width": 3}, True),
    "bert_mean": ("bert", {"hidden_size": 16, "subtoken_pooling": "mean"}, False),
    "bert_max": ("bert", {"hidden_size": 16, "subtoken_pooling": "max"}, True),
    "bert_last": ("bert", {"hidden_size": 16, "subtoken_pooling": "last"}, True),
    "bert_marker": ("bert", {"hidden_size": 16, "span_mode": "marker"}, True),
    "bert_first": ("bert", {"hidden_size": 16, "span_mode": "markerV1"}, False),
    "bert_markers": (
        "bert",
        {"hidden_size": 16, "ent_token": "[L]", "sep_token": "[T]", "embed_ent_token": False},
        True,
    ),
    "deberta": ("deberta-v2", {"hidden_size": 16}, False),
    "deberta_wider": ("deberta-v2", {"hidden_size": 12, "max_width": 4}, True),
    "modernbert": ("modernbert", {"hidden_size": 16, "num_rnn_layers": 0}, True),
    "roberta": ("xlm-roberta", {"hidden_size": 16}, True),
}
KEPT = ("bert", "bert_wider", "bert_marker", "deberta", "modernbert")  # stored in the repository
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.5,
}


def wordpiece():
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    vocabulary = tokenizer.get_vocab()
    return transformers.BertTokenizer(vocab=vocabulary, do_lower_case=True)


def unigram(kind):
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    if kind == "xlm-roberta":
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=150, special_tokens=special, unk_token=special[3], show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    pieces = [tuple(piece) for piece in json.loads(tokenizer.to_str())["model"]["vocab"]]
    cls = (
        transformers.DebertaV2Tokenizer
        if kind == "deberta-v2"
        else transformers.XLMRobertaTokenizer
    )
    return cls(vocab=pieces)


def byte_bpe():
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
    )


def encoder_of(kind):
    """Return a tokenizer and the configuration of an encoder."""
    if kind == "bert":
        tokenizer = wordpiece()
        config = transformers.BertConfig(vocab_size=len(tokenizer), **SIZES)
    elif kind == "modernbert":
        tokenizer = byte_bpe()
        ids = {"cls_token_id": 1, "sep_token_id": 2, "pad_token_id": 3}
        ids |= {"bos_token_id": 1, "eos_token_id": 2}
        sizes = {**SIZES, "num_hidden_layers": 2, "local_attention": 8}
        config = transformers.ModernBertConfig(vocab_size=len(tokenizer), **ids, **sizes)
    elif kind == "xlm-roberta":
        tokenizer = unigram(kind)
        config = transformers.XLMRobertaConfig(
            vocab_size=len(tokenizer),
            **{**SIZES, "max_position_embeddings": 514},
            type_vocab_size=1,
        )
    else:
        tokenizer = unigram(kind)
        config = transformers.DebertaV2Config(
            vocab_size=len(tokenizer),
            **SIZES,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
            position_buckets=16,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            type_vocab_size=0,
            layer_norm_eps=1e-7,
        )
    return tokenizer, config


def random_model(folder, kind, settings, seed):
    """Return a model whose scores are spread around 0.5."""
    tokenizer, encoder_config = encoder_of(kind)
    torch.manual_seed(seed)
    encoder = pathlib.Path(folder) / "encoder"
    encoder.mkdir(parents=True, exist_ok=True)
    transformers.AutoModel.from_config(encoder_config).save_pretrained(encoder)
    tokenizer.save_pretrained(encoder)
    config = GLiNERConfig(model_name=str(encoder), dropout=0.1, max_len=64, **settings)
    model = GLiNER.from_config(config)
    for path in encoder.iterdir():
        path.unlink()
    encoder.rmdir()
    for parameter in model.model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.config.model_name = model.config.encoder_config._name_or_path = kind
    model.eval()
    found = np.concatenate([logits(model, TEXTS[i], LABELS).ravel() for i in (0, 2, 3, 5)])
    last = model.model.prompt_rep_layer[3]
    last.weight.data *= 2 / found.std()
    last.bias.data *= 2 / found.std()
    return model, abs(found.mean()) < 0.5 * found.std()


def write(folder, name):
    """Write a folder with gliner, and return the model."""
    kind, settings, safe = FOLDERS[name]
    models_of_seeds = (random_model(folder, kind, settings, seed) for seed in range(100))
    model = next(model for model, is_spread in models_of_seeds if is_spread)
    model.save_pretrained(folder, safe_serialization=safe)
    # The model is loaded again, with the tokenizer from the folder.
    return GLiNER.from_pretrained(str(folder))


def answers(model, texts, labels, threshold=0.5, nested=False, multi_label=False):
    """Return the entities that gliner finds. Texts are processed one by one to avoid padding."""
    return [
        model.inference(
            [text], labels, threshold=threshold, flat_ner=not nested, multi_label=multi_label
        )[0]
        for text in texts
    ]


def logits(model, text, labels):
    """Return the logits of all spans of a text, (words, widths, labels)."""
    if not text.strip():
        return np.zeros((0, model.config.max_width, len(labels)), "float32")
    prepared = model.prepare_batch([text], labels)
    batch = model.collate_batch(prepared["input_x"], prepared["entity_types"])
    return model.run_batch(batch).logits[0].float().numpy()


def main(names):
    for name in names:
        folder = HERE / name
        model = write(folder, name)
        found = {key: answers(model, TEXTS, **given) for key, given in SETTINGS.items()}
        expected = {"texts": TEXTS, "settings": SETTINGS, "found": found}
        (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False), "utf-8")
        arrays = {str(i): logits(model, text, LABELS) for i, text in enumerate(TEXTS)}
        np.savez_compressed(folder / "expected.npz", **arrays)
        print(name, {key: sum(map(len, rows)) for key, rows in found.items()})


if __name__ == "__main__":
    main(sys.argv[1:] or KEPT)
