"""From raw texts on an accelerator: `fit` and `embed` on JAX and PyTorch, beside their peers.

    python benchmarks/accelerator_texts.py sst2.tsv
    python benchmarks/accelerator_texts.py sst2.tsv --count 2000 --json texts.json

The file has a line of names, then in each line a label of 0 or 1, a tab, and a text.
Tokenizing, padding and moving to the device are part of the time, as they are of a user's. The
model has the size of BERT-base, random weights and the bundled vocabulary.

- fit: sentences a second of the second epoch, batches of 32, AdamW, mixed bfloat16; the peer is a
  loop over transformers' model under autocast, not compiled, as its Trainer runs;
- embed: texts a second of the second call, batches of 256, bfloat16; the peer is
  sentence-transformers on the folder that we saved.

Sides as in `accelerator.py`, with sentence-transformers besides. Each is a process of its own.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SIDES = {"encoder_zoo on JAX": "jax", "encoder_zoo on torch": "torch", "peer": "torch"}
BATCH, EMBED_BATCH = 32, 256


def rows_of(file: str, count: int) -> tuple[list[str], list[int]]:
    """Texts and labels."""
    lines = pathlib.Path(file).read_text(encoding="utf-8").split("\n")[1:]
    rows = [line.split("\t") for line in lines if line][:count]
    return [row[1] for row in rows], [int(row[0]) for row in rows]


def make_folder(folder: str, tiny: bool) -> None:
    """Write an embedder of BERT-base's size and random weights, for all sides."""
    import encoder_zoo as ez

    preprocessor = ez.TextEmbedder.record.preprocessor_class.from_preset("bert_nano_en_uncased")
    vocabulary = preprocessor.tokenizer.vocabulary_size
    shape = (2, 2, 64, 96) if tiny else (12, 12, 768, 3072)
    ez.TextEmbedder(ez.BertBackbone(vocabulary, *shape), preprocessor).save_to_preset(folder)


class Ours:
    """encoder_zoo on Keras's backend."""

    def fit(self, folder: str, texts: list[str], labels: list[int]) -> float:
        import keras

        import encoder_zoo as ez

        model = ez.SequenceClassifier.from_preset(folder, num_classes=2, dtype="mixed_bfloat16")
        starts = []
        clock = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda *_: starts.append(time.perf_counter())
        )
        model.fit(texts, labels, batch_size=BATCH, epochs=2, callbacks=[clock], verbose=0)
        return time.perf_counter() - starts[1]

    def embed(self, folder: str, texts: list[str], _) -> float:
        import encoder_zoo as ez

        model = ez.TextEmbedder.from_preset(folder, dtype="bfloat16")
        model.embed(texts, batch_size=EMBED_BATCH)
        start = time.perf_counter()
        model.embed(texts, batch_size=EMBED_BATCH)
        return time.perf_counter() - start


class Peer:
    """transformers and sentence-transformers."""

    def fit(self, folder: str, texts: list[str], labels: list[int]) -> float:
        import numpy as np
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        device = "cuda" if torch.cuda.is_available() else "cpu"
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
        model = model.to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), 5e-5, fused=True)
        for _ in range(2):
            start = time.perf_counter()
            order = np.random.permutation(len(texts))
            for first in range(0, len(texts), BATCH):
                rows = order[first : first + BATCH]
                batch = tokenizer([texts[i] for i in rows], padding=True, return_tensors="pt")
                answers = torch.tensor([labels[i] for i in rows], device=device)
                with torch.autocast(device, torch.bfloat16):
                    loss = model(**batch.to(device), labels=answers).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            float(loss)  # waits for the device
        return time.perf_counter() - start

    def embed(self, folder: str, texts: list[str], _) -> float:
        import torch
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(folder, model_kwargs={"dtype": torch.bfloat16})
        model.encode(texts, batch_size=EMBED_BATCH)
        start = time.perf_counter()
        model.encode(texts, batch_size=EMBED_BATCH)
        return time.perf_counter() - start


def measure(options: argparse.Namespace, folder: str, side: str, work: str) -> dict:
    """Return the row of one side, from a process of its own."""
    command = [sys.executable, __file__, options.file, "--count", str(options.count)]
    environment = {**os.environ, "KERAS_BACKEND": SIDES[side]}
    done = subprocess.run(
        [*command, "--measure", side, work, folder], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        return {"side": side, "work": work, "error": done.stderr.strip().split("\n")[-1][:200]}
    return json.loads(done.stdout.strip().split("\n")[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--works", nargs="+", choices=("fit", "embed"), default=("fit", "embed"))
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("accelerator_texts.json"))
    parser.add_argument("--tiny", action="store_true", help="a small model")
    parser.add_argument("--measure", nargs=3, metavar=("SIDE", "WORK", "FOLDER"), help="one alone")
    options = parser.parse_args()
    if options.measure:
        side, work, folder = options.measure
        texts, labels = rows_of(options.file, options.count)
        seconds = getattr(Peer() if side == "peer" else Ours(), work)(folder, texts, labels)
        print(json.dumps({"side": side, "work": work, "texts_per_second": len(texts) / seconds}))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        make_folder(folder, options.tiny)
        for work in options.works:
            for side in options.sides:
                rows.append(measure(options, folder, side, work))
                print(rows[-1], flush=True)
                options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
