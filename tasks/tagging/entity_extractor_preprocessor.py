"""Preprocessor for entity extraction: puts labels before the text, and finds spans of words.

Comments use these letters for shapes: N texts, M windows of all texts, B windows of a batch, L
tokens, W words, K widths of spans, C labels, P tokens of all texts, S spans of all texts.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from encoder_zoo.common import validation
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.wording import invalid
from encoder_zoo.presets.formats import gliner
from encoder_zoo.presets.formats.preset_task import FolderFormat
from encoder_zoo.tasks.base.classes import find_label_indices
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed, pack_batch
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.preprocessing.given_labels import Labels, get_class_name
from encoder_zoo.tasks.preprocessing.inputs import Inputs, Text, Texts
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor, convert_weights
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    compute_sort_keys,
    cumsum_in_rows,
    find_overlapping,
    get_row_values,
    mark_row_starts,
    shift_left,
    shift_right,
)
from encoder_zoo.tasks.preprocessing.windows import Windows, check_stride, make_windows, take
from encoder_zoo.tasks.tagging import token_labels
from encoder_zoo.tasks.tagging.alignment import log_spans

logger = logging.getLogger("encoder_zoo")

# Example of two texts, in windows of 3 tokens that share 1 token (`max_words=3`, `doc_stride=1`).
# The test `test_arrays_of_the_example_in_the_comments` computes these values.
#
#   texts             "Anna sings who sings" and "Anna", with the label "who"
#
# `tokenize_words` finds 4 words and 1 word, with 5 and 2 tokens:
#
#   starts            [[0, 5, 11, 15], [0]]             characters
#   ends              [[4, 10, 14, 20], [4]]
#   counts            [[2, 1, 1, 1], [2]]               tokens of each word
#   ids               [[an ##na sings who sings], [an ##na]]
#   numbers           [[0, 0, 1, 2, 3], [0, 0]]         the word of each token
#
# `make_prompts` writes the same prompt before both texts:
#
#   ids               [[[MASK] who [SEP]], ...]
#   positions         [[1], [1]]                        [MASK], after [CLS]
#
# `split_into_windows` makes two windows of the first text, and one window of the second:
#
#   windows.example   [0, 0, 1]
#   windows.begin     [0, 2, 0]                         tokens of the text
#   windows.length    [3, 3, 2]
#   first_word        [0, 1, 0]                         Anna, sings, Anna
#   word_count        [2, 3, 1]
#   word_index        [[1, 0, 2], [1, 2, 3], [1, 0]]    counted from 1, 0 for ##na
#
# `make_examples` adds the prompts and special tokens. The second example:
#
#   token_ids         [CLS] [MASK] who [SEP] sings who sings [SEP]
#   word_index            0      0   0     0     1   2     3     0
#
# The spans "Anna" 0-4 and "who sings" 11-20 of the first text become targets:
#
#   first, last       [[0, 2], []] and [[0, 3], []]     words that share a character with the span
#   span_start        [[0], [1], []]                    2 - first_word = 1 in the second window
#   span_width        [[0], [1], []]                    last - first
#
# All rows are ragged. `compute_sort_keys` combines each value with the index of its row, so that
# one search over the values of all texts finds the positions in all rows.

WORD_SPACE, SYMBOL, WORD_LETTER, HYPHEN = range(4)  # kinds of characters
NO_LABELS = "No labels were passed. Pass one or more entity types, such as labels=['person']."
MAX_LABELS = 25  # maximum number of labels per text in training


class TokenizedWords(NamedTuple):
    """Words and tokens of a batch of texts.

    Attributes:
        starts: Ragged int32 tensor of shape (N, None). Start offset for each word.
        ends: Ragged int32 tensor of shape (N, None). End offset for each word.
        counts: Ragged int64 tensor of shape (N, None). Number of tokens per word.
        ids: Ragged int32 tensor of shape (N, None). Token ids for all words in a text.
        numbers: Ragged int32 tensor of shape (N, None). Word index for each token.
        absent: Int64 tensor of shape (N,). Number of words without tokens. All other attributes
            omit these words.
    """

    starts: xp.RaggedTensor
    ends: xp.RaggedTensor
    counts: xp.RaggedTensor
    ids: xp.RaggedTensor
    numbers: xp.RaggedTensor
    absent: xp.Tensor


class Prompts(NamedTuple):
    """The prompt tokens that are added before each text.

    Attributes:
        ids: Ragged int32 tensor of shape (N, None). Marker and label tokens for each label,
            followed by the separator.
        positions: Ragged int32 tensor of shape (N, None). Position in `ids` from which the
            embedding of each label is read.
    """

    ids: xp.RaggedTensor
    positions: xp.RaggedTensor


class SpanWindows(NamedTuple):
    """The windows of texts.

    Attributes:
        windows: Windows with offsets in tokens.
        word_index: Ragged int32 tensor of shape (M, None). Word of each token, counted from 1 in
            each window. 0 for tokens without a word embedding.
        first_word: Int32 tensor of shape (M,). Index of the first word of each window in its text.
        word_count: Int64 tensor of shape (M,). Number of words per window.
        absent: Int64 tensor of shape (M,). Number of words without tokens, which are counted at the
            end of a window and have no embedding, as in gliner.
    """

    windows: Windows
    word_index: xp.RaggedTensor
    first_word: xp.Tensor
    word_count: xp.Tensor
    absent: xp.Tensor


@serializable
class EntityExtractorPreprocessor(Preprocessor):
    """Convert texts and labels to `[CLS] <<ENT>> person <<ENT>> city <<SEP>> text [SEP]`.

    Words are split as in GLiNER. A word is a sequence of letters and digits, and can contain
    hyphens. All other characters except whitespace are separate words. Long texts are split into
    overlapping windows. The prediction for a span is taken from the window in which the middle of
    the span is farthest from the edges. A span of at most `doc_stride` tokens is always inside at
    least one window.

    Args:
        tokenizer: The `Tokenizer` to use, from this package.
        sequence_length: Optional positive integer. Window length, including labels (see
            `Preprocessor`).
        max_words: Positive integer. Maximum number of words per window. Defaults to 384.
        doc_stride: Optional integer. Overlap between adjacent windows, in tokens. If None, a
            quarter of the window length is used.
        label_marker: Optional string. Token to add before each label. If None, "<<ENT>>" will be
            used if it is in the vocabulary, and the mask token otherwise.
        separator: Optional string. Text to add between labels and words. If None, "<<SEP>>" will be
            used if it is in the vocabulary, and the end token otherwise.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "an",
        ...                            "##na", "sings"])
        >>> preprocessor = EntityExtractorPreprocessor(tokenizer)
        >>> x = preprocessor.collate(preprocessor.encode(["Anna sings"], labels=["who"]))
        >>> {name: x[name].numpy().tolist() for name in ("token_ids", "word_index")}
        {'token_ids': [[2, 4, 5, 3, 6, 7, 8, 3]], 'word_index': [[0, 0, 0, 0, 1, 0, 2, 0]]}
    """

    task_name = "entity_extractor"
    inputs = Inputs(Text("texts", "text"), Texts("labels", optional=True))
    label_values = Labels("a list of spans {'start', 'end', 'label'} for each text")
    max_width, subtoken_pooling, embed_label_marker = 12, "first", True  # arguments of the task

    @validation.validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: validation.SequenceLength | None = None,
        max_words: validation.PositiveInt = 384,
        doc_stride: validation.NonNegativeInt | None = None,
        label_marker: validation.SpecialToken | None = None,
        separator: validation.SpecialToken | None = None,
    ):
        super().__init__(tokenizer, sequence_length)
        known = set(tokenizer.get_vocabulary())
        self.max_words = max_words
        self.doc_stride = doc_stride
        own = gliner.LABEL_MARKER if gliner.LABEL_MARKER in known else tokenizer.mask_token
        self.label_marker = label_marker or own
        own = gliner.SEPARATOR if gliner.SEPARATOR in known else tokenizer.end_token
        self.separator = separator or own
        if self.label_marker not in known:
            expected = (
                "a token of the vocabulary. Use from_preset(added_tokens=[...]) to add tokens"
            )
            raise invalid("label_marker", self.label_marker, expected)

    @staticmethod
    def get_folder_format() -> FolderFormat:
        """Return the folder format of presets."""
        return gliner.GlinerFolderFormat()

    def attach(self, task) -> None:
        super().attach(task)
        room = self.max_sequence_length - self.count_specials()
        check_stride(self.doc_stride or 0, min(self.max_words, room) - 1)
        self.max_width = task.max_width
        self.subtoken_pooling = task.subtoken_pooling
        self.embed_label_marker = task.embed_label_marker

    # -- texts and labels ----------------------------------------------------------------------

    def tokenize_words(self, texts: xp.Tensor) -> TokenizedWords:
        """Split texts (N,) into words, and tokenize the words."""
        words, starts, ends = split_words(texts)
        ids = self.tokenizer.tokenize(words.flat_values)  # (words of all texts, None)
        counts = words.with_values(ids.row_lengths())  # ragged (N, None)
        present = counts.with_values(counts.values > 0)
        kept = [xp.ragged.boolean_mask(rows, present) for rows in (starts, ends)]
        absent = words.row_lengths() - kept[0].row_lengths()
        counts = xp.ragged.boolean_mask(counts, present)
        number = xp.ragged.range(counts.row_lengths()).values
        numbers = xp.cast(xp.repeat(number, counts.values), xp.int32)
        tokens = words.with_values(ids).merge_dims(1, 2)
        return TokenizedWords(*kept, counts, tokens, tokens.with_values(numbers), absent)

    def make_prompts(self, labels: xp.RaggedTensor) -> Prompts:
        """Create the prompt tokens that are added before each text.

        Args:
            labels: Ragged string tensor of shape (N, None). Labels to look for, per text.
        """
        found = xp.unique(labels.flat_values)
        marker = xp.fill([xp.size(found.y), 1], self._marker_id)
        ids = xp.concat([marker, self.tokenizer.tokenize(found.y)], axis=1)
        ids = labels.with_values(xp.gather(ids, found.idx))  # ragged (N, None, None)
        lengths = xp.cast(ids.values.row_lengths(), xp.int32)
        begins = cumsum_in_rows(labels.with_values(lengths)) - lengths
        shift = self.tokenizer.first_column + (not self.embed_label_marker)
        ids = ids.merge_dims(1, 2)
        ends = xp.ones([ids.nrows(), 1], xp.int32) * self._separator_ids
        return Prompts(xp.concat([ids, ends], axis=1), labels.with_values(begins + shift))

    def split_into_windows(self, words: TokenizedWords, prompts: Prompts) -> SpanWindows:
        """Split texts into windows with space for the prompts, and count the words of each window.

        If a text fits into one window, this window also counts its words without tokens.
        """
        lengths = words.ids.row_lengths()
        longest = self.max_sequence_length - self.count_specials()
        room = longest - prompts.ids.row_lengths()  # (N,)
        room = check_each(
            room,
            room >= min(self.max_width, self.max_sequence_length // 4),
            ": the labels take ",
            prompts.ids.row_lengths(),
            f" of the {longest} tokens that the model reads, which leaves "
            "too few tokens for the text. Use fewer or shorter labels.",
            unit="Text",
        )
        count = words.starts.row_lengths() + words.absent
        fits = (lengths <= room) & (count <= self.max_words)
        capacity = xp.where(fits, room, xp.minimum(room, self.max_words))
        stride = capacity // 4 if self.doc_stride is None else self.doc_stride
        windows = make_windows(lengths, capacity, xp.minimum(stride, capacity - 1))

        # The tokens of each window, their words, and whether they stand for their word.
        numbers = take(words.numbers, windows)
        stands = numbers.with_values(take(self._mark_words(words), windows).values)
        index = cumsum_in_rows(stands.with_values(xp.cast(stands.values, xp.int32)))
        if self.subtoken_pooling in ("first", "last"):
            index = xp.where(stands.values, index, 0)
        word = xp.ragged.boolean_mask(numbers, stands)  # the words of each window
        return SpanWindows(
            windows,
            stands.with_values(index),
            word[:, :1].to_tensor(shape=(None, 1))[:, 0],
            word.row_lengths(),
            xp.gather(xp.where(fits, words.absent, 0), windows.example),
        )

    def make_examples(self, words: TokenizedWords, prompts: Prompts) -> tuple[dict, SpanWindows]:
        """Split texts into windows, and create an example for each window."""
        found = self.split_into_windows(words, prompts)
        prompt = xp.gather(prompts.ids, found.windows.example)
        tokens = xp.concat([prompt, take(words.ids, found.windows)], axis=1)
        zeros = prompt.with_values(xp.zeros_like(prompt.values))
        index = xp.concat([zeros, found.word_index], axis=1)
        examples = {
            **self.pack([tokens]),
            "word_index": self.pad_for_special_tokens(index),
            "word_count": found.word_count + found.absent,
            "label_positions": xp.gather(prompts.positions, found.windows.example),
            "text_index": found.windows.example,
        }
        return examples, found

    def _mark_words(self, words: TokenizedWords) -> xp.RaggedTensor:
        """Return a ragged boolean mask (N, None) that selects one token of each word."""
        numbers, begins = words.numbers.values, mark_row_starts(words.numbers)
        if self.subtoken_pooling == "last":
            marks = (numbers != shift_left(numbers, -1)) | shift_left(begins, True)
        else:
            marks = (numbers != shift_right(numbers, -1)) | begins
        return words.numbers.with_values(marks)

    # -- examples ------------------------------------------------------------------------------

    def separate(self, x, y) -> tuple:
        return (x, y) if isinstance(x, tuple) else token_labels.separate_labels(x, y)

    def encode(self, x, y=None, sample_weight=None, labels: Sequence[str] | None = None) -> dict:
        """Encode texts to windows. See `Preprocessor.encode`.

        Args:
            x: Texts, or `(texts, labels)` with a list of labels per text.
            y: Optional list of spans `{"start", "end", "label"}` per text.
            sample_weight: Optional list of floats. Weight of each text.
            labels: Optional list of strings. Labels to look for in all texts. If None, the task's
                labels will be used.
        """
        texts, *own = self.read_texts(x)
        names = list(labels or self.labels or ())
        if not names:
            raise ValueError(NO_LABELS)
        self.check_prompts(names)
        if own:
            sets = _find_label_sets(own[0], names)
        elif y is not None and len(names) > MAX_LABELS:
            sets = sample_labels(token_labels.convert_spans_to_dicts(y), names)
        else:
            count = xp.size(texts, xp.int64)
            every = xp.repeat(xp.range(len(names))[None], count, axis=0)
            sets = xp.RaggedTensor.from_tensor(every)
        if y is not None:
            sets = shuffle_rows(sets)
        words = self.tokenize_words(texts)
        given = sets.with_values(xp.gather(xp.constant(names, xp.string), sets.values))
        prompts = self.make_prompts(given)
        examples, found = self.make_examples(words, prompts)
        if y is not None:
            examples |= self._make_targets(texts, words, found, sets, y, names)
        if sample_weight is not None:
            weights = xp.gather(convert_weights(sample_weight), examples["text_index"])
            examples["sample_weight"] = weights
        return examples

    def check_prompts(self, prompts: Iterable[str]) -> None:
        """Raise a ValueError if a label contains the label marker or the separator."""
        for prompt in dict.fromkeys(prompts):
            for marker in (self.label_marker, self.separator):
                if marker in prompt:
                    raise ValueError(
                        f"The label {prompt!r} contains {marker!r}, which separates labels and "
                        "texts. Rename the label."
                    )

    def _make_targets(
        self, texts, words: TokenizedWords, found: SpanWindows, sets, y, names
    ) -> dict:
        """Return the training spans of each window: first word, width minus 1 and label."""
        if not xp.is_symbolic_tensor(texts):
            y = token_labels.convert_labels(y)
        start, end, label = token_labels.locate_spans(y, texts, names)
        row = start.value_rowids()
        check = functools.partial(check_each, unit="Example", index=row)
        first, last = find_overlapping(words.starts, words.ends, row, start.values, end.values)
        expected = ", which does not contain a word. Expected letters, digits or symbols."
        message = ": the span from ", start.values, " to ", end.values, expected
        first = check(first, first <= last, *message)
        # The column of each label among the labels of its text, which are unique.
        same = xp.gather(sets.to_tensor(-1), row) == label.values[:, None]  # (S, C)
        column = xp.reduce_sum(xp.cast(same, xp.int32) * xp.range(xp.shape(same)[1]), axis=1)
        given = xp.gather(xp.constant(names, xp.string), label.values)
        message = ": a span has the label ", given, ", which is not one of the labels of its text."
        first = check(first, xp.reduce_any(same, axis=1), *message)
        if not xp.is_symbolic_tensor(texts):
            self._log_spans_without_answers(words, start, end, first, last)

        # Take the spans of its text for each window, and keep the spans inside of the window.
        rows = (start.with_values(values) for values in (first, last - first, column))
        first, width, column = (xp.gather(values, found.windows.example) for values in rows)
        window = first.value_rowids()  # ragged (M, None)
        position = first.values - xp.gather(found.first_word, window)
        inside = (position >= 0) & (width.values < self.max_width)
        count = xp.cast(xp.gather(found.word_count, window), xp.int32)
        inside = first.with_values(inside & (position + width.values < count))
        kept = {"span_start": first.with_values(position), "span_width": width}
        kept["span_label"] = column
        return {name: xp.ragged.boolean_mask(rows, inside) for name, rows in kept.items()}

    def _log_spans_without_answers(self, words: TokenizedWords, start, end, first, last) -> None:
        """Log the spans that cut a word, and the spans that are too wide, in memory."""
        row = start.value_rowids()
        cut = get_row_values(words.starts, row, first) < start.values
        cut |= get_row_values(words.ends, row, last) > end.values
        message = (
            "%d of the spans begin or end inside a word. The model predicts whole words, so "
            "evaluate_entities will count these spans as errors."
        )
        log_spans(message, start, end, np.flatnonzero(np.asarray(cut)))
        if wide := np.count_nonzero(np.asarray(last - first) >= self.max_width):
            logger.warning(
                "%d of the spans have more than %d words and are ignored in training. Use "
                "from_preset(..., max_width=...) to support longer spans.",
                wide,
                self.max_width,
            )

    def collate(self, examples: dict, seed=None, bucketed: Bucketed = False):
        inputs = self.pad(examples, bucketed)
        shape = xp.shape(inputs["token_ids"], xp.int64)
        word_index = examples["word_index"].to_tensor(shape=shape)
        inputs["word_index"] = xp.ensure_shape(word_index, inputs["token_ids"].shape)
        count = xp.maximum(xp.reduce_max(examples["word_count"]), 1)
        if bucketed or self.sequence_length:  # one shape per length L
            count = xp.maximum(count, shape[1])
        inputs["word_mask"] = xp.sequence_mask(examples["word_count"], count)
        inputs["label_positions"] = examples["label_positions"].to_tensor(-1)
        if "span_start" not in examples:
            return inputs
        start = examples["span_start"]
        columns = start.value_rowids(), start.values, examples["span_width"].values
        columns = (*columns, examples["span_label"].values)
        indices = xp.stack([xp.cast(c, xp.int64) for c in columns], axis=1)
        labels = xp.shape(inputs["label_positions"], xp.int64)[1]
        sizes = shape[0], count, xp.cast(self.max_width, xp.int64), labels
        ones = xp.ones([xp.shape(indices)[0]], xp.float32)
        y = xp.scatter_nd(indices, ones, xp.stack(sizes))
        y = xp.minimum(y, 1.0)
        return pack_batch(inputs, y, examples.get("sample_weight"))

    # -- tables --------------------------------------------------------------------------------

    @functools.cached_property
    def _marker_id(self) -> int:
        return self.tokenizer.token_to_id(self.label_marker)

    @functools.cached_property
    def _separator_ids(self) -> np.ndarray:
        """The id of the separator, or the ids (1, T) of its tokens if it is not a single token."""
        if self.separator in set(self.tokenizer.get_vocabulary()):
            return np.array([[self.tokenizer.token_to_id(self.separator)]], np.int32)
        with xp.init_scope():
            return np.asarray(self.tokenizer.tokenize([self.separator])[0], np.int32)[None]


@functools.cache
def compute_character_classes() -> np.ndarray:
    """Return the kind of each character as uint8: part of a word, hyphen, whitespace or symbol.

    Example:
        >>> compute_character_classes()[[ord(c) for c in " -_é!"]].tolist()
        [0, 3, 2, 2, 1]
    """
    characters = "".join(map(chr, range(sys.maxunicode + 1)))
    kinds = np.full(len(characters), SYMBOL, np.uint8)
    for pattern, kind in ((r"\s+", WORD_SPACE), (r"\w+", WORD_LETTER)):
        for run in re.finditer(pattern, characters):
            kinds[run.start() : run.end()] = kind
    kinds[ord("-")] = HYPHEN
    return kinds


# Example of `split_words`:
#
#   text          a   -   b       -   c   !
#   joins         .   T   .   .   .   .   .     a hyphen between two letters
#   goes_on       .   T   T   .   .   .   .     continues the word of the character before
#   first         0               4   5   6
#   behind        3               5   6   7
def split_words(texts: xp.Tensor) -> tuple[xp.RaggedTensor, xp.RaggedTensor, xp.RaggedTensor]:
    r"""Split texts into words, the matches of `\w+(?:[-_]\w+)*|\S`.

    Args:
        texts: String tensor of shape (N,).

    Returns:
        words, starts, ends: Ragged tensors of shape (N, None), strings and int32 character offsets.

    Example:
        >>> import tensorflow as tf
        >>> words, starts, ends = split_words(tf.constant(["a-b -c!"]))
        >>> [word.decode() for word in words.to_list()[0]], starts.to_list(), ends.to_list()
        (['a-b', '-', 'c', '!'], [[0, 4, 5, 6]], [[3, 5, 6, 7]])
    """
    codes = xp.strings.unicode_decode(texts, "UTF-8")  # ragged (N, None)
    kind = xp.gather(compute_character_classes(), codes.values)
    begins_text = mark_row_starts(codes)
    letter, hyphen = kind == WORD_LETTER, kind == HYPHEN
    letter_before = shift_right(letter, False) & ~begins_text
    letter_after = shift_left(letter, False) & ~shift_left(begins_text, True)
    joins = hyphen & letter_before & letter_after
    goes_on = joins | (letter & (letter_before | shift_right(joins, False)))
    visible = kind != WORD_SPACE
    first = xp.where(visible & ~goes_on)[:, 0]  # (words of all texts,)
    behind = xp.where(visible & ~shift_left(goes_on, False))[:, 0] + 1
    spelled = xp.RaggedTensor.from_row_lengths(
        xp.boolean_mask(codes.values, visible), behind - first
    )
    words = xp.strings.unicode_encode(spelled, "UTF-8")
    row = xp.gather(codes.value_rowids(), first)
    offset = xp.gather(xp.cast(codes.row_starts(), xp.int64), row)
    rows = [words, *(xp.cast(v - offset, xp.int32) for v in (first, behind))]
    make, count = xp.RaggedTensor.from_value_rowids, xp.size(texts, xp.int64)
    return tuple(make(values, row, count) for values in rows)


def _find_label_sets(given: xp.RaggedTensor, names: Sequence[str]) -> xp.RaggedTensor:
    """Check the labels that are given with each text, and return their indices in `names`."""
    sets, row = given.with_values(find_label_indices(given.values, names)), given.value_rowids()
    message = ": unknown label ", given.values, f". Expected one of {names}."
    sets = check_each(sets, sets.values >= 0, *message, unit="Text", index=row)
    keys = compute_sort_keys(sets)
    order = xp.argsort(keys)
    keys, values, row = (xp.gather(v, order) for v in (keys, given.values, row))
    message = ": the labels contain ", values[1:], " twice. Expected unique labels."
    return check_each(sets, keys[1:] != keys[:-1], *message, unit="Text", index=row[1:])


def shuffle_rows(sets: xp.RaggedTensor) -> xp.RaggedTensor:
    """Shuffle the values in each row, in the same order in every call.

    Otherwise, the model could learn a label's meaning from its position.
    """
    drawn = xp.random.stateless_uniform([xp.size(sets.values)], [0, 1])
    order = xp.argsort(drawn, stable=True)
    by_row = xp.argsort(xp.gather(sets.value_rowids(), order), stable=True)
    return sets.with_values(xp.gather(sets.values, xp.gather(order, by_row)))


def sample_labels(y: list[list[dict]], names: Sequence[str]) -> xp.RaggedTensor:
    """Collect the labels of the spans of each text, and add random labels up to `MAX_LABELS`.

    Args:
        y: List with spans per text.
        names: List of strings. All label names.

    Returns:
        Ragged int32 tensor of shape (N, None). Indices into `names`.
    """
    number, rng = {name: i for i, name in enumerate(names)}, np.random.default_rng(0)
    rows = []
    for spans in y:
        own = {get_class_name(span[token_labels.SPAN[2]]) for span in spans}
        own = {number[name] for name in own if name in number}
        drawn = rng.choice(len(names), min(len(names), MAX_LABELS), replace=False).tolist()
        others = [i for i in drawn if i not in own]
        rows.append(sorted(own) + others[: max(MAX_LABELS - len(own), 0)])
    flat = np.array([i for row in rows for i in row], np.int32)
    return xp.RaggedTensor.from_row_lengths(flat, [len(row) for row in rows])
