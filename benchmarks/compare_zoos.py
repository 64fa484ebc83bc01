"""Compare the Keras 3 packages that contain BERT: encoder_zoo, KerasHub and ZeroModels.

    pip install -e ".[peers]" zeromodels
    python benchmarks/compare_zoos.py                # everything, on TensorFlow
    python benchmarks/compare_zoos.py --work parity
    KERAS_BACKEND=torch python benchmarks/compare_zoos.py --work fit predict --count 600

All packages read the same checkpoints: all-MiniLM-L6-v2, and small models with a head that
transformers writes with random weights. Each measurement runs in a separate process.

- parity: for each head, the largest difference to the outputs of transformers, or an error message.
  The number of texts that get the same token ids as in transformers.
- fit: CPU seconds for the first and second call to `fit` with one epoch, and peak memory
- predict: CPU seconds for the second call to `predict`, and peak memory

ZeroModels can only load names on the hub instead of folders, so its converter is called directly.
Its `fit` does not accept texts, so all texts are tokenized in one call before `fit`. CPU time is
measured, because it depends less on other programs than wall time. For KerasHub, `--length` sets
the `sequence_length` of the preprocessor, which is 512 by default.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
from sources import MINILM
from speed import sentences

PACKAGES = ("encoder-zoo", "keras-hub", "zeromodels", "transformers", "keras", "torch")
PACKAGES += ("tensorflow", "jax")
BATCH, CLASSES, RATE = 32, 3, 2e-5
HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
HEADS += ("ForMaskedLM",)
TEXTS = [
    "A short sentence.",
    "Café, naïve, São Paulo, Łódź",
    "straße und Fußball",
    "λόγος, Ἀθῆναι, Москва",
    "東京へ行く。 서울 กรุงเทพฯ",
    "zero\u200bwidth, no-break\u00a0space, soft\u00adhyphen",
    "emoji 🙂👩‍💻, “quotes” — dashes…",
    "don't re-enter; e-mail: a.b@c.org, 3.14 %",
    "[MASK] and [SEP] in a text",
    "б" * 60,
    "tab\tnewline\nand\rreturn",
    "a" * 99 + " " + "b" * 120,
]


def write_checkpoints(folder: pathlib.Path) -> None:
    """Write a small model for each head, together with the MiniLM tokenizer."""
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    for head in HEADS:
        config = transformers.BertConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=2 if head == "ForQuestionAnswering" else CLASSES,
            initializer_range=0.2,
        )
        torch.manual_seed(0)
        getattr(transformers, "Bert" + head)(config).save_pretrained(folder / head)
        for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
            (folder / head / name).write_bytes((MINILM / name).read_bytes())


class TransformersSide:
    """Run transformers on PyTorch with handwritten loops, as the reference."""

    def __init__(self, texts: list[str], labels: list[int], length: int):
        from speed_torch import Transformers

        self.texts, self.side = texts, Transformers("fit", texts, labels, group=True)

    def fit(self, rows: range) -> None:
        self.side.train(rows, epochs=1)

    def predict(self) -> None:
        self.side.model.eval()
        lengths = self.side.lengths(self.texts)
        self.side.predict(self.texts, sorted(range(len(lengths)), key=lambda i: -lengths[i]))

    @staticmethod
    def tokenize(folder: pathlib.Path, texts: list[str]) -> list[list[int]]:
        import transformers

        return transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]

    @staticmethod
    def compute(folder: pathlib.Path, head: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        import torch
        import transformers

        model = getattr(transformers, "Bert" + head).from_pretrained(folder).eval()
        names = {"ids": "input_ids", "mask": "attention_mask", "segments": "token_type_ids"}
        with torch.inference_mode():
            outputs = model(**{names[k]: torch.tensor(v).long() for k, v in inputs.items()})
        if head == "ForQuestionAnswering":
            return torch.stack([outputs.start_logits, outputs.end_logits], -1).numpy()
        return outputs[0].numpy()


class EncoderZooSide:
    """Run encoder_zoo with default training settings."""

    classes = ("Backbone", "SequenceClassifier", "TokenClassifier", "SpanQA", "MaskedLM")

    def __init__(self, texts: list[str], labels: list[int], length: int):
        import encoder_zoo as ez

        self.texts, self.labels = texts, labels
        self.model = ez.SequenceClassifier.from_preset(MINILM, num_classes=2)

    def fit(self, rows: range) -> None:
        texts, labels = ([column[i] for i in rows] for column in (self.texts, self.labels))
        self.model.fit(texts, labels, batch_size=BATCH, verbose=0)

    def predict(self) -> None:
        self.model.predict(self.texts, batch_size=BATCH, verbose=0)

    @staticmethod
    def tokenize(folder: pathlib.Path, texts: list[str]) -> list[list[int]]:
        import encoder_zoo as ez

        preprocessor = ez.SequenceClassifierPreprocessor.from_preset(folder)
        return [get_token_ids(preprocessor([text]), "token_ids", "padding_mask") for text in texts]

    @classmethod
    def compute(cls, folder, head: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        import encoder_zoo as ez

        model = getattr(ez, cls.classes[HEADS.index(head)]).from_preset(folder)
        names = {"ids": "token_ids", "mask": "padding_mask", "segments": "segment_ids"}
        inputs = {names[key]: value for key, value in inputs.items()}
        if head == "ForMaskedLM":
            inputs["mask_positions"] = all_positions(inputs["token_ids"])
        outputs = convert_to_numpy(model(inputs))
        return outputs.swapaxes(1, 2) if head == "ForQuestionAnswering" else outputs  # (B, L, 2)


class KerasHubSide:
    """Run KerasHub with its preprocessor and its default optimizer."""

    def __init__(self, texts: list[str], labels: list[int], length: int):
        import keras_hub

        self.texts, self.labels = np.array(texts), np.array(labels)
        self.model = keras_hub.models.BertTextClassifier.from_preset(str(MINILM), num_classes=2)
        self.model.preprocessor.sequence_length = length

    def fit(self, rows: range) -> None:
        self.model.fit(self.texts[rows], self.labels[rows], batch_size=BATCH, verbose=0)

    def predict(self) -> None:
        self.model.predict(self.texts, batch_size=BATCH, verbose=0)

    @staticmethod
    def tokenize(folder: pathlib.Path, texts: list[str]) -> list[list[int]]:
        import keras_hub

        preprocessor = keras_hub.models.BertTextClassifierPreprocessor.from_preset(str(folder))
        return [get_token_ids(preprocessor([text]), "token_ids", "padding_mask") for text in texts]

    @staticmethod
    def compute(folder: pathlib.Path, head: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        import keras_hub

        names = {"ids": "token_ids", "mask": "padding_mask", "segments": "segment_ids"}
        inputs = {names[key]: value for key, value in inputs.items()}
        if head == "Model":
            return convert_to_numpy(keras_hub.models.BertBackbone.from_preset(str(folder))(inputs))
        if head == "ForSequenceClassification":
            model = keras_hub.models.BertTextClassifier.from_preset(
                str(folder), num_classes=CLASSES
            )
            return convert_to_numpy(model(inputs))
        if head == "ForMaskedLM":
            inputs["mask_positions"] = all_positions(inputs["token_ids"])
            return convert_to_numpy(keras_hub.models.BertMaskedLM.from_preset(str(folder))(inputs))
        raise NotImplementedError("no class for this task")


class ZeroModelsSide:
    """Run ZeroModels with AdamW. Texts are tokenized before `fit` and `predict`."""

    classes = ("BertModel", "BertSequenceClassify", "BertTokenClassify", "BertQnA", "BertMaskedLM")

    def __init__(self, texts: list[str], labels: list[int], length: int):
        import keras

        self.texts, self.labels = texts, np.array(labels)
        self.tokenizer = self.make_tokenizer(MINILM)
        self.model = self.read(MINILM, "ForSequenceClassification")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(keras.optimizers.AdamW(RATE), loss)

    @staticmethod
    def make_tokenizer(folder: pathlib.Path):
        from zeromodels.models.bert import BertTokenizer

        return BertTokenizer(tokenizer_file=str(folder / "tokenizer.json"))

    @classmethod
    def read(cls, folder: pathlib.Path, head: str):
        """Load a folder like `from_weights("hf:...")` loads a repository of the hub."""
        from safetensors.numpy import load_file
        from zeromodels.models import bert

        config = json.loads((folder / "config.json").read_text("utf-8"))
        kind = getattr(bert, cls.classes[HEADS.index(head)])
        arguments = kind.config_from_hf(config)
        if head == "ForMaskedLM":
            arguments["add_pooler"] = (
                False  # by default, loading fails because these checkpoints do not have a pooler
            )
        model = kind(**arguments)
        kind.transfer_from_hf(model, load_file(folder / "model.safetensors"))
        return model

    def encode(self, rows: range) -> dict[str, np.ndarray]:
        inputs = self.tokenizer([self.texts[i] for i in rows])
        return {name: convert_to_numpy(value) for name, value in inputs.items()}

    def fit(self, rows: range) -> None:
        self.model.fit(self.encode(rows), self.labels[rows], batch_size=BATCH, verbose=0)

    def predict(self) -> None:
        self.model.predict(self.encode(range(len(self.texts))), batch_size=BATCH, verbose=0)

    @classmethod
    def tokenize(cls, folder: pathlib.Path, texts: list[str]) -> list[list[int]]:
        tokenizer = cls.make_tokenizer(folder)
        return [get_token_ids(tokenizer([text]), "input_ids", "attention_mask") for text in texts]

    @classmethod
    def compute(cls, folder, head: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        names = {"ids": "input_ids", "mask": "attention_mask", "segments": "token_type_ids"}
        outputs = cls.read(folder, head)({names[key]: value for key, value in inputs.items()})
        if head == "ForQuestionAnswering":
            return np.stack(
                [convert_to_numpy(outputs[k]) for k in ("start_logits", "end_logits")], -1
            )
        return convert_to_numpy(outputs)


SIDES = {
    "transformers": TransformersSide,
    "encoder_zoo": EncoderZooSide,
    "KerasHub": KerasHubSide,
    "ZeroModels": ZeroModelsSide,
}


def convert_to_numpy(outputs: object) -> np.ndarray:
    """Convert a tensor, or the main tensor in a dict, to a NumPy array."""
    import keras

    if isinstance(outputs, dict):
        names = ("sequence_output", "last_hidden_state", "logits")
        outputs = next(outputs[name] for name in names if name in outputs)
    return keras.ops.convert_to_numpy(outputs)


def get_token_ids(inputs: dict, ids: str, mask: str) -> list[int]:
    """Return token ids without padding for a batch with one text."""
    return convert_to_numpy(inputs[ids])[0][convert_to_numpy(inputs[mask])[0].astype(bool)].tolist()


def all_positions(ids: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.arange(ids.shape[1], dtype="int32"), ids.shape)


def make_inputs(folder: pathlib.Path, count: int) -> dict[str, np.ndarray]:
    """Create a padded batch of sentences with the transformers tokenizer."""
    texts, _ = sentences(count, 0)
    rows = TransformersSide.tokenize(folder, texts)
    ids = np.zeros((count, max(map(len, rows))), "int32")
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    mask = (ids != 0).astype("int32")
    return {"ids": ids, "mask": mask, "segments": np.zeros_like(ids)}


def measure_parity(side: str, folder: pathlib.Path) -> dict[str, str]:
    """Compare outputs and token ids with transformers."""
    results = {}
    for name, path in [("MiniLM", MINILM), *((head, folder / head) for head in HEADS)]:
        head = "Model" if name == "MiniLM" else name
        inputs = make_inputs(path, 16)
        expected = TransformersSide.compute(path, head, inputs)
        try:
            found = SIDES[side].compute(path, head, inputs)
        except Exception as error:
            results[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
            continue
        if found.shape != expected.shape:
            results[name] = f"shape {found.shape} instead of {expected.shape}"
            continue
        real = inputs["mask"].astype(bool) if found.ndim > 2 else slice(None)
        results[name] = f"{np.abs(found - expected)[real].max():.1e}"
    texts = [*sentences(200, 0)[0], *TEXTS]
    ours = SIDES[side].tokenize(MINILM, texts)
    theirs = TransformersSide.tokenize(MINILM, texts)
    different = [text for text, a, b in zip(texts, ours, theirs, strict=True) if a != b]
    results["same token ids"] = f"{len(texts) - len(different)} of {len(texts)}"
    print(*(f"{side}, other ids: {text!r}" for text in different), sep="\n", file=sys.stderr)
    return results


def measure_work(side: str, work: str, count: int, length: int) -> dict[str, str]:
    """Measure CPU seconds and memory for `fit` or `predict`."""
    model = SIDES[side](*sentences(2 * count, 0), length)
    if work == "fit":
        calls = [lambda: model.fit(range(count)), lambda: model.fit(range(count, 2 * count))]
    else:
        calls = [model.predict, model.predict]
    seconds = []
    for call in calls:
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results = {f"{work}, first call: CPU s": f"{seconds[0]:.1f}"}
    results[f"{work}, second call: CPU s"] = f"{seconds[1]:.1f}"
    return {**results, f"{work}: peak MB": f"{peak:.0f}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    works = ["parity", "fit", "predict"]
    parser.add_argument("--work", nargs="+", choices=works, default=works)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--count", type=int, default=600, help="number of sentences")
    parser.add_argument("--length", type=int, default=64, help="sequence_length in KerasHub")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        side, work, folder = options.measure
        if work == "parity":
            results = measure_parity(side, pathlib.Path(folder))
        else:
            results = measure_work(side, work, options.count, options.length)
        print(json.dumps(results))
        return
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(f"{os.cpu_count()} CPU cores, Python {platform.python_version()}, {versions}")
    print(f"Backend of Keras: {os.environ['KERAS_BACKEND']}")
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoints(pathlib.Path(folder))
        for work in options.work:
            sides = [side for side in options.sides if (side, work) != ("transformers", "parity")]
            table = {side: run(side, work, folder, options) for side in sides}
            print(f"\n| {work} | {' | '.join(table)} |\n{'|---' * (len(table) + 1)}|")
            for row in next(iter(table.values())):
                print(f"| {row} | {' | '.join(results[row] for results in table.values())} |")


def run(side: str, work: str, folder: str, options: argparse.Namespace) -> dict[str, str]:
    """Measure one library in a new process."""
    command = [sys.executable, __file__, "--measure", side, work, folder]
    command += ["--count", str(options.count), "--length", str(options.length)]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(output.strip().split("\n")[-1])


if __name__ == "__main__":
    main()
