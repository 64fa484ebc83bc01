"""Read and write SentencePiece model files (protocol buffers) without the SentencePiece library."""

import math
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.tokenizers.files.reading import check_vocabulary_size

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE = {_VARINT: "an integer", _BYTES: "bytes", _FIXED32: "a float"}


class Piece(NamedTuple):
    """A token with its score and kind.

    Attributes:
        text: String. Token text, with "▁" for spaces.
        score: Float. The log probability (Unigram), or a value that decreases with each merge
            (BPE).
        kind: Integer. NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED or BYTE.
    """

    text: str
    score: float = 0.0
    kind: int = NORMAL


class SentencePieceModel(NamedTuple):
    """The fields of a model file that are needed to compute ids.

    Attributes:
        pieces: List of `Piece`, sorted by id.
        model_type: Integer. UNIGRAM or BPE. The format also defines 3 (words) and 4 (characters).
        byte_fallback: Boolean. Whether to convert characters without a piece to bytes.
        treat_whitespace_as_suffix: Boolean. Whether to add "▁" at the end of words.
        normalizer: String. The name of the normalizer.
        precompiled_charsmap: Bytes. Normalizer rules, stored as a trie, or b"" if there are none.
        add_dummy_prefix: Boolean. Whether to insert a space before each text.
        remove_extra_whitespaces: Boolean. Whether to merge consecutive spaces.
        escape_whitespaces: Boolean. Whether to replace spaces by "▁".
    """

    pieces: list[Piece]
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    treat_whitespace_as_suffix: bool = False
    normalizer: str = ""
    precompiled_charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


# Field numbers, as defined in sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TRAINER_FIELDS = {3: "model_type", 24: "treat_whitespace_as_suffix", 35: "byte_fallback"}
_NORMALIZER_FIELDS = {
    1: "name",
    2: "precompiled_charsmap",
    3: "add_dummy_prefix",
    4: "remove_extra_whitespaces",
    5: "escape_whitespaces",
}
_PIECE_FIELDS = {1: "piece", 2: "score", 3: "type"}
_WIRE_OF = {"name": _BYTES, "precompiled_charsmap": _BYTES, "piece": _BYTES, "score": _FIXED32}


def read_model(content: bytes, name: str) -> SentencePieceModel:
    """Parse a model file.

    Args:
        content: Bytes. The file content.
        name: String. The file name to use in error messages.

    Raises:
        ValueError: If the content is truncated or is not a SentencePiece model, if a piece is
            empty, duplicated, or has an invalid score or type, or if there is not exactly one
            unknown piece.

    Source: sentencepiece_model.proto in the SentencePiece project; Protocol Buffers, "Encoding".

    Example:
        >>> pieces = [Piece("<unk>", 0.0, UNKNOWN), Piece("▁a", -1.5)]
        >>> read_model(serialize_model(SentencePieceModel(pieces)), "a.model").pieces[1]
        Piece(text='▁a', score=-1.5, kind=1)
    """
    pieces: list[Piece] = []
    trainer: dict[str, object] = {}
    normalizer: dict[str, object] = {}
    for number, wire, value in _parse_fields(content, name):
        if number in (_PIECES, _TRAINER, _NORMALIZER) and wire != _BYTES:
            raise invalid(f"{name}: the wire type of field {number}", wire, f"{_BYTES} (a message)")
        if number == _PIECES:
            check_vocabulary_size(len(pieces), name)
            where = f"{name}: pieces[{len(pieces)}]"
            pieces.append(_parse_piece(_parse_message(value, _PIECE_FIELDS, where), where))
        elif number == _TRAINER:
            trainer |= _parse_message(value, _TRAINER_FIELDS, f"{name}: trainer_spec")
        elif number == _NORMALIZER:
            normalizer |= _parse_message(value, _NORMALIZER_FIELDS, f"{name}: normalizer_spec")
    _check_pieces(pieces, name)
    normalizer["normalizer"] = _parse_text(
        normalizer.pop("name", b""), f"{name}: normalizer_spec.name"
    )
    settings = {
        field: bool(value) if field in _FLAGS else value
        for field, value in {**trainer, **normalizer}.items()
    }
    return SentencePieceModel(pieces, **settings)


_DEFAULTS = SentencePieceModel._field_defaults
_FLAGS = {name for name, default in _DEFAULTS.items() if isinstance(default, bool)}


def _parse_piece(fields: dict, where: str) -> Piece:
    text = _parse_text(fields.get("piece", b""), f"{where}.piece")
    score, kind = fields.get("score", 0.0), fields.get("type", NORMAL)
    if not text:
        raise invalid(f"{where}.piece", text, "a non-empty string")
    if not math.isfinite(score):
        raise invalid(f"{where}.score", score, "a finite number")
    if not NORMAL <= kind <= BYTE:
        raise invalid(f"{where}.type", kind, f"{NORMAL} to {BYTE}")
    return Piece(text, score, kind)


