"""The backend where KERAS_BACKEND is not set: README's snippet runs with what is installed."""

import json
import os
import re
import subprocess
import sys

import pytest
from paths import ROOT

README = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
HIDDEN = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
for name in {hidden}:
    sys.modules[name] = None
"""


def run_without(hidden: set[str], code: str, home, **variables) -> subprocess.CompletedProcess:
    """Run code where modules seem not to be installed and the home folder is another."""
    environment = {n: v for n, v in os.environ.items() if n not in ("KERAS_BACKEND", "KERAS_HOME")}
    return subprocess.run(
        [sys.executable, "-c", HIDDEN.format(hidden=sorted(hidden)) + code],
        env={**environment, "HOME": str(home), **variables},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=600,
    )


TELL = "import encoder_zoo as ez, os; print(os.environ.get('KERAS_BACKEND'))"


@pytest.mark.parametrize(
    ("hidden", "file", "variables", "expected"),
    [
        ({"tensorflow"}, None, {}, "jax"),
        ({"tensorflow", "jax"}, None, {}, "torch"),
        ({"tensorflow"}, "tensorflow", {}, "jax"),  # Keras wrote it, when its import failed
        ({"tensorflow"}, "torch", {}, "None"),  # Keras reads it
        ({"tensorflow"}, None, {"KERAS_BACKEND": "torch"}, "torch"),
        ({"tensorflow"}, None, {"KERAS_BACKEND": ""}, "jax"),
        (set(), None, {}, "None"),
    ],
)
def test_the_installed_backend_is_taken(hidden, file, variables, expected, tmp_path):
    if file:
        (tmp_path / ".keras").mkdir()
        (tmp_path / ".keras" / "keras.json").write_text(json.dumps({"backend": file}))
    done = run_without(hidden, TELL, tmp_path, **variables)
    assert done.stdout.split() == [expected], done.stderr


@pytest.mark.slow(except_for=r"^hidden2-None-variables2-'tensorflow' according to-tensorflow`$")
@pytest.mark.parametrize(
    ("hidden", "file", "variables", "named", "install"),
    [
        ({"torch"}, "torch", {}, "'torch' according to the file ", ", or `pip install torch`"),
        (
            {"torch"},
            None,
            {"KERAS_BACKEND": "torch"},
            "'torch' according to the variable",
            "torch`",
        ),
        (
            {"tensorflow"},
            None,
            {"KERAS_BACKEND": "tensorflow"},
            "'tensorflow' according to",
            "tensorflow`",
        ),
        ({"openvino"}, "openvino", {}, "'openvino' according to the file ", "openvino`"),
        (
            set(),
            None,
            {"KERAS_BACKEND": "JAX"},
            "'JAX' according to the variable",
            "",
        ),  # never installed
    ],
)
def test_a_backend_that_is_not_installed_ends_in_what_to_set(
    hidden, file, variables, named, install, tmp_path
):
    if file:
        (tmp_path / ".keras").mkdir()
        (tmp_path / ".keras" / "keras.json").write_text(json.dumps({"backend": file}))
    done = run_without(hidden, TELL, tmp_path, **variables)
    [error] = re.findall("ImportError: (.*)", done.stderr)
    assert named in error and "not installed" in error
    installed = [name for name in ("tensorflow", "jax", "torch") if name not in hidden]
    assert f"KERAS_BACKEND={installed[0]} " in error
    assert error.endswith(f"{install}. Installed: {', '.join(installed)}.")
    again = run_without(hidden, TELL, tmp_path, KERAS_BACKEND=installed[0])
    assert again.returncode == 0, again.stderr


def test_without_a_backend_the_error_says_what_to_install(tmp_path):
    done = run_without({"tensorflow", "jax", "torch"}, TELL, tmp_path)
    assert done.returncode and "`pip install tensorflow`" in done.stderr


# Modules of the packages that other extras install, by pyproject.toml; scipy is of JAX itself.
OF_OTHER_EXTRAS = {
    *("tensorflow", "keras_nlp", "keras_hub", "sklearn", "pandas", "matplotlib", "pyarrow"),
    *("bm25s", "ai_edge_litert", "tf2onnx", "sentencepiece", "qdrant_client"),
}


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(("extra", "other"), [("jax", "torch"), ("torch", "jax")])
def test_the_first_snippet_of_readme_runs_after_its_line_of_pip(extra, other, tmp_path):
    """After `pip install ".[jax]"`, with Keras's setting as it is on a new machine: none."""
    assert '".[tensorflow]"  # or jax, or torch' in (ROOT / "README.md").read_text()
    hidden = {*OF_OTHER_EXTRAS, other}
    tell = "\nimport keras; print('backend:', keras.config.backend())"
    done = run_without(hidden, README + tell, tmp_path)
    assert done.returncode == 0 and "'label': 'good'" in done.stdout, done.stderr[-2000:]
    assert f"backend: {extra}" in done.stdout
