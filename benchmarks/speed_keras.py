"""Sides of `speed.py` that use Keras: encoder_zoo and KerasHub."""

import functools
import time

import keras
from sources import MINILM
from speed_measures import BATCH, MASK_RATE, latencies, second_call


class EpochTimes(keras.callbacks.Callback):
    """Store when epochs start and end in all `fit` calls."""

    def __init__(self):
        super().__init__()
        self.began, self.ended = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.began.append(time.perf_counter())

    def on_epoch_end(self, epoch, logs=None):
        self.ended.append(time.perf_counter())

    @property
    def second(self) -> float:
        """Return how many seconds the second epoch took."""
        return self.ended[1] - self.began[1]


def second_epoch(fit) -> float:
    """Run a Keras `fit` with callbacks and return seconds for the second epoch."""
    times = EpochTimes()
    fit(epochs=2, callbacks=[times], verbose=0)
    return times.second


def whole_calls(work: str, fit, count: int) -> dict[str, float]:
    """Measure the first or second call to a Keras `fit`. Each call uses different sentences."""
    times, seconds = EpochTimes(), []
    for call in range(2):
        start = time.perf_counter()
        fit(call, epochs=1, callbacks=[times], verbose=0)
        seconds.append(time.perf_counter() - start)
    chosen = seconds[work == "refit"]
    # In the second call, nothing is created for the first time.
    return {"value": count / chosen, "fixed": chosen - times.second}


def ours(work: str, texts: list[str], labels: list[int]) -> dict[str, float]:
    """Measure encoder_zoo on the backend set in KERAS_BACKEND."""
    import encoder_zoo as ez

    keras.utils.set_random_seed(0)
    if work == "mlm":
        model = ez.MaskedLM.from_preset(MINILM, mask_rate=MASK_RATE)
        seconds = second_epoch(lambda **options: model.fit(texts, batch_size=BATCH, **options))
        return {"value": len(texts) / seconds}
    model = ez.SequenceClassifier.from_preset(MINILM, num_classes=2)
    if work in ("fit", "refit"):
        half = len(texts) // 2
        calls = [(texts[:half], labels[:half]), (texts[half:], labels[half:])]
        return whole_calls(work, lambda i, **o: model.fit(*calls[i], batch_size=BATCH, **o), half)
    if work == "train":
        seconds = second_epoch(lambda **o: model.fit(texts, labels, batch_size=BATCH, **o))
        return {"value": len(texts) / seconds}
    if work == "predict":
        return {"value": len(texts) / second_call(lambda: model.predict(texts, verbose=0))}
    if work == "latency":
        return latencies(lambda text: model.classify([text]), texts)
    if work == "answer":
        model.classify(texts[:1])
        return {}
    model.fit(texts, labels, batch_size=BATCH, epochs=3, verbose=0)
    return {}


def keras_hub(
    work: str, texts: list[str], labels: list[int], sequence_length: int = 64
) -> dict[str, float]:
    """Measure KerasHub with its own recipe for TPUs and GPUs, using random weights."""
    import keras_hub as hub
    import numpy as np

    vocabulary = str(MINILM / "vocab.txt")
    tokenizer = hub.tokenizers.BertTokenizer(vocabulary, lowercase=True)
    backbone = hub.models.BertBackbone(
        vocabulary_size=30522, num_layers=6, num_heads=12, hidden_dim=384, intermediate_dim=1536
    )
    name = "BertMaskedLM" if work == "mlm" else "BertTextClassifier"
    preprocessor = getattr(hub.models, name + "Preprocessor")(tokenizer, sequence_length)
    arguments = {} if work == "mlm" else {"num_classes": 2}
    model = getattr(hub.models, name)(backbone=backbone, preprocessor=preprocessor, **arguments)
    data = (np.array(texts),) if work == "mlm" else (np.array(texts), np.array(labels))
    if work in ("fit", "refit"):
        half = len(texts) // 2
        calls = [[part[:half] for part in data], [part[half:] for part in data]]
        return whole_calls(work, lambda i, **o: model.fit(*calls[i], batch_size=BATCH, **o), half)
    if work in ("train", "mlm"):
        seconds = second_epoch(lambda **options: model.fit(*data, batch_size=BATCH, **options))
        return {"value": len(texts) / seconds}
    if work == "predict":
        return {"value": len(texts) / second_call(lambda: model.predict(data[0], BATCH, verbose=0))}
    if work == "answer":
        model.predict(texts[:1], verbose=0)
        return {}
    if work == "latency":
        return latencies(lambda text: model.predict([text], verbose=0), texts)
    model.fit(*data, batch_size=BATCH, epochs=3, verbose=0)
    return {}


keras_hub_default = functools.partial(keras_hub, sequence_length=512)
