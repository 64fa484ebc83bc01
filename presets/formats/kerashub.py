"""Reading a KerasHub preset: its JSON as plain data, its weights as arrays.

A preset's files name Python modules and classes. Here a class name is looked up in a closed
table and a module is never imported.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import numpy as np

from encoder_zoo.encoders.backbone import Family
from encoder_zoo.presets.config import CONFIG_KEYS
from encoder_zoo.presets.files.hdf5_file import Hdf5File
from encoder_zoo.presets.files.plain_files import preset_file, read_json
from encoder_zoo.presets.formats.checkpoint import Checkpoint

# Class in a KerasHub file: (family, what that class has built in)
_BACKBONES = {
    "BertBackbone": ("bert", {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-12}),
    "RobertaBackbone": ("roberta", {"hidden_act": "gelu", "layer_norm_eps": 1e-5}),
}
_TOKENIZERS = {"bert": "BertTokenizer", "roberta": "RobertaTokenizer"}
_TASKS = {"TextClassifier": "ForSequenceClassification", "MaskedLM": "ForMaskedLM"}

# Layer in the Hugging Face format: group in the h5 file
_BLOCK_GROUPS = {
    "attention.self.query": "_self_attention_layer/query_dense",
    "attention.self.key": "_self_attention_layer/key_dense",
    "attention.self.value": "_self_attention_layer/value_dense",
    "attention.output.dense": "_self_attention_layer/output_dense",
    "attention.output.LayerNorm": "_self_attention_layer_norm",
    "intermediate.dense": "_feedforward_intermediate_dense",
    "output.dense": "_feedforward_output_dense",
    "output.LayerNorm": "_feedforward_layer_norm",
}
_BACKBONE_GROUPS = {
    "bert": {
        "embeddings.word_embeddings": "reversible_embedding",
        "embeddings.position_embeddings": "position_embedding",
        "embeddings.token_type_embeddings": "embedding",
        "embeddings.LayerNorm": "layer_normalization",
        "pooler.dense": "dense",
    },
    "roberta": {
        "embeddings.word_embeddings": "token_and_position_embedding/token_embedding",
        "embeddings.position_embeddings": "token_and_position_embedding/position_embedding",
        "embeddings.LayerNorm": "layer_normalization",
    },
}
_HEAD_GROUPS = {
    ("bert", "TextClassifier"): {"classifier": "dense"},
    ("roberta", "TextClassifier"): {"classifier.dense": "dense", "classifier.out_proj": "dense_1"},
    ("bert", "MaskedLM"): {
        "cls.predictions.transform.dense": "masked_lm_head/_intermediate_dense",
        "cls.predictions.transform.LayerNorm": "masked_lm_head/_intermediate_layer_norm",
        "cls.predictions": "masked_lm_head",
    },
    ("roberta", "MaskedLM"): {
        "lm_head.dense": "masked_lm_head/_intermediate_dense",
        "lm_head.layer_norm": "masked_lm_head/_intermediate_layer_norm",
        "lm_head": "masked_lm_head",
    },
}


class KerasHubCheckpoint(Checkpoint):
    """A folder that KerasHub's `save_to_preset` wrote, or that its Kaggle presets are.

    KerasHub's BERT has the tanh GELU built in, also where the original weights had the exact one.
    This is kept, so that the numbers are KerasHub's. Its masked-LM head has the exact one; here a
    head has its backbone's.

    Args:
        folder: holds `config.json` with a `class_name`, and `model.weights.h5`.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.settings = {}
        self.config_file = folder / "config.json"
        self.config_names = {theirs: ours for ours, theirs in CONFIG_KEYS.items()}
        description = read_json(self.config_file)
        self._family, built_in = _look_up(
            _BACKBONES, description["class_name"], self.config_file, "class_name"
        )
        self.config = {**_config(description, self.config_file), **built_in}
        self.config["model_type"] = self._family
        self._places: dict[str, tuple[Hdf5File, str, tuple[int, ...]]] = {}
        self._read_backbone(Hdf5File(preset_file(folder, "model.weights.h5")))
        if (folder / "task.json").exists():
            self._read_head(folder / "task.json")
        self.shapes = {name: shape for name, (_, _, shape) in self._places.items()}
        if self._family == "roberta":
            self._describe_roberta()

    def tensor(self, name: str) -> np.ndarray:
        shape = self.shapes[name]
        if name not in self._places:
            return np.zeros(shape, "float32")
        file, place, stored = self._places[name]
        value = file.read(place)
        if name == _POSITIONS and shape != stored:
            return np.pad(value, ((shape[0] - stored[0], 0), (0, 0)))
        if _is_kernel(name):
            return value.reshape(shape[::-1]).T
        return value.reshape(shape)

    def load_tokenizer(self, family: Family):
        path = self.folder / "tokenizer.json"
        description = read_json(path)
        expected = _TOKENIZERS[family.name]
        if description.get("class_name") != expected:
            raise ValueError(
                f"{path}: class_name is {description.get('class_name')!r}. "
                f"Expected {expected} for a {family.name} checkpoint."
            )
        settings = description.get("config") or {}
        return _TOKENIZER_READERS[family.name](self.folder, settings)

    def _read_backbone(self, file: Hdf5File) -> None:
        groups = dict(_BACKBONE_GROUPS[self._family])
        for i in range(file.count("transformer_encoder")):
            block = "transformer_encoder" + (f"_{i}" if i else "")
            for theirs, group in _BLOCK_GROUPS.items():
                groups[f"encoder.layer.{i}.{theirs}"] = f"{block}/{group}"
        self._add(file, groups)

    def _read_head(self, path: pathlib.Path) -> None:
        prefix = {"bert": "Bert", "roberta": "Roberta"}[self._family]
        described = str(read_json(path).get("class_name"))
        task = described.removeprefix(prefix)
        _look_up({prefix + name: None for name in _TASKS}, described, path, "class_name")
        self._add(
            Hdf5File(preset_file(self.folder, "task.weights.h5")),
            _HEAD_GROUPS[self._family, task],
        )
        self.config["architectures"] = [prefix + _TASKS[task]]
        if task == "TextClassifier":
            output = "classifier" if self._family == "bert" else "classifier.out_proj"
            count = self._places[f"{output}.weight"][2][0]
            self.config["id2label"] = {str(i): f"LABEL_{i}" for i in range(count)}

    def _add(self, file: Hdf5File, groups: Mapping[str, str]) -> None:
        """Notes where the arrays of the groups lie, and their shapes in the other format."""
        for layer, group in groups.items():
            shapes = file.shapes(group)
            names = ("bias",) if layer in ("cls.predictions", "lm_head") else ("weight", "bias")
            for i, (part, stored) in enumerate(zip(names, shapes, strict=False)):
                name = f"{layer}.{part}"
                shape = _shape(name, stored, group)
                self._places[name] = (file, f"{group}/vars/{i}", shape)

    def _describe_roberta(self) -> None:
        """KerasHub counts RoBERTa's positions from 0 and has no segments."""
        rows, hidden = self.shapes[_POSITIONS]
        self.shapes[_POSITIONS] = (rows + 2, hidden)
        self.shapes["embeddings.token_type_embeddings.weight"] = (1, hidden)
        self.config["pad_token_id"] = 1
        self.config["type_vocab_size"] = 1
        if isinstance(self.config.get("max_position_embeddings"), int):
            self.config["max_position_embeddings"] += 2


