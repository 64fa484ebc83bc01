"""Explain why a classifier gives a label: by the words of its texts.

Comment letters: W windows of a text, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, overload

import numpy as np
from keras import ops

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, Rule, validate_arguments
from encoder_zoo.common.weights_lock import reads_weights
from encoder_zoo.tasks.base.class_names import label_indices, sigmoid, softmax
from encoder_zoo.tasks.explanation.words import (
    Attributions,
    Method,
    Part,
    attributions,
    example_inputs,
    part_of,
    warn_incomplete,
    weighted_sum,
)
from encoder_zoo.tasks.preprocessing.packing import kept_tokens
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    TokenizedTexts,
    tokenize_texts,
    word_marks,
)
from encoder_zoo.tasks.preprocessing.windows import Windows, take
from encoder_zoo.tasks.sequence_classification.answering import is_single
from encoder_zoo.tasks.training.sources import check_preprocessor

if TYPE_CHECKING:
    from encoder_zoo.tasks.sequence_classification.task import SequenceClassifier


Label = Annotated[
    str | int, Rule(lambda v: type(v) in (str, int), "a class, by its name or its number")
]


class Explanation(Attributions):
    """A label of a text or pair, its score, and what each word adds to its logit."""

    label: str | int
    score: float


class TextExplanations:
    """Mixin of `SequenceClassifier`: why it gives a label."""

    @overload
    def explain(
        self,
        texts: str | tuple[str, str],
        label: str | int | None = None,
        method: Method = "integrated_gradients",
        batch_size: int | None = None,
    ) -> Explanation: ...
    @overload
    def explain(
        self,
        texts: Iterable[Any],
        label: str | int | None = None,
        method: Method = "integrated_gradients",
        batch_size: int | None = None,
    ) -> list[Explanation]: ...
    @validate_arguments
    @reads_weights
    def explain(
        self,
        texts,
        label: Label | None = None,
        method: Method = "integrated_gradients",
        batch_size: PositiveInt | None = None,
    ):
        """Return how much each word speaks for a label of its text, or against it.

        `ez.display.explanation` draws the answer.

        Args:
            texts: as for `classify`.
            label: a class, by name or number; None: of each text that with the highest score.
            method: "integrated_gradients" adds up the gradients of the label's logit on the way
                from the text with all its words masked to the text itself. The attributions of all
                words are the difference of the logits at both ends, to 0.001; for this as many
                gradients are computed as it takes, 14 or more. "gradient_x_input" is the gradient
                at the text alone: quick, and without that sum.
            batch_size: how many gradients are computed at once; default 32.

        Returns:
            For every text `{"label", "score", "texts", "words", "logit", "baseline"}`. "texts" are
            the text, or both of a pair. A word is `{"part", "text", "start", "end",
            "attribution"}`, in characters of the text with the number "part"; words behind the
            longest input are not read and have none, and those of several windows are pooled as the
            logits are. "baseline" is the logit of the masked text.
            For a single text or pair its explanation alone.

        Raises:
            ValueError: "label is 'good'. Expected one of ['negative', 'positive'], or None."

        Source: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks, section 3.

        Example:
            >>> from encoder_zoo import SequenceClassifier
            >>> classifier = SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
            >>> found = classifier.explain("A great film.")
            >>> found["label"], max(found["words"], key=lambda word: word["attribution"])["text"]
            ('positive', 'great')
        """
        if is_single(texts):
            texts = tuple([part] for part in texts) if isinstance(texts, tuple) else [texts]
            return explain_texts(self, texts, label, method, batch_size)[0]
        return explain_texts(self, texts, label, method, batch_size)


def explain_texts(
    classifier: SequenceClassifier,
    texts,
    label: str | int | None,
    method: str,
    batch_size: int | None,
) -> list[Explanation]:
    """Return explanations of texts or pairs; arguments: see `SequenceClassifier.explain`."""
    check_preprocessor(classifier, texts)
    index = None if label is None else _class_index(classifier, label)
    tokens, windows, examples = _encoded(classifier, texts)
    example, found = windows[0].example.numpy(), []
    for i in range(tokens[0].texts.shape[0]):
        numbers = np.flatnonzero(example == i)
        inputs = [example_inputs(classifier, examples, n) for n in numbers]
        logits = [ops.convert_to_numpy(classifier(x, training=False)) for x in inputs]
        logits = np.concatenate(logits).astype("float32")  # of the windows, (W, C)
        shares = _shares(logits, classifier.window_pooling)
        pooled = (shares * logits).sum(axis=0)
        target = pooled.argmax() if index is None else index
        weights = np.eye(len(pooled), dtype="float32")[[target]]
        used = np.flatnonzero(shares[:, target])
        parts = [_parts(classifier, tokens, windows, examples, numbers[n]) for n in used]
        values = [
            attributions(classifier, inputs[n], texts, weights, method, batch_size)
            for n, texts in zip(used, parts, strict=True)
        ]
        name, score = classifier.class_names[target], _score(classifier, pooled, target)
        values = weighted_sum(values, shares[used, target])
        found.append(Explanation(label=name, score=score, **values))
    warn_incomplete(found, method)
    return found


def _encoded(classifier: SequenceClassifier, texts) -> tuple:
    """Return the tokens of one or two columns of texts, their parts that are read, and examples."""
    preprocessor = classifier.preprocessor
    tokenizer = preprocessor.tokenizer
    marks = classifier.graphs.get("word_marks", lambda: word_marks(tokenizer))
    tokens = [tokenize_texts(tokenizer, column, marks) for column in preprocessor.texts_of(texts)]
    ids, separators = [part.ids for part in tokens], tokenizer.pair_separators
    if preprocessor.pools_windows:
        windows = preprocessor._windows(ids)
        ids = [take(part, of_part) for part, of_part in zip(ids, windows, strict=True)]
    else:
        longest, side = preprocessor.max_sequence_length, tokenizer.truncation_side
        kept = kept_tokens(ids, separators, longest, side)
        rows = tf.range(ids[0].nrows())
        windows = [Windows(rows, begin, count, None, None) for begin, count in kept]
    return tokens, windows, preprocessor.pack(ids)


def _parts(
    classifier: SequenceClassifier,
    tokens: list[TokenizedTexts],
    windows: list[Windows],
    examples: dict,
    number: int,
) -> list[Part]:
    """Return the texts of a window."""
    tokenizer, second = classifier.preprocessor.tokenizer, int(examples["first_length"][number])
    columns = tokenizer.first_column, second + tokenizer.pair_separators - 1
    found = []
    for part, of_part, column in zip(tokens, windows, columns, strict=False):
        row, begin, count = (int(of_part[field][number]) for field in range(3))
        found.append(part_of(part, row, column, begin, count))
    return found


def _shares(logits: np.ndarray, pooling: str) -> np.ndarray:
    """Return by how much each window counts for each of the text's logits, (W, C)."""
    if pooling == "max":
        return np.eye(len(logits), dtype="float32")[:, logits.argmax(axis=0)]
    return np.full_like(logits, 1 / len(logits))


def _class_index(classifier: SequenceClassifier, label: str | int) -> int:
    """Return the index of a class."""
    [index] = label_indices([label], classifier.labels).numpy().tolist()
    if not 0 <= index < classifier.num_classes:
        names = list(classifier.class_names)
        raise ValueError(f"label is {label!r}. Expected one of {names}, or None.")
    return index


def _score(classifier: SequenceClassifier, logits: np.ndarray, index: int) -> float:
    """Return the probability of a class; of a regression its number."""
    if classifier.problem_type == "regression":
        return float(logits[index])
    several = classifier.problem_type == "multi_label_classification"
    return float((sigmoid if several else softmax)(logits)[index])
