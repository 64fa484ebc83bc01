"""Makes the tiny checkpoints in `checkpoints/` and what transformers computes with them.

Run once, with the extra `peers` installed: `python tests/golden/make_checkpoints.py`. One folder
for each family and head: `config.json`, `model.safetensors`, the tokenizer's files, and
`expected.npz` with inputs and outputs.
"""

import json
import pathlib
import shutil

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent / "checkpoints"
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "initializer_range": 0.5,  # large, so that every part shows in the outputs
}
HEADS = {
    "Model": [],
    "ForMaskedLM": ["logits"],
    "ForSequenceClassification": ["logits"],
    "ForTokenClassification": ["logits"],
    "ForQuestionAnswering": ["start_logits", "end_logits"],
}
WORDS = "the a cat dog mat sat ran on under good bad film was is it not very . , ! ? ##s ##ing ##ed"


def write_bert_vocabulary(folder: pathlib.Path) -> int:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(" ")]
    tokens += [*"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    tokens = list(dict.fromkeys(tokens))
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
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


def make(family: str, head: str) -> None:
    folder = HERE / f"{family}_{head}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if family in ("Bert", "Electra"):
        sizes = {"vocab_size": write_bert_vocabulary(folder), "max_position_embeddings": 32}
        sizes |= {"embedding_size": 6} if family == "Electra" else {}
    else:
        sizes = {"vocab_size": write_roberta_vocabulary(folder), "max_position_embeddings": 34}
        sizes |= {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        sizes["id2label"] = dict(enumerate(["O", "B-PER", "I-PER"]))
        sizes["label2id"] = {v: k for k, v in sizes["id2label"].items()}
    torch.manual_seed(sum(map(ord, family + head)))
    config = getattr(transformers, f"{family}Config")(**SIZES, **sizes)
    model = getattr(transformers, family + head)(config).eval()
    for parameter in model.parameters():  # biases and LayerNorm away from 0 and 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)

    rng = np.random.default_rng(0)
    ids = rng.integers(5, config.vocab_size - 1, (3, 9))
    mask = np.arange(9) < np.array([[9], [6], [1]])
    ids = np.where(mask, ids, config.pad_token_id)
    segments = np.where(mask & (np.arange(9) > 3), config.type_vocab_size - 1, 0)
    with torch.inference_mode():
        outputs = model(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(mask.astype(int)),
            token_type_ids=torch.tensor(segments),
        )
    names = HEADS[head] or [n for n in ("last_hidden_state", "pooler_output") if n in outputs]
    np.savez_compressed(
        folder / "expected.npz",
        token_ids=ids.astype("int32"),
        padding_mask=mask,
        segment_ids=segments.astype("int32"),
        **{name: outputs[name].numpy() for name in names},
    )


if __name__ == "__main__":
    for family in ("Bert", "Roberta", "Electra"):
        for head in HEADS:
            make(family, head)
