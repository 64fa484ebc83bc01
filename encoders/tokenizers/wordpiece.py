"""WordPiece tokenizers for BERT and MPNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import decode_text
from encoder_zoo.encoders.tokenizers import MPNET_WORDPIECE, WORDPIECE
from encoder_zoo.encoders.tokenizers.files import vocab_txt
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.token_format import TokenFormat, strip_texts
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

MAX_WORD_LENGTH = 100  # longer words become the unknown token


@serializable
class BertTokenizer(Tokenizer):
    """WordPiece tokenizer for BERT.

    Texts are normalized, split at spaces and punctuation, and then split into WordPiece tokens.
    This tokenizer returns the same token ids that were used to train BERT checkpoints. To disable
    normalization, set `lowercase`, `strip_accents`, `split_chinese_characters` and `clean_text` to
    False.

    Args:
        vocabulary: List of tokens in the order of their ids, or path to a vocab.txt. Tokens that
            continue a word start with "##".
        lowercase: Boolean. Whether to lower-case texts. Defaults to True.
        strip_accents: Optional boolean. Whether to decompose characters and remove nonspacing
            marks. If None, the value of `lowercase` is used.
        split_chinese_characters: Boolean. Whether to treat each Chinese character as a word.
            Defaults to True.
        clean_text: Boolean. Whether to remove control characters and to replace all white space by
            spaces. Defaults to True.
        **options: Other arguments for `Tokenizer`.

    Raises:
        ValueError: If the vocabulary does not contain a special token.

    Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2019); Wu et
        al., "Google's Neural Machine Translation System" (2016), section 4.1, for WordPiece.

    Example:
        >>> words = ["un", "##affable", "café", "cafe"]
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        >>> tokenizer.tokenize(["Unaffable Café?"]).to_list()
        [[5, 6, 8, 1]]
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets("Unaffable Café?")
        >>> starts.numpy().tolist(), ends.numpy().tolist()
        ([0, 2, 10, 14], [2, 9, 14, 15])
    """

    kind = WORDPIECE
    token_format = TokenFormat(
        lambda token: token[2:] if token.startswith("##") else f" {token}",
        starts_word=lambda token: not token.startswith("##"),
        clean_up=strip_texts,
    )

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str] | str | Path,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_chinese_characters: bool = True,
        clean_text: bool = True,
        **options,
    ):
        if isinstance(vocabulary, str | Path):
            vocabulary = vocab_txt.parse_vocabulary(
                decode_text(Path(vocabulary).read_bytes(), vocabulary)
            )
        vocab_txt.check_no_line_breaks(vocabulary)
        super().__init__(vocabulary, **options)
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese_characters = split_chinese_characters
        self.clean_text = clean_text

    @property
    def strips_accents(self) -> bool:
        """Return whether accents are removed."""
        return self.lowercase if self.strip_accents is None else self.strip_accents

    # -- files -------------------------------------------------------------------------------------

    @classmethod
    def _read(cls, files: TokenizerFiles, roles: Mapping[str, str]) -> dict:
        """Read constructor arguments from files.

        Settings are first read from tokenizer_config.json and then from tokenizer.json. Texts are
        not normalized if the normalizer in tokenizer.json is null. If lower-casing is not specified
        in any file, it is enabled unless the vocabulary contains capital letters.

        Example:
            >>> from encoder_zoo import BertTokenizer
            >>> vocabulary = "\\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Cat"])
            >>> files = TokenizerFiles("preset", {"vocab.txt": vocabulary})
            >>> BertTokenizer.from_files(files).lowercase
            False
        """
        if "tokenizer.json" in files and files.has_class_name and not files.get_steps("normalizer"):
            raise ValueError(
                f"{files.json_path}: normalizer is null, but the tokenizer_class in "
                f"tokenizer_config.json, {files.tokenizer_class}, uses a normalizer in "
                "transformers. To use tokenizer.json, set tokenizer_class to "
                '"PreTrainedTokenizerFast".'
            )
        tokens = vocab_txt.read_vocabulary(files, roles)
        lowercase = files.get_setting("do_lower_case", "lowercase", "normalizer")
        strips = files.get_setting("strip_accents", "strip_accents", "normalizer")
        chinese = files.get_setting("tokenize_chinese_chars", "handle_chinese_chars", "normalizer")
        cleans = [step.get("clean_text") for step in files.get_steps("normalizer")]
        normalizes = "tokenizer.json" not in files or bool(cleans)
        if lowercase is None:
            capital = any(t != t.lower() for t in tokens if not t.startswith(("[", "<")))
            lowercase = normalizes and not capital
        return {
            "vocabulary": tokens,
            "lowercase": lowercase,
            "strip_accents": strips,
            "split_chinese_characters": normalizes if chinese is None else chinese,
            "clean_text": normalizes and (False not in cleans or files.has_class_name),
        }

    def _make_vocabulary_files(self) -> dict[str, str]:
        return {"vocab.txt": vocab_txt.format_vocabulary(self.vocabulary)}

    def _make_steps(self) -> dict:
        return {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": self.clean_text,
                "handle_chinese_chars": self.split_chinese_characters,
                "strip_accents": self.strip_accents,
                "lowercase": self.lowercase,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        }

    def _make_model(self) -> dict:
        return {
            "type": "WordPiece",
            "unk_token": self.unknown_token,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": MAX_WORD_LENGTH,
            "vocab": self._vocabulary.ids,
        }


@serializable
class MPNetTokenizer(BertTokenizer):
    """WordPiece tokenizer for MPNet, with special tokens as in RoBERTa.

    Two end tokens are added between the texts in a pair. See `BertTokenizer` for the arguments.

    Source: Song et al. 2020, MPNet, section 3 and released code.

    Example:
        >>> words = ["un", "##affable"]
        >>> tokenizer = MPNetTokenizer(["<s>", "<pad>", "</s>", "[UNK]", "<mask>", *words])
        >>> tokenizer.tokenize(["Unaffable?"]).to_list()
        [[5, 6, 3]]
    """

    kind = MPNET_WORDPIECE
