"""Texts to examples with and without masks, for replaced-token detection.

Dimensions in comments: B batch, L sequence, M masked positions.
"""

from __future__ import annotations

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.serializable import serializable
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import (
    MaskedLMPreprocessor,
    put_at,
    token_weights,
)


@serializable
class ReplacedTokenDetectionPreprocessor(MaskedLMPreprocessor):
    """Texts to examples with and without masks, for `ReplacedTokenDetection`.

    A share of the ordinary tokens of every text is selected, and all of them become the mask token:
    the discriminator never sees it, so that no random or original token has to replace it.

    Args:
        tokenizer: a `BertTokenizer`, or another.
        **kwargs: the other arguments of `MaskedLMPreprocessor`. The paper takes a `mask_rate` of
            0.15, and 0.25 for its large models.

    Returns:
        When called `(x, y, sample_weight)` as `MaskedLMPreprocessor`, but in x "token_ids" are the
        text's own, and those with masks are "masked_token_ids", both (B, L). Weights given for the
        texts are `{"generator": (B, M), "detection": (B, L)}`, of the tokens of both losses.

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
        inputs["token_ids"] = put_at(inputs["token_ids"], inputs["mask_positions"], labels)
        return inputs, labels, weights

    def _weighted(self, weights, given, positions, token_ids):
        masked = super()._weighted(weights, given, positions, token_ids)
        return {"generator": masked, "detection": token_weights(given, token_ids)}

    def replacements(
        self, kept: array_ops.Tensor, kind: array_ops.Tensor, which: array_ops.Tensor
    ) -> array_ops.Tensor:
        return array_ops.fill(array_ops.shape(kept), self.tokenizer.mask_token_id)
