"""SentencePiece tokenizers for XLM-RoBERTa, CamemBERT, ALBERT, DeBERTa and XLNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import quote
from encoder_zoo.encoders.tokenizers import (
    ALBERT_SENTENCEPIECE,
    CAMEMBERT_SENTENCEPIECE,
    DEBERTA_SENTENCEPIECE,
    XLM_SENTENCEPIECE,
    XLNET_SENTENCEPIECE,
)
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.sentencepiece_model import SentencePieceModel
from encoder_zoo.encoders.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from encoder_zoo.encoders.tokenizers.steps import COMPOSING, METASPACE, QUOTES

# Names used in transformers for the special tokens to add around texts.
TEMPLATE_NAMES = {"start_token": "bos_token", "end_token": "eos_token"}


@serializable
class XLMRobertaTokenizer(SentencePieceTokenizer):
    """SentencePiece tokenizer for XLM-RoBERTa.

    The vocabulary consists of <s>, <pad>, </s>, <unk>, all SentencePiece tokens, and <mask>. See
    `SentencePieceTokenizer` for the arguments.

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

    template_names: ClassVar = TEMPLATE_NAMES
    kind = XLM_SENTENCEPIECE
    front = (("<s>", None), ("<pad>", None), ("</s>", None), ("<unk>", None))
    skipped = 3
    behind = (("<mask>", None),)


@serializable
class CamembertTokenizer(SentencePieceTokenizer):
    """SentencePiece tokenizer for CamemBERT.

    The vocabulary consists of <s>NOTUSED, <pad>, </s>NOTUSED, <unk>, <unk>NOTUSED, all
    SentencePiece tokens, and <mask>. See `SentencePieceTokenizer` for the arguments.

    Source: Martin et al., "CamemBERT: a Tasty French Language Model" (2020), section 4.

    Example:
        >>> front = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
        >>> scores = [None, None, None, None, -100.0, None, None, -2.0]
        >>> tokenizer = CamembertTokenizer([*front, "▁oui", "<mask>"], scores)
        >>> tokenizer.tokenize("oui oui").numpy().tolist(), tokenizer.start_token_id
        ([7, 7], 5)
    """

    template_names: ClassVar = TEMPLATE_NAMES
    kind = CAMEMBERT_SENTENCEPIECE
    front = (
        ("<s>NOTUSED", None),
        ("<pad>", None),
        ("</s>NOTUSED", None),
        ("<unk>", None),
        ("<unk>NOTUSED", -100.0),
    )
    skipped = 1
    behind = (("<mask>", None),)


@serializable
class AlbertTokenizer(SentencePieceTokenizer):
    """SentencePiece tokenizer for ALBERT.

    Two consecutive backticks or apostrophes are replaced by a quotation mark. See
    `SentencePieceTokenizer` for all other arguments.

    Args:
        lowercase: Boolean. Whether to lower-case texts. Defaults to True.
        keep_accents: Boolean. Whether to keep accents. If False, characters are decomposed (NFKD)
            and marks are removed. Defaults to False.

    Source: Lan et al., "ALBERT: A Lite BERT" (2020), section 4.1, and its released tokenization.

    Example:
        >>> tokens = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁cafe", "s"]
        >>> tokenizer = AlbertTokenizer(tokens, [None] * 5 + [-2.0, -3.0])
        >>> tokenizer.tokenize("Cafés").numpy().tolist()
        [5, 6]
    """

    kind = ALBERT_SENTENCEPIECE

    @validate_arguments
    def __init__(self, *args, lowercase: bool = True, keep_accents: bool = False, **options):
        self.lowercase = lowercase
        self.keep_accents = keep_accents
        super().__init__(*args, **options)

    @classmethod
    def _read(cls, files: TokenizerFiles, roles: Mapping[str, str]) -> dict:
        steps, path = files.get_steps("normalizer"), files.folder / "tokenizer_config.json"
        types = [step.get("type") for step in steps]
        found = {"lowercase": "Lowercase" in types, "keep_accents": "NFKD" not in types}
        if "tokenizer.json" not in files:
            found = {}
            for name in ("add_bos_token", "add_eos_token"):
                if (value := files.get_config_value(name)) is not None:
                    raise ValueError(
                        f"{path}: {name}={quote(value)} is not supported without "
                        "tokenizer.json. Remove this field."
                    )
        for name, argument in cls.kind.settings:
            if (value := files.get_setting(name, argument, "normalizer")) is None:
                continue
            if files.has_class_name and QUOTES[0] in steps and value != found[argument]:
                raise ValueError(
                    f"{path}: {name} is {value}, but {found[argument]} in the normalizer of "
                    "tokenizer.json. Expected the same value."
                )
            found[argument] = value
        return {**super()._read(files, roles), **found}

    def _list_normalizers(self) -> list[dict]:
        accents = [] if self.keep_accents else [{"type": "NFKD"}, {"type": "StripAccents"}]
        case = [{"type": "Lowercase"}] if self.lowercase else []
        return [*QUOTES, *accents, *case, *super()._list_normalizers()]


