"""Base class for SentencePiece tokenizers with Unigram or BPE models."""

from __future__ import annotations

import base64
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np

from encoder_zoo.common.configuration import get_argument_defaults
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.tokenizers.files import reading
from encoder_zoo.encoders.tokenizers.files import sentencepiece_model as spm
from encoder_zoo.encoders.tokenizers.files.sentencepiece_json import (
    find_charsmap,
    make_merges_by_score,
    merge_scores,
    read_bpe_model,
    read_unigram_model,
)
from encoder_zoo.encoders.tokenizers.steps import (
    BYTE_TOKENS,
    METASPACE,
    REPLACED_SPACE,
    SPACE,
    SPACE_PREPENDED,
    Model,
    make_bpe_model,
)
from encoder_zoo.encoders.tokenizers.text.charsmap import parse_charsmap_rules
from encoder_zoo.encoders.tokenizers.token_format import TokenFormat
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


class SentencePieceTokenizer(Tokenizer):
    """Base class for tokenizers that were trained with SentencePiece.

    Texts are normalized and split at white space. The prefix "▁" is added to each word. A Unigram
    model then splits words into the tokens with the highest sum of scores, whereas a BPE model
    merges characters. Ids and offsets are the same as in the `tokenizers` library.

    Args:
        vocabulary: List of tokens in the order of their ids, with "▁" instead of spaces.
        scores: List of log probabilities. Use None for tokens that should not be found in texts.
            Added tokens at the end of the vocabulary do not need a score. BPE models do not use the
            values.
        precompiled_charsmap: Optional string. Normalizer in base64, as in tokenizer.json. If None,
            texts will not be normalized.
        byte_fallback: Boolean. Whether to encode characters without a token as the byte tokens
            "<0x00>" to "<0xFF>". Defaults to False.
        merges: List of "a b" pairs in the order in which they were learned for BPE models, or None
            for Unigram models.
        remove_extra_whitespaces: Boolean. Whether to split texts at white space and remove it. If
            False, all spaces are replaced by "▁", a space is inserted before each text, and tokens
            can span several words. Defaults to True.
        **options: Other arguments for `Tokenizer`.

    Raises:
        ValueError: If the vocabulary does not contain a special token, if there are more scores
            than tokens, or if a merge does not join two tokens to a third token.

    Source: Kudo & Richardson, "SentencePiece" (2018); Kudo, "Subword Regularization" (2018);
        Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016).
    """

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        scores: Sequence[float | None],
        precompiled_charsmap: str | None = None,
        byte_fallback: bool = False,
        merges: Sequence[str] | None = None,
        remove_extra_whitespaces: bool = True,
        **options,
    ):
        super().__init__(vocabulary, **options)
        self.token_format = TokenFormat(
            functools.partial(_get_text, byte_fallback=byte_fallback),
            starts_word=lambda token: token.startswith(SPACE),
            clean_up=lambda texts: xp.strings.regex_replace(texts, "^ ", ""),
        )
        self._scores = convert_scores(scores, vocabulary)
        self.precompiled_charsmap = precompiled_charsmap
        self.byte_fallback = byte_fallback
        self.remove_extra_whitespaces = remove_extra_whitespaces
        self._merges = None if merges is None else list(merges)
        parse_charsmap_rules(precompiled_charsmap)  # raises an error if it is damaged
        if merges is not None:
            reading.check_merges(self.merges_in_texts, self._vocabulary.ids)
        if byte_fallback:
            self._check_byte_tokens()

    @property
    def scores(self) -> list[float | None]:
        """The scores of all tokens, with None for tokens that cannot occur in texts."""
        return [None if np.isnan(score) else score for score in self._scores.tolist()]

    @property
    def merges(self) -> list[str] | None:
        """Token pairs in the order in which they were learned, or None for Unigram models."""
        return None if self._merges is None else list(self._merges)

    @property
    def hidden_ids(self) -> set[int]:
        """Ids of tokens that cannot occur in texts: special tokens and tokens without a score."""
        tokens, scored = self._vocabulary.tokens, np.flatnonzero(~np.isnan(self._scores)).tolist()
        found = {i for i in scored if tokens[i]}.difference(self.special_token_ids[:5])
        return {*range(len(tokens))} - found - {*(self.byte_ids if self.byte_fallback else ())}

    @property
    def merges_in_texts(self) -> list[str]:
        """The merges whose results can occur in texts."""
        hidden = {self._vocabulary.tokens[i] for i in self.hidden_ids}
        return [merge for merge in self._merges if merge.replace(" ", "", 1) not in hidden]

    def _check_byte_tokens(self) -> None:
        """Raise an error if a byte token is missing."""
        lacking = [token for token in BYTE_TOKENS if token not in self._vocabulary.ids]
        if lacking:
            raise ValueError(
                f"byte_fallback is True, but the vocabulary has no {', '.join(lacking[:3])}. "
                "Expected the tokens <0x00> to <0xFF>."
            )

    @property
    def byte_ids(self) -> list[int]:
        """Token ids for all 256 bytes."""
        return [self._vocabulary.ids[token] for token in BYTE_TOKENS]

    # -- files -------------------------------------------------------------------------------------

    prefix_is_a_setting: ClassVar[bool] = True
    template_names: ClassVar[Mapping[str, str]] = {}
    # Tokens and scores to add before and after the pieces of a SentencePiece model, and the number
    # of first pieces to omit.
    front: ClassVar[tuple[tuple[str, float | None], ...]] = ()
    skipped: ClassVar[int] = 0
    behind: ClassVar[tuple[tuple[str, float | None], ...]] = ()

    @classmethod
    def _list_required_tokens(cls) -> list[str]:
        """Return tokens that are always part of the vocabulary."""
        return [token for token, _ in (*cls.front, *cls.behind)]

    @classmethod
    def _read(cls, files: reading.TokenizerFiles, roles: Mapping[str, str]) -> dict:
        """Read constructor arguments. As in transformers, tokenizer.json takes precedence."""
        cls._check_settings(files, roles)
        name = cls.kind.files[0]
        if "tokenizer.json" not in files and name in files:
            path, added = str(files.folder / name), cls._read_added_tokens(files, roles)
            found = cls._read_sentencepiece(
                files.contents[name], path, roles["unknown_token"], added
            )
        else:
            model, merges = files.get_part("model"), None
            if model.get("type") == "BPE":
                tokens, merges, textless = read_bpe_model(files, roles)
                scores = cls._merge_scores(tokens, merges, textless)
            else:
                tokens, scores = read_unigram_model(files, name, roles.values())
            cls._compare_model(files, tokens)
            normalizers = [step.get("type") for step in files.get_steps("normalizer")]
            found = {
                "vocabulary": tokens,
                "scores": scores,
                "precompiled_charsmap": find_charsmap(files),
                "byte_fallback": bool(model.get("byte_fallback")),
                "merges": merges,
                "remove_extra_whitespaces": "Prepend" not in normalizers,
            }
        known = dict(zip(found["vocabulary"], found["scores"], strict=False))
        for argument, token in roles.items():
            if known.get(token):
                names = " or ".join(reading.SPECIAL_TOKENS[argument])
                raise ValueError(
                    f"{files.folder}: {names} is {quote(token)}, which is an ordinary token with "
                    f"the score {known[token]}. Expected a token that is never produced from a "
                    "text."
                )
        return found

    @classmethod
    def from_sentencepiece(
        cls, content: bytes, name: str = "the model", **options
    ) -> SentencePieceTokenizer:
        """Load a tokenizer from a SentencePiece model.

        Args:
            content: Bytes. The content of the model file.
            name: String. The file name to use in error messages. Defaults to "the model".
            **options: Other arguments for the constructor.

        Raises:
            ValueError: If the model is damaged, or if settings or tokens are not supported.
        """
        unknown = options.get("unknown_token", get_argument_defaults(cls)["unknown_token"])
        added = options.pop("added_tokens", ())
        return cls(**cls._read_sentencepiece(content, name, unknown, added), **options)

    @classmethod
    def _read_sentencepiece(
        cls, content: bytes, name: str, unknown: str, added: Sequence[str | Mapping]
    ) -> dict:
        """Read constructor arguments from a SentencePiece model. See `from_sentencepiece`."""
        model = spm.read_model(content, name)
        for field, expected in MODEL_SETTINGS.items():
            if (found := getattr(model, field)) not in expected:
                raise ValueError(
                    f"{name}: {field}={found!r} is not supported. Expected "
                    f"{' or '.join(map(repr, expected))}."
                )
        for i, piece in enumerate(model.pieces):
            if piece.kind == spm.UNUSED:
                raise ValueError(
                    f"{name}: pieces[{i}], {quote(piece.text)}, has the type {spm.UNUSED} "
                    "(unused). Expected a type from 1 to 4, or 6."
                )
        default = get_argument_defaults(cls)["unknown_token"]
        own = {default, *(piece.text for piece in model.pieces if piece.kind == spm.UNKNOWN)}
        if unknown not in own:
            raise invalid(
                f"{name}: the unknown token (unk_token in files)",
                unknown,
                f"{' or '.join(sorted(own))}, the unknown token of the model",
            )
        tokens, scores = zip(*cls._sort_pieces(model.pieces), strict=True)
        merges = None
        if model.model_type == spm.BPE:  # transformers adds merges and user-defined symbols
            merges = make_merges_by_score(
                {piece.text: piece.score for piece in model.pieces if piece.kind == spm.NORMAL}
            )
            known = {token if isinstance(token, str) else token["content"] for token in added}
            symbols = [piece.text for piece in model.pieces if piece.kind == spm.USER_DEFINED]
            symbols = [{"content": t, "normalized": False} for t in symbols if t not in known]
            added = [*symbols, *added]
            textless = [t for t, score in zip(tokens, scores, strict=True) if score is None]
            scores = cls._merge_scores(tokens, merges, textless)
        return {
            "vocabulary": tokens,
            "scores": scores,
            "precompiled_charsmap": base64.b64encode(model.precompiled_charsmap).decode() or None,
            "byte_fallback": model.byte_fallback,
            "merges": merges,
            "remove_extra_whitespaces": model.remove_extra_whitespaces,
            "added_tokens": added,
        }

    @classmethod
    def _merge_scores(
        cls, tokens: Sequence[str], merges: Sequence[str], textless: Collection[str]
    ) -> list[float | None]:
        """Return the score of each token in a BPE model.

        Tokens in `front` and `behind` have fixed scores.
        """
        own = dict((*cls.front, *cls.behind))
        scores = zip(tokens, merge_scores(tokens, merges, textless), strict=True)
        return [own.get(token, score) for token, score in scores]

    @classmethod
    def _compare_model(cls, files: reading.TokenizerFiles, tokens: Sequence[str]) -> None:
        """Raise an error if the model file and tokenizer.json contain different tokens."""
        name = cls.kind.files[0]
        if name in files:
            model = spm.read_model(files.contents[name], str(files.folder / name))
            pieces = cls._sort_pieces(model.pieces)
            ids = {token: i for i, (token, _) in enumerate(pieces)}
            fast = {token: i for i, token in enumerate(tokens)}
            files.compare_ids(name, ids, fast)

    @classmethod
    def _check_settings(cls, files: reading.TokenizerFiles, roles: Mapping[str, str]) -> None:
        """Raise an error for settings in transformers that are not supported."""
        path = files.folder / "tokenizer_config.json"
        if not files.has_class_name:
            return
        if files.get_config_value("add_prefix_space") is False and cls.prefix_is_a_setting:
            raise ValueError(
                f"{path}: add_prefix_space is False, but {cls.__name__} requires True. Save the "
                "tokenizer with add_prefix_space=True."
            )
        for argument, name in cls.template_names.items():
            token = files.get_config_token(name) or get_argument_defaults(cls)[argument]
            if token != roles[argument]:
                older, expected = reading.SPECIAL_TOKENS[argument][0], roles[argument]
                raise ValueError(
                    f"{path}: {name} is {quote(token)} and {older} is {quote(expected)}. Expected "
                    "the same token, because versions 4 and 5 of transformers read different files."
                )

    @classmethod
    def _sort_pieces(cls, pieces: Sequence[spm.Piece]) -> list[tuple[str, float | None]]:
        """Convert SentencePiece tokens to (token, score) pairs, sorted by id."""
        kept = [
            (piece.text, None if piece.kind in (spm.CONTROL, spm.UNKNOWN) else piece.score)
            for piece in pieces[cls.skipped :]
        ]
        return [*cls.front, *kept, *cls.behind]

    def _make_sentencepiece_model(self) -> spm.SentencePieceModel | None:
        """Convert tokens to a SentencePiece model, or return None if this is not possible.

        This is the inverse of `_sort_pieces`.
        """
        entries = list(zip(self.vocabulary, self.scores, strict=False))
        kept = entries[len(self.front) : len(entries) - len(self.behind)]
        lost = [("<unk>", None), ("<s>", None), ("</s>", None)][: self.skipped]
        symbols = {token["content"] for token in self.added_tokens if self._merges is not None}
        pieces = [self._make_piece(token, score, symbols) for token, score in lost + kept]
        if self._sort_pieces(pieces) != entries or len(entries) < len(self.vocabulary):
            return None
        if sum(piece.kind == spm.UNKNOWN for piece in pieces) != 1:
            return None
        normal = {piece.text: piece.score for piece in pieces if piece.kind == spm.NORMAL}
        if self._merges is not None and make_merges_by_score(normal) != self._merges:
            return None
        return spm.SentencePieceModel(
            pieces,
            model_type=spm.UNIGRAM if self._merges is None else spm.BPE,
            remove_extra_whitespaces=self.remove_extra_whitespaces,
            byte_fallback=self.byte_fallback,
            normalizer="user_defined" if self.precompiled_charsmap else "identity",
            precompiled_charsmap=base64.b64decode(self.precompiled_charsmap or ""),
        )

    def _make_piece(self, token: str, score: float | None, symbols: Collection[str]) -> spm.Piece:
        if token == self.unknown_token:
            return spm.Piece(token, 0.0, spm.UNKNOWN)
        if score is None:
            return spm.Piece(token, 0.0, spm.CONTROL)
        if token in symbols:
            return spm.Piece(token, score, spm.USER_DEFINED)
        is_byte = self.byte_fallback and token in BYTE_TOKENS
        return spm.Piece(token, score, spm.BYTE if is_byte else spm.NORMAL)

    @property
    def proto(self) -> bytes:
        """The model as a SentencePiece file (bytes).

        Raises:
            ValueError: If the tokens cannot be stored in this file format.
        """
        if (model := self._make_sentencepiece_model()) is None:
            raise ValueError(
                "The format of SentencePiece cannot store the tokens of this "
                f"{type(self).__name__}. Save it as tokenizer.json."
            )
        return spm.serialize_model(model)

    def _make_vocabulary_files(self) -> dict[str, bytes]:
        model = self._make_sentencepiece_model()
        return {self.kind.files[0]: spm.serialize_model(model)} if model else {}

    def _list_normalizers(self) -> list[dict]:
        """Return the normalizer steps for tokenizer.json."""
        charsmap = self.precompiled_charsmap
        steps = [{"type": "Precompiled", "precompiled_charsmap": charsmap}] if charsmap else []
        return steps if self.remove_extra_whitespaces else [*steps, SPACE_PREPENDED, REPLACED_SPACE]

    def _make_steps(self) -> dict:
        steps = self._list_normalizers()
        words = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}
        return {
            "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
            "pre_tokenizer": words if self.remove_extra_whitespaces else None,
            "decoder": METASPACE,
        }

    def _make_model(self) -> dict:
        if self._merges is not None:
            settings = {"unk_token": self.unknown_token, "byte_fallback": self.byte_fallback}
            return make_bpe_model(self._vocabulary.ids, self._merges, fuse_unk=True, **settings)
        scores = [0.0 if score is None else score for score in self.scores]
        scores += [0.0] * (len(self.vocabulary) - len(scores))
        return {
            "type": "Unigram",
            "unk_id": self.unknown_token_id,
            "vocab": [list(entry) for entry in zip(self.vocabulary, scores, strict=True)],
            "byte_fallback": self.byte_fallback,
        }

    def _make_text_model(self) -> Model:
        """Return the model to be executed by both engines, without merges to hidden tokens."""
        made = super()._make_text_model()
        if self._merges is not None:
            made.settings["merges"] = [merge.split(" ") for merge in self.merges_in_texts]
        return made


