"""A SentencePiece tokenizer's files: the model, and its steps in tokenizer.json."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.reading import (
    SPECIAL_TOKENS,
    TokenizerFiles,
    WritesFiles,
    added_token,
    check_count,
    flat,
    special_tokens,
    with_added,
)
from encoder_zoo.encoders.tokenizers.files.sentencepiece_merges import (
    json_merges,
    merge_scores,
    merges_of,
)
from encoder_zoo.encoders.tokenizers.files.sentencepiece_model import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
    read_model,
    write_model,
)

SPACES = {"Regex": " {2,}"}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
# What the model must say for the steps that this package takes.
MODEL_SETTINGS = {
    "model_type": (UNIGRAM, BPE),
    "treat_whitespace_as_suffix": (False,),
    "add_dummy_prefix": (True,),
    "escape_whitespaces": (True,),
}
# How tokenizer.json writes that spaces become "▁", one before all, without removing any.
ALL_SPACES = [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
]


class SentencePieceFiles(WritesFiles):
    """Mixin: how a SentencePiece tokenizer reads and writes itself.

    Attributes:
        model_file: the name of the model's file.
        front: (token, score) of those before the pieces of the model.
        skipped: how many pieces of the model these stand for: <unk>, <s> and </s> come first.
        behind: those after the pieces of the model.
    """

    special_token_names: ClassVar[Mapping[str, tuple[str, ...]]] = SPECIAL_TOKENS
    model_file: ClassVar[str]
    front: ClassVar[tuple[tuple[str, float | None], ...]] = ()
    skipped: ClassVar[int] = 0
    behind: ClassVar[tuple[tuple[str, float | None], ...]] = ()

    @classmethod
    def from_files(cls, files: TokenizerFiles, **template) -> SentencePieceFiles:
        """The tokenizer that a checkpoint's files describe.

        As in transformers, tokenizer.json counts where both it and the model are there.

        Args:
            files: with tokenizer.json or the model's file.
            **template: how two texts are joined: `uses_segments`, `pair_separators`.

        Raises:
            FileNotFoundError: "FOLDER has no spiece.model and no tokenizer.json ..."
            ValueError: "FILE: FIELD is ...; expected ..."
        """
        roles = special_tokens(cls, files)
        own = [token for token, _ in (*cls.front, *cls.behind)]  # such as <s>NOTUSED
        _, added = files.divided({}, [*roles.values(), *own])
        options = {**cls._options(files), **roles, **template, "added_tokens": added}
        if "tokenizer.json" not in files and cls.model_file in files:
            path = str(files.folder / cls.model_file)
            return cls.from_sentencepiece(files.contents[cls.model_file], path, **options)
        model, merges = files.part("model"), None
        if model.get("type") == "BPE":
            tokens, merges, silent = json_merges(files, roles)
            scores = cls._merge_scores(tokens, merges, silent)
        else:
            files.expect("model", "type", "Unigram")
            tokens, scores = _json_pieces(files, cls.model_file, roles.values())
        normalizers = [step.get("type") for step in flat(files.part("normalizer"), "normalizers")]
        cls._compare_model(files, tokens)
        tokenizer = cls(
            tokens,
            scores,
            precompiled_charsmap=_json_charsmap(files),
            byte_fallback=bool(model.get("byte_fallback")),
            merges=merges,
            remove_extra_whitespaces="Prepend" not in normalizers,
            **options,
        )
        tokenizer._check_steps(files)
        return tokenizer

    @classmethod
    def from_sentencepiece(
        cls, content: bytes, name: str = "the model", **options
    ) -> SentencePieceFiles:
        """The tokenizer of a model that SentencePiece has trained.

        Args:
            content: of the model's file.
            name: of the file, for errors.
            **options: arguments of the constructor beside those that the model gives.

        Raises:
            ValueError: see `read_model`, and "NAME: model_type is 2; expected 1 ..."
        """
        model = read_model(content, name)
        for field, expected in MODEL_SETTINGS.items():
            if (found := getattr(model, field)) not in expected:
                raise ValueError(
                    f"{name}: {field} is {shown(found)}; expected "
                    f"{' or '.join(map(repr, expected))}: with another value the ids would differ, "
                    "which is not implemented"
                )
        for i, piece in enumerate(model.pieces):
            if piece.kind == UNUSED:
                raise ValueError(
                    f"{name}: pieces[{i}], {shown(piece.text)}, is of type 5, unused, which is not "
                    "implemented; expected 1 to 4 or 6"
                )
        tokens, scores = zip(*cls._arranged(model.pieces), strict=True)
        if model.model_type == BPE:
            options = cls._with_merges(model.pieces, options)
            silent = [t for t, score in zip(tokens, scores, strict=True) if score is None]
            scores = cls._merge_scores(tokens, options["merges"], silent)
        charsmap = base64.b64encode(model.precompiled_charsmap).decode() or None
        return cls(
            tokens,
            scores,
            precompiled_charsmap=charsmap,
            byte_fallback=model.byte_fallback,
            remove_extra_whitespaces=model.remove_extra_whitespaces,
            **options,
        )

    @classmethod
    def _with_merges(cls, pieces: Sequence[Piece], options: Mapping) -> dict:
        """Options with the merges of a model, and its user-defined symbols as added tokens.

        They are found before all else, as transformers converts them.
        """
        merges = merges_of({piece.text: piece.score for piece in pieces if piece.kind == NORMAL})
        given = options.get("added_tokens", ())
        known = {token if isinstance(token, str) else token["content"] for token in given}
        symbols = [
            {"content": piece.text, "normalized": False}
            for piece in pieces
            if piece.kind == USER_DEFINED and piece.text not in known
        ]
        return {**options, "merges": merges, "added_tokens": [*symbols, *given]}

    @classmethod
    def _merge_scores(
        cls, tokens: Sequence[str], merges: Sequence[str], silent: Collection[str]
    ) -> list[float | None]:
        """Scores of a byte pair encoding's tokens, with those that the class itself gives."""
        own = dict((*cls.front, *cls.behind))
        scores = zip(tokens, merge_scores(tokens, merges, silent), strict=True)
        return [own.get(token, score) for token, score in scores]

    @classmethod
    def _compare_model(cls, files: TokenizerFiles, tokens: Sequence[str]) -> None:
        """Refuses a model with other pieces than tokenizer.json, which transformers reads."""
        if cls.model_file in files:
            path = str(files.folder / cls.model_file)
            pieces = cls._arranged(read_model(files.contents[cls.model_file], path).pieces)
            ids = {token: i for i, (token, _) in enumerate(pieces)}
            fast = {token: i for i, token in enumerate(tokens)}
            files.compare_ids(cls.model_file, ids, fast)

    @classmethod
    def _options(cls, files: TokenizerFiles) -> dict:
        """Further arguments that the files give."""
        return {}

    @classmethod
    def _arranged(cls, pieces: Sequence[Piece]) -> list[tuple[str, float | None]]:
        """(token, score) in the order of ids, of the pieces of a model."""
        kept = [
            (piece.text, None if piece.kind in (CONTROL, UNKNOWN) else piece.score)
            for piece in pieces[cls.skipped :]
        ]
        return [*cls.front, *kept, *cls.behind]

    def _model(self) -> SentencePieceModel | None:
        """The model whose pieces, arranged, are this tokenizer's tokens; None if there is none."""
        entries = list(zip(self.vocabulary, self.scores, strict=False))
        kept = entries[len(self.front) : len(entries) - len(self.behind)]
        lost = [("<unk>", None), ("<s>", None), ("</s>", None)][: self.skipped]
        symbols = {token["content"] for token in self.added_tokens if self.merges is not None}
        pieces = [self._piece(token, score, symbols) for token, score in lost + kept]
        if self._arranged(pieces) != entries or len(entries) < len(self.vocabulary):
            return None
        if sum(piece.kind == UNKNOWN for piece in pieces) != 1:
            return None
        normal = {piece.text: piece.score for piece in pieces if piece.kind == NORMAL}
        if self.merges is not None and merges_of(normal) != self.merges:
            return None
        return SentencePieceModel(
            pieces,
            model_type=UNIGRAM if self.merges is None else BPE,
            remove_extra_whitespaces=self.remove_extra_whitespaces,
            byte_fallback=self.byte_fallback,
            normalizer="user_defined" if self.precompiled_charsmap else "identity",
            precompiled_charsmap=base64.b64decode(self.precompiled_charsmap or ""),
        )

    def _piece(self, token: str, score: float | None, symbols: Collection[str]) -> Piece:
        if token == self.unknown_token:
            return Piece(token, 0.0, UNKNOWN)
        if score is None:
            return Piece(token, 0.0, CONTROL)
        if token in symbols:
            return Piece(token, score, USER_DEFINED)
        is_byte = self.byte_fallback and token in BYTE_TOKENS
        return Piece(token, score, BYTE if is_byte else NORMAL)

    @property
    def proto(self) -> bytes:
        """The model as SentencePiece's own file holds it.

        Raises:
            ValueError: "... are not those that SentencePiece's format arranges ..."
        """
        if (model := self._model()) is None:
            raise ValueError(
                "the tokens are not those that SentencePiece's format arranges for a "
                f"{type(self).__name__}; only tokenizer.json holds them"
            )
        return write_model(model)

    def _vocabulary_files(self) -> dict[str, bytes]:
        model = self._model()
        return {self.model_file: write_model(model)} if model else {}

    def _settings(self) -> dict:
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        if self.merges is not None or not self.remove_extra_whitespaces:
            # transformers' own classes are Unigram models that split at white space.
            inputs = inputs if self.uses_segments else ["input_ids", "attention_mask"]
            return {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
        settings = {"tokenizer_class": type(self).__name__, "add_prefix_space": True}
        if self.uses_segments:  # transformers' own classes of SentencePiece leave them out
            settings["model_input_names"] = inputs
        return settings

    @property
    def _only_spaces(self) -> bool:
        """Whether other white space is a character like any other, once texts are normalised."""
        return not self.remove_extra_whitespaces

    def _normalizers(self) -> list[dict]:
        """The steps of the normalisation, in the terms of tokenizer.json."""
        charsmap = self.precompiled_charsmap
        steps = [{"type": "Precompiled", "precompiled_charsmap": charsmap}] if charsmap else []
        return steps if self.remove_extra_whitespaces else [*steps, *ALL_SPACES]

    def _steps(self) -> dict:
        space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
        steps = self._normalizers()
        words = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]}
        return {
            "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
            "pre_tokenizer": words if self.remove_extra_whitespaces else None,
            "post_processor": self._template(),
            "decoder": space,
            "model": self._unigram() if self.merges is None else self._bpe(),
        }

    def _unigram(self) -> dict:
        """A Unigram model in the terms of tokenizer.json."""
        scores = [0.0 if score is None else score for score in self.scores]
        scores += [0.0] * (len(self.vocabulary) - len(scores))
        return {
            "type": "Unigram",
            "unk_id": self.unknown_token_id,
            "vocab": [list(entry) for entry in zip(self.vocabulary, scores, strict=True)],
            "byte_fallback": self.byte_fallback,
        }

    def _bpe(self) -> dict:
        """A byte pair encoding in the terms of tokenizer.json."""
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": self.unknown_token,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": self.byte_fallback,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(self.vocabulary)},
            "merges": [merge.split(" ") for merge in self.merges],
        }

    def _added_tokens(self) -> list[dict]:
        """Those that no text holds, beside the special tokens."""
        known = super()._added_tokens()
        ids = {token["id"] for token in known}
        without = [i for i, score in enumerate(self.scores) if score is None and i not in ids]
        without += [i for i in range(len(self.scores), len(self.vocabulary)) if i not in ids]
        return [*known, *(added_token(i, self.id_to_token(i)) for i in without)]

    def _check_steps(self, files: TokenizerFiles) -> None:
        """Refuses a tokenizer.json whose steps are not this tokenizer's.

        Steps that only put several spaces together, or strip a text, change nothing for words.
        """
        path = files.folder / "tokenizer.json"
        found = [
            step
            for step in flat(files.part("normalizer"), "normalizers")
            if self._only_spaces or (step.get("type") != "Strip" and step.get("pattern") != SPACES)
        ]
        expected = self._normalizers()
        if found != expected:
            raise ValueError(
                f"{path}: normalizer is {in_short(found)}; this kind of tokenizer has "
                f"{in_short(expected)}, so the ids would differ"
            )
        if not self.remove_extra_whitespaces:
            files.expect("pre_tokenizer", "type", None)
        for step in flat(files.part("pre_tokenizer"), "pretokenizers"):
            scheme = step.get("prepend_scheme", "always")
            as_ours = (
                step.get("replacement", "▁") == "▁"
                and scheme == "always"
                and step.get("add_prefix_space", True)
                and step.get("split", True)
            )
            if step.get("type") not in ("WhitespaceSplit", "Metaspace") or not as_ours:
                raise ValueError(
                    f"{path}: pre_tokenizer has {in_short([step])}; this kind of tokenizer has "
                    "WhitespaceSplit, and Metaspace with ▁ always before a word"
                )


