"""Convert texts to examples for replaced-token detection.

Comments use these letters for shapes: B batch, L sequence, M masked positions.
"""

from __future__ import annotations

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import (
    MaskedLMPreprocessor,
    repeat_text_weights,
    replace_tokens,
)


@serializable
class ReplacedTokenDetectionPreprocessor(MaskedLMPreprocessor):
    """Convert texts to examples with and without masks, for `ReplacedTokenDetection`.

    In every text, a fraction of the tokens is selected, except for special tokens. All selected
    tokens are replaced by the mask token. In contrast to `MaskedLMPreprocessor`, random tokens and
    unchanged tokens are not used, because the discriminator never reads the mask token.

    Args:
        tokenizer: Tokenizer, such as a `BertTokenizer`.
        **kwargs: Additional arguments to pass to `MaskedLMPreprocessor`. In the paper, `mask_rate`
            is 0.15, or 0.25 for large models.

    Returns:
        When called, a tuple `(x, y, sample_weight)` as in `MaskedLMPreprocessor`. In x, "token_ids"
        are the text's ids, and "masked_token_ids" are the ids with masks. Both have the shape
        (B, L). If weights are passed for the texts, `sample_weight` contains the weights of the
        tokens in both losses: `{"generator": (B, M), "detection": (B, L)}`.

    Source: Clark et al. 2020, ELECTRA, section 2 and appendix A.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat"])
        >>> x, y, _ = ReplacedTokenDetectionPreprocessor(tokenizer)(["cat"])
        >>> x["token_ids"].numpy().tolist(), x["masked_token_ids"].numpy().tolist()
        ([[2, 6, 3]], [[2, 4, 3]])
    """

    task_name = "replaced_token_detection"

    def collate(self, examples: dict, seed=None, bucketed: Bucketed = False):
        inputs, labels, weights = super().collate(examples, seed, bucketed)
        inputs["masked_token_ids"] = inputs["token_ids"]
        inputs["token_ids"] = replace_tokens(inputs["token_ids"], inputs["mask_positions"], labels)
        return inputs, labels, weights

    def _weigh_masks(self, weights, given, positions, token_ids):
        masked = super()._weigh_masks(weights, given, positions, token_ids)
        return {"generator": masked, "detection": repeat_text_weights(given, token_ids)}

    def choose_replacements(self, kept: xp.Tensor, kind: xp.Tensor, which: xp.Tensor) -> xp.Tensor:
        return xp.fill(xp.shape(kept), self.tokenizer.mask_token_id)
