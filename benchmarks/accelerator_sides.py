"""Measure one model with one library for `accelerator.py`. Results are printed as JSON lines."""

import json
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

HEAD_WIDTH = 64
# {model: (family here, its arguments; configuration class and arguments in transformers)}
KINDS = {
    "BERT-base": ("Bert", {}, "BertConfig", {}),
    "ModernBERT-base": ("ModernBert", {}, "ModernBertConfig", {}),
    "DeBERTa-v3-base": (
        "DebertaV2",
        {"position_buckets": 256, "max_relative_positions": 512},
        "DebertaV2Config",
        {
            "relative_attention": True,
            "position_buckets": 256,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
}


class Ours:
    """Train and run a `SequenceClassifier` with `fit` and `predict` on token ids."""

    def __init__(self, work: dict):
        import keras

        import encoder_zoo as ez

        family, arguments, _, _ = KINDS[work["model"]]
        layers, width, inner, vocabulary = work["sizes"]
        arguments = {**arguments, "max_sequence_length": max(512, *work["lengths"])}
        if family == "Bert":
            arguments |= {"max_sequence_length": 512}
        backbone = getattr(ez, f"{family}Backbone")(
            vocabulary, layers, width // HEAD_WIDTH, width, inner,
            dropout=0.0, attention_dropout=0.0, dtype="mixed_bfloat16", **arguments,
        )  # fmt: skip
        self.model = ez.SequenceClassifier(backbone, num_classes=2, dropout=0.0)
        self.model.compile()
        self.backend = keras.config.backend()

    def train(self, ids: np.ndarray, batch: int) -> None:
        labels = np.arange(len(ids)) % 2
        self.model.fit({"token_ids": ids}, labels, batch_size=batch, shuffle=False, verbose=0)

    def forward(self, ids: np.ndarray, batch: int) -> None:
        self.model.predict({"token_ids": ids}, batch_size=batch, verbose=0)


class Theirs:
    """Train and run a compiled classifier from transformers in handwritten loops."""

    backend = "torch"

    def __init__(self, work: dict):
        import torch
        import transformers

        _, _, config, arguments = KINDS[work["model"]]
        layers, width, inner, vocabulary = work["sizes"]
        drops = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout")
        config = getattr(transformers, config)(
            vocab_size=vocabulary, num_hidden_layers=layers, hidden_size=width,
            num_attention_heads=width // HEAD_WIDTH, intermediate_size=inner, pad_token_id=0,
            bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
            **dict.fromkeys(drops, 0.0), **arguments,
        )  # fmt: skip
        make = transformers.AutoModelForSequenceClassification.from_config
        try:
            model = make(config, attn_implementation="sdpa")
        except ValueError:  # the model does not support sdpa
            model = make(config, attn_implementation="eager")
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.torch, self.model = torch, model.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 5e-5, fused=True)
        self.compiled = torch.compile(self.model, dynamic=False)

    def train(self, ids: np.ndarray, batch: int) -> None:
        self.model.train()
        for inputs, labels in self._batches(ids, batch):
            with self.torch.autocast(self.device, self.torch.bfloat16):
                loss = self.compiled(input_ids=inputs, labels=labels).loss
            loss.backward()
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        float(loss)  # waits for the device

    def forward(self, ids: np.ndarray, batch: int) -> None:
        self.model.eval()
        for inputs, _ in self._batches(ids, batch):
            with self.torch.no_grad(), self.torch.autocast(self.device, self.torch.bfloat16):
                logits = self.compiled(input_ids=inputs).logits
        logits.float().cpu()

    def _batches(self, ids: np.ndarray, batch: int):
        labels = self.torch.arange(len(ids)) % 2
        for start in range(0, len(ids), batch):
            rows = slice(start, start + batch)
            inputs = self.torch.tensor(ids[rows], dtype=self.torch.long)
            yield inputs.to(self.device), labels[rows].to(self.device)


def speed(step: Callable, ids: Callable[[int], np.ndarray], batch: int, seconds: float) -> dict:
    """Measure tokens per second after compilation, and seconds for the first step."""
    start = time.perf_counter()
    step(ids(batch), batch)
    first = time.perf_counter() - start
    step(ids(2 * batch), batch)
    start = time.perf_counter()
    step(ids(2 * batch), batch)
    steps = max(3, min(200, int(2 * seconds / (time.perf_counter() - start))))
    data = ids(steps * batch)
    start = time.perf_counter()
    step(data, batch)
    return {"tokens_per_second": data.size / (time.perf_counter() - start), "first_seconds": first}


def forget_peak(backend: str) -> None:
    """Reset the peak memory. This is not possible on JAX."""
    if backend == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()


def device(backend: str) -> dict:
    """Return the device name and its peak memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if backend == "jax":
        import jax

        first = jax.devices()[0]
        used = (first.memory_stats() or {}).get("peak_bytes_in_use")
        return {"device": first.device_kind, "peak_mb": used / 2**20 if used else peak}
    import torch

    if not torch.cuda.is_available():
        return {"device": "cpu", "peak_mb": peak}
    used = torch.cuda.max_memory_allocated() / 2**20
    return {"device": torch.cuda.get_device_name(), "peak_mb": used}


def main() -> None:
    work = json.loads(sys.argv[1])
    if "device_of" in work:
        print(json.dumps(device(work["device_of"])))
        return
    side = (Theirs if work["side"] == "transformers" else Ours)(work)
    vocabulary, rng = work["sizes"][-1], np.random.default_rng(0)
    for length in work["lengths"]:
        batch = max(1, work["tokens"] // length)

        def ids(rows: int, length: int = length) -> np.ndarray:
            return rng.integers(5, vocabulary, (rows, length), np.int32)

        for kind in ("forward", "train"):
            row = {"side": work["side"], "model": work["model"], "length": length, "work": kind}
            forget_peak(side.backend)
            try:
                row |= speed(getattr(side, kind), ids, batch, work["seconds"])
            except Exception as error:  # usually out of memory, so continue with the next one
                row["error"] = f"{type(error).__name__}: {error}".split("\n")[0][:120]
            print(json.dumps({**row, **device(side.backend)}), flush=True)
    if "tensorflow" in sys.modules:
        sys.exit("TensorFlow was imported.")


if __name__ == "__main__":
    main()
