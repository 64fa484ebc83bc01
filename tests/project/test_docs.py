"""README and site: every page has its place, every public name a page, and the code runs."""

import ast
import doctest
import importlib
import inspect
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT
from processes import run
from reference import PAGES, documented_names, find_object
from site_search import search

import encoder_zoo as ez
from encoder_zoo import tasks
from encoder_zoo.tasks import list_tasks

yaml = pytest.importorskip("yaml")
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Methods that check their arguments, and that authors of tasks call or override.
# The first is for authors of tasks, and Keras describes the last one.
HOOKS = {"signatures", "load_weights"}
MODULES = ("display", "losses", "sklearn", "testing", "typing")


def navigation() -> list[str]:
    """Return the pages in their order."""

    def pages(entry) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        entries = entry.values() if isinstance(entry, dict) else entry
        return [page for inner in entries for page in pages(inner)]

    return pages(yaml.safe_load((DOCS / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


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
        assert {name for name in documented_names() if "." not in name} == {*ez.__all__} - aliases

    def test_members_exist(self):
        for name, members in documented_names().items():
            owner = find_object(name)
            assert [member for member in members if not hasattr(owner, member)] == [], name

    @pytest.mark.parametrize("name", MODULES)
    def test_modules_are_described_in_full(self, name):
        module = getattr(ez, name)
        public = getattr(module, "__all__", None) or {
            key for key, value in vars(module).items() if inspect.isclass(value)
        }
        assert {*documented_names()[name]} == {*public}

    @pytest.mark.parametrize(
        "task", [*list_tasks(), ez.Distillation], ids=lambda task: task.__name__
    )
    def test_methods_that_users_call_are_described(self, task):
        described = {*documented_names()[task.__name__]}
        described |= {*documented_names()["tasks.base.task.Task"]}
        methods = inspect.getmembers(task, lambda value: hasattr(value, "__wrapped__"))
        public = {name for name, method in methods if is_ours(method) and name[0] != "_"}
        assert public - HOOKS <= described

    @pytest.mark.parametrize("task", list_tasks(), ids=lambda task: task.__name__)
    def test_a_task_is_read_from_loading_to_export(self, task):
        """Load, train, answer; then the rest: on the task's own page, in this order."""
        members = documented_names()[task.__name__]
        order = ["from_preset", "fit", task.record.text_method, "predict", "evaluate"]
        order = [name for name in (*order, "save_to_preset", "export") if name in members]
        assert [name for name in members if name in order] == order
        assert {"from_preset", "export", task.record.text_method} - {None} <= {*members}


@pytest.mark.parametrize("task", list_tasks(), ids=lambda task: task.__name__)
def test_arguments_of_from_preset_have_descriptions(task, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    found = importlib.import_module("arguments").list_arguments(task)
    assert {"verify", "dtype", "sequence_length", "added_tokens"} <= {*found}
    own = {*task.record.answer_settings} & {*inspect.signature(task).parameters}
    assert own <= {*found} and all(len(text) > 10 for text in found.values())


def is_ours(method) -> bool:
    return method.__module__.startswith("encoder_zoo.")


class TestReadme:
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


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/pages/index.md"])
def test_code_of_the_first_pages_runs_as_it_stands(page, tmp_path):
    text = (ROOT / page).read_text(encoding="utf-8")
    code = "\n".join(CODE.findall(text))
    code = re.sub(r"^(classifier\.classify\(.*)  #.*$", r"print(\1)", code, flags=re.MULTILINE)
    printed = run(code, cwd=tmp_path)
    assert "{'label': 'good', 'score': 0." in printed
    assert (tmp_path / "my_classifier" / "model.safetensors").exists()


HOW_DO_I = (PAGES / "how_do_i.md").read_text(encoding="utf-8")
BEGINNING, *QUESTIONS = HOW_DO_I.split("\n### ")


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the first lines of the page define, in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("how_do_i"))
        patch.setenv("MPLBACKEND", "agg")
        names = {"__name__": "how_do_i"}
        exec("\n".join(CODE.findall(BEGINNING)), names)
        yield names


@pytest.mark.slow(every=True)
@pytest.mark.eager
@pytest.mark.filterwarnings("ignore:In the future `np.object`")  # tf2onnx
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda text: text.split("?")[0][:40])
def test_every_line_of_how_do_i_runs(question, names):
    """In the order of the page, as a reader types them."""
    [code] = CODE.findall(question)
    if re.search(r"export|for_cpu|strategy", code.lower()):
        tf.config.run_functions_eagerly(False)
    for package in re.findall(r"`pip install (\S+)`", question):
        pytest.importorskip(MODULE_OF.get(package, package))
    for module in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE):
        pytest.importorskip(module)
    exec(code, names)


@pytest.mark.slow(every=True)
@pytest.mark.eager
def test_our_side_of_the_moving_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec("\n".join(CODE.findall((PAGES / "moving.md").read_text(encoding="utf-8"))), {})


@pytest.mark.slow(every=True)
def test_every_line_of_change_the_model_runs(tmp_path, monkeypatch):
    """What is changed is trained, and the same after it is saved and opened."""
    tf.config.run_functions_eagerly(False)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "change_the_model"}
    for code in CODE.findall((PAGES / "topics" / "change_the_model.md").read_text("utf-8")):
        before = names["near"].predict(names["texts"], verbose=0) if "near.save" in code else None
        exec(code, names)
        if before is not None:
            again = names["near"].predict(names["texts"], verbose=0)
            np.testing.assert_allclose(again, before, atol=1e-5)
    assert type(names["modest"]).__name__ == "Modest"
    assert type(names["near"].backbone.blocks[0].attention).__name__ == "NearAttention"
    trained = {weight.path.split("/")[-2] for weight in names["adapted"].backbone.trainable_weights}
    assert trained == {"down", "up", "pooler"}
    assert all(np.abs(block.up.kernel).max() > 0 for block in names["adapted"].backbone.blocks)
    # The attention of far tokens is lower than BERT's, by the formula.
    attention = names["NearAttention"](8, 2)
    query = keras.random.normal((1, 2, 5, 4))
    places = np.arange(5)
    expected = np.asarray(query) @ np.asarray(query).transpose(0, 1, 3, 2) / 2
    expected = expected - 0.1 * np.abs(places[:, None] - places)
    np.testing.assert_allclose(attention.scores(query, query), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # of Keras's export
@pytest.mark.slow(every=True)
def test_every_line_of_write_a_task_runs(tmp_path, monkeypatch):
    """The task of the page learns, is saved, and passes the checks of tasks."""
    tf.config.run_functions_eagerly(False)
    monkeypatch.chdir(tmp_path)
    page = PAGES / "topics" / "write_a_task.md"
    names = {"__name__": "write_a_task"}
    try:
        for code in CODE.findall(page.read_text("utf-8")):
            exec(code, names)
    finally:
        for registry in (tasks.TASKS, tasks._REGISTERED):
            registry.pop("rating", None)
    # By the formula of the loss: 2 stars, with logits of 0 for all four questions.
    loss = names["OrdinalLoss"](reduction=None)(np.array([2.0]), np.zeros((1, 4), "float32"))
    np.testing.assert_allclose(loss, [np.log(2)], rtol=1e-6)
    logits = np.array([[3.0, 1.0, -1.0, -2.0]], "float32")
    p = 1 / (1 + np.exp(-logits[0]))
    expected = -np.mean([np.log(p[0]), np.log(1 - p[1]), np.log(1 - p[2]), np.log(1 - p[3])])
    found = names["OrdinalLoss"](reduction=None)(np.array([2.0]), logits)
    np.testing.assert_allclose(found, [expected], rtol=1e-5)


TASK_PAGES = sorted((PAGES / "reference" / "tasks").glob("*.md"))
WHOLE = [path for path in TASK_PAGES if "bert_nano" in path.read_text(encoding="utf-8")]


@pytest.mark.slow(every=True)
@pytest.mark.eager
@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_the_example_of_a_task_prints_what_its_page_shows(path, tmp_path, monkeypatch, capsys):
    """Each comment below a `print` is what it prints, with ... for digits that may differ."""
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    code = CODE.findall(path.read_text(encoding="utf-8"))[0]
    exec(code, {})
    printed = capsys.readouterr().out
    shown = "".join(re.findall(r"^print\(.*\n# (.*\n)", code, re.MULTILINE))
    assert shown and doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS), printed


