"""MLflow: what its autologging records of `fit`, and models that its processes open."""

import json
import os
import re
import subprocess
import sys

import pytest
from paths import ROOT

pytestmark = pytest.mark.peers
pytest.importorskip("mlflow")

FIT = """
import json, pathlib, sys
import mlflow
import numpy as np
import encoder_zoo as ez

folder = pathlib.Path(sys.argv[1])
mlflow.set_tracking_uri(f"sqlite:///{folder}/runs.db")
mlflow.create_experiment("texts", artifact_location=str(folder / "artifacts"))
mlflow.set_experiment("texts")
mlflow.keras.autolog()
model = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", labels=["down", "up"])
with mlflow.start_run() as run:
    model.fit(["Good.", "Bad."] * 10, ["up", "down"] * 10, batch_size=4, epochs=2,
              validation_split=0.2, validation_batch_size=5, verbose=0)
[logged] = mlflow.search_logged_models(output_format="list")
folder = pathlib.Path(logged.artifact_location)
data = mlflow.get_run(run.info.run_id).data
inputs = {"token_ids": np.array([[1, 7, 2]], "int32"), "padding_mask": np.ones((1, 3), bool)}
print(json.dumps({
    "params": data.params,
    "metrics": data.metrics,
    "tags": data.tags,
    "model": str(folder),
    "requirements": (folder / "requirements.txt").read_text().splitlines(),
    "logits": model.predict(inputs, verbose=0).tolist(),
    "answer": model.classify("A good film."),
}))
"""
OPEN = """
import json, sys
import mlflow
import numpy as np

inputs = {"token_ids": np.array([[1, 7, 2]], "int32"), "padding_mask": np.ones((1, 3), bool)}
print(json.dumps({
    "logits": np.asarray(mlflow.pyfunc.load_model(sys.argv[1]).predict(inputs)).tolist(),
    "answer": mlflow.keras.load_model(sys.argv[1]).classify("A good film."),
}))
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    """A folder with the entry points that pyproject.toml declares, as pip writes them."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    groups = re.findall(r'\[project\.entry-points\."(.*?)"\]\n((?:\w+ = ".*"\n)+)', text)
    folder = tmp_path_factory.mktemp("plugins")
    info = folder / "plugins_of_encoder_zoo-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins\nVersion: 0.0\n")
    points = "".join(f"[{name}]\n{lines}" for name, lines in groups).replace('"', "")
    (info / "entry_points.txt").write_text(points)
    return folder


@pytest.fixture(scope="module")
def run(plugins):
    """Run a program in a process of its own, and return what it prints as JSON."""

    def run(program: str, argument: str) -> dict:
        environment = {**os.environ, "PYTHONPATH": str(plugins), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-c", program, argument]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def logged(run, tmp_path_factory):
    return run(FIT, str(tmp_path_factory.mktemp("runs")))


def test_arguments_of_fit_are_recorded(logged):
    expected = {
        "batch_size": "4",
        "epochs": "2",
        "initial_epoch": "0",
        "validation_split": "0.2",
        "validation_batch_size": "5",
    }
    assert expected.items() <= logged["params"].items()
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(logged["metrics"])


def test_a_logged_model_names_the_package(logged):
    names = [line.partition("==")[0] for line in logged["requirements"]]
    assert "encoder-zoo" in names
    assert "encoder_zoo.version" in logged["tags"]


def test_a_logged_model_opens_where_nothing_was_imported(logged, run):
    opened = run(OPEN, logged["model"])
    assert opened["logits"][0] == pytest.approx(logged["logits"][0], abs=1e-5)
    assert opened["answer"]["label"] == logged["answer"]["label"]
    assert opened["answer"]["score"] == pytest.approx(logged["answer"]["score"], abs=1e-5)
