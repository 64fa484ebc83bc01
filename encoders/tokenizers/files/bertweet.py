"""The files of BERTweet's tokenizer: vocab.txt and bpe.codes."""

from __future__ import annotations

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.vocabularies import append_tokens, check_count
from encoder_zoo.encoders.tokenizers.files.writing import WritesFiles, as_json


class BertweetFiles(WritesFiles):
    """Mixin: reads and writes the files of BERTweet's tokenizer."""

    @classmethod
    def _from_files(cls, files: TokenizerFiles, **template) -> BertweetFiles:
        if files.setting("normalization", "normalization"):
            raise ValueError(
                f"{files.folder / 'tokenizer_config.json'}: normalization is True, which is not "
                'implemented: the ids would differ. Set it to False and pass texts with "@USER" '
                'and "HTTPURL" for names and links.'
            )
        for name in ("vocab.txt", "bpe.codes"):
            if name not in files:
                raise FileNotFoundError(
                    f"{files.folder} has no {name}. Expected vocab.txt and bpe.codes of a "
                    f"{cls.__name__}."
                )
        roles = files.special_tokens_for(cls)
        first = ("start_token", "pad_token", "end_token", "unknown_token")
        tokens = [*(roles[role] for role in first), *_tokens_in(files)]
        files.compare_added({token: i for i, token in enumerate(tokens)})
        special, added = files.split_added_tokens({}, roles.values())
        mask = roles["mask_token"]
        if mask not in tokens:
            behind = max([len(tokens) - 1, *files.added_tokens().values()]) + 1
            special.setdefault(mask, behind)
        tokens = append_tokens(tokens, special)
        return cls(tokens, _merges_in(files), added_tokens=added, **roles, **template)

    def to_files(self) -> dict[str, str | bytes]:
        """Write the tokenizer as files that transformers' AutoTokenizer reads with the same ids.

        There is no tokenizer.json, since the library `tokenizers` has no "@@" suffix.

        Returns:
            {file name: text}: vocab.txt, bpe.codes and tokenizer_config.json.

        Raises:
            ValueError: "pair_separators is 1 and uses_segments False. Expected 2 and False, ..."
        """
        if self.pair_separators != 2 or self.uses_segments:
            raise ValueError(
                f"pair_separators is {self.pair_separators} and uses_segments "
                f"{self.uses_segments}. Expected 2 and False, all that the files of a "
                f"{type(self).__name__} can say."
            )
        settings = {
            "tokenizer_class": "BertweetTokenizer",
            "normalization": False,
            **self._special_token_settings(),
            "bos_token": self.start_token,
            "eos_token": self.end_token,
            "added_tokens_decoder": {
                str(token["id"]): {name: value for name, value in token.items() if name != "id"}
                for token in self._added_tokens()
            },
        }
        return {**self._vocabulary_files(), "tokenizer_config.json": as_json(settings)}

    def _vocabulary_files(self) -> dict[str, str]:
        words = self.vocabulary[4:]
        words = words[:-1] if words[-1] == self.mask_token else words
        # The counts of the training are lost; readers ignore them.
        return {
            "vocab.txt": "".join(f"{word} 1\n" for word in words),
            "bpe.codes": "".join(f"{merge} 1\n" for merge in self.merges),
        }


def _lines(files: TokenizerFiles, name: str) -> list[str]:
    """Return the lines of a file; raise an error if the last has no line break."""
    content = files.contents[name].replace("\r", "\n")  # as in transformers, which has no other
    check_count(content.count("\n"), name)
    if content and not content.endswith("\n"):
        raise ValueError(f"{files.folder / name} ends without a line break: it may be cut off.")
    return content.split("\n")[:-1]


def _tokens_in(files: TokenizerFiles) -> list[str]:
    """Return the tokens of vocab.txt without their counts."""
    tokens = []
    for i, line in enumerate(_lines(files, "vocab.txt"), 1):
        token, space, _ = line.strip().rpartition(" ")
        if not space:
            raise ValueError(
                f"{files.folder / 'vocab.txt'}: line {i} is {shown(line)}. Expected a token and "
                "its count."
            )
        tokens.append(token)
    return tokens


def _merges_in(files: TokenizerFiles) -> list[str]:
    """Return the pairs of bpe.codes without their counts."""
    merges = []
    for i, line in enumerate(_lines(files, "bpe.codes"), 1):
        parts = line.split()
        if len(parts) != 3:
            raise ValueError(
                f"{files.folder / 'bpe.codes'}: line {i} is {shown(line)}. Expected two symbols "
                "and a count."
            )
        merges.append(f"{parts[0]} {parts[1]}")
    return merges
