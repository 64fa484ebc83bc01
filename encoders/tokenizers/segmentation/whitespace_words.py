"""A table of words between white space that are one token, for SentencePiece tokenizers."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.whole_words import WholeWordLookup
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.unicode_tables import members

SPLITTING = " \t\n\x0b\x0c\r"  # where tf.strings.split splits
QUOTE_PAIRS = ("``", "''")  # which ALBERT replaces by a quotation mark


class WhitespaceWordLookup(WholeWordLookup):
    """Maps texts to ids by a table of words between ASCII white space.

    Normalization rarely crosses white space, as with a combining mark after a space; if a batch has
    such a text, all its texts take the slow path.

    Args:
        words: {word: id} of words that are one token.
        rules: of the normalizer, see `read_charsmap`.
        mapping: {code point: code points}, applied before the rules.
        lowercase: whether texts are lower-cased first.

    Example:
        >>> words = WhitespaceWordLookup({"cat": 7, "½": 8}, {"½": "1/2"}, {}, lowercase=False)
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
        kept = unchanged_words([word for word in words if word], rules, mapping)
        super().__init__({word: words[word] for word in kept}, lowercase)
        self._joining = joining_pattern(rules, mapping)

    def _parts(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Split texts at white space, or not at all: parts (P,) and row splits (B + 1,)."""
        texts = tf.strings.lower(texts) if self._lowercase else texts  # only ASCII

        def whole() -> tuple[tf.Tensor, tf.Tensor]:
            return texts, tf.range(tf.size(texts, tf.int64) + 1)

        def split() -> tuple[tf.Tensor, tf.Tensor]:
            positions, parts, shape = tf.raw_ops.StringSplitV2(input=texts, sep="")
            rows = tf.range(shape[0] + 1)
            return parts, tf.searchsorted(positions[:, 0], rows, out_type=tf.int64)

        joins = tf.strings.regex_full_match(texts, self._joining)
        return tf.cond(tf.reduce_any(joins), whole, split)


def unchanged_words(
    words: Sequence[str], rules: Mapping[str, str], mapping: Mapping[int, Sequence[int]]
) -> list[str]:
    """Return the words (none empty) that normalization does not change and that stay one word.

    Example:
        >>> unchanged_words(["cat", "½", "a▁b", "``"], {"½": "1/2"}, {})
        ['cat']
    """
    changes = members("extends") | members("prepends") | members("ends_grapheme")
    changes |= members("white_space")
    changes[[ord("▁"), *mapping, *(ord(key) for key in rules if len(key) == 1)]] = True
    spellings = PackedWords.from_texts(words)
    changed = np.logical_or.reduceat(changes[spellings.symbols], spellings.starts)
    pairs = [any(pair in word for pair in QUOTE_PAIRS) for word in words]
    return [w for w, c, p in zip(words, changed, pairs, strict=True) if not c and not p]


def joining_pattern(rules: Mapping[str, str], mapping: Mapping[int, Sequence[int]]) -> str:
    """Return a regular expression for texts where normalization crosses white space.

    White space may be in one grapheme with a neighbour, see `PrecompiledNormalizer`, or be
    replaced by something else.
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
    """Return the code points where `belongs` is true as a class of a regular expression.

    Example:
        >>> character_class(np.isin(np.arange(300), [97, 98, 99, 256]))
        '[\\\\x{61}-\\\\x{63}\\\\x{100}-\\\\x{100}]'
    """
    edges = np.flatnonzero(np.diff(belongs, prepend=False, append=False)).reshape(-1, 2)
    return "[" + "".join(rf"\x{{{a:X}}}-\x{{{b - 1:X}}}" for a, b in edges) + "]"
