"""Create the tiny checkpoints in `checkpoints/`, with the outputs that transformers computes.

With the extra `peers` installed, run `make_checkpoints.py electra` for one family, or without a
name for all families. Each folder is for a family and a head, and contains `config.json`,
`model.safetensors`, the tokenizer files, and `expected.npz` with inputs and outputs.
"""

import copy
import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers

from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers.files.sentencepiece_model import (
    CONTROL,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    serialize_model,
)

HERE = pathlib.Path(__file__).parent / "checkpoints"
# Backbone arguments.
SIZES = {
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 20,
    "max_sequence_length": 32,
    "embedding_dim": 6,
    "local_attention": 4,
    "position_buckets": 8,
    "max_relative_positions": 16,
    "convolution_width": 3,
    "convolution_activation": "gelu",
    "terms": ["c2p", "p2c"],
    "num_key_value_heads": 1,
    "attention_window": [4, 8],
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
}
OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state", "pooler_output")
BEAM = {"start_n_top": 4, "end_n_top": 3}
OUTPUTS_OF_BEAM = (
    "start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index", "cls_logits",
)  # fmt: skip
WORDS = "the a cat dog mat sat ran on under good bad film was is it not very . , ! ? ##s ##ing ##ed"


def write_bert_vocabulary(folder: pathlib.Path) -> int:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return write_wordpiece_vocabulary(folder, "BertTokenizer", special)


def write_mpnet_vocabulary(folder: pathlib.Path) -> int:
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    return write_wordpiece_vocabulary(folder, "MPNetTokenizer", special)


def write_wordpiece_vocabulary(folder: pathlib.Path, name: str, special: list[str]) -> int:
    tokens = [*special, *WORDS.split(" ")]
    tokens += [*"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    tokens = list(dict.fromkeys(tokens))
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    settings = {"do_lower_case": True, "tokenizer_class": name}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(tokens)


def write_roberta_vocabulary(folder: pathlib.Path) -> int:
    from tokenizers import ByteLevelBPETokenizer

    learner = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    text = ["the cat sat on the mat and the dog ran under the film was good, not very bad!"] * 5
    learner.train_from_iterator(text, vocab_size=300, special_tokens=special, show_progress=False)
    learner.save_model(str(folder))
    return learner.get_vocab_size()


def write_modernbert_vocabulary(folder: pathlib.Path) -> int:
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    text = ["the cat sat on the mat and the dog ran under the film was good, not very bad!"] * 5
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_tokens(["   ", "  "])
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=ids
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("unk", "cls", "sep", "pad", "mask"), special, strict=True))
    settings = {f"{name}_token": token for name, token in names.items()}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.get_vocab_size()


def write_llama_vocabulary(folder: pathlib.Path) -> int:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    from encoder_zoo.encoders.tokenizers.steps import LLAMA_WORDS

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA_WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    start, end, mask = special = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": special, "initial_alphabet": alphabet, "show_progress": False}
    text = ["the cat sat on the mat and the dog ran under the film was good, not very bad!"] * 5
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=300, **options))
    ids = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    single, pair = f"{start} $A {end}", f"{start} $A {end} $B {end}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=ids
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": start, "eos_token": end, "pad_token": end, "mask_token": mask}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.get_vocab_size()


def write_sentencepiece_model(folder: pathlib.Path, name: str, special: list[str]) -> int:
    letters = [*"▁abcdefghijklmnopqrstuvwxyzé.,!?"]
    words = [f"▁{word}" for word in WORDS.split(" ") if word.isalpha()]
    tokens = list(dict.fromkeys([*letters, *words, "s", "ing", "ed"]))
    pieces = [
        Piece(token, 0.0, UNKNOWN if token in ("<unk>", "[UNK]") else CONTROL) for token in special
    ]
    pieces += [Piece(token, -0.1 * i - 1) for i, token in enumerate(tokens)]
    (folder / name).write_bytes(serialize_model(SentencePieceModel(pieces)))
    return len(pieces)


