"""Preprocessing of texts to examples with masked tokens.

Comments use these letters for shapes: B batch, L sequence, M masked positions, W words of a row.
"""

from __future__ import annotations

import functools

import numpy as np

from encoder_zoo.common import validation
from encoder_zoo.common.lazy import tf, xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed
from encoder_zoo.tasks.preprocessing.batching import FIXED_SEED
from encoder_zoo.tasks.preprocessing.packing import join_texts
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

# Selected tokens with a random number below the first value become the mask token, and below the
# second value a random token. Other tokens do not change. Devlin et al. 2019, BERT, section 3.1.
MASKED, RANDOM = 0.8, 0.9


@serializable
class MaskedLMPreprocessor(Preprocessor):
    """Convert texts to examples with masked tokens, and use the original tokens as labels.

    For each row, a share of all ordinary tokens is selected, with at least one token per row. Then
    80% of the selected tokens are replaced by the mask token, 10% by a random token, and 10% are
    not changed. Special tokens will not be selected.

    Args:
        tokenizer: The `Tokenizer` to use, from this package.
        sequence_length: Optional positive integer. See `Preprocessor`.
        mask_rate: Float between 0 and 1. Share of tokens to select. Defaults to 0.15.
        whole_words: Boolean. Whether to select whole words instead of single tokens. Words that
            would exceed the share are skipped, so a short row can be without selected tokens.
            Defaults to False.
        dynamic: Boolean. Whether to create a new mask pattern each time a training batch is created
            (i.e. in each epoch). If False, each example keeps its pattern. For `evaluate` and for
            validation, the masks only depend on the text, so the result is the same for any batch
            size. Defaults to True.
        pack_texts: Boolean. Whether `fit` on texts in memory packs several texts into one sequence
            of `sequence_length` tokens (default: the maximum length of the model). Attention and
            positions are separate for each text, so the outputs are the same as without packing,
            but with very little padding. Use it on accelerators. On a CPU, batches of texts of
            similar length are as fast. Defaults to False.
        across_documents: Boolean. Whether an example of a `PretrainingCorpus` continues with the
            next document after an end token (FULL-SENTENCES of RoBERTa). If False, each example
            comes from one document (DOC-SENTENCES), and several short examples count as one example
            of the batch. With `pack_texts=True`, these short examples are packed into one sequence.
            Defaults to True.
        seed: Integer. Seed of the pattern if the preprocessor is called directly or if
            `dynamic=False`. `fit` uses the seed of `keras.utils.set_random_seed`. Defaults to 0.

    Returns:
        When called, `(x, y, sample_weight)`. x is `{"token_ids", "padding_mask", "mask_positions"}`
        and, for families with segments, "segment_ids". y (B, M) contains the original token ids.
        sample_weight (B, M) is 0 for the missing positions of examples with fewer than M selected
        tokens.

    Source: Devlin et al. 2019, BERT, section 3.1 and appendix A.1. Liu et al. 2019, RoBERTa,
    section 4.1 for dynamic masking, and section 4.2 for the examples of a corpus. For whole words,
    the README of the BERT repository of 2019-05-31.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> words = ["the", "cat", "sat", "on", "mat"]
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        >>> preprocessor = MaskedLMPreprocessor(tokenizer, mask_rate=0.5)
        >>> x, y, sample_weight = preprocessor(["the cat sat on the mat"])
        >>> y.shape, x["token_ids"].shape
        (TensorShape([1, 4]), TensorShape([1, 8]))
    """

    task_name = "masked_lm"
    one_example_per_text = True

    @validation.validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: validation.SequenceLength | None = None,
        mask_rate: validation.Fraction = 0.15,
        whole_words: bool = False,
        dynamic: bool = True,
        pack_texts: bool = False,
        across_documents: bool = True,
        seed: validation.NonNegativeInt = 0,
    ):
        super().__init__(tokenizer, sequence_length)
        self.mask_rate = mask_rate
        self.whole_words = whole_words
        self.dynamic = dynamic
        self.pack_texts = pack_texts
        self.across_documents = across_documents
        self.seed = seed
        self._calls = 0

    @property
    def packed_length(self) -> int | None:
        return self.max_sequence_length if self.pack_texts else None

    predicts_in_order = False  # of the backbone, see `attach`

    def attach(self, task) -> None:
        super().attach(task)
        self.predicts_in_order = task.backbone.predicts_in_order

    def encode(self, x, y=None, sample_weight=None) -> dict:
        if y is not None:
            raise ValueError("MaskedLM creates the labels from the texts. Remove `y`.")
        examples = super().encode(x, sample_weight=sample_weight)
        if not self.dynamic:
            ids = examples["token_ids"]
            shape = (xp.size(ids.flat_values), 3)
            draws = xp.random.stateless_uniform(shape, [self.seed, 0])
            examples["draws"] = ids.with_flat_values(draws)
        return examples

    def collate(self, examples: dict, seed=None, bucketed: Bucketed = False):
        if examples["token_ids"].ragged_rank == 2:
            examples = join_texts(examples, self.tokenizer.first_column)
        inputs = self.pad(examples, bucketed)
        token_ids = inputs["token_ids"]  # (B, L)
        length = xp.shape(token_ids)[1]
        if "text_starts" in examples:
            # With S special tokens in every text, K = L / S suffices: (B, K).
            starts = examples["text_starts"]
            starts_shape = xp.stack(
                [starts.nrows(), xp.cast(length // self.count_specials(), xp.int64)]
            )
            inputs["text_starts"] = starts.to_tensor(length, shape=starts_shape)
        if "draws" in examples:
            shape = xp.concat([xp.shape(token_ids, xp.int64), [3]], 0)
            draws = examples["draws"].to_tensor(shape=shape)
        else:
            draws = make_draws(token_ids, inputs["padding_mask"], self._make_seed(seed))

        order, selected = self._select_positions(token_ids, inputs["padding_mask"], draws[..., 0])
        count = xp.maximum(
            1, xp.cast(xp.round(self.mask_rate * xp.cast(length, "float32")), "int32")
        )
        if self.sequence_length is not None:
            count = max(1, round(self.mask_rate * self.sequence_length))
        # (B, M)
        positions, weights = (order[:, :count], xp.cast(selected[:, :count], "float32"))

        if self.predicts_in_order:
            inputs["prediction_order"] = rank_selected_tokens(order, selected, draws[..., 1])
        else:
            inputs["token_ids"] = self._replace(token_ids, positions, selected[:, :count], draws)
        inputs["mask_positions"] = positions
        labels = xp.gather(token_ids, positions, batch_dims=1)
        if "sample_weight" in examples:
            weights = self._weigh_masks(weights, examples["sample_weight"], positions, token_ids)
        return inputs, labels, weights

    def _weigh_masks(self, weights, given, positions, token_ids):
        """Multiply the weights (B, M) of masked tokens by the weights of their texts."""
        return weights * xp.gather(repeat_text_weights(given, token_ids), positions, batch_dims=1)

    def _make_seed(self, seed):
        if seed is not None:
            return seed
        self._calls += 1
        return [self.seed, self._calls]

    def _select_positions(self, token_ids, padding_mask, draws):
        """Return positions (B, L), selected positions first, and whether each one is selected."""
        special = xp.reduce_any(token_ids[..., None] == xp.constant(self._special_ids), axis=-1)
        ordinary = padding_mask & ~special
        budget = xp.reduce_sum(xp.cast(ordinary, "float32"), axis=1) * self.mask_rate
        budget = xp.maximum(1, xp.cast(xp.round(budget), "int32"))  # (B,)
        if self.whole_words:
            chosen = self._choose_words(token_ids, ordinary, draws, budget)
        else:
            rank = xp.argsort(xp.argsort(xp.where(ordinary, draws, 2.0), axis=1), axis=1)
            chosen = ordinary & (rank < budget[:, None])
        order = xp.argsort(xp.where(chosen, 0, 1), axis=1, stable=True)
        return order, xp.gather(chosen, order, batch_dims=1)

    def _choose_words(self, token_ids, ordinary, draws, budget):
        """Choose random words, and return a boolean mask (B, L) of the tokens in these words.

        The number of tokens per row is at most the budget.
        """
        starts, ends = xp.unstack(xp.gather(xp.constant(self._word_bounds), token_ids), axis=-1)
        starts |= xp.pad(ends[:, :-1], [[0, 0], [1, 0]])
        previous = xp.pad(ordinary[:, :-1], [[0, 0], [1, 0]])
        starts = ordinary & (starts | ~previous)
        # (B, L), 0 before the first word
        word = xp.cumsum(xp.cast(starts, "int32"), axis=1)
        # Counted with a bin for tokens outside of words: (B, W), W at most L.
        bins = xp.shape(token_ids)[1] + 1
        sizes = xp.math.bincount(
            xp.where(ordinary, word, 0), minlength=bins, maxlength=bins, axis=-1
        )[:, 1:]
        order = xp.argsort(xp.where(sizes > 0, draws, 2.0), axis=1)
        shuffled = xp.transpose(xp.gather(sizes, order, batch_dims=1))  # (W, B)

        def add(state, size):
            fits = (size > 0) & (state[0] + size <= budget)
            return xp.where(fits, state[0] + size, state[0]), fits

        empty = (xp.zeros_like(budget), xp.zeros_like(budget, "bool"))
        _, fits = xp.scan(add, shuffled, empty)
        fits = xp.gather(xp.transpose(fits), xp.argsort(order, axis=1), batch_dims=1)  # (B, W)
        return ordinary & xp.gather(fits, xp.maximum(word - 1, 0), batch_dims=1)

    def _replace(self, token_ids, positions, selected, draws):
        kind = xp.gather(draws[..., 1], positions, batch_dims=1)  # (B, M)
        which = xp.gather(draws[..., 2], positions, batch_dims=1)
        kept = xp.gather(token_ids, positions, batch_dims=1)
        new = xp.where(selected, self.choose_replacements(kept, kind, which), kept)
        return replace_tokens(token_ids, positions, new)

    def choose_replacements(self, kept: xp.Tensor, kind: xp.Tensor, which: xp.Tensor) -> xp.Tensor:
        """Return the replacements (B, M) of the selected tokens.

        Args:
            kept: Int32 tensor of shape (B, M). The selected tokens.
            kind, which: Float tensors of shape (B, M). Random numbers in [0, 1).
        """
        ordinary = xp.constant(self._ordinary_ids)
        drawn = xp.gather(ordinary, xp.cast(which * len(self._ordinary_ids), "int32"))
        return xp.where(
            kind < MASKED, self.tokenizer.mask_token_id, xp.where(kind < RANDOM, drawn, kept)
        )

    @functools.cached_property
    def _special_ids(self) -> np.ndarray:
        return np.array(sorted(set(self.tokenizer.special_token_ids)), "int32")

    @functools.cached_property
    def _ordinary_ids(self) -> np.ndarray:
        return np.setdiff1d(
            np.arange(self.tokenizer.vocabulary_size, dtype="int32"), self._special_ids
        )

    @functools.cached_property
    def _word_bounds(self) -> np.ndarray:
        """Return a boolean table (vocabulary, 2): tokens that begin a word, and that end a word."""
        tokens, token_format = self.tokenizer.get_vocabulary(), self.tokenizer.token_format
        return np.array([[token_format.starts_word(t), token_format.ends_word(t)] for t in tokens])


PRIME = 2**31 - 1  # the product of two smaller integers fits into int64


def make_draws(token_ids: xp.Tensor, padding_mask: xp.Tensor, seed):
    """Return three random numbers in [0, 1) for each token, float32 (B, L, 3).

    Args:
        token_ids: Int32 tensor of shape (B, L).
        padding_mask: Boolean tensor of shape (B, L).
        seed: Two integers. If the first is `FIXED_SEED`, the numbers of a text only depend on the
            text, so the masks of an evaluation are the same in batches of every size.
    """
    shape = xp.concat([xp.shape(token_ids, xp.int64), [3]], 0)
    if not xp.is_symbolic_tensor(seed):
        if seed[0] == FIXED_SEED:
            return make_text_draws(token_ids, padding_mask)
        return xp.random.stateless_uniform(shape, seed)
    return tf.cond(
        seed[0] == FIXED_SEED,
        lambda: make_text_draws(token_ids, padding_mask),
        lambda: xp.random.stateless_uniform(shape, seed),
    )


def make_text_draws(token_ids: xp.Tensor, padding_mask: xp.Tensor):
    """Return the random numbers of `make_draws`, computed only from the tokens of each text.

    Example:
        >>> ids, mask = np.int32([[5, 6, 0], [5, 6, 0]]), np.array([[True, True, False]] * 2)
        >>> draws = make_text_draws(ids, mask)
        >>> bool((draws[0] == draws[1]).numpy().all())
        True
    """
    length = xp.shape(token_ids)[1]
    place = xp.cast(xp.range(length), xp.int64)
    tokens = _hash_numbers(xp.cast(token_ids, xp.int64) * 7919 + place[None])
    counted = xp.cast(padding_mask, xp.int64)
    text = xp.reduce_sum(tokens * counted, axis=1) % PRIME  # (B,)
    which = xp.constant([0, 1, 2], xp.int64) * 1_000_003
    numbers = text[:, None, None] + place[None, :, None] * 104_729 + which
    return xp.cast(_hash_numbers(numbers) % 2**24, xp.float32) / 2**24


def _hash_numbers(numbers: xp.Tensor) -> xp.Tensor:
    """Return pseudo-random int64 numbers below `PRIME` that are equal for equal inputs."""
    for constant in (1_234_567, 7_654_321, 42_424_243):
        numbers = (numbers % PRIME * 48_271 + constant) % PRIME
        numbers = (numbers * numbers + constant) % PRIME
    return numbers


def rank_selected_tokens(order: xp.Tensor, selected: xp.Tensor, draws: xp.Tensor) -> xp.Tensor:
    """Return the ranks of the selected tokens in a random order, and 0 for other tokens.

    Args:
        order: Integer tensor of shape (B, L). Positions.
        selected: Boolean tensor of shape (B, L). Whether the token at each of these positions is
            selected.
        draws: Float tensor of shape (B, L). Random numbers of the tokens in [0, 1).

    Returns:
        Int32 tensor of shape (B, L).

    Source: Yang et al. 2019, XLNet, sections 2.2 and 2.3.

    Example:
        >>> import tensorflow as tf
        >>> order, selected = tf.constant([[1, 2, 0]]), tf.constant([[True, True, False]])
        >>> rank_selected_tokens(order, selected, tf.constant([[0.1, 0.9, 0.5]])).numpy().tolist()
        [[0, 2, 1]]
    """
    drawn = xp.where(selected, xp.gather(draws, order, batch_dims=1), 2.0)
    rank = 1 + xp.argsort(xp.argsort(drawn, axis=1), axis=1)
    return xp.gather(xp.where(selected, rank, 0), xp.argsort(order, axis=1), batch_dims=1)


def replace_tokens(token_ids: xp.Tensor, positions: xp.Tensor, values: xp.Tensor) -> xp.Tensor:
    """Replace the tokens (B, L) at some positions (B, M) by values (B, M).

    Example:
        >>> import tensorflow as tf
        >>> token_ids, values = tf.constant([[5, 6, 7]]), tf.constant([[9]])
        >>> replace_tokens(token_ids, tf.constant([[2]]), values).numpy().tolist()
        [[5, 6, 9]]
    """
    examples = xp.repeat(xp.range(xp.shape(positions)[0])[:, None], xp.shape(positions)[1], axis=1)
    return xp.tensor_scatter_nd_update(token_ids, xp.stack([examples, positions], axis=-1), values)


def repeat_text_weights(weights, token_ids: xp.Tensor) -> xp.Tensor:
    """Repeat the weight of each text for its tokens, and return token weights (B, L).

    Args:
        weights: Weights of examples (B,), or of the tokens of packed texts, ragged (B, None).
        token_ids: Integer tensor of shape (B, L).
    """
    shape = xp.shape(token_ids, xp.int64)
    if isinstance(weights, xp.RaggedTensor):
        return weights.to_tensor(shape=shape)
    return xp.broadcast_to(weights[:, None], shape)
