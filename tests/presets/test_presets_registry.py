"""Names of presets: the table, and errors that help."""

import json
import re

import pytest
from paths import ROOT
from processes import run

import encoder_zoo as ez
from encoder_zoo.encoders import FAMILIES
from encoder_zoo.presets import registry
from encoder_zoo.presets.registry import BUNDLED_FOLDER, KNOWN_FOLDER, fetch_preset


def test_the_table_prints_one_aligned_line_for_each_preset():
    table = ez.list_presets()
    header, *lines = repr(table).split("\n")
    assert header.split() == list(registry.PresetInfo._fields)
    assert len(lines) == len(table) > 30
    column = header.index("family")
    for row, line in zip(table, lines, strict=True):
        assert line.startswith(row.name) and line[column:].startswith(row.family)
    [line] = [line for line in lines if line.startswith("roberta_base_en ")]
    assert "124.6 M" in line and "MIT" in line and "hf://FacebookAI/roberta-base" in line


def test_the_table_is_html_in_notebooks_and_escaped(monkeypatch):
    html = ez.list_presets()._repr_html_()
    assert html.startswith("<table><thead><tr><th>name</th>")
    assert html.count("<tr>") == len(ez.list_presets()) + 1
    row = registry.PresetInfo("<b>", "bert", "Backbone", 1, "en", "MIT", "hf://a/b", "x & y")
    assert "<td>&lt;b&gt;</td>" in registry.PresetTable([row])._repr_html_()
    assert "x &amp; y" in registry.PresetTable([row])._repr_html_()


# From the papers and model cards: encoder and pooler.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bert_base_en_uncased", 109_482_240),
        ("bert_large_en_uncased", 335_141_888),
        ("roberta_base_en", 124_645_632),
        ("roberta_large_en", 355_359_744),
        ("all_minilm_l6_en_uncased", 22_713_216),
        ("bert_tiny_en_uncased", 4_385_920),
        ("distilbert_base_en_uncased", 66_362_880),
        ("distilbert_base_multi", 134_734_080),
        ("albert_xxlarge_v2_en_uncased", 222_595_584),
    ],
)
def test_parameters_are_those_that_were_published(name, parameters):
    assert {row.name: row.parameters for row in ez.list_presets()}[name] == parameters


@pytest.mark.slow(except_for="^albert_base_v2_en_uncased")
@pytest.mark.parametrize(
    ("name", "cls", "sizes", "embedding_dim"),
    [
        ("albert_base_v2_en_uncased", ez.AlbertBackbone, (30000, 12, 12, 768, 3072), 128),
        ("electra_small_en_uncased", ez.ElectraBackbone, (30522, 12, 4, 256, 1024), 128),
        ("deberta_v3_extra_small_en", ez.DebertaV2Backbone, (128100, 12, 6, 384, 1536), None),
    ],
)
def test_parameters_are_those_of_the_backbone(name, cls, sizes, embedding_dim):
    parameters = {row.name: row.parameters for row in ez.list_presets()}[name]
    arguments = {"embedding_dim": embedding_dim} if embedding_dim else {}
    assert cls(*sizes, **arguments).count_params() == parameters


@pytest.mark.parametrize("path", sorted(KNOWN_FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_every_entry_is_complete(path):
    entry = json.loads(path.read_text())
    entry.pop("embedding", None)  # see `get_listed_settings`
    row = registry.PresetInfo(path.stem, **entry)
    assert row.family in FAMILIES and 1e5 < row.parameters < 2e9
    assert row.languages and row.licence and row.description
    assert row.source == "bundled" or row.source.startswith(("hf://", "kaggle://"))


def test_listing_needs_neither_keras_nor_tensorflow():
    program = (
        "import sys, encoder_zoo as ez; repr(ez.list_presets());"
        "print({'keras', 'tensorflow', 'torch', 'huggingface_hub'} & set(sys.modules))"
    )
    assert run(program) == "set()\n"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bert-base-uncased", "Did you mean 'bert_base_en_uncased'"),
        ("roberta_bas_en", "Did you mean 'roberta_base_en'"),
        ("distilbert-base-uncased", "Did you mean 'distilbert_base_en_uncased'?"),
        ("albert-base-v2", "Did you mean 'albert_base_v2_en_uncased'?"),
        ("electra-small-discriminator", "Did you mean 'electra_small_en_uncased'?"),
        ("xlm-roberta-base", "Did you mean 'xlm_roberta_base_multi'?"),
        ("camembert", "'camembert_base_fr'"),
        ("zzzzzz", "a name in list_presets()"),
    ],
)
def test_an_unknown_name_suggests_the_closest(name, hint):
    with pytest.raises(ValueError) as caught:
        ez.Backbone.from_preset(name)
    assert str(caught.value).startswith(f"The preset '{name}' does not exist.") and hint in str(
        caught.value
    )


def test_a_file_is_no_preset(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match="is a file"):
        fetch_preset(tmp_path / "model.safetensors")


def test_bundled_presets_are_in_the_table():
    bundled = {path.parent.name for path in BUNDLED_FOLDER.glob("*/config.json")}
    assert bundled == {row.name for row in ez.list_presets() if row.source == "bundled"}


@pytest.mark.parametrize("name", [row.name for row in ez.list_presets() if row.source == "bundled"])
def test_the_docs_give_figures_that_a_bundled_preset_s_card_gives(name):
    page = (ROOT / "docs" / "pages" / "topics" / "presets.md").read_text("utf-8")
    [line] = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    figures = re.findall(r"\d+\.\d %", line)
    card = (BUNDLED_FOLDER / name / "README.md").read_text("utf-8")
    assert figures and [figure for figure in figures if figure not in card] == []


def test_a_preset_that_the_wheel_leaves_out_is_said_to_be_in_the_repository(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "BUNDLED_FOLDER", tmp_path)
    assert "roberta_nano_en" not in [row.name for row in registry.list_presets()]
    with pytest.raises(ValueError, match=r"wheel.*presets/data/rob"):
        registry.fetch_preset("roberta_nano_en")


def test_names_that_begin_so_are_suggested():
    with pytest.raises(ValueError, match="bert_nano_en_uncased'"):
        ez.Backbone.from_preset("bert_nano")
