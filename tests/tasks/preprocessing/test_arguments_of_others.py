"""Arguments and attributes that mean something else in other libraries, or would be cut."""

import pathlib

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.presets.formats.config import convert_config
from encoder_zoo.presets.restoring import EXTENDABLE_ARGUMENTS
from encoder_zoo.tasks.serving.export import FORMATS, OTHER_FILES, read_target

pytestmark = pytest.mark.eager
BERT = get_family("bert")


@pytest.fixture(scope="module")
def preset(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset")
    tiny.task(BERT, "SequenceClassifier").save_to_preset(folder)
    return folder


@pytest.mark.parametrize("owner", [ez.Backbone, ez.SequenceClassifier])
@pytest.mark.parametrize(
    "argument",
    [
        {"activation": "sigmoid"},  # of KerasHub's head
        {"activation": "relu"},
        {"layer_norm_epsilon": 1e-3},
        {"num_heads": 1},
        {"num_layers": 1},
        {"hidden_dim": 4},
        {"vocabulary_size": 5},
    ],
    ids=str,
)
def test_an_argument_that_contradicts_the_weights_is_refused(preset, owner, argument):
    [(name, value)] = argument.items()
    with pytest.raises(ValueError, match=f"{name}.*{value!r}"):
        owner.from_preset(preset, **argument)


def test_the_error_for_an_activation_names_both_meanings(preset):
    with pytest.raises(ValueError, match="activation.*KerasHub"):
        ez.SequenceClassifier.from_preset(preset, activation="sigmoid")


@pytest.mark.parametrize(
    "argument",
    [{"dropout": 0.3}, {"attention_dropout": 0.0}, {"activation": "gelu_new"}, {"num_heads": 2}],
    ids=str,
)
def test_arguments_that_agree_or_regularize_are_taken(preset, argument):
    [(name, value)] = argument.items()
    assert getattr(ez.Backbone.from_preset(preset, **argument), name) == value


@pytest.mark.slow(only=r"^(bart)$")
@pytest.mark.parametrize("name", FAMILIES)
def test_every_field_of_config_json_is_checked(tiny, tmp_path, name):
    """What another value would do to the answers is not asked: it is refused or documented."""
    family = get_family(name)
    tiny.backbone(family).save_to_preset(tmp_path, tokenizer=tiny.tokenizer(family))
    backbone = ez.Backbone.from_preset(tmp_path)
    stored = convert_config(
        {theirs: getattr(backbone, ours) for ours, theirs in family.config_keys.items()}, family
    )
    free = {
        n for n in stored if n.endswith("dropout") or n.startswith("rope_")
    } | EXTENDABLE_ARGUMENTS
    for argument in stored.keys() - free:
        with pytest.raises((ValueError, TypeError), match=argument):
            ez.Backbone.from_preset(tmp_path, **{argument: "another"})


@pytest.mark.slow(except_for=r"^TokenClassifier-label2id$")
@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("TextEmbedder", "max_seq_length"),
        ("TextEmbedder", "truncate_dim"),
        ("TextEmbedder", "default_prompt_name"),
        ("TextEmbedder", "similarity_fn_name"),
        ("TextEmbedder", "prompts"),
        ("SparseEncoder", "default_prompt"),
        ("TokenClassifier", "sequence_length"),
        ("Reranker", "max_length"),
        ("SequenceClassifier", "id2label"),
        ("TokenClassifier", "label2id"),
        ("SequenceClassifier", "num_labels"),
    ],
)
def test_settings_of_other_libraries_cannot_be_set(tiny, task, name):
    model = tiny.task(BERT, task)
    with pytest.raises(AttributeError, match=f"{task}.*'{name}'"):
        setattr(model, name, 8)
    assert not hasattr(model, name)


def test_the_suffix_of_a_path_chooses_the_format():
    for suffix, format in FORMATS.items():
        path = pathlib.Path(f"folder/model{suffix}")
        assert read_target(path, None) == read_target(path, format) == (format, True)
        assert read_target(pathlib.Path("served"), format) == (format, False)
    for name in ("served/1", "served/v1.2"):
        assert read_target(pathlib.Path(name), None) == ("tf_saved_model", False)


@pytest.mark.parametrize(
    "name, format", [("m.ONNX", None), ("m.onnx", "litert"), ("m.onnx", "tf_saved_model")]
)
def test_a_suffix_of_another_format_is_an_error(name, format):
    with pytest.raises(ValueError, match=f"^path is .*{name}.*a folder"):
        read_target(pathlib.Path(name), format)


@pytest.mark.slow(except_for=r"^\.pth$")
@pytest.mark.parametrize("suffix", OTHER_FILES)
def test_files_of_other_formats_are_not_folders(tiny, tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    with pytest.raises(ValueError, match=r"^path is.*\.onnx"):
        tiny.task(BERT, "SequenceClassifier").export(path)
    assert not path.exists()


def make(tiny, name, **settings):
    """Make a task whose preprocessor has settings."""
    cls = getattr(ez, name)
    backbone = tiny.backbone(BERT, pooler=cls.get_family_head(BERT).pooled)
    preprocessor = cls.record.preprocessor_class(tiny.tokenizer(BERT), **settings)
    return cls(backbone, preprocessor, **cls.tiny_data().arguments)


@pytest.mark.slow(except_for=r"^SpanQA-\{'window_length': 16, 'doc_stride': 100\}-6$")
@pytest.mark.parametrize(
    ("task", "settings", "most"),
    [
        ("SpanQA", {"window_length": 16, "doc_stride": 100}, 6),
        ("SpanQA", {"window_length": 16, "doc_stride": 7}, 6),
        ("SequenceClassifier", {"window_length": 16, "doc_stride": 8}, 7),
        ("MultipleChoice", {"window_length": 16, "doc_stride": 8}, 7),
        ("TokenClassifier", {"sequence_length": 16, "doc_stride": 14}, 13),
        ("EntityExtractor", {"sequence_length": 16, "doc_stride": 14}, 13),
        ("EntityExtractor", {"max_words": 4, "doc_stride": 4}, 3),
    ],
    ids=str,
)
def test_a_stride_that_would_be_cut_is_refused(tiny, task, settings, most):
    with pytest.raises(ValueError, match=f"doc_stride is.*{most}"):
        make(tiny, task, **settings)
    assert make(tiny, task, **{**settings, "doc_stride": most})


def test_a_stride_needs_windows(tiny):
    with pytest.raises(ValueError, match="doc_stride is 2.*window_length"):
        make(tiny, "SequenceClassifier", doc_stride=2)


def test_the_default_stride_is_half_of_a_small_window(tiny):
    model = make(tiny, "SpanQA", window_length=16)
    windows = model.preprocessor.tokenize_contexts(
        np.array(["a"]), np.array(["b c d e f g h i j"])
    ).windows
    assert model.preprocessor.doc_stride == 128 and len(windows.begin) == 1
