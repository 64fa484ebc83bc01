"""Copy a task with a smaller vocabulary, and find texts that the copy tokenizes differently."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np

from encoder_zoo.common.layers import list_layers
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.arrays import gather_array
from encoder_zoo.encoders.tokenizers import TOKENIZERS
from encoder_zoo.encoders.tokenizers.library import decode_texts
from encoder_zoo.encoders.tokenizers.text.text_input import make_text_tensor
from encoder_zoo.encoders.tokenizers.trimming import count_changed_tokens, trim_tokenizer
from encoder_zoo.presets.origin import OriginVocabulary

if TYPE_CHECKING:
    import keras

    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.presets.formats.preset_task import PresetTask
    from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

T = TypeVar("T", bound="PresetTask")

logger = logging.getLogger("encoder_zoo")

WORDS_AND_SYMBOLS = re.compile(r"\w+(?:[-_]\w+)*|\S")  # as split by `EntityExtractor`


class UncoveredText(TypedDict):
    """A text whose tokens are different with a trimmed vocabulary.

    Attributes:
        index: Integer. Index of the text in the list.
        text: String. The text.
        changed: Float. Fraction of the tokens that are different.
    """

    index: int
    text: str
    changed: float


class VocabularyReport(TypedDict):
    """Comparison of texts with a trimmed vocabulary.

    Attributes:
        covered_texts: Float. Fraction of texts with the same tokens.
        covered_tokens: Float. Fraction of tokens that are the same in all texts.
        uncovered: List of `UncoveredText`, sorted by `changed` in descending order.
    """

    covered_texts: float
    covered_tokens: float
    uncovered: list[UncoveredText]


def trim_task(task: T, texts: object) -> T:
    """Copy a task, and reduce the vocabulary of the copy to the tokens of the given texts.

    See `Task.trim_vocabulary` for arguments and errors.
    """
    _check_can_trim(task)
    tokenizer, settings = _get_tokenizer(task), _get_settings(task.preprocessor)
    known = {token: i for i, token in enumerate(tokenizer.get_vocabulary())}
    words = [*_find_strings(settings), *(task.labels or ())]
    ids = {*_collect_required_ids(task), *(known[word] for word in words if word in known)}
    trimmed, kept = trim_tokenizer(tokenizer, [*words, *list_tokenizer_inputs(task, texts)], ids)
    backbone = _make_backbone(task.backbone, kept)
    backbone.checkpoint_vocabulary = OriginVocabulary.create(trimmed)
    parts = {"backbone": backbone, "preprocessor": type(task.preprocessor)(trimmed, **settings)}
    copied = type(task).from_config({**task.get_config(), **parts})
    pairs = zip(task.weights, copied.weights, strict=True)
    copied.set_weights([_select_rows(own, smaller, kept) for own, smaller in pairs])
    for name in ("learning_rate", "new_head", "kept_weights"):
        setattr(copied, name, getattr(task, name))
    logger.info(
        "The vocabulary was trimmed from %d to %d tokens, and the model from %d to %d weights.",
        tokenizer.vocabulary_size,
        len(kept),
        *(each.count_params() for each in (task, copied)),
    )
    return copied


def compare_vocabulary(task: PresetTask, trimmed: PresetTask, texts: object) -> VocabularyReport:
    """Compare how a task and its trimmed copy split texts into tokens.

    See `Task.compare_vocabulary` for arguments.
    """
    both, given = map(_get_tokenizer, (task, trimmed)), convert_to_strings(texts)
    changed, count = count_changed_tokens(*both, given)
    shares = changed / np.maximum(count, 1)
    order = np.argsort(-shares, kind="stable")[: np.count_nonzero(changed)]
    return {
        "covered_texts": float(np.mean(changed == 0)),
        "covered_tokens": float(1 - changed.sum() / max(count.sum(), 1)),
        "uncovered": [
            {"index": int(i), "text": given[i], "changed": float(shares[i])} for i in order
        ],
    }


def _check_can_trim(task: PresetTask) -> None:
    """Raise a ValueError if the vocabulary of a task cannot be trimmed."""
    name = type(task).__name__
    if task.cpu_model is not None:
        raise ValueError(
            "The vocabulary of a copy made by `for_cpu` cannot be trimmed. Call `trim_vocabulary` "
            "on the original model, and then `for_cpu`."
        )
    if any(getattr(layer, "quantization_mode", None) for layer in list_layers(task)):
        raise ValueError(
            f"This {name} is quantized, so tokens cannot be removed from its weights. Call "
            "`trim_vocabulary` before `quantize`."
        )
    if getattr(task, "query_encoder", None) is not None:
        raise ValueError(
            f"This {name} has a `query_encoder` with the same vocabulary. Trim a {name} without a "
            "`query_encoder`, and then create a `query_encoder` for the new tokenizer."
        )


def _get_tokenizer(task: PresetTask) -> Tokenizer:
    """Return a task's tokenizer. Raise a TypeError if its vocabulary cannot be trimmed."""
    tokenizer = getattr(getattr(task, "preprocessor", None), "tokenizer", None)
    # A subclass can have its own kind.
    if not any(vars(cls).get("kind") in TOKENIZERS for cls in type(tokenizer).__mro__):
        kinds = ", ".join(kind.name for kind in TOKENIZERS)
        raise TypeError(
            f"The tokenizer of this {type(task).__name__} is a {type(tokenizer).__name__}, which "
            f"cannot be trimmed. Expected one of the classes {kinds} or a subclass."
        )
    return tokenizer


