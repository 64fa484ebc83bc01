"""Read and write vocab.txt, which has one token per line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.tokenizers.files import reading

# Unicode white space. In Python, four control characters are also treated as white space.
WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
WHITE_SPACE += "".join(map(chr, range(0x2000, 0x200B)))


def parse_vocabulary(vocab_txt: str) -> list[str]:
    """Parse the tokens in a vocab.txt, which contains one token per line, sorted by id.

    As in the `tokenizers` library, lines only end at "\\n" and trailing white space is removed.
    Tokens that only consist of white space are kept, but will never occur in texts.

    Example:
        >>> parse_vocabulary("[PAD]\\ncat \\n")
        ['[PAD]', 'cat']
    """
    reading.check_vocabulary_size(vocab_txt.count("\n"), "vocab.txt")
    tokens = vocab_txt.split("\n")
    tokens = [token.rstrip(WHITE_SPACE) or token for token in tokens]
    return tokens[:-1] if tokens[-1] == "" else tokens


def check_no_line_breaks(vocabulary: Sequence[str]) -> None:
    """Raise a ValueError for tokens with line breaks, which a vocab.txt cannot contain."""
    for i, token in enumerate(vocabulary):
        if isinstance(token, str) and ("\n" in token or token.endswith("\r")):
            raise invalid(
                f"vocabulary[{i}]",
                token,
                "a token without line breaks, because vocab.txt has one token per line",
            )


def format_vocabulary(vocabulary: Sequence[str]) -> str:
    """Return the content of a vocab.txt."""
    return "".join(f"{token}\n" for token in vocabulary)


def read_vocabulary(files: reading.TokenizerFiles, roles: Mapping[str, str]) -> list[str]:
    """Read the tokens from vocab.txt, or from tokenizer.json if there is no vocab.txt.

    Args:
        files: `TokenizerFiles` with at least one of these files.
        roles: Dict of special tokens. See `TokenizerFiles.read_special_tokens`.

    Returns:
        List of tokens in the order of their ids.

    Raises:
        FileNotFoundError: If there is no vocab.txt and no tokenizer.json.
        ValueError: If the files contain different ids for a token.
    """
    if "vocab.txt" in files:
        tokens = parse_vocabulary(files.contents["vocab.txt"])
        ids = {token: i for i, token in enumerate(tokens)}
        for i, token in files.find_renamed_tokens("vocab.txt", ids).items():
            tokens[i] = token
        ids = {token: i for i, token in enumerate(tokens)}
        files.compare_added_tokens(ids)
        return reading.append_tokens(tokens, files.map_added_tokens(roles.values()))
    vocabulary = files.get_vocabulary("vocab.txt")
    files.compare_added_tokens(vocabulary)
    return reading.sort_tokens_by_id(vocabulary | files.map_added_tokens(roles.values()))
