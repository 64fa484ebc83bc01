"""Types as editors and type checkers see them, and the same names checked at run time."""

import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest
from paths import ROOT, TOPS
from processes import run

import encoder_zoo as ez
from encoder_zoo.common import arguments
from encoder_zoo.common.configuration import get_argument_names
from encoder_zoo.common.validation import list_argument_names
from encoder_zoo.encoders import list_families
from encoder_zoo.encoders.backbone import BackbonePresetArguments
from encoder_zoo.tasks import list_tasks
from encoder_zoo.tasks.retrieval import hybrid_index, index

SCRIPTS = ROOT / "tests" / "typing"
# Arguments of backbones that give weights another shape than a preset's.
SHAPES = {
    "vocabulary_size", "num_layers", "hidden_dim", "intermediate_dim", "max_sequence_length",
    "num_segments", "embedding_dim", "num_groups", "position_buckets", "terms",
    "convolution_width", "normalizes_first", "num_decoder_layers", "num_key_value_heads",
    "head_dim",
}  # fmt: skip
CHECKS = {"verify", "max_bytes", "allow_nonfinite"}
# Arguments that `from_preset` makes itself.
PARTS = {"backbone", "preprocessor", "tokenizer"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> pathlib.Path:
    """The package as it lies in site-packages: a type checker runs no import hooks."""
    package = tmp_path_factory.mktemp("installed") / "encoder_zoo"
    package.mkdir()
    for part in (*(ROOT / "facade").iterdir(), *(ROOT / n for n in TOPS[:-1])):
        (package / part.name).symlink_to(part)
    return package.parent


@pytest.fixture(scope="module")
def found(installed) -> dict[str, list[dict]]:
    """{name of a script: what pyright finds in it in strict mode}."""
    config = {"include": [str(SCRIPTS)], "typeCheckingMode": "strict"}
    (installed / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "basedpyright", "-p", installed, "--outputjson"]
    command += ["--pythonpath", sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    return {
        name: [each for each in diagnostics if pathlib.Path(each["file"]).name == name]
        for name in ("user.py", "all_parts.py", "mistakes.py")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["user.py", "all_parts.py"])
def test_a_users_script_passes_in_strict_mode(found, name):
    assert [each["message"] for each in found[name]] == []


@pytest.mark.matrix
@pytest.mark.slow
def test_a_users_script_runs(tmp_path):
    run((SCRIPTS / "user.py").read_text(), cwd=tmp_path)


@pytest.mark.slow
def test_mistakes_are_underlined(found):
    lines = (SCRIPTS / "mistakes.py").read_text().splitlines()
    wrong = {i: line.rsplit("# ")[-1] for i, line in enumerate(lines) if "  # " in line}
    by_line = {}
    for each in found["mistakes.py"]:
        by_line.setdefault(each["range"]["start"]["line"], []).append(each["message"])
    assert by_line.keys() == wrong.keys()
    for number, name in wrong.items():
        assert any(name in message for message in by_line[number]), by_line[number]


def names_of(options: type) -> set[str]:
    return set(options.__required_keys__ | options.__optional_keys__)


def backbone_names() -> set[str]:
    return {n for family in list_families() for n in get_argument_names(family.backbone)}


def test_backbones_name_their_arguments():
    assert names_of(BackbonePresetArguments) == {*backbone_names(), *CHECKS, "dtype"} - SHAPES


@pytest.mark.parametrize(
    "task", [*list_tasks(), ez.FewShotClassifier], ids=lambda task: task.__name__
)
def test_tasks_name_the_arguments_of_from_preset(task):
    """All that `from_preset` takes, and nothing else."""
    own = {*get_argument_names(task), *get_argument_names(task.record.preprocessor_class)} - PARTS
    expected = own | (backbone_names() - SHAPES) | CHECKS
    expected |= {"dtype", "added_tokens", "preprocessor"}
    assert list_argument_names(task.from_preset.__func__) - {"cls", "source"} == expected


KEYWORDS = {
    arguments.CompileOptions: (ez.SequenceClassifier.compile, 4),
    arguments.EvaluateOptions: (ez.SequenceClassifier.evaluate, 5),
    arguments.PredictOptions: (ez.SequenceClassifier.predict, 3),
    index.SearchOptions: (ez.VectorIndex.search, 3),
    hybrid_index.OpenOptions: (ez.VectorIndex.load, 2),
}


@pytest.mark.parametrize("options", KEYWORDS, ids=lambda options: options.__name__)
def test_options_are_those_of_the_function_that_gets_them(options):
    function, given = KEYWORDS[options]
    names = list(inspect.signature(function).parameters)[:given]
    known = list_argument_names(function) or set(inspect.signature(function).parameters)
    assert names_of(options) == known - {*names, "of_keras"}


@pytest.fixture(scope="module")
def classifier():
    return ez.SequenceClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])


