"""Parse SentencePiece models in tokenizer.json, and convert between scores and merges."""

import math
from collections.abc import Collection, Mapping, Sequence

from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.tokenizers.files import reading


def find_charsmap(files: reading.TokenizerFiles) -> str | None:
    """Return the precompiled charsmap in tokenizer.json, or None if there is no charsmap."""
    for step in files.get_steps("normalizer"):
        if step.get("type") == "Precompiled" and step.get("precompiled_charsmap"):
            charsmap = step["precompiled_charsmap"]
            if not isinstance(charsmap, str):
                raise invalid(f"{files.json_path}: precompiled_charsmap", charsmap, "a string")
            return charsmap
    return None


def read_unigram_model(
    files: reading.TokenizerFiles, alternative: str, roles: Collection[str]
) -> tuple[list[str], list[float | None]]:
    """Return the tokens, sorted by id, and the scores of a Unigram model.

    Args:
        files: `TokenizerFiles` with a Unigram model in tokenizer.json.
        alternative: String. The name of a file that could be used instead, for the error message.
        roles: Collection of special tokens. Special tokens that are missing in the model are
            appended to the tokens, without a score.

    Raises:
        ValueError: If `model.vocab` contains an invalid entry or a duplicate token.
    """
    path = files.json_path
    vocabulary = files.get_model(alternative).get("vocab")
    if not isinstance(vocabulary, list) or not vocabulary:
        raise invalid(f"{path}: model.vocab", vocabulary, "a list of tokens and scores")
    reading.check_vocabulary_size(len(vocabulary), f"{path}: model.vocab")
    scores: dict[str, float | None] = {}
    for i, entry in enumerate(vocabulary):
        if not is_scored_token(entry):
            raise invalid(f"{path}: model.vocab[{i}]", entry, "a token and a score")
        if entry[0] in scores:
            raise invalid(f"{path}: model.vocab[{i}]", entry[0], "unique tokens")
        scores[entry[0]] = float(entry[1])
    ids = {token: i for i, token in enumerate(scores)}
    unknown = files.get_part("model").get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(ids):
        raise invalid(f"{path}: model.unk_id", unknown, f"0 to {len(ids) - 1}")
    files.compare_added_tokens(ids)
    special = files.list_special_added_tokens()
    for token in special:
        if scores.get(token) == 0:  # it will be found as an added token
            scores[token] = None
    return reading.append_tokens(list(ids), files.map_added_tokens(roles)), list(scores.values())


def is_scored_token(entry: object) -> bool:
    """Return whether a vocabulary entry is a token with a finite score."""
    return (
        isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and type(entry[1]) in (int, float)
        and math.isfinite(entry[1])
    )


def read_bpe_model(
    files: reading.TokenizerFiles, roles: Mapping[str, str]
) -> tuple[list[str], list[str], set[str]]:
    """Return the tokens (sorted by id), the merges and the special tokens of a BPE model.

    Args:
        files: `TokenizerFiles` with a BPE model in tokenizer.json.
        roles: Dict mapping special token arguments to tokens.

    Raises:
        ValueError: If `model.merges` is not a list of token pairs, or if the unknown token is used
            in a merge.
    """
    path = files.json_path
    model = files.get_part("model")
    vocabulary = reading.check_vocabulary(model.get("vocab"), f"{path}: model.vocab")
    tokens = reading.sort_tokens_by_id(vocabulary | files.map_added_tokens(roles.values()))
    merges = reading.read_merges(files)
    unknown = roles["unknown_token"]
    if any(unknown in merge.split(" ") for merge in merges):
        raise invalid(f"{files.json_path}: model.unk_token", unknown, "a token without merges")
    return tokens, merges, {*roles.values(), *files.list_special_added_tokens()}


def make_merges_by_score(scores: Mapping[str, float]) -> list[str]:
    """Convert pieces with scores to a list of merges, in the order in which they are applied.

    The merges are sorted by the score of the merged piece, then by the length of the left part, and
    then by the length of the right part. All are in descending order, as in SentencePiece and in
    the `tokenizers` library.

    Args:
        scores: Dict mapping pieces to scores, sorted by id.

    Source: `generate_merges` in transformers, which is used to convert such models.

    Example:
        >>> scores = {"ab": 0.0, "abc": -1.0, "bc": -2.0, "a": -3.0, "b": -4.0, "c": -5.0}
        >>> make_merges_by_score(scores)
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
    """Return a score per token. Scores decrease in the order of the merges.

    Args:
        tokens: List of tokens, sorted by id.
        merges: List of "a b" pairs. Tokens without a merge will have the lowest score.
        textless: Collection of tokens that cannot occur in texts. Their score is None.

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
