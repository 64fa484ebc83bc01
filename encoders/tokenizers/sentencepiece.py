"""The tokenizers of XLM-RoBERTa, CamemBERT, ALBERT and DeBERTa, which SentencePiece trained."""

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from encoder_zoo.common.validation import PositiveInt, SpecialToken, validate_arguments
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles, flat
from encoder_zoo.encoders.tokenizers.files.sentencepiece import in_short
from encoder_zoo.encoders.tokenizers.files.sentencepiece_model import SentencePieceModel
from encoder_zoo.encoders.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from encoder_zoo.encoders.tokenizers.text.characters import Characters, before
from encoder_zoo.encoders.tokenizers.text.composition import Composer
from encoder_zoo.encoders.tokenizers.text.folding import (
    folding,
    with_quotation_marks,
    with_single_spaces,
)
from encoder_zoo.encoders.tokenizers.text.precompiled import CharacterMap, is_special

# How tokenizer.json writes what transformers 5 makes of DeBERTa's texts.
COMPOSING = [
    {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "},
    {"type": "NFC"},
    {"type": "Strip", "strip_left": False, "strip_right": True},
]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class XLMRobertaTokenizer(SentencePieceTokenizer):
    """XLM-RoBERTa's pieces: <s> <pad> </s> <unk> first, then those of the model, <mask> last.

    The arguments are those of `SentencePieceTokenizer`.

    Source: Conneau et al., "Unsupervised Cross-lingual Representation Learning at Scale" (2020),
        section 3.

    Example:
        >>> tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁un", "▁", "affable", "un", "<mask>"]
        >>> scores = [None, None, None, None, -2.0, -1.5, -3.0, -2.5, None]
        >>> tokenizer = XLMRobertaTokenizer(tokens, scores)
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets("unaffable un!")
        >>> ids.numpy().tolist(), starts.numpy().tolist()
        ([4, 6, 4, 3], [0, 2, 10, 12])
    """

    model_file = "sentencepiece.bpe.model"
    front = (("<s>", None), ("<pad>", None), ("</s>", None), ("<unk>", None))
    skipped = 3
    behind = (("<mask>", None),)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class CamembertTokenizer(SentencePieceTokenizer):
    """CamemBERT's pieces: <s>NOTUSED <pad> </s>NOTUSED <unk>, those of the model, <mask> last.

    The arguments are those of `SentencePieceTokenizer`.

    Source: Martin et al., "CamemBERT: a Tasty French Language Model" (2020), section 4.

    Example:
        >>> front = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
        >>> scores = [None, None, None, None, -100.0, None, None, -2.0]
        >>> tokenizer = CamembertTokenizer([*front, "▁oui", "<mask>"], scores)
        >>> tokenizer.tokenize("oui oui").numpy().tolist(), tokenizer.start_token_id
        ([7, 7], 5)
    """

    model_file = "sentencepiece.bpe.model"
    front = (
        ("<s>NOTUSED", None),
        ("<pad>", None),
        ("</s>NOTUSED", None),
        ("<unk>", None),
        ("<unk>NOTUSED", -100.0),
    )
    skipped = 1
    behind = (("<mask>", None),)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class AlbertTokenizer(SentencePieceTokenizer):
    """ALBERT's pieces: the ids are those of the model.

    Two backticks or apostrophes are a quotation mark. The other arguments are those of
    `SentencePieceTokenizer`.

    Args:
        lowercase: lower-case the text, character by character.
        keep_accents: without it, characters are decomposed, also into those that they are only
            like (NFKD), and marks are left out.

    Source: Lan et al., "ALBERT: A Lite BERT" (2020), section 4.1, and its released tokenization.

    Example:
        >>> tokens = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁cafe", "s"]
        >>> tokenizer = AlbertTokenizer(tokens, [None] * 5 + [-2.0, -3.0])
        >>> tokenizer.tokenize("Cafés").numpy().tolist()
        [5, 6]
    """

    model_file = "spiece.model"

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        scores: Sequence[float | None],
        precompiled_charsmap: str | None = None,
        byte_fallback: bool = False,
        lowercase: bool = True,
        keep_accents: bool = False,
        special_tokens_in_text: bool = False,
        start_token: SpecialToken = "[CLS]",
        end_token: SpecialToken = "[SEP]",
        pad_token: SpecialToken = "<pad>",
        mask_token: SpecialToken = "[MASK]",
        unknown_token: SpecialToken = "<unk>",
        uses_segments: bool = True,
        pair_separators: PositiveInt = 1,
        added_tokens: Sequence[str | Mapping] = (),
        merges: Sequence[str] | None = None,
        remove_extra_whitespaces: bool = True,
    ):
        self.lowercase = lowercase
        self.keep_accents = keep_accents
        self._map = CharacterMap(self._mapping())
        super().__init__(
            vocabulary,
            scores,
            precompiled_charsmap,
            byte_fallback,
            special_tokens_in_text,
            start_token,
            end_token,
            pad_token,
            mask_token,
            unknown_token,
            uses_segments,
            pair_separators,
            added_tokens,
            merges,
            remove_extra_whitespaces,
        )

    @classmethod
    def _options(cls, files: TokenizerFiles) -> dict:
        types = [step.get("type") for step in flat(files.part("normalizer"), "normalizers")]
        written = "tokenizer.json" in files
        lowercase = files.setting("do_lower_case", "normalizer", "lowercase", bool)
        keep = files.setting("keep_accents", "normalizer", "keep_accents", bool)
        return {
            "lowercase": "Lowercase" in types or not written if lowercase is None else lowercase,
            "keep_accents": "NFKD" not in types and written if keep is None else keep,
        }

    def _settings(self) -> dict:
        own = {"do_lower_case": self.lowercase, "keep_accents": self.keep_accents}
        return {**super()._settings(), **own}

    def _normalizers(self) -> list[dict]:
        quotes = [
            {"type": "Replace", "pattern": {"String": quote}, "content": '"'}
            for quote in ("``", "''")
        ]
        accents = [] if self.keep_accents else [{"type": "NFKD"}, {"type": "StripAccents"}]
        case = [{"type": "Lowercase"}] if self.lowercase else []
        return [*quotes, *accents, *case, *super()._normalizers()]

    def _mapping(self) -> Mapping[int, Sequence[int]]:
        return folding(self.lowercase, self.keep_accents)

    def _lowers(self) -> bool:
        return self.lowercase

    def _normalized(self, chars: Characters) -> Characters:
        return super()._normalized(self._map(with_quotation_marks(chars)))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class DebertaV2Tokenizer(SentencePieceTokenizer):
    """DeBERTa-v2's and v3's pieces: those of the model, [MASK] behind them.

    Texts are normalised as the model says. transformers 5 leaves that out where it reads spm.model,
    and so differs from the checkpoints' training: "ﬁ" is not "fi". What was fine-tuned so, and
    saved with the tokenizer.json that says so, is read so.

    Args:
        normalize_nfc: normalise as transformers 5 does, without a charsmap: characters are composed
            (NFC), and white space that stands alone is a character, except for a space, the end of
            a line and a tab.
        vocabulary, scores, ...: those of `SentencePieceTokenizer`.

    Raises:
        ValueError: "normalize_nfc=True is without a precompiled_charsmap ...", and as there.

    Source: He et al., "DeBERTa" (2021), released tokenization of version 2; `DebertaV2Tokenizer` of
        transformers 5.

    Example:
        >>> tokens = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "▁cafe", "s", "[MASK]"]
        >>> tokenizer = DebertaV2Tokenizer(tokens, [None] * 4 + [-2.0, -3.0, None])
        >>> tokenizer.tokenize("cafes").numpy().tolist()
        [4, 5]
    """

    model_file = "spm.model"
    behind = (("[MASK]", None),)
    mask_takes_space_before = False

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        scores: Sequence[float | None],
        precompiled_charsmap: str | None = None,
        byte_fallback: bool = False,
        special_tokens_in_text: bool = False,
        start_token: SpecialToken = "[CLS]",
        end_token: SpecialToken = "[SEP]",
        pad_token: SpecialToken = "[PAD]",
        mask_token: SpecialToken = "[MASK]",
        unknown_token: SpecialToken = "[UNK]",
        uses_segments: bool = False,
        pair_separators: PositiveInt = 1,
        added_tokens: Sequence[str | Mapping] = (),
        merges: Sequence[str] | None = None,
        remove_extra_whitespaces: bool = True,
        normalize_nfc: bool = False,
    ):
        if normalize_nfc and (precompiled_charsmap or not remove_extra_whitespaces):
            raise ValueError(
                "normalize_nfc=True is without a precompiled_charsmap, and removes extra white "
                "space. Received: another normalisation as well."
            )
        self.normalize_nfc = normalize_nfc
        self._compose = Composer() if normalize_nfc else None
        super().__init__(
            vocabulary,
            scores,
            precompiled_charsmap,
            byte_fallback,
            special_tokens_in_text,
            start_token,
            end_token,
            pad_token,
            mask_token,
            unknown_token,
            uses_segments,
            pair_separators,
            added_tokens,
            merges,
            remove_extra_whitespaces,
        )

    @classmethod
    def _options(cls, files: TokenizerFiles) -> dict:
        for name in ("do_lower_case", "split_by_punct"):
            if files.setting(name, "normalizer", name, bool):
                raise ValueError(
                    f"{files.folder / 'tokenizer_config.json'}: {name} is True. Expected False, as "
                    "in all of Microsoft's checkpoints: with it the ids would differ, which is not "
                    "implemented"
                )
        steps = flat(files.part("normalizer"), "normalizers")
        return {"normalize_nfc": {"type": "NFC"} in steps}

    @property
    def _only_spaces(self) -> bool:
        return self.normalize_nfc or super()._only_spaces

    @property
    def _words_stand_alone(self) -> bool:
        """What white space is depends on what stands beside it."""
        return not self.normalize_nfc and super()._words_stand_alone

    def _normalized(self, chars: Characters) -> Characters:
        if not self.normalize_nfc:
            return super()._normalized(chars)
        return self._compose(with_single_spaces(chars))

    def _word_starts(
        self, chars: Characters, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        solid, first, spaced = super()._word_starts(chars, numbers)
        if self.normalize_nfc:  # the space before a "▁" of the text's own is written as well
            behind_space = before(~solid, 1, False) & ~chars.row_starts()
            spaced |= first & behind_space & ~is_special(chars.codes)
        return solid, first, spaced

    def _normalizers(self) -> list[dict]:
        return COMPOSING if self.normalize_nfc else super()._normalizers()

    def _steps(self) -> dict:
        steps = super()._steps()
        if self.normalize_nfc:  # without splitting at all white space before
            steps["pre_tokenizer"]["pretokenizers"] = [steps["decoder"]]
        return steps

    def _check_steps(self, files: TokenizerFiles) -> None:
        super()._check_steps(files)
        steps = flat(files.part("pre_tokenizer"), "pretokenizers")
        if self.normalize_nfc and [step.get("type") for step in steps] != ["Metaspace"]:
            raise ValueError(
                f"{files.folder / 'tokenizer.json'}: pre_tokenizer is {in_short(steps)}. Expected "
                "Metaspace alone beside a normalizer that normalize_nfc characters."
            )

    def _model(self) -> SentencePieceModel | None:
        """None where the format of the model has no word for the normalisation."""
        return None if self.normalize_nfc else super()._model()

    def _settings(self) -> dict:
        return {**super()._settings(), "tokenizer_class": "PreTrainedTokenizerFast"}