def _get_text(token: str, byte_fallback: bool) -> bytes:
    """Return the text for a token."""
    if byte_fallback and token in BYTE_TOKENS:
        return bytes([BYTE_TOKENS.index(token)])
    return token.replace(SPACE, " ").encode("utf-8")


def convert_scores(scores: Sequence[float | None], tokens: Sequence[str]) -> np.ndarray:
    """Check scores, and convert them to an array with NaN for None."""
    if len(scores) > len(tokens):
        raise ValueError(
            f"scores has {len(scores)} values for {len(tokens)} tokens. Expected at most one score "
            "for each token."
        )
    for i, score in enumerate(scores):
        if score is not None and not (isinstance(score, int | float) and np.isfinite(score)):
            raise invalid(
                f"scores[{i}] for the token {tokens[i]!r}", score, "a finite number or None"
            )
    if all(score is None for score in scores):
        raise ValueError(
            "All scores are None. Expected a number for each token that occurs in texts."
        )
    return np.array([np.nan if score is None else score for score in scores], np.float64)


# Supported model settings.
MODEL_SETTINGS = {
    "model_type": (spm.UNIGRAM, spm.BPE),
    "treat_whitespace_as_suffix": (False,),
    "add_dummy_prefix": (True,),
    "escape_whitespaces": (True,),
}
