"""A table of words that are one token, looked up as strings."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.hash_table import HashTable
from encoder_zoo.encoders.tokenizers.text.ragged import replace_by_spans

ALONE_IN_ASCII = r"([!-/:-@\[-`{-~])"  # each is a word of its own
# Removed before the split, since TensorFlow splits at two of them.
DROPPED_IN_ASCII = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"


class WholeWordLookup(tf.Module):
    """Maps texts to ids by a table of whole words where possible.

    TensorFlow's string kernels split texts at ASCII spaces and punctuation. Normalization and
    pre-tokenization never cross these borders, so that a part found in the table needs neither;
    other parts take the caller's slow path.

    Args:
        words: {word: id} of the words that normalization does not change and that are one token.
        lowercase: whether texts are lower-cased first.
        clean_text: whether control characters are removed first.

    Example:
        >>> words = WholeWordLookup({"cats": 7, "!": 8}, lowercase=True)
        >>> slow = lambda parts: tf.RaggedTensor.from_row_lengths([1, 2], [2])
        >>> words.ids(tf.constant(["Cats!!", "cats, cats"]), slow).to_list()
        [[7, 8, 8], [7, 1, 2, 7]]
    """

    def __init__(self, words: Mapping[str, int], lowercase: bool, clean_text: bool = True):
        super().__init__()
        self._clean_text = clean_text
        self._lowercase = lowercase
        # TensorFlow refuses an empty table; a space is never looked up.
        keys, ids = tf.constant([" ", *words]), tf.constant([-1, *words.values()], tf.int32)
        self._table = HashTable(keys, ids, default_value=-1)

    def ids(
        self, texts: tf.Tensor, slow: Callable[[tf.Tensor], tf.RaggedTensor]
    ) -> tf.RaggedTensor:
        """Return the ids (B, None) of texts (B,).

        Args:
            texts: strings.
            slow: returns the ids (P, None) of parts (P,) that are not in the table, without
                duplicates.
        """
        parts, splits = self._parts(texts)
        ids = self._table.lookup(parts)
        ids, splits = tf.cond(
            tf.reduce_all(ids >= 0),
            lambda: (ids, splits),
            lambda: replace_missing(ids, splits, parts, slow),
        )
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)

    def _parts(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Split texts at ASCII spaces and punctuation: parts (P,) and row splits (B + 1,)."""
        if self._clean_text:
            texts = tf.strings.regex_replace(texts, DROPPED_IN_ASCII, "")
        texts = tf.strings.lower(texts) if self._lowercase else texts  # only ASCII
        texts = tf.strings.regex_replace(texts, ALONE_IN_ASCII, r" \1 ")
        positions, parts, shape = tf.raw_ops.StringSplitV2(input=texts, sep="")
        return parts, tf.searchsorted(positions[:, 0], tf.range(shape[0] + 1), out_type=tf.int64)


def replace_missing(
    ids: tf.Tensor, splits: tf.Tensor, parts: tf.Tensor, slow: Callable
) -> tuple[tf.Tensor, tf.Tensor]:
    """Replace negative ids (P,) by the tokens of `slow`; return ids and row splits."""
    missed = tf.cast(tf.where(ids < 0)[:, 0], tf.int32)
    chosen, alike = tf.unique(tf.gather(parts, missed))
    others = slow(chosen)
    positions, _, part_splits = replace_by_spans(tf.size(ids), missed, alike, others.row_splits)
    ids = tf.gather(tf.concat([ids, others.values], 0), positions)
    return ids, tf.cast(tf.gather(part_splits, splits), tf.int64)
