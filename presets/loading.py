"""Load backbones, tokenizers, preprocessors and tasks from presets."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from encoder_zoo.common.configuration import get_argument_names, get_argument_rules
from encoder_zoo.common.reading import convert_load_errors
from encoder_zoo.common.validation import check_argument
from encoder_zoo.common.wording import describe_unknown_argument, invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers.files.special_tokens import check_token_list
from encoder_zoo.presets.files.folder_files import FolderFiles, Safeguards
from encoder_zoo.presets.files.json_data import from_json_value
from encoder_zoo.presets.formats.checkpoint import (
    Checkpoint,
    Preset,
    TokenizerPreset,
    enlarge_vocabulary,
    make_default_labels,
)
from encoder_zoo.presets.formats.config import convert_config
from encoder_zoo.presets.formats.preset_files import CONFIG, MANIFEST
from encoder_zoo.presets.formats.preset_task import FolderFormat, PresetTask
from encoder_zoo.presets.formats.stored_tokenizer import read_stored_tokenizer
from encoder_zoo.presets.heads import resolve_head, restore_head
from encoder_zoo.presets.opening import open_files, open_preset, open_tokenizer
from encoder_zoo.presets.origin import OriginVocabulary, find_origin
from encoder_zoo.presets.restoring import report_unused, restore_backbone

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers import TokenizerClass
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger("encoder_zoo")


def load_backbone(cls: type[Backbone], source: str | os.PathLike, **overrides) -> Backbone:
    """Load a backbone. See `Backbone.from_preset`."""
    safeguards = Safeguards.pop_from_arguments(overrides)
    with convert_load_errors(source), open_preset(source, safeguards) as checkpoint:
        found = checkpoint.family.backbone
        is_own = issubclass(cls, found) and cls.family is found.family  # a user's subclass
        if not (issubclass(found, cls) or is_own):
            raise ValueError(
                f"{source} contains a {found.__name__}, not a {cls.__name__}. Load it with "
                f"Backbone.from_preset, {found.__name__}.from_preset or a subclass of "
                f"{found.__name__}."
            )
        kind = cls if is_own else found
        asked = overrides.get("pooler") is True
        backbone, used = restore_backbone(checkpoint, overrides, asked, kind)
        if backbone.pooler_is_new:
            logger.warning(
                "%s: the pooler starts from random weights because the checkpoint has no pooler.",
                checkpoint.folder.name,
            )
        with contextlib.suppress(ValueError, FileNotFoundError):  # the tokenizer is not needed here
            if stored := checkpoint.read_tokenizer():
                backbone.checkpoint_vocabulary = OriginVocabulary(stored.kind.name)
        backbone.origin = find_origin(source, checkpoint.folder)
        report_unused(checkpoint, used, cls.__name__)
    return backbone


def load_tokenizer(cls: type[Tokenizer], source: str | os.PathLike, **options) -> Tokenizer:
    """Load a tokenizer. See `Tokenizer.from_preset`."""
    safeguards = Safeguards.pop_from_arguments(options)
    added_tokens = options.pop("added_tokens", ())
    if options:
        raise TypeError(
            describe_unknown_argument(
                f"{cls.__name__}.from_preset", min(options), ["added_tokens", "verify", "max_bytes"]
            )
        )
    with convert_load_errors(source), open_tokenizer(source, safeguards) as preset:
        tokenizer = _require_tokenizer(preset, added_tokens)
    if not isinstance(tokenizer, cls):
        raise ValueError(
            f"{source} contains a {type(tokenizer).__name__}, not a {cls.__name__}. Load it with "
            f"{type(tokenizer).__name__}.from_preset or Tokenizer.from_preset."
        )
    return tokenizer


def load_tokenizer_files(files: FolderFiles, family: Family) -> Tokenizer:
    """Load a tokenizer from a folder. The folder does not need to contain a model.

    Args:
        files: `FolderFiles`. The files of the folder.
        family: The `Family` of the model that uses the tokenizer.

    Returns:
        A `Tokenizer`.

    Raises:
        ValueError: If the folder contains no tokenizer.
    """
    stored = read_stored_tokenizer(files, {}, family.tokenizer)
    return _require_tokenizer(TokenizerPreset(files, {}, files.path / CONFIG, family, {}, stored))


def load_preprocessor(cls: type, source: str | os.PathLike, **arguments):
    """Load a preprocessor. See `Preprocessor.from_preset`."""
    safeguards = Safeguards.pop_from_arguments(arguments)
    added_tokens, known = arguments.pop("added_tokens", ()), get_argument_names(cls)
    for name in arguments:
        if name not in known:
            raise TypeError(describe_unknown_argument(f"{cls.__name__}.from_preset", name, known))
    with convert_load_errors(source), open_tokenizer(source, safeguards) as preset:
        tokenizer = _require_tokenizer(preset, added_tokens)
        saved = preset.settings.get("preprocessor", {})
        stored = _read_preprocessor_arguments(
            cls, cls.get_folder_format(), preset, tokenizer, saved
        )
    return cls(tokenizer, **{**stored, **arguments})


def load_task(cls: type[PresetTask], source: str | os.PathLike, **arguments) -> PresetTask:
    """Load a task. See `Task.from_preset`."""
    safeguards = Safeguards.pop_from_arguments(arguments)
    with convert_load_errors(source), open_preset(source, safeguards) as checkpoint:
        task = _read_task(cls, checkpoint, arguments)
        task.backbone.origin = find_origin(source, checkpoint.folder)
    return task


def load_tasks(
    classes: Sequence[tuple[type[PresetTask], dict]], source: str | os.PathLike, **safeguards
) -> list[PresetTask]:
    """Load several tasks from one preset. All tasks share one backbone.

    Args:
        classes: List of tuples (task class, dict of arguments for `from_preset`). Backbone
            arguments are only used for the first task.
        source: String or path. Preset to load, as in `from_preset`.
        **safeguards: Keyword arguments for `Safeguards`.

    Returns:
        A list of tasks in the order of `classes`.
    """
    tasks: list[PresetTask] = []
    with convert_load_errors(source), open_preset(source, Safeguards(**safeguards)) as checkpoint:
        for cls, arguments in classes:
            backbone = tasks[0].backbone if tasks else None
            tasks.append(_read_task(cls, checkpoint, dict(arguments), backbone))
        tasks[0].backbone.origin = find_origin(source, checkpoint.folder)
    return tasks


class LoadArguments(NamedTuple):
    """Arguments of `Task.from_preset`, grouped by the object that takes them.

    Attributes:
        added_tokens: List of strings or dicts. Tokens to add to the tokenizer.
        preprocessor: Preprocessor from the caller, None for a task that only accepts preprocessed
            inputs, or `CREATE_PREPROCESSOR` to create a preprocessor.
        backbone: Dict of arguments for the backbone.
        texts: Dict of arguments for the preprocessor.
        task: Dict of arguments for the task.
    """

    added_tokens: Sequence[str | Mapping]
    preprocessor: object
    backbone: dict
    texts: dict
    task: dict


def _read_task(
    cls: type[PresetTask],
    checkpoint: Checkpoint,
    arguments: dict,
    shared: Backbone | None = None,
) -> PresetTask:
    """Load a task from an open checkpoint. If `shared` is a backbone, it is used for the task."""
    request = group_arguments(cls, checkpoint.family, arguments)
    checkpoint = resolve_head(checkpoint, cls, request.task)
    tokenizer = read_task_tokenizer(cls, checkpoint, request)
    preprocessor = make_preprocessor(cls, checkpoint, request, tokenizer)
    checkpoint = add_missing_embeddings(checkpoint, tokenizer)
    backbone, used = shared, set()
    if shared is None:
        backbone, used = restore_encoder(cls, checkpoint, request)
    settings = collect_task_settings(cls, checkpoint, request.task)
    settings = load_additional_models(cls, settings, request)
    task = cls(backbone, preprocessor, **settings)
    if tokenizer is not None:
        backbone.checkpoint_vocabulary = OriginVocabulary.create(tokenizer)
    task.learning_rate = checkpoint.settings.get("learning_rate", task.learning_rate)
    used |= restore_head(checkpoint, task, request.task)
    used |= cls.record.folder.restore(task, checkpoint, request.task)
    if shared is None:
        report_unused(checkpoint, used, cls.__name__)
    return task


def group_arguments(cls: type[PresetTask], family: Family, arguments: dict) -> LoadArguments:
    """Group the arguments of `from_preset` by the object that takes them.

    Raises:
        TypeError: If an argument is unknown, if `backbone` is passed, or if `preprocessor` belongs
            to another task.
    """
    arguments = dict(arguments)
    added_tokens = arguments.pop("added_tokens", ())
    if arguments.pop("backbone", None) is not None:
        raise TypeError(
            f"{cls.__name__}.from_preset creates the backbone and does not accept `backbone`. Pass "
            f"backbone arguments, such as dropout=0.0, or call {cls.__name__}(backbone, "
            "preprocessor)."
        )
    preprocessor = arguments.pop("preprocessor", CREATE_PREPROCESSOR)
    if preprocessor is not CREATE_PREPROCESSOR:
        check_preprocessor_class(cls, preprocessor)
    return LoadArguments(added_tokens, preprocessor, *_split_arguments(cls, family, arguments))


def read_task_tokenizer(
    cls: type[PresetTask], checkpoint: Checkpoint, request: LoadArguments
) -> Tokenizer | None:
    """Load the tokenizer, and add the tokens from the caller and the task.

    Returns:
        A `Tokenizer`. If the preset has no tokenizer, the tokenizer of the preprocessor from the
        caller is used. Without a preprocessor, the result is None, and a warning is logged.

    Raises:
        FileNotFoundError: If the preset has no tokenizer and the caller did not pass
            `preprocessor`.
    """
    try:
        tokenizer = _read_tokenizer(checkpoint, request.added_tokens)
    except FileNotFoundError:  # the task was saved without any preprocessor
        if request.preprocessor is CREATE_PREPROCESSOR:
            raise
        tokenizer = None
    if tokenizer is None and request.preprocessor not in (CREATE_PREPROCESSOR, None):
        tokenizer = request.preprocessor.tokenizer
    if tokenizer is None:
        message = "%s has no tokenizer. This %s only accepts preprocessed inputs."
        logger.warning(message, checkpoint.folder.name, cls.__name__)
        return None
    needed = cls.record.folder.list_tokens_to_add(checkpoint, tokenizer, request.texts)
    return _add_tokens(tokenizer, needed)


def make_preprocessor(
    cls: type[PresetTask],
    checkpoint: Checkpoint,
    request: LoadArguments,
    tokenizer: Tokenizer | None,
) -> object:
    """Return the preprocessor from the caller, or create a preprocessor from the preset.

    If there is no tokenizer, the result is None.
    """
    if request.preprocessor is not CREATE_PREPROCESSOR:
        _check_same_tokens(cls, request.preprocessor, tokenizer, request.texts)
        return request.preprocessor
    if tokenizer is None:
        return None
    kind, saved = cls.record.preprocessor_class, _get_saved_settings(cls, checkpoint)
    saved = {name: v for name, v in saved.items() if name not in cls.record.answer_settings}
    stored = _read_preprocessor_arguments(kind, cls.record.folder, checkpoint, tokenizer, saved)
    return kind(tokenizer, **{**stored, **request.texts})


def add_missing_embeddings(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> Checkpoint:
    """Add embeddings for tokens that are missing in the checkpoint."""
    if tokenizer is None or tokenizer.vocabulary_size <= checkpoint.get_size("vocabulary_size"):
        return checkpoint
    return enlarge_vocabulary(checkpoint, tokenizer.vocabulary_size)


def restore_encoder(
    cls: type[PresetTask],
    checkpoint: Checkpoint,
    request: LoadArguments,
) -> tuple[Backbone, set[str]]:
    """Load the backbone, and return it with the names of all loaded tensors."""
    arguments = {"pooler": cls.get_family_head(checkpoint.family).pooled, **request.backbone}
    return restore_backbone(checkpoint, arguments, new_pooler_allowed=True)


def load_additional_models(
    cls: type[PresetTask], settings: dict, request: LoadArguments
) -> dict[str, object]:
    """Load the additional models of a task, such as a query encoder.

    Args:
        cls: Task class. The additional models belong to the same class.
        settings: Dict of task arguments. A value that is a `FolderFiles` is replaced with a model.
        request: The `LoadArguments` from the caller.

    Returns:
        A copy of `settings` with the models.
    """
    own = {"added_tokens": request.added_tokens, **request.backbone}
    models = {
        name: _read_task(cls, open_files(files), own)
        for name, files in settings.items()
        if isinstance(files, FolderFiles)
    }
    return {**settings, **models}


def read_inference_settings(cls: type[PresetTask], checkpoint: Checkpoint) -> dict[str, object]:
    """Read the inference settings of a preset, such as thresholds."""
    stored = _get_saved_settings(cls, checkpoint)
    found = {n: from_json_value(stored[n]) for n in cls.record.answer_settings if n in stored}
    _check_stored(found, cls, checkpoint.folder / MANIFEST)
    return found


def collect_task_settings(cls: type[PresetTask], checkpoint: Checkpoint, given: dict) -> dict:
    """Collect constructor arguments for a task from the checkpoint and the caller.

    Args:
        cls: Task class.
        checkpoint: The `Checkpoint` after `resolve_head`.
        given: Dict of task arguments from the caller, which override values from the checkpoint.

    Returns:
        A dict of constructor arguments.
    """
    built_in = checkpoint.head_arguments.get(cls.record.head, {})
    from_files = cls.record.folder.read_arguments(checkpoint, given)
    arguments = {**from_files, **cls.read_checkpoint_arguments(checkpoint, given)}
    if "labels" not in given and arguments.get("labels", ()) is None:
        names = make_default_labels(arguments["num_classes"])
        # The labels are saved if the user passed them explicitly.
        if checkpoint.settings.get("head", {}).get("labels") == names:
            arguments["labels"] = names
    return {**built_in, **read_inference_settings(cls, checkpoint), **arguments}


CREATE_PREPROCESSOR = object()  # default: create the preprocessor


def check_preprocessor_class(cls: type[PresetTask], preprocessor: object) -> None:
    """Check that a preprocessor is None or belongs to the given task class.

    Raises:
        TypeError: If `preprocessor` is not a preprocessor for this task.
    """
    expected = cls.record.preprocessor_class
    if preprocessor is None or getattr(preprocessor, "task_name", "") == expected.task_name:
        return
    raise invalid(
        "preprocessor", preprocessor, f"{expected.__name__} with the same tokenizer", TypeError
    )


def _check_same_tokens(cls: type, given, tokenizer: Tokenizer, others: dict) -> None:
    """Check that a preprocessor and a preset use the same tokens.

    Args:
        cls: Task class.
        given: Optional preprocessor from the caller.
        tokenizer: Tokenizer from the preset, including added tokens.
        others: Dict of preprocessor arguments from the caller.

    Raises:
        TypeError: If `others` is not empty and `given` is a preprocessor.
        ValueError: If `given` and `tokenizer` have different vocabularies.
    """
    if given is None:
        return
    if others:
        raise TypeError(
            f"{cls.__name__}.from_preset does not accept {', '.join(others)} together with "
            "`preprocessor`. Pass these arguments to the preprocessor instead."
        )
    if tokenizer.get_vocabulary() != given.tokenizer.get_vocabulary():
        raise ValueError(
            "`preprocessor` and the preset use different tokens. Load the preprocessor from the "
            f"same preset with {type(given).__name__}.from_preset(source)."
        )


def _require_tokenizer(preset: Preset, added_tokens: Sequence[str | Mapping] = ()) -> Tokenizer:
    """Load the tokenizer. Raise a ValueError if there is no tokenizer."""
    tokenizer = _read_tokenizer(preset, added_tokens)
    if tokenizer is None:
        raise ValueError(
            f"{preset.folder} does not contain a tokenizer. Load the model with "
            "Backbone.from_preset."
        )
    return tokenizer


def _read_tokenizer(checkpoint: Preset, added_tokens: Sequence[str | Mapping]) -> Tokenizer | None:
    """Load the tokenizer and check that it matches the model. Return None without a tokenizer."""
    check_token_list(added_tokens)
    family, stored = checkpoint.family, checkpoint.read_tokenizer()
    if stored is None:
        return None
    arguments = stored.read_arguments(family)
    if arguments.get("model_max_length") == _read_max_length(checkpoint):
        arguments.pop("model_max_length", None)  # a model limit, not a user setting
    tokenizer = stored.read(**arguments)
    if family and family.config_keys["vocabulary_size"] in checkpoint.config:
        _check_vocabulary(checkpoint, stored.kind, tokenizer)
    tokens = tokenizer.get_vocabulary()
    if len(set(tokens)) < len(tokens):
        [(twice, _)] = Counter(tokens).most_common(1)
        message = "%s: the vocabulary contains %r more than once. The last entry is used."
        logger.warning(message, checkpoint.folder.name, twice)
    return _add_tokens(tokenizer, [*stored.list_special_tokens_to_add(tokenizer), *added_tokens])


def _read_max_length(checkpoint: Preset) -> int | None:
    """Return the maximum sequence length of the model, or None if there is no model."""
    family = checkpoint.family
    if family is None or family.config_keys["hidden_dim"] not in checkpoint.config:
        return None
    return convert_config(checkpoint.config, family).get("max_sequence_length")


def _add_tokens(tokenizer: Tokenizer, added_tokens: Sequence[str | Mapping]) -> Tokenizer:
    """Create a copy of a tokenizer with additional tokens."""
    if not added_tokens:
        return tokenizer
    added = [*tokenizer.added_tokens, *added_tokens]
    return type(tokenizer)(**{**tokenizer.get_config(), "added_tokens": added})


def _check_vocabulary(checkpoint: Preset, kind: TokenizerClass, tokenizer: Tokenizer) -> None:
    """Check that the vocabulary size and the padding id match the model.

    Embeddings can have unused rows. For example, 898 of the 251,000 rows in mDeBERTa are unused.

    Raises:
        ValueError: If `tokenizer` is incomplete or belongs to another model, or if the padding ids
            differ.
    """
    file, key = checkpoint.config_file.name, checkpoint.family.config_keys["vocabulary_size"]
    rows = checkpoint.config[key]
    if type(rows) is not int:
        raise invalid(f"{checkpoint.config_file}: {key}", rows, "an integer")
    missing = rows - tokenizer.vocabulary_size
    if missing < 0 or missing > min(max(128, rows // 100), rows // 4):
        incomplete = "" if missing < 0 else "is incomplete or "
        raise ValueError(
            f"{checkpoint.folder}: the vocabulary of the tokenizer has {tokenizer.vocabulary_size} "
            f"tokens, but {key} in {file} is {rows}. The tokenizer {incomplete}belongs to a "
            "different model."
        )
    padding = checkpoint.config.get("pad_token_id")
    # If positions do not depend on padding, the model does not use the padding id. In this case,
    # config.json can contain the padding id of a different tokenizer.
    counts = checkpoint.family.positions_skip_padding or kind == checkpoint.family.tokenizer
    if counts and padding is not None and padding != tokenizer.pad_token_id:
        raise ValueError(
            f"{checkpoint.folder}: pad_token_id is {padding} in {file}, but "
            f"{tokenizer.pad_token!r} has the id {tokenizer.pad_token_id} in the tokenizer files. "
            "Both ids must be equal."
        )


def _get_saved_settings(cls: type[PresetTask], checkpoint: Checkpoint) -> dict:
    """Return the saved settings for the preprocessor and for inference.

    If the preset was saved by a different type of task, the result is {}.
    """
    is_same = checkpoint.settings.get("task") == cls.record.name
    return checkpoint.settings.get("preprocessor", {}) if is_same else {}


def _read_preprocessor_arguments(
    kind: type,
    layout: FolderFormat,
    preset: Preset,
    tokenizer: Tokenizer,
    saved: Mapping,
) -> dict[str, object]:
    """Get preprocessor arguments from the files of a preset, and from settings in the manifest."""
    from_files = layout.read_preprocessor_arguments(preset, tokenizer)
    known = {*get_argument_names(kind)} - {"tokenizer"}
    saved = {name: value for name, value in saved.items() if name in known}
    _check_stored(from_files, kind, preset.folder)
    _check_stored(saved, kind, preset.folder / MANIFEST)
    return {**from_files, **saved}


def _check_stored(settings: Mapping, cls: type, path: pathlib.Path) -> None:
    """Validate stored settings. Error messages contain the path."""
    rules = get_argument_rules(cls)
    for name in settings.keys() & rules.keys():
        check_argument(f"{path}: {name}", settings[name], rules[name])


def _split_arguments(
    cls: type[PresetTask], family: Family, arguments: dict
) -> tuple[dict, dict, dict]:
    """Divide arguments into three dicts, for the backbone, the preprocessor and the task."""
    takers = (family.backbone, cls.record.preprocessor_class, cls)
    routed: tuple[dict, dict, dict] = ({}, {}, {})
    for name, value in arguments.items():
        indices = [i for i, taker in enumerate(takers) if name in get_argument_names(taker)]
        if name == "dtype":
            indices = [0, 2]
        elif name != "dropout" and (2 in indices or name in cls.record.folder.settings):
            indices = [i for i in indices if i]  # the backbone argument has a different meaning
        if not indices:
            known = {n for taker in takers for n in get_argument_names(taker)}
            raise TypeError(describe_unknown_argument(f"{cls.__name__}.from_preset", name, known))
        for i in indices:
            routed[i][name] = value
    return routed
