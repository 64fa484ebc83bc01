"""Explain classifier labels by the words in each text.

Comments use these letters for shapes: W windows of a text, C classes.
"""

from __future__ import annotations

import numpy as np
from keras import ops

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.wording import invalid
from encoder_zoo.extras.explanations import attributions
from encoder_zoo.tasks.base.classes import find_label_indices
from encoder_zoo.tasks.classification.sequence_classifier import Explanation, SequenceClassifier
from encoder_zoo.tasks.preprocessing.packing import compute_kept_tokens
from encoder_zoo.tasks.preprocessing.windows import Windows, take
from encoder_zoo.tasks.training.sources import check_preprocessor


def explain_labels(
    classifier: SequenceClassifier,
    texts,
    label: str | int | None,
    method: str,
    batch_size: int | None,
) -> list[Explanation]:
    """Explain labels for texts or pairs. See `SequenceClassifier.explain` for the arguments."""
    check_preprocessor(classifier, texts)
    index = None if label is None else _find_class_index(classifier, label)
    tokens, windows, examples = _encode_texts(classifier, texts)
    count = tokens[0].texts.shape[0]
    bounds = np.searchsorted(windows[0].example, np.arange(count + 1))
    found = []
    for i in range(count):
        numbers = np.arange(*bounds[i : i + 2])
        inputs = [attributions.make_example_inputs(classifier, examples, n) for n in numbers]
        logits = [ops.convert_to_numpy(classifier(x, training=False)) for x in inputs]
        logits = np.concatenate(logits).astype("float32")  # for all windows, (W, C)
        shares = _compute_shares(logits, classifier.window_pooling)
        pooled = (shares * logits).sum(axis=0)
        target = pooled.argmax() if index is None else index
        weights = np.eye(len(pooled), dtype="float32")[[target]]
        used = np.flatnonzero(shares[:, target])
        whole = [attributions.select_tokens(column, i) for column in tokens]
        parts = [_make_parts(classifier, whole, windows, examples, numbers[n]) for n in used]
        values = [
            attributions.compute_attributions(
                classifier, inputs[n], texts, weights, method, batch_size
            )
            for n, texts in zip(used, parts, strict=True)
        ]
        name, score = classifier.class_names[target], _get_score(classifier, pooled, target)
        values = attributions.sum_attributions(values, shares[used, target])
        found.append(Explanation(label=name, score=score, **values))
    attributions.warn_if_incomplete(found, method)
    return found


def _encode_texts(classifier: SequenceClassifier, texts) -> tuple:
    """Encode one or two text columns. Return tokens, windows and examples."""
    preprocessor = classifier.preprocessor
    tokenizer = preprocessor.tokenizer
    tokens = attributions.tokenize_columns(classifier, preprocessor.read_texts(texts))
    ids = [part.ids for part in tokens]
    if preprocessor.pools_windows:
        windows = preprocessor._split_into_windows(ids)
        ids = [take(part, of_part) for part, of_part in zip(ids, windows, strict=True)]
    else:
        longest, side = preprocessor.max_sequence_length, tokenizer.truncation_side
        kept = compute_kept_tokens(ids, preprocessor.count_specials(len(ids) == 2), longest, side)
        rows = xp.range(ids[0].nrows())
        windows = [Windows(rows, begin, count, None, None) for begin, count in kept]
    return tokens, windows, preprocessor.pack(ids)


def _make_parts(
    classifier: SequenceClassifier,
    texts: list[attributions.TextPart],
    windows: list[Windows],
    examples: dict,
    number: int,
) -> list[attributions.TextPart]:
    """Return the part of each text that window `number` contains."""
    tokenizer, second = classifier.preprocessor.tokenizer, int(examples["first_length"][number])
    columns = tokenizer.first_column, second + tokenizer.template.num_second_segment_tokens
    found = []
    for text, of_text, column in zip(texts, windows, columns, strict=False):
        begin, length = int(of_text.begin[number]), int(of_text.length[number])
        found.append(attributions.select_window(text, column, begin, length))
    return found


def _compute_shares(logits: np.ndarray, pooling: str) -> np.ndarray:
    """Compute the weight of each window for each logit, shape (W, C)."""
    if pooling == "max":
        return np.eye(len(logits), dtype="float32")[:, logits.argmax(axis=0)]
    return np.full_like(logits, 1 / len(logits))


def _find_class_index(classifier: SequenceClassifier, label: str | int) -> int:
    """Convert a label or class index to a class index."""
    [index] = find_label_indices([label], classifier.labels).numpy().tolist()
    if not 0 <= index < classifier.num_classes:
        names = list(classifier.class_names)
        raise invalid("label", label, f"one of {names}, or None")
    return index


def _get_score(classifier: SequenceClassifier, logits: np.ndarray, index: int) -> float:
    """Compute a class probability, or the predicted value for regression."""
    if classifier.problem_type == "regression":
        return float(logits[index])
    return float(classifier._answers.compute_probabilities(logits)[index])
