"""Texts to examples for embeddings, each text by itself.

Comment letters: B batch, N examples, K further texts of each, L sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import SequenceLength, validate_arguments
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.presets.formats import embedding_folder
from encoder_zoo.tasks.embedding.columns import as_columns
from encoder_zoo.tasks.embedding.prompts import checked_prompts, prompt_text
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.preprocessing.columns import plain
from encoder_zoo.tasks.preprocessing.preprocessor import (
    Preprocessor,
    as_weights,
    check_no_iterator,
    check_same_count,
)
from encoder_zoo.tasks.preprocessing.windows import make_windows, take

if TYPE_CHECKING:
    from encoder_zoo.presets.formats.checkpoint import Checkpoint
    from encoder_zoo.presets.opening import TokenizerPreset


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TextEmbedderPreprocessor(Preprocessor):
    """Texts to `[CLS] text [SEP]`; of pairs, triplets and so on each text is an input of its own.

    Args:
        tokenizer: any of this package's.
        sequence_length: see `Preprocessor`.
        max_length: longer texts are truncated to so many tokens, special ones counted;
            None is the model's longest. Unlike `sequence_length` it does not pad.
        prompts: {name: text to put before a text}.
        default_prompt: name of the prompt where none is asked for; None for no prompt.
        include_prompt: whether the prompt's tokens are pooled.

    Returns:
        As of `Preprocessor`; of inputs with several texts the first is "token_ids" (B, L), and the
        others are "candidate_token_ids" (B, K, L). Without scores the labels are numbers
        (B, 1 + K) that are equal where texts are equal.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "you"]
        >>> preprocessor = TextEmbedderPreprocessor(BertTokenizer(tokens))
        >>> x, y = preprocessor((["hello"], ["hello you"]))
        >>> x["token_ids"].numpy().tolist(), x["candidate_token_ids"].numpy().tolist()
        ([[2, 5, 3]], [[[2, 5, 6, 3]]])
        >>> y.numpy().tolist()
        [[0, 1]]
    """

    task_name = "text_embedder"
    one_example_per_text = True
    truncation_cure = 'embed(texts, windows="mean") reads all of a text.'

    @validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: SequenceLength | None = None,
        max_length: SequenceLength | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str | None = None,
        include_prompt: bool = True,
    ):
        super().__init__(tokenizer, sequence_length)
        self.max_length = max_length
        self.max_sequence_length = sequence_length or max_length or self.max_sequence_length
        self.prompts = checked_prompts(prompts, default_prompt)
        self.default_prompt = default_prompt
        self.include_prompt = include_prompt

    @classmethod
    def arguments_from_files(cls, preset: Checkpoint | TokenizerPreset, tokenizer) -> dict:
        return embedding_folder.preprocessor_arguments(preset, tokenizer)

    def prompt_text(self, prompt: str | None) -> str:
        """Return the text of a prompt, by its name; see `TextEmbedder.embed`."""
        return prompt_text(self.prompts, prompt, self.default_prompt)

    def encode(self, x, y=None, sample_weight=None, prompt: str | None = None) -> dict:
        """Return examples of token ids, not padded.

        Args:
            x: see `TextEmbedder.fit`.
            y: scores of pairs, (N,) or (N, K); vectors of single texts, (N, D); or None.
            sample_weight: one number for each example, or None.
            prompt: of single texts, see `TextEmbedder.embed`. Of several texts without scores the
                first gets the prompt "query", the others "document".

        Returns:
            Tensors with one row per example: "token_ids" ragged (N, None); of several texts
            "candidate_token_ids" ragged (N, K, None); with `include_prompt=False` the same with
            "pooled_from" in place of "token_ids", the number of tokens that are not pooled; and
            "labels" and "sample_weight".
        """
        first, *others = as_columns(x)
        retrieval = others and y is None
        examples = self._encoded(first, "query" if retrieval else prompt)
        if others:
            texts = tf.stack(others, axis=1)  # (N, K)
            prompt = "document" if retrieval else prompt
            encoded = self._encoded(tf.reshape(texts, [-1]), prompt)
            splits = tf.range(tf.shape(texts, tf.int64)[0] + 1) * texts.shape[1]
            examples |= {
                CANDIDATE + name: tf.RaggedTensor.from_row_splits(values, splits, validate=False)
                for name, values in encoded.items()
            }
            every = tf.concat([first[:, None], texts], axis=1)  # (N, 1 + K)
            examples["labels"] = _numbered(every) if y is None else as_scores(y)
        elif y is not None:
            examples["labels"] = as_vectors(y)
        if sample_weight is not None:
            examples["sample_weight"] = as_weights(sample_weight)
        check_same_count(examples)
        return examples

    def _encoded(self, texts: tf.Tensor, prompt: str | None) -> dict:
        """Return the tokens of texts (N,) after a prompt, truncated."""
        # One more than is read, to count the texts that are cut.
        tokens = self._tokens(texts, prompt, self.max_sequence_length - 1)
        examples = {"token_ids": self.pack([tokens])["token_ids"]}
        if not self.include_prompt:
            count = self._prompt_length(prompt)
            examples["pooled_from"] = tf.fill([tf.shape(texts)[0]], count)
        return examples

    def _tokens(self, texts: tf.Tensor, prompt: str | None, first: int | None) -> tf.RaggedTensor:
        text = self.prompt_text(prompt)
        return self.tokenizer.tokenize(tf.strings.join([text, texts]) if text else texts, first)

    def _prompt_length(self, prompt: str | None) -> int:
        """Return the number of tokens before those that are pooled: of prompt and [CLS]."""
        text = self.prompt_text(prompt)
        return len(self.tokenizer.tokenize(text)) + self.tokenizer.first_column if text else 0

    def encode_short(self, texts: tuple) -> dict:
        """Return examples of texts, ((N,),), that have their prompt and need not be truncated."""
        return {"token_ids": self.pack([self.tokenizer.tokenize(texts[0])])["token_ids"]}

    def encode_windows(self, texts, prompt: str | None = None) -> dict:
        """Return examples of single texts, a long one cut into several of equal length or shorter.

        Args:
            texts: (N,), as for `encode`.
            prompt: before the text, so at the beginning of the first window alone.

        Returns:
            As of `encode`, for all windows, and "text_index" (W,) int64, the text of each.
        """
        [texts] = as_columns(texts)
        tokens = self._tokens(texts, prompt, None)
        windows = make_windows(tokens.row_lengths(), self.max_sequence_length - 2, 0)
        examples = {"token_ids": self.pack([take(tokens, windows)])["token_ids"]}
        if not self.include_prompt:
            first = windows.begin == 0
            examples["pooled_from"] = tf.where(first, self._prompt_length(prompt), 0)
        return {**examples, "text_index": windows.example}

    def collate(self, examples: dict, seed: tf.Tensor | None = None, bucketed: bool = False):
        x = self.pad(examples, bucketed)
        if CANDIDATE + "token_ids" in examples:
            x |= self._padded_candidates(examples, bucketed)
        labels = examples.get("labels")
        if labels is not None and tf.as_dtype(labels.dtype).is_integer:
            labels = _numbered(labels)  # small numbers, which float32 holds exactly
        return keras.utils.pack_x_y_sample_weight(x, labels, examples.get("sample_weight"))

    @validate_arguments
    def pad(self, examples: dict, bucketed: bool = False) -> dict[str, tf.Tensor]:
        """Return the model's inputs (B, L) of the first texts."""
        # All tokens are in segment 0.
        first_length = {"first_length": tf.fill([tf.shape(examples["token_ids"])[0]], 2**30)}
        inputs = super().pad({**examples, **first_length}, bucketed)
        if "pooled_from" in examples:
            columns = tf.range(tf.shape(inputs["token_ids"])[1])
            pooled = columns >= examples["pooled_from"][:, None]
            inputs["pooling_mask"] = inputs["padding_mask"] & pooled
        return inputs

    def _padded_candidates(self, examples: dict, bucketed: bool) -> dict:
        """Return the model's inputs (B, K, L) of the other texts."""
        names = ("token_ids", "pooled_from")
        parts = {n: examples[CANDIDATE + n] for n in names if CANDIDATE + n in examples}
        flat = self.pad({name: value.values for name, value in parts.items()}, bucketed)
        rows, count = parts["token_ids"].nrows(), _count_of(examples.get("labels"))
        names = ("token_ids", "padding_mask", "pooling_mask")
        padded = {name: flat[name] for name in names if name in flat}  # (B * K, L)
        return {
            CANDIDATE + name: tf.reshape(
                values, tf.stack([rows, count, tf.shape(values, tf.int64)[1]])
            )
            for name, values in padded.items()
        }


