"""Compute attributions, which measure how much each word contributes to an output.

Comments use these letters for shapes: L sequence, T tokens of a text.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.lazy import tf, xp
from encoder_zoo.tasks.base.explanation import Attributions, WordAttribution
from encoder_zoo.tasks.preprocessing.batch_shapes import take_examples
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    TokenizedTexts,
    mark_word_tokens,
    tokenize_texts,
)

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

logger = logging.getLogger("encoder_zoo")


class TextPart(NamedTuple):
    """The tokens of a text, or of a window of a text, in an example.

    Attributes:
        text: String. The complete text.
        column: Integer. Position of the first token in the example.
        words: Integer array of shape (T,). Index of the word that contains each token.
        starts: Integer array. Start offset of each word in the text.
        ends: Integer array. End offset of each word, or 0 for words without characters.
    """

    text: str
    column: int
    words: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


COMPLETENESS_TOLERANCE = 1e-3  # maximum error of the sum of all attributions, in logits
# Minimum fraction of the tolerance for short intervals, because of rounding errors.
MIN_TOLERANCE_SHARE = 0.01
MAX_POINTS = 1000  # the outputs are not accurate enough for more points


class Attribution(NamedTuple):
    """The contribution of each token to an output.

    Attributes:
        tokens: Float64 array of shape (L,). Attribution of each token.
        output: Float. The output for the text.
        baseline: Float. The output for the masked text.
    """

    tokens: np.ndarray
    output: float
    baseline: float


def compute_lobatto_nodes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute nodes and weights of shape (count,) for Gauss-Lobatto quadrature from 0 to 1.

    The nodes include 0 and 1. Polynomials up to degree 2 count - 3 are integrated exactly.

    Source: Abramowitz and Stegun 1964, 25.4.32.

    Example:
        >>> nodes, weights = compute_lobatto_nodes(3)
        >>> nodes.tolist(), weights.round(4).tolist()
        ([0.0, 0.5, 1.0], [0.1667, 0.6667, 0.1667])
    """
    legendre = np.polynomial.Legendre.basis(count - 1)
    nodes = np.concatenate([[-1.0], np.sort(legendre.deriv().roots()), [1.0]])
    return (nodes + 1) / 2, 1 / (count * (count - 1) * legendre(nodes) ** 2)


NODES, LOBATTO_WEIGHTS = compute_lobatto_nodes(7)


def compute_integrated_gradients(along: Callable) -> Attribution:
    """Compute integrated gradients, which sum to the output minus the baseline.

    Args:
        along: A function that maps points (n,) from 0 to 1 to outputs (n,) and slopes (n, L). See
            `make_line_function`.

    Source: Sundararajan, Taly and Yan 2017, Axiomatic Attribution for Deep Networks, section 3.

    Example:
        >>> square = lambda x: (x**2, 2 * x[:, None])
        >>> compute_integrated_gradients(square).tokens.round(6).tolist()
        [1.0]
    """
    parts, total, ends, count = [(0.0, 0.5), (0.5, 1.0)], 0.0, {}, 0
    while parts:
        points = np.concatenate([a + (b - a) * NODES for a, b in parts])
        count += len(points)
        outputs, slopes = along(points)
        outputs = outputs.reshape(len(parts), -1)
        slopes = slopes.reshape(*outputs.shape, -1)
        halves = []
        for (a, b), values, slope in zip(parts, outputs, slopes, strict=True):
            ends |= {a: values[0], b: values[-1]}
            added = (b - a) * (LOBATTO_WEIGHTS @ slope)  # (L,)
            error = abs(added.sum() - (values[-1] - values[0]))
            if (
                error <= COMPLETENESS_TOLERANCE / 2 * max(b - a, MIN_TOLERANCE_SHARE)
                or count >= MAX_POINTS
            ):
                total = total + added
            else:
                halves += [(a, (a + b) / 2), ((a + b) / 2, b)]
        parts = halves
    return Attribution(total, ends[1.0], ends[0.0])


def compute_gradient_times_input(along: Callable) -> Attribution:
    """Compute attributions from the gradient for the unmasked text.

    This is faster than `compute_integrated_gradients`, but the sum of the attributions is not
    exact.

    Args:
        along: See `compute_integrated_gradients`.

    Source: Shrikumar et al. 2016, Not Just a Black Box, section 2, with the difference to the
    baseline as the input.
    """
    outputs, slopes = along(np.array([0.0, 1.0]))
    return Attribution(slopes[1], outputs[1], outputs[0])