@serializable
class DebertaV2Tokenizer(SentencePieceTokenizer):
    """SentencePiece tokenizer for DeBERTa-v2 and DeBERTa-v3.

    The vocabulary consists of all SentencePiece tokens and [MASK]. Texts are normalized with the
    charsmap in spm.model, which was also used to train the checkpoints. This charsmap is ignored by
    transformers 5. Checkpoints with a tokenizer.json from transformers 5 are loaded with
    `normalize_nfc=True` to get the same ids.

    Args:
        vocabulary: List of tokens. See `SentencePieceTokenizer`.
        scores: List of scores. See `SentencePieceTokenizer`.
        precompiled_charsmap: String or None. See `SentencePieceTokenizer`.
        remove_extra_whitespaces: Boolean. See `SentencePieceTokenizer`. Defaults to True.
        normalize_nfc: Boolean. Whether to normalize texts with NFC instead of the charsmap, as in
            transformers 5. In this case, line breaks, tabs and runs of white space are replaced by
            one space, and other white space except spaces is treated like ordinary characters.
            Defaults to False.
        **options: Other arguments for `SentencePieceTokenizer`.

    Raises:
        ValueError: If an argument for `SentencePieceTokenizer` is invalid, or if `normalize_nfc` is
            combined with another normalization.

    Source: He et al., "DeBERTa" (2021), released tokenization of version 2; `DebertaV2Tokenizer` of
        transformers 5.

    Example:
        >>> tokens = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "▁cafe", "s", "[MASK]"]
        >>> tokenizer = DebertaV2Tokenizer(tokens, [None] * 4 + [-2.0, -3.0, None])
        >>> tokenizer.tokenize("cafes").numpy().tolist()
        [4, 5]
    """

    kind = DEBERTA_SENTENCEPIECE
    defaults: ClassVar = {**DEBERTA_SENTENCEPIECE.defaults, "uses_segments": False}
    behind = (("[MASK]", None),)

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        scores: Sequence[float | None],
        precompiled_charsmap: str | None = None,
        *,
        remove_extra_whitespaces: bool = True,
        normalize_nfc: bool = False,
        **options,
    ):
        if normalize_nfc and (precompiled_charsmap or not remove_extra_whitespaces):
            raise ValueError(
                "normalize_nfc=True cannot be combined with another normalization. Remove "
                "precompiled_charsmap and remove_extra_whitespaces=False."
            )
        self.normalize_nfc = normalize_nfc
        options["remove_extra_whitespaces"] = remove_extra_whitespaces
        super().__init__(vocabulary, scores, precompiled_charsmap, **options)

    @classmethod
    def _read(cls, files: TokenizerFiles, roles: Mapping[str, str]) -> dict:
        for name in ("do_lower_case", "split_by_punct"):
            if files.get_setting(name, name, "normalizer"):
                raise ValueError(
                    f"{files.folder / 'tokenizer_config.json'}: {name}=True is not supported. "
                    "Expected False, as in Microsoft's checkpoints."
                )
        is_nfc = {"type": "NFC"} in files.get_steps("normalizer")
        return {**super()._read(files, roles), "normalize_nfc": is_nfc}

    def _list_normalizers(self) -> list[dict]:
        return COMPOSING if self.normalize_nfc else super()._list_normalizers()

    def _make_steps(self) -> dict:
        steps = super()._make_steps()
        if self.normalize_nfc:  # without WhitespaceSplit
            steps["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [METASPACE]}
        return steps

    def _make_sentencepiece_model(self) -> SentencePieceModel | None:
        """Return None if `normalize_nfc` is True, which is not supported by the file format."""
        return None if self.normalize_nfc else super()._make_sentencepiece_model()


@serializable
class XLNetTokenizer(AlbertTokenizer):
    """SentencePiece tokenizer for XLNet.

    Examples have the form `A <sep> <cls>` or `A <sep> B <sep> <cls>`. The <cls> token has a
    separate segment id. Batches are padded on the right, whereas transformers uses left padding for
    XLNet. This does not change the outputs, since positions are relative, and since classifiers use
    the last token before the padding.

    Args:
        lowercase: Boolean. Whether to lower-case texts. Defaults to False.
        **options: Other arguments for `AlbertTokenizer`.

    Source: Yang et al. 2019, XLNet: Generalized Autoregressive Pretraining for Language
        Understanding, section 2.5, and its released tokenization.

    Example:
        >>> tokens = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "▁Cafe", "s"]
        >>> tokenizer = XLNetTokenizer(tokens, [None] * 7 + [-2.0, -3.0])
        >>> tokenizer.tokenize("Cafés").numpy().tolist(), tokenizer.first_column
        ([7, 8], 0)
    """

    kind = XLNET_SENTENCEPIECE
    prefix_is_a_setting = False

    @validate_arguments
    def __init__(self, *args, lowercase: bool = False, **options):
        super().__init__(*args, lowercase=lowercase, **options)

    @classmethod
    def _read(cls, files: TokenizerFiles, roles: Mapping[str, str]) -> dict:
        found = super()._read(files, roles)
        if found.get("keep_accents") and files.has_class_name:
            raise ValueError(
                f"{files.folder}: keep_accents=True is not supported, because versions 4 and 5 of "
                "transformers compute different ids for it. Expected False."
            )
        own, unknown = files.get_part("model").get("unk_id"), files.get_config_value("unk_id")
        if files.has_class_name and own is not None and unknown not in (None, own):
            raise ValueError(
                f"{files.folder}: unk_id is {unknown} in tokenizer_config.json and {own} in "
                "tokenizer.json. Expected the same value."
            )
        return found
