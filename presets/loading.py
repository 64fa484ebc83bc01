"""Loads backbones, tokenizers, preprocessors and tasks from presets."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from encoder_zoo.common.configuration import argument_names, argument_rules
from encoder_zoo.common.reading import loading
from encoder_zoo.common.validation import check_argument
from encoder_zoo.common.wording import invalid, unknown_argument
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Family
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.files.json_data import from_json_value
from encoder_zoo.presets.formats.checkpoint import Checkpoint, EnlargedCheckpoint, default_labels
from encoder_zoo.presets.formats.config import backbone_arguments
from encoder_zoo.presets.formats.preset_files import CONFIG, MANIFEST
from encoder_zoo.presets.formats.preset_task import PresetTask
from encoder_zoo.presets.formats.stored_tokenizer import read_stored_tokenizer
from encoder_zoo.presets.heads import restore_head, settle_head
from encoder_zoo.presets.opening import (
    Safeguards,
    TokenizerPreset,
    open_files,
    open_preset,
    open_tokenizer,
)
from encoder_zoo.presets.origin import Vocabulary, origin_of
from encoder_zoo.presets.restoring import (
    report_unused,
    restore_backbone,
)

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers import TokenizerClass
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger("encoder_zoo")
T = TypeVar("T")


def load_backbone(cls: type[Backbone], source: str | os.PathLike, **overrides) -> Backbone:
    """See `Backbone.from_preset`."""
    safeguards = Safeguards.taken_from(overrides)
    with loading(source), open_preset(source, safeguards) as checkpoint:
        found = checkpoint.family.backbone
        is_own = issubclass(cls, found) and cls.family is found.family  # a user's, no family's
        if not (issubclass(found, cls) or is_own):
            raise ValueError(
                f"{source} holds a {found.__name__}, not a {cls.__name__}. Load it with that "
                "class, a subclass of it, or Backbone.from_preset."
            )
        kind = cls if is_own else found
        asked = overrides.get("pooler") is True
        backbone, used, is_new = restore_backbone(checkpoint, overrides, safeguards, asked, kind)
        if is_new:
            logger.warning(
                "%s: the pooler starts from random weights: the checkpoint has none.",
                checkpoint.folder.name,
            )
        with contextlib.suppress(ValueError, FileNotFoundError):  # of a tokenizer not needed here
            if stored := checkpoint.stored_tokenizer():
                backbone.checkpoint_vocabulary = Vocabulary(stored.kind.name)
        backbone.origin = origin_of(source, checkpoint.folder)
        report_unused(checkpoint, used, cls.__name__)
    return backbone


def load_tokenizer(cls: type[Tokenizer], source: str | os.PathLike, **options) -> Tokenizer:
    """See `Tokenizer.from_preset`."""
    safeguards = Safeguards.taken_from(options)
    added_tokens = options.pop("added_tokens", ())
    if options:
        raise TypeError(
            unknown_argument(
                f"{cls.__name__}.from_preset", min(options), ["added_tokens", "verify", "max_bytes"]
            )
        )
    with loading(source), open_tokenizer(source, safeguards) as preset:
        tokenizer = _require_tokenizer(preset, added_tokens)
    if not isinstance(tokenizer, cls):
        raise ValueError(
            f"{source} holds a {type(tokenizer).__name__}, not a {cls.__name__}. Load it with that "
            "class or Tokenizer.from_preset."
        )
    return tokenizer


def tokenizer_of_files(files: FolderFiles, family: Family) -> Tokenizer:
    """Return the tokenizer in a folder that holds no model.

    Args:
        files: of the folder.
        family: of the model that it belongs to.

    Raises:
        ValueError: If there is no tokenizer.
    """
    stored = read_stored_tokenizer(files, {}, family.tokenizer)
    return _require_tokenizer(TokenizerPreset(files, {}, files.path / CONFIG, family, {}, stored))


def load_preprocessor(cls: type, source: str | os.PathLike, **arguments):
    """See `Preprocessor.from_preset`."""
    safeguards = Safeguards.taken_from(arguments)
    with loading(source), open_tokenizer(source, safeguards) as preset:
        tokenizer = _require_tokenizer(preset, arguments.pop("added_tokens", ()))
        from_files = cls.folder.text_arguments(preset, tokenizer)
    known = argument_names(cls)
    for name in arguments:
        if name not in known:
            raise TypeError(unknown_argument(f"{cls.__name__}.from_preset", name, known))
    stored = preset.settings.get("preprocessor", {})
    stored = {name: value for name, value in stored.items() if name in known}
    _check_stored(from_files, cls, preset.folder)
    _check_stored(stored, cls, preset.folder / MANIFEST)
    return cls(tokenizer, **{**from_files, **stored, **arguments})


def load_task(cls: type[PresetTask], source: str | os.PathLike, **arguments) -> PresetTask:
    """See `Task.from_preset`."""
    safeguards = Safeguards.taken_from(arguments)
    with loading(source), open_preset(source, safeguards) as checkpoint:
        task = _read_task(cls, checkpoint, safeguards, arguments)
        task.backbone.origin = origin_of(source, checkpoint.folder)
    return task


def load_tasks(
    classes: Sequence[tuple[type[PresetTask], dict]], source: str | os.PathLike, **safeguards
) -> list[PresetTask]:
    """Load tasks of one preset that share its backbone, each with its own head.

    Args:
        classes: of the tasks, each with arguments of its `from_preset`; those of the backbone
            count for the first.
        source: see `from_preset`.
        **safeguards: of `Safeguards`.
    """
    checks, tasks = Safeguards(**safeguards), []
    with loading(source), open_preset(source, checks) as checkpoint:
        for cls, arguments in classes:
            backbone = tasks[0].backbone if tasks else None
            own = copy.copy(checkpoint)  # its head is settled for each task
            tasks.append(_read_task(cls, own, checks, dict(arguments), backbone))
        tasks[0].backbone.origin = origin_of(source, checkpoint.folder)
    return tasks


class Request(NamedTuple):
    """The arguments of a call of `Task.from_preset`, by who takes them.

    Attributes:
        added_tokens: List of further tokens.
        preprocessor: Preprocessor, None for a task of prepared inputs, or `MADE_HERE`.
        others: Dict of the other arguments, all of which are also in one of those below.
        backbone: Dict of those that the backbone takes.
        texts: Dict of those that the preprocessor takes.
        task: Dict of those that the task takes.
    """

    added_tokens: Sequence[str | Mapping]
    preprocessor: object
    others: dict
    backbone: dict
    texts: dict
    task: dict


class RestoredBackbone(NamedTuple):
    """A backbone with the weights of a checkpoint.

    Attributes:
        backbone: Backbone.
        used: Set of the names of the tensors that it has.
        pooler_is_new: Boolean. Whether the checkpoint has no weights for its pooler.
    """

    backbone: Backbone
    used: set
    pooler_is_new: bool


def _read_task(
    cls: type[PresetTask],
    checkpoint: Checkpoint,
    safeguards: Safeguards,
    arguments: dict,
    backbone: Backbone | None = None,
) -> PresetTask:
    """Load a task in stages, with the backbone given or with that of the checkpoint."""
    request = divide_arguments(cls, checkpoint.family, arguments)
    other_class = settle_head(checkpoint, cls, request.task)
    tokenizer = read_task_tokenizer(cls, checkpoint, request)
    preprocessor = make_preprocessor(cls, checkpoint, request, tokenizer)
    checkpoint = with_rows_for(checkpoint, tokenizer)
    restored = restore_encoder(cls, checkpoint, request, safeguards, backbone)
    settings = settings_of_task(cls, checkpoint, request.task)
    settings = with_further_models(cls, settings, request, safeguards)
    task = cls(restored.backbone, preprocessor, **settings)
    if tokenizer is not None:
        task.backbone.checkpoint_vocabulary = Vocabulary.of(tokenizer)
    task.learning_rate = checkpoint.settings.get("learning_rate", task.learning_rate)
    used = restored.used | restore_head(
        checkpoint, task, request.task, safeguards, restored.pooler_is_new, other_class
    )
    folder = cls.record.folder
    used |= folder.restore(task, checkpoint, request.task, safeguards.allow_nonfinite)
    if backbone is None:
        report_unused(checkpoint, used, cls.__name__)
    return task


def divide_arguments(cls: type[PresetTask], family: Family, arguments: dict) -> Request:
    """Return the arguments of `from_preset` by who takes them.

    Raises:
        TypeError: If nothing takes an argument, or if `backbone` or a preprocessor of another task
            is among them.
    """
    arguments = dict(arguments)
    added_tokens = arguments.pop("added_tokens", ())
    preprocessor = _given_preprocessor(cls, arguments)
    return Request(added_tokens, preprocessor, arguments, *_route(cls, family, arguments))


def read_task_tokenizer(
    cls: type[PresetTask], checkpoint: Checkpoint, request: Request
) -> Tokenizer | None:
    """Return the tokenizer with all added tokens; None, and a log line, if there is none.

    Raises:
        FileNotFoundError: If the files of the tokenizer are missing, and no preprocessor is given.
    """
    try:
        tokenizer = _read_tokenizer(checkpoint, request.added_tokens)
    except FileNotFoundError:  # of a task that was saved without a preprocessor
        if request.preprocessor is MADE_HERE:
            raise
        tokenizer = None
    if tokenizer is None and request.preprocessor not in (MADE_HERE, None):
        tokenizer = request.preprocessor.tokenizer
    if tokenizer is None:
        message = "%s has no tokenizer: this %s takes prepared inputs only."
        logger.warning(message, checkpoint.folder.name, cls.__name__)
        return None
    needed = cls.record.folder.tokens_to_add(checkpoint, tokenizer, request.others)
    return _with_added(tokenizer, needed)


def make_preprocessor(
    cls: type[PresetTask], checkpoint: Checkpoint, request: Request, tokenizer: Tokenizer | None
) -> object:
    """Return the preprocessor of the checkpoint's settings and the caller's, or the one given."""
    if request.preprocessor is not MADE_HERE:
        _check_same_tokens(cls, request.preprocessor, tokenizer, request.texts)
        return request.preprocessor
    if tokenizer is None:
        return None
    kind = cls.record.preprocessor_class
    from_files = cls.record.folder.text_arguments(checkpoint, tokenizer)
    _check_stored(from_files, kind, checkpoint.folder)
    stored = _stored_settings(cls, checkpoint.settings)
    stored = {name: v for name, v in stored.items() if name not in cls.record.answer_settings}
    _check_stored(stored, kind, checkpoint.folder / MANIFEST)
    return kind(tokenizer, **{**from_files, **stored, **request.texts})


def with_rows_for(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> Checkpoint:
    """Return the checkpoint with an embedding for every token of the tokenizer."""
    if tokenizer is None:
        return checkpoint
    rows = checkpoint.config[checkpoint.family.config_keys["vocabulary_size"]]
    needed = tokenizer.vocabulary_size
    return EnlargedCheckpoint(checkpoint, needed) if needed > rows else checkpoint


def restore_encoder(
    cls: type[PresetTask],
    checkpoint: Checkpoint,
    request: Request,
    safeguards: Safeguards,
    shared: Backbone | None = None,
) -> RestoredBackbone:
    """Return the backbone with the checkpoint's weights, or the one that tasks share."""
    if shared is not None:
        return RestoredBackbone(shared, set(), False)
    arguments = {"pooler": cls.head_of(checkpoint.family).pooled, **request.backbone}
    return RestoredBackbone(
        *restore_backbone(checkpoint, arguments, safeguards, new_pooler_allowed=True)
    )


