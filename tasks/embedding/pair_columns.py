"""Convert the texts for `fit`: single texts, pairs, triplets, or pairs with negatives.

Comments use these letters for shapes: N examples, K additional texts of an example.
"""

from __future__ import annotations

from encoder_zoo.common.lazy import xp
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed, pack_batch
from encoder_zoo.tasks.preprocessing.checks import check_each, convert_numbers
from encoder_zoo.tasks.preprocessing.given_labels import check_not_missing
from encoder_zoo.tasks.preprocessing.inputs import Inputs, Text
from encoder_zoo.tasks.preprocessing.prepared import is_prepared
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.retrieval.documents import Documents

TEXT_COLUMNS = Inputs(Text("texts", filled=True))
# `fit` accepts single texts, pairs, and pairs with negatives.
PAIR_COLUMNS = Inputs(
    Text("anchors", "anchor", filled=True),
    Text("positives", "positive", optional=True, filled=True),
    Text("negatives", "negative", optional=True, filled=True, repeated=True),
)


def convert_single_texts(texts) -> xp.Tensor:
    """Check texts (N,) or chunks that were passed to `embed`. Pairs of texts raise an error.

    Raises:
        ValueError: If `texts` has several columns, or contains chunks that were created with
            `late=True`.
    """
    if isinstance(texts, Documents) and texts.contexts is not None:
        raise ValueError(
            "The chunks were created with late=True, which is only supported by TextEmbedder. "
            "Create them with late=False."
        )
    return TEXT_COLUMNS.convert(texts.texts if isinstance(texts, Documents) else texts)[0]


TEXT_IDS = "text_ids"  # (N, 1 + K) int32, equal values for equal texts


