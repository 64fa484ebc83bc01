"""Five jobs of search in three libraries: every side's code runs, and finds what ours finds."""

import re

import keras
import pytest
from paths import ROOT

import encoder_zoo as ez

PAGE = (ROOT / "docs" / "pages" / "five_jobs.md").read_text(encoding="utf-8")
BEGINNING, *JOBS = PAGE.split("\n## ")
CODE = re.compile(r'^```python(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
OURS, *OTHERS = ("encoder_zoo", "sentence-transformers", "LangChain")
STARTS = "Long documents in chunks"


def sides(job: str) -> dict[str, str]:
    """Return the code of each side."""
    return {title or OURS: code for title, code in CODE.findall(job)}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.split("\n")[0])
def test_the_table_counts_the_lines(job):
    codes = sides(job)
    assert [*codes] == [OURS, *OTHERS]
    lines = [sum(bool(line) for line in code.splitlines()) for code in codes.values()]
    anchor = re.sub("[^a-z ]", "", job.split("\n")[0].lower()).replace(" ", "-")
    assert f"](#{anchor}) | {' | '.join(map(str, lines))} |\n" in BEGINNING


@pytest.fixture(scope="module")
def find(tmp_path_factory):
    """Run a side of a job, with models that are there, and return what it found."""
    pytest.importorskip("bm25s")
    folder = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(0)
    ez.Reranker.from_preset("bert_nano_en_uncased").save_to_preset(folder / "reranker")
    embedder = ROOT / "presets" / "data" / "bert_nano_en_uncased_embedder"
    names = {"EMBEDDER": str(embedder), "RERANKER": str(folder / "reranker")}

    def find(job: str, side: str):
        begun = {}
        exec(sides(BEGINNING)[OURS], begun)
        begun |= names
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("job"))
            exec(sides(job)[side], begun)
        return begun["found"]

    return find


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.split("\n")[0])
def test_ours_finds(find, job):
    found = find(job, OURS)
    if isinstance(found, list):
        assert len(found) == 3 and {row[0] for row in found} <= {"a1", "a2", "a3", "a4", "a5"}
    else:
        assert 0 < found < 1
    if job.startswith(STARTS):
        [(start, end)] = [row[1:] for row in found if row[0] == "a1"]
        assert 0 < start < end


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")  # their own
@pytest.mark.parametrize("side", OTHERS)
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.split("\n")[0])
def test_the_others_find_the_same(find, job, side):
    for module in re.findall(r"^(?:import|from) (\w+)", sides(job)[side], re.MULTILINE):
        pytest.importorskip(module)
    expected, found = find(job, OURS), find(job, side)
    if not isinstance(expected, list):
        assert found == pytest.approx(expected, abs=1e-6)
        return
    assert [row[0] for row in found] == [row[0] for row in expected]
    if job.startswith(STARTS) and side == "LangChain":
        return  # some of its starts are -1
    for theirs, ours in zip(found, expected, strict=True):
        if theirs[1] is not None:  # LangChain's rerankers return no scores
            # They compute in the file's bfloat16.
            assert theirs[1:] == pytest.approx(ours[1:], abs=5e-3)
