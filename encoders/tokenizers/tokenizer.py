"""What all tokenizers share: checked input, special tokens, offsets, words."""

from __future__ import annotations

import functools
import inspect
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.common.forks import refuse_in_fork
from encoder_zoo.common.lazy import loading
from encoder_zoo.common.validation import NonNegativeInt, validate_arguments
from encoder_zoo.common.wording import with_type
from encoder_zoo.encoders.tokenizers.segmentation.added_tokens import (
    TokenFinder,
    around,
    described,
    with_tokens,
)
from encoder_zoo.encoders.tokenizers.text.characters import (
    Characters,
    SpecialTokenFinder,
    characters,
    row_numbers,
)
from encoder_zoo.encoders.tokenizers.text.chunks import in_chunks
from encoder_zoo.encoders.tokenizers.text.text_input import as_text_tensor, without_rest
from encoder_zoo.encoders.tokenizers.vocabulary import Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Self


def _call(method: weakref.WeakMethod, *args):
    return method()(*args)


def _own_graph(method: Callable, signature: Sequence[tf.TypeSpec] | None = None) -> Callable:
    """A method as a graph that is this object's alone.

    TensorFlow warns of a function that is traced again and again, and takes methods of many objects
    for one function, but not a partial function. The object holds the graph, and the graph only a
    weak reference to the object, so that its tables are freed as soon as it is no longer used.
    """
    partial = functools.partial(_call, weakref.WeakMethod(method))
    return tf.function(
        partial, input_signature=signature, autograph=False, reduce_retracing=signature is None
    )


