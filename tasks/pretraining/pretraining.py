"""Pretraining of BERT and ALBERT: masked tokens, and classification of pairs of segments.

Comments use these letters for shapes: B batch, L sequence, M masked positions, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self, Unpack

import keras
import numpy as np

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import NonNegativeInt, Rate, SequenceLength, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.head import TaskHead, get_head_dropout
from encoder_zoo.tasks.base.task import Task, TinyData
from encoder_zoo.tasks.classification.class_labels import convert_class_indices
from encoder_zoo.tasks.losses.batch_loss import BatchLoss
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed
from encoder_zoo.tasks.preprocessing.preprocessor import check_same_count
from encoder_zoo.tasks.preprocessing.tokenized_texts import is_list
from encoder_zoo.tasks.pretraining import masked_lm
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import MaskedLMPreprocessor
from encoder_zoo.tasks.training.metrics import flatten_tokens
from encoder_zoo.tasks.training.objective import Objective

SHORT_SHARE = 0.1


@keras.saving.register_keras_serializable(package="encoder_zoo")
class PretrainingPreprocessor(MaskedLMPreprocessor):
    """Convert segment pairs to examples with masked tokens for `Pretraining`.

    For a `PretrainingCorpus`, the preprocessor creates the pairs (see `make_segment_pairs`). For
    half of all pairs, the second segment is the next segment in the document. For all remaining
    pairs, the second segment is taken from another document (BERT), or the segments are swapped
    (ALBERT).

    Args:
        tokenizer: A `BertTokenizer` or `AlbertTokenizer`.
        sequence_length: Optional positive integer. See `Preprocessor`. Pairs from a corpus fill
            this length.
        short_share: Float between 0 and 1. Share of corpus pairs with a smaller length, so that the
            model also learns from short texts. Defaults to 0.1.
        **kwargs: `mask_rate`, `whole_words`, `dynamic` and `seed` of `MaskedLMPreprocessor`.

    Returns:
        When called, `(x, y, sample_weight)`. x is the same as for `MaskedLMPreprocessor`. y and
        sample_weight are `{"masked_lm": (B, M), OBJECTIVE: (B,)}`. OBJECTIVE is "next_sentence" or
        "sentence_order", depending on the task. Its label is 0 for pairs in order.

    Raises:
        ValueError: If `pack_texts` is True.

    Source: Devlin et al. 2019, BERT, section 3.1 and appendix A. Lan et al. 2020, ALBERT, section
    3.1.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> words = ["the", "cat", "sat", "it", "ate"]
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        >>> x, y, _ = PretrainingPreprocessor(tokenizer)((["the cat sat"], ["it ate"]), [0])
        >>> x["segment_ids"].numpy().tolist(), y["next_sentence"].numpy().tolist()
        ([[0, 0, 0, 0, 0, 1, 1, 1]], [0])
    """

    task_name = "pretraining"

    @validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: SequenceLength | None = None,
        short_share: Rate = SHORT_SHARE,
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length, **kwargs)
        self.short_share = short_share
        self.objective = "next_sentence"
        if self.pack_texts or not self.across_documents:
            raise ValueError(
                "Pretraining uses one pair of segments per row. `pack_texts` and "
                "`across_documents` are only supported by MaskedLM."
            )

    def attach(self, task: Task) -> None:
        super().attach(task)
        self.objective = task.head_record.pair.objective

    def encode(self, x, y=None, sample_weight=None) -> dict:
        if y is None:
            raise ValueError(
                "The labels are missing. Expected a PretrainingCorpus, or pairs (first, second) "
                "with labels `y`: 0 if the second segment follows the first one, else 1."
            )
        examples = super().encode(x, sample_weight=sample_weight)
        examples["labels"] = self.encode_labels(y)
        check_same_count(examples)
        return examples

    def encode_labels(self, y) -> xp.Tensor:
        names = list(ORDER_LABELS) if self.objective == "sentence_order" else None
        labels = convert_class_indices(y, names, 2)
        if len(labels.shape) == 2:
            expected = "one label per pair: 0 if the second segment follows the first one, else 1"
            raise ValueError(f"`y` has shape {tuple(labels.shape)}. Expected {expected}.")
        return labels

    def collate(self, examples: dict, seed=None, bucketed: Bucketed = False):
        x, y, weights = super().collate(examples, seed, bucketed)
        labels = examples["labels"]
        each = examples.get("sample_weight", xp.ones(xp.shape(labels)))
        return (
            x,
            {"masked_lm": y, self.objective: labels},
            {"masked_lm": weights, self.objective: each},
        )


ORDER_LABELS = ("in_order", "swapped")  # in the order of transformers' `sentence_order_label`


@validate_arguments
def sentence_order_pairs(
    documents: Sequence[Sequence[str]], seed: NonNegativeInt = 0
) -> tuple[tuple[list[str], list[str]], list[str]]:
    """Create pairs of adjacent texts with labels. About half of all pairs are swapped.

    To classify these pairs, a `SequenceClassifier` has to learn text coherence. In contrast, the
    topics are already different for the pairs in BERT's next-sentence prediction.

    Args:
        documents: List of documents. Each document is a list of its sentences or paragraphs. The
            first and the second sentence are a pair, then the third and the fourth, and so on. If
            the number of sentences is odd, the last sentence is ignored.
        seed: Non-negative integer. Seed for the random swaps. Defaults to 0.

    Returns:
        `(first, second), labels`, as for `fit`. The labels are "in_order" and "swapped".

    Raises:
        ValueError: If a document is a string instead of a list of sentences.

    Source: Lan et al. 2020, ALBERT, section 3.1, inter-sentence coherence loss.

    Example:
        >>> pairs, labels = sentence_order_pairs([["One.", "Two.", "Three.", "Four."], ["Alone."]])
        >>> [sorted(pair) for pair in zip(*pairs, strict=True)]
        [['One.', 'Two.'], ['Four.', 'Three.']]
    """
    for i, document in enumerate(documents):
        if not is_list(document):
            raise invalid(f"documents[{i}]", document, "a list of its sentences")
    pairs = [
        (document[i], document[i + 1])
        for document in documents
        for i in range(0, len(document) - 1, 2)
    ]
    swapped = np.random.default_rng(seed).random(len(pairs)) < 0.5
    first = [pair[int(s)] for pair, s in zip(pairs, swapped, strict=True)]
    second = [pair[1 - int(s)] for pair, s in zip(pairs, swapped, strict=True)]
    return (first, second), [ORDER_LABELS[int(s)] for s in swapped]


# Devlin et al. 2019, appendix A.2: 1e-4, and 10,000 of 1,000,000 steps.
PRETRAINING_LEARNING_RATE = 1e-4
PRETRAINING_WARMUP = 0.01


class PretrainingPresetArguments(masked_lm.MaskingPresetArguments, total=False):
    """Keyword arguments for `Pretraining.from_preset`."""

    short_share: float


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Pretraining(Task):
    """Predict masked tokens and classify pairs, as in pretraining for BERT and ALBERT.

    Both objectives are trained together on a `PretrainingCorpus`. The model is saved in the format
    for `BertForPreTraining` or `AlbertForPreTraining` in transformers, and can be loaded into any
    task:

        corpus = PretrainingCorpus.from_files("corpus", paths, tokenizer)
        pretraining = Pretraining(backbone, PretrainingPreprocessor(tokenizer, 128))
        pretraining.fit(corpus, batch_size=256, steps_per_epoch=10_000, epochs=100)
        pretraining.save_to_preset("my_bert")
        MaskedLM.from_preset("my_bert").fill_mask("A [MASK] sat down.")

    The learning rate of `fit` depends on the number of steps. It increases during the first 1% of
    the steps, and decreases to 0 at the last step. Families without a second objective, such as
    RoBERTa, are pretrained with `MaskedLM` on the same corpus, and ELECTRA with
    `ReplacedTokenDetection`.

    Args:
        backbone: A `BertBackbone` or `AlbertBackbone` with a pooler.
        preprocessor: Optional `PretrainingPreprocessor`.
        dropout: Optional float between 0 and 1. Dropout rate of the pooled output, for families
            that use it.

    Returns:
        `{"masked_lm": (B, M, V), OBJECTIVE: (B, 2)}` float32 logits. Without "mask_positions",
            "masked_lm" contains the logits of all tokens (B, L, V). OBJECTIVE is "next_sentence"
            for BERT, where 1 means that the second segment comes from another document. It is
            "sentence_order" for ALBERT, where 1 means that the segments are swapped.

    Raises:
        ValueError: If the family has no head for sentence pairs, or if `backbone` has no pooler.

    Source: Devlin et al. 2019, BERT, section 3.1 and appendix A.2. Lan et al. 2020, ALBERT, section
    3.1.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, pooler=True)
        >>> outputs = Pretraining(backbone)({"token_ids": np.array([[2, 4, 7, 3]])})
        >>> {name: keras.ops.shape(logits) for name, logits in outputs.items()}
        {'masked_lm': (1, 4, 30), 'next_sentence': (1, 2)}
    """

    record = TaskRecord(
        "pretraining",
        PretrainingPreprocessor,
        head="ForPreTraining",
        pipeline_tag="fill-mask",
        instead_of_predict="save_to_preset, and MaskedLM.from_preset for fill_mask",
        pretrains=True,
        learning_rate=PRETRAINING_LEARNING_RATE,
        warmup=PRETRAINING_WARMUP,
        of_pairs=True,
    )

    @classmethod
    def tiny_data(cls) -> TinyData:
        first = super().tiny_data().x
        return TinyData({}, (first, first[::-1]), [0, 1, 1, 0])

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: PretrainingPreprocessor | None = None,
        dropout: Rate | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        record = self.head_record
        if record.pair is None:
            raise ValueError(
                f"The family {backbone.family.name!r} has no second head for pairs. Pretrain it "
                "with MaskedLM or ReplacedTokenDetection, on the same corpus."
            )
        if not backbone.pooler:
            raise ValueError("Pretraining requires a pooler. Create the backbone with pooler=True.")
        self.pair_objective = record.pair.objective
        self.dropout = get_head_dropout(record, backbone, dropout)
        self.head = masked_lm.make_masked_lm_head(self)
        self.pair_head = TaskHead(2, self.dropout, name="pair_head", dtype=self.dtype_policy)
        self.pair_head.build((None, backbone.hidden_dim))
        self._finish_building()

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[PretrainingPresetArguments]
    ) -> Self:
        """Load a model with both heads of BERT's pretraining. See `Task.from_preset`.

        Args:
            source: String or path. See `MaskedLM.from_preset`.
            **arguments: `short_share`, and the keyword arguments of `MaskedLM.from_preset`, except
                `head_activation` and `head_layer_norm_epsilon`.
        """
        return super().from_preset(source, **arguments)

    def call(self, inputs, training=None):
        outputs = self.encode_inputs(inputs, training)
        x, positions = outputs["sequence_output"], inputs.get("mask_positions")
        return {
            "masked_lm": masked_lm.compute_token_logits(self.backbone, self.head, x, positions),
            self.pair_objective: self.pair_head(outputs["pooled_output"], training=training),
        }

    def compute_output_spec(self, inputs, training=None):
        positions = inputs.get("mask_positions", inputs["token_ids"])
        tokens = (*positions.shape, self.backbone.vocabulary_size)
        return {
            "masked_lm": keras.KerasTensor(tokens, "float32"),
            self.pair_objective: keras.KerasTensor((inputs["token_ids"].shape[0], 2), "float32"),
        }

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        return {**super().input_ranges(length), "mask_positions": (0, length - 1)}

    # -- training ------------------------------------------------------------------------------

    @property
    def objective(self) -> Objective:
        """The objective for masked tokens. The pair loss is added in `compute_loss`."""
        return Objective(
            masked_lm.make_masked_lm_loss,
            lambda: {
                name: masked_lm.make_token_metrics() for name in ("masked_lm", self.pair_objective)
            },
            "softmax",
            of_tokens=True,
            fills_batches=False,
            names_outputs=True,
            inputs_of_metrics=_flatten_masked_tokens,
        )

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Compute the mean loss of masked tokens plus the mean loss of pairs."""
        weights = sample_weight or dict.fromkeys(y)
        tokens = (y["masked_lm"], y_pred["masked_lm"], weights["masked_lm"])
        loss = super().compute_loss(x, *tokens, training)
        labels, logits, each = (v[self.pair_objective] for v in (y, y_pred, weights))
        return loss + BatchLoss(masked_lm.make_masked_lm_loss())(labels, logits, each)[0]


def _flatten_masked_tokens(x, y, y_pred, sample_weight) -> tuple:
    """Return labels, outputs and weights with one row per masked token."""
    parts = y, y_pred, sample_weight or dict.fromkeys(y)
    tokens = flatten_tokens(*(part["masked_lm"] for part in parts))
    return tuple({**part, "masked_lm": v} for part, v in zip(parts, tokens, strict=True))
