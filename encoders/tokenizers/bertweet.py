"""BPE tokenizer for BERTweet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.tokenizers import BERTWEET
from encoder_zoo.encoders.tokenizers.files.reading import (
    TokenizerFiles,
    append_tokens,
    check_vocabulary_size,
)
from encoder_zoo.encoders.tokenizers.steps import TWEET_WORDS, WORD_END, Model, make_bpe_model
from encoder_zoo.encoders.tokenizers.token_format import TokenFormat, strip_texts
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer, format_json

CONTINUED = "@@"  # suffix for tokens that do not end a word
NUM_FIRST = 4  # number of tokens with fixed ids


@serializable
class BertweetTokenizer(Tokenizer):
    """BPE tokenizer for BERTweet.

    Texts are split at white space. A line break directly after a word is part of the word. Texts
    are not normalized. To get the same inputs as in BERTweet training, user names and links in
    tweets should be replaced by "@USER" and "HTTPURL".

    Args:
        vocabulary: List of tokens in the order of their ids, starting with the start, padding, end
            and unknown tokens. Tokens that do not end a word have the suffix "@@".
        merges: List of "a b" pairs in the order in which they were learned. The last character in a
            word has the suffix "</w>".
        **options: Other arguments for `Tokenizer`.

    Raises:
        ValueError: If the vocabulary does not start with the four special tokens, if a token occurs
            twice, is empty, contains a line break, or starts or ends with white space, or if a
            merge is not a pair of symbols separated by a space.

    Source: Nguyen, Vu & Nguyen, "BERTweet: A pre-trained language model for English Tweets"
        (2020), section 3; Sennrich, Haddow & Birch, "Neural Machine Translation of Rare Words
        with Subword Units" (2016).

    Example:
        >>> vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "hi", "h@@", "o", "<mask>"]
        >>> tokenizer = BertweetTokenizer(vocabulary, ["h i</w>"])
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets("hi ho")
        >>> [tokenizer.id_to_token(i) for i in ids], starts.numpy().tolist()
        (['hi', 'h@@', 'o'], [0, 3, 4])
    """

    kind = BERTWEET
    token_format = TokenFormat(
        lambda token: f"{token} ".removesuffix(f"{CONTINUED} "),
        starts_word=lambda token: False,  # tokens only indicate where a word ends
        ends_word=lambda token: not token.endswith(CONTINUED),
        clean_up=strip_texts,
    )

    def __init__(self, vocabulary: Sequence[str], merges: Sequence[str], **options):
        super().__init__(vocabulary, **options)
        first = [self.start_token, self.pad_token, self.end_token, self.unknown_token]
        _check_vocabulary(self.vocabulary, first)
        _check_merges(merges)
        self._merges = list(merges)

    @property
    def merges(self) -> list[str]:
        """The merged symbol pairs, in the order in which they were learned."""
        return list(self._merges)

    def _list_symbols(self) -> list[str]:
        """Return all symbols in merges, and all characters with and without the suffix "</w>"."""
        letters = {c for token in (*self.vocabulary, *self._merges) for c in token} - {" "}
        symbols = [symbol for c in sorted(letters) for symbol in (c, c + WORD_END)]
        for merge in self._merges:
            left, _, right = merge.partition(" ")
            symbols += [left, right, left + right]
        return list(dict.fromkeys(symbols))

    def _make_text_model(self) -> Model:
        """Return a BPE model whose vocabulary contains symbols, with a token id for each symbol."""
        symbols, special = self._list_symbols(), set(self.special_token_ids)
        tokens = {t: i for t, i in self._vocabulary.ids.items() if i not in special}
        names = [
            s.removesuffix(WORD_END) if s.endswith(WORD_END) else s + CONTINUED for s in symbols
        ]
        ids = [tokens.get(name, self.unknown_token_id) for name in (" 0", *names)]
        numbers = {symbol: i for i, symbol in enumerate((" 0", *symbols))}  # words contain no space
        settings = {"unk_token": " 0", "end_of_word_suffix": WORD_END}
        return Model(make_bpe_model(numbers, self._merges, **settings), ids)

    def _make_steps(self) -> dict:
        """Return the normalizer, pre_tokenizer and decoder.

        They are only used by this package, because `to_files` does not write a tokenizer.json.
        """
        return {"normalizer": None, "pre_tokenizer": TWEET_WORDS, "decoder": None}

    # -- files -------------------------------------------------------------------------------------

    @classmethod
    def _read(cls, files: TokenizerFiles, roles: Mapping[str, str]) -> dict:
        if files.get_setting("normalization", "normalization"):
            raise ValueError(
                f"{files.folder / 'tokenizer_config.json'}: normalization is True, which is not "
                'supported. Set it to False, and replace names and links in texts by "@USER" and '
                '"HTTPURL".'
            )
        for name in ("vocab.txt", "bpe.codes"):
            if name not in files:
                raise FileNotFoundError(
                    f"{files.folder} has no {name}. {cls.__name__} requires vocab.txt and "
                    "bpe.codes."
                )
        first = ("start_token", "pad_token", "end_token", "unknown_token")
        tokens = [*(roles[role] for role in first), *_read_tokens(files)]
        files.compare_added_tokens({token: i for i, token in enumerate(tokens)})
        special = files.map_added_tokens(roles.values())
        mask = roles["mask_token"]
        if mask not in tokens:
            behind = max([len(tokens) - 1, *files.added_tokens().values()]) + 1
            special.setdefault(mask, behind)
        return {"vocabulary": append_tokens(tokens, special), "merges": _read_merges(files)}

    def to_files(self) -> dict[str, str | bytes]:
        """Convert the tokenizer to files that can be loaded with AutoTokenizer in transformers.

        The files do not include a tokenizer.json, because the suffix "@@" is not supported by the
        `tokenizers` library.

        Returns:
            Dict mapping file names to texts, for vocab.txt, bpe.codes and tokenizer_config.json.

        Raises:
            ValueError: If the special tokens around texts cannot be stored in these files.
        """
        if self.pair_separators != 2 or self.uses_segments or self.post_processor:
            raise ValueError(
                f"The files of a {type(self).__name__} can only store pair_separators=2, "
                "uses_segments=False and post_processor=None. Received: "
                f"pair_separators={self.pair_separators}, uses_segments={self.uses_segments}, "
                f"post_processor={self.post_processor}."
            )
        settings = {
            **self._make_settings(),
            **self._make_special_token_settings(),
            "added_tokens_decoder": {
                str(token["id"]): {name: value for name, value in token.items() if name != "id"}
                for token in self._list_added_tokens()
            },
        }
        return {**self._make_vocabulary_files(), "tokenizer_config.json": format_json(settings)}

    def _make_vocabulary_files(self) -> dict[str, str]:
        words = self.vocabulary[4:]
        words = words[:-1] if words[-1] == self.mask_token else words
        # The original counts are unknown, and readers ignore the counts.
        return {
            "vocab.txt": "".join(f"{word} 1\n" for word in words),
            "bpe.codes": "".join(f"{merge} 1\n" for merge in self.merges),
        }


def _check_vocabulary(vocabulary: list[str], first: list[str]) -> None:
    """Raise a ValueError if the vocabulary cannot be stored in vocab.txt."""
    if vocabulary[:NUM_FIRST] != first:
        raise invalid(f"vocabulary[:{NUM_FIRST}]", vocabulary[:NUM_FIRST], f"{first}")
    if len(set(vocabulary)) < len(vocabulary):
        seen: set[str] = set()
        double = next(token for token in vocabulary if token in seen or seen.add(token))
        raise ValueError(f"vocabulary contains {quote(double)} twice. Expected unique tokens.")
    for i, token in enumerate(vocabulary):
        if not token or token != token.strip() or "\n" in token or "\r" in token:
            raise invalid(
                f"vocabulary[{i}]",
                token,
                "a token without line breaks, and without leading or trailing white space",
            )


def _check_merges(merges: Sequence[str]) -> None:
    """Raise a ValueError if a merge is not a pair of symbols."""
    for i, merge in enumerate(merges):
        if len(merge.split()) != 2 or merge != " ".join(merge.split()):
            raise invalid(f"merges[{i}]", merge, "two symbols, separated by a space")


def _read_lines(files: TokenizerFiles, name: str) -> list[str]:
    """Return all lines of a file, and raise a ValueError if the last line has no line break."""
    content = files.contents[name].replace("\r", "\n")  # as in transformers
    check_vocabulary_size(content.count("\n"), name)
    if content and not content.endswith("\n"):
        raise ValueError(
            f"{files.folder / name} ends without a line break, so it may be truncated. Download it "
            "again."
        )
    return content.split("\n")[:-1]


def _read_tokens(files: TokenizerFiles) -> list[str]:
    """Read tokens from vocab.txt, without counts."""
    tokens = []
    for i, line in enumerate(_read_lines(files, "vocab.txt"), 1):
        token, space, _ = line.strip().rpartition(" ")
        if not space:
            raise invalid(f"{files.folder / 'vocab.txt'}: line {i}", line, "a token and its count")
        tokens.append(token)
    return tokens


def _read_merges(files: TokenizerFiles) -> list[str]:
    """Read merges from bpe.codes, without counts."""
    merges = []
    for i, line in enumerate(_read_lines(files, "bpe.codes"), 1):
        parts = line.split()
        if len(parts) != 3:
            raise invalid(
                f"{files.folder / 'bpe.codes'}: line {i}", line, "two symbols and a count"
            )
        merges.append(f"{parts[0]} {parts[1]}")
    return merges
