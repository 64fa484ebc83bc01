"""Preprocessor for texts, or sentences split into words, with labels for tokens.

Comments use these letters for shapes: B batch, L sequence, N texts, P tokens of all texts.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

from encoder_zoo.common import validation
from encoder_zoo.common.lazy import keras, tf, xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.encoders.tokenizers.text.text_input import make_word_tensor
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed
from encoder_zoo.tasks.preprocessing.character_bounds import extend_to_marks, read_characters
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain
from encoder_zoo.tasks.preprocessing.given_labels import Labels
from encoder_zoo.tasks.preprocessing.inputs import Inputs, Text, convert_column
from encoder_zoo.tasks.preprocessing.preprocessor import (
    Preprocessor,
    check_same_count,
    convert_weights,
)
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    TokenizedTexts,
    has_word_lists,
    mark_word_starts,
    mark_word_tokens,
    tokenize_texts,
    tokenize_words,
)
from encoder_zoo.tasks.preprocessing.windows import (
    Windows,
    check_stride,
    make_windows,
    mark_owned_tokens,
    take,
)
from encoder_zoo.tasks.tagging import alignment, token_labels
from encoder_zoo.tasks.tagging.token_labels import log_misaligned_spans, log_moved_spans


@serializable
class TokenClassifierPreprocessor(Preprocessor):
    """Convert texts or sentences split into words to `[CLS] tokens [SEP]`, with labels for tokens.

    Texts that are longer than the maximum length of the model are split into overlapping windows.
    Each token is only labelled in one of its windows. Labels are tags of words, by name or index,
    or spans of characters.

    Args:
        tokenizer: The `Tokenizer` to use, from this package.
        sequence_length: Optional positive integer. Length of a window (see `Preprocessor`).
        doc_stride: Optional integer. Overlap between adjacent windows, in tokens. If None, a
            quarter of the window length is used.
        label_all_tokens: Boolean. Whether to label every token of a word. If False, only the first
            token is labelled. Defaults to False.

    Returns:
        When called with labels, `(x, y, sample_weight)`. y contains integer tags (B, L).
        sample_weight (B, L) is the example's weight for labelled tokens and 0 for other
        tokens. With spans, x also contains "span_marks", integers (B, L) that mark spans that begin
        or end inside a token. The entity metric reads these marks, and the model ignores them.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "jo", "##sé", "sings"]
        >>> tokenizer = BertTokenizer(words, strip_accents=False)
        >>> preprocessor = TokenClassifierPreprocessor(tokenizer)
        >>> x, y, weight = preprocessor([["José", "sings"]], [[1, 0]])
        >>> x["token_ids"].numpy().tolist(), y.numpy().tolist(), weight.numpy().tolist()
        ([[2, 5, 6, 7, 3]], [[0, 1, 1, 0, 0]], [[0.0, 1.0, 0.0, 1.0, 0.0]])
    """

    task_name = "token_classifier"
    inputs = Inputs(Text("texts"))
    label_values = Labels("a list of spans for each text, or a list of tags for each list of words")

    @validation.validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: validation.SequenceLength | None = None,
        doc_stride: validation.NonNegativeInt | None = None,
        label_all_tokens: bool = False,
    ):
        super().__init__(tokenizer, sequence_length)
        self.doc_stride = doc_stride
        self.label_all_tokens = label_all_tokens

    def attach(self, task) -> None:
        super().attach(task)
        check_stride(self.doc_stride or 0, self.max_sequence_length - self.count_specials() - 1)

    @validation.validate_arguments
    def tokenize(self, x: object, split_symbols: bool | Literal["outer"] = False) -> TokenizedTexts:
        """Tokenize texts or sentences split into words. See `TokenClassifier` for `split_symbols`.

        The offsets of a token include the combining marks after it, which many tokenizers drop.
        """
        x = convert_to_plain(x)
        if has_word_lists(x):
            return tokenize_words(self.tokenizer, make_word_tensor(x))
        tokens = tokenize_texts(self.tokenizer, convert_column(x), self._word_marks)
        ends = extend_to_marks(
            read_characters(tokens.texts), tokens.ids.value_rowids(), tokens.ends.flat_values
        )
        tokens = tokens._replace(ends=tokens.ends.with_flat_values(ends))
        if not split_symbols:
            return tokens
        return alignment.split_words_at_symbols(
            tokens, self._symbol_table, inside=split_symbols != "outer"
        )

    def split_into_windows(self, tokens: TokenizedTexts) -> Windows:
        """Divide the tokens into windows."""
        capacity = self.max_sequence_length - self.count_specials()
        doc_stride = capacity // 4 if self.doc_stride is None else self.doc_stride
        return make_windows(tokens.ids.row_lengths(), capacity, doc_stride)

    def make_examples(self, tokens: TokenizedTexts, windows: Windows) -> dict:
        """Create an example with token ids for every window."""
        return {**self.pack([take(tokens.ids, windows)]), "text_index": windows.example}

    def separate(self, x, y) -> tuple:
        return token_labels.separate_labels(x, y, self.labels)

    def encode(self, x, y=None, sample_weight=None) -> dict:
        x, y = self.separate(x, y)
        tokens = self.tokenize(x)
        windows = self.split_into_windows(tokens)
        examples = self.make_examples(tokens, windows)
        if y is None:
            return examples
        labels, labelled, marks = self.align_labels(x, tokens, y)
        if marks is not None:
            examples[alignment.SPAN_MARKS] = self.pad_for_special_tokens(
                take(tokens.ids.with_flat_values(marks), windows)
            )
        labels = self.pad_for_special_tokens(take(tokens.ids.with_flat_values(labels), windows))
        weights = self._compute_label_weights(tokens, windows, labelled, sample_weight)
        return {**examples, "labels": labels, "label_weights": weights}

    def encode_unlabelled(self, x, sample_weight=None) -> dict:
        x = convert_to_plain(x)
        tokens = self.tokenize(x)
        windows = self.split_into_windows(tokens)
        units = (
            tokens
            if has_word_lists(x)
            else alignment.split_words_at_symbols(tokens, self._symbol_table)
        )
        labelled = mark_word_starts(units) | self.label_all_tokens
        weights = self._compute_label_weights(tokens, windows, labelled, sample_weight)
        return {**self.make_examples(tokens, windows), "label_weights": weights}

    def _compute_label_weights(
        self, tokens: TokenizedTexts, windows: Windows, labelled: xp.Tensor, sample_weight
    ) -> xp.RaggedTensor:
        """Return the token weights of each window. Unlabelled and repeated tokens have weight 0."""
        weights = xp.cast(labelled, "float32")
        if sample_weight is not None:
            sample_weight = convert_weights(sample_weight)
            check_same_count({"token_ids": tokens.ids, "sample_weight": sample_weight})
            weights *= xp.gather(sample_weight, tokens.ids.value_rowids())
        weights = take(tokens.ids.with_flat_values(weights), windows)
        counted = xp.cast(mark_owned_tokens(windows).flat_values, "float32")
        return self.pad_for_special_tokens(weights.with_flat_values(weights.flat_values * counted))

    def align_labels(self, x, tokens: TokenizedTexts, y) -> tuple:
        """Return the label of each token, a mask of labelled tokens, and span marks, shape (P,).

        For words with tags, the span marks are None.
        """
        words, in_graph = has_word_lists(x), xp.is_symbolic_tensor(tokens.texts)
        if in_graph and isinstance(y, dict) == words:
            raise ValueError(
                f"The labels of {'words are spans' if words else 'texts are tags'}. Expected tags "
                "for words, and spans {start, end, label} for texts."
            )
        labels = token_labels.check_labels(x, y, self.labels, self._max_classes)
        if words:
            return *alignment.convert_words(
                tokens, labels, self.labels, self.label_all_tokens
            ), None
        tokens = alignment.split_words_at_symbols(tokens, self._symbol_table)
        if not in_graph:
            log_moved_spans(y, labels, convert_column(x))
            log_misaligned_spans(labels, convert_column(x), tokens)
        return alignment.convert_spans(tokens, labels, self.labels, self.label_all_tokens)

    def measure_cut_spans(self, x, y) -> float:
        """Return the fraction of spans that begin or end inside a word.

        Args:
            x: List of texts.
            y: Spans of the texts.
        """
        spans = token_labels.check_labels(x, y, self.labels, self._max_classes)
        cut = alignment.mark_cut_spans(self.tokenize(x, split_symbols=True), spans)
        return float(np.mean(cut)) if len(cut) else 0.0

    @functools.cached_property
    def _word_marks(self) -> np.ndarray:
        with xp.init_scope():
            return mark_word_tokens(self.tokenizer)

    @functools.cached_property
    def _symbol_table(self) -> np.ndarray:
        with xp.init_scope():
            return alignment.make_symbol_table(self.tokenizer)

    @property
    def _max_classes(self) -> int:
        return self.num_classes or np.iinfo("int32").max

    def collate(self, examples: dict, seed=None, bucketed: Bucketed = False):
        inputs = self.pad(examples, bucketed)
        if "labels" not in examples:
            return inputs
        ids = inputs["token_ids"]
        shape = xp.shape(ids, xp.int64)
        padded = {
            name: xp.ensure_shape(examples[name].to_tensor(shape=shape), ids.shape)
            for name in ("labels", "label_weights", alignment.SPAN_MARKS)
            if name in examples
        }
        y, weights = padded.pop("labels"), padded.pop("label_weights")
        return {**inputs, **padded}, y, weights

    @validation.validate_arguments
    def batch_examples(
        self, dataset: tf.data.Dataset, batch_size: validation.PositiveInt
    ) -> tf.data.Dataset:
        """Batch a dataset of single examples. Datasets of batches are returned unchanged.

        A single example is a scalar text, or a vector of words with a vector of tags. Without tags,
        a vector of strings is a single example if the spec of the dataset is ragged. Otherwise, the
        vector is a batch of texts.
        """
        x, y, _ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
        tagged = isinstance(y, tf.TypeSpec) and y.shape.rank == 1
        is_sentence = x.shape.rank == 1 and (tagged or isinstance(x, tf.RaggedTensorSpec))
        single = x.shape.rank == 0 or is_sentence
        return dataset.ragged_batch(batch_size) if single else dataset
