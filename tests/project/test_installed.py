"""The package as pip installs it: its files, standing in the repository's root, and its types."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import warnings

import pytest
from paths import ROOT, TOPS

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny


def run(*command: object, cwd: pathlib.Path = ROOT, ok: bool = True, **environment: str) -> str:
    """What a command prints."""
    env = {**os.environ, **environment}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd, env=env)
    assert (done.returncode == 0) is ok, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> pathlib.Path:
    """A folder into which a wheel was installed."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy: building leaves files behind
    for part in TOPS:
        shutil.copytree(ROOT / part, source / part)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", source, "--no-deps", "--no-build-isolation", "-w", folder)
    (wheel,) = folder.glob("*.whl")
    assert wheel.stat().st_size < 20e6
    run(*pip, "install", wheel, "--no-deps", "--target", folder / "installed")
    return folder / "installed"


LEFT_OUT = {"bert_nano_en_uncased_sentiment", "roberta_nano_en"}  # of the wheel, for its size
WHERE = "import encoder_zoo.encoders as e, sys; print(e.__file__, 'keras' in sys.modules)"


@pytest.mark.matrix
@pytest.mark.slow
def test_the_repository_does_not_shadow_the_installed_package(installed):
    """`python -c` has the current folder first on its path."""
    where = run(sys.executable, "-c", WHERE, PYTHONPATH=os.fspath(installed))
    assert where.split() == [str(installed / "encoder_zoo" / "encoders" / "__init__.py"), "False"]


def test_the_editable_package_in_the_root_of_the_repository():
    where = run(sys.executable, "-c", WHERE)
    assert where.split() == [str(ROOT / "encoders" / "__init__.py"), "False"]


@pytest.mark.slow
@pytest.mark.matrix
def test_a_wheel_holds_every_file_and_one_top_level_package(installed):
    wings = {**{name: name for name in TOPS}, "facade": "."}
    files = {
        os.path.join(wing, file.relative_to(ROOT / folder))
        for folder, wing in wings.items()
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and not {"__pycache__", *LEFT_OUT} & {*file.parts}
    }
    package = installed / "encoder_zoo"
    there = {os.path.join(".", p.relative_to(package)) for p in package.rglob("*") if p.is_file()}
    there = {os.path.normpath(file) for file in there if "__pycache__" not in file}
    assert {os.path.normpath(file) for file in files} == there
    assert {"py.typed", "__init__.pyi"} <= there
    assert {p.name for p in installed.iterdir() if p.suffix != ".dist-info"} == {"encoder_zoo"}


SCRIPT = """
    import encoder_zoo as ez

    reveal_type(ez.Classifier.from_preset("bert_nano_en_uncased", num_classes=2))
    reveal_type(ez.MaskedLM.from_preset("roberta_nano_en"))
    reveal_type(ez.BertBackbone.from_preset("bert_nano_en_uncased"))
    reveal_type(ez.RobertaTokenizer.from_preset("roberta_nano_en"))
    ez.Clasifier
"""
TYPES = ["SequenceClassifier", "MaskedLM", "BertBackbone", "RobertaTokenizer"]


@pytest.fixture
def script(tmp_path) -> pathlib.Path:
    (tmp_path / "user.py").write_text(textwrap.dedent(SCRIPT))
    return tmp_path / "user.py"


@pytest.mark.matrix
@pytest.mark.slow
def test_mypy_knows_the_types_and_finds_a_typo(installed, script):
    command = [sys.executable, "-m", "mypy", "--cache-dir", script.parent / "cache", script]
    out = run(*command, cwd=script.parent, ok=False, PYTHONPATH=os.fspath(installed))
    assert re.findall(r'Revealed type is "[\w.]*\.(\w+)"', out) == TYPES
    assert re.findall(r"user.py:(\d+): error: .*", out) == ["8"]
    assert 'has no attribute "Clasifier"' in out


@pytest.mark.matrix
@pytest.mark.slow  # test_typing.py runs it, too
def test_pyright_knows_the_types_and_finds_a_typo(installed, script):
    (script.parent / "pyrightconfig.json").write_text(
        f'{{"extraPaths": ["{installed}"], "typeCheckingMode": "standard"}}'
    )
    out = run(sys.executable, "-m", "basedpyright", "-p", script.parent, script, ok=False)
    assert re.findall(r' is "(\w+)"', out) == TYPES
    assert re.findall(r"user.py:(\d+):\d+ - error: .*", out) == ["8"]
    assert '"Clasifier" is not a known attribute' in out


def test_changelog_and_citation_name_the_version():
    assert f"\n## {ez.__version__} (" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\nversion: {ez.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_packages_that_are_advised_have_these_names():
    """They are those of pyproject.toml's extras, which pip installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"].values()
    named = [*project["dependencies"], *(name for names in optional for name in names)]
    known = {re.split(r"[\[><=;~ ]", name)[0].lower() for name in named}
    advised = {
        name
        for folder in TOPS
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"pip install ([\w-]+)`", path.read_text(encoding="utf-8"))
    }
    assert len(advised) > 10 and advised <= known, advised - known


OPEN = """
import sys
import encoder_zoo as ez
print(ez.open_export(sys.argv[1]).classify("a b")["label"])
for name in ("keras", "tensorflow", "torch", "jax", "safetensors", "huggingface_hub"):
    try:
        __import__(name)
    except ImportError:
        continue
    print(name)
"""


@pytest.mark.slow
def test_an_export_answers_where_keras_is_not_installed(installed, tmp_path):
    """The environment has NumPy, `tokenizers`, ONNX Runtime and this package."""
    task = tiny.task(get_family("bert"), ez.SequenceClassifier)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task.export(tmp_path / "served", format="onnx")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    [packages] = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "encoder_zoo").symlink_to(installed / "encoder_zoo")
    for name in ("numpy", "tokenizers", "onnxruntime"):
        home = pathlib.Path(importlib.util.find_spec(name).origin).parent
        for path in home.parent.glob(f"{name}*"):  # with shared libraries
            (packages / path.name).symlink_to(path)
    python = tmp_path / "env" / "bin" / "python"
    found = run(python, "-c", OPEN, tmp_path / "served", cwd=tmp_path)
    assert found.split() == [task.classify("a b")["label"]]
