"""Names that the package does not have: errors that say what is meant."""

import re

import pytest

import encoder_zoo as ez
from encoder_zoo.tasks import list_tasks
from encoder_zoo.unknown_names import (
    EQUIVALENTS,
    GENERAL_CLASSES,
    RENAMED_SUFFIXES,
    explain_unknown_name,
)

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
    "from_pretrained": "from_preset",
    "Clasifier": "'Classifier'",
    "SequenceClasifier": "'SequenceClassifier'",
    "bertbackbone": "'BertBackbone'",
    "SpanQa": "'SpanQA'",
    "list_preset": "'list_presets'",
}


@pytest.mark.parametrize("name", MEANT)
def test_an_unknown_name_says_what_is_meant(name):
    with pytest.raises(AttributeError) as error:
        getattr(ez, name)
    assert f"'{name}'" in str(error.value) and MEANT[name] in str(error.value)


def test_a_name_like_no_other_is_pythons_own_error():
    assert (
        explain_unknown_name("numpy", ez.__all__)
        == "module 'encoder_zoo' has no attribute 'numpy'."
    )
    assert not hasattr(ez, "__wrapped__")


def test_names_of_other_libraries_are_none_of_ours():
    both = {"Classifier", "MaskedLM", "MaskedLMPreprocessor"}  # also ends of names of one family
    assert not {*EQUIVALENTS, *GENERAL_CLASSES} & {*ez.__all__} - both
    for meant in EQUIVALENTS.values():
        for name in re.findall(r"\b([A-Z]\w+)\.", meant):
            assert name in ez.__all__
    assert {*GENERAL_CLASSES.values()} <= {*ez.__all__}
    assert RENAMED_SUFFIXES.keys().isdisjoint(ez.__all__)


def test_every_head_of_transformers_has_its_task():
    """Of two tasks with one head, the first is the one for which the head was made."""
    heads = {task.record.head: task.__name__ for task in reversed(list_tasks())}
    heads.pop("ForEntityExtraction")  # GLiNER's, which transformers has not
    assert {end: name for end, name in GENERAL_CLASSES.items() if end.startswith("For")} == {
        end: name for end, name in heads.items() if end.startswith("For")
    }


@pytest.mark.parametrize(
    "cls", [ez.SequenceClassifier, ez.TextEmbedder, ez.Backbone, ez.BertTokenizer]
)
def test_from_pretrained_says_what_is_meant(cls):
    assert not hasattr(cls, "from_pretrained")
    with pytest.raises(AttributeError, match=rf"'from_pretrained'.*{cls.__name__}\.from_preset\("):
        cls.from_pretrained("bert-base-uncased")


def test_save_pretrained_says_what_is_meant():
    model = ez.BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    for made in (model, ez.SequenceClassifier(model, num_classes=2)):
        with pytest.raises(AttributeError, match=r"'save_pretrained'.*save_to_preset\(folder\)"):
            made.save_pretrained("folder")
        assert not hasattr(made, "save_pretrained")


FOREIGN_METHODS = [
    (ez.Classifier, "from_transformers", "SequenceClassifier.from_preset(source)"),
    (ez.TokenClassifier, "to_disk", "TokenClassifier.save_to_preset(folder)"),
    (ez.TextEmbedder, "encode", "TextEmbedder.embed(texts)"),
    (ez.TextEmbedder, "encode_query", 'TextEmbedder.embed(texts, prompt="query")'),
    (ez.SparseEncoder, "encode_document", 'SparseEncoder.embed(texts, prompt="document")'),
    (ez.TextEmbedder, "get_sentence_embedding_dimension", "TextEmbedder.embedding_dim"),
    (ez.BertTokenizer, "encode", "BertTokenizer.tokenize(texts)"),
    (ez.BertTokenizer, "decode", "BertTokenizer.detokenize(ids)"),
    (ez.RobertaTokenizer, "convert_ids_to_tokens", "RobertaTokenizer.id_to_token(id)"),
    (ez.RobertaTokenizer, "vocab_size", "RobertaTokenizer.vocabulary_size"),
]


@pytest.mark.parametrize("cls, name, meant", FOREIGN_METHODS, ids=lambda value: str(value))
def test_methods_of_other_libraries_say_what_is_meant(cls, name, meant):
    with pytest.raises(AttributeError) as error:
        getattr(cls, name)
    assert repr(name) in str(error.value) and meant in str(error.value)
    method = meant.partition(".")[2].partition("(")[0]
    assert hasattr(cls, method) and not hasattr(cls, name)


