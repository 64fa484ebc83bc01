"""`llms.txt` and the agent skill: their code runs, and their links and names exist."""

import contextlib
import doctest
import io
import re

import keras
import pytest
from paths import ROOT

import encoder_zoo as ez

LLMS = ROOT / "facade" / "llms.txt"
SKILL = ROOT / "facade" / ".agents" / "skills" / "encoder-zoo" / "SKILL.md"
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.slow(every=True)
@pytest.mark.filterwarnings("ignore:In the future `np.object`")  # tf2onnx
@pytest.mark.parametrize("path", [LLMS, SKILL], ids=lambda path: path.name)
def test_every_line_runs_and_prints_what_is_shown(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    code = "\n".join(CODE.findall(path.read_text("utf-8")))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code.replace("print(", "show("), {"show": lambda *values: print("=", *values)})
    printed = "".join(re.findall(r"^= (.*\n)", out.getvalue(), re.MULTILINE))
    shown = "".join(re.findall(r"^print\(.*\n# (.*\n)", code, re.MULTILINE))
    assert shown and doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS), printed


def test_links_of_llms_txt_lead_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", LLMS.read_text("utf-8"))
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_llms_txt_has_the_parts_of_its_format():
    """A title, a summary as a quotation, and lists of links under headings: llmstxt.org."""
    title, blank, summary, *_ = LLMS.read_text("utf-8").splitlines()
    assert (title, blank, summary[:2]) == ("# encoder_zoo", "", "> ")
    sections = LLMS.read_text("utf-8").split("\n## ")[1:]
    for section in sections:
        lines = section.strip().splitlines()[2:]
        assert lines and all(re.match(r"- \[.+\]\(\S+\): \S", line) for line in lines)


def test_the_skill_has_the_header_of_agent_skills():
    """Its name is that of its folder, and the description has at most 1,024 characters."""
    yaml = pytest.importorskip("yaml")
    _, header, _ = SKILL.read_text("utf-8").split("---\n", 2)
    header = yaml.safe_load(header)
    assert header.keys() == {"name", "description"}
    assert header["name"] == SKILL.parent.name
    assert 0 < len(header["description"]) <= 1024


def test_methods_of_the_skills_table_exist():
    rows = re.findall(r"^\|(.*`.*)\|$", SKILL.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 9
    for row in rows:
        _, classes, *calls = row.split(" | ")
        for name in re.findall(r"`(\w+)`", classes):
            for call in re.findall(r"`(\w+)\(", " ".join(calls)):
                assert hasattr(getattr(ez, name), call), (name, call)