def _count_of(labels: tf.Tensor | None) -> int:
    """Return K, as far as labels tell it before a graph runs; else -1."""
    if labels is None:
        return -1
    if len(labels.shape) == 1:
        return 1
    return labels.shape[1] - 1 if tf.as_dtype(labels.dtype).is_integer else labels.shape[1]


def _numbered(values: tf.Tensor) -> tf.Tensor:
    """Return int32 of the same shape, equal where the values are equal, from 0 on."""
    return tf.reshape(tf.unique(tf.reshape(values, [-1])).idx, tf.shape(values))


def as_scores(y) -> tf.Tensor:
    """Return scores of pairs as float32, (N,) or (N, K), checked.

    Raises:
        ValueError: "y is of type string. Expected ...", "Row 3 has the score nan. Expected a
            finite number."

    Example:
        >>> as_scores([0.5, float("nan")])
        Traceback (most recent call last):
        ValueError: Row 1 has the score nan. Expected a finite number.
    """
    check_no_iterator(y, "y")
    scores = tf.convert_to_tensor(plain(y))
    if not (
        tf.as_dtype(scores.dtype).is_floating
        or tf.as_dtype(scores.dtype).is_integer
        or tf.as_dtype(scores.dtype).is_bool
    ):
        raise ValueError(
            f"y is of type {scores.dtype.name}. Expected scores of the pairs, numbers."
        )
    scores = tf.cast(scores, "float32")
    finite = tf.math.is_finite(scores)
    right = tf.reduce_all(tf.reshape(finite, [tf.shape(scores)[0], -1]), axis=1)
    return check_each(scores, right, " has the score ", scores, ". Expected a finite number.")


def as_vectors(y) -> tf.Tensor:
    """Return the vectors that single texts shall have, as float32 (N, D), checked.

    Raises:
        ValueError: "x has one column of texts, so y must be vectors (N, D). ..."
    """
    vectors = as_scores(y)
    if len(vectors.shape) != 2:
        raise ValueError(
            "x has one column of texts, so y must be their vectors, (texts, width). Received the "
            f"shape {tuple(vectors.shape)}. Scores are of pairs: x=(first, second)."
        )
    return vectors
