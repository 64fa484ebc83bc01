"""Read batches of shuffled examples from a corpus.

Reading can start at any step. With several workers, each worker reads a part of each batch.

Comments use these letters for shapes: B batch, K slots. See `examples.ShardExamples`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from encoder_zoo.common.lazy import tf, xp
from encoder_zoo.common.wording import invalid
from encoder_zoo.extras.corpora.examples import ShardExamples, make_planner
from encoder_zoo.extras.corpora.writing import Shard
from encoder_zoo.tasks.preprocessing.batching import FIXED_SEED, Plan
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import MaskedLMPreprocessor
from encoder_zoo.tasks.pretraining.pretraining import PretrainingPreprocessor
from encoder_zoo.tasks.training.data import BatchMaker, Source

if TYPE_CHECKING:
    from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

logger = logging.getLogger("encoder_zoo")

WINDOW_FILES = 8  # number of files that are shuffled together
CORPUS_BATCHES_AHEAD = 4  # number of batches to preprocess in advance


@dataclasses.dataclass(frozen=True)
class Reader:
    """Read slots from a corpus, in order or shuffled.

    Args:
        corpus: The `PretrainingCorpus` to read.
        plan: A function that takes a shard and a random generator, and plans the examples in the
            shard.
        seed: Integer. The seed for planning and shuffling.
        windows: List of integers. Number of slots in each window that was read. Reading extends the
            list, so that these windows can be skipped later. Defaults to [].
    """

    corpus: Any
    plan: Callable[[Shard, random.Random], ShardExamples]
    seed: int
    windows: list[int] = dataclasses.field(default_factory=list)

    def read_in_order(self) -> Iterator[tuple[Shard, ShardExamples, int]]:
        """Yield all slots in order, as tuples (shard, examples in the shard, slot index)."""
        for number in range(self.corpus.num_shards):
            shard, examples = self._plan_shard(0, number)
            for slot in range(examples.slots):
                yield shard, examples, slot

    def iterate_shuffled(self, done: int = 0) -> Iterator[tuple[Shard, ShardExamples, int]]:
        """Yield shuffled slots for an endless sequence of epochs, starting after `done` slots.

        In each epoch, the files are read in a different order, and the slots from `WINDOW_FILES`
        files are shuffled together.
        """
        number = 0  # window index
        while number < len(self.windows) and done >= self.windows[number]:
            done -= self.windows[number]
            number += 1
        with ThreadPoolExecutor(1) as thread:  # plans the next window at the same time
            following = thread.submit(self._plan_window, number)
            while True:
                shards, positions = following.result()
                if number == len(self.windows):
                    self.windows.append(len(positions))
                if (
                    not any(self.windows)
                    and len(self.windows) * WINDOW_FILES >= self.corpus.num_shards
                ):
                    raise ValueError(
                        f"{self.corpus} is too small to create a single example. Create a corpus "
                        "with more text."
                    )
                number += 1
                following = thread.submit(self._plan_window, number)
                for shard, slot in positions[done:]:
                    yield *shards[shard], slot
                done = max(0, done - len(positions))

    def count(self) -> int:
        """Return the number of slots per epoch."""
        return sum(self._plan_shard(0, n)[1].slots for n in range(self.corpus.num_shards))

    def _plan_window(self, number: int) -> tuple[list[tuple[Shard, ShardExamples]], np.ndarray]:
        """Plan the examples of a window. Return the shards, and shuffled (shard, slot) indices."""
        per_pass = -(-self.corpus.num_shards // WINDOW_FILES)
        run, part = divmod(number, per_pass)
        order = np.random.default_rng([self.seed, run]).permutation(self.corpus.num_shards)
        shards = [
            self._plan_shard(run, int(n))
            for n in order[part * WINDOW_FILES : (part + 1) * WINDOW_FILES]
        ]
        counts = [examples.slots for _, examples in shards]
        slots = np.concatenate([np.arange(count) for count in counts])
        positions = np.stack([np.repeat(np.arange(len(shards)), counts), slots], 1)
        return shards, np.random.default_rng([self.seed, run, part]).permutation(positions)

    def _plan_shard(self, run: int, number: int) -> tuple[Shard, ShardExamples]:
        shard = self.corpus.open_shard(number)
        return shard, self.plan(shard, random.Random(f"{self.seed} {run} {number}"))


class CorpusBatches(Source):
    """Data source for `fit` and `evaluate` that reads a corpus once per epoch.

    With several workers, each worker only reads a part of each batch.

    Args:
        plan: The `Plan` whose `batch_size` is the total number of slots for all workers.
        maker: The `BatchMaker` whose preprocessor creates the examples.
        corpus: The `PretrainingCorpus` with the same tokenizer as the preprocessor.
    """

    def __init__(self, plan: Plan, maker: BatchMaker, corpus: Any):
        super().__init__(plan, maker)
        check_corpus(corpus, maker.preprocessor)
        self._corpus = corpus

    def _make_reader(self, seed: int, *windows: list) -> Reader:
        return Reader(self._corpus, make_planner(self.maker.preprocessor), seed, *windows)

    @functools.cached_property
    def steps(self) -> int:
        return self.plan.steps_per_epoch or max(
            1, self._make_reader(0).count() // self.plan.batch_size
        )

    def check(self) -> None:
        if not self.plan.shuffle:
            raise invalid("shuffle", self.plan.shuffle, "True for a PretrainingCorpus")
        length = self.maker.preprocessor.max_sequence_length
        tokens = self.total_steps * self.plan.batch_size * length
        logger.info(
            "%s steps process up to %s tokens, which is %.1f times the size of the corpus.",
            f"{self.total_steps:,}",
            f"{tokens:,}",
            tokens / self._corpus.num_tokens,
        )

    def _make_epoch_batches(self, seed: int, start: int) -> tf.data.Dataset:
        reader = self._make_reader(seed, self.window_sizes)
        slots = functools.partial(reader.iterate_shuffled, start * self.plan.batch_size)
        return self._collate_batches(slots, seed, start, self.maker.worker)

    def read_in_order(self) -> tf.data.Dataset:
        """Return all batches of one epoch in a fixed order."""
        reader = self._make_reader(0)
        steps = -(-reader.count() // self.plan.batch_size)
        batches = self._collate_batches(reader.read_in_order, FIXED_SEED)
        return batches.apply(tf.data.experimental.assert_cardinality(steps))

    def _collate_batches(
        self, slots: Callable, seed: int = 0, done: int = 0, worker: tuple[int, int] = (0, 1)
    ) -> tf.data.Dataset:
        """Create a dataset of preprocessed batches.

        Args:
            slots: A function that returns an iterator over slots.
            seed: Integer. The seed for masking. Defaults to 0.
            done: Integer. The number of batches to skip. Defaults to 0.
            worker: Tuple (worker index, number of workers). Defaults to (0, 1).
        """
        preprocessor, (number, count) = self.maker.preprocessor, worker
        part = slice(*(self.plan.batch_size * n // count for n in (number, number + 1)))
        labels = ("labels",) if isinstance(preprocessor, PretrainingPreprocessor) else ()
        signature = {
            **dict.fromkeys(
                ("token_ids", "first_length", *labels), tf.TensorSpec([None], xp.int32)
            ),
            **dict.fromkeys(("sizes", "slot_sizes"), tf.TensorSpec([None], xp.int64)),
            **dict.fromkeys(("seed", "span"), tf.TensorSpec([2], xp.int64)),
        }
        generate = functools.partial(self._read, slots, part, seed, done)
        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
        options = tf.data.Options()
        options.autotune.enabled = False
        if count > 1:  # each worker's dataset has its own examples
            policy = tf.data.experimental.AutoShardPolicy.OFF
            options.experimental_distribute.auto_shard_policy = policy
        collate, packed = self.maker.collate(), preprocessor.packed_length is not None
        draws = seed != FIXED_SEED
        make = functools.partial(_collate_slots, collate=collate, packed=packed, draws=draws)
        dataset = dataset.map(
            make, num_parallel_calls=CORPUS_BATCHES_AHEAD, deterministic=True
        ).prefetch(CORPUS_BATCHES_AHEAD)
        return dataset.with_options(options)

    def _read(self, slots: Callable, part: slice, seed: int, done: int) -> Iterator[dict]:
        """Yield this worker's part of each batch."""
        following, tokenizer = slots(), self.maker.preprocessor.tokenizer
        for step in itertools.count(done):
            batch = list(itertools.islice(following, self.plan.batch_size))
            if not batch:
                return
            examples = read_examples(batch[part], tokenizer, self._corpus.vocabulary_size)
            lengths = [made.count_slot_tokens(slot) for _, made, slot in batch]
            span = [sum(lengths[: part.start]), sum(lengths)]
            yield {**examples, "seed": np.array([seed, step]), "span": np.array(span)}

    def describe(self) -> dict:
        return {"corpus": self._corpus.sha256, "batch_size": self.plan.batch_size}


