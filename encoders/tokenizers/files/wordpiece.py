"""Reads and writes the files of WordPiece tokenizers: vocab.txt and tokenizer.json."""

from __future__ import annotations

from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.vocabularies import (
    append_tokens,
    check_count,
    tokens_by_id,
)
from encoder_zoo.encoders.tokenizers.files.writing import WritesFiles

# Of Unicode, which Python's own has four control characters more than.
WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
WHITE_SPACE += "".join(map(chr, range(0x2000, 0x200B)))


class WordPieceFiles(WritesFiles):
    """Mixin: reads and writes the files of a WordPiece tokenizer."""

    @classmethod
    def _from_files(cls, files: TokenizerFiles, **template) -> WordPieceFiles:
        """Build the tokenizer that files describe.

        Settings come from tokenizer_config.json, then tokenizer.json; a tokenizer.json without a
        normalizer means none. If no file has the setting for lower-casing, texts are lower-cased
        unless the vocabulary has capital letters.

        Example:
            >>> from encoder_zoo import BertTokenizer
            >>> vocabulary = "\\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Cat"])
            >>> files = TokenizerFiles("preset", {"vocab.txt": vocabulary})
            >>> BertTokenizer.from_files(files).lowercase
            False
        """
        if "tokenizer.json" in files and files.names_class and not files.steps("normalizer"):
            raise ValueError(
                f"{files.json_path}: normalizer is null, but a {files.tokenizer_class}, which "
                "tokenizer_config.json names, has one in transformers. Set tokenizer_class to "
                '"PreTrainedTokenizerFast" to follow tokenizer.json'
            )
        roles = files.special_tokens_for(cls)
        if "vocab.txt" in files:
            tokens = parse_vocabulary(files.contents["vocab.txt"])
            ids = {token: i for i, token in enumerate(tokens)}
            for i, token in files.renamed_tokens("vocab.txt", ids).items():
                tokens[i] = token
            ids = {token: i for i, token in enumerate(tokens)}
            files.compare_added(ids)
            special, added = files.split_added_tokens({}, roles.values())
            tokens = append_tokens(tokens, special)
        else:
            vocabulary = files.vocabulary("vocab.txt")
            files.compare_added(vocabulary)
            vocabulary, added = files.split_added_tokens(vocabulary, roles.values())
            tokens = tokens_by_id(vocabulary)
        lowercase = files.setting("do_lower_case", "lowercase", "normalizer")
        strips = files.setting("strip_accents", "strip_accents", "normalizer")
        chinese = files.setting("tokenize_chinese_chars", "handle_chinese_chars", "normalizer")
        cleans = [step.get("clean_text") for step in files.steps("normalizer")]
        normalizes = "tokenizer.json" not in files or bool(cleans)
        if lowercase is None:
            capital = any(t != t.lower() for t in tokens if not t.startswith(("[", "<")))
            lowercase = normalizes and not capital
        return cls(
            tokens,
            lowercase=lowercase,
            strip_accents=strips,
            split_chinese_characters=normalizes if chinese is None else chinese,
            clean_text=normalizes and (False not in cleans or files.names_class),
            added_tokens=added,
            **roles,
            **template,
        )

    def same_steps(self, normalizer: list[dict], words: list[dict]) -> tuple[list[dict], ...]:
        """See `WritesFiles`: accents may follow the case, and no change is no step."""
        alike = []
        for step in normalizer:
            if step.get("type") == "BertNormalizer" and step["strip_accents"] is None:
                step = {**step, "strip_accents": step["lowercase"]}
            if step.get("type") != "BertNormalizer" or True in step.values():
                alike.append(step)
        return alike, words

    def _vocabulary_files(self) -> dict[str, str]:
        return {"vocab.txt": "".join(f"{token}\n" for token in self.vocabulary)}

    def _settings(self) -> dict:
        settings = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.split_chinese_characters,
        }
        if not self.clean_text:  # BertTokenizer does
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        if not self.uses_segments:  # BertTokenizer returns them by default
            settings["model_input_names"] = ["input_ids", "attention_mask"]
        return settings

    def _steps(self) -> dict:
        return {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": self.clean_text,
                "handle_chinese_chars": self.split_chinese_characters,
                "strip_accents": self.strip_accents,
                "lowercase": self.lowercase,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": self._template(),
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": self.unknown_token,
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": {token: i for i, token in enumerate(self.vocabulary)},
            },
        }


def parse_vocabulary(vocab_txt: str) -> list[str]:
    """Return the tokens of a vocab.txt, one per line in the order of their ids.

    Lines end at "\\n" alone, and white space behind a token is not part of it, as in the library
    `tokenizers`. A token of white space, which no text has, keeps its name.

    Example:
        >>> parse_vocabulary("[PAD]\\ncat \\n")
        ['[PAD]', 'cat']
    """
    check_count(vocab_txt.count("\n"), "vocab.txt")
    tokens = vocab_txt.split("\n")
    tokens = [token.rstrip(WHITE_SPACE) or token for token in tokens]
    return tokens[:-1] if tokens[-1] == "" else tokens