class SeparateTextsPreprocessor(Preprocessor):
    """Base class for preprocessors that pass each text to the model as a separate input.

    Attributes:
        values_per_text: Tuple of strings. Names of the values that each text has in addition to
            "token_ids".
    """

    inputs = PAIR_COLUMNS
    one_example_per_text = True
    values_per_text: tuple[str, ...] = ()

    def encode_texts(self, texts: xp.Tensor, prompt: str | None) -> dict:
        """Add a prompt to texts (N,), tokenize them and truncate them.

        The result also contains the fields in `values_per_text`.
        """
        raise NotImplementedError

    def _get_row_prompts(
        self, prompt: str | None, symmetric: bool
    ) -> tuple[str | None, str | None]:
        """Return the prompt of the first text and the prompt of the other texts in each row.

        Args:
            prompt: The prompt requested by the caller.
            symmetric: Boolean. Whether the rows are pairs with similarity scores.
        """
        return (prompt, prompt) if symmetric else ("query", "document")

    def separate(self, x, y) -> tuple:
        if hasattr(x, "element_spec") or is_prepared(x):
            return x, y
        return self._make_training_inputs(PAIR_COLUMNS.convert(x), y)

    def _make_training_inputs(self, columns: tuple, y) -> tuple:
        """Return inputs and labels for `fit`. Single texts are paired with themselves."""
        if len(columns) == 1 and y is not None:
            return columns[0], y
        return tuple(columns if len(columns) > 1 else columns * 2), y

    def encode(self, x, y=None, sample_weight=None, prompt: str | None = None) -> dict:
        """Convert inputs to token ids without padding.

        Args:
            x: See `fit` in the task for details.
            y: Optional values to pass to the loss: scores for pairs, (N,) or (N, K), or vectors
                from a teacher, (N, D) or (N, 1 + K, D).
            sample_weight: Optional weight for each example.
            prompt: Optional prompt to use for single texts, and for pairs with a single score or
                vector, as in `embed`. For other rows, the prompt "query" is used for the first
                text, and the prompt "document" for the other texts.

        Returns:
            Dict of tensors with a row per example. "token_ids" is ragged (N, None). For rows with
            several texts, "candidate_token_ids" is ragged (N, K, None), and "text_ids" (N, 1 + K)
            has equal values for equal texts. `values_per_text` have the same shapes without the
            last axis. "labels" and "sample_weight" are only included if provided.
        """
        first, *others = self.read_texts(x)
        if y is not None:
            y = convert_scores(y) if others else convert_vectors(y)
        of_first, of_others = prompt, None
        if others:
            symmetric = len(others) == 1 and y is not None and len(y.shape) < 3
            of_first, of_others = self._get_row_prompts(prompt, symmetric)
        examples = self.encode_texts(first, of_first)
        if others:
            texts = xp.stack(others, axis=1)  # (N, K)
            encoded = self.encode_texts(xp.reshape(texts, [-1]), of_others)
            splits = xp.range(xp.shape(texts, xp.int64)[0] + 1) * texts.shape[1]
            examples |= {
                CANDIDATE + name: xp.RaggedTensor.from_row_splits(values, splits, validate=False)
                for name, values in encoded.items()
            }
            every = xp.concat([first[:, None], texts], axis=1)
            examples[TEXT_IDS] = _enumerate_values(every)
        if y is not None:
            examples["labels"] = y
        return self.add_labels(examples, None, sample_weight)

    def collate(self, examples: dict, seed=None, bucketed: Bucketed = False):
        x = self.pad(examples, bucketed)
        if CANDIDATE + "token_ids" in examples:
            x |= self._pad_candidates(examples, bucketed)
        labels = examples.get("labels")
        if labels is None and TEXT_IDS in examples:
            # Small numbers, which are exact in float32.
            labels = _enumerate_values(examples[TEXT_IDS])
        return pack_batch(x, labels, examples.get("sample_weight"))

    def _pad_candidates(self, examples: dict, bucketed: Bucketed) -> dict:
        """Pad the candidate texts of each example, and return their model inputs (B, K, L)."""
        names = ("token_ids", *self.values_per_text)
        parts = {n: examples[CANDIDATE + n] for n in names if CANDIDATE + n in examples}
        flat = self.pad({name: value.values for name, value in parts.items()}, bucketed)
        # The static shape of the text ids contains K.
        rows, count = parts["token_ids"].nrows(), examples[TEXT_IDS].shape[1] - 1
        return {
            CANDIDATE + name: xp.reshape(
                values, xp.stack([rows, count, xp.shape(values, xp.int64)[1]])
            )
            for name, values in flat.items()  # (B * K, L)
            if name == "token_ids" or name.endswith("_mask")
        }


def _enumerate_values(values: xp.Tensor) -> xp.Tensor:
    """Replace values by int32 numbers, starting at 0. Equal values get the same number."""
    return xp.reshape(xp.unique(xp.reshape(values, [-1])).idx, xp.shape(values))


def convert_scores(y) -> xp.Tensor:
    """Check scores for pairs, or vectors for texts, and convert them to float32 (N, ...).

    Raises:
        ValueError: If a value in `y` is not finite.

    Example:
        >>> convert_scores([0.5, float("inf")])
        Traceback (most recent call last):
        ValueError: Row 1 has the score inf. Expected a finite number.
    """
    scores = convert_numbers(check_not_missing(y), "y", "one score per pair")
    finite = xp.math.is_finite(scores)
    right = xp.reduce_all(xp.reshape(finite, [xp.shape(scores)[0], -1]), axis=1)
    return check_each(scores, right, " has the score ", scores, ". Expected a finite number.")


def convert_vectors(y) -> xp.Tensor:
    """Check the target vectors for single texts and convert them to float32 (N, D).

    Raises:
        ValueError: If `y` does not have exactly two axes.
    """
    vectors = convert_scores(y)
    if len(vectors.shape) != 2:
        raise ValueError(
            f"`y` has shape {tuple(vectors.shape)}, but `x` has one column of texts. Expected one "
            "vector per text, shape (N, D). To train on scores, pass x=(first, second)."
        )
    return vectors
