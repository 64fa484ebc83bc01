"""Convert tokens to examples: truncate, add special tokens, mark segments, and pad.

Comments use these letters for shapes: B (batch size), L (sequence length).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from encoder_zoo.common.lazy import xp

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.files.special_tokens import Template


def truncate_lengths(first: xp.Tensor, second: xp.Tensor, budget: int) -> tuple:
    """Compute the lengths of the texts in pairs after truncation. The longer text is cut first.

    Args:
        first: Integer tensor of shape (B,). Lengths of the first texts.
        second: Integer tensor of shape (B,). Lengths of the second texts.
        budget: Integer. Maximum number of tokens in both texts together.

    Returns:
        Two tensors of shape (B,). The shorter text keeps up to half the budget, and the longer text
        gets the rest. If both texts are cut to half of an odd budget, the longer text gets the
        additional token. If their lengths are equal, the second text gets this token.

    Example:
        >>> import tensorflow as tf
        >>> a, b = truncate_lengths(tf.constant([2, 9]), tf.constant([9, 9]), budget=7)
        >>> a.numpy().tolist(), b.numpy().tolist()
        ([2, 3], [5, 4])
    """
    shorter, longer = xp.minimum(first, second), xp.maximum(first, second)
    kept_shorter = xp.where(first + second <= budget, shorter, xp.minimum(shorter, budget // 2))
    kept_longer = xp.minimum(longer, budget - kept_shorter)
    first_is_longer = first > second
    return (
        xp.where(first_is_longer, kept_longer, kept_shorter),
        xp.where(first_is_longer, kept_shorter, kept_longer),
    )


def compute_kept_tokens(
    segments: list[xp.RaggedTensor], specials: int, max_length: int, truncation_side: str
) -> list[tuple[xp.Tensor, xp.Tensor]]:
    """Compute the index of the first token and the number of tokens to keep in each text.

    Args:
        segments: See `pack`.
        specials: Integer. Number of special tokens in each example.
        max_length, truncation_side: See `pack`.

    Returns:
        List with a tuple of two int32 tensors (B,) for each item in `segments`.

    Example:
        >>> import tensorflow as tf
        >>> texts = tf.ragged.constant([[5, 6, 7], [8]])
        >>> [(begin, count)] = compute_kept_tokens([texts], 2, max_length=4, truncation_side="left")
        >>> begin.numpy().tolist(), count.numpy().tolist()
        ([1, 0], [2, 1])
    """
    lengths = [xp.cast(s.row_lengths(), xp.int32) for s in segments]
    if len(segments) == 1:
        counts = [xp.minimum(lengths[0], max_length - specials)]
    else:
        counts = truncate_lengths(*lengths, budget=max_length - specials)
    return [
        (compute_first_kept(length, count, truncation_side), count)
        for length, count in zip(lengths, counts, strict=True)
    ]


def compute_first_kept(length: xp.Tensor, count: xp.Tensor, truncation_side: str) -> xp.Tensor:
    """Return the index of the first token to keep if `count` tokens of each text are kept."""
    return length - count if truncation_side == "left" else xp.zeros_like(count)


def truncate_tokens(tokens: xp.RaggedTensor, most: int, truncation_side: str) -> xp.RaggedTensor:
    """Truncate ragged tokens (B, None) to a maximum number of tokens per text.

    Example:
        >>> import tensorflow as tf
        >>> truncate_tokens(tf.ragged.constant([[5, 6, 7], [8]]), 2, "left").to_list()
        [[6, 7], [8]]
    """
    return tokens[:, -most:] if truncation_side == "left" and most else tokens[:, :most]


def pack(
    segments: list[xp.RaggedTensor],
    template: Template,
    max_length: int,
    truncation_side: str = "right",
) -> tuple[xp.RaggedTensor, xp.Tensor]:
    """Join the tokens of texts or pairs, and add special tokens.

    An example is "[CLS] text [SEP]" or "[CLS] first [SEP] second [SEP]" for BERT. RoBERTa uses two
    end tokens between the texts of a pair.

    Args:
        segments: List with one or two ragged int32 tensors of shape (B, None).
        template: `Template` with the ids of the special tokens.
        max_length: Integer. Maximum number of tokens per example. The longer text is truncated
            first.
        truncation_side: "right" or "left". Where to remove tokens from a text that is too long.
            Defaults to "right".

    Returns:
        Tuple of the token ids, a ragged int32 tensor of shape (B, None), and the number of tokens
        in segment 0, a tensor of shape (B,).

    Source: Devlin et al. 2019, BERT, figure 2. Liu et al. 2019, RoBERTa, section 2.1.

    Example:
        >>> import tensorflow as tf
        >>> from encoder_zoo.encoders.tokenizers.files.special_tokens import make_template
        >>> texts = [tf.ragged.constant([[5, 6]]), tf.ragged.constant([[7]])]
        >>> ids, first = pack(texts, make_template(2, 3, uses_segments=True), max_length=10)
        >>> ids.to_list(), first.numpy().tolist()
        ([[2, 5, 6, 3, 7, 3]], [4])
    """
    is_pair = len(segments) == 2
    specials, first_column = template.count(is_pair), template.first_column
    begun, kept = zip(
        *compute_kept_tokens(segments, specials, max_length, truncation_side), strict=True
    )
    splits = xp.concat([[0], xp.cumsum(sum(kept) + specials)], 0)
    begins, last = splits[:-1], template.after if is_pair else template.alone
    places = [(begins, template.before), (splits[1:] - len(last), last)]
    begins = [begins + first_column]
    if is_pair:
        ends = begins[0] + kept[0]
        places.append((ends, template.between))
        begins.append(ends + template.pair_separators)
    # Most special tokens are equal, so they are written first. The last index is for tokens that
    # are truncated.
    usual = (*last, *template.before)[0]
    ids = xp.fill([splits[-1] + 1], usual)
    for place, tokens in places:
        for i, token in enumerate(tokens):
            if token != usual:
                at = (place + i)[:, None]
                ids = xp.tensor_scatter_nd_update(ids, at, xp.fill(xp.shape(place), token))
    for text in zip(segments, begins, begun, kept, strict=True):
        ids = write_tokens(ids, *text)
    examples = xp.RaggedTensor.from_row_splits(ids[:-1], xp.cast(splits, xp.int64), validate=False)
    return examples, kept[0] + template.count_first_segment_tokens(is_pair)


def compute_segments(
    columns: xp.Tensor, first_length: xp.Tensor, length: xp.Tensor, first_column: int = 1
) -> xp.Tensor:
    """Return the segments of tokens: 0 (first text), 1 (second text), 2 (start token at the end).

    Args:
        columns: Integer tensor. Positions of tokens in the examples.
        first_length: Integer tensor. Number of tokens in segment 0.
        length: Integer tensor. Number of tokens per example. All tensors are broadcast.
        first_column: See `Tokenizer`. Defaults to 1.

    Example:
        >>> import tensorflow as tf
        >>> compute_segments(tf.range(6), 2, 5).numpy().tolist()
        [0, 0, 1, 1, 1, 0]
        >>> compute_segments(tf.range(6), 2, 5, first_column=0).numpy().tolist()
        [0, 0, 1, 1, 2, 0]
    """
    second = xp.cast((columns >= first_length) & (columns < length), xp.int32)
    return second if first_column else xp.where(columns == length - 1, 2, second)


def write_tokens(
    ids: xp.Tensor, tokens: xp.RaggedTensor, begins: xp.Tensor, begun: xp.Tensor, kept: xp.Tensor
) -> xp.Tensor:
    """Copy `kept[i]` tokens from text i, starting at `begun[i]`, to `ids` at `begins[i]`.

    All other tokens are written to the last index of `ids`.

    Example:
        >>> import tensorflow as tf
        >>> tokens = tf.ragged.constant([[1, 2, 3], [4]])
        >>> begins, begun, kept = tf.constant([0, 3]), tf.constant([0, 0]), tf.constant([2, 1])
        >>> ids = write_tokens(tf.zeros([6], tf.int32), tokens, begins, begun, kept)
        >>> ids[:-1].numpy().tolist()
        [1, 2, 0, 4, 0]
    """
    from encoder_zoo.encoders.tokenizers.text.ragged import compute_row_ids

    row = compute_row_ids(tokens.row_splits, xp.size(tokens.values))  # (T,)
    moved = begins - begun - xp.cast(tokens.row_splits[:-1], xp.int32)
    indices = xp.range(xp.size(row)) + xp.gather(moved, row)
    inside = indices < xp.gather(begins + kept, row)
    inside &= indices >= xp.gather(begins, row)
    indices = xp.where(inside, indices, xp.size(ids) - 1)
    return xp.tensor_scatter_nd_update(ids, indices[:, None], tokens.values)


def pad(
    token_ids: xp.RaggedTensor, pad_id: int, length: xp.Tensor | int | None
) -> dict[str, xp.Tensor]:
    """Pad examples to the same length, and create the padding mask.

    Args:
        token_ids: Ragged int32 tensor of shape (B, None).
        pad_id: Integer. Padding token id.
        length: Optional integer. Length L after padding. If None, the length of the longest example
            is used.

    Returns:
        `{"token_ids": (B, L) int32, "padding_mask": (B, L) bool}`.

    Example:
        >>> import tensorflow as tf
        >>> pad(tf.ragged.constant([[5, 6], [7]]), 0, None)["token_ids"].numpy().tolist()
        [[5, 6], [7, 0]]
    """
    shape = (None, length)
    if xp.is_tensor(length):
        shape = xp.stack([token_ids.nrows(), xp.cast(length, xp.int64)])
    dense = token_ids.to_tensor(pad_id, shape=shape)
    mask = xp.sequence_mask(token_ids.row_lengths(), xp.shape(dense)[1])
    if isinstance(length, int):
        mask = xp.ensure_shape(mask, (None, length))
    return {"token_ids": dense, "padding_mask": mask}


def join_texts(examples: dict, first_column: int = 1) -> dict:
    """Join the examples of each sequence into one packed sequence.

    Args:
        examples: Dict. Encoded texts, grouped by sequence, with "token_ids", ragged (B, None,
            None). Additional values are ragged (B, None).
        first_column: See `Tokenizer`. Defaults to 1.

    Returns:
        Dict with "token_ids", "segment_ids" and additional values per token, ragged (B, None), and
        "text_starts", ragged (B, None) int32, the position of the first token of each text.

    Example:
        >>> import tensorflow as tf
        >>> examples = join_texts({"token_ids": tf.ragged.constant([[[2, 5, 3], [2, 6, 3]]]),
        ...                    "first_length": tf.ragged.constant([[3, 3]])})
        >>> examples["token_ids"].to_list(), examples["text_starts"].to_list()
        ([[2, 5, 3, 2, 6, 3]], [[0, 3]])
    """
    token_ids = examples["token_ids"]
    texts = token_ids.values  # (T, None)
    joined = token_ids.merge_dims(1, 2)  # (B, None)
    text = texts.value_rowids()  # for every token

    def compute_by_token(values):
        if values.ragged_rank == token_ids.ragged_rank:
            return values.merge_dims(1, 2)
        return joined.with_values(xp.gather(values.flat_values, text))

    result = {name: compute_by_token(values) for name, values in examples.items()}
    lengths = texts.row_lengths()
    first_length = xp.cast(result.pop("first_length").flat_values, xp.int64)
    of_text = (xp.ragged.range(lengths).flat_values, first_length, xp.gather(lengths, text))
    result["segment_ids"] = joined.with_values(compute_segments(*of_text, first_column))
    starts = texts.row_starts() - xp.gather(joined.row_starts(), token_ids.value_rowids())
    result["text_starts"] = token_ids.with_values(xp.cast(starts, xp.int32))
    return result
