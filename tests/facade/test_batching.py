"""The queue of the service: which texts are computed together, in which order, and by whom."""

import asyncio
import threading
import time

import pytest

from encoder_zoo.serving.batching import Batcher, Job, QueueFull, Stopping
from encoder_zoo.serving.limits import Limits


class Doubling:
    """Doubles numbers, and remembers its calls. The first call waits for `go`."""

    def __init__(self):
        self.calls, self.go, self.entered = [], threading.Event(), threading.Event()

    def __call__(self, rows):
        self.calls.append(list(rows))
        self.entered.set()
        assert self.go.wait(10)
        if "bad" in rows:
            raise ValueError(f"row {rows.index('bad')}")
        return [2 * row for row in rows]


def ones(rows):
    return [1] * len(rows)


def run(scenario, **limits):
    """Run an async function of a batcher and a `Doubling`, and return the latter's calls."""
    double = Doubling()

    async def main():
        batcher = Batcher(Limits(**{"max_wait": 0.2, **limits}), lambda *measured: None)
        batcher.start()
        await asyncio.wait_for(scenario(batcher, double), 20)
        await asyncio.wait_for(batcher.close(), 20)
        assert batcher.waiting == 0 and not batcher._lines

    asyncio.run(main())
    return double.calls


def ask(batcher, double, rows, key="a", count=ones):
    return asyncio.ensure_future(batcher.ask(Job(key, double, rows, count)))


async def occupy(batcher, double):
    """Let the worker be busy until `go`."""
    first = ask(batcher, double, [0], key="first")
    while not double.entered.is_set():
        await asyncio.sleep(0.001)
    return first


def test_concurrent_jobs_are_one_batch():
    async def scenario(batcher, double):
        double.go.set()
        jobs = [ask(batcher, double, [i, i + 10]) for i in range(3)]
        assert await asyncio.gather(*jobs) == [[0, 20], [2, 22], [4, 24]]

    [call] = run(scenario)
    assert sorted(call) == [0, 1, 2, 10, 11, 12]


def test_a_text_waits_no_longer_than_the_limit():
    async def scenario(batcher, double):
        double.go.set()
        start = time.monotonic()
        await ask(batcher, double, [1])
        assert 0.05 <= time.monotonic() - start < 5

    run(scenario, max_wait=0.05)


def test_a_full_batch_does_not_wait():
    async def scenario(batcher, double):
        double.go.set()
        await asyncio.gather(*[ask(batcher, double, [i]) for i in range(4)])

    assert [len(call) for call in run(scenario, max_wait=3600, max_batch_texts=4)] == [4]


def test_jobs_with_other_keys_are_not_joined_and_take_turns():
    async def scenario(batcher, double):
        first = await occupy(batcher, double)
        jobs = [ask(batcher, double, [n] * 4, key) for key, n in (("a", 1), ("b", 2))]
        await asyncio.sleep(0.05)
        double.go.set()
        await asyncio.gather(first, *jobs)

    calls = run(scenario, max_batch_texts=2)
    assert calls == [[0], [1, 1], [2, 2], [1, 1], [2, 2]]


def test_a_long_job_lets_short_ones_pass():
    async def scenario(batcher, double):
        first = await occupy(batcher, double)
        long = ask(batcher, double, list(range(40)))
        await asyncio.sleep(0.05)
        short = ask(batcher, double, [100])
        await asyncio.sleep(0.05)
        double.go.set()
        assert await short == [200] and not long.done()
        assert await long == [2 * i for i in range(40)] and await first == [0]

    assert [100 in call for call in run(scenario, max_batch_texts=4)].index(True) == 2


def test_batches_hold_a_number_of_tokens_with_padding():
    async def scenario(batcher, double):
        first = await occupy(batcher, double)
        job = ask(batcher, double, [60, 10, 30, 50, 200], count=lambda rows: rows)
        await asyncio.sleep(0.05)
        double.go.set()
        await asyncio.gather(first, job)

    # The longest come first, and a text that is too long is computed alone.
    assert run(scenario, max_batch_tokens=100) == [[0], [200], [60], [30, 50], [10]]