def with_further_models(
    cls: type[PresetTask], settings: dict, request: Request, safeguards: Safeguards
) -> dict[str, object]:
    """Return the arguments with the models that are in files, such as an encoder of queries."""
    own = {"added_tokens": request.added_tokens, **request.backbone}
    models = {
        name: _read_task(cls, open_files(files, safeguards), safeguards, own)
        for name, files in settings.items()
        if isinstance(files, FolderFiles)
    }
    return {**settings, **models}


def stored_answers(cls: type[PresetTask], checkpoint: Checkpoint) -> dict[str, object]:
    """Return the settings of answers that are saved with the preset, such as thresholds."""
    stored = _stored_settings(cls, checkpoint.settings)
    found = {n: from_json_value(stored[n]) for n in cls.record.answer_settings if n in stored}
    _check_stored(found, cls, checkpoint.folder / MANIFEST)
    return found


def settings_of_task(cls: type[PresetTask], checkpoint: Checkpoint, given: dict) -> dict:
    """Return the arguments of the task's constructor, of the checkpoint and of the caller.

    Args:
        cls: Class of the task.
        checkpoint: Checkpoint whose head is settled.
        given: Dict of the caller's arguments for the task, which count more.
    """
    built_in = checkpoint.head_arguments.get(cls.record.head, {})
    from_files = cls.record.folder.arguments(checkpoint, given)
    arguments = {**from_files, **cls.checkpoint_arguments(checkpoint, given)}
    if "labels" not in given and arguments.get("labels", ()) is None:
        names, saved = default_labels(arguments["num_classes"]), checkpoint.settings.get("head", {})
        if saved.get("labels") == names:  # saved here, of classes with names
            arguments["labels"] = names
    return {**built_in, **stored_answers(cls, checkpoint), **arguments}


