"""XLNet's tokenizer: ALBERT's steps, with the special tokens behind the texts."""

from typing import ClassVar

import keras

from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.writing import WritesFiles
from encoder_zoo.encoders.tokenizers.sentencepiece import AlbertTokenizer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class XLNetTokenizer(AlbertTokenizer):
    """Tokenizes texts as XLNet: `A <sep> <cls>` and `A <sep> B <sep> <cls>`, cased.

    The <cls> token has a segment of its own. Batches
    are padded on the right; transformers pads XLNet's on the left, which gives the same outputs, as
    positions are relative and classifiers read the last real token.

    Args:
        lowercase: lower-case the text.
        **options: the other arguments of `AlbertTokenizer`.

    Source: Yang et al. 2019, XLNet: Generalized Autoregressive Pretraining for Language
    Understanding, section 2.5, and its released tokenization.

    Example:
        >>> tokens = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "▁Cafe", "s"]
        >>> tokenizer = XLNetTokenizer(tokens, [None] * 7 + [-2.0, -3.0])
        >>> tokenizer.tokenize("Cafés").numpy().tolist(), tokenizer.first_column
        ([7, 8], 0)
    """

    first_column = 0
    prefix_is_a_setting = False
    # Its <s> and </s> are not used.
    special_token_names = WritesFiles.special_token_names
    defaults: ClassVar = {
        "start_token": "<cls>",
        "end_token": "<sep>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "unknown_token": "<unk>",
        "pair_separators": 1,
        "uses_segments": True,
        "padding_side": "left",
    }

    @validate_arguments
    def __init__(self, *args, lowercase: bool = False, **options):
        super().__init__(*args, lowercase=lowercase, **options)

    @classmethod
    def _options(cls, files: TokenizerFiles) -> dict:
        options, types = super()._options(files), files.steps("normalizer")
        lowers = files.setting("do_lower_case", "lowercase", "normalizer")
        if options["keep_accents"] and files.names_class:
            raise ValueError(
                f"{files.folder}: keep_accents is True. Expected False: version 5 of transformers "
                "removes accents all the same, and version 4 does not"
            )
        own, unknown = files.part("model").get("unk_id"), files.config_value("unk_id")
        if files.names_class and own is not None and unknown not in (None, own):
            raise ValueError(
                f"{files.folder}: unk_id is {unknown} in tokenizer_config.json and {own} in "
                "tokenizer.json. Expected the same"
            )
        if lowers is None:
            options["lowercase"] = any(step.get("type") == "Lowercase" for step in types)
        return options