def test_a_client_that_leaves_is_dropped():
    async def scenario(batcher, double):
        first = await occupy(batcher, double)
        leaving, staying = ask(batcher, double, [1, 1]), ask(batcher, double, [2])
        await asyncio.sleep(0.05)
        assert batcher.waiting == 3
        leaving.cancel()
        await asyncio.sleep(0.05)
        assert batcher.waiting == 1
        double.go.set()
        assert await staying == [4] and await first == [0]

    assert run(scenario) == [[0], [2]]


def test_a_client_that_leaves_during_its_batch_hurts_nobody():
    async def scenario(batcher, double):
        leaving, staying = ask(batcher, double, [1]), ask(batcher, double, [2])
        while not double.entered.is_set():
            await asyncio.sleep(0.001)
        leaving.cancel()
        await asyncio.sleep(0.01)
        double.go.set()
        assert await staying == [4]

    run(scenario)


def test_the_queue_is_limited():
    async def scenario(batcher, double):
        first = await occupy(batcher, double)
        waiting = ask(batcher, double, [1, 2])
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFull):
            await ask(batcher, double, [3, 4])
        fits = ask(batcher, double, [3])
        double.go.set()
        assert await asyncio.gather(first, waiting, fits) == [[0], [2, 4], [6]]

    run(scenario, max_queue_texts=3, max_texts=3)


def test_only_the_job_with_an_error_gets_it():
    """Its message has the index of the row in its own request."""

    async def scenario(batcher, double):
        double.go.set()
        bad, good = ask(batcher, double, [5, "bad", 7]), ask(batcher, double, [1, 2])
        with pytest.raises(ValueError, match="row 1"):
            await bad
        assert await good == [2, 4]
        assert await ask(batcher, double, [3]) == [6]

    run(scenario)


def test_an_error_in_a_part_is_the_error_of_the_whole_job():
    async def scenario(batcher, double):
        double.go.set()
        with pytest.raises(ValueError, match="row 4"):
            await ask(batcher, double, [1, 2, 3, 4, "bad", 6])

    run(scenario, max_batch_texts=2)


def test_an_error_while_tokens_are_counted():
    def fail(rows):
        raise ValueError("uncountable")

    async def scenario(batcher, double):
        double.go.set()
        with pytest.raises(ValueError, match="uncountable"):
            await ask(batcher, double, [1], count=fail)
        assert await ask(batcher, double, [1]) == [2]

    run(scenario)


class Panic(BaseException):
    """A panic in Rust, as PyO3 raises it."""


@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("part", ["run", "count"])
@pytest.mark.parametrize(
    "error",
    [SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration, MemoryError, Panic],
)
def test_no_error_stops_the_queue(error, part, is_short):
    """Everyone in the failed batch and everyone after it gets an answer or an error."""

    def fail(rows):
        if 5 in rows:
            raise error("stop")
        return ones(rows)

    async def scenario(batcher, double):
        double.go.set()
        parts = {"run": double, "count": ones, part: fail}
        bad, good = [
            asyncio.ensure_future(batcher.ask(Job("a", rows=rows, is_short=is_short, **parts)))
            for rows in ([5], [1, 2])
        ]
        with pytest.raises((RuntimeError, MemoryError)):
            await bad
        assert len(await good) == 2
        assert await ask(batcher, double, [3]) == [6]

    run(scenario, max_wait=0.02)  # one wait per batch and 24 cases


def test_too_few_answers_are_an_error():
    async def scenario(batcher, double):
        with pytest.raises(RuntimeError, match="1 answers for 2 rows"):
            await batcher.ask(Job("a", lambda rows: rows[:1], [1, 2], ones))

    run(scenario)


def test_closing_answers_what_was_accepted():
    async def scenario(batcher, double):
        first = await occupy(batcher, double)
        jobs = [ask(batcher, double, [i], key=i) for i in range(1, 4)]
        await asyncio.sleep(0.05)
        closing = asyncio.ensure_future(batcher.close())
        await asyncio.sleep(0.05)
        with pytest.raises(Stopping):
            await ask(batcher, double, [9])
        double.go.set()
        assert await asyncio.gather(first, *jobs) == [[0], [2], [4], [6]]
        await closing

    assert len(run(scenario)) == 4
