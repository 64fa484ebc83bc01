"""Remove tokens from a vocabulary that are not needed to tokenize a collection of texts.

Each model needs the tokens that occur in the texts, and a few more:

- WordPiece takes the longest token that matches at the current position. If no token matches, the
  word is replaced by the unknown token. For such words, the tokens that match before this position
  are needed, because a shorter token might be matched instead.
- BPE merges the pair with the lowest rank. All tokens that are merged to a token in the texts are
  needed, down to its characters. Without the merges of other tokens, the result is the same.
- Unigram maximizes the sum of scores. Without tokens that have a smaller sum, the maximum is the
  same. The score of unknown characters depends on the lowest score, so this token is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.wording import quote
from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
from encoder_zoo.encoders.tokenizers.steps import BYTE_TOKENS, SPACE

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


def trim_tokenizer(
    tokenizer: Tokenizer, texts: Sequence[str], ids: Iterable[int] = ()
) -> tuple[Tokenizer, list[int]]:
    """Remove all tokens that are not needed to tokenize texts.

    Args:
        tokenizer: A tokenizer of a kind in `TOKENIZERS`.
        texts: List of strings. All texts will have the same tokens as before.
        ids: Iterable of integers. The ids of additional tokens to keep.

    Returns:
        Tuple of the new tokenizer and the previous ids of its tokens, in ascending order.

    Raises:
        ValueError: If the tokens of a text would change.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> words = ["a", "##b", "##c", "ab"]
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        >>> trimmed, kept = trim_tokenizer(tokenizer, ["ab a abc"])
        >>> trimmed.get_vocabulary()[5:], kept[5:]
        (['a', '##c', 'ab'], [5, 7, 8])
    """
    before = tokenizer.tokenize(texts)
    flat = np.asarray(before.flat_values)
    rows = np.asarray(before.value_rowids())[flat == tokenizer.unknown_token_id]
    unknown = [texts[row] for row in np.unique(rows)]
    kept = sorted(_find_needed_ids(tokenizer, {*np.unique(flat).tolist(), *ids}, unknown))
    trimmed = _select_tokens(tokenizer, kept)
    after = trimmed.tokenize(texts)
    same = np.asarray(before.row_lengths()) == np.asarray(after.row_lengths())
    if same.all():
        equal = np.array(kept)[np.asarray(after.flat_values)] == flat
        same[np.asarray(before.value_rowids())[~equal]] = False
    if not same.all():
        raise ValueError(
            f"{quote(texts[np.argmin(same)])} is tokenized differently with the trimmed "
            f"vocabulary. Do not trim this {type(tokenizer).__name__}, or remove this text."
        )
    return trimmed, kept


def count_changed_tokens(
    tokenizer: Tokenizer, trimmed: Tokenizer, texts: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Count the tokens in each text that are different with a trimmed vocabulary.

    Args:
        tokenizer: The tokenizer with all tokens.
        trimmed: The tokenizer with a trimmed vocabulary.
        texts: List of strings.

    Returns:
        Tuple of two integer arrays with one value per text: the number of tokens from `tokenizer`
        that differ, and the number of all tokens from `tokenizer`. A token is the same if its name
        and offsets are the same.
    """
    expected, found = (_find_named_spans(each, texts) for each in (tokenizer, trimmed))
    changed = [len(a - b) for a, b in zip(expected, found, strict=True)]
    return np.array(changed, "int64"), np.array([len(a) for a in expected], "int64")


def _find_named_spans(
    tokenizer: Tokenizer, texts: Sequence[str]
) -> list[set[tuple[str, int, int]]]:
    """Return the name, start and end of all tokens in each text."""
    names = tokenizer.get_vocabulary()
    columns = [rows.to_list() for rows in tokenizer.tokenize_with_offsets(list(texts))]
    return [
        {(names[i], *span) for i, *span in zip(*row, strict=True)}
        for row in zip(*columns, strict=True)
    ]


def _find_needed_ids(tokenizer: Tokenizer, found: Set[int], unknown: Sequence[str]) -> set[int]:
    """Return the ids of all tokens that are needed to find the same tokens in texts.

    Args:
        tokenizer: A tokenizer of a kind in `TOKENIZERS`.
        found: Set with the ids of the tokens in the texts.
        unknown: List of strings. The texts that contain an unknown token.
    """
    # Tokens that are not found in texts have fixed positions in the files.
    ids = {*found, *tokenizer.special_token_ids, *tokenizer.hidden_ids}
    ids.update(*tokenizer.template_ids[:4])
    ids |= {token["id"] for token in tokenizer.added_tokens}
    model, symbol_ids = tokenizer._make_text_model()
    if model["type"] == "WordPiece":
        return ids | _find_unknown_word_ids(tokenizer, model, unknown)
    if model["type"] == "WordLevel" or symbol_ids:
        return ids
    own = [
        SPACE,
        *tokenizer._list_required_tokens(),
        *(BYTE_TOKENS if model["byte_fallback"] else ()),
    ]
    if "ByteLevel" in tokenizer.steps.list_types("pre_tokenizer"):
        own = make_byte_alphabet()
    known = {token: i for i, token in enumerate(tokenizer.get_vocabulary())}
    ids |= {known[token] for token in own if token in known}
    if model["type"] == "BPE":
        return ids | _find_merged_ids(model, ids.difference(tokenizer.hidden_ids))
    scores = [score for _, score in model["vocab"]]
    return ids | {scores.index(min(scores))}


