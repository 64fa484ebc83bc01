"""Reads SentencePiece models from tokenizer.json, and converts scores to merges and back."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.reading import (
    TokenizerFiles,
    append_tokens,
    check_count,
    checked_vocabulary,
    read_merges,
    tokens_by_id,
)


def find_charsmap(files: TokenizerFiles) -> str | None:
    """Return the precompiled normalizer of tokenizer.json; None if there is none."""
    for step in files.steps("normalizer"):
        if step.get("type") == "Precompiled" and step.get("precompiled_charsmap"):
            charsmap = step["precompiled_charsmap"]
            if not isinstance(charsmap, str):
                raise ValueError(
                    f"{files.json_path}: precompiled_charsmap is "
                    f"{shown(charsmap)}; expected a string"
                )
            return charsmap
    return None


def read_unigram_model(
    files: TokenizerFiles, alternative: str, roles: Iterable[str]
) -> tuple[list[str], list[float | None]]:
    """Read a Unigram model: tokens in the order of their ids, and their scores.

    Special tokens may have been added behind the model's, which have no score.

    Raises:
        ValueError: "FILE: model.vocab[3] is ['a', nan]; expected a token and its score"
    """
    path = files.json_path
    vocabulary = files.model(alternative).get("vocab")
    if not isinstance(vocabulary, list) or not vocabulary:
        raise ValueError(f"{path}: model.vocab is not a list of tokens with their scores")
    check_count(len(vocabulary), f"{path}: model.vocab")
    scores: dict[str, float | None] = {}
    for i, entry in enumerate(vocabulary):
        if not is_scored_token(entry):
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
    added, _ = files.split_added_tokens({}, roles)
    special = files.special_added_tokens()
    for token in special:
        if scores.get(token) == 0:  # it is found as an added token
            scores[token] = None
    return append_tokens(list(ids), added), list(scores.values())


def is_scored_token(entry: object) -> bool:
    """Return whether an entry of the vocabulary is a token with a finite score."""
    return (
        isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and type(entry[1]) in (int, float)
        and math.isfinite(entry[1])
    )


def read_bpe_model(
    files: TokenizerFiles, roles: Mapping[str, str]
) -> tuple[list[str], list[str], set[str]]:
    """Read a BPE model: tokens in the order of their ids, merges, and tokens not found in texts.

    Args:
        files: with a tokenizer.json whose model is BPE.
        roles: {our argument: special token}.

    Raises:
        ValueError: "FILE: model.merges[3] is ['a']; expected two tokens"
    """
    path = files.json_path
    model = files.part("model")
    vocabulary = checked_vocabulary(model.get("vocab"), f"{path}: model.vocab")
    vocabulary, _ = files.split_added_tokens(vocabulary, roles.values())
    tokens = tokens_by_id(vocabulary)
    merges = read_merges(files)
    unknown = roles["unknown_token"]
    if any(unknown in merge.split(" ") for merge in merges):
        raise ValueError(
            f"{files.json_path}: model.unk_token is {shown(unknown)}, which texts hold; expected a "
            "token without merges"
        )
    return tokens, merges, {*roles.values(), *files.special_added_tokens()}


def merges_by_score(scores: Mapping[str, float]) -> list[str]:
    """Return the merges of pieces with scores, in the order in which they apply.

    SentencePiece merges the pair whose piece has the highest score; of several pairs for a piece,
    `tokenizers` takes the one with the longest left part first.

    Args:
        scores: {piece: score} in the order of their ids.

    Source: `generate_merges` of the library transformers, by which it converts such models.

    Example:
        >>> merges_by_score({"ab": 0.0, "abc": -1.0, "bc": -2.0, "a": -3.0, "b": -4.0, "c": -5.0})
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
    tokens: Sequence[str], merges: Sequence[str], textless: Collection[str]
) -> list[float | None]:
    """Return a score for every token, decreasing in the order of the merges.

    Args:
        tokens: in the order of their ids.
        merges: pairs "a b" in their order. Tokens without a merge have the lowest score.
        textless: tokens that are not found in texts, which have the score None.

    Example:
        >>> merge_scores(["<s>", "ab", "a", "b"], ["a b"], ["<s>"])
        [None, 0.0, -1.0, -1.0]
    """
    first: dict[str, float] = {}
    for i, merge in enumerate(merges):
        first.setdefault(merge.replace(" ", "", 1), float(-i))
    return [
        None if token in textless else first.get(token, float(-len(merges))) for token in tokens
    ]
