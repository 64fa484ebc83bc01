"""Reads and writes the files of WordPiece tokenizers: vocab.txt and tokenizer.json."""

from __future__ import annotations

from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.vocabularies import (
    append_tokens,
    check_count,
    tokens_by_id,
)
from encoder_zoo.encoders.tokenizers.files.writing import WritesFiles


class WordPieceFiles(WritesFiles):
    """Mixin: reads and writes the files of a WordPiece tokenizer."""

    @classmethod
    def from_files(cls, files: TokenizerFiles, **template) -> WordPieceFiles:
        """Build the tokenizer that files describe.

        Settings come from tokenizer_config.json, then tokenizer.json. If neither has the setting
        for lower-casing, texts are lower-cased unless the vocabulary has capital letters.

        Args:
            files: with vocab.txt or tokenizer.json.
            **template: `uses_segments` and `pair_separators`.

        Raises:
            FileNotFoundError: "FOLDER has no vocab.txt and no tokenizer.json ..."
            ValueError: "FILE: FIELD is ...; expected ..."

        Example:
            >>> from encoder_zoo import BertTokenizer
            >>> vocabulary = "\\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Cat"])
            >>> files = TokenizerFiles("preset", {"vocab.txt": vocabulary})
            >>> BertTokenizer.from_files(files).lowercase
            False
        """
        files.expect("normalizer", "type", "BertNormalizer")
        files.expect("normalizer", "clean_text", True)
        files.expect("pre_tokenizer", "type", "BertPreTokenizer")
        files.expect("model", "type", "WordPiece")
        files.expect("model", "continuing_subword_prefix", "##")
        files.expect("model", "max_input_chars_per_word", 100)
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
        lowercase = files.setting("do_lower_case", "normalizer", "lowercase", bool)
        if lowercase is None:
            lowercase = not any(t != t.lower() for t in tokens if not t.startswith(("[", "<")))
        strips = files.setting("strip_accents", "normalizer", "strip_accents", bool)
        chinese = files.setting(
            "tokenize_chinese_chars", "normalizer", "handle_chinese_chars", bool
        )
        return cls(
            tokens,
            lowercase=lowercase,
            strip_accents=strips,
            split_chinese_characters=True if chinese is None else chinese,
            added_tokens=added,
            **roles,
            **template,
        )

    def _vocabulary_files(self) -> dict[str, str]:
        return {"vocab.txt": "".join(f"{token}\n" for token in self.vocabulary)}

    def _settings(self) -> dict:
        settings = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.split_chinese_characters,
        }
        if not self.uses_segments:  # BertTokenizer returns them by default
            settings["model_input_names"] = ["input_ids", "attention_mask"]
        return settings

    def _steps(self) -> dict:
        return {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
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

    Example:
        >>> parse_vocabulary("[PAD]\\ncat\\n")
        ['[PAD]', 'cat']
    """
    check_count(vocab_txt.count("\n"), "vocab.txt")
    tokens = vocab_txt.split("\n")
    return tokens[:-1] if tokens[-1] == "" else tokens
