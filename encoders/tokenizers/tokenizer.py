"""Base class for all tokenizers."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Unpack

import numpy as np

from encoder_zoo.common import configuration
from encoder_zoo.common.arguments import TokenizerPresetArguments
from encoder_zoo.common.lazy import LazyModule, check_not_forked, tf, uses_tensorflow, xp
from encoder_zoo.common.validation import (
    NonNegativeInt,
    PositiveInt,
    Rule,
    SequenceLength,
    SpecialToken,
    validate_arguments,
)
from encoder_zoo.common.wording import (
    ForeignName,
    describe_unknown_argument,
    find_close_names,
    invalid,
    suggest_names,
)
from encoder_zoo.encoders.tokenizers import ANY_STEPS, TokenizerClass
from encoder_zoo.encoders.tokenizers.files.reading import SPECIAL_TOKENS, TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.special_tokens import (
    complete_added_tokens,
    make_added_token,
    make_template,
    merge_added_tokens,
    read_template,
)
from encoder_zoo.encoders.tokenizers.files.vocab_txt import read_vocabulary
from encoder_zoo.encoders.tokenizers.library import LibraryTokenizer
from encoder_zoo.encoders.tokenizers.steps import (
    SEQUENCES,
    Model,
    Steps,
    flatten_steps,
    hide_tokens,
)
from encoder_zoo.encoders.tokenizers.text.ragged import map_chunks
from encoder_zoo.encoders.tokenizers.text.text_input import (
    LONE_SURROGATE,
    join_tokens,
    make_text_tensor,
    make_word_tensor,
    truncate_texts,
)
from encoder_zoo.encoders.tokenizers.token_format import TokenFormat

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph

# Imported lazily because these modules import the tokenizers.
loading = LazyModule("encoder_zoo.presets.loading")
saving = LazyModule("encoder_zoo.presets.saving")


class Vocabulary:
    """List of tokens in the order of their ids. For duplicate tokens, the last id is used.

    Example:
        >>> Vocabulary(["[UNK]", "cat"]).get_id("cat")
        1
    """

    def __init__(self, tokens: Sequence[str]):
        self.tokens = list(tokens)
        _check_tokens(self.tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def get_id(self, token: str) -> int:
        """Get the id for a token. If the token is unknown, a ValueError suggests similar tokens."""
        if token in self.ids:
            return self.ids[token]
        near = find_close_names(str(token), self.ids, max_names=3)
        hint = suggest_names(near) or " Expected a token of the vocabulary."
        raise ValueError(f"{token!r} is not in the vocabulary of {len(self.ids)} tokens.{hint}")

    def get_token(self, token_id: int) -> str:
        """Get the token for an id. Raises a ValueError if the id is out of range."""
        if not 0 <= token_id < len(self.tokens):
            raise invalid("token_id", token_id, f"0 to {len(self.tokens) - 1}")
        return self.tokens[token_id]


def _check_tokens(tokens: Sequence[str]) -> None:
    """Raise a ValueError for tokens that are not strings or cannot be encoded as UTF-8."""
    try:
        "".join(tokens).encode("utf-8")
    except TypeError:
        i = next(i for i, token in enumerate(tokens) if not isinstance(token, str))
        raise invalid(f"vocabulary[{i}]", tokens[i], "a string") from None
    except UnicodeEncodeError:
        i = next(i for i, token in enumerate(tokens) if LONE_SURROGATE.search(token))
        raise invalid(f"vocabulary[{i}]", tokens[i], "characters that UTF-8 can encode") from None


def check_no_overlap(tokens: Sequence[str]) -> None:
    """Raise a ValueError if two special tokens can overlap in a text."""
    for a in tokens:
        for b in tokens:
            tails = [a[i:] for i in range(1, len(a))] if a != b else []
            if any(tail.startswith(b) or b.startswith(tail) for tail in tails):
                raise ValueError(
                    f"The special tokens {a!r} and {b!r} overlap, so their positions in texts are "
                    "ambiguous. Set special_tokens_in_text=False."
                )


PROCESSOR = Rule(lambda value: isinstance(value, dict), "a dict, as in tokenizer.json")


# A graph is faster than the library for most models, but tracing it takes a second. For 10,000
# texts of 500 characters on two cores, a graph is 7.8 (WordPiece), 2.0 (BPE) and 0.9 (Unigram)
# times as fast as the library. For 600 texts, the factors are 3.3, 1.5 and 0.9.
LIBRARY_BYTES = 2**20


class Tokenizer(configuration.ConfigFromSignature):
    """Converts texts to token ids with character offsets, and token ids to texts.

    Texts are tokenized with a graph of TensorFlow core operations inside `tf.function`, `tf.data`
    and SavedModels, and for large inputs with the TensorFlow backend. In all other cases, the
    `tokenizers` library is used. Ids and offsets are the same for both.

    By default, each text is looked up in the vocabulary. Subclasses override `_make_steps` and
    `_make_model` to split texts, `token_format` to join tokens, and `_read` to load their files.
    They must store each argument for `__init__` as an attribute with the same name.

    Args:
        vocabulary: List of tokens in the order of their ids.
        special_tokens_in_text: Boolean. Whether to convert special tokens that occur in a text,
            such as "[SEP]" or "</s>". If False, they are treated as ordinary text, so that texts
            cannot change the input structure. Defaults to False.
        start_token: String. The token to add at the start of each example. Defaults to "<s>".
        end_token: String. The token to add at the end of each text. Defaults to "</s>".
        pad_token: String. The padding token. Defaults to "<pad>".
        mask_token: String. The mask token. Defaults to "<mask>".
        unknown_token: String. The token to use for unknown words or characters. Defaults to
            "<unk>".
        uses_segments: Boolean. Whether to use segment id 1 for the second text in a pair. Defaults
            to False.
        pair_separators: Positive integer. The number of end tokens to add between two texts.
            Defaults to 2.
        truncation_side: "right" or "left". The side to remove tokens from if a text is too long.
            Defaults to "right".
        padding_side: "right" or "left". The padding side to use for the tokenizer in transformers.
            With "left", `SpanQA` will put the context before the question. Batches are always
            padded on the right, because padding is ignored by all tokens. Defaults to "right".
        model_max_length: Optional integer. The default maximum number of tokens per example,
            including special tokens, for tasks and preprocessors. If None, the maximum length for
            the backbone is used.
        added_tokens: List of tokens to find in texts before the model is applied. See
            `files.special_tokens.complete_added_tokens`. Defaults to no tokens.
        post_processor: Optional dict. The post_processor in a tokenizer.json that adds several
            special tokens in one place, or different tokens after each text. If None, `start_token`
            is added to each example, and `end_token` to each text.

    Attributes:
        kind: `TokenizerClass` that describes this class, including the default special tokens.
        token_format: `TokenFormat` of the tokens in texts.
        defaults: Dict mapping argument names to default values of this class, which override the
            default values in the signature.
        first_column: Integer. The position where the first text starts in an example. This is 0
            if the start token is added at the end, and 1 by default.
        template: `Template` with the special tokens around texts. `template_ids` has their ids.
        start_token_id: Integer. The id for the start token. `end_token_id`, `pad_token_id`,
            `mask_token_id` and `unknown_token_id` are defined in the same way.
        special_tokens: Tuple with the start, end, padding, mask and unknown tokens.

    Raises:
        ValueError: If the vocabulary does not contain a special token.
        TypeError: If an argument is unknown.
    """

    if not TYPE_CHECKING:  # hidden from editors
        from_pretrained = ForeignName("from_preset(source)")
        encode = ForeignName("tokenize(texts)")
        batch_encode_plus = ForeignName("tokenize(texts)")
        decode = ForeignName("detokenize(ids)")
        batch_decode = ForeignName("detokenize(ids)")
        convert_tokens_to_ids = ForeignName("token_to_id(token)")
        convert_ids_to_tokens = ForeignName("id_to_token(id)")
        get_vocab = ForeignName("get_vocabulary()")
        vocab_size = ForeignName("vocabulary_size")

    kind: ClassVar[TokenizerClass] = ANY_STEPS
    defaults: ClassVar[Mapping[str, object]] = {}  # defaults of `__init__`, from `kind`

    autograph_info__: ClassVar[dict] = {}  # see `Preprocessor`
    token_format = TokenFormat()
    hidden_ids: Collection[int] = ()  # tokens that the model does not find in texts

    def __init_subclass__(cls, **options: object):
        super().__init_subclass__(**options)
        if "kind" in vars(cls) and "defaults" not in vars(cls):
            cls.defaults = cls.kind.defaults

    @configuration.use_class_defaults
    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        special_tokens_in_text: bool = False,
        start_token: SpecialToken = "<s>",
        end_token: SpecialToken = "</s>",
        pad_token: SpecialToken = "<pad>",
        mask_token: SpecialToken = "<mask>",
        unknown_token: SpecialToken = "<unk>",
        uses_segments: bool = False,
        pair_separators: PositiveInt = 2,
        truncation_side: Literal["right", "left"] = "right",
        padding_side: Literal["right", "left"] = "right",
        model_max_length: SequenceLength | None = None,
        added_tokens: Sequence[str | Mapping] = (),
        post_processor: Annotated[dict, PROCESSOR] | None = None,
        **options: object,
    ):
        for name in options:
            known = configuration.get_argument_names(type(self))
            raise TypeError(describe_unknown_argument(type(self).__name__, name, known))
        self._engines, self._lock = {}, threading.RLock()
        self._vocabulary = Vocabulary(vocabulary)  # model vocabulary, without added tokens
        added = complete_added_tokens(added_tokens, self._vocabulary.ids)
        self._added = added
        self._all_tokens = (
            Vocabulary(merge_added_tokens(vocabulary, added)) if added else self._vocabulary
        )
        self.special_tokens_in_text = special_tokens_in_text
        self.uses_segments, self.post_processor = uses_segments, post_processor
        self.truncation_side, self.padding_side = truncation_side, padding_side
        self.model_max_length = model_max_length
        self.start_token, self.end_token, self.pad_token = start_token, end_token, pad_token
        self.mask_token, self.unknown_token = mask_token, unknown_token
        self.special_tokens = (start_token, end_token, pad_token, mask_token, unknown_token)
        if special_tokens_in_text:
            check_no_overlap(self.special_tokens)
        ids = [
            self._get_special_id(argument, token)
            for argument, token in zip(SPECIAL_TOKENS, self.special_tokens, strict=True)
        ]
        self.start_token_id, self.end_token_id, self.pad_token_id = ids[:3]
        self.mask_token_id, self.unknown_token_id = ids[3:]
        template = read_template(post_processor or {}, "post_processor") or make_template(
            start_token, end_token, uses_segments, pair_separators, self.kind.first_column
        )
        self.template = template._replace(uses_segments=uses_segments)
        self.template_ids = template.map(self.token_to_id)
        self.pair_separators = template.pair_separators
        self.first_column = template.first_column

    def _get_special_id(self, argument: str, token: str) -> int:
        """Get the id for a special token. Error messages include the argument name."""
        try:
            return self._vocabulary.get_id(token)
        except ValueError as error:
            names = " or ".join(SPECIAL_TOKENS[argument])
            raise ValueError(f"{argument} ({names} in files): {error}") from None

    def __repr__(self) -> str:
        defaults = configuration.get_argument_defaults(type(self))
        settings = [
            f"{name}={value!r}"
            for name, value in self.get_config().items()
            if defaults.get(name, value) != value and (value or defaults[name])
        ]
        parts = [f"{self.vocabulary_size:,} tokens", *settings]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __reduce__(self) -> tuple:
        """Pickle and copy only the arguments, because graphs cannot be pickled."""
        return type(self).from_config, (self.get_config(),)

    @classmethod
    def from_config(cls, config: dict) -> Self:
        """Create a tokenizer from the arguments returned by `get_config`.

        Raises:
            ValueError: If the vocabulary or the merges are a path, since files cannot be opened
                from a configuration.
        """
        for name in ("vocabulary", "merges"):
            if isinstance(config.get(name), str | Path):
                raise invalid(
                    name, config[name], "the file content. Configurations cannot contain paths"
                )
        return cls(**config)

    @property
    def vocabulary(self) -> list[str]:
        """All tokens in the model, sorted by id."""
        return list(self._vocabulary.tokens)

    @property
    def added_tokens(self) -> list[dict]:
        """Added tokens, as entries for tokenizer.json."""
        return [dict(token) for token in self._added]

    @property
    def special_token_ids(self) -> tuple[int, ...]:
        """Ids for start, end, padding, mask and unknown tokens, and for special added tokens."""
        ids = (self.start_token_id, self.end_token_id, self.pad_token_id)
        added = (token["id"] for token in self.added_tokens if token["special"])
        return (*ids, self.mask_token_id, self.unknown_token_id, *added)

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return len(self._all_tokens.tokens)

    def get_vocabulary(self) -> list[str]:
        """Return all tokens, including added tokens, sorted by id."""
        return list(self._all_tokens.tokens)

    def token_to_id(self, token: str) -> int:
        """Convert a token to its id."""
        return self._all_tokens.get_id(token)

    def id_to_token(self, token_id: int) -> str:
        """Convert an id to its token."""
        return self._all_tokens.get_token(int(token_id))

    @property
    def graph(self) -> TokenizerGraph:
        """TensorFlow graph for this tokenizer. It is built on first use."""
        check_not_forked()
        from encoder_zoo.encoders.tokenizers.graphs.graph import make_graph

        return self._get_engine("graph", make_graph)

    @property
    def library(self) -> LibraryTokenizer:
        """Tokenizer from the `tokenizers` library with the same rules. It is built on first use."""
        return self._get_engine("library", LibraryTokenizer)

    def _get_engine(self, name: str, make: Callable):
        with self._lock:
            if name not in self._engines:
                self._engines[name] = make(self.steps, self._make_text_model())
            return self._engines[name]

    @functools.cached_property
    def steps(self) -> Steps:
        """Steps before and after the model, to be executed by the graph and the library."""
        steps = {**self._make_steps(), "post_processor": self._make_post_processor()}
        return Steps(
            *(flatten_steps(steps[part], part) for part in SEQUENCES),
            unknown_id=self.unknown_token_id,
            skipped_ids=self.special_token_ids,
            special_tokens=self.make_special_entries() if self.special_tokens_in_text else [],
            added_tokens=self.added_tokens,
        )

    def _make_steps(self) -> dict:
        """Return the normalizer, pre_tokenizer and decoder for tokenizer.json.

        By default, each text is a single word.
        """
        return {"normalizer": None, "pre_tokenizer": None, "decoder": {"type": "Fuse"}}

    def _make_post_processor(self, trims: Sequence[dict] = ()) -> dict:
        """Return the post_processor for tokenizer.json, which adds special tokens around texts.

        Args:
            trims: List of steps to trim spans before the tokens are added. Defaults to no steps.
        """
        template = self.template.to_step(self._all_tokens.ids)
        return {"type": "Sequence", "processors": [*trims, template]} if trims else template

    def _make_model(self) -> dict:
        """Return the "model" section of tokenizer.json. The default is a "WordLevel" model."""
        vocabulary = self._vocabulary.ids
        return {"type": "WordLevel", "unk_token": self.unknown_token, "vocab": vocabulary}

    def _make_text_model(self) -> Model:
        """Return the model to be executed by the graph and the library."""
        model = self._make_model()
        return Model(hide_tokens(model, self.hidden_ids) if self.hidden_ids else model)

    @functools.cached_property
    def _token_texts(self) -> xp.Tensor:
        """String tensor of shape (V,) with the text for each id."""
        # The tensor is cached, so it must be created outside of graphs that call `detokenize`.
        with tf.init_scope() if uses_tensorflow() else contextlib.nullcontext():
            texts = [*map(self.token_format.get_text, self._all_tokens.tokens)]
            return xp.constant(texts, xp.string)

    @classmethod
    def from_files(cls, files: TokenizerFiles, **template) -> Self:
        """Load a tokenizer from files, without checking the steps in tokenizer.json.

        Use `create_tokenizer` to check that the tokenizer executes these steps.

        Args:
            files: `TokenizerFiles` with a vocabulary or a tokenizer.json.
            **template: Arguments `uses_segments`, `pair_separators` and `post_processor`.
        """
        roles = files.read_special_tokens(cls)
        found = {"added_tokens": cls._read_added_tokens(files, roles), **cls._read(files, roles)}
        return cls(**found, **roles, **template)

    @classmethod
    def _read_added_tokens(cls, files: TokenizerFiles, roles: Mapping[str, str]) -> list[dict]:
        """Return the added tokens in the files, without special tokens and fixed tokens."""
        special = {*roles.values(), *cls._list_required_tokens()}
        return [token for token in files.list_added_tokens() if token["content"] not in special]

    @classmethod
    def _list_required_tokens(cls) -> list[str]:
        """Return tokens that are always part of the vocabulary, such as <s>NOTUSED."""
        return []

    @classmethod
    def _read(cls, files: TokenizerFiles, roles: Mapping[str, str]) -> dict:
        """Read constructor arguments from files. By default, only the vocabulary is read.

        `compare_steps` then checks that these arguments describe the steps in tokenizer.json.

        Args:
            files: `TokenizerFiles` to read.
            roles: Dict mapping argument names such as "pad_token" to special tokens.
        """
        return {"vocabulary": read_vocabulary(files, roles)}

    def __call__(self, texts: object, **options: Any) -> xp.RaggedTensor:
        """Tokenize texts. See `tokenize`."""
        return self.tokenize(texts, **options)

    @validate_arguments
    def tokenize(self, texts: object, first: NonNegativeInt | None = None) -> xp.RaggedTensor:
        """Convert texts to token ids, without adding special tokens.

        Args:
            texts: String, or list, array, pandas column or tensor of strings of shape (B,).
            first: Optional integer. The number of tokens that are needed from each text. Other
                tokens on the `truncation_side` may be omitted, which is faster for long texts. If
                None, all tokens are returned.

        Returns:
            Integer RaggedTensor of shape (B, None), or a tensor of shape (length,) for a single
            string.

        Raises:
            ValueError: If a text is not a string.
        """
        texts = make_text_tensor(texts)
        rows = xp.reshape(texts, [-1])
        if self._runs_in_graph(rows):
            whole = first is None or self.truncation_side == "left"
            whole = whole or not self.graph.has_independent_words

            def function(rows: xp.Tensor) -> tuple[xp.RaggedTensor, ...]:
                return (self.graph.texts_to_ids(rows if whole else truncate_texts(rows, first)),)

            [ids] = map_chunks(function, rows)
        else:
            ids = self.library.texts_to_ids(rows)
        return ids if len(texts.shape) else ids[0]

    def tokenize_with_offsets(
        self, texts: object
    ) -> tuple[xp.RaggedTensor, xp.RaggedTensor, xp.RaggedTensor]:
        """Convert texts to token ids and character offsets.

        Args:
            texts: String, or list, array, pandas column or tensor of strings of shape (B,).

        Returns:
            Tuple `(ids, starts, ends)`, with the same shapes as for `tokenize`. The text for a
            token is `text[start:end]`, as offsets refer to characters in the original text. If a
            token only represents one byte in a character, the span includes the whole character.
        """
        texts = make_text_tensor(texts)
        rows = xp.reshape(texts, [-1])
        if self._runs_in_graph(rows):
            parts = map_chunks(self.graph.texts_to_tokens, rows)
        else:
            parts = self.library.texts_to_tokens(rows)
        return parts if len(texts.shape) else tuple(part[0] for part in parts)

    def _runs_in_graph(self, texts: xp.Tensor) -> bool:
        """Return whether to tokenize texts (B,) with the graph instead of the library."""
        if not uses_tensorflow():
            return False
        if xp.is_symbolic_tensor(texts):
            return True
        num_bytes = int(xp.reduce_sum(xp.strings.length(texts)))
        return num_bytes > LIBRARY_BYTES and self._has_graph

    @functools.cached_property
    def _has_graph(self) -> bool:
        """Return whether all steps are supported by TensorFlow operations."""
        with contextlib.suppress(ValueError):
            return self.graph is not None
        return False

    def tokenize_words(self, words: object) -> tuple[xp.RaggedTensor, xp.RaggedTensor]:
        """Convert texts that are already split into words to token ids and word indices.

        Args:
            words: List with a list of strings for each text, or RaggedTensor of strings of shape
                (B, None).

        Returns:
            Tuple of token ids and word indices, both integer RaggedTensors of shape (B, None).
            Words without tokens (e.g. empty words) are not included.

        Raises:
            ValueError: If a row in `words` is not a list of words.
        """
        words = make_word_tensor(words)
        if self._runs_in_graph(words.values):
            return map_chunks(self.graph.words_to_ids, words)
        return self.library.words_to_ids(words)

    @validate_arguments
    def detokenize(self, ids: object, skip_special_tokens: bool = True) -> xp.Tensor:
        """Convert token ids to texts.

        The texts can differ from the original texts, because normalization cannot be undone.

        Args:
            ids: Integers of shape (B, L), ragged or padded, or of shape (L,) for a single text.
            skip_special_tokens: Boolean. Whether to skip special tokens such as padding, start and
                end tokens. Defaults to True.

        Returns:
            String tensor of shape (B,), or of shape () for a single text.

        Raises:
            ValueError: If an id is not an integer, or not in the vocabulary.

        Example:
            >>> import encoder_zoo as ez
            >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do", "it"]
            >>> ez.BertTokenizer(tokens).detokenize([2, 5, 6, 7, 3]).numpy()
            b'undo it'
        """
        if isinstance(ids, list | tuple):
            single = all(np.ndim(token_id) == 0 for token_id in ids)
        else:
            single = hasattr(ids, "ndim") and ids.ndim == 1
        if single:
            ids = [ids] if isinstance(ids, list | tuple) else ids[None]
        skipped = self.special_token_ids if skip_special_tokens else ()
        texts = self.token_format.clean_up(
            join_tokens(self._convert_ids(ids), self._token_texts, skipped)
        )
        return texts[0] if single else texts

    def _convert_ids(self, ids: object) -> xp.RaggedTensor:
        """Convert ids (B, L), ragged or padded, to an int32 RaggedTensor.

        Ids are validated, except for the ids in symbolic tensors.

        Raises:
            ValueError: If an id is not an integer, or not in the vocabulary.
        """
        rows = convert_to_ragged(ids)
        if not xp.is_symbolic_tensor(rows.values):
            values = np.asarray(rows.values)
            wrong = values[(values < 0) | (values >= self.vocabulary_size)]
            if wrong.size:
                raise invalid("ids", int(wrong[0]), f"ids from 0 to {self.vocabulary_size - 1}")
        return xp.cast(rows, xp.int32)

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **options: Unpack[TokenizerPresetArguments]
    ) -> Self:
        """Load a tokenizer from a preset.

        The tokenizer class is selected based on the files. `source` can also be a folder that only
        contains tokenizer files. Weights are not downloaded.

        Args:
            source: String or path. The name of a bundled or registered preset, a folder, or a URL.
            **options: `added_tokens` to add to the preset, and options for
                `presets.files.folder_files.Safeguards`.

        Raises:
            ValueError: If the preset contains a tokenizer of another class.

        Example:
            >>> import encoder_zoo as ez
            >>> tokenizer = ez.BertTokenizer.from_preset("bert_nano_en_uncased")
            >>> tokenizer.id_to_token(tokenizer.start_token_id)
            '[CLS]'
        """
        return loading.load_tokenizer(cls, source, **options)

    def save_to_preset(self, directory: str | os.PathLike[str]) -> None:
        """Save the tokenizer to a folder that can be loaded with `from_preset` and other libraries.

        The folder is replaced atomically. To save a model and its tokenizer to the same folder, use
        `save_to_preset` from a task, or from a backbone with `tokenizer=`.

        Args:
            directory: Path to the folder to write. If it contains a saved tokenizer, the tokenizer
                will be replaced. Other files are kept.

        Raises:
            ValueError: If the folder contains a model.
            OSError: If the folder cannot be written.

        Example:
            >>> import tempfile
            >>> import encoder_zoo as ez
            >>> tokenizer = ez.Tokenizer.from_preset("bert_nano_en_uncased")
            >>> folder = tempfile.mkdtemp() + "/tokenizer"
            >>> tokenizer.save_to_preset(folder)
            >>> ez.Tokenizer.from_preset(folder).get_config() == tokenizer.get_config()
            True
        """
        saving.save_tokenizer(self, directory)

    def to_files(self) -> dict[str, str | bytes]:
        """Convert the tokenizer to files for AutoTokenizer in transformers, with the same ids.

        Returns:
            Dict mapping file names to text or bytes. This includes the vocabulary files,
            tokenizer.json, tokenizer_config.json and special_tokens_map.json.
        """
        special = self._make_special_token_settings()
        fast = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._list_added_tokens(),
            **self._make_steps(),
            "post_processor": self._make_post_processor(),
            "model": self._make_model(),
        }
        return {
            **self._make_vocabulary_files(),
            "tokenizer.json": format_json(fast),
            "tokenizer_config.json": format_json(self._make_settings() | special),
            "special_tokens_map.json": format_json(special),
        }

    def _make_special_token_settings(self) -> dict[str, str]:
        """Return the special tokens to write to tokenizer_config.json."""
        return {
            name: getattr(self, argument)
            for argument, names in SPECIAL_TOKENS.items()
            for name in (names if self.kind.names_bos else names[:1])
        }

    def _make_settings(self) -> dict:
        """Return the content for tokenizer_config.json, without special tokens.

        A generic class name is written if the specific class in transformers would tokenize or join
        texts differently.
        """
        kind, defaults = self.kind, configuration.get_argument_defaults(type(self))
        is_usual = self.pair_separators == defaults["pair_separators"] and not self.post_processor
        is_usual = is_usual and self.uses_segments <= defaults["uses_segments"]
        meets = all(getattr(self, name) == value for name, value in kind.requirements)
        name = kind.checkpoint_names[0] if is_usual and meets else "PreTrainedTokenizer"
        is_generic = name == "PreTrainedTokenizer"
        found = {"tokenizer_class": f"{name}Fast" if is_generic else name}
        found |= {field: getattr(self, attribute) for field, attribute in kind.settings}
        found |= dict(kind.class_settings) if meets else {}
        if is_generic or kind.names_inputs or self.uses_segments != defaults["uses_segments"]:
            segments = ["token_type_ids"] * self.uses_segments
            found["model_input_names"] = ["input_ids", *segments, "attention_mask"]
        if self.special_tokens_in_text:  # transformers ignores this, and always finds them
            found["special_tokens_in_text"] = True
        if self.truncation_side != "right":
            found["truncation_side"] = self.truncation_side
        # Classes with left padding in transformers need an explicit value for right padding.
        if "left" in (self.padding_side, defaults["padding_side"]):
            found["padding_side"] = self.padding_side
        if self.model_max_length is not None:
            found["model_max_length"] = self.model_max_length
        return found

    def _list_added_tokens(self) -> list[dict]:
        """Return the entries for tokenizer.json with all hidden, added and special tokens."""
        tokens = self._all_tokens.tokens
        hidden = [make_added_token(i, tokens[i]) for i in self.hidden_ids if tokens[i]]
        entries = [*hidden, *self.added_tokens, *self.make_special_entries()]
        unique = {entry["content"]: entry for entry in entries}
        return sorted(unique.values(), key=lambda entry: entry["id"])

    def make_special_entries(self) -> list[dict]:
        """Return entries for tokenizer.json with all special tokens."""
        tokens = dict.fromkeys(getattr(self, argument) for argument in SPECIAL_TOKENS)
        lstrip = self.mask_token if self.kind.lstrip_mask else None
        return [make_added_token(self.token_to_id(t), t, t == lstrip) for t in tokens]

    def _make_vocabulary_files(self) -> Mapping[str, str | bytes]:
        """Return the vocabulary files to write in addition to tokenizer.json."""
        return {}


def format_json(content: object) -> str:
    """Return indented JSON with a trailing line break."""
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def convert_to_ragged(ids: object) -> xp.RaggedTensor:
    """Convert integers of shape (B, L), ragged or padded, to a RaggedTensor."""
    if isinstance(ids, list | tuple):
        rows = [np.asarray(row).reshape(-1) for row in ids]
        for i, row in enumerate(rows):
            _check_integers(f"ids[{i}]", row)
        values = np.concatenate([row.astype(np.int64) for row in rows] or [np.zeros(0, np.int64)])
        return xp.RaggedTensor.from_row_lengths(values, [len(row) for row in rows])
    if hasattr(ids, "row_splits"):
        return ids if xp.is_tensor(ids) else xp.convert_to_tensor(ids)
    if not getattr(ids, "ndim", 0):
        raise invalid("ids", ids, "integers of shape (batch, length) or (length,)")
    if isinstance(ids, np.ndarray):
        _check_integers("ids", ids)
    return xp.RaggedTensor.from_tensor(xp.convert_to_tensor(ids))


def _check_integers(name: str, values: np.ndarray) -> None:
    if values.size and values.dtype.kind not in "iu":
        raise invalid(name, values.tolist(), "integers")
