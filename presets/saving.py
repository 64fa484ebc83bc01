"""Save models to folders in the Hugging Face format or the KerasHub format."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import keras
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.configuration import get_argument_names
from encoder_zoo.common.extras import load_extra
from encoder_zoo.common.layers import list_merged_weights
from encoder_zoo.common.validation import Rule, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import NO_HEAD, Head
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
from encoder_zoo.presets import model_card
from encoder_zoo.presets.files.atomic import FolderKind, replace_folder
from encoder_zoo.presets.files.json_data import convert_to_json, encode_json
from encoder_zoo.presets.files.manifest import write_manifest
from encoder_zoo.presets.formats import checkpoint, preset_files
from encoder_zoo.presets.formats.config import make_backbone_config
from encoder_zoo.presets.formats.preset_task import PresetTask
from encoder_zoo.presets.formats.stored_tokenizer import make_tokenizer_files

SHARD_BYTES = 5_000_000_000
ByteCount = Annotated[int, Rule(lambda v: type(v) is int and v >= 1, "an integer of 1 or more")]
Format = Literal["huggingface", "keras_hub"]
DType = Literal["float32", "float16", "bfloat16"]
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@validate_arguments
def save_backbone(
    backbone: Backbone,
    folder: str | os.PathLike,
    tokenizer=None,
    dtype: DType | None = None,
    format: Format = "huggingface",
    shard_bytes: ByteCount = SHARD_BYTES,
    repository: str | None = None,
) -> None:
    """Save a backbone to a folder. See `Backbone.save_to_preset`."""
    settings = {"task": "backbone"}
    usage = model_card.Usage("feature-extraction", "Backbone", model_card.TRANSFORMERS, "AutoModel")
    about = model_card.Description(backbone, usage, repository=repository)
    layers = checkpoint.map_backbone_layers(backbone)
    weights = _collect_weights(backbone, layers)
    check_all_saved(backbone, weights, _list_merged_weights(backbone, layers))
    if format == "keras_hub":
        load_extra("save_for_keras_hub")(backbone, tokenizer, dtype, folder, settings, about)
        return
    config = {"architectures": [backbone.family.get_class_name("Model")]}
    model = StoredModel(config, weights, backbone, tokenizer)
    _write_preset(folder, model, settings, about, dtype, shard_bytes)


def save_tokenizer(tokenizer, folder: str | os.PathLike) -> None:
    """Save a tokenizer to a folder. See `Tokenizer.save_to_preset`."""
    kind = _make_kind("a tokenizer", lambda manifest: manifest["task"] == "tokenizer")
    with replace_folder(folder, kind) as new:
        _write_files(new, tokenizer.to_files())
        write_manifest(new, {"task": "tokenizer"})


@validate_arguments
def save_task(
    task: PresetTask,
    folder: str | os.PathLike,
    dtype: DType | None = None,
    format: Format = "huggingface",
    shard_bytes: ByteCount = SHARD_BYTES,
    repository: str | None = None,
    beside: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Save a task to a folder. See `Task.save_to_preset`.

    Args:
        task: Task to save.
        folder, dtype, format, shard_bytes: See `Task.save_to_preset`.
        repository: Optional string. The repository to mention in the model card.
        beside: Dict {file name: content} of additional files. Defaults to {}.
    """
    backbone, settings = task.backbone, {"task": task.record.name}
    if task.learning_rate != task.default_learning_rate:
        settings["learning_rate"] = task.learning_rate
    stored, layout = {}, task.record.folder
    if task.preprocessor is not None:
        elsewhere = {"tokenizer", *layout.settings}
        names = [n for n in get_argument_names(type(task.preprocessor)) if n not in elsewhere]
        stored = {name: getattr(task.preprocessor, name) for name in names}
    stored |= {name: convert_to_json(getattr(task, name)) for name in task.record.answer_settings}
    if stored:
        settings["preprocessor"] = stored
    about = model_card.Description(backbone, _make_usage(task), task.last_evaluation, repository)
    if format == "keras_hub":
        load_extra("save_for_keras_hub")(task, None, dtype, folder, settings, about)
        return
    if task.record.has_classes and task.head is None:
        task._check_can_predict()
    model = _collect_stored_model(task)
    config = model.config | layout.make_config_fields(task)
    labels = tuple(config.get("id2label", {}).values())
    if type(backbone) is not backbone.family.backbone:  # a subclass defined by the user
        settings["backbone_class"] = type(backbone).__name__
    if task.num_classes and task.labels == checkpoint.make_default_labels(task.num_classes):
        settings["head"] = {"labels": task.labels}  # the user passed these names
    files = {**layout.make_files(task, DTYPES[dtype] if dtype else None), **beside}
    model = model._replace(config=config if layout.encoder_prefix is None else None)
    _write_preset(folder, model, settings, about._replace(labels=labels), dtype, shard_bytes, files)