def tokenize_columns(task: Task, columns: Sequence[xp.Tensor]) -> list[TokenizedTexts]:
    """Tokenize columns of texts (N,), and find the word of each token."""
    tokenizer = task.preprocessor.tokenizer
    marks = task.batch_maker.get_graph("word_marks", lambda: mark_word_tokens(tokenizer))
    return [tokenize_texts(tokenizer, column, marks) for column in columns]


def select_tokens(tokens: TokenizedTexts, row: int) -> TextPart:
    """Select the tokens of one text. See also `select_window`.

    Args:
        tokens: The `TokenizedTexts` with all texts.
        row: Integer. Text index.
    """
    first, last, words = (
        field[row].numpy() for field in (tokens.starts, tokens.ends, tokens.words)
    )
    text, visible = tokens.texts[row : row + 1].numpy()[0].decode(), first < last
    count = words.max(initial=-1) + 1
    starts, ends = np.full(count, len(text)), np.zeros(count, int)
    np.minimum.at(starts, words[visible], first[visible])
    np.maximum.at(ends, words[visible], last[visible])
    return TextPart(text, 0, words, starts, ends)


def select_window(text: TextPart, column: int, begin: int, count: int) -> TextPart:
    """Select the tokens of a text that are in a window.

    Args:
        text: The `TextPart` with the whole text, as returned by `select_tokens`.
        column: Integer. Position of the first token of the window in the example.
        begin: Integer. Index of the first token of the window in the text.
        count: Integer. The number of tokens in the window.
    """
    return text._replace(column=column, words=text.words[begin : begin + count])


def make_example_inputs(task: Task, examples: Mapping, index: int) -> dict[str, np.ndarray]:
    """Create the model inputs of an encoded example. Return a dict of arrays of shape (1, L)."""
    example = take_examples(examples, [index])
    inputs = keras.utils.unpack_x_y_sample_weight(task.batch_maker.collate()(example))[0]
    return {name: values.numpy() for name, values in inputs.items()}


def compute_attributions(
    task: Task,
    inputs: Mapping[str, np.ndarray],
    parts: Sequence[TextPart],
    weights: np.ndarray,
    method: str,
    batch_size: int | None,
) -> Attributions:
    """Compute the contribution of each word to a weighted sum of outputs.

    Args:
        task: The `Task` to explain.
        inputs: Dict mapping names to arrays of shape (1, L). Model inputs for the example.
        parts: Sequence of `TextPart` objects. The texts in the example.
        weights: Array of shape (1, ...). Weights of the outputs in the sum.
        method: String. Key in `ATTRIBUTION_METHODS`.
        batch_size: Optional integer. The number of points per batch. If None, the default will be
            used.
    """
    masked = np.array(inputs["token_ids"])
    for part in parts:
        columns = slice(part.column, part.column + len(part.words))
        masked[0, columns] = task.preprocessor.tokenizer.mask_token_id
    along = make_line_function(task, inputs, masked, weights, batch_size or BATCH_SIZE)
    found = ATTRIBUTION_METHODS[method](along)
    words = [word for i, part in enumerate(parts) for word in _make_words(i, part, found.tokens)]
    return Attributions(
        texts=[part.text for part in parts],
        words=words,
        logit=float(found.output),
        baseline=float(found.baseline),
    )


def _make_words(number: int, part: TextPart, attribution: np.ndarray) -> list[WordAttribution]:
    """Sum the attributions of the tokens of each word in a text."""
    found, unseen = [], 0.0
    for word in dict.fromkeys(part.words.tolist()):
        tokens = np.flatnonzero(part.words == word)
        added = float(attribution[part.column + tokens].sum())
        start, end = int(part.starts[word]), int(part.ends[word])
        text = part.text[start:end]
        if not text.strip():  # a token that is a space belongs to the following word
            unseen += added
            continue
        found.append(
            WordAttribution(
                part=number, text=text, start=start, end=end, attribution=added + unseen
            )
        )
        unseen = 0.0
    if found:
        found[-1]["attribution"] += unseen
    return found


def sum_attributions(found: Sequence[Attributions], weights: Sequence[float]) -> Attributions:
    """Combine the attributions for several logits into attributions for their weighted sum.

    Args:
        found: Sequence of `Attributions` for the same texts.
        weights: Sequence of floats with the same length.
    """
    words = {}
    for row, weight in zip(found, weights, strict=True):
        for word in row["words"]:
            key = word["part"], word["start"], word["end"]
            kept = words.setdefault(key, {**word, "attribution": 0.0})
            kept["attribution"] += float(weight) * word["attribution"]
    logit, baseline = (
        float(sum(w * row[name] for w, row in zip(weights, found, strict=True)))
        for name in ("logit", "baseline")
    )
    words = [words[key] for key in sorted(words)]
    return Attributions(texts=found[0]["texts"], words=words, logit=logit, baseline=baseline)


