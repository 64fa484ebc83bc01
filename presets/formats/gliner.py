"""Read and write folders of gliner, a library to extract entities of arbitrary types.

A folder contains `gliner_config.json`, the weights and a tokenizer. The file `gliner_config.json`
contains the encoder configuration. All encoder tensors have the same prefix. Older versions
of gliner only store the encoder name. For their folders, the configuration and the tokenizer
are downloaded from the hub.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.validation import PositiveInt, Rate, Rule, check_argument, get_rule, one_of
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders import find_family
from encoder_zoo.encoders.family import Head
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.files.json_data import encode_json
from encoder_zoo.presets.formats.checkpoint import Checkpoint, Preset
from encoder_zoo.presets.formats.huggingface import HuggingFaceCheckpoint
from encoder_zoo.presets.formats.preset_files import CONFIG, GLINER, list_tokenizer_files
from encoder_zoo.presets.formats.preset_task import FolderFormat
from encoder_zoo.presets.formats.stored_tokenizer import StoredTokenizer, read_stored_tokenizer

ENCODER = "token_rep_layer.bert_layer.model."  # prefix of the encoder's tensors
LABEL_MARKER, SEPARATOR = "<<ENT>>", "<<SEP>>"
SPAN_MODES = ("markerV0", "markerV1", "marker")
GLINER_POOLINGS = ("first", "last", "mean", "max")
_SPANS = "span_rep_layer.span_rep_layer"
# Maximum number of words in an entity. Larger values need more memory.
SpanWidth = Annotated[
    int, Rule(lambda v: type(v) is int and 1 <= v <= 256, "an integer from 1 to 256")
]
_TOKEN = Rule(lambda v: isinstance(v, str) and v != "", "a token")
_LAYERS = Rule(lambda v: type(v) is int and 0 <= v <= 16, "an integer from 0 to 16")
_MODE = Rule(lambda v: v in SPAN_MODES, f"one of {', '.join(SPAN_MODES)}")


class GlinerField(NamedTuple):
    """Field of `gliner_config.json` that is an argument of `EntityExtractor` or its preprocessor.

    Attributes:
        argument: String. The name of the argument.
        default: Default value in gliner.
        rule: The `Rule` for the value.
        of_preprocessor: Boolean. Whether the preprocessor has this argument. Defaults to False.
    """

    argument: str
    default: object
    rule: Rule
    of_preprocessor: bool = False


_FIELDS = {  # in the order in which the fields are written
    "ent_token": GlinerField("label_marker", LABEL_MARKER, _TOKEN, of_preprocessor=True),
    "sep_token": GlinerField("separator", SEPARATOR, _TOKEN, of_preprocessor=True),
    "hidden_size": GlinerField("span_dim", 512, get_rule(PositiveInt)),
    "max_width": GlinerField("max_width", 12, get_rule(SpanWidth)),
    "max_len": GlinerField("max_words", 384, get_rule(PositiveInt), of_preprocessor=True),
    "span_mode": GlinerField("span_mode", "markerV0", _MODE),
    "num_rnn_layers": GlinerField("num_rnn_layers", 1, _LAYERS),
    "subtoken_pooling": GlinerField("subtoken_pooling", "first", one_of(*GLINER_POOLINGS)),
    "embed_ent_token": GlinerField("embed_label_marker", True, get_rule(bool)),
    "dropout": GlinerField("dropout", 0.4, get_rule(Rate)),
}
_RULES = {
    **{name: field.rule for name, field in _FIELDS.items()},
    "encoder_config": Rule(lambda v: v is None or isinstance(v, dict), "an object, or null"),
    "model_name": Rule(lambda v: isinstance(v, str), "the name of an encoder"),
}
# organisation/name, as allowed on the hub.
GLINER_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# {field for an unsupported architecture: description}
_OTHERS = {
    "labels_encoder": "a separate encoder for labels (bi-encoder)",
    "labels_decoder": "a decoder that generates labels",
    "decoder_config": "a decoder instead of an encoder",
    "relations_layer": "a layer for relations",
    "span_encoder_config": "a second encoder over words",
    "post_fusion_schema": "attention between labels and words after the encoder",
    "fuse_layers": "a weighted sum of the outputs of all layers",
    "precomputed_prompts_mode": "stored label vectors",
    "represent_spans": "span vectors in a token-level model",
}


@dataclasses.dataclass(frozen=True)
class SpanHeadRecord(Head):
    """Description of the layers after the encoder in gliner folders.

    Attributes:
        span_mode: String. The method to compute span vectors from word vectors. Defaults to
            "markerV0".
        num_rnn_layers: Integer. The number of LSTM layers. Defaults to 1.

    Example:
        >>> SpanHeadRecord(num_rnn_layers=0).tensors["head.label.outer"]
        'prompt_rep_layer.3'
    """

    output: str | None = "prompt_rep_layer.3"
    span_mode: str = "markerV0"
    num_rnn_layers: int = 1

    @property
    def tensors(self) -> dict[str, str]:
        names = {"head.projection": "token_rep_layer.projection"}
        for i in range(self.num_rnn_layers):
            for direction, suffix in enumerate(("", "_reverse")):
                for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    ours = f"head.lstms.{i}.directions.{direction}.{part}"
                    names[ours] = f"rnn.lstm.{part}_l{i}{suffix}"
        layers = {"head.label": "prompt_rep_layer"}
        layers |= {f"head.{part}": f"{_SPANS}.project_{part}" for part in ("start", "end")}
        if self.span_mode == "marker":
            names["head.out_affine"] = f"{_SPANS}.out_project"
        else:
            layers["head.out"] = f"{_SPANS}.out_project"
        for ours, theirs in layers.items():
            names |= {f"{ours}.inner": f"{theirs}.0", f"{ours}.outer": f"{theirs}.3"}
        return names


def read_config(files: FolderFiles) -> dict:
    """Read and validate `gliner_config.json`. Missing fields get the defaults of gliner.

    Raises:
        ValueError: If a field value is invalid or not supported.
    """
    config, path = files.read_json(GLINER), files.path / GLINER
    for field, what in _OTHERS.items():
        if config.get(field):
            raise ValueError(
                f"{path}: {field} is {quote(config[field])}, but {what} is not supported. Expected "
                "null."
            )
    if config.get("span_mode") == "token_level":
        raise ValueError(
            f"{path}: span_mode is 'token_level', but models that score single words are not "
            f"supported. Expected {_MODE.words}."
        )
    if config.get("words_splitter_type", "whitespace") != "whitespace":
        raise invalid(f"{path}: words_splitter_type", config["words_splitter_type"], "'whitespace'")
    defaults = {name: field.default for name, field in _FIELDS.items()}
    config = {**defaults, "encoder_config": None, **config}
    for field, rule in _RULES.items():
        if field in config:
            check_argument(f"{path}: {field}", config[field], rule)
    return config


def find_encoder_address(files: FolderFiles) -> str | None:
    """Return the address from which to download missing encoder files, or None.

    Versions of gliner before 0.2.7 do not store the encoder configuration and tokenizer.

    Args:
        files: `FolderFiles`. The files of a gliner folder.

    Raises:
        ValueError: If encoder files are missing, but `model_name` is not a repository.
    """
    config = read_config(files)
    if config["encoder_config"] is not None and any(n in files for n in list_tokenizer_files()):
        return None
    name = config.get("model_name")
    if not isinstance(name, str) or GLINER_REPOSITORY.fullmatch(name) is None:
        raise ValueError(
            f"{files.path / GLINER}: encoder_config or the tokenizer is missing, and model_name is "
            f"{quote(name)} instead of a repository to download from. Open the folder with gliner "
            "and save it again: GLiNER.from_pretrained(...).save_pretrained(folder)."
        )
    return f"hf://{name}"


def read_encoder(
    files: FolderFiles, encoder: FolderFiles | None
) -> tuple[dict[str, object], StoredTokenizer]:
    """Read the encoder configuration and tokenizer.

    Args:
        files: `FolderFiles`. The files of a gliner folder.
        encoder: Optional `FolderFiles`. Encoder files from the hub, for incomplete folders.

    Returns:
        A tuple (dict with the config.json content, `StoredTokenizer`).
    """
    config = read_config(files)
    own = config["encoder_config"]
    found = {"model_type": "deberta-v2", **own} if own else dict(encoder.read_json(CONFIG))
    family = find_family(found.get("model_type"))
    has_tokenizer = any(name in files for name in list_tokenizer_files())
    holder = files if has_tokenizer or encoder is None else encoder
    stored = read_stored_tokenizer(holder, found, family.tokenizer if family else None)
    if config.get("class_token_index", -1) == -1:  # gliner adds its tokens while loading
        stored = stored._replace(added=("[FLERT]", config["ent_token"], config["sep_token"]))
    return found, stored


class GlinerCheckpoint(HuggingFaceCheckpoint):
    """Checkpoint in the gliner format, with an encoder and additional layers.

    The tensors of the additional layers have the same names as in gliner.

    Args:
        files: `FolderFiles`. The files of a gliner folder.
        settings: Dict. The `encoder_zoo.json` content.
        encoder: Optional `FolderFiles`. See `read_encoder`.

    Attributes:
        gliner: Dict. The result of `read_config`.
    """

    is_of_one_task = True

    def __init__(self, files: FolderFiles, settings: dict, encoder: FolderFiles | None = None):
        self.gliner = read_config(files)
        config, self._stored = read_encoder(files, encoder)
        super().__init__(files, settings, GLINER, config, ENCODER)
        embedding = f"{self.family.tensors['embeddings.token_embedding']}.weight"
        if embedding in self.shapes:  # the vocabulary size includes the tokens of gliner
            rows = self.shapes[embedding][0]
            self.config[self.family.config_keys["vocabulary_size"]] = rows

    def read_tokenizer(self) -> StoredTokenizer:
        return self._stored


def _read_fields(config: Mapping, of_preprocessor: bool) -> dict[str, object]:
    """Get the arguments of the task or of the preprocessor from the configuration."""
    return {
        field.argument: config[name]
        for name, field in _FIELDS.items()
        if field.of_preprocessor == of_preprocessor
    }


class GlinerFolderFormat(FolderFormat):
    """Folder format of `EntityExtractor`, as in gliner."""

    opened_by = "GLiNER"
    settings = tuple(field.argument for field in _FIELDS.values() if field.of_preprocessor)
    encoder_prefix = ENCODER

    def read_arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        if not isinstance(checkpoint, GlinerCheckpoint):
            return {}
        config, path = checkpoint.gliner, checkpoint.config_file
        shapes, width = checkpoint.shapes, config["hidden_size"]
        found = shapes.get("prompt_rep_layer.3.bias", (0,))
        if found != (width,):
            raise invalid(
                f"{path}: hidden_size", width, f"{found[0]}, the size of prompt_rep_layer.3.bias"
            )
        layers = sum(f"rnn.lstm.weight_ih_l{i}" in shapes for i in range(17))
        if layers != config["num_rnn_layers"]:
            raise invalid(
                f"{path}: num_rnn_layers",
                config["num_rnn_layers"],
                f"{layers}, the number of LSTM layers in the weights",
            )
        return _read_fields(config, of_preprocessor=False)

    def read_preprocessor_arguments(self, preset: Preset, tokenizer) -> dict[str, object]:
        if GLINER not in preset.files:
            return {}
        config, path = read_config(preset.files), preset.files.path / GLINER
        marker, index = config["ent_token"], config.get("class_token_index", -1)
        if marker not in set(tokenizer.get_vocabulary()):
            raise invalid(f"{path}: ent_token", marker, "a token in the tokenizer vocabulary")
        # The second to last token, as in gliner.
        if index == -1 and isinstance(preset, GlinerCheckpoint):
            index = preset.get_size("vocabulary_size") - 2
        if index not in (-1, tokenizer.token_to_id(marker)):
            raise invalid(
                f"{path}: class_token_index",
                index,
                f"{tokenizer.token_to_id(marker)}, the id of {marker!r} in the tokenizer",
            )
        return _read_fields(config, of_preprocessor=True)

    def make_files(self, task: keras.Model, dtype: object = None) -> dict[str, bytes]:
        from encoder_zoo.presets.formats.config import make_backbone_config  # needs Keras

        prepares, origin = task.preprocessor, task.backbone.origin
        tokenizer = prepares and prepares.tokenizer
        holders = {name: prepares if f.of_preprocessor else task for name, f in _FIELDS.items()}
        config = {
            "model_type": "gliner_uni_encoder_span",
            "model_name": (origin and origin.base_model) or task.backbone.family.name,
            "name": "encoder_zoo",
            "encoder_config": make_backbone_config(task.backbone, tokenizer),
            "vocab_size": task.backbone.vocabulary_size,
            "class_token_index": tokenizer.token_to_id(prepares.label_marker) if tokenizer else -1,
            **{
                name: field.default
                if holders[name] is None
                else getattr(holders[name], field.argument)
                for name, field in _FIELDS.items()
            },
            "words_splitter_type": "whitespace",
            "post_fusion_schema": "",
            "fuse_layers": False,
        }
        return {GLINER: encode_json(config)}
