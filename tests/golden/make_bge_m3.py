"""Create the tiny folder `bge_m3/`, with the outputs of FlagEmbedding.

Run `USE_TF=0 python make_bge_m3.py` with FlagEmbedding and a compatible version of transformers. In
addition to an encoder and two heads, which are saved by torch, `expected.npz` contains texts, their
dense vectors, token weights and token vectors, and the scores of all pairs. The three kinds of
scores are stored separately, and combined with the weights 1, 0.3 and 1.

The folder was created with FlagEmbedding 1.4.2, transformers 4.57 and torch 2.13.
"""

import json
import pathlib
import shutil

import numpy as np
import torch
from FlagEmbedding import BGEM3FlagModel

HERE = pathlib.Path(__file__).parent
SOURCE, FOLDER = HERE / "checkpoints" / "XLMRoberta_Model", HERE / "bge_m3"
TEXTS = [
    "the cat sat on the mat.",
    "Good film! It was not bad",
    "dogs ran, the dog ran",
    "it was bad, the dog ran under the mat and the cat ran under the dog. " * 2,
]
LENGTH = 20
MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}


def write_folder() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for name in ("config.json", "model.safetensors", "sentencepiece.bpe.model"):
        shutil.copy(SOURCE / name, FOLDER / name)
    (FOLDER / "1_Pooling").mkdir()
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(MODULES.items())
    ]
    width = json.loads((FOLDER / "config.json").read_text())["hidden_size"]
    pooling = {"word_embedding_dimension": width, "pooling_mode_cls_token": True}
    length = {"max_seq_length": LENGTH, "do_lower_case": False}
    for name, value in (
        ("modules.json", entries),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", length),
    ):
        (FOLDER / name).write_text(json.dumps(value, indent=2))
    torch.manual_seed(3)
    for name, units in (("colbert_linear", width), ("sparse_linear", 1)):
        layer = torch.nn.Linear(width, units)
        torch.nn.init.normal_(layer.weight, std=0.7)
        torch.save(layer.state_dict(), FOLDER / f"{name}.pt")


def main() -> None:
    write_folder()
    model = BGEM3FlagModel(str(FOLDER), use_fp16=False, devices="cpu")
    every = {"return_dense": True, "return_sparse": True, "return_colbert_vecs": True}
    found = model.encode(TEXTS, max_length=LENGTH, **every)
    weights = np.zeros((len(TEXTS), model.model.vocab_size), "float32")
    for row, of_text in zip(weights, found["lexical_weights"], strict=True):
        row[[int(i) for i in of_text]] = list(of_text.values())
    pairs = [(a, b) for a in TEXTS for b in TEXTS]
    scores = model.compute_score(
        pairs,
        max_query_length=LENGTH,
        max_passage_length=LENGTH,
        weights_for_different_modes=[1.0, 0.3, 1.0],
    )
    np.savez_compressed(
        FOLDER / "expected.npz",
        texts=np.array(TEXTS),
        dense=found["dense_vecs"],
        weights=weights,
        tokens=np.concatenate(found["colbert_vecs"]),
        lengths=[len(vectors) for vectors in found["colbert_vecs"]],
        scores=np.reshape([scores[n] for n in ("dense", "sparse", "colbert")], (3, 4, 4)),
        mixed=np.reshape(scores["colbert+sparse+dense"], (4, 4)) * 2.3,
    )


if __name__ == "__main__":
    main()