class Tokens(NamedTuple):
    """Tokens of a batch, in order: int32 (T,) each.

    Attributes:
        ids: token ids.
        starts, ends: spans of the original characters, counted over the batch.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    row_splits: tf.Tensor


class Tokenizer(tf.Module):
    """Text to token ids, with the place of every token in the text, and back.

    It works on eager strings, inside `tf.function` and `tf.data`, and in a SavedModel, with
    TensorFlow's core operations only. A subclass gives `_tokens(characters)` and `detokenize`,
    calls `_make_finders` at the end of its `__init__`, and keeps its arguments under their own
    names.

    Attributes:
        start_token_id, end_token_id, pad_token_id, mask_token_id, unknown_token_id: int.
        pair_separators: how many end tokens stand between the two texts of a pair.
        uses_segments: whether the second text of a pair has segment id 1.
    """

    mask_takes_space_before: bool  # "a [MASK]": does the mask swallow the space?

    @validate_arguments
    def __init__(
        self,
        tokens: Sequence[str],
        special_tokens: Sequence[str],
        in_text: bool,
        added_tokens: Sequence[str | Mapping] = (),
    ):
        refuse_in_fork()
        super().__init__()
        self._vocabulary = Vocabulary(tokens)  # of the model, without what was added
        added = described(added_tokens, self._vocabulary.ids)
        self._added_json = json.dumps(added)  # tf.Module would wrap a list
        self._all_tokens = Vocabulary(with_tokens(tokens, added)) if added else self._vocabulary
        self.special_tokens_in_text = in_text
        self.start_token, self.end_token, self.pad_token = special_tokens[:3]
        self.mask_token, self.unknown_token = special_tokens[3:]
        self.start_token_id, self.end_token_id, self.pad_token_id = map(
            self._vocabulary.id, special_tokens[:3]
        )
        self.mask_token_id, self.unknown_token_id = map(self._vocabulary.id, special_tokens[3:])
        takes_space = self.mask_token if self.mask_takes_space_before else None
        self._find_special = SpecialTokenFinder(special_tokens, takes_space) if in_text else None
        texts = tf.TensorSpec([None], tf.string)
        self._ragged_ids = _own_graph(self._ids_of_texts, [texts])
        self._ragged = _own_graph(self._tokens_of_texts, [texts])
        self._ragged_words = _own_graph(
            self._ids_of_words, [tf.RaggedTensorSpec([None, None], tf.string)]
        )
        self._spelled = _own_graph(self._texts_of_ids)

    def _make_finders(self) -> None:
        """Prepares finding the added tokens; a subclass calls it when all else is there."""
        raw = [token for token in self.added_tokens if not token["normalized"]]
        normalized = [token for token in self.added_tokens if token["normalized"]]
        self._find_raw = self._finder(raw, [[ord(c) for c in t["content"]] for t in raw])
        self._find_normalized = None
        if normalized:
            chars = self._normalized(characters(tf.constant([t["content"] for t in normalized])))
            contents = tf.RaggedTensor.from_row_splits(self._code_points(chars), chars.row_splits)
            self._find_normalized = self._finder(normalized, contents.to_list())

    def _finder(self, tokens: list[dict], contents: list[list[int]]) -> TokenFinder | None:
        found = [pair for pair in zip(tokens, contents, strict=True) if pair[1]]
        return TokenFinder(*zip(*found, strict=True), **self._span_options()) if found else None

    def _span_options(self) -> dict[str, bool]:
        """What `TokenFinder` is told of spans."""
        return {}

    @property
    def added_tokens(self) -> list[dict]:
        """What was added to the vocabulary, in the words of tokenizer.json."""
        return json.loads(self._added_json)

    @property
    def special_token_ids(self) -> tuple[int, ...]:
        """Ids that stand for no text: start, end, padding, mask and unknown; then added ones."""
        ids = (self.start_token_id, self.end_token_id, self.pad_token_id)
        added = (token["id"] for token in self.added_tokens if token["special"])
        return (*ids, self.mask_token_id, self.unknown_token_id, *added)

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return len(self._all_tokens.tokens)

    def get_vocabulary(self) -> list[str]:
        """All tokens, in the order of their ids."""
        return list(self._all_tokens.tokens)

    def token_to_id(self, token: str) -> int:
        """The id of a token."""
        return self._all_tokens.id(token)

    def id_to_token(self, token_id: int) -> str:
        """The token of an id."""
        return self._all_tokens.token(int(token_id))

    def __call__(self, texts: object) -> tf.RaggedTensor:
        """As `tokenize`."""
        return self.tokenize(texts)

    @validate_arguments
    def tokenize(self, texts: object, first: NonNegativeInt | None = None) -> tf.RaggedTensor:
        """Token ids of texts, without any special token added.

        Args:
            texts: a string, or a list, array, pandas column or tensor (B,) of strings.
            first: how many tokens of each text are wanted; of those behind them some or all may be
                left out, which saves time on long texts. None: all.

        Returns:
            RaggedTensor int32 (B, None); for a single string a tensor (length,).

        Raises:
            ValueError: "texts[1] is None (NoneType); expected a string ..."
        """
        texts = as_text_tensor(texts)
        whole = first is None or not self._words_stand_alone

        def function(rows: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
            return (self._ragged_ids(rows if whole else without_rest(rows, first)),)

        [ids] = in_chunks(function, tf.reshape(texts, [-1]))
        return ids[0] if texts.shape.rank == 0 else ids

    def tokenize_with_offsets(
        self, texts: object
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Token ids, and the span of each token in the caller's own text.

        Args:
            texts: as for `tokenize`.

        Returns:
            ids, starts, ends: three results like that of `tokenize`. A token is
            `text[start:end]`: spans count characters, as Python does, from 0, and `end` is the
            first behind the token. A byte of a character has the span of that character.
        """
        texts = as_text_tensor(texts)
        parts = in_chunks(self._ragged, tf.reshape(texts, [-1]))
        return tuple(part[0] for part in parts) if texts.shape.rank == 0 else parts

    @property
    def _words_stand_alone(self) -> bool:
        """Whether no token is of more than one word, as special and added ones may be."""
        return not (self.special_tokens_in_text or self.added_tokens)

    def _ids_of_texts(self, texts: tf.Tensor) -> tf.RaggedTensor:
        with tf.device("CPU"):
            return self._ids(texts, as_words=False)

    def _ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        """The ids that `_encode` gives; a tokenizer that has a shorter way to them overrides it."""
        return self._encode(texts, as_words)[0]

    def _tokens_of_texts(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        return self._encode(texts, as_words=False)

    def _encode(self, texts: tf.Tensor, as_words: bool) -> tuple[tf.RaggedTensor, ...]:
        """Ids, starts and ends of texts (B,), or of words that each follow a space."""
        with tf.device("CPU"):  # integer work on strings: a GPU would only wait for copies
            chars = self._characters(texts)
            tokens = self._trimmed(self._with_added(chars, as_words))
            splits = tf.cast(tokens.row_splits, tf.int64)
            ids = tf.RaggedTensor.from_row_splits(tokens.ids, splits, validate=False)
            row = row_numbers(tokens.row_splits, tf.size(tokens.ids))
            row_start = tf.gather(chars.original_splits, row)
            return (
                ids,
                ids.with_values(tokens.starts - row_start),
                ids.with_values(tokens.ends - row_start),
            )

    def _characters(self, texts: tf.Tensor) -> Characters:
        chars = characters(texts)
        return self._find_special(chars) if self.special_tokens_in_text else chars

    def _with_added(self, chars: Characters, as_words: bool) -> Tokens:
        """The tokens of texts: those added to the vocabulary, and around them the model's."""

        def model_tokens(pieces: Characters) -> Tokens:
            return self._tokens(self._prepared(pieces, as_words))

        def of_normalized(pieces: Characters) -> Tokens:
            pieces = self._normalized(pieces)
            return around(self._find_normalized, model_tokens)(pieces, self._code_points(pieces))

        return around(self._find_raw, of_normalized)(chars)

    def _normalized(self, chars: Characters) -> Characters:
        """The characters as the model sees them."""
        return chars

    def _code_points(self, chars: Characters) -> tf.Tensor:
        """int32 (N,), the code points of normalised characters."""
        return chars.codes

    def _prepared(self, chars: Characters, as_words: bool) -> Characters:
        """What `_tokens` takes, of normalised pieces of text."""
        return chars

    def _tokens(self, chars: Characters) -> Tokens:
        """The tokens of the model, of as many texts as there are rows."""
        raise NotImplementedError

    def _trimmed(self, tokens: Tokens) -> Tokens:
        """The tokens with the spans that this tokenizer gives."""
        return tokens

    def tokenize_words(self, words: object) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Token ids of texts that are split into words already, and the word of every token.

        Args:
            words: lists of strings, one list per text, or a RaggedTensor of strings (B, None).

        Returns:
            ids and word numbers: RaggedTensors int32 (B, None). A word without any token, such as
            an empty one, has no place among them.

        Raises:
            ValueError: "words[0] is 'ab' (str); expected a list of words"
        """
        if not isinstance(words, tf.RaggedTensor):
            for i, row in enumerate(words):
                if isinstance(row, str | bytes) or np.ndim(row) == 0:
                    raise ValueError(f"words[{i}] is {with_type(row)}; expected a list of words")
            flat = [as_text_tensor(row, f"words[{i}]") for i, row in enumerate(words)]
            lengths = [len(row) for row in words]
            values = tf.concat(flat, 0) if flat else tf.constant([], tf.string)
            words = tf.RaggedTensor.from_row_lengths(values, tf.constant(lengths, tf.int64))
        return in_chunks(self._ragged_words, words)

    def _ids_of_words(self, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        with tf.device("CPU"):
            ids = self._ids(words.values, as_words=True)  # (words, None)
            per_text = words.with_values(ids)
            within = tf.range(tf.size(words.values)) - tf.gather(
                tf.cast(words.row_splits, tf.int32), tf.cast(words.value_rowids(), tf.int32)
            )
            merged = per_text.merge_dims(1, 2)
            return merged, merged.with_values(tf.gather(within, ids.value_rowids()))

    def ends_word(self, token: str) -> bool:
        """Tells whether the token behind this piece begins a word, whatever it is."""
        return False

    def _joined(self, ids: object, spelling: tf.Tensor, skip_special_tokens: bool) -> tf.Tensor:
        """Strings (B,) of the tokens' spellings, one after the other."""
        if isinstance(ids, list | tuple):
            single = all(np.ndim(token_id) == 0 for token_id in ids)
        else:
            single = isinstance(ids, tf.Tensor | np.ndarray) and ids.ndim == 1
        rows = ids if isinstance(ids, tf.Tensor | tf.RaggedTensor) else tf.ragged.constant(ids)
        rows = tf.cast(tf.RaggedTensor.from_tensor(rows[None]) if single else rows, tf.int32)
        if not isinstance(rows, tf.RaggedTensor):
            rows = tf.RaggedTensor.from_tensor(rows)
        texts = self._spelled(rows, spelling, skip_special_tokens)
        return texts[0] if single else texts

    def _texts_of_ids(
        self, rows: tf.RaggedTensor, spelling: tf.Tensor, skip_special_tokens: bool
    ) -> tf.Tensor:
        if skip_special_tokens:
            special = tf.reduce_any(rows.values[:, None] == self.special_token_ids, 1)
            rows = tf.ragged.boolean_mask(rows, rows.with_values(~special))
        return tf.strings.reduce_join(rows.with_values(tf.gather(spelling, rows.values)), axis=1)

    def __repr__(self) -> str:
        parameters = inspect.signature(type(self).__init__).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        settings = [
            f"{name}={value!r}"
            for name, value in self.get_config().items()
            if defaults[name] not in (inspect.Parameter.empty, value) and (value or defaults[name])
        ]
        parts = [f"{self.vocabulary_size:,} tokens", *settings]
        return f"{type(self).__name__}({', '.join(parts)})"

    def get_config(self) -> dict:
        """The arguments that build this tokenizer again; they can be written as JSON."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_preset(cls, source: str | Path, **options) -> Self:
        """Opens the tokenizer of a preset, of whichever kind its files describe.

        It needs no weights and no config.json: a folder of tokenizer files alone will do, and of
        the hub's repositories no more is downloaded.

        Args:
            source: a bundled or registered name, a folder, or an address.
            **options: `added_tokens`, to add to those of the preset; and how much to check, see
                `presets.opening.Safeguards`.

        Raises:
            ValueError: "SOURCE holds a RobertaTokenizer. Received: BertTokenizer.from_preset."

        Example:
            >>> import encoder_zoo as ez
            >>> tokenizer = ez.BertTokenizer.from_preset("bert_nano_en_uncased")
            >>> tokenizer.id_to_token(tokenizer.start_token_id)
            '[CLS]'
        """
        return loading.load_tokenizer(cls, source, **options)

    def __reduce__(self) -> tuple:
        """How it is pickled and copied: by its arguments, since TensorFlow's tables cannot be."""
        return type(self).from_config, (self.get_config(),)

    @classmethod
    def from_config(cls, config: dict) -> Self:
        """Builds a tokenizer from `get_config`, which never names a file to be read.

        Raises:
            ValueError: "vocabulary is '/etc/passwd'. Expected the tokens, not a path ..."
        """
        for name in ("vocabulary", "merges"):
            if isinstance(config.get(name), str | Path):
                raise ValueError(
                    f"{name} is {with_type(config[name])}. Expected the tokens, not a path: a file "
                    "that holds a tokenizer must not say what else is read."
                )
        return cls(**config)
