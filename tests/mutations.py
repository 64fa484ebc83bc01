"""Insert small faults into the package, one at a time, and count the faults that the tests find.

    pip install coverage
    python tests/mutations.py record
    python tests/mutations.py find --count 100 --seed 0 --output mutations.jsonl

The first command runs the default tests once, in one process, and records the lines that each test
runs. The second command draws random faults: it changes or removes a comparison, an operator, a
constant or a check. For each fault, it runs the tests that run the changed line. If there are none,
it runs the test files that contain the name of the changed function. If no test fails, it runs the
slow tests in these files. A run has at most `MOST` tests, which took at most `SECONDS` in total
when they were recorded. Files that contain the name come first, and short tests come first. Use a
separate clone, because the files are changed in place and then restored.
"""

import argparse
import ast
import collections
import copy
import json
import multiprocessing
import os
import pathlib
import random
import re
import signal
import sys
import time

import pytest
from paths import TOPS

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECORD = ROOT / "build" / "mutations"
MAX_FILES = 6  # number of test files that contain the changed names
MOST, SECONDS = 150, 60  # number of tests in a run, and the sum of their recorded times
LIMIT = 300  # maximum seconds for a run
IN_ONE_PROCESS = ("-n0", "-p", "no:cacheprovider")

COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}

CI_SLOW = "slow and not peers and not matrix"  # the slow tests that `.ci/run` runs