def check_corpus(corpus: Any, preprocessor: Preprocessor | None) -> None:
    """Check that a task can be trained on a corpus.

    Raises:
        ValueError: If `preprocessor` does not mask tokens dynamically, or if the corpus was created
            with another tokenizer.
    """
    if not isinstance(preprocessor, MaskedLMPreprocessor):
        raise ValueError(
            f"The task preprocessor is {preprocessor!r:.60}. Expected the preprocessor of "
            "MaskedLM, ReplacedTokenDetection or Pretraining. Other tasks cannot be trained on a "
            "PretrainingCorpus."
        )
    if not preprocessor.dynamic:
        raise invalid("dynamic", preprocessor.dynamic, "True for a PretrainingCorpus")
    corpus.check_tokenizer(preprocessor.tokenizer)


def _collate_slots(examples: dict, collate: Callable, packed: bool, draws: bool):
    """Collate a batch from the result of `read_examples`.

    Args:
        examples: Dict of tensors with all examples in the batch.
        collate: A function that pads and masks the examples.
        packed: Boolean. Whether several texts can share a slot.
        draws: Boolean. Whether masks are random. If False, they only depend on the texts.
    """
    examples = dict(examples)
    slot_sizes, sizes, flat = (examples.pop(name) for name in ("slot_sizes", "sizes", "token_ids"))
    seed, span = examples.pop("seed"), examples.pop("span")
    examples["token_ids"] = ids = xp.RaggedTensor.from_row_lengths(flat, sizes, validate=False)
    if draws:
        # Drawn for the whole batch, so that masks do not depend on the number of workers.
        drawn = xp.random.stateless_uniform([span[1], 3], seed)
        end = span[0] + xp.size(flat, xp.int64)
        examples["draws"] = ids.with_values(drawn[span[0] : end])
    if packed:
        group = xp.RaggedTensor.from_row_lengths
        examples = {
            name: group(values, slot_sizes, validate=False) for name, values in examples.items()
        }
    return collate(examples, seed)