def write_xlm_roberta_vocabulary(folder: pathlib.Path) -> int:
    special = ["<unk>", "<s>", "</s>"]
    return write_sentencepiece_model(folder, "sentencepiece.bpe.model", special) + 2


def write_camembert_vocabulary(folder: pathlib.Path) -> int:
    special = ["<unk>", "<s>", "</s>"]
    return write_sentencepiece_model(folder, "sentencepiece.bpe.model", special) + 5


def write_albert_vocabulary(folder: pathlib.Path) -> int:
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    return write_sentencepiece_model(folder, "spiece.model", special)


def write_xlnet_vocabulary(folder: pathlib.Path) -> int:
    special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    return write_sentencepiece_model(folder, "spiece.model", special)


def write_deberta_vocabulary(folder: pathlib.Path) -> int:
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    return write_sentencepiece_model(folder, "spm.model", special) + 1


def write_esm_vocabulary(folder: pathlib.Path) -> int:
    tokens = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-"]
    tokens += ["<null_1>", "<mask>"]
    (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    settings = {"tokenizer_class": "EsmTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(tokens)


def write_gemma_vocabulary(folder: pathlib.Path) -> int:
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), "isolated")  # learn words
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    known = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    options = {"special_tokens": known, "initial_alphabet": ["▁"], "show_progress": False}
    text = ["the cat sat on the mat and the dog ran under the film was good, not very bad!"] * 5
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=330, **options))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    fuse = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(fuse)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("<bos>", "<eos>")]
    single, pair = "<bos> $A <eos>", "<bos> $A <eos> $B <eos>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=ids
    )
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][: len(special)]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    names = dict(zip(("pad", "eos", "bos", "unk", "mask"), special, strict=True))
    settings = {f"{name}_token": token for name, token in names.items()}
    settings |= {"cls_token": "<bos>", "sep_token": "<eos>"}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.get_vocab_size()


# With the default seed, a LayerNorm gets eight nearly equal values, which magnifies rounding.
SEEDS = {("Bart", "Model"): 2, ("DebertaV2", "ForMaskedLM"): 2}
# For each tokenizer class, a function that writes its files and returns the number of tokens.
WRITE = {
    "BertTokenizer": write_bert_vocabulary,
    "MPNetTokenizer": write_mpnet_vocabulary,
    "RobertaTokenizer": write_roberta_vocabulary,
    "ModernBertTokenizer": write_modernbert_vocabulary,
    "EuroBertTokenizer": write_llama_vocabulary,
    "XLMRobertaTokenizer": write_xlm_roberta_vocabulary,
    "CamembertTokenizer": write_camembert_vocabulary,
    "AlbertTokenizer": write_albert_vocabulary,
    "DebertaV2Tokenizer": write_deberta_vocabulary,
    "XLNetTokenizer": write_xlnet_vocabulary,
    "EsmTokenizer": write_esm_vocabulary,
    "GemmaTokenizer": write_gemma_vocabulary,
}


