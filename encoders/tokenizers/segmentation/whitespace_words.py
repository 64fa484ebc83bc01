"""Words between spaces that are tokens as they stand, for SentencePiece's tokenizers."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.whole_words import WholeWords
from encoder_zoo.encoders.tokenizers.text.sequences import Spellings
from encoder_zoo.encoders.tokenizers.text.unicode_tables import members

SPLITTING = " \t\n\x0b\x0c\r"  # where TensorFlow's strings are split
PAIRED = ("``", "''")  # which ALBERT takes for a quotation mark


class SpacedWords(WholeWords):
    """Ids of texts, from a table of words that stand between white space of ASCII.

    What stands there is normalised and split for itself, but for rare texts in which a mark follows
    a space, and the like: if there is one in a batch, all its texts take the slow path as they are.

    Args:
        words: {word: id} of words that are one token.
        rules: of the normalisation, see `read_charsmap`.
        mapping: of single characters before it, {code point: code points}.
        lowercase: whether letters are lower-cased first.

    Example:
        >>> words = SpacedWords({"cat": 7, "½": 8}, {"½": "1/2"}, {}, lowercase=False)
        >>> slow = lambda parts: tf.RaggedTensor.from_row_lengths([1, 2], [2])
        >>> words.ids(tf.constant(["cat  cat", "½ cat"]), slow).to_list()
        [[7, 7], [1, 2, 7]]
    """

    def __init__(
        self,
        words: Mapping[str, int],
        rules: Mapping[str, str],
        mapping: Mapping[int, Sequence[int]],
        lowercase: bool,
    ):
        kept = unchanged([word for word in words if word], rules, mapping)
        super().__init__({word: words[word] for word in kept}, lowercase)
        self._joining = joining(rules, mapping)

    def _parts(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """What stands between white space, or the texts themselves: (P,), (B + 1,)."""
        texts = tf.strings.lower(texts) if self._lowercase else texts  # ASCII alone

        def whole() -> tuple[tf.Tensor, tf.Tensor]:
            return texts, tf.range(tf.size(texts, tf.int64) + 1)

        def split() -> tuple[tf.Tensor, tf.Tensor]:
            places, parts, shape = tf.raw_ops.StringSplitV2(input=texts, sep="")
            rows = tf.range(shape[0] + 1)
            return parts, tf.searchsorted(places[:, 0], rows, out_type=tf.int64)

        joins = tf.strings.regex_full_match(texts, self._joining)
        return tf.cond(tf.reduce_any(joins), whole, split)


def unchanged(
    words: Sequence[str], rules: Mapping[str, str], mapping: Mapping[int, Sequence[int]]
) -> list[str]:
    """Those of some words, none of them empty, that are normalised to themselves, and one word.

    Example:
        >>> unchanged(["cat", "½", "a▁b", "``"], {"½": "1/2"}, {})
        ['cat']
    """
    changes = members("extends") | members("prepends") | members("ends_grapheme")
    changes |= members("white_space")
    changes[[ord("▁"), *mapping, *(ord(key) for key in rules if len(key) == 1)]] = True
    spellings = Spellings.of_texts(words)
    changed = np.logical_or.reduceat(changes[spellings.symbols], spellings.starts)
    pairs = [any(pair in word for pair in PAIRED) for word in words]
    return [w for w, c, p in zip(words, changed, pairs, strict=True) if not c and not p]


def joining(rules: Mapping[str, str], mapping: Mapping[int, Sequence[int]]) -> str:
    """A regular expression for texts where white space is more than a border between words.

    That is where it is in one grapheme with what stands next to it, see `PrecompiledNormalizer`, or
    where the normalisation makes something else of it.
    """
    follows, leads = members("extends"), members("prepends")
    behind, ahead = follows.copy(), leads.copy()
    for code, codes in mapping.items():
        behind[code] = not codes or follows[codes[0]]
        ahead[code] = not codes or leads[codes[-1]]
    lost = {
        character
        for key, value in {**dict(zip(SPLITTING, SPLITTING, strict=True)), **rules}.items()
        for character in SPLITTING
        if character in key and not value.isspace()
    }
    parts = [f" {character_class(behind)}", f"{character_class(ahead)} "]
    parts += [rf"\x{{{ord(character):X}}}" for character in sorted(lost)]
    return rf"\C*(?:{'|'.join(parts)})\C*"


def character_class(belongs: np.ndarray) -> str:
    """Code points of which `belongs` is true, as a class of a regular expression.

    Example:
        >>> character_class(np.isin(np.arange(300), [97, 98, 99, 256]))
        '[\\\\x{61}-\\\\x{63}\\\\x{100}-\\\\x{100}]'
    """
    edges = np.flatnonzero(np.diff(belongs, prepend=False, append=False)).reshape(-1, 2)
    return "[" + "".join(rf"\x{{{a:X}}}-\x{{{b - 1:X}}}" for a, b in edges) + "]"
