"""Names that the package does not have: errors that say what is meant."""

import re

import pytest

import encoder_zoo as ez
from encoder_zoo.tasks import all_tasks
from encoder_zoo.unknown_names import ELSEWHERE, ENDINGS, RENAMED, explain

MEANT = {
    "pipeline": "SequenceClassifier.from_preset(...).classify(texts)",
    "AutoModel": "Use Backbone.from_preset(source).",
    "AutoTokenizer": "Use Tokenizer.from_preset(source).",
    "AutoModelForSequenceClassification": "Use SequenceClassifier.from_preset(source).",
    "BertForSequenceClassification": "Use SequenceClassifier.from_preset(source).",
    "TFRobertaForTokenClassification": "Use TokenClassifier.from_preset(source).",
    "ElectraForQuestionAnswering": "Use SpanQA.from_preset(source).",
    "BertForMaskedLM": "Use MaskedLM.from_preset(source).",
    "BertModel": "Use BertBackbone.from_preset(source).",
    "BertTokenizerFast": "Use BertTokenizer.from_preset(source).",
    "BertTextClassifier": "Use SequenceClassifier.from_preset(source).",
    "SentenceTransformer": "Use TextEmbedder.from_preset(source).embed(texts).",
    "CrossEncoder": "Use Reranker.from_preset(source).rank(query, texts).",
    "from_pretrained": "Use from_preset of a task",
    "Clasifier": "Did you mean 'Classifier'?",
    "SequenceClasifier": "Did you mean 'SequenceClassifier'?",
    "bertbackbone": "Did you mean 'BertBackbone'?",
    "SpanQa": "Did you mean 'SpanQA'?",
    "list_preset": "Did you mean 'list_presets'?",
}


@pytest.mark.parametrize("name", MEANT)
def test_an_unknown_name_says_what_is_meant(name):
    with pytest.raises(AttributeError) as error:
        getattr(ez, name)
    assert str(error.value).startswith(f"module 'encoder_zoo' has no attribute '{name}'. ")
    assert MEANT[name] in str(error.value)


def test_a_name_like_no_other_is_pythons_own_error():
    assert explain("numpy", ez.__all__) == "module 'encoder_zoo' has no attribute 'numpy'."
    assert not hasattr(ez, "__wrapped__")


def test_names_of_other_libraries_are_none_of_ours():
    both = {"Classifier", "MaskedLM", "MaskedLMPreprocessor"}  # also ends of names of one family
    assert not {*ELSEWHERE, *ENDINGS} & {*ez.__all__} - both
    for meant in ELSEWHERE.values():
        for name in re.findall(r"\b([A-Z]\w+)\.", meant):
            assert name in ez.__all__
    assert {*ENDINGS.values()} <= {*ez.__all__}
    assert RENAMED.keys().isdisjoint(ez.__all__)


def test_every_head_of_transformers_has_its_task():
    """Of two tasks with one head, the first is the one for which the head was made."""
    heads = {task.checkpoint_class_suffix: task.__name__ for task in reversed(all_tasks())}
    assert {end: name for end, name in ENDINGS.items() if end.startswith("For")} == {
        end: name for end, name in heads.items() if end.startswith("For")
    }


@pytest.mark.parametrize(
    "cls", [ez.SequenceClassifier, ez.TextEmbedder, ez.Backbone, ez.BertTokenizer]
)
def test_from_pretrained_says_what_is_meant(cls):
    assert not hasattr(cls, "from_pretrained")
    expected = f"{cls.__name__} has no 'from_pretrained'. Use {cls.__name__}.from_preset(source)."
    with pytest.raises(AttributeError, match=re.escape(expected)):
        cls.from_pretrained("bert-base-uncased")


def test_save_pretrained_says_what_is_meant():
    model = ez.BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    for made in (model, ez.SequenceClassifier(model, num_classes=2)):
        expected = f"{type(made).__name__} has no 'save_pretrained'. Use save_to_preset(folder)."
        with pytest.raises(AttributeError, match=re.escape(expected)):
            made.save_pretrained("folder")
        assert not hasattr(made, "save_pretrained")
