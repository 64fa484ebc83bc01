"""Measure `fit` and `embed` from raw texts on an accelerator, for JAX, PyTorch and their peers.

    python benchmarks/accelerator_texts.py sst2.tsv
    python benchmarks/accelerator_texts.py sst2.tsv --count 2000 --json texts.json

The first line in the file contains column names. Each other line contains a label (0 or 1), a tab,
and a text. To measure what users will see, the time includes tokenization, padding and transfer to
the device. The model has the same size as BERT-base, random weights, and the bundled vocabulary.

- fit: sentences per second in the second epoch, using batches of 32, AdamW and mixed bfloat16. The
  peer is a loop over a transformers model with autocast. Like the default Trainer, this loop does
  not compile the model.
- embed: texts per second in the second call, using batches of 256 and bfloat16. The peer is
  sentence-transformers, which loads the folder saved by this package.

The libraries are the same as in `accelerator.py`, and sentence-transformers. Each library runs in a
separate process.
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


def read_rows(file: str, count: int) -> tuple[list[str], list[int]]:
    """Read texts and labels from a file."""
    lines = pathlib.Path(file).read_text(encoding="utf-8").split("\n")[1:]
    rows = [line.split("\t") for line in lines if line][:count]
    return [row[1] for row in rows], [int(row[0]) for row in rows]


def make_folder(folder: str, tiny: bool) -> None:
    """Save an embedder with random weights and the size of BERT-base, for all libraries to load."""
    import encoder_zoo as ez

    preprocessor = ez.TextEmbedder.record.preprocessor_class.from_preset("bert_nano_en_uncased")
    vocabulary = preprocessor.tokenizer.vocabulary_size
    shape = (2, 2, 64, 96) if tiny else (12, 12, 768, 3072)
    ez.TextEmbedder(ez.BertBackbone(vocabulary, *shape), preprocessor).save_to_preset(folder)


class Ours:
    """Measure encoder_zoo on the current Keras backend."""

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
    """Measure transformers and sentence-transformers."""

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
    """Measure one library in a separate process, and return its table row."""
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
    parser.add_argument(
        "--measure", nargs=3, metavar=("SIDE", "WORK", "FOLDER"), help="run one part"
    )
    options = parser.parse_args()
    if options.measure:
        side, work, folder = options.measure
        texts, labels = read_rows(options.file, options.count)
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
