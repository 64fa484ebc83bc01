"""Token classification: named entities, parts of speech.

Comment letters: B batch, L sequence, D hidden, C tags, P tokens of all texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, Rate, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.tasks.base.class_names import count_and_names, softmax
from encoder_zoo.tasks.base.head import head_dropout
from encoder_zoo.tasks.base.labelled_task import LabelledTask
from encoder_zoo.tasks.base.records import padded_columns, records
from encoder_zoo.tasks.base.task import TinyData
from encoder_zoo.tasks.preprocessing.columns import plain
from encoder_zoo.tasks.preprocessing.preprocessor import as_valid_text
from encoder_zoo.tasks.preprocessing.tokenized_texts import TokenizedTexts, as_word_tensor, is_words
from encoder_zoo.tasks.preprocessing.windows import merge
from encoder_zoo.tasks.token_classification import metrics, token_labels
from encoder_zoo.tasks.token_classification.alignment import tags_of_tokens
from encoder_zoo.tasks.token_classification.entities import (
    Strategy,
    entity_columns,
    find_entities,
)
from encoder_zoo.tasks.token_classification.preprocessor import TokenClassifierPreprocessor
from encoder_zoo.tasks.token_classification.tags import parse_tags
from encoder_zoo.tasks.training.inference import token_outputs_in_graph, unpadded_outputs
from encoder_zoo.tasks.training.sources import check_preprocessor


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TokenClassifier(LabelledTask):
    """Tags words: names of persons and places, parts of speech.

    Args:
        backbone: any `Backbone`; no pooler is needed.
        preprocessor: a `TokenClassifierPreprocessor`, for raw text.
        num_classes: C; with `labels` their number.
        labels: names of the tags, saved with the preset. Without `labels` and `num_classes`, the
            first `fit` learns them from its data. Where one of the names is a whole number, whole
            numbers in `y` are names and not the tags' numbers.
        dropout: before the output layer, in training; None is the backbone's.
        strategy: default of `extract_entities` and exports. None: "simple", until `fit` sets it to
            "first", or "average" if all tokens are labelled. It is saved with the preset.

    `fit` and `evaluate` take as x texts, or lists of words; texts with their spans, as spaCy's
    `(text, {"entities"})` or Prodigy's `{"text", "spans"}`; or a `tf.data.Dataset`, see `Task.fit`,
    whose elements may hold words and tags as vectors or ragged batches. They take as y for every
    text a list of `{"start", "end", "label"}`, or of tuples of these, in characters, not
    overlapping; for every list of words a list of as many tags, names or numbers. Their errors name
    the example: "Example 3 has 7 words but 6 tags."

    Call arguments:
        inputs: the preprocessor's outputs.

    Returns:
        (B, L, C) float32 logits.

    Raises:
        ValueError: if `labels` and `num_classes` disagree.

    Source: Devlin et al. 2019, section 5.3.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, pooler=False)
        >>> classifier = TokenClassifier(backbone, labels=["O", "B-PER", "I-PER"])
        >>> tuple(classifier({"token_ids": np.array([[2, 7, 3]])}).shape)
        (1, 3, 3)
    """

    task_name = "token_classifier"
    checkpoint_class_suffix = "ForTokenClassification"
    pipeline_tag = "token-classification"
    preprocessor_class = TokenClassifierPreprocessor
    learns_soft_labels = True
    peft_task_type = "TOKEN_CLS"
    text_method = "extract_entities"
    output_activation = "softmax"
    labels_tokens = True
    predicts_lists = True
    answer_settings = ("strategy",)
    expected_labels = "for every text a list of spans, or for every list of words a list of tags"

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: TokenClassifierPreprocessor | None = None,
        num_classes: PositiveInt | None = None,
        labels: Sequence[str] | None = None,
        dropout: Rate | None = None,
        strategy: Strategy | None = None,
        **kwargs,
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.dropout = head_dropout(self.head_record, backbone, dropout)
        self.strategy = strategy
        self._set_classes(num_classes, labels)

    @classmethod
    def tiny_data(cls) -> TinyData:
        spans = [[(0, 1, "X"), (4, 6, "X")], [], [(2, 5, "X")], []]
        return TinyData({"labels": ["O", "B-X", "I-X"]}, super().tiny_data().x, spans)

    def logits_of(self, encoded, inputs, training=None):
        return self.head(encoded["sequence_output"], training=training)  # (B, L, C)

    def compute_output_spec(self, inputs, training=None):
        self._check_labels_known()
        return keras.KerasTensor((*inputs["token_ids"].shape, self.num_classes), "float32")

    def default_loss(self) -> keras.losses.Loss:
        # Over labelled tokens: examples have different numbers of them.
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )

    def default_metrics(self) -> list:
        names = ("accuracy", "f1") if "O" in (self.labels or []) else ("accuracy",)
        return [self.metric_by_name(name) for name in names]

    def metric_by_name(self, name: str):
        if name == "accuracy":
            return metrics.TokenAccuracy(name=name)
        if name == "f1" and "O" in (self.labels or []):
            return metrics.EntityF1(self.labels)
        return super().metric_by_name(name)

    def _adapt(self, x, y) -> None:
        if self.preprocessor is not None and not isinstance(x, dict):
            self._set_word_splitting(x)
        super()._adapt(x, y)

    def _answer_like(self, teacher: TokenClassifier) -> None:
        if None not in (self.preprocessor, teacher.preprocessor):
            self.strategy = teacher.strategy
            for name in ("label_all_tokens", "split_symbols"):
                setattr(self.preprocessor, name, getattr(teacher.preprocessor, name))

    def _set_word_splitting(self, x) -> None:
        """Set the splitting of words in answers to that of the labels of `fit`."""
        preprocessor = self.preprocessor
        preprocessor.split_symbols = True if token_labels.has_spans(x) else "outer"
        if self.strategy is None:
            self.strategy = "average" if preprocessor.label_all_tokens else "first"

    def _labels_in(self, x, y) -> list[str] | int:
        if y is None:
            return token_labels.learn_labels(token_labels.labels_of_dataset(x))
        learned = token_labels.learn_labels(y)
        if not isinstance(x, dict):
            # Errors in them must be raised before the head is built for them.
            count, names = count_and_names(learned)
            token_labels.check_labels(x, y, names, count)
        return learned

    def _separate(self, x, y) -> tuple:
        return token_labels.annotated(plain(x), plain(y))

    def _predict_texts(self, x, batch_size, predict) -> list[np.ndarray]:
        tokens, logits = self._token_logits(x, batch_size)
        splits = tokens.ids.row_splits.numpy()
        return np.split(logits, splits[1:-1]) if len(splits) > 1 else []

    def _token_logits(self, x, batch_size: int | None) -> tuple[TokenizedTexts, np.ndarray]:
        """Return the tokens of texts and their logits (P, C)."""
        check_preprocessor(self, x)
        tokens = self.preprocessor.tokens(x)
        if not int(tokens.ids.nrows()):
            return tokens, np.zeros((0, self.num_classes), "float32")

        def outputs_of(examples):
            outputs = unpadded_outputs(self, examples, batch_size)
            lengths = examples["token_ids"].row_lengths()
            return tf.RaggedTensor.from_row_lengths(np.concatenate(outputs), lengths)

        return tokens, self._merged(tokens, outputs_of).numpy()

    def _merged(self, tokens: TokenizedTexts, outputs_of: Callable) -> tf.Tensor:
        """Return the logits (P, C) of all tokens, merged from the windows' examples."""
        windows = self.preprocessor.windows(tokens)
        outputs = outputs_of(self.preprocessor.examples(tokens, windows))  # ragged (W, None, C)
        return merge(outputs[:, 1:-1], windows)

    @validate_arguments
    def extract_entities(
        self, texts, strategy: Strategy | None = None, batch_size: PositiveInt | None = None
    ) -> list:
        """Return the entities in texts.

        Args:
            texts: a text or a list of texts; or lists of words.
            strategy: how tokens become entities. "simple": each token has its tag, and neighbours
                of one entity are joined. "first", "average", "max": a word has the tag of its
                first token, of its tokens' mean, or of its most probable token. "none": every
                tagged token by itself. None: the task's, which `fit` sets; "simple" before the
                first `fit`. Words are those of the vocabulary, cut at symbols as they were learned:
                see `TokenClassifierPreprocessor`.
            batch_size: default 32.

        Returns:
            For every text a list of `{"label", "text", "start", "end", "score"}`; start and end
            count the characters of the caller's string, or of the words with one space between
            them. For a single text its list alone.

        Raises:
            ValueError: "strategy is 'last'. Expected 'simple' or 'first' or ..."

        Source: the strategies are those of transformers' `TokenClassificationPipeline`.
        """
        strategy = self._strategy(strategy)
        if isinstance(texts, str):
            return self.extract_entities([texts], strategy, batch_size)[0]
        tokens, logits = self._token_logits(texts, batch_size)
        scores = tf.constant(softmax(logits))
        found = find_entities(scores, tokens, parse_tags(self.tag_names), strategy)
        return records(entity_columns(found, tokens.texts, self._entity_names(strategy)))

    def _strategy(self, given: str | None) -> str:
        """Return the given strategy, or the one of the last training."""
        return given or self.strategy or "simple"

    def _entity_names(self, strategy: str) -> tf.Tensor:
        """Return the names that the labels of `find_entities` index, (T,) strings."""
        names = self.tag_names if strategy == "none" else parse_tags(self.tag_names).type_names
        return tf.constant(names, tf.string)

    @validate_arguments
    def served(self, strategy: Strategy | None = None) -> dict[str, Callable]:
        """Return `extract_entities` of "text" for exports.

        Args:
            strategy: as for `extract_entities`.

        Returns:
            A function whose results are "count" (N,), the number of entities of every text, and
            "label", "text", "start", "end" and "score", (N, G) with G the most entities of a
            text; after a text's last entity they are "" and 0.
        """
        strategy = self._strategy(strategy)
        tags, names = parse_tags(self.tag_names), self._entity_names(strategy)
        token_logits = functools.partial(self, training=False)
        outputs_of = functools.partial(token_outputs_in_graph, self, token_logits)

        def entities(text):
            tokens = self.preprocessor.tokens(as_valid_text(text))
            logits = self._merged(tokens, outputs_of)
            found = find_entities(tf.nn.softmax(logits), tokens, tags, strategy)
            return padded_columns(entity_columns(found, tokens.texts, names))

        return {"serving_default": entities}

    @validate_arguments
    def tag_words(self, words, batch_size: PositiveInt | None = None) -> list[list[str]]:
        """Return the tag of every word: of its first token, or of all its tokens if these were
        labelled.

        Args:
            words: lists of words.
            batch_size: default 32.

        Returns:
            For every list of words as many tags; a word without a token has the tag O.

        Raises:
            ValueError: "Expected lists of words. Received texts: ..."
        """
        words = plain(words)
        if not is_words(words) and len(words):
            raise ValueError(f"Expected lists of words. Received texts: {words[0]!r}, ...")
        tokens, logits = self._token_logits(words, batch_size)
        counts = as_word_tensor(words).row_lengths().numpy() if is_words(words) else []
        best, by_all = logits.argmax(axis=-1), self.preprocessor.label_all_tokens
        return tags_of_tokens(tokens, best, counts, self.tag_names, by_all)

    @validate_arguments
    def evaluate_entities(
        self, x, y, scheme: str | None = None, batch_size: PositiveInt | None = None
    ):
        """Compute entity precision, recall and F1 over whole texts, however long, and of every
        type.

        The metric of `evaluate` sees one window at a time; this merges the windows first, and
        scores the results of `tag_words` and `extract_entities`.

        Args:
            x: lists of words, or texts.
            y: tags of the words, or spans of the texts, as for `fit`.
            scheme: for tags: None, or "IOB1", "IOB2", "IOBES" to count well-formed entities only.
            batch_size: default 32.

        Returns:
            `{"precision", "recall", "f1", "per_type": {type: {..., "support"}}}`.
        """
        self._check_labels_known()
        x, y = self._separate(x, y)
        token_labels.check_labels(x, y, self.labels, self.num_classes)
        y = token_labels.label_lists(y)
        if is_words(x):
            names = self.tag_names
            true = [[t if isinstance(t, str) else names[t] for t in tags] for tags in y]
            return metrics.score_tags(true, self.tag_words(x, batch_size), scheme, tag_set=names)
        spans = [
            [{(e["label"], e["start"], e["end"]) for e in row} for row in examples]
            for examples in (y, self.extract_entities(x, batch_size=batch_size))
        ]
        return metrics.score_entities(*spans)

    @property
    def tag_names(self) -> list[str]:
        """Return the labels; LABEL_0, LABEL_1 and so on if they have no names."""
        return self.labels or [f"LABEL_{i}" for i in range(self.num_classes)]