MADE_HERE = object()  # in place of a preprocessor that the caller passes


def _given_preprocessor(cls: type, arguments: dict) -> object:
    """Take `preprocessor` from the arguments; None means a task of prepared inputs."""
    if arguments.pop("backbone", None) is not None:
        raise TypeError(
            f"{cls.__name__}.from_preset makes the backbone itself. Pass its arguments, such as "
            f"dropout=0.0, or call {cls.__name__}(backbone, preprocessor)."
        )
    given = arguments.pop("preprocessor", MADE_HERE)
    if given is not MADE_HERE:
        check_preprocessor_class(cls, given)
    return given


def check_preprocessor_class(cls: type[PresetTask], preprocessor: object) -> None:
    """Raise a TypeError for the preprocessor of another task; None is no preprocessor."""
    expected = cls.record.preprocessor_class
    if preprocessor is None or getattr(preprocessor, "task_name", "") == expected.task_name:
        return
    raise invalid(
        "preprocessor",
        preprocessor,
        f"{expected.__name__}, made with the same tokenizer",
        TypeError,
    )


def _check_same_tokens(cls: type, given, tokenizer: Tokenizer, others: dict) -> None:
    """Raise an error for a preprocessor that does not fit, or for arguments that it would have.

    Args:
        cls: Class of the task.
        given: Preprocessor that the caller passes, or None.
        tokenizer: Tokenizer of the preset, with the tokens that the task adds.
        others: Dict of the caller's arguments for a preprocessor.
    """
    if given is None:
        return
    if others:
        raise TypeError(
            f"{', '.join(others)} of {cls.__name__}.from_preset is the preprocessor's, and you "
            "pass one. Pass it to the preprocessor instead."
        )
    if tokenizer.get_vocabulary() != given.tokenizer.get_vocabulary():
        raise ValueError(
            "The preprocessor's tokenizer has other tokens than the preset's. Load it from the "
            f"same preset, {type(given).__name__}.from_preset(source)."
        )


