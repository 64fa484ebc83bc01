"""Joins the texts of concurrent requests into batches, which one thread computes.

Requests that can be joined share a key: the model, the method and its options. Requests with
different keys take turns, and so do requests with the same key. A long request therefore delays a
short one by one batch at most.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from encoder_zoo.serving.limits import Limits

Rows = list[Any]


class QueueFull(Exception):
    """Raised if the texts of a request do not fit into the queue."""


class Stopping(Exception):
    """Raised if a request arrives after the service began to stop."""


@dataclasses.dataclass(eq=False)
class Job:
    """Rows of a request, each of which gets one answer.

    Args:
        key: Hashable. Jobs with equal keys can be joined.
        run: Function of a list of rows that returns a list of their answers. It may be called with
            rows of several jobs that have the same key.
        rows: List of rows, such as texts.
        count: Function of the rows that returns the number of tokens of every row.
        is_short: Boolean. Whether the tokens are counted in the event loop. Under load, a change of
            threads takes longer than the tokens of a few sentences. Defaults to False.
    """

    key: Hashable
    run: Callable[[Rows], Sequence]
    rows: Rows
    count: Callable[[Rows], list[int]]
    is_short: bool = False
    costs: list[int] = dataclasses.field(default_factory=list, init=False)


class WaitingJob:
    """A job in the queue.

    Args:
        job: Job whose tokens are counted.
        future: Future that gets the answers.

    Attributes:
        pending: Deque of the indices of the rows that are not computed yet, the longest first.
        answers: Dict of row indices to answers.
        arrived: Float. Time of arrival.
    """

    def __init__(self, job: Job, future: asyncio.Future):
        self.job, self.future = job, future
        self.pending = deque(sorted(range(len(job.rows)), key=lambda i: -job.costs[i]))
        self.answers: dict[int, Any] = {}
        self.arrived = time.monotonic()

    def add_answers(self, indices: Sequence[int], answers: Sequence) -> None:
        """Store answers, and complete the future when all rows have one."""
        self.answers.update(zip(indices, answers, strict=True))
        if len(self.answers) == len(self.job.rows) and not self.future.done():
            self.future.set_result([self.answers[i] for i in range(len(self.job.rows))])

    def fail(self, error: Exception) -> None:
        """Complete the future with an error."""
        if not self.future.done():
            self.future.set_exception(error)


Batch = list[tuple[WaitingJob, list[int]]]


class Batcher:
    """Queue of jobs, and the thread that computes them.

    Args:
        limits: Limits.
        on_batch: Function that is called after every batch with its number of texts, its number of
            tokens and the seconds that it took.
    """

    def __init__(self, limits: Limits, on_batch: Callable[[int, int, float], None]):
        self._limits, self._on_batch = limits, on_batch
        self._lines: dict[Hashable, deque[WaitingJob]] = {}
        self._changed = asyncio.Event()
        self._is_closing = False
        self._worker = concurrent.futures.ThreadPoolExecutor(1, "encoder_zoo-model")
        self._counter = concurrent.futures.ThreadPoolExecutor(1, "encoder_zoo-tokens")
        self._runner: asyncio.Task | None = None
        self.waiting = 0  # rows that are accepted and not yet computed

    def start(self) -> None:
        """Start to compute, in the running event loop."""
        self._runner = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Compute all accepted jobs, then stop the threads."""
        self._is_closing = True
        self._changed.set()
        if self._runner is not None:
            await self._runner
        self._worker.shutdown()
        self._counter.shutdown()

    async def ask(self, job: Job) -> list:
        """Compute a job. If the caller is cancelled, its rows leave the queue.

        Raises:
            QueueFull: If the rows do not fit into the queue.
            Stopping: If the batcher is being closed.
        """
        count = len(job.rows)
        if self._is_closing:
            raise Stopping
        if self.waiting + count > self._limits.max_queue_texts:
            raise QueueFull
        loop, waiting = asyncio.get_running_loop(), None
        self.waiting += count
        try:
            if job.is_short:
                job.costs = job.count(job.rows)
            else:
                job.costs = await loop.run_in_executor(self._counter, job.count, job.rows)
            waiting = WaitingJob(job, loop.create_future())
            self._lines.setdefault(job.key, deque()).append(waiting)
            self._changed.set()
            return await waiting.future
        finally:
            if waiting is None:
                self.waiting -= count
            elif waiting.pending:
                self._remove(waiting)
            self._changed.set()

    def _remove(self, waiting: WaitingJob) -> None:
        """Take a job out of the queue, with the rows that are not computed yet."""
        self.waiting -= len(waiting.pending)
        waiting.pending.clear()
        line = self._lines.get(waiting.job.key, ())
        if waiting in line:
            line.remove(waiting)
        if not line:
            self._lines.pop(waiting.job.key, None)

    async def _run(self) -> None:
        while self.waiting or not self._is_closing:
            if not self._lines:
                self._changed.clear()
                await self._changed.wait()
                continue
            await self._wait_for_others()
            if self._lines:  # the clients may have left
                await self._compute(self._take())

    async def _wait_for_others(self) -> None:
        """Wait until a batch is full or the oldest job has waited for `max_wait` seconds."""
        oldest = min(line[0].arrived for line in self._lines.values())
        while not (self._is_full() or self._is_closing):
            left = oldest + self._limits.max_wait - time.monotonic()
            if left <= 0:
                return
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _is_full(self) -> bool:
        line = next(iter(self._lines.values()), ())
        return sum(len(w.pending) for w in line) >= self._limits.max_batch_texts

    def _take(self) -> Batch:
        """Take the next batch out of the queue: rows of jobs with the same key, in turn."""
        key = next(iter(self._lines))
        line, batch = self._lines.pop(key), []
        texts, longest = 0, 0
        for _ in range(len(line)):
            waiting, taken = line.popleft(), []
            while waiting.pending:
                longest = max(longest, waiting.job.costs[waiting.pending[0]])
                fits = texts < self._limits.max_batch_texts
                fits = fits and (texts + 1) * longest <= self._limits.max_batch_tokens
                if texts and not fits:
                    break
                taken.append(waiting.pending.popleft())
                texts += 1
            if taken:
                batch.append((waiting, sorted(taken)))
            if waiting.pending and not taken:
                line.appendleft(waiting)  # it is the first of the next batch
                break
            if waiting.pending:
                line.append(waiting)
                break
        if line:
            self._lines[key] = line  # behind the jobs with other keys
        self.waiting -= texts
        return batch

    async def _compute(self, batch: Batch) -> None:
        """Compute a batch. After an error, compute every job of the batch alone."""
        rows = [waiting.job.rows[i] for waiting, indices in batch for i in indices]
        costs = [waiting.job.costs[i] for waiting, indices in batch for i in indices]
        start = time.perf_counter()
        try:
            answers = await self._call(batch[0][0].job, rows)
        except Exception as error:
            await self._compute_alone(batch, error)
            return
        self._on_batch(len(rows), sum(costs), time.perf_counter() - start)
        begin = 0
        for waiting, indices in batch:
            waiting.add_answers(indices, answers[begin : begin + len(indices)])
            begin += len(indices)

    async def _compute_alone(self, batch: Batch, error: Exception) -> None:
        """Compute every job of a failed batch by itself, so that only one of them gets its error.

        All rows of a job are computed in their order: error messages contain their indices.
        """
        [(first, indices), *others] = batch
        if not others and len(indices) == len(first.job.rows):
            first.fail(error)
            return
        for waiting, _ in batch:
            self._remove(waiting)
            if waiting.future.done():
                continue
            try:
                answers = await self._call(waiting.job, waiting.job.rows)
                waiting.add_answers(range(len(answers)), answers)
            except Exception as own_error:
                waiting.fail(own_error)

    async def _call(self, job: Job, rows: Rows) -> Sequence:
        """Call the function of a job in the thread of the model."""
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(self._worker, job.run, rows)
        if len(answers) != len(rows):
            raise RuntimeError(f"There are {len(answers)} answers to {len(rows)} rows.")
        return answers