def make(family: Family, head: str, beam: bool = False) -> None:
    folder = HERE / f"{family.class_prefix}_{head}{'Beam' * beam}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    keys = family.config_keys
    # Copies, because transformers changes nested fields.
    sizes = {keys[name]: v for name, v in copy.deepcopy(SIZES).items() if name in keys}
    sizes["vocab_size"] = WRITE[family.tokenizer.name](folder)
    if family.positions_skip_padding:
        sizes["max_position_embeddings"] += 2
        sizes |= {"type_vocab_size": 1, "pad_token_id": 1}
        start, end = (5, 6) if family.name == "camembert" else (0, 2)
        sizes |= {"bos_token_id": start, "eos_token_id": end}
    if family.name == "modernbert":
        sizes |= {"bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
        sizes |= {"pad_token_id": 3}
    if family.name == "gte":
        sizes |= {"type_vocab_size": 2, "pad_token_id": 0}
    if family.name == "eurobert":
        sizes |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "mask_token_id": 2}
    if family.name == "esm":
        sizes |= {"pad_token_id": 1, "mask_token_id": 32, "token_dropout": True}
    if family.name == "gemma3_text":
        sizes |= {"use_bidirectional_attention": True, "head_dim": 6, "query_pre_attn_scalar": 5}
        sizes |= {"layer_types": ["sliding_attention", "full_attention"]}
    if family.name in ("deberta-v2", "esm"):
        sizes |= family.constants
    if head.endswith("Classification"):
        sizes["id2label"] = dict(enumerate(["O", "B-PER", "I-PER"]))
        sizes["label2id"] = {v: k for k, v in sizes["id2label"].items()}
    sizes |= {key: sizes[other] for key, other in family.repeated_keys.items()}
    sizes |= BEAM if beam else {}
    name = family.class_prefix
    torch.manual_seed(SEEDS.get((name, head), sum(map(ord, name + head))))
    # Large weights, so that every part affects the outputs.
    config = getattr(transformers, f"{name}Config")(**{**sizes, "initializer_range": 0.5})
    config.init_std = 0.5
    class_name = (
        name + family.heads[head].beam.class_suffix if beam else family.get_class_name(head)
    )
    model = getattr(transformers, class_name)(config).eval()
    for parameter in model.parameters():  # biases and LayerNorm away from 0 and 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    model.save_pretrained(folder)

    rng = np.random.default_rng(0)
    ids = rng.integers(5, config.vocab_size - 1, (3, 9))
    in_order = (family.name, head) == ("xlnet", "ForMaskedLM")  # one token has no others
    mask = np.arange(9) < np.array([[9], [6], [2 if in_order else 1]])
    if family.name == "esm":  # masks change the embeddings of all tokens
        ids[:2, 3:5] = config.mask_token_id
    ids = np.where(mask, ids, config.pad_token_id)
    if family.name == "bart":  # the classifier reads the last end token
        ids[np.arange(3), mask.sum(axis=1) - 1] = config.eos_token_id
    if family.name == "xlnet":  # the classifier reads the last position
        ids, mask = (
            np.stack([np.roll(a, 9 - n) for a, n in zip(values, mask.sum(axis=1), strict=True)])
            for values in (ids, mask)
        )
    last_segment = 2 if family.name == "xlnet" else getattr(config, "type_vocab_size", 1) - 1
    segments = np.where(mask & (np.arange(9) > 3), last_segment, 0)
    inputs = {"input_ids": ids, "attention_mask": mask.astype(int)}
    if "num_segments" in keys or family.uses_segments:
        inputs["token_type_ids"] = segments
    if family.uses_global_mask and head in ("ForQuestionAnswering", "ForMultipleChoice"):
        # Otherwise transformers looks for separators.
        inputs["global_attention_mask"] = (mask & (np.arange(9) % 4 == 1)).astype(int)
    if head == "ForMultipleChoice":  # one choice per text
        inputs = {name: value[:, None] for name, value in inputs.items()}
    if in_order:  # each token is predicted from all other tokens
        itself = torch.eye(9).repeat(3, 1, 1)
        inputs |= {"perm_mask": itself, "target_mapping": itself}
    if beam:
        inputs["p_mask"] = (~mask).astype("float32")
    with torch.inference_mode():
        outputs = model(**{name: torch.as_tensor(value) for name, value in inputs.items()})
    names = [name for name in (*OUTPUTS, *OUTPUTS_OF_BEAM) if name in outputs]
    marks = inputs.get("global_attention_mask")
    marks = {} if marks is None else {"global_mask": marks.reshape(ids.shape).astype("int32")}
    np.savez_compressed(
        folder / "expected.npz",
        token_ids=ids.astype("int32"),
        padding_mask=mask,
        segment_ids=segments.astype("int32"),
        **marks,
        **{name: outputs[name].numpy() for name in names},
    )


if __name__ == "__main__":
    for family in map(get_family, sys.argv[1:] or FAMILIES):
        for head in {"Model", *family.heads} - {"ForPreTraining"}:
            if hasattr(transformers, family.get_class_name(head)):
                make(family, head)
            if head in family.heads and family.heads[head].beam:
                make(family, head, beam=True)
