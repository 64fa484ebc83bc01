"""Convert answers to padded tensors for exports, or to lists of dicts."""

from __future__ import annotations

from encoder_zoo.common.lazy import xp


def pad_columns(columns: dict[str, xp.RaggedTensor]) -> dict[str, xp.Tensor]:
    """Pad columns of answers to tensors, and add the number of answers per text.

    Args:
        columns: Dict mapping names to ragged tensors of shape (N, None, ...), for N texts.

    Returns:
        Dict with the padded columns and "count". A padded column has the shape (N, M, ...), where M
        is the largest number of answers. The padding is "" in string columns and 0 in numeric
        columns. "count" is an int32 tensor of shape (N,).
    """
    count = next(iter(columns.values())).row_lengths()
    padded = {name: values.to_tensor() for name, values in columns.items()}
    return {"count": xp.cast(count, xp.int32), **padded}


def make_records(columns: dict[str, xp.Tensor | xp.RaggedTensor]) -> list[list[dict]]:
    """Convert columns of answers to a list of dicts for each text.

    Args:
        columns: Dict mapping names to tensors with one row of answers per text. Ragged tensors are
            also supported.

    Example:
        >>> import tensorflow as tf
        >>> tokens = tf.ragged.constant([["a", "b"], []])
        >>> make_records({"token": tokens, "end": tf.ragged.constant([[1, 2], []], tf.int32)})
        [[{'token': 'a', 'end': 1}, {'token': 'b', 'end': 2}], []]
    """
    lists = [
        values.to_list() if isinstance(values, xp.RaggedTensor) else values.numpy().tolist()
        for values in columns.values()
    ]

    def record(answer) -> dict:
        values = (v.decode() if isinstance(v, bytes) else v for v in answer)
        return dict(zip(columns, values, strict=True))

    return [[record(a) for a in zip(*row, strict=True)] for row in zip(*lists, strict=True)]