class StoredModel(NamedTuple):
    """Model to write to a folder.

    Attributes:
        config: Optional dict. The fields of config.json in addition to the fields for the backbone.
            If None, config.json will not be written.
        weights: Dict with all backbone and head weights. See `_collect_weights`.
        backbone: A `Backbone`.
        tokenizer: Optional `Tokenizer`.
    """

    config: dict | None
    weights: Weights
    backbone: Backbone
    tokenizer: Tokenizer | None


def _collect_stored_model(task: PresetTask) -> StoredModel:
    """Collect the config.json fields and all task weights."""
    backbone, head = task.backbone, task.head_record
    prefix = "" if head is NO_HEAD else f"{backbone.family.prefix}."
    layout = task.record.folder
    prefix = prefix if layout.encoder_prefix is None else layout.encoder_prefix
    layers = checkpoint.map_backbone_layers(backbone)
    weights = {
        **_collect_weights(backbone, layers, prefix),
        **_collect_weights(task, head.tensors),
    }
    merged = _list_merged_weights(backbone, layers) + _list_merged_weights(task, head.tensors)
    check_all_saved(task, weights, [*merged, *layout.list_additional_weights(task)])
    config = {"architectures": [_name_architecture(task)], **_make_head_config(task, head)}
    tokenizer = None if task.preprocessor is None else task.preprocessor.tokenizer
    return StoredModel(config, weights, backbone, tokenizer)


def _name_architecture(task: PresetTask) -> str:
    """Return the class name of a task in transformers."""
    suffix = task.head_record.class_suffix or task.record.head
    return task.backbone.family.class_prefix + suffix


def _make_usage(task: PresetTask) -> model_card.Usage:
    """Describe how to load a preset with this package and another library, for the model card."""
    suffix = task.record.head
    here = next(cls for cls in type(task).__mro__ if "record" in vars(cls)).__name__
    library, there = model_card.TRANSFORMERS, "AutoModel"
    if theirs := task.record.folder.opened_by:
        is_gliner, there = theirs == "GLiNER", theirs
        library = model_card.GLINER_LIBRARY if is_gliner else model_card.SENTENCE_TRANSFORMERS
    elif suffix in task.backbone.family.heads:
        there = there + suffix if task.head_record.auto_class else _name_architecture(task)
    example = ""
    if task.preprocessor is not None:
        example = model_card.make_example_call(
            task.record.text_method, task.preprocessor.tokenizer.mask_token
        )
    return model_card.Usage(task.record.pipeline_tag, here, library, there, example)


def _write_preset(
    folder,
    model: StoredModel,
    settings: dict,
    about: model_card.Description,
    dtype: str | None,
    shard_bytes: int,
    files: Mapping = MappingProxyType({}),
) -> None:
    main = _list_dtypes(model.weights, dtype)[1]
    with replace_preset(folder, settings, about._replace(dtype=main)) as new:
        _write_model(new, model, dtype, shard_bytes)
        models = {name: part for name, part in files.items() if isinstance(part, keras.Model)}
        for name, task in models.items():
            (new / name).mkdir()
            _write_model(new / name, _collect_stored_model(task), dtype, shard_bytes)
        _write_files(new, {name: part for name, part in files.items() if name not in models})


def _list_dtypes(weights: Weights, dtype: str | None) -> tuple[dict[str, str], str]:
    """Return the stored dtype of every weight, and the most frequent dtype."""
    dtypes = {
        name: dtype or keras.backend.standardize_dtype(stored.weight.dtype)
        for name, stored in weights.items()
    }
    [(main, _)] = Counter(dtypes.values()).most_common(1)
    return dtypes, main


def _write_model(
    new: pathlib.Path, model: StoredModel, dtype: str | None, shard_bytes: int
) -> None:
    """Write a model's configuration, weights and tokenizer."""
    config, weights, backbone, tokenizer = model
    dtypes, main = _list_dtypes(weights, dtype)
    if config is not None:
        config = {**config, **make_backbone_config(backbone, tokenizer), "dtype": main}
        (new / preset_files.CONFIG).write_bytes(encode_json(config))
    _write_weights(new, weights, dtypes, shard_bytes)
    if tokenizer is not None:
        # Without `model_max_length`, transformers pipelines fail for long texts.
        lengths = getattr(tokenizer, "model_max_length", None), backbone.max_sequence_length
        _write_files(new, make_tokenizer_files(tokenizer, min(filter(None, lengths))))


