"""Preprocessing of texts, or pairs of texts, with a label for each."""

from __future__ import annotations

import keras

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.sequence_classification.class_labels import (
    class_numbers,
    multi_label_targets,
    regression_targets,
)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SequenceClassifierPreprocessor(Preprocessor):
    """Texts or pairs of texts to `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, in RoBERTa's form
    `<s> a </s>` or `<s> a </s></s> b </s>`.

    Too long inputs are truncated, in a pair the longer text first. See `Preprocessor` for the
    arguments. Labels may be class numbers, rows of probabilities or, once a task with `labels` has
    the preprocessor, their names. Where one of the names is a whole number, such as "1", whole
    numbers are names too: of the classes "1" to "5" the label 1 is the first.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"])
        >>> x = SequenceClassifierPreprocessor(tokenizer)((["hello"], ["hello hello"]))
        >>> x["token_ids"].numpy().tolist(), x["segment_ids"].numpy().tolist()
        ([[2, 5, 3, 5, 5, 3]], [[0, 0, 0, 1, 1, 1]])
    """

    task_name = "sequence_classifier"
    one_example_per_text = True

    def encode_labels(self, y) -> tf.Tensor:
        """Return class numbers (B,), or probabilities (B, C); for several labels or regression (B,
        C).

        Args:
            y: numbers or names, or rows of C numbers; for several labels a list of names for every
                text, or rows of 0 and 1.

        Raises:
            ValueError: with the first label that is unknown and its row.
        """
        if self.problem_type == "regression":
            return regression_targets(y, self.num_classes)
        if self.problem_type == "multi_label_classification":
            return multi_label_targets(y, self.labels, self.num_classes)
        return class_numbers(y, self.labels, self.num_classes)
