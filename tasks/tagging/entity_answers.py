"""Extract entities from span logits.

Comments use these letters for shapes: B batch, W words, K widths of spans, C labels, N texts, M
windows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np

from encoder_zoo.common.escaping import check_encodable
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import PositiveInt, Probability, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.tasks.base.answers import Answers, prepares_in_numpy
from encoder_zoo.tasks.base.classes import find_label_indices
from encoder_zoo.tasks.base.confidence import DEFAULT_THRESHOLD, Thresholds, expand_thresholds
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.base.records import make_records, pad_columns
from encoder_zoo.tasks.preprocessing.batching import map_graph_batches
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain, is_doc
from encoder_zoo.tasks.preprocessing.inputs import convert_column
from encoder_zoo.tasks.preprocessing.preprocessor import replace_invalid_text
from encoder_zoo.tasks.preprocessing.tokenized_texts import get_row_values
from encoder_zoo.tasks.tagging import span_decoding
from encoder_zoo.tasks.tagging.entities import Entity, ScoredSpans
from encoder_zoo.tasks.tagging.entity_extractor_preprocessor import (
    NO_LABELS,
    EntityExtractorPreprocessor,
    SpanWindows,
    TokenizedWords,
)

Labels = Sequence[str] | Mapping[str, str] | Sequence[Sequence[str] | Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class EntityAnswers(Answers):
    """The `Answers` of `EntityExtractor`. See `EntityExtractor` for the settings.

    Attributes:
        labels: Optional list of strings. Default labels.
        thresholds: Optional dict mapping labels to floats.
        max_width: Positive integer. Maximum number of words per entity.
    """

    preprocessor_class = EntityExtractorPreprocessor
    methods = ("extract_entities",)
    returns_lists = True
    labels: Sequence[str] | None
    thresholds: Mapping[str, float] | None
    max_width: int

    def predict_texts(self, x: Any, batch_size: int | None = None) -> list[np.ndarray]:
        texts, labels = x if isinstance(x, tuple) else (x, None)
        return self.compute_logits(texts, labels, batch_size)

    @overload
    def extract_entities(
        self: Any,
        texts: str,
        labels: Labels | None = None,
        threshold: float | Mapping[str, float] | None = None,
        nested: bool = False,
        multi_label: bool = False,
        batch_size: int | None = None,
    ) -> list[Entity]: ...
    @overload
    def extract_entities(
        self: Any,
        texts: Iterable[Any],
        labels: Labels | None = None,
        threshold: float | Mapping[str, float] | None = None,
        nested: bool = False,
        multi_label: bool = False,
        batch_size: int | None = None,
    ) -> list[list[Entity]]: ...
    @overload
    def extract_entities(
        self: Any, texts: object, *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validate_arguments
    @prepares_in_numpy
    @skips_missing("texts", beside="labels")
    def extract_entities(
        self,
        texts,
        labels: object = None,
        threshold: Probability | Thresholds | None = None,
        nested: bool = False,
        multi_label: bool = False,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ):
        """Extract entities from texts.

        Texts of any length are read in overlapping windows (see `EntityExtractorPreprocessor`).

        Args:
            texts: Text, list of texts, or spaCy `Doc` objects.
            labels: Optional list of label names, e.g. ["person", "court"], or dict mapping names to
                descriptions, which the model reads instead of the names. Use a list of lists or
                dicts for different labels per text. If None, the task's labels are used.
            threshold: Optional float between 0 and 1, or dict mapping labels to floats. Only
                entities with a higher score will be returned. For labels missing from the dict, 0.5
                is used. If None, the thresholds from `tune_thresholds` or 0.5 will be used.
            nested: Boolean. Whether to allow entities inside entities. If False, entities do not
                share words. Defaults to False.
            multi_label: Boolean. Whether to allow multiple labels for the same words. Defaults to
                False.
            batch_size: Optional positive integer. Batch size, in texts. If None, 32 will be used.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return None for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".

        Returns:
            List of `{"label", "text", "start", "end", "score"}` for each text, sorted by the first
            word. "start" and "end" are character offsets into the string. If a single text is
            passed, a single list will be returned.

        Raises:
            ValueError: If there are no labels, if a label occurs twice, or if the labels leave too
                few tokens for the text.
        """
        if isinstance(texts, str) or is_doc(texts):
            # a single text has a single set of labels
            options = (threshold, nested, multi_label, batch_size)
            return self.extract_entities([texts], labels, *options)[0]
        texts = convert_column(convert_to_plain(texts))
        names, prompts = make_label_sets(labels, self.labels, len(texts))
        if not len(texts):
            return []
        written = map(bytes.decode, np.asarray(prompts.flat_values).tolist())
        self.preprocessor.check_prompts(written)
        if isinstance(threshold, Mapping):  # thresholds of the given labels
            known = dict.fromkeys(np.asarray(names.flat_values).tolist())
            expand_thresholds(threshold, [name.decode() for name in known], DEFAULT_THRESHOLD)
        least = self.get_min_scores(threshold, names)
        words, read, examples = self._encode(texts, prompts)
        lowest = np.min(least.flat_values)
        with np.errstate(divide="ignore"):  # thresholds of 0 and 1 have infinite logits
            lowest = np.log(lowest) - np.log1p(-lowest)
        found = self._find_candidates(examples, batch_size, lowest)
        found = span_decoding.merge_windows(found, words, read)
        found = found._replace(score=xp.sigmoid(found.score))
        found = span_decoding.choose_spans(_drop_low_scores(found, least), nested, multi_label)
        return make_records(span_decoding.make_entity_columns(found, words, texts, names))

    def make_entities_function(
        self, run: Callable, threshold, nested: bool, multi_label: bool
    ) -> Callable:
        """Create the function to export. See `EntityExtractor.signatures`.

        Args:
            run: Function that computes logits (B, W, K, C) from the model inputs.
            threshold, nested, multi_label: See `extract_entities`.
        """

        def find(text, labels):
            text = replace_invalid_text(text)
            count = xp.size(text, xp.int64)
            names = xp.RaggedTensor.from_tensor(labels, padding="")
            times = xp.where(names.nrows() == 1, count, 1)
            rows = xp.repeat(xp.range(names.nrows()), times)
            names = xp.gather(names, rows)
            least = self.get_min_scores(threshold, names)
            words, read, examples = self._encode(text, names)
            lowest = xp.reduce_min(least.flat_values)
            found = self._find_candidates_in_graph(run, examples, lowest)
            found = _drop_low_scores(span_decoding.merge_windows(found, words, read), least)
            found = span_decoding.choose_spans_in_graph(found, nested, multi_label)
            return pad_columns(span_decoding.make_entity_columns(found, words, text, names))

        find.takes_other_shapes = True
        find.ranks = {"labels": 2}
        return find

    @prepares_in_numpy
    def compute_logits(self, texts, labels, batch_size: int | None) -> list[np.ndarray]:
        """Compute the span logits (words, K, C) of each text."""
        texts = convert_column(convert_to_plain(texts))
        _, prompts = make_label_sets(labels, self.labels, len(texts))
        words, read, examples = self._encode(texts, prompts)
        lengths = np.asarray(words.starts.row_lengths())
        widths = np.asarray(prompts.row_lengths())
        shapes = [(n, self.max_width, c) for n, c in zip(lengths, widths, strict=True)]
        outputs = [np.full(shape, MASKED_LOGIT, "float32") for shape in shapes]
        every = self._find_candidates(examples, batch_size, -np.inf)
        found = span_decoding.merge_windows(every, words, read)
        for row, start, end, label, score in zip(*map(np.asarray, found), strict=True):
            outputs[row][start, end - start, label] = score
        return outputs

    def get_min_scores(
        self, given: float | Mapping[str, float] | None, names: xp.RaggedTensor
    ) -> xp.RaggedTensor:
        """Return the threshold of each label of each text, as a ragged float32 tensor (N, None).

        Args:
            given: See `extract_entities`.
            names: Ragged string tensor of shape (N, None). Labels for each text.
        """
        given = self.thresholds or {} if given is None else given
        known = given if isinstance(given, Mapping) else {}
        others = DEFAULT_THRESHOLD if isinstance(given, Mapping) else given
        values = xp.constant([*known.values(), others], xp.float32)
        found = xp.unique(names.flat_values)
        index = find_label_indices(found.y, [*map(str, known)])
        index = xp.where(index < 0, len(known), index)
        return names.with_values(xp.gather(xp.gather(values, index), found.idx))

    def _encode(self, texts, labels) -> tuple[TokenizedWords, SpanWindows, dict]:
        """Split texts into words and windows, and encode the windows."""
        words = self.preprocessor.tokenize_words(texts)
        examples, read = self.preprocessor.make_examples(
            words, self.preprocessor.make_prompts(labels)
        )
        return words, read, examples

    def _find_candidates(self, examples: dict, batch_size, least: float) -> ScoredSpans:
        """Find all spans with a logit above `least`. The logits are used as scores."""
        parts = []
        for indices, outputs in self.runner.run_examples(examples, batch_size):
            outputs = np.asarray(outputs)  # (B, W, K, C)
            real = outputs > max(least, MASKED_LOGIT / 2)
            row, start, width, label = np.nonzero(real)
            parts.append((indices[row], start, start + width, label, outputs[real]))
        fields = zip(*parts, strict=True) if parts else [[np.zeros(0, np.int64)]] * 5
        fields = [np.concatenate(list(field)) for field in fields]
        order = np.argsort(fields[0], kind="stable")  # by window
        kinds = (xp.int64, xp.int32, xp.int32, xp.int32, xp.float32)
        fields = (xp.cast(f[order], kind) for f, kind in zip(fields, kinds, strict=True))
        return ScoredSpans(*fields)

    def _find_candidates_in_graph(
        self, run: Callable, examples: dict, least: xp.Tensor
    ) -> ScoredSpans:
        """Find all spans whose score is above `least`, in all windows, inside `tf.function`."""
        counts = examples["word_count"], examples["label_positions"].row_lengths()
        words, labels = (xp.cast(n, xp.int64) for n in counts)  # (M,)

        def compute_scores(examples):
            inputs = self.preprocessor.collate(examples)
            logits = run(inputs)  # (B, W, K, C)
            is_label = (inputs["label_positions"] >= 0)[:, None, None]
            real = inputs["word_mask"][:, :, None, None] & is_label
            real = xp.broadcast_to(real, xp.shape(logits))
            return xp.sigmoid(xp.boolean_mask(logits, real))[:, None]

        # The scores of a window are in one row, by word, width and label. For 12 widths and 2
        # labels, score 29 has the word 1, the width 2 and the label 1: 1 * 24 + 2 * 2 + 1.
        sizes = words * labels * self.max_width
        found = map_graph_batches(compute_scores, examples, sizes, 1)  # ragged (M, None, 1)
        score = found.values[:, 0]
        chosen = xp.where(score > least)[:, 0]
        window = xp.gather(found.value_rowids(), chosen)
        cell = chosen - xp.gather(found.row_starts(), window)
        count = xp.gather(labels, window)
        start, width = cell // (count * self.max_width), cell // count % self.max_width
        fields = (xp.cast(v, xp.int32) for v in (start, start + width, cell % count))
        return ScoredSpans(window, *fields, xp.gather(score, chosen))


def _drop_low_scores(found: ScoredSpans, least: xp.RaggedTensor) -> ScoredSpans:
    """Return all candidates with a score above the threshold for the label."""
    return found.select(found.score > get_row_values(least, found.row, found.label))


def make_label_sets(
    labels: Labels | None, default: Sequence[str] | None, count: int
) -> tuple[xp.RaggedTensor, xp.RaggedTensor]:
    """Return the label names of each text, and the labels that the model reads.

    Args:
        labels: See `EntityExtractor.extract_entities`.
        default: Optional list of strings. Labels if `labels` is None.
        count: Integer. The number of texts N.

    Returns:
        Two ragged string tensors of shape (N, None).

    Raises:
        ValueError: If there are no labels, if a label is empty or occurs twice, or if there is not
            one list of labels per text.

    Example:
        >>> names, prompts = make_label_sets({"PER": "a person"}, None, 2)
        >>> names.to_list(), prompts.to_list()
        ([[b'PER'], [b'PER']], [[b'a person'], [b'a person']])
    """
    labels = default or () if labels is None else labels
    labels = labels.tolist() if hasattr(labels, "tolist") else labels
    unordered = isinstance(labels, str | bytes | set | frozenset)
    if unordered or not isinstance(labels, Collection):
        raise invalid("labels", labels, "a list of names such as ['person', 'city']")
    if not labels:
        raise ValueError(NO_LABELS)
    several = not isinstance(labels, Mapping) and _is_set(next(iter(labels)))
    if several and len(labels) != count:
        raise ValueError(
            f"Received {count} texts, but {len(labels)} lists of labels. Expected one list per "
            "text."
        )
    for i, given in enumerate(labels if several else ()):
        if not _is_set(given):
            raise invalid(f"labels[{i}]", given, "a list of names")
    sets = (
        [make_label_set(given) for given in labels] if several else [make_label_set(labels)] * count
    )
    lengths = [len(names) for names, _ in sets]
    lengths = xp.constant(lengths, xp.int64)
    flat = ([text for pair in sets for text in pair[i]] for i in range(2))
    strings = (xp.constant(values, xp.string) for values in flat)
    return tuple(xp.RaggedTensor.from_row_lengths(values, lengths) for values in strings)


def _is_set(labels: object) -> bool:
    """Return whether a value contains the labels of a text, instead of a single label."""
    return isinstance(labels, Collection) and not isinstance(labels, str | bytes)


def make_label_set(given: Sequence[str] | Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Check the labels of a text, and return their names and the labels that the model reads."""
    names = list(given)
    prompts = [*given.values()] if isinstance(given, Mapping) else names
    if not names:
        raise ValueError("`labels` is empty for one of the texts. Remove the text, or add labels.")
    for kind, values in (("labels", names), ("list(labels.values())", prompts)):
        known = set()
        for i, value in enumerate(values):
            if not isinstance(value, str) or not value.strip():
                raise invalid(f"{kind}[{i}]", value, "a string such as 'person'")
            check_encodable(value, f"{kind}[{i}]")
            if value in known:
                raise ValueError(f"{kind} contains {value!r} twice. Expected unique names.")
            known.add(value)
    return names, prompts
