"""Measure how far the English of the package is from the English of other packages.

    python docs/language.py                     # print the distance of each folder and of pages
    python docs/language.py --phrases tasks     # print the most excessive phrases of a folder
    python docs/language.py --write             # record the distances that are lower than before
    python docs/language.py --reference FOLDER  # count the reference packages in a folder again

The text of a folder consists of its docstrings, error messages, log messages and comments. The text
of the pages is their prose. Code blocks, inline code, numbers and link targets do not count. Every
word that is not a function word becomes `*`, and the frequencies of all sequences of three words
are compared with their frequencies in the docstrings of sentence-transformers, KerasHub, timm,
spaCy, Equinox and PyLate. The distance is the Jensen-Shannon divergence in bits, from 0 to 1.

The measure depends on how sentences are built and not on a list of words, so it cannot be improved
by replacing single words. It is a thermometer. A short text has a larger distance than a long one,
and a low distance does not prove that a text is easy to read.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import math
import pathlib
import re
import tokenize
from collections import Counter
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "language_reference.json"
RECORD = ROOT / "tests" / "recorded" / "language.json"
FOLDERS = ("common", "encoders", "presets", "tasks", "extras", "facade", "guides", "benchmarks")
PACKAGES = ("sentence_transformers", "keras_hub", "timm", "spacy", "equinox", "pylate")
TOLERANCE = 0.01  # changes of a few sentences move the distance by less
RARE = 3  # trigrams that are rarer in both texts are left out
FUNCTION_WORDS = frozenset(
    """
    a about again against all alone already also although among and anew another any apart are
    around as at be because been before behind being beside besides between both but by can
    could did do does doing done down during each either else even every except few fewer first
    for from further had has have having he here how however i if in instead into is it its
    just last least less likewise many may might more most much must neither never no nobody
    none nor not nothing of on one only onto or other others otherwise our out over own per
    rather same shall she should since so some still such than that the their them then there
    therefore these they this those though through to too two under unless until up was we were
    what when where whether which while who whom whose why will with within without would yet
    you your
    """.split()
)
WORD = re.compile(r"[A-Za-z][A-Za-z']*|[.;:!?]")
NUMBER = re.compile(r"\d[\d.,:]*\d|\d")
EXAMPLE = (">>>", "...")


def python_texts(source: str) -> Iterator[str]:
    """Yield the docstrings, text cells, messages and comments of a Python file."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                rows = text.splitlines()
                yield "\n".join(row for row in rows if not row.lstrip().startswith(EXAMPLE))
            case (
                ast.Raise()
                | ast.Call(func=ast.Attribute(attr="debug" | "info" | "warning" | "error"))
            ):
                parts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                yield " ".join(part for part in parts if isinstance(part, str))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("# %%"):
            yield token.string


def page_texts(page: str) -> Iterator[str]:
    """Yield the paragraphs, list items, headings and table cells of a Markdown page."""
    page = re.sub(r"^ *(```|~~~).*?^ *\1", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"<!--.*?-->|\*\*|^::: .*?$", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"\]\([^)]*\)", "]", page)
    for block in re.split(r"\n\s*\n|\n\s*(?=[-*#|] ?|\d+\. )", page):
        yield from block.split("|") if block.lstrip().startswith("|") else [block]


def count_trigrams(texts: Iterator[str]) -> Counter[str]:
    """Count the sequences of three words or punctuation marks that contain a function word."""
    counts = Counter()
    for text in texts:
        text = NUMBER.sub(" x ", re.sub(r"`[^`]*`|https?://\S+", " x ", text))
        words = [word.lower() for word in WORD.findall(text)]
        row = [word if word in FUNCTION_WORDS or word in ".;:!?" else "*" for word in words]
        counts.update(" ".join(row[i : i + 3]) for i in range(len(row) - 2))
    return counts


def distance(counts: Counter[str], reference: Counter[str]) -> float:
    """Return the Jensen-Shannon divergence of two distributions of trigrams, in bits."""
    keys = [
        key
        for key in counts.keys() | reference.keys()
        if counts[key] + reference[key] >= RARE and key != "* * *"
    ]
    ours, theirs = (sum(side[key] for key in keys) for side in (counts, reference))
    total = 0.0
    for key in keys:
        p, q = counts[key] / ours, reference[key] / theirs
        mean = (p + q) / 2
        total += sum(x * math.log2(x / mean) for x in (p, q) if x) / 2
    return total


def read_folder(folder: pathlib.Path) -> Counter[str]:
    """Count the trigrams of all Python files in a folder and its subfolders."""
    counts = Counter()
    for path in sorted(folder.rglob("*.py")):
        if not {"tests", "test", "lang"} & set(path.relative_to(folder).parts):
            counts.update(count_trigrams(python_texts(path.read_text("utf-8"))))
    return counts


def read_texts() -> dict[str, Counter[str]]:
    """Count the trigrams of each folder of this repository, and of its Markdown pages."""
    texts = {folder: read_folder(ROOT / folder) for folder in FOLDERS}
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs" / "pages").rglob("*.md")]
    texts["pages"] = Counter()
    for page in pages:
        texts["pages"].update(count_trigrams(page_texts(page.read_text("utf-8"))))
    return texts


def read_reference() -> Counter[str]:
    """Read the recorded trigram counts of the reference packages."""
    return Counter(json.loads(REFERENCE.read_text("utf-8")))


def measure() -> dict[str, float]:
    """Return the distance of each folder and of the pages from the reference packages."""
    reference = read_reference()
    return {name: distance(counts, reference) for name, counts in read_texts().items()}


def print_phrases(counts: Counter[str], reference: Counter[str], n: int = 40) -> None:
    """Print the trigrams that are more frequent here than in the reference packages."""
    ours, theirs = sum(counts.values()), sum(reference.values())
    rates = {
        key: (counts[key] / ours * 1e4, reference[key] / theirs * 1e4)
        for key in counts
        if counts[key] >= RARE and key != "* * *"
    }
    for key in sorted(rates, key=lambda key: rates[key][1] - rates[key][0])[:n]:
        here, there = rates[key]
        print(f"{key:30} {counts[key]:5} times, in 10,000: here {here:5.1f}, there {there:5.1f}")


def write_reference(folder: pathlib.Path) -> None:
    """Count the reference packages, which are installed or unpacked in a folder."""
    counts = Counter()
    for package in PACKAGES:
        counts.update(read_folder(folder / package))
    frequent = {key: n for key, n in sorted(counts.items()) if n >= RARE}
    REFERENCE.write_text(json.dumps(frequent, indent=0) + "\n", "utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--phrases", choices=[*FOLDERS, "pages"])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--reference", type=pathlib.Path)
    options = parser.parse_args()
    if options.reference:
        write_reference(options.reference)
    if options.phrases:
        print_phrases(read_texts()[options.phrases], read_reference())
        return
    recorded = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    distances = measure()
    for name, value in distances.items():
        print(f"{name:12} distance {value:.3f}   recorded {recorded.get(name, math.nan):.3f}")
    if options.write:
        lowest = {n: min(round(v, 3), recorded.get(n, 1.0)) for n, v in distances.items()}
        RECORD.write_text(json.dumps(lowest, indent=4) + "\n", "utf-8")


if __name__ == "__main__":
    main()