_POSITIONS = "embeddings.position_embeddings.weight"


def _look_up(table: Mapping, name: object, path: pathlib.Path, field: str):
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"{path}: {field} is {name!r}. Expected one of {', '.join(table)}.")
    return table[name]


def _config(description: Mapping, path: pathlib.Path) -> dict:
    """KerasHub's configuration in config.json's words."""
    config = description.get("config")
    if not isinstance(config, dict):
        raise ValueError(f"{path}: config is {config!r}. Expected an object.")
    known = {theirs: config[ours] for ours, theirs in CONFIG_KEYS.items() if ours in config}
    if "dropout" in config:
        known["attention_probs_dropout_prob"] = config["dropout"]
    return known


def _is_kernel(name: str) -> bool:
    return (
        name.endswith(".weight")
        and "LayerNorm" not in name
        and not (name.startswith("embeddings.") or "layer_norm" in name)
    )


def _shape(name: str, stored: tuple[int, ...], group: str) -> tuple[int, ...]:
    """An array's shape in the other format: heads merged, kernels as (out, in)."""
    if not _is_kernel(name):
        return stored if name.startswith("embeddings.") else (int(np.prod(stored)),)
    merged = (np.prod(stored[:-1]), stored[-1])
    if len(stored) == 3 and not group.endswith("output_dense"):
        merged = (stored[0], np.prod(stored[1:]))
    return (int(merged[1]), int(merged[0]))


def _read_bert_tokenizer(folder: pathlib.Path, settings: Mapping):
    from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer

    vocabulary = preset_file(folder, "vocabulary.txt", inside="assets/tokenizer")
    return BertTokenizer(vocabulary, lowercase=bool(settings.get("lowercase", False)))


def _read_roberta_tokenizer(folder: pathlib.Path, settings: Mapping):
    from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
    from encoder_zoo.presets.tokenizer_files import checked_vocabulary

    path = preset_file(folder, "vocabulary.json", inside="assets/tokenizer")
    return RobertaTokenizer(
        checked_vocabulary(read_json(path), str(path)),
        preset_file(folder, "merges.txt", inside="assets/tokenizer"),
        add_prefix_space=bool(settings.get("add_prefix_space", False)),
    )


_TOKENIZER_READERS = {"bert": _read_bert_tokenizer, "roberta": _read_roberta_tokenizer}