@pytest.mark.slow(only="^(fit-epoch|fit-labels)")
@pytest.mark.parametrize(
    ("method", "wrong", "meant"),
    [
        ("fit", "epoch", "epochs"),
        ("fit", "labels", "y"),
        ("fit", "eval_dataset", "validation_data"),
        ("compile", "lr", "learning_rate"),
        ("compile", "optimiser", "optimizer"),
        ("evaluate", "batchsize", "batch_size"),
        ("predict", "verbos", "verbose"),
        ("classify", "topk", "top_k"),
    ],
)
def test_an_unknown_argument_is_named_with_the_one_that_is_meant(classifier, method, wrong, meant):
    given = () if method == "compile" else (["A film."],)
    with pytest.raises(TypeError, match=rf"{method}.*'{wrong}'.*'{meant}'"):
        getattr(classifier, method)(*given, **{wrong: 1})


@pytest.mark.parametrize("cls", [ez.TextEmbedder, ez.Reranker])
def test_tasks_with_a_compile_of_their_own_name_unknown_arguments(cls):
    task = cls.from_preset("bert_nano_en_uncased")
    with pytest.raises(TypeError, match=r"compile.*'lr'.*'learning_rate'"):
        task.compile(lr=1e-3)


def test_from_preset_names_the_argument_that_is_meant():
    with pytest.raises(TypeError, match=r"SequenceClassifier\.from_preset.*'lables'.*'labels'"):
        ez.SequenceClassifier.from_preset("bert_nano_en_uncased", lables=["bad", "good"])


@pytest.mark.parametrize("task", [*list_tasks(), ez.Distillation], ids=lambda task: task.__name__)
@pytest.mark.parametrize("method", ["compile", "fit", "evaluate", "predict", "from_preset"])
def test_the_methods_of_keras_are_documented(task, method):
    if task is ez.Distillation and method == "from_preset":
        pytest.skip("it is not loaded")
    assert len(inspect.getdoc(getattr(task, method))) > 60


@pytest.mark.parametrize(
    ("cls", "wrong", "meant"),
    [
        (ez.SequenceClassifier, "num_labels", "num_classes"),
        (ez.TokenClassifier, "lables", "labels"),
        (ez.TextEmbedder, "poolling", "pooling"),
        (ez.SpanQA, "drop_out", "dropout"),
    ],
)
def test_constructors_name_unknown_arguments(cls, wrong, meant):
    backbone = ez.BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    with pytest.raises(TypeError, match=f"{cls.__name__}.*'{wrong}'.*'{meant}'"):
        cls(backbone, **{wrong: 1})


@pytest.mark.parametrize("cls", [ez.BertBackbone, ez.DistilBertBackbone])
def test_backbones_name_unknown_arguments(cls):
    with pytest.raises(TypeError, match=f"{cls.__name__}.*'hidden_size'.*'hidden_dim'"):
        cls(30, num_layers=1, num_heads=2, hidden_size=8, intermediate_dim=16)


@pytest.mark.parametrize("name", ["learning_rate", "optimizer", "warmup_steps", "loss"])
def test_arguments_of_other_libraries_fit_belong_to_compile(name):
    with pytest.raises(TypeError, match=rf"'{name}'.*compile\("):
        ez.SequenceClassifier.fit(None, [], **{name: 1})


@pytest.mark.parametrize("name", ["BertBackbone", "AlbertBackbone", "XLNetBackbone"])
def test_the_signature_of_a_backbone_names_its_arguments(name):
    names = list(inspect.signature(getattr(ez, name)).parameters)
    assert names[:2] == ["vocabulary_size", "num_layers"] and {"dropout", "pooler"} <= {*names}
    assert "args" not in names