def read_examples(
    slots: list[tuple[Shard, ShardExamples, int]], tokenizer, vocabulary_size: int
) -> dict:
    """Read and concatenate the tokens of all slots in a batch.

    Returns:
        A dict with "token_ids" (token ids of all examples), "sizes" (number of tokens per example),
        "first_length" (number of tokens in the first segment) and "slot_sizes" (number of examples
        per slot). For pairs, the dict also contains "labels".

    Raises:
        ValueError: If the corpus contains token ids outside of the vocabulary.
    """
    start, end = (np.array([i]) for i in (tokenizer.start_token_id, tokenizer.end_token_id))
    parts, sizes, first_lengths, labels, slot_sizes = [], [], [], [], []
    for shard, examples, slot in slots:
        first, behind = examples.slot_splits[slot : slot + 2].tolist()
        slot_sizes.append(behind - first)
        sizes += examples.lengths[first:behind].tolist()
        for row in range(first, behind):
            begin, limit = examples.example_splits[row : row + 2]
            spans = examples.spans[begin:limit].tolist()
            texts = [part for a, b in spans for part in (shard.tokens[a:b], end)]
            parts += [start, *texts] if tokenizer.first_column else [*texts, start]
            first_lengths.append(tokenizer.first_column + spans[0][1] - spans[0][0] + 1)
        if examples.labels is not None:
            labels += examples.labels[first:behind].tolist()
    ids = np.concatenate(parts, dtype="int64") if parts else np.zeros(0, "int64")
    if len(ids) and ids.max() >= vocabulary_size:
        raise ValueError(
            f"The corpus is damaged: the token id {ids.max()} is too large for a tokenizer with "
            f"{vocabulary_size} tokens. Call corpus.verify() to find the damaged file."
        )
    found = {
        "token_ids": ids.astype("int32"),
        "sizes": np.array(sizes, "int64"),
        "first_length": np.array(first_lengths if labels else sizes, "int32"),
        "slot_sizes": np.array(slot_sizes, "int64"),
    }
    return {**found, **({"labels": np.array(labels, "int32")} if labels else {})}
