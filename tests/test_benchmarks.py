"""The tables of benchmarks say what was measured."""

import importlib
import pathlib

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def quality(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("quality")


def test_means_and_spread_are_of_the_seeds_that_both_sides_have(quality):
    results = {
        ("rte", "encoder_zoo", 0, None): {"accuracy": 0.50},
        ("rte", "encoder_zoo", 1, None): {"accuracy": 0.60},
        ("rte", "encoder_zoo", 2, None): {"accuracy": 0.90},  # the other side has none
        ("rte", "transformers", 0, None): {"accuracy": 0.57},
        ("rte", "transformers", 1, None): {"accuracy": 0.53},
        ("stsb", "encoder_zoo", 0, None): {"Spearman": 0.85},  # alone
        ("squad", "encoder_zoo", 0, 100): {"f1": 50.0, "exact_match": 40.0},  # of another table
        ("squad", "transformers", 0, 100): {"f1": 51.0, "exact_match": 41.0},
    }
    title, line = "| data | measure | encoder_zoo | transformers | seeds |", "|---|---|---|---|---|"
    assert quality.table(results, None) == [
        title,
        line,
        "| rte | accuracy | 55.0 (50.0 to 60.0) | 55.0 (53.0 to 57.0) | 2 |",
    ]
    assert quality.table(results, 100) == [
        title,
        line,
        "| squad | f1 | 50.0 | 51.0 | 1 |",
        "| squad | exact_match | 40.0 | 41.0 | 1 |",
    ]


def test_what_is_kept_of_results_can_be_read(quality):
    works = {work for work, *_ in quality.finished(quality.RESULTS)}
    assert works and works <= set(quality.WORKS)
    assert quality.finished(BENCHMARKS / "none.jsonl") == {}
