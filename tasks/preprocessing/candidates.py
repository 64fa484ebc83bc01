"""Batches of examples with further texts, or windows, of the same row.

Comment letters: N rows, T further texts of all of them, K texts of a row, L sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.preprocessing.examples import take_examples


def with_candidates(examples: dict, firsts: tf.Tensor, others: tf.RaggedTensor) -> dict:
    """Return the examples of rows with further texts, of examples of one text each.

    Args:
        examples: encoded, of all texts.
        firsts: (N,), the first text of each row.
        others: ragged (N, None), the further ones, whose examples are "candidate_...".
    """
    further = take_examples(examples, others)
    renamed = {CANDIDATE + name: values for name, values in further.items()}
    return take_examples(examples, firsts) | renamed


def with_candidate_ranges(ranges: dict, names: Iterable[str] | None = None) -> dict:
    """Return the least and largest values of inputs, and those of further texts.

    Args:
        ranges: of the inputs of one text, see `Task.input_ranges`.
        names: of those that the further texts have too; None: all.

    Example:
        >>> with_candidate_ranges({"token_ids": (0, 9), "segment_ids": (0, 1)}, ["token_ids"])
        {'token_ids': (0, 9), 'segment_ids': (0, 1), 'candidate_token_ids': (0, 9)}
    """
    return ranges | {
        CANDIDATE + name: ranges[name] for name in (ranges if names is None else names)
    }


def pad_candidates(
    pad: Callable[[dict, bool], dict], examples: dict, pad_token_id: int, bucketed: bool
) -> dict[str, tf.Tensor]:
    """Return the model's inputs of rows with further texts, all padded to one length.

    Args:
        pad: the preprocessor's, of examples of one text each.
        examples: encoded; "token_ids" and "first_length" of the first text of each row, and under
            "candidate_..." those of the others, ragged (N, None, ...).
        pad_token_id: fills the columns of texts that a row does not have.
        bucketed: see `Preprocessor.collate`.

    Returns:
        Inputs (N, L), and under "candidate_..." (N, K - 1, L). A column without a text has a mask
        of one token.
    """
    others = examples[CANDIDATE + "token_ids"]
    both = {
        name: tf.concat([examples[name], examples[CANDIDATE + name].values], axis=0)
        for name in ("token_ids", "first_length")
    }
    padded = pad(both, bucketed)  # (N + T, L)
    count, inputs = others.nrows(), {}
    for name, values in padded.items():
        empty = pad_token_id if name == "token_ids" else 0
        inputs[name] = values[:count]
        ragged = others.with_values(values[count:])
        inputs[CANDIDATE + name] = ragged.to_tensor(tf.cast(empty, values.dtype))
    # The first token of every column is there: attention to no token at all is not a number.
    first = tf.range(tf.shape(inputs["token_ids"])[1]) == 0
    inputs[CANDIDATE + "padding_mask"] |= first
    return inputs
