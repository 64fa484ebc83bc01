"""Side of `speed.py` that uses transformers on torch."""

import argparse
import time

import torch
import transformers
from sources import MINILM
from speed_measures import BATCH, MASK_RATE, latencies, second_call
from torch_training import torch_steps


def grouped(work: str, texts: list[str], labels: list[int]) -> dict[str, float]:
    """Measure transformers on torch with batches grouped by length."""
    return torch_side(work, texts, labels, group=True)


def as_it_comes(work: str, texts: list[str], labels: list[int]) -> dict[str, float]:
    """Measure transformers on torch with batches in random order, padded to the longest text."""
    return torch_side(work, texts, labels, group=False)


def torch_side(work: str, texts: list[str], labels: list[int], group: bool) -> dict[str, float]:
    """Measure transformers on torch."""
    side = Transformers(work, texts, labels, group)
    loaded = time.perf_counter()
    if work in ("fit", "refit"):  # a handwritten loop does not have a first call
        half = len(texts) // 2
        side.train(range(half), epochs=1)
        return {"value": half / (time.perf_counter() - loaded), "fixed": 0.0}
    everything = range(len(texts))
    if work in ("train", "mlm"):
        return {"value": len(texts) / side.train(everything, epochs=2)}
    if work == "job":
        side.train(everything, epochs=3)
        return {}
    side.model.eval()
    if work == "answer":
        side.predict(texts, [0])
        return {}
    if work == "latency":
        return latencies(lambda text: side.predict([text], [0]), texts)
    lengths = side.lengths(texts)
    order = sorted(range(len(texts)), key=lambda i: -lengths[i])
    return {"value": len(texts) / second_call(lambda: side.predict(texts, order))}


class Transformers:
    """MiniLM with a head, and handwritten loops.

    Args:
        work: String. "mlm", or a kind of work that classifies texts.
        texts: List of strings. Training texts.
        labels: List of integers. Training labels.
        group: Boolean. Whether to group texts of similar length into batches.
    """

    def __init__(self, work: str, texts: list[str], labels: list[int], group: bool):
        torch.manual_seed(0)
        self.texts, self.labels, self.group, self.masked = texts, labels, group, work == "mlm"
        head = "ForMaskedLM" if self.masked else "ForSequenceClassification"
        self.model = getattr(transformers, "Bert" + head).from_pretrained(MINILM)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
        self.collate = transformers.DataCollatorForLanguageModeling(
            self.tokenizer, mlm_probability=MASK_RATE
        )

    def lengths(self, texts: list[str]) -> list[int]:
        """Return text lengths to use for grouping texts into batches."""
        if not self.group:
            return [0] * len(texts)
        return [len(ids) for ids in self.tokenizer(texts)["input_ids"]]

    def inputs_of(self, batch) -> dict:
        """Return inputs and labels for a batch."""
        rows = self.tokenizer(
            [self.texts[i] for i in batch], padding=True, truncation=True, return_tensors="pt"
        )
        if not self.masked:
            return {**rows, "labels": torch.tensor([self.labels[i] for i in batch])}
        rows["input_ids"], rows["labels"] = self.collate.torch_mask_tokens(rows["input_ids"])
        return rows

    def train(self, numbers: range, epochs: int) -> float:
        """Train on the first texts and return seconds for the last epoch."""
        lengths = self.lengths([self.texts[i] for i in numbers])
        options = argparse.Namespace(batch_size=BATCH, epochs=epochs)
        steps, times = -(-len(lengths) // BATCH), []
        for i, (batch, step) in enumerate(torch_steps(self.model, lengths, 0, options)):
            if i % steps == 0:
                times.append(time.perf_counter())
            step(self.model(**self.inputs_of(batch)).loss)
        return time.perf_counter() - times[-1]

    @torch.inference_mode()
    def predict(self, texts: list[str], order: list[int]) -> None:
        """Compute probabilities for batches in a given order."""
        for i in range(0, len(order), BATCH):
            rows = self.tokenizer([texts[j] for j in order[i : i + BATCH]], padding=True)
            self.model(**rows.convert_to_tensors("pt")).logits.softmax(-1).numpy()