def _check_pieces(pieces: list[Piece], name: str) -> None:
    """Raise an error if there are no pieces, duplicate pieces, or not exactly one unknown piece."""
    if not pieces:
        raise ValueError(f"{name}: the model contains no pieces. Expected a SentencePiece model.")
    first: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        if first.setdefault(piece.text, i) != i:
            raise ValueError(
                f"{name}: pieces[{i}] is {quote(piece.text)}, the same as "
                f"pieces[{first[piece.text]}]. Expected unique pieces."
            )
    unknown = [piece.text for piece in pieces if piece.kind == UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(
            f"{name}: {len(unknown)} pieces have the type {UNKNOWN} (unknown). Expected one piece."
        )


def _parse_text(value: bytes, where: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise invalid(where, value, "text in UTF-8") from None


def _parse_message(content: bytes, names: dict[int, str], where: str) -> dict:
    """Return {name: value} for the named fields. For repeated fields, the last value is used."""
    found = {}
    for number, wire, value in _parse_fields(content, where):
        field = names.get(number)
        if field is None:
            continue
        expected = _WIRE_OF.get(field, _VARINT)
        if wire != expected:
            raise invalid(f"{where}: the wire type of {field}", wire, _WIRE[expected])
        found[field] = struct.unpack("<f", value)[0] if wire == _FIXED32 else value
    return found


def _parse_fields(content: bytes, where: str) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (number, wire type, value) for each field in a message."""
    offset = 0
    while offset < len(content):
        key, offset = _parse_varint(content, offset, where)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, offset = _parse_varint(content, offset, where)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, offset = _parse_varint(content, offset, where)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(
                f"{where}: wire type {wire} at byte {offset}. Expected a SentencePiece model."
            )
        if size > len(content) - offset:
            raise ValueError(
                f"{where}: truncated at byte {offset}, because field {number} has {size} bytes. "
                "Download the file again."
            )
        yield number, wire, content[offset : offset + size]
        offset += size


def _parse_varint(content: bytes, offset: int, where: str) -> tuple[int, int]:
    """Return an integer with up to ten bytes, and the offset after it."""
    value = 0
    for i in range(10):
        if offset + i >= len(content):
            raise ValueError(
                f"{where}: truncated at byte {len(content)}, inside an integer. Download the file "
                "again."
            )
        byte = content[offset + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, offset + i + 1
    raise ValueError(
        f"{where}: an integer at byte {offset} has more than ten bytes. Expected a SentencePiece "
        "model."
    )


def serialize_model(model: SentencePieceModel) -> bytes:
    """Serialize a model to a file that can be opened with SentencePiece.

    The ids for <s>, </s> and <pad> are set to the ids of pieces with these names, or to -1.

    Example:
        >>> len(serialize_model(SentencePieceModel([Piece("<unk>", 0.0, UNKNOWN)]))) < 100
        True
    """
    ids = {piece.text: i for i, piece in enumerate(model.pieces)}
    unknown = next(i for i, piece in enumerate(model.pieces) if piece.kind == UNKNOWN)
    values = {**model._asdict(), "name": model.normalizer}
    trainer = {number: values[name] for number, name in _TRAINER_FIELDS.items()}
    trainer |= {4: len(model.pieces), 40: unknown, 45: model.pieces[unknown].text}
    trainer |= {41: ids.get("<s>", -1), 42: ids.get("</s>", -1), 43: ids.get("<pad>", -1)}
    normalizer = {number: values[name] for number, name in _NORMALIZER_FIELDS.items()}
    pieces = [(_PIECES, {1: p.text, 2: float(p.score), 3: p.kind}) for p in model.pieces]
    messages = [*pieces, (_TRAINER, dict(sorted(trainer.items()))), (_NORMALIZER, normalizer)]
    return b"".join(_encode_field(number, _encode_message(fields)) for number, fields in messages)


def _encode_message(fields: Mapping[int, str | bytes | int | float]) -> bytes:
    """Encode the fields of a message, given as {number: value}."""
    return b"".join([_encode_field(number, value) for number, value in fields.items()])


def _encode_field(number: int, value: str | bytes | int | float) -> bytes:
    if isinstance(value, float):
        return _encode_varint(number << 3 | _FIXED32) + struct.pack("<f", value)
    if isinstance(value, int):
        return _encode_varint(number << 3 | _VARINT) + _encode_varint(value % 2**64)
    content = value.encode() if isinstance(value, str) else value
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    if value < 128:
        return bytes([value])
    return bytes([value & 127 | 128]) + _encode_varint(value >> 7)