MODULE_OF = {"faiss-cpu": "faiss", "ai-edge-litert": "ai_edge_litert"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, of guides that are not run."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    build = f"import build, pathlib; build.build_site(pathlib.Path({str(folder)!r}))"
    run(build, cwd=DOCS)
    return folder


# {what people of these projects ask for: part of the address that answers it}
QUERIES = {
    # transformers, its forum and Stack Overflow
    "class imbalance": "class-imbalance",
    "imbalanced data": "class-imbalance",
    "class weights": "class-imbalance",
    "freeze bert layers": "freeze-bert",
    "early stopping": "early-stopping",
    "text longer than 512 tokens": "long-texts",
    "bert pandas dataframe": "dataframe",
    "polars": "dataframe",
    "mixed precision fp16": "mixed-precision",
    "cuda out of memory": "out-of-memory",
    "multi-label classification": "multi-label",
    "regression": "regression",
    "save and load fine-tuned model": "save-and-load",
    "load pytorch checkpoint": "pytorch-checkpoint",
    "hyperparameter search": "hyperparameters",
    "learning rate warmup": "learning-rate",
    "resume training from checkpoint": "resume-training",
    "reproducible results seed": "reproducible",
    "add new tokens to tokenizer": "tokenizer",
    "lora peft": "lora",
    "zero-shot classification": "zero-shot",
    "pii redaction": "anonymise",
    "fill-mask": "fill-mask",
    "offline mode": "offline",
    "onnx": "onnx",
    "attention weights": "attention-weights",
    "confusion matrix": "confusion-matrix",
    "classification report": "classification-report",
    "stratified split": "stratified-split",
    "custom loss": "custom-loss",
    "train_step": "train_step",
    "own attention": "attention",
    "abstain": "abstain",
    "reject option": "abstain",
    "jupyter notebook": "notebook",
    "missing values": "missing-values",
    "continue pretraining on my domain": "domain",
    "multi gpu": "gpu",
    "tensorboard": "tensorboard",
    # KerasHub
    "tensorflow serving": "serving",
    "sentence pair classification": "sentence-pair",
    "jax": "jax",
    "load_model": "save-and-load",
    "sample_weight": "sample-weights",
    # sentence-transformers
    "sentence embeddings": "embeddings",
    "cosine similarity": "embeddings",
    "semantic search": "semantic-search",
    "cross-encoder reranking": "rerank",
    "MultipleNegativesRankingLoss": "pairs",
    "paraphrase mining": "duplicates",
    "clustering": "cluster",
    "setfit few-shot": "few-shot",
    "hybrid search bm25": "hybrid-search",
    "faiss": "millions",
    "delete document": "metadata",
    # spaCy
    "TFBertForSequenceClassification": "moving.html",
    "TFAutoModel": "moving.html",
    "sentence-transformers encode": "moving.html",
    "spacy": "moving.html",
    "gliner": "topics/entities",
    "model2vec static embeddings": "static-embeddings",
    "bge-m3": "bge-m3",
    "custom ner training": "ner",
    "doccano": "annotations",
    "label studio": "annotations",
    "BIOES": "bioes",
    "confidence score": "confidence",
    # and of those who put it to work
    "calibration": "calibration",
    "fastapi": "fastapi",
    "quantization int8": "quantization",
    "progress bar": "progress-bar",
    "cross validation": "cross-validation",
    "multilingual": "language",
    "question answering": "question",
    "distillation": "topics/distillation",
}


@pytest.mark.slow(every=True)
def test_the_first_three_hits_answer_what_people_type(site):
    """A hit is a page with its best section, as the search box lists them."""
    missed = {}
    for (query, answer), pages in zip(QUERIES.items(), search(site, [*QUERIES]), strict=True):
        hits = [next((place for place in page if "#" in place), page[0]) for page in pages[:3]]
        if not any(answer in hit for hit in hits):
            missed[query] = hits
    assert missed == {}


@pytest.mark.slow
class TestSite:
    """MkDocs builds it in strict mode: a link or a name that leads nowhere is an error."""

    @pytest.mark.matrix
    def test_a_page_describes_methods_and_no_hooks(self, site):
        page = (site / "reference" / "tasks" / "sequence_classifier.html").read_text("utf-8")
        assert 'id="encoder_zoo.SequenceClassifier.classify"' in page
        assert "logits_of" not in page and "compute_output_spec" not in page

    @pytest.mark.matrix
    def test_options_are_shown_by_name(self, site):
        page = (site / "reference" / "tasks" / "sequence_classifier.html").read_text("utf-8")
        text = re.sub(r"<[^>]+>", "", page)
        assert "Unpack[" not in text
        beginning = text[text.index("from_preset(") :][:3000]
        assert all(f"{name}" in beginning for name in ("problem_type", "dtype", "verify"))

    def test_the_home_page_begins_with_code_and_its_output(self, site):
        text = re.sub(r"<[^>]+>", "", (site / "index.html").read_text("utf-8"))
        parts = ("classifier.fit(", "extract_entities(", "'label': 'location'")
        parts += ("ez.display", "pip install")
        places = [text.index(part) for part in parts]
        assert places == sorted(places)

    @pytest.mark.matrix
    def test_a_task_lists_the_arguments_of_from_preset_in_a_table(self, site):
        page = (site / "reference" / "tasks" / "span_qa.html").read_text("utf-8")
        rows = re.findall(r"<tr>\s*<td><code>(\w+)</code></td>\s*<td>(.+?)</td>", page)
        assert {"doc_stride", "sequence_length", "verify"} <= {name for name, _ in rows}

    @pytest.mark.matrix
    def test_llms_txt_links_to_pages_of_the_site(self, site):
        links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text("utf-8"))
        assert len(links) > 15
        assert [link for link in links if not (site / link).is_file()] == []

    def test_examples_are_code_and_sections_are_text(self, site):
        page = (site / "reference" / "tasks" / "sequence_classifier.html").read_text("utf-8")
        text = re.sub(r"<[^>]+>", "", page)
        assert "&gt;&gt;&gt; stars.classify" not in text or "<blockquote>" not in page
        assert "Source:" in text and "Call arguments:" in text

    @pytest.mark.matrix
    def test_presets_and_guides_are_listed(self, site):
        bert = (site / "reference" / "families" / "bert.html").read_text("utf-8")
        assert "bert_base_en_uncased" in bert and "google-bert/bert-base-uncased" in bert
        guides = (site / "guides" / "index.html").read_text("utf-8")
        assert "your_own_csv" in guides

    @pytest.mark.matrix
    def test_one_search_finds_guides_and_reference(self, site):
        text = (site / "search" / "search_index.json").read_text("utf-8")
        places = [entry["location"] for entry in json.loads(text)["docs"]]
        assert any(place.startswith("guides/your_own_csv") for place in places)
        assert any("encoder_zoo.SpanQA.answer" in place for place in places)

    @pytest.mark.matrix
    def test_nothing_is_fetched_from_elsewhere(self, site):
        fetched = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//")
        pages = sorted(site.rglob("*.html"))
        assert len(pages) > 50
        assert [page for page in pages if fetched.search(page.read_text("utf-8"))] == []