def _write_files(new: pathlib.Path, files: Mapping[str, bytes | str]) -> None:
    for name, content in files.items():
        (new / name).parent.mkdir(exist_ok=True)
        is_text = isinstance(content, str)
        (new / name).write_bytes(content.encode("utf-8") if is_text else content)


def list_replaced_patterns() -> list[str]:
    """List patterns of all files and folders that saving replaces, except the model card."""
    return [
        *preset_files.list_replaced_preset_patterns(),
        *preset_files.list_replaced_module_patterns(),
        *load_extra("kerashub").list_files(),
    ]


@contextlib.contextmanager
def replace_preset(folder, settings, about: model_card.Description) -> Iterator[pathlib.Path]:
    """Context manager that replaces a preset, and writes the model card and the manifest."""
    with replace_folder(folder, _make_kind("a preset", _is_preset)) as new:
        yield new
        model_card.write_card(new, pathlib.Path(folder).resolve(), about)
        write_manifest(new, settings)


def _make_kind(name: str, is_written: Callable[[Mapping], bool]) -> FolderKind:
    read = [name for name in list_replaced_patterns() if name != preset_files.MANIFEST]
    return FolderKind(name, is_written, read=read)


def _is_preset(manifest: Mapping) -> bool:
    """Return whether a manifest belongs to a preset, not to a tokenizer, index or backup."""
    task = manifest["task"]
    return task != "tokenizer" and not task.endswith("_index") and "training" not in manifest


def _make_head_config(task: PresetTask, head: Head) -> dict:
    """Create the config.json fields for the head and the task labels."""
    config = {}
    if task.num_classes:
        labels = task.labels or checkpoint.make_default_labels(task.num_classes)
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        config["label2id"] = {label: i for i, label in enumerate(labels)}
    if task.problem_type:
        config["problem_type"] = task.problem_type
    if head.dropout:
        config[head.dropout] = task.dropout
    return config


# -- model.safetensors -------------------------------------------------------------------------

Weights = dict[str, checkpoint.StoredWeight]


def _collect_weights(model: keras.Model, layers: Mapping[str, str], prefix: str = "") -> Weights:
    """Map tensor names to weights. Raise a ValueError for quantized layers."""
    for path in layers:
        checkpoint.check_not_quantized(model, path)
    return checkpoint.map_weights(model, layers, prefix)


def _list_merged_weights(model: keras.Model, layers: Mapping[str, str]) -> list[keras.Variable]:
    """List the weights of layers with low-rank updates, which are saved as one merged tensor."""
    updated = (checkpoint.find_updated_layer(model, path) for path in layers)
    return [
        weight for layer in updated if layer is not None for weight in list_merged_weights(layer)
    ]


def check_all_saved(
    model: keras.Model, saved: Weights, elsewhere: Iterable[keras.Variable] = ()
) -> None:
    """Check that a checkpoint contains all model weights.

    Args:
        model: Backbone or task to save.
        saved: Dict of all weights in the checkpoint.
        elsewhere: Iterable of weights that are merged, or in separate files. Defaults to ().

    Raises:
        ValueError: If a weight of `model` is not saved.
    """
    kept = {id(stored.weight) for stored in saved.values()} | {id(weight) for weight in elsewhere}
    if lost := [weight.path for weight in model.weights if id(weight) not in kept]:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise ValueError(
            f"Presets cannot store the weights {', '.join(lost[:3])}{more} of this "
            f"{type(model).__name__}. Save the model with .save('model.keras'), or add the weights "
            "to `tensors` of the family or the head (register_family)."
        )


def _write_weights(folder: pathlib.Path, weights: Weights, dtypes: dict, shard_bytes: int) -> None:
    """Write all weights to one file, or to several shards of up to `shard_bytes` bytes."""
    from huggingface_hub import split_state_dict_into_shards_factory

    sizes = {
        name: int(np.prod(stored.shape)) * np.dtype(DTYPES[dtypes[name]]).itemsize
        for name, stored in weights.items()
    }
    plan = split_state_dict_into_shards_factory(
        sizes,
        get_storage_size=int,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for file, names in plan.filename_to_tensors.items():
        arrays = {name: weights[name].make_array(DTYPES[dtypes[name]]) for name in names}
        # transformers opens only files with this metadata.
        save_file(arrays, folder / file, metadata={"format": "pt"})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / preset_files.SAFETENSORS.index).write_bytes(encode_json(index))
