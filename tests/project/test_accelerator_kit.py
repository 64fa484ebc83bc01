"""The kit for accelerators, at a tiny size on the CPU."""

import argparse
import importlib
import json
import subprocess
import sys

import pytest
from paths import ROOT

JAX, MODEL = "encoder_zoo on JAX", "BERT-base"
OPTIONS = argparse.Namespace(
    sides=[JAX], models=[MODEL], lengths=[128, 512], tokens=1024, seconds=1.0, tiny=False, peak=None
)


@pytest.fixture
def kit(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("accelerator")


def result(length: int, **changed) -> dict:
    row = {"side": JAX, "model": MODEL, "length": length, "work": "train", "device": "NVIDIA L4"}
    row |= {"tokens": 1024, "seconds": 1.0, "tiny": False, "tokens_per_second": 1e4}
    return {**row, **changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"device": "cpu"},
        {"tokens": 16384},
        {"seconds": 0.05},
        {"tiny": True},
        {"error": "XlaRuntimeError: out of memory"},
    ],
)
def test_results_of_other_settings_or_with_errors_are_measured_anew(kit, changed):
    devices = {JAX: "NVIDIA L4"}
    rows = [result(512, work=work) for work in ("forward", "train")]
    rows += [result(128, work="forward"), result(128, **changed)]
    shown = kit.select_results(rows, OPTIONS, devices)
    assert shown == rows[:3]
    found = {kit.identity(row) for row in shown}
    assert kit.unmeasured(OPTIONS, found, devices) == [(JAX, MODEL, [128])]
    complete = found | {kit.identity(result(128))}
    assert kit.unmeasured(OPTIONS, complete, devices) == []


def test_a_peak_given_later_counts_for_results_in_the_file(kit, monkeypatch, tmp_path, capsys):
    rows = [
        result(128, work=work, peak_mb=9, first_seconds=1, device="new chip")
        for work in ("forward", "train")
    ]
    file = tmp_path / "results.json"
    file.write_text(json.dumps(rows))
    monkeypatch.setattr(kit, "find_devices", lambda sides: {JAX: "new chip"})
    arguments = f"--sides|{JAX}|--models|{MODEL}|--lengths|128|--tokens|1024|--seconds|1|--json"
    for peak in ("100", "50"):
        command = ["accelerator.py", *arguments.split("|"), str(file), "--peak", peak]
        monkeypatch.setattr(sys, "argv", command)
        kit.main()
        # A step of BERT-base, 2 * 85 million products for a token, three times in training.
        expected = 3 * 2 * 12 * (12 * 768**2 + 2 * 768 * 128) * 1e4 / (float(peak) * 1e12)
        assert json.loads(file.read_text())[1]["share_of_peak"] == pytest.approx(expected)
        assert f"{expected:.0%}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("TPU v5 lite", 197),
        ("cpu", None),
    ],
)
def test_a_device_has_the_peak_of_its_own_name(kit, device, peak):
    assert kit.get_peak(device) == peak


@pytest.mark.matrix
@pytest.mark.slow
def test_the_kit_measures_training_and_forward_passes_without_tensorflow(tmp_path):
    pytest.importorskip("jax")
    file = tmp_path / "results.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "accelerator.py"), "--tiny"]
    command += ["--models", "BERT-base", "--sides", "encoder_zoo on JAX", "encoder_zoo on torch"]
    command += ["--peak", "0.1", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0 and "TensorFlow" not in done.stderr, done.stderr
    rows = json.loads(file.read_text())
    assert [(row["length"], row["work"]) for row in rows] == 2 * [
        (length, work) for length in (16, 32) for work in ("forward", "train")
    ]
    assert all(row["tokens_per_second"] > 0 and row["share_of_peak"] > 0 for row in rows), rows
    assert done.stdout.count("| BERT-base |") == len(rows)
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)  # all is there
    assert again.stdout == done.stdout and json.loads(file.read_text()) == rows


@pytest.mark.matrix
@pytest.mark.slow
def test_the_kit_measures_raw_texts(tmp_path):
    pytest.importorskip("jax")
    texts, file = tmp_path / "texts.tsv", tmp_path / "results.json"
    rows = [f"{n % 2}\t{'a good movie ' * (n % 5 + 1)}" for n in range(64)]
    texts.write_text("\n".join(["label\tsentence", *rows, ""]))
    command = [sys.executable, str(ROOT / "benchmarks" / "accelerator_texts.py"), str(texts)]
    command += ["--tiny", "--sides", "encoder_zoo on JAX", "--json", str(file)]
    subprocess.run(command, check=True, timeout=600)
    rows = json.loads(file.read_text())
    assert [row["work"] for row in rows] == ["fit", "embed"]
    assert all(row["texts_per_second"] > 0 for row in rows), rows
