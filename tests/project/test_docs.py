"""README and site: every page has its place, every public name a page, and the code runs."""

import ast
import importlib
import inspect
import json
import re

import pytest
from paths import ROOT
from processes import run

import encoder_zoo as ez
from encoder_zoo.tasks import all_tasks
from encoder_zoo.tasks.base.task import Task

yaml = pytest.importorskip("yaml")
DOCS = ROOT / "docs"
PAGES = DOCS / "pages"
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^::: encoder_zoo\.(\S+)\n((?:    .*\n)*)", re.MULTILINE)
# Methods that check their arguments, and that authors of tasks call or override.
HOOKS = {"load_from_files", "signatures"}
MODULES = ("display", "losses", "sklearn", "testing", "typing")


def navigation() -> list[str]:
    """Return the pages in their order."""

    def pages(entry) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        entries = entry.values() if isinstance(entry, dict) else entry
        return [page for inner in entries for page in pages(inner)]

    return pages(yaml.safe_load((DOCS / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


def reference() -> dict[str, list[str]]:
    """Return {name without "encoder_zoo.": members that its page describes}."""
    found = {}
    for path in sorted((PAGES / "reference").rglob("*.md")):
        for name, options in BLOCK.findall(path.read_text(encoding="utf-8") + "\n"):
            assert name not in found, f"{name} has two places."
            found[name] = ((yaml.safe_load(options) or {}).get("options", {})).get("members", [])
    return found


class TestNavigation:
    def test_every_page_stands_there_once(self):
        written = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")}
        guides = {f"guides/{path.stem}.md" for path in (ROOT / "guides").glob("*.py")}
        pages = navigation()
        assert len(pages) == len(set(pages))
        assert {page for page in pages if not page.startswith("project/")} == written | guides

    def test_text_classification_comes_first(self):
        guides = [page for page in navigation() if page.startswith("guides/")]
        assert guides[:2] == ["guides/index.md", "guides/text_classification.md"]


class TestReference:
    def test_every_public_name_has_one_place(self):
        aliases = {"Classifier"}
        assert {name for name in reference() if "." not in name} == {*ez.__all__} - aliases

    def test_members_exist(self):
        for name, members in reference().items():
            owner = ez
            for part in name.split("."):
                try:
                    owner = getattr(owner, part)
                except AttributeError:
                    owner = importlib.import_module(f"{owner.__name__}.{part}")
            assert [member for member in members if not hasattr(owner, member)] == [], name

    @pytest.mark.parametrize("name", MODULES)
    def test_modules_are_described_in_full(self, name):
        module = getattr(ez, name)
        public = getattr(module, "__all__", None) or {
            key for key, value in vars(module).items() if inspect.isclass(value)
        }
        assert {*reference()[name]} == {*public}

    @pytest.mark.parametrize(
        "task", [*all_tasks(), ez.Distillation], ids=lambda task: task.__name__
    )
    def test_methods_that_users_call_are_described(self, task):
        described = {*reference()[task.__name__]}
        described |= {*reference()["tasks.base.task.Task"]}
        methods = inspect.getmembers(task, lambda value: hasattr(value, "__wrapped__"))
        public = {name for name, method in methods if is_ours(method) and name[0] != "_"}
        assert public - HOOKS <= described

    def test_methods_of_all_tasks_are_described_once(self):
        shared = {*reference()["tasks.base.task.Task"]}
        for task in all_tasks():
            again = shared & {*reference()[task.__name__]}
            assert all(getattr(task, name) is not getattr(Task, name) for name in again)


def is_ours(method) -> bool:
    return method.__module__.startswith("encoder_zoo.")


class TestReadme:
    def test_is_one_page(self):
        assert len(README.split()) <= 900

    def test_has_the_two_commands(self):
        start = "python3 -m venv .venv && .venv/bin/pip install -e "
        ends = (
            '".[guides]" && .venv/bin/python guides/text_classification.py',
            '".[test]" && .venv/bin/pytest -n auto --dist loadfile',
        )
        for end in ends:
            assert f"```bash\n{start}{end}\n```" in README

    def test_links_lead_somewhere(self):
        links = re.findall(r"\]\(([^)#]+)", README)
        assert len(links) > 10
        assert [link for link in links if not (ROOT / link).exists()] == []


CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted(PAGES.rglob("*.md"))], ids=lambda p: p.stem
)
def test_code_of_pages_names_what_exists(path):
    for code in CODE.findall(path.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("ez."):
                owner = ez
                for part in ast.unparse(node).split("(")[0].split(".")[1:]:
                    assert hasattr(owner, part), ast.unparse(node)
                    owner = getattr(owner, part)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/pages/index.md"])
def test_code_of_the_first_pages_runs_as_it_stands(page, tmp_path):
    text = (ROOT / page).read_text(encoding="utf-8")
    code = "\n".join(CODE.findall(text))
    code = re.sub(r"^(classifier\.classify\(.*)  #.*$", r"print(\1)", code, flags=re.MULTILINE)
    printed = run(code, cwd=tmp_path)
    assert "{'label': 'good', 'score': 0." in printed
    assert (tmp_path / "my_classifier" / "model.safetensors").exists()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, of guides that are not run."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    build = f"import build, pathlib; build.build_site(pathlib.Path({str(folder)!r}))"
    run(build, cwd=DOCS)
    return folder


@pytest.mark.slow
class TestSite:
    """MkDocs builds it in strict mode: a link or a name that leads nowhere is an error."""

    def test_a_page_describes_methods_and_no_hooks(self, site):
        page = (site / "reference" / "tasks" / "sequence_classifier.html").read_text("utf-8")
        assert 'id="encoder_zoo.SequenceClassifier.classify"' in page
        assert "logits_of" not in page and "compute_output_spec" not in page

    def test_examples_are_code_and_sections_are_text(self, site):
        page = (site / "reference" / "tasks" / "sequence_classifier.html").read_text("utf-8")
        text = re.sub(r"<[^>]+>", "", page)
        assert "&gt;&gt;&gt; stars.classify" not in text or "<blockquote>" not in page
        assert "Source:" in text and "Call arguments:" in text

    def test_presets_and_guides_are_listed(self, site):
        bert = (site / "reference" / "families" / "bert.html").read_text("utf-8")
        assert "bert_base_en_uncased" in bert and "google-bert/bert-base-uncased" in bert
        guides = (site / "guides" / "index.html").read_text("utf-8")
        assert "From a table with texts and labels to a table with answers." in guides

    def test_one_search_finds_guides_and_reference(self, site):
        text = (site / "search" / "search_index.json").read_text("utf-8")
        places = [entry["location"] for entry in json.loads(text)["docs"]]
        assert any(place.startswith("guides/your_own_csv") for place in places)
        assert any("encoder_zoo.SpanQA.answer" in place for place in places)

    def test_nothing_is_fetched_from_elsewhere(self, site):
        fetched = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//")
        pages = sorted(site.rglob("*.html"))
        assert len(pages) > 50
        assert [page for page in pages if fetched.search(page.read_text("utf-8"))] == []
