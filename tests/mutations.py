"""Put one small fault after another into the package, and count those that the tests find.

    python tests/mutations.py --count 100 --seed 0 --output mutations.jsonl

Each fault is a comparison, an operator, a constant or a check that was changed or left out, drawn
at random from the lines of code. The tests that are run are the doctests of the module and of the
test files that name the changed function, its class or its module the files that do so most: at
first those of the default run, and if none fails those that it leaves out, too. Work in a clone of
its own: the files are changed in place, and put back.
"""

import argparse
import ast
import copy
import json
import pathlib
import random
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("common", "encoders", "presets", "tasks", "facade")
MAX_FILES = 6  # of tests, for a fault
LIMIT = 900  # seconds of a run of tests

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


def changed(node: ast.AST) -> ast.AST | None:
    """Return a changed copy of a part of a function, or None if there is no fault for its kind."""
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
        return ast.Pass()  # a check, a log line or a change that is left out
    else:
        return None
    return new


def faults() -> list[tuple[pathlib.Path, ast.AST, ast.FunctionDef, str | None]]:
    """Return file, part, function and class of all places for a fault in functions."""
    found = []
    for path in sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")):
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
    """Return a module's text in which a part is replaced by its changed copy."""
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
    """Return the module, for its doctests, and the test files that name what is changed."""
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


def finds(tests: list[str], *options: str) -> bool | None:
    """Return whether a run of tests fails; None if it did not end within the limit."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options]
    try:
        run = subprocess.run([*command, *tests], cwd=ROOT, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None
    return run.returncode not in (0, 5)  # 5: no tests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("mutations.jsonl"))
    given = parser.parse_args()
    drawn = random.Random(given.seed).sample(faults(), given.count)
    done = len(given.output.read_text().splitlines()) if given.output.exists() else 0
    for path, node, function, owner in drawn[done:]:
        text, start = path.read_text(encoding="utf-8"), time.time()
        tests = tests_of(path, function.name, owner)
        try:
            path.write_text(with_fault(text, node), encoding="utf-8")
            by_default = finds(tests)
            by_all = by_default if by_default is not False else finds(tests, "-m", "not peers")
        finally:
            path.write_text(text, encoding="utf-8")
        row = {
            "place": f"{path.relative_to(ROOT)}:{node.lineno}",
            "function": function.name,
            "before": ast.unparse(node),
            "after": ast.unparse(changed(node)),
            "default": by_default,
            "all": by_all,
            "tests": tests[1:],
            "seconds": round(time.time() - start),
        }
        with open(given.output, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row["place"], row["default"], row["all"], f"{row['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