def changed(node: ast.AST) -> ast.AST | None:
    """Return a changed copy of a syntax node, or None if this type of node has no fault."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in COMPARED:
        new.ops[0] = COMPARED[type(new.ops[0])]()
    elif isinstance(new, ast.BinOp) and type(new.op) in COMPUTED:
        new.op = COMPUTED[type(new.op)]()
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        return new.operand
    elif isinstance(new, ast.Constant) and type(new.value) in (bool, int, float):
        new.value = not new.value if isinstance(new.value, bool) else new.value + 1
    elif isinstance(new, ast.Expr) and isinstance(new.value, ast.Call):
        return ast.Pass()  # removes a check, a log message or an assignment
    else:
        return None
    return new


def faults() -> list[tuple[pathlib.Path, ast.AST, ast.FunctionDef, str | None]]:
    """List all places for a fault, as tuples of file, syntax node, function and class."""
    found = []
    for path in sorted(p for folder in TOPS for p in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for owner in ast.walk(tree):
            if not isinstance(owner, ast.Module | ast.ClassDef):
                continue
            for function in owner.body:
                if isinstance(function, ast.FunctionDef):
                    name = getattr(owner, "name", None)
                    parts = [node for statement in function.body for node in ast.walk(statement)]
                    found += [(path, n, function, name) for n in parts if changed(n) is not None]
    return found


def with_fault(text: str, node: ast.AST) -> str:
    """Return the source code of a module in which a syntax node is replaced by its changed copy."""
    lines = text.encode().splitlines(keepends=True)  # columns count bytes
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    begin = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    new = ast.unparse(changed(node))
    new = new if isinstance(node, ast.Expr) else f"({new})"
    return b"".join([text.encode()[:begin], new.encode(), text.encode()[end:]]).decode()


def tests_of(path: pathlib.Path, function: str, owner: str | None) -> list[str]:
    """Return the changed module, for its doctests, and the test files that contain its names."""
    words = {function.strip("_"): 3, path.stem: 1, **({owner.strip("_"): 2} if owner else {})}
    scores = {}
    for test in (ROOT / "tests").rglob("test_*.py"):
        if "peers" in test.parts:
            continue
        text = test.read_text(encoding="utf-8")
        near = 3 * (test.stem.removeprefix("test_") in path.stem or path.parent.name in test.stem)
        named = sum(n * min(3, len(re.findall(rf"\b_*{w}\b", text))) for w, n in words.items())
        if named or near:
            scores[str(test.relative_to(ROOT))] = named + near
    best = sorted(scores, key=lambda name: (-scores[name], name))[:MAX_FILES]
    return [str(path.relative_to(ROOT)), *best]


class Recorder:
    """Pytest plugin that records the lines that each test runs, and the time that it takes."""

    def __init__(self, measured):
        self.measured, self.seconds = measured, {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.measured.switch_context(item.nodeid)
        start = time.time()
        done = yield
        self.seconds.setdefault(item.nodeid, round(time.time() - start, 2))
        self.measured.switch_context("")
        return done

    def pytest_runtest_logreport(self, report):
        if report.failed:  # a test that fails without a fault cannot find a fault
            self.seconds[report.nodeid] = None


class Only:
    """Pytest plugin that selects the given tests, and runs them in the given order."""

    def __init__(self, tests: list[str]):
        self.order = {test: i for i, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        kept = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(kept, key=lambda item: self.order[item.nodeid])


def record() -> None:
    """Run the default tests, and store the lines that they run."""
    import coverage

    RECORD.mkdir(parents=True, exist_ok=True)
    measured = coverage.Coverage(
        RECORD / "coverage", include=[str(ROOT / folder / "*") for folder in TOPS]
    )
    measured.erase()
    recorder = Recorder(measured)
    measured.start()
    pytest.main(["-q", *IN_ONE_PROCESS], plugins=[recorder])
    measured.stop()
    measured.save()
    (RECORD / "seconds.json").write_text(json.dumps(recorder.seconds, indent=0))


def chosen(seconds: dict[str, float], named: list[str]) -> list[str]:
    """Choose the tests to run, grouped by file."""
    turns = collections.Counter()
    order = []
    for test in sorted(seconds, key=seconds.get):
        file = test.partition("::")[0]
        order.append((file not in named, turns[file], seconds[test], file, test))
        turns[file] += 1
    taken, left = {}, SECONDS
    for *_, file, test in sorted(order)[:MOST]:
        if not taken or seconds[test] <= left:
            taken.setdefault(file, []).append(test)
            left -= seconds[test]
    return [test for tests in taken.values() for test in tests]


def found_by(tests: list[str], *options: str) -> str | None:
    """Run tests. Return the name of the test that fails, "timeout", or None if no test fails.

    The tests run in a fork of this process, which has imported Keras but not the package.
    """
    if not tests:
        return None
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(tests, options))
    process.start()
    process.join(LIMIT)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return "timeout"
    if process.exitcode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    output = (RECORD / "output.txt").read_text()
    failed = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE)
    return failed[-1] if failed else f"exit code {process.exitcode}"


def run_tests(tests: list[str], options: tuple[str, ...]) -> None:
    """Run tests in the given order. This function is called in a forked process."""
    os.setsid()  # a process group that includes the processes started by tests
    with open(RECORD / "output.txt", "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    # With only doctests, pytest would not load conftest.py, which defines the names in doctests.
    arguments = ["-q", "-x", "--tb=no", *IN_ONE_PROCESS, *options, "tests/conftest.py", *files]
    sys.exit(pytest.main(arguments, plugins=[Only(tests)]))


def find(count: int, seed: int, output: pathlib.Path) -> None:
    """Insert faults, run tests, and append a row per fault to a file. Existing rows are skipped."""
    # Imported once for all forks, after setting the same variables as `conftest.py`.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    import coverage
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    recorded = json.loads((RECORD / "seconds.json").read_text())
    usual = {test: seconds for test, seconds in recorded.items() if seconds is not None}
    lines = coverage.CoverageData(RECORD / "coverage")
    lines.read()
    drawn = random.Random(seed).sample(faults(), count)
    done = len(output.read_text().splitlines()) if output.exists() else 0
    for path, node, function, owner in drawn[done:]:
        text, start = path.read_text(encoding="utf-8"), time.time()
        named = tests_of(path, function.name, owner)
        of_lines = lines.contexts_by_lineno(str(path))
        span = range(node.lineno, node.end_lineno + 1)
        running = {test for line in span for test in of_lines.get(line, ()) if test in usual}
        near = {test for test in usual if test.partition("::")[0] in named}
        tests = chosen({test: usual[test] for test in running or near}, named)
        try:
            path.write_text(with_fault(text, node), encoding="utf-8")
            by_default = found_by(tests)
            by_slow = None if by_default else found_by(sorted(named), "-m", CI_SLOW)
        finally:
            path.write_text(text, encoding="utf-8")
        row = {
            "place": f"{path.relative_to(ROOT)}:{node.lineno}",
            "function": function.name,
            "before": ast.unparse(node),
            "after": ast.unparse(changed(node)),
            "default": by_default,
            "slow": by_slow,
            "run": len(tests),
            "of": len(running),
            "seconds": round(time.time() - start),
        }
        with open(output, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row["place"], by_default or by_slow, f"{row['seconds']} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["record", "find"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("mutations.jsonl"))
    given = parser.parse_args()
    if given.command == "record":
        record()
    else:
        find(given.count, given.seed, given.output)


if __name__ == "__main__":
    main()
