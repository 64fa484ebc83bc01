"""Reading a folder in the Hugging Face format: safetensors, in one file or in shards."""

from __future__ import annotations

import pathlib

import numpy as np

from encoder_zoo.encoders import FAMILIES
from encoder_zoo.encoders.backbone import Family
from encoder_zoo.presets.files.plain_files import preset_file, read_json
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.presets.formats.checkpoint import Checkpoint

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Class in tokenizer_config.json, without "Fast": they all do the same to a text.
_TOKENIZERS = {
    "bert": ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"),
    "roberta": ("RobertaTokenizer", "GPT2Tokenizer", "BartTokenizer", "LongformerTokenizer"),
}
# What transformers writes of any tokenizer whose steps are in tokenizer.json.
_ANY_TOKENIZER = ("PreTrainedTokenizer", "TokenizersBackend", None)


class HuggingFaceCheckpoint(Checkpoint):
    """A folder with `config.json` and `model.safetensors`, or the shards that an index lists.

    Args:
        folder: see above.
        settings: contents of its `encoder_zoo.json`.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """

    def __init__(self, folder: pathlib.Path, settings: dict):
        self.folder = folder
        self.settings = settings
        self.config_file = folder / "config.json"
        self.config = read_json(self.config_file)
        self._files = [SafetensorsFile(path) for path in weight_files(folder)]
        raw_names = [name for file in self._files for name in file.shapes]
        self.config.setdefault("model_type", _guess_family(raw_names, folder))
        self._places: dict[str, tuple[SafetensorsFile, str]] = {}
        for file in self._files:
            for raw_name in file.shapes:
                name = _normalise(raw_name, self.config["model_type"])
                if name in self._places:
                    raise ValueError(f"{folder}: {name} stands in the weights twice.")
                self._places[name] = (file, raw_name)
        self._read_next_sentence_head()
        self.shapes = {name: file.shapes[raw] for name, (file, raw) in self._places.items()}

    def tensor(self, name: str) -> np.ndarray:
        file, raw_name = self._places[name]
        return file.read(raw_name)

    def load_tokenizer(self, family: Family):
        path = self.folder / "tokenizer_config.json"
        described = read_json(path).get("tokenizer_class") if path.exists() else None
        plain = described.removesuffix("Fast") if isinstance(described, str) else described
        if plain not in _TOKENIZERS[family.name] + _ANY_TOKENIZER:
            raise ValueError(
                f"{path}: tokenizer_class is {described!r}. Expected "
                f"{_TOKENIZERS[family.name][0]} for a {family.name} checkpoint."
            )
        return family.load_tokenizer(self.folder)

    def _read_next_sentence_head(self) -> None:
        """Next-sentence prediction is a classification of pairs."""
        if self.config.get("architectures") == ["BertForNextSentencePrediction"]:
            self.config["architectures"] = ["BertForSequenceClassification"]
            self.config["id2label"] = {"0": "is_next", "1": "is_not_next"}
            for part in ("weight", "bias"):
                if (old := f"cls.seq_relationship.{part}") in self._places:
                    self._places[f"classifier.{part}"] = self._places.pop(old)


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files with the weights.

    Raises:
        ValueError: "... no model.safetensors ...", saying what to do where there are weights in
            another format.
    """
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        names = read_json(folder / INDEX).get("weight_map")
        field = f"{folder / INDEX}: weight_map"
        if not isinstance(names, dict) or not names:
            raise ValueError(f"{field} is {type(names).__name__}. Expected names and files.")
        files = {str(name): name for name in names.values()}
        return [preset_file(folder, files[name], field) for name in sorted(files)]
    raise ValueError(no_safetensors(folder, [path.name for path in folder.iterdir()]))


def no_safetensors(where: object, names: list[str]) -> str:
    """The error for weights in no format that is opened here."""
    others = sorted(n for n in names if n.endswith((".bin", ".pt", ".pth", ".h5", ".msgpack")))
    if not others:
        return f"{where}: no {WEIGHTS}. The weights must be in this file, or in shards of it."
    return (
        f"{where}: no {WEIGHTS}, only {', '.join(others)}. safetensors is required: other formats "
        "can run code when they are opened, and are never opened here. Convert it where you trust "
        "it, with transformers: AutoModel.from_pretrained(...).save_pretrained(folder), taking "
        "the class of the checkpoint's task."
    )


def _guess_family(raw_names: list[str], folder: pathlib.Path) -> str | None:
    """The family of a checkpoint whose configuration does not say."""
    for family in FAMILIES:
        if any(name.startswith(f"{family}.") for name in raw_names):
            return family
    vocabularies = {"vocab.txt": "bert", "vocab.json": "roberta"}
    found = [family for name, family in vocabularies.items() if (folder / name).exists()]
    return found[0] if len(found) == 1 else None


def _normalise(name: str, family_name: str) -> str:
    """Without prefixes, and with the newer names of LayerNorm's weights.

    Example:
        >>> _normalise("module.bert.embeddings.LayerNorm.gamma", "bert")
        'embeddings.LayerNorm.weight'
    """
    name = name.removeprefix("module.").removeprefix(f"{family_name}.")
    for norm in ("LayerNorm", "layer_norm"):
        name = name.replace(f"{norm}.gamma", f"{norm}.weight")
        name = name.replace(f"{norm}.beta", f"{norm}.bias")
    return name