LOSSES = {
    "MultipleNegativesRankingLoss": "InfoNCE",
    "CachedMultipleNegativesRankingLoss": "InfoNCE",
    "CoSENTLoss": "CoSENT",
    "TripletLoss": "Triplet",
    "MatryoshkaLoss": "Matryoshka",
    "MSELoss": "VectorDistillation",
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_sentence_transformers_say_what_is_meant(name):
    with pytest.raises(AttributeError, match=rf"'{name}'.*losses\.{LOSSES[name]}\b"):
        getattr(ez.losses, name)
    assert hasattr(ez.losses, LOSSES[name])
    with pytest.raises(AttributeError, match=r"'Loss'\.$"):
        ez.losses.Loss  # noqa: B018


@pytest.fixture(scope="module")
def embedder():
    return ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")


@pytest.mark.eager
class TestHabitsOfSentenceTransformers:
    @pytest.mark.parametrize(
        "argument, advice",
        [
            ("normalize_embeddings", "normalize=False"),
            ("show_progress_bar", "verbose="),
            ("convert_to_tensor", "keras.ops.convert_to_tensor"),
            ("truncate_dim", "'dim'"),
        ],
    )
    def test_arguments_of_encode(self, embedder, argument, advice):
        with pytest.raises(TypeError, match=re.escape(advice)):
            embedder.embed("A text.", **{argument: True})

    def test_arguments_of_a_tokenizer(self, embedder):
        tokenizer = embedder.preprocessor.tokenizer
        for name in ("padding", "truncation", "return_tensors"):
            with pytest.raises(TypeError, match=f"'{name}'"):
                tokenizer("A text.", **{name: True})

    @pytest.mark.slow
    def test_dicts_of_beir(self, embedder):
        texts = ["Cats sleep.", "Shares fell.", "Dogs bark."]
        queries = {"q1": "Shares fell.", "q2": "Dogs bark.", "q3": "without judgements"}
        corpus = {f"d{i}": {"title": "", "text": text} for i, text in enumerate(texts)}
        relevant = {"q2": {"d2": 2, "d0": 1}, "q1": {"d1": 1}}
        found = embedder.evaluate_retrieval(queries, corpus, relevant)
        expected = embedder.evaluate_retrieval(
            ["Dogs bark.", "Shares fell."], texts, [{2: 2, 0: 1}, {1: 1}]
        )
        assert found == expected and found["mrr@1"] == 1
        sets = embedder.evaluate_retrieval(
            queries, dict(zip(corpus, texts, strict=True)), {"q1": {"d1"}}
        )
        assert sets["ndcg@1"] == 1
        index = embedder.index(texts, ids=[*corpus])
        assert index.evaluate(queries, relevant) == pytest.approx(expected)
        indexes = [embedder.index(corpus), ez.BM25Index(dict(zip(corpus, texts, strict=True)))]
        for one in indexes:
            assert one.evaluate(queries, relevant)["mrr@1"] == 1
        assert indexes[0].evaluate(queries, relevant) == pytest.approx(expected)
        for wrong, message in (
            ([1, 2], "queries.*is "),
            ({"q9": {"d1": 1}}, "relevant.*'q9'"),
            ({"q1": {"d9": 1}}, "relevant.*'d9'"),
        ):
            with pytest.raises(ValueError, match=message):
                embedder.evaluate_retrieval(queries, corpus, wrong)

    def test_top_k_of_none_is_all(self, embedder):
        hits = embedder.index(["Cats.", "Dogs.", "Tax."]).search("A pet", top_k=None)
        assert sorted(hit["index"] for hit in hits) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.eager
def test_without_a_preprocessor_a_task_takes_prepared_inputs():
    """As in KerasHub."""
    source = "bert_nano_en_uncased"
    task = ez.Classifier.from_preset(source, num_classes=2, preprocessor=None)
    assert task.preprocessor is None
    inputs = ez.SequenceClassifierPreprocessor.from_preset(source)(["A text."])
    assert task.predict(inputs, verbose=0).shape == (1, 2)
    with pytest.raises(TypeError, match="SequenceClassifierPreprocessor"):
        ez.Classifier.from_preset(source, preprocessor="any")


def test_a_call_on_texts_says_what_takes_them():
    """As in spaCy, and in transformers' pipelines."""
    tagger = ez.TokenClassifier.from_preset("bert_nano_en_uncased_ner")
    with pytest.raises(TypeError, match=r"inputs is.*extract_entities\(texts\)"):
        tagger("Anna lives in Rome.")