def _require_tokenizer(
    preset: Checkpoint | TokenizerPreset, added_tokens: Sequence[str | Mapping] = ()
) -> Tokenizer:
    """Return the tokenizer; raise an error if there is none."""
    tokenizer = _read_tokenizer(preset, added_tokens)
    if tokenizer is None:
        raise ValueError(
            f"{preset.folder} has no tokenizer, only a model. Open it with Backbone.from_preset."
        )
    return tokenizer


def _read_tokenizer(
    checkpoint: Checkpoint | TokenizerPreset, added_tokens: Sequence[str | Mapping]
) -> Tokenizer | None:
    """Return the tokenizer, checked against its model; None if the checkpoint has none."""
    family, stored = checkpoint.family, checkpoint.stored_tokenizer()
    if stored is None:
        return None
    arguments = stored.arguments(family)
    if arguments.get("model_max_length") == _positions(checkpoint):
        arguments.pop("model_max_length", None)  # the model's limit, none of the tokenizer's
    tokenizer = stored.kind.load().from_files(stored.files, **arguments)
    if family and family.config_keys["vocabulary_size"] in checkpoint.config:
        _check_vocabulary(checkpoint, stored.kind, tokenizer)
    tokens = tokenizer.get_vocabulary()
    if len(set(tokens)) < len(tokens):
        [(twice, _)] = Counter(tokens).most_common(1)
        message = "%s: the vocabulary holds %r more than once; the last one counts."
        logger.warning(message, checkpoint.folder.name, twice)
    return _with_added(tokenizer, [*stored.special_tokens_to_add(tokenizer), *added_tokens])


