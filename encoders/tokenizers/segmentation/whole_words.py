"""Words that are tokens as they stand, looked up as strings: most of those in common text."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import laid_out
from encoder_zoo.encoders.tokenizers.text.hash_table import HashTable

ALONE_IN_ASCII = r"([!-/:-@\[-`{-~])"  # each of these is a word of its own
DROPPED_IN_ASCII = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"  # two of these split TensorFlow's words


class WholeWords(tf.Module):
    """Ids of texts, from a table of whole words where possible.

    TensorFlow's string kernels split texts at the spaces and the punctuation of ASCII. What stands
    between is normalised and split for itself in any case, so that a part found in the table needs
    neither, and the others take the caller's slow path one by one.

    Args:
        words: {word: id} of all words that normalisation leaves as they are, and which are a token.
        lowercase: whether letters are lower-cased first.

    Example:
        >>> words = WholeWords({"cats": 7, "!": 8}, lowercase=True)
        >>> slow = lambda parts: tf.RaggedTensor.from_row_lengths([1, 2], [2])
        >>> words.ids(tf.constant(["Cats!!", "cats, cats"]), slow).to_list()
        [[7, 8, 8], [7, 1, 2, 7]]
    """

    def __init__(self, words: Mapping[str, int], lowercase: bool):
        super().__init__()
        self._lowercase = lowercase
        # TensorFlow refuses an empty table; a space is no word.
        keys, ids = tf.constant([" ", *words]), tf.constant([-1, *words.values()], tf.int32)
        self._table = HashTable(keys, ids, default_value=-1)

    def ids(
        self, texts: tf.Tensor, slow: Callable[[tf.Tensor], tf.RaggedTensor]
    ) -> tf.RaggedTensor:
        """Ids (B, None) of texts (B,).

        Args:
            texts: strings.
            slow: gives the ids (P, None) of parts (P,) that are not in the table, no two alike.
        """
        parts, splits = self._parts(texts)
        ids = self._table.lookup(parts)
        ids, splits = tf.cond(
            tf.reduce_all(ids >= 0),
            lambda: (ids, splits),
            lambda: with_pieces(ids, splits, parts, slow),
        )
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)

    def _parts(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """What stands between spaces and punctuation of ASCII, and the latter: (P,), (B + 1,)."""
        texts = tf.strings.regex_replace(texts, DROPPED_IN_ASCII, "")
        texts = tf.strings.lower(texts) if self._lowercase else texts  # ASCII alone
        texts = tf.strings.regex_replace(texts, ALONE_IN_ASCII, r" \1 ")
        places, parts, shape = tf.raw_ops.StringSplitV2(input=texts, sep="")
        return parts, tf.searchsorted(places[:, 0], tf.range(shape[0] + 1), out_type=tf.int64)


def with_pieces(
    ids: tf.Tensor, splits: tf.Tensor, parts: tf.Tensor, slow: Callable
) -> tuple[tf.Tensor, tf.Tensor]:
    """Puts what `slow` gives in the place of negative ids (P,); and the splits that then hold."""
    missed = tf.cast(tf.where(ids < 0)[:, 0], tf.int32)
    chosen, alike = tf.unique(tf.gather(parts, missed))
    pieces = slow(chosen)
    # a part's tokens: itself, or a stretch of the pieces, which stand behind all parts
    num = tf.size(ids)
    piece_splits = tf.cast(pieces.row_splits, tf.int32) + num
    first = tf.gather(piece_splits, alike)
    last = tf.gather(piece_splits, alike + 1)
    first = tf.tensor_scatter_nd_update(tf.range(num), missed[:, None], first)
    last = tf.tensor_scatter_nd_update(tf.range(1, num + 1), missed[:, None], last)
    places, _, part_splits = laid_out(first, last)
    ids = tf.gather(tf.concat([ids, pieces.values], 0), places)
    return ids, tf.cast(tf.gather(part_splits, splits), tf.int64)