def _find_unknown_word_ids(tokenizer: Tokenizer, model: Mapping, texts: Sequence[str]) -> set[int]:
    """Return the ids of the tokens that WordPiece matches in unknown words before it fails."""
    ids, starts, ends = tokenizer.tokenize_with_offsets(list(texts))
    unknown = np.asarray(ids.flat_values) == tokenizer.unknown_token_id
    rows = np.asarray(ids.value_rowids())[unknown]
    spans = (np.asarray(offsets.flat_values)[unknown] for offsets in (starts, ends))
    parts = {texts[row][start:end] for row, start, end in zip(rows, *spans, strict=True)}
    words = {word for part in parts for word in tokenizer.library.split(part)}
    short = (word for word in words if len(word) <= model["max_input_chars_per_word"])
    return {token_id for word in short for token_id in _match_longest(word, model["vocab"])}


def _match_longest(word: str, known: Mapping[str, int]) -> list[int]:
    """Return the ids of the longest tokens from left to right, up to the first mismatch.

    Example:
        >>> _match_longest("abcx", {"a": 0, "ab": 1, "##b": 2, "##c": 3})
        [1, 3]
    """
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in known)
        if (end := next(ends, None)) is None:
            break
        found.append(known[prefix + word[start:end]])
        start = end
    return found


def _find_merged_ids(model: Mapping, ids: Iterable[int]) -> set[int]:
    """Return the ids of all tokens that occur while BPE merges characters into the given tokens.

    The characters of a token in a text are merged in the same order as without the text, because
    merges outside of the token do not change them.
    """
    known = model["vocab"]
    tokens = {i: token for token, i in known.items()}
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    symbols = {
        symbol for i in ids if i in tokens for symbol in _find_merged_symbols(tokens[i], ranks)
    }
    return {known[symbol] for symbol in symbols if symbol in known}


def _find_merged_symbols(token: str, ranks: Mapping[tuple[str, str], int]) -> set[str]:
    """Return all symbols that occur while BPE merges the characters of a token.

    Example:
        >>> sorted(_find_merged_symbols("abc", {("b", "c"): 0, ("a", "b"): 1, ("a", "bc"): 2}))
        ['a', 'abc', 'b', 'bc', 'c']
    """
    symbols = list(token)
    found = set(symbols)
    while True:
        pairs = list(itertools.pairwise(symbols))
        known = [pair for pair in pairs if pair in ranks]
        if not known:
            return found
        at = pairs.index(min(known, key=ranks.__getitem__))
        symbols[at : at + 2] = ["".join(pairs[at])]
        found.add(symbols[at])


def _select_tokens(tokenizer: Tokenizer, kept: Sequence[int]) -> Tokenizer:
    """Create a tokenizer from the token ids in `kept`. The new ids are the positions in `kept`."""
    config, new = tokenizer.get_config(), {old: i for i, old in enumerate(kept)}
    given = config["vocabulary"]
    if isinstance(given, Mapping):
        config["vocabulary"] = {token: new[i] for token, i in given.items() if i in new}
    else:
        # A name such as "[unused id 7]" is used for an added token with this id.
        names = {f"[unused id {old}]": f"[unused id {i}]" for old, i in new.items()}
        tokens = [given[i] for i in kept if i < len(given)]
        config["vocabulary"] = [names.get(token, token) for token in tokens]
    if "scores" in config:
        config["scores"] = [config["scores"][i] for i in kept if i < len(config["scores"])]
    # In BERTweet, symbols have other names than tokens, so merges do not depend on the vocabulary.
    if config.get("merges") and not tokenizer._make_text_model().ids:
        left = set(config["vocabulary"])
        config["merges"] = [merge for merge in config["merges"] if _has_tokens(merge, left)]
    added = tokenizer.added_tokens
    config["added_tokens"] = [{**token, "id": new[token["id"]]} for token in added]
    if tokenizer.post_processor:
        names = tokenizer.get_vocabulary()
        config["post_processor"] = tokenizer.template.to_step({names[i]: new[i] for i in kept})
    return type(tokenizer)(**config)


def _has_tokens(merge: str, tokens: Set[str]) -> bool:
    """Return whether both parts of a merge and its result are tokens."""
    first, second = merge.split(" ")
    return first in tokens and second in tokens and first + second in tokens