def _positions(checkpoint: Checkpoint | TokenizerPreset) -> int | None:
    """Return the number of tokens that the model takes; None without a model."""
    family = checkpoint.family
    if family is None or family.config_keys["hidden_dim"] not in checkpoint.config:
        return None
    return backbone_arguments(checkpoint.config, family).get("max_sequence_length")


def _with_added(tokenizer: Tokenizer, added_tokens: Sequence[str | Mapping]) -> Tokenizer:
    """Return the tokenizer with further tokens."""
    if not added_tokens:
        return tokenizer
    added = [*tokenizer.added_tokens, *added_tokens]
    return type(tokenizer)(**{**tokenizer.get_config(), "added_tokens": added})


def _check_vocabulary(
    checkpoint: Checkpoint | TokenizerPreset, kind: TokenizerClass, tokenizer: Tokenizer
) -> None:
    """Raise an error for a vocabulary of another model, cut short, or with another padding token.

    Embeddings may have unused rows: some to make their number even, 898 of 251,000 in mDeBERTa.
    """
    file, key = checkpoint.config_file.name, checkpoint.family.config_keys["vocabulary_size"]
    rows = checkpoint.config[key]
    if type(rows) is not int:
        raise invalid(f"{checkpoint.config_file}: {key}", rows, "an integer")
    missing = rows - tokenizer.vocabulary_size
    if missing < 0 or missing > min(max(128, rows // 100), rows // 4):
        cause = "they are not" if missing < 0 else "it was cut short, or they are not"
        raise ValueError(
            f"{checkpoint.folder}: the tokenizer's vocabulary has {tokenizer.vocabulary_size} "
            f"tokens, but {key} in {file} is {rows}: {cause} from the same model."
        )
    padding = checkpoint.config.get("pad_token_id")
    # If positions do not depend on padding, the model does not use its id: config.json may have
    # that of another tokenizer.
    counts = checkpoint.family.positions_skip_padding or kind == checkpoint.family.tokenizer
    if counts and padding is not None and padding != tokenizer.pad_token_id:
        raise ValueError(
            f"{checkpoint.folder}: pad_token_id is {padding} in {file}, but "
            f"{tokenizer.pad_token!r} has the id {tokenizer.pad_token_id} in the tokenizer's "
            "files. Expected the same."
        )


def _stored_settings(cls: type[PresetTask], settings: dict) -> dict:
    """Return the stored settings of preprocessor and inference, if the task is the same."""
    record = cls.record
    if settings.get("task") != record.name:
        return {}
    known = {*argument_names(record.preprocessor_class), *record.answer_settings} - {"tokenizer"}
    stored = settings.get("preprocessor", {})
    return {name: value for name, value in stored.items() if name in known}


def _check_stored(settings: Mapping, cls: type, path: pathlib.Path) -> None:
    """Raise an error for a setting in a file that its class does not take, naming the file."""
    rules = argument_rules(cls)
    for name in settings.keys() & rules.keys():
        check_argument(f"{path}: {name}", settings[name], rules[name])


def _route(cls: type[PresetTask], family: Family, arguments: dict) -> tuple[dict, dict, dict]:
    """Divide the arguments of `from_preset` between backbone, preprocessor and task."""
    takers = (family.backbone, cls.record.preprocessor_class, cls)
    routed: tuple[dict, dict, dict] = ({}, {}, {})
    for name, value in arguments.items():
        indices = [i for i, taker in enumerate(takers) if name in argument_names(taker)]
        if name == "dtype":
            indices = [0, 2]
        elif name != "dropout" and (2 in indices or name in cls.record.folder.settings):
            indices = [i for i in indices if i]  # a backbone's argument of that name is another one
        if not indices:
            known = {n for taker in takers for n in argument_names(taker)}
            raise TypeError(unknown_argument(f"{cls.__name__}.from_preset", name, known))
        for i in indices:
            routed[i][name] = value
    return routed