def warn_if_incomplete(found: Sequence[Attributions], method: str) -> None:
    """Log a warning if the attributions do not sum to the logit change."""
    if method != "integrated_gradients":
        return
    gaps = [
        abs(sum(word["attribution"] for word in row["words"]) - (row["logit"] - row["baseline"]))
        for row in found
    ]
    wrong = sum(gap > COMPLETENESS_TOLERANCE for gap in gaps)
    if wrong:
        logger.warning(
            "In %d of %d explanations, the attributions do not add up to the logit change (error "
            "up to %.4f), because float16 and bfloat16 are not precise enough. Use "
            "dtype='float32'.",
            wrong,
            len(gaps),
            max(gaps),
        )


def compute_weighted_logits(task: Task, inputs: Mapping, weights: np.ndarray, vectors):
    """Compute a weighted sum of the outputs for several embeddings of one text.

    Args:
        task: The `Task` to explain.
        inputs: Dict mapping names to arrays of shape (1, L). Model inputs for the text.
        weights: Array of shape (1, ...). Weights of the outputs in the sum.
        vectors: Array of shape (n, L, D). Embeddings that replace the text embeddings.

    Returns:
        A float32 array of shape (n,).
    """
    count = vectors.shape[0]
    inputs = {
        name: ops.repeat(ops.convert_to_tensor(values), count, axis=0)
        for name, values in inputs.items()
    }
    encoded = task.backbone._encode_embedded(vectors, task.make_backbone_inputs(inputs))
    outputs = ops.cast(task.logits_of(encoded, inputs, training=False), "float32")
    outputs = outputs * ops.convert_to_tensor(weights)
    return ops.sum(ops.reshape(outputs, (count, -1)), axis=1)


def compute_values_and_gradients(
    function: Callable, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the values (n,) and gradients (n, ...) of a function for all rows in `x`.

    Args:
        function: A function that maps (n, ...) to (n,). Each value must only depend on its own row.
        x: Float32 array of shape (n, ...).

    Example:
        >>> values, gradients = compute_values_and_gradients(
        ...     lambda x: ops.sum(x**2, axis=1), np.float32([[1, 2], [3, 4]]))
        >>> values.tolist(), gradients.tolist()
        ([5.0, 25.0], [[2.0, 4.0], [6.0, 8.0]])
    """
    x = ops.convert_to_tensor(x)
    if keras.config.backend() == "tensorflow":
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = function(x)
        gradients = tape.gradient(values, x)
    elif keras.config.backend() == "jax":
        import jax

        values, pulled_back = jax.vjp(function, x)
        [gradients] = pulled_back(ops.ones_like(values))
    else:
        import torch

        x = x.requires_grad_()
        values = function(x)
        [gradients] = torch.autograd.grad(values.sum(), x)
    return ops.convert_to_numpy(values), ops.convert_to_numpy(gradients)


def make_line_function(
    task: Task, inputs: Mapping, masked_ids: np.ndarray, weights: np.ndarray, batch_size: int
) -> Callable:
    """Create a function that evaluates the model on a line from the masked text to the text.

    Args:
        task: The `Task` to explain.
        inputs: Dict mapping names to arrays of shape (1, L). Model inputs for the text.
        masked_ids: Array of shape (1, L). The token ids of the masked text.
        weights: See `compute_weighted_logits`.
        batch_size: Integer. The number of points per batch.

    Returns:
        A function that maps points (n,) to outputs (n,) and slopes (n, L). Point 0 is the masked
        text, and point 1 is the text. The slope of a token is
        the derivative of the output with respect to the embedding of the token, along the line
        between the two texts.
    """
    start, end = (
        ops.convert_to_numpy(
            ops.cast(task.backbone._embed({**inputs, "token_ids": ids}), "float32")
        )
        for ids in (masked_ids, inputs["token_ids"])
    )  # (1, L, D)
    function = functools.partial(compute_weighted_logits, task, inputs, weights)

    def evaluate_points(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = []
        for i in range(0, len(points), batch_size):
            part = points[i : i + batch_size, None, None].astype("float32")
            values, gradients = compute_values_and_gradients(function, start + part * (end - start))
            found.append((values, np.sum(gradients * (end - start), axis=-1, dtype="float64")))
        values, slopes = map(np.concatenate, zip(*found, strict=True))
        return values.astype("float64"), slopes

    return evaluate_points


ATTRIBUTION_METHODS = {
    "integrated_gradients": compute_integrated_gradients,
    "gradient_x_input": compute_gradient_times_input,
}