def list_tokenizer_inputs(task: PresetTask, texts: object) -> list[str]:
    """List all strings that the tokenizer can receive, such as texts with prompts and words."""
    given, settings = convert_to_strings(texts), task.preprocessor.get_config()
    read = [
        prompt + text
        for prompt in ("", *(settings.get("prompts") or {}).values())
        for text in given
    ]
    if task.record.pipeline_tag == "token-classification":  # words can be tokenized separately
        words = {
            word for text in given for word in (*WORDS_AND_SYMBOLS.findall(text), *text.split())
        }
        read += [start + word for word in sorted(words) for start in ("", " ")]
    return read


def convert_to_strings(texts: object) -> list[str]:
    """Convert a column of texts to a list of strings."""
    column = make_text_tensor(texts)
    if len(column.shape) != 1 or not column.shape[0]:
        raise invalid("texts", texts, "a list or column with at least one string")
    return decode_texts(column)


def _get_settings(preprocessor: Preprocessor) -> dict[str, Any]:
    """Return the constructor arguments of a preprocessor without the tokenizer."""
    return {name: v for name, v in preprocessor.get_config().items() if name != "tokenizer"}


def _find_strings(value: object) -> Iterator[str]:
    """Yield all strings in nested settings, such as prompts and markers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _find_strings(inner)


def _collect_required_ids(task: PresetTask) -> set[int]:
    """Collect the ids of tokens that the backbone depends on. They are never removed."""
    ids = set(_get_token_id_arguments(task.backbone).values())
    if task.backbone.family.positions_skip_padding:  # position ids start after the padding id
        ids |= {*range(task.preprocessor.tokenizer.pad_token_id)}
    return ids


def _get_token_id_arguments(backbone: Backbone) -> dict[str, int]:
    """Get the backbone arguments that are token ids."""
    config = backbone.get_config()
    return {name: value for name, value in config.items() if name.endswith("_token_id")}


def _make_backbone(backbone: Backbone, kept: list[int]) -> Backbone:
    """Create a backbone for the tokens in `kept`. This function does not copy the weights."""
    ids = {name: kept.index(value) for name, value in _get_token_id_arguments(backbone).items()}
    config = {**backbone.get_config(), "vocabulary_size": len(kept), **ids}
    copied = type(backbone).from_config(config)
    copied.origin, copied.pooler_is_new = backbone.origin, backbone.pooler_is_new
    return copied


def _select_rows(weight: keras.Variable, smaller: keras.Variable, kept: list[int]) -> np.ndarray:
    """Select the values for the tokens in `kept` from a weight, along the vocabulary axis."""
    values = gather_array(weight)
    for axis, (before, after) in enumerate(zip(weight.shape, smaller.shape, strict=True)):
        if before != after:
            values = np.take(values, kept, axis)
    return values
