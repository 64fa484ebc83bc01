"""Extractive question answering.

Comment letters: B batch, L sequence, D hidden, W windows, N questions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, Rate, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.tasks.base.head import head_dropout, make_head
from encoder_zoo.tasks.base.task import Task, TinyData
from encoder_zoo.tasks.preprocessing.columns import plain
from encoder_zoo.tasks.preprocessing.preprocessor import as_valid_text
from encoder_zoo.tasks.preprocessing.windows import take
from encoder_zoo.tasks.question_answering import metrics as span_metrics
from encoder_zoo.tasks.question_answering import ranking
from encoder_zoo.tasks.question_answering.answers import (
    NO_LABELS,
    Candidates,
    NullThreshold,
    answer_lists,
    context_mask,
    find_spans,
    holds_answers,
    split_examples,
)
from encoder_zoo.tasks.question_answering.preprocessor import SpanQAPreprocessor
from encoder_zoo.tasks.question_answering.squad import squad_scores, squad_v2_scores
from encoder_zoo.tasks.training.inference import (
    example_outputs,
    token_outputs_in_graph,
    unpadded_outputs,
)
from encoder_zoo.tasks.training.sources import check_preprocessor, is_dataset


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanQA(Task):
    """Answers questions by the first and last token of a span of the context.

    Args:
        backbone: any `Backbone`; no pooler is needed.
        preprocessor: a `SpanQAPreprocessor`, for raw text.
        dropout: before the output layer, in training, in families whose head has one there; None
            is the backbone's. BERT's and RoBERTa's have none.
        null_threshold: default of `answer` and exports; `evaluate_answers` sets it, and it is saved
            with the preset.

    `fit` and `evaluate` take as x `(questions, contexts)`, or examples as `read_squad` gives them,
    `[{"question", "context", "answers"}]`; or a `tf.data.Dataset` of either. They take as y for
    every question `{"text", "answer_start"}` or a list of such, whose first is learned; None
    or an empty list if there is no answer. y is not given with examples. `validation_data` is
    `((questions, contexts), answers)`, examples, or a dataset. Errors name the example: "Example 3:
    the answer 'cat' does not stand at character 7 ..."

    Call arguments:
        inputs: the preprocessor's outputs.

    Returns:
        (B, 2, L) float32 logits: of the answer's first, and of its last token.

    Source: Devlin et al. 2019, sections 4.2 and 4.3.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, pooler=False)
        >>> tuple(SpanQA(backbone)({"token_ids": np.array([[2, 7, 3, 8, 3]])}).shape)
        (1, 2, 5)
    """

    task_name = "span_qa"
    checkpoint_class_suffix = "ForQuestionAnswering"
    pipeline_tag = "question-answering"
    preprocessor_class = SpanQAPreprocessor
    text_method = "answer"
    predicts_lists = True
    answer_settings = ("null_threshold",)
    output_activation = "softmax"

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: SpanQAPreprocessor | None = None,
        dropout: Rate | None = None,
        null_threshold: NullThreshold | None = None,
        **kwargs,
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.null_threshold = null_threshold
        self.dropout = head_dropout(self.head_record, backbone, dropout)
        self.head = make_head(
            self.head_record, backbone, 2, self.dropout, self.dtype_policy, of_tokens=True
        )
        self._finish_building()

    @classmethod
    def tiny_data(cls) -> TinyData:
        answers = [{"text": "ab", "answer_start": 4}, {"text": "c d", "answer_start": 0}]
        return TinyData({}, (["a b", "p"], ["a b ab", "c d e a b"]), answers)

    def logits_of(self, encoded, inputs, training=None):
        logits = self.head(encoded["sequence_output"], training=training)  # (B, L, 2)
        return ops.transpose(logits, (0, 2, 1))  # (B, 2, L)

    def compute_output_spec(self, inputs, training=None):
        batch, length = inputs["token_ids"].shape
        return keras.KerasTensor((batch, 2, length), "float32")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if y is None:
            raise ValueError(NO_LABELS)
        weight = span_metrics.weights_of_bounds(sample_weight)
        return super().compute_loss(x, y, span_metrics.mask_padding(x, y_pred), weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        weight = span_metrics.weights_of_bounds(sample_weight)
        return super().compute_metrics(x, y, span_metrics.mask_padding(x, y_pred), weight)

    def default_loss(self) -> keras.losses.Loss:
        # Over (B, 2): the mean of the two cross-entropies.
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_metrics(self) -> list:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def metric_by_name(self, name: str):
        metric = {"exact_match": span_metrics.SpanExactMatch, "f1": span_metrics.SpanF1}.get(name)
        return metric() if metric else super().metric_by_name(name)

    def _adapt(self, x, y) -> None:
        self.null_threshold = None  # it belongs to the weights before training

    def _check_labels(self, x, y) -> None:
        if y is None and not (is_dataset(x) or holds_answers(x)):
            raise ValueError(NO_LABELS)

    def _predict_texts(self, x, batch_size, predict) -> list[list[np.ndarray]]:
        examples = self.preprocess(x)
        outputs = zip(
            examples["text_index"].numpy(),
            unpadded_outputs(self, examples, batch_size, axis=1),
            strict=True,
        )
        by_question = itertools.groupby(outputs, key=lambda output: output[0])
        return [[values for _, values in windows] for _, windows in by_question]

    @validate_arguments
    def answer(
        self,
        question,
        context,
        top_k: PositiveInt | None = None,
        max_answer_length: PositiveInt = 30,
        null_threshold: NullThreshold | None = None,
        batch_size: PositiveInt | None = None,
    ) -> dict | list:
        """Return the answers that the contexts give.

        Args:
            question: a question, or a list of them.
            context: as many contexts, or one that all the questions are about.
            top_k: how many answers for each question.
            max_answer_length: in tokens.
            null_threshold: "" (no answer) is returned where the score of no answer exceeds the
                best span's by more than this; 0 is a good start, `float("inf")` always answers.
                None is the best one that `evaluate_answers` found on questions with and without an
                answer, and before that always answers.
            batch_size: default 32.

        Returns:
            `{"text", "start", "end", "score"}` for a single question, a list of such for a list;
            with `top_k` a list of them for each question, the best first. Start and end count the
            characters of the caller's context; no answer is "" from 0 to 0. The score is the
            answer's share among all spans of all windows.

        Raises:
            ValueError: "Example 3: the context is empty.", "Example 3: the question has ...",
                "top_k is 0. Expected ...", "max_answer_length is 0. Expected ..."
        """
        if isinstance(question, str):
            [found] = self.answer(
                [question], [context], top_k, max_answer_length, null_threshold, batch_size
            )
            return found
        if isinstance(context, str):
            question = plain(question)
            context = [context] * len(question)
        questions, contexts, _ = split_examples((question, context), None)
        texts = [text.decode() for text in contexts.numpy()]
        if not texts:
            return []
        count = 1 if top_k is None else top_k
        found = self._search((questions, contexts), count, max_answer_length, batch_size)
        found = ranking.insert_null_answers(found, self._threshold(null_threshold))
        answers = ranking.answer_dicts(found, texts, count)
        return [row[0] for row in answers] if top_k is None else answers

    def _threshold(self, given: float | None) -> float | None:
        """Return the given null threshold, or the stored one; None always answers."""
        threshold = self.null_threshold if given is None else given
        return None if threshold == float("inf") else threshold

    @validate_arguments
    def evaluate_answers(
        self,
        x,
        y=None,
        max_answer_length: PositiveInt = 30,
        null_threshold: NullThreshold | None = None,
        batch_size: PositiveInt | None = None,
    ) -> dict[str, float]:
        """Compute exact match and F1 of the answers in percent, as SQuAD's official scripts do.

        Args:
            x: as for `fit`, in memory.
            y: as for `fit`; all answers of a question count, the best of them.
            max_answer_length: in tokens.
            null_threshold: as for `answer`. With questions without an answer, None is the stored
                threshold; if there is none, it is 0, and the threshold with the best F1 is stored
                for `answer`, exports and the preset, until the next `fit`.
            batch_size: default 32.

        Returns:
            `{"exact_match", "f1", "total"}` where every question has an answer (v1.1); else those
            of `squad_v2_scores`, in which the `best_..._thresh` are for `null_threshold`.

        Raises:
            ValueError: "The answers are missing. ...", "Expected at least one question. ..."
        """
        questions, contexts, answers = split_examples(x, y)
        texts = [text.decode() for text in contexts.numpy()]
        if not texts:
            raise ValueError("Expected at least one question. Received: none.")
        right = [[a["text"] for a in given] for given in answer_lists(answers)]
        if len(right) != len(texts):
            raise ValueError(f"Received {len(texts)} questions, but answers of {len(right)}.")
        found = self._search((questions, contexts), 1, max_answer_length, batch_size)
        best = zip(texts, found.start[:, 0].numpy(), found.end[:, 0].numpy(), strict=True)
        guesses = [text[start:end] for text, start, end in best]
        differences = (found.null - found.score[:, 0]).numpy().tolist()
        if all(right) and null_threshold is None:
            return squad_scores(guesses, right)
        kept = self.null_threshold
        threshold = next((t for t in (null_threshold, kept) if t is not None), 0.0)
        scores = squad_v2_scores(guesses, right, differences, threshold)
        if null_threshold is None and kept is None:
            found = scores["best_f1_thresh"]
            holds = squad_v2_scores(guesses, right, differences, found)["f1"] == scores["best_f1"]
            self.null_threshold = found if holds else min(differences) - 1.0
        return scores

    def _search(self, x, top_k: int, max_answer_length: int, batch_size: int | None):
        """Return the best `Answers` of every question."""
        check_preprocessor(self, x)
        questions, texts, _ = split_examples(x, None)
        contexts = self.preprocessor.contexts(questions, texts)
        examples = self.preprocessor.examples(contexts)
        columns, order, parts = self.preprocessor.context_column(examples), [], []
        tokens = take(contexts.has_characters, contexts.windows).to_tensor()
        wanted = top_k if top_k == 1 else top_k * ranking.SAME_CHARACTERS
        for numbers, logits in example_outputs(self, examples, batch_size):
            chosen = (tf.gather(values, numbers) for values in (columns, tokens))
            is_context = context_mask(*chosen, logits.shape[-1])
            parts.append(find_spans(tf.constant(logits), is_context, max_answer_length, wanted))
            order.extend(numbers)
        found = (tf.gather(tf.concat(f, 0), np.argsort(order)) for f in zip(*parts, strict=True))
        return ranking.best_answers(Candidates(*found), contexts, columns, top_k)

    @validate_arguments
    def served(
        self, max_answer_length: PositiveInt = 30, null_threshold: NullThreshold | None = None
    ) -> dict[str, Callable]:
        """Return `answer` of "question" and "context" for exports.

        Args:
            max_answer_length: as for `answer`.
            null_threshold: as for `answer`.

        Returns:
            A function whose results are "text", "start", "end" and "score", each (N,). The
            answer of an empty context is "", with a score of 0 where one had to be given.
        """

        threshold = self._threshold(null_threshold)

        def answer(question, context):
            context = as_valid_text(context)
            contexts = self.preprocessor.contexts(question, context, allow_empty=True)
            examples = self.preprocessor.examples(contexts)
            columns = self.preprocessor.context_column(examples)
            logits = token_outputs_in_graph(self, self._token_logits, examples)
            logits = tf.transpose(logits.to_tensor(), (0, 2, 1))
            tokens = take(contexts.has_characters, contexts.windows).to_tensor()
            is_context = context_mask(columns, tokens, tf.shape(logits)[2])
            found = find_spans(logits, is_context, max_answer_length, 1)
            found = ranking.best_answers(found, contexts, columns, 1)
            found = ranking.insert_null_answers(found, threshold)
            start, end, score = found.start[:, 0], found.end[:, 0], ranking.answer_scores(found)
            text = tf.strings.substr(context, start, end - start, unit="UTF8_CHAR")
            return {"text": text, "start": start, "end": end, "score": score[:, 0]}

        return {"serving_default": answer}

    def _token_logits(self, inputs: dict) -> tf.Tensor:
        return tf.transpose(self(inputs, training=False), (0, 2, 1))  # (B, L, 2)
