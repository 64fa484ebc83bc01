"""The tables of benchmarks say what was measured."""

import importlib

import pytest
from paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
FIGURES = ROOT / "docs" / "pages" / "figures.md"


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
        ("squad", "encoder_zoo", 0, 5000): {"f1": 60.0, "exact_match": 50.0},
        ("squad", "transformers", 0, 5000): {"f1": 61.0, "exact_match": 51.0},
        ("squad", "encoder_zoo", 0, 100): {"f1": 50.0, "exact_match": 40.0},  # of another table
        ("squad", "transformers", 0, 100): {"f1": 51.0, "exact_match": 41.0},
    }
    title, line = "| data | measure | ours | transformers | seeds |", "|---|---|---|---|---|"
    assert quality.make_table(results, None) == [
        title,
        line,
        "| RTE | accuracy | 55.0 (50.0 to 60.0) | 55.0 (53.0 to 57.0) | 2 |",
        "| SQuAD v1.1 | f1 | 60.0 | 61.0 | 1 |",
        "| SQuAD v1.1 | exact_match | 50.0 | 51.0 | 1 |",
    ]
    assert quality.make_table(results, 100) == [
        title,
        line,
        "| SQuAD v1.1 | f1 | 50.0 | 51.0 | 1 |",
        "| SQuAD v1.1 | exact_match | 40.0 | 41.0 | 1 |",
    ]


def test_the_docs_show_the_table_of_the_results_that_are_kept(quality):
    rows = quality.make_table(quality.read_results(quality.RESULTS), None)
    assert len(rows) > 2
    assert "\n".join(rows) + "\n\n" in FIGURES.read_text("utf-8")


def test_there_may_be_no_results_yet(quality):
    assert quality.read_results(BENCHMARKS / "none.jsonl") == {}