def in_short(steps: Sequence[Mapping]) -> str:
    """Steps without the bytes of a map."""
    parts = [
        {k: v if len(str(v)) < 60 else f"{str(v)[:20]}..." for k, v in s.items()} for s in steps
    ]
    return ", ".join(map(str, parts))[:400] or "none"


def _json_charsmap(files: TokenizerFiles) -> str | None:
    """The precompiled normalisation in tokenizer.json."""
    for step in flat(files.part("normalizer"), "normalizers"):
        if step.get("type") == "Precompiled" and step.get("precompiled_charsmap"):
            charsmap = step["precompiled_charsmap"]
            if not isinstance(charsmap, str):
                raise ValueError(
                    f"{files.folder / 'tokenizer.json'}: precompiled_charsmap is "
                    f"{shown(charsmap)}; expected a string"
                )
            return charsmap
    return None


def _json_pieces(
    files: TokenizerFiles, alternative: str, roles: Iterable[str]
) -> tuple[list[str], list[float | None]]:
    """Tokens in the order of their ids, and the scores of those of the model.

    Tokens with a role, such as </s>, may have been added to it.

    Raises:
        ValueError: "FILE: model.vocab[3] is ['a', nan]; expected a token and its score"
    """
    path = files.folder / "tokenizer.json"
    if path.name not in files:
        raise FileNotFoundError(
            f"{files.folder} has no {alternative} and no tokenizer.json; one of them must hold the "
            "vocabulary"
        )
    vocabulary = files.part("model").get("vocab")
    if not isinstance(vocabulary, list) or not vocabulary:
        raise ValueError(f"{path}: model.vocab is not a list of tokens with their scores")
    check_count(len(vocabulary), f"{path}: model.vocab")
    scores: dict[str, float | None] = {}
    for i, entry in enumerate(vocabulary):
        if not is_entry(entry):
            raise ValueError(
                f"{path}: model.vocab[{i}] is {shown(entry)}; expected a token and a score"
            )
        if entry[0] in scores:
            raise ValueError(f"{path}: model.vocab[{i}], {shown(entry[0])}, is there twice")
        scores[entry[0]] = float(entry[1])
    ids = {token: i for i, token in enumerate(scores)}
    unknown = files.part("model").get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(ids):
        raise ValueError(f"{path}: model.unk_id is {shown(unknown)}; expected 0 to {len(ids) - 1}")
    files.compare_added(ids)
    added, _ = files.divided({}, roles)
    special = files.special_added_tokens()
    for token in special:
        if scores.get(token) == 0:  # it is cut out of texts before the pieces are looked for
            scores[token] = None
    return with_added(list(ids), added), list(scores.values())


def is_entry(entry: object) -> bool:
    """Whether this is a token with its score."""
    return (
        isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and type(entry[1]) in (int, float)
        and math.isfinite(entry[1])
    )
