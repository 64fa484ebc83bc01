"""EuroBERT's tokenizer, which is Llama 3's: byte-level BPE of words that another pattern finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import keras
import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.byte_bpe import ByteBPEGraph, RobertaTokenizer
from encoder_zoo.encoders.tokenizers.files.merges import alphabet_bytes
from encoder_zoo.encoders.tokenizers.segmentation.llama_words import llama_word_starts
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.word_table import MAX_SYMBOLS
from encoder_zoo.encoders.tokenizers.text.characters import Characters
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import row_ids, span_indices

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
    from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph


class LlamaBPEGraph(ByteBPEGraph):
    """The graph of a `EuroBertTokenizer`: its words, and tokens that no merges make."""

    def __init__(self, tokenizer: RobertaTokenizer):
        super().__init__(tokenizer)
        self._long = self._long_tokens(tokenizer.vocabulary)

    def _word_starts(self, chars: Characters) -> tf.Tensor:
        return llama_word_starts(chars.codes, self._kinds(chars.codes), chars.row_starts())

    def _are_whole(self, words: PackedWords, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(ids), bool)

    def _long_tokens(self, vocabulary: dict[str, int]) -> tf.lookup.StaticHashTable | None:
        """Return {bytes: id} of the tokens too long for the table that no merges make."""
        byte_of = alphabet_bytes()
        long = {
            bytes(map(byte_of.get, token)): token_id
            for token, token_id in vocabulary.items()
            if len(token) > MAX_SYMBOLS and all(c in byte_of for c in token)
        }
        if not long:
            return None
        words, ids = PackedWords.from_symbols(list(long)), np.array(list(long.values()))
        left = ~are_single_tokens(self._model.encode, words, ids)
        if not left.any():
            return None
        texts = [text for text, is_left in zip(long, left, strict=True) if is_left]
        pairs = tf.lookup.KeyValueTensorInitializer(texts, tf.constant(ids[left], tf.int32))
        return tf.lookup.StaticHashTable(pairs, default_value=-1)

    def _encode_words(self, symbols, starts, ends) -> WordTokens:
        tokens = super()._encode_words(symbols, starts, ends)
        if self._long is None:
            return tokens
        long = tf.where(ends - starts > MAX_SYMBOLS)
        words = tf.gather(starts, long[:, 0]), tf.gather(ends, long[:, 0])
        indices, _, splits = span_indices(*words)
        characters = tf.gather(BYTES, tf.minimum(tf.gather(symbols, indices), 255))
        texts = tf.RaggedTensor.from_row_splits(characters, splits, validate=False)
        found = self._long.lookup(tf.strings.reduce_join(texts, axis=1))
        ids = tf.tensor_scatter_nd_update(tf.fill(tf.shape(starts), -1), long, found)
        return _replace_whole(tokens, ids)


BYTES = [bytes([byte]) for byte in range(256)]


def _replace_whole(tokens: WordTokens, ids: tf.Tensor) -> WordTokens:
    """Return tokens of words, of which those with an id of their own, (W,) or -1, have that one."""
    whole = tf.gather(ids, row_ids(tokens.splits, tf.size(tokens.ids)))  # (T,)
    kept = (whole < 0) | (tokens.starts == 0)
    kept_before = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int32))], 0)
    found = tf.where(whole < 0, tokens.ids, whole)
    return WordTokens(
        tf.boolean_mask(found, kept),
        tf.boolean_mask(tokens.starts, kept),
        tf.gather(kept_before, tokens.splits),
    )


PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}

# Puts a space before what does not begin with one.
SPACE_BEFORE = {
    "type": "Metaspace",
    "replacement": " ",
    "prepend_scheme": "always",
    "split": False,
}


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EuroBertTokenizer(RobertaTokenizer):
    """Tokenizes texts by byte-level BPE as Llama 3 does, as EuroBERT checkpoints were trained.

    Words are found by another pattern than RoBERTa's: numbers have at most three digits. A word
    that is a token is that token, whatever the merges make of it. The end token pads. Spans keep
    the spaces of their tokens. The arguments are those of `RobertaTokenizer`.

    Source: Boizard et al. 2025, EuroBERT, section 2.1; Dubey et al. 2024, The Llama 3 Herd of
        Models, section 3.2.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.files.merges import byte_alphabet
        >>> tokens = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", *byte_alphabet(), "12"]
        >>> vocabulary = {token: i for i, token in enumerate(tokens)}
        >>> tokenizer = EuroBertTokenizer(vocabulary, ["1 2"])
        >>> [tokenizer.id_to_token(i) for i in tokenizer.tokenize("3451212")]
        ['3', '4', '5', '12', '1', '2']
    """

    trims_spans = False
    defaults: ClassVar = {
        "start_token": "<|begin_of_text|>",
        "end_token": "<|end_of_text|>",
        "pad_token": "<|end_of_text|>",
        "mask_token": "<|mask|>",
        "unknown_token": "<|end_of_text|>",
        "pair_separators": 1,
    }

    def _make_graph(self) -> TokenizerGraph:
        return LlamaBPEGraph(self)

    @classmethod
    def _from_files(cls, files: TokenizerFiles, **template) -> EuroBertTokenizer:
        # The library would put a space before every word, not only before the first.
        if any(step.get("add_prefix_space") for step in files.steps("pre_tokenizer")):
            raise files.mismatch("pre_tokenizer has add_prefix_space", "none")
        return super()._from_files(files, **template)

    def _vocabulary_files(self) -> dict[str, str]:
        return {}

    def _settings(self) -> dict:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "attention_mask"],
        }

    def _steps(self) -> dict:
        steps = super()._steps()
        byte_level = {**steps["pre_tokenizer"], "use_regex": False}
        return {
            **steps,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, byte_level]},
            "model": {**steps["model"], "ignore_merges": True},
        }

    def _library_steps(self, as_words: bool = False) -> dict:
        steps = super()._library_steps()
        if as_words:
            steps["pre_tokenizer"]["pretokenizers"] = [
                SPACE_BEFORE,
                *steps["pre_tokenizer"]["pretokenizers"],
            ]
        return steps
