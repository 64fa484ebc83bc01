"""SentencePiece's BPE as pairs to merge, as tokenizer.json holds it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.byte_bpe import merges_in_json
from encoder_zoo.encoders.tokenizers.files.reading import (
    TokenizerFiles,
    checked_vocabulary,
    in_id_order,
)

# What tokenizer.json must say of the model; false stands for absent as well.
MODEL_SETTINGS = {
    "dropout": False,
    "continuing_subword_prefix": False,
    "end_of_word_suffix": False,
    "ignore_merges": False,
}


def merges_of(scores: Mapping[str, float]) -> list[str]:
    """The pairs that make pieces, in the order in which they are merged.

    SentencePiece merges what makes the piece of the highest score; of several ways to make it,
    `tokenizers` takes that with the longest left part first.

    Args:
        scores: of the pieces of text, in the order of their ids.

    Source: `generate_merges` of the library transformers, by which it converts such models.

    Example:
        >>> merges_of({"ab": 0.0, "abc": -1.0, "bc": -2.0, "a": -3.0, "b": -4.0, "c": -5.0})
        ['a b', 'ab c', 'a bc', 'b c']
    """
    pairs = [
        (score, piece[:i], piece[i:])
        for piece, score in scores.items()
        for i in range(1, len(piece))
        if piece[:i] in scores and piece[i:] in scores
    ]
    pairs.sort(key=lambda pair: (pair[0], len(pair[1]), len(pair[2])), reverse=True)
    return [f"{left} {right}" for _, left, right in pairs]


def merge_scores(
    tokens: Sequence[str], merges: Sequence[str], silent: Collection[str]
) -> list[float | None]:
    """A score for every token: the less, the later it is merged, and least if it never is.

    Args:
        tokens: in the order of their ids.
        merges: pairs, "a b", in their order.
        silent: tokens that stand for no text, whose score is None.

    Example:
        >>> merge_scores(["<s>", "ab", "a", "b"], ["a b"], ["<s>"])
        [None, 0.0, -1.0, -1.0]
    """
    first: dict[str, float] = {}
    for i, merge in enumerate(merges):
        first.setdefault(merge.replace(" ", "", 1), float(-i))
    return [None if token in silent else first.get(token, float(-len(merges))) for token in tokens]


def json_merges(
    files: TokenizerFiles, roles: Mapping[str, str]
) -> tuple[list[str], list[str], set[str]]:
    """Tokens in the order of their ids, the merges, and tokens that stand for no text.

    Args:
        files: with a tokenizer.json whose model is a byte pair encoding.
        roles: special tokens by the names of our arguments.

    Raises:
        ValueError: "FILE: model.unk_token is '[UNK]'; expected '<unk>', this tokenizer's", "FILE:
            model.merges[3] is ['a']; expected two tokens"
    """
    path = files.folder / "tokenizer.json"
    model = files.part("model")
    for field, expected in MODEL_SETTINGS.items():
        if bool(model.get(field)) != expected:
            raise ValueError(
                f"{path}: model.{field} is {shown(model[field])}; SentencePiece's BPE has none, so "
                "the ids would differ"
            )
    unknown = roles["unknown_token"]
    if model.get("unk_token") != unknown:
        raise ValueError(
            f"{path}: model.unk_token is {shown(model.get('unk_token'))}; expected {unknown!r}, "
            "this tokenizer's"
        )
    if not model.get("fuse_unk") and not model.get("byte_fallback"):
        raise ValueError(
            f"{path}: model.fuse_unk is False; expected True: SentencePiece makes one token of "
            "neighbouring unknown characters, and without it the ids would differ"
        )
    vocabulary = checked_vocabulary(model.get("vocab"), f"{path}: model.vocab")
    vocabulary, _ = files.divided(vocabulary, roles.values())
    tokens = in_id_order(vocabulary)
    merges = merges_in_json(files)
    return tokens, merges, {*roles.values(), *files.special_added_tokens()}
