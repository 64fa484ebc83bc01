"""Copies of tasks with a smaller vocabulary: equal outputs for the texts they are made for."""

import re

import keras
import numpy as np
import pytest
from small_tasks import make, new, preprocessor

import encoder_zoo as ez
from encoder_zoo.encoders import get_family, list_families
from encoder_zoo.encoders.families.bert import BertBackbone
from encoder_zoo.tasks import list_tasks
from encoder_zoo.testing import tiny

pytestmark = pytest.mark.eager

BERT = get_family("bert")
TEXTS = ["a b ab", "c d zz xyz abq", "c d e a b", "p"]
PAIRS = [
    pytest.param(
        family,
        task,
        id=f"{family.name}-{task.__name__}",
        marks=[] if (i + j) % 48 == 0 else pytest.mark.slow(every=(i + j) % 12 == 0),
    )
    for i, family in enumerate(list_families())
    for j, task in enumerate(list_tasks())
    if task.supports(family)
]


def states(task, texts):
    """The outputs of the encoder, for each text alone."""
    tokenizer = task.preprocessor.tokenizer
    first, last = tokenizer.start_token_id, tokenizer.end_token_id
    rows = [[first, *row, last] for row in tokenizer.tokenize(texts).to_list()]
    outputs = [task.backbone({"token_ids": np.array([row])})["sequence_output"] for row in rows]
    return [keras.ops.convert_to_numpy(output) for output in outputs]


def kept_ids(task, small):
    tokenizer, tokens = task.preprocessor.tokenizer, small.preprocessor.tokenizer.get_vocabulary()
    return [tokenizer.token_to_id(token) for token in tokens]


@pytest.mark.parametrize(("family", "cls"), PAIRS)
def test_the_encoder_is_equal_to_the_bit(family, cls, tmp_path):
    task = tiny.task(family, cls)
    small = task.trim_vocabulary(TEXTS)
    assert small.backbone.vocabulary_size < task.backbone.vocabulary_size
    for found, expected in zip(states(small, TEXTS), states(task, TEXTS), strict=True):
        np.testing.assert_array_equal(found, expected)
    small.save_to_preset(tmp_path / "small")
    again = cls.from_preset(tmp_path / "small")
    for found, expected in zip(states(again, TEXTS), states(task, TEXTS), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["SequenceClassifier", "TokenClassifier", "Reranker"])
def test_outputs_of_the_head_are_equal(name):
    task = make(name)
    small = task.trim_vocabulary(TEXTS)
    x = (TEXTS, TEXTS[::-1]) if name == "Reranker" else TEXTS
    for found, expected in zip(small.predict(x), task.predict(x), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert small.labels == task.labels


def test_entities_are_equal():
    task = make("EntityExtractor")
    task.thresholds = dict.fromkeys(task.labels, 0.0)
    texts = ["a-b c_d, (e) pa", "ab!cd"]
    small = task.trim_vocabulary(texts)
    assert small.thresholds == task.thresholds
    found, expected = (each.extract_entities(texts) for each in (small, task))
    assert found == expected and any(expected)


@pytest.mark.parametrize("family", ["bert", "modernbert", "roberta", "mpnet", "gte"])
def test_masked_lm_logits_are_those_of_the_kept_tokens(family):
    task = tiny.task(get_family(family), ez.MaskedLM)
    small = task.trim_vocabulary(TEXTS)
    logits = []
    for each in (small, task):
        ids = each.preprocessor.tokenizer.tokenize([TEXTS[2]]).to_list()
        logits.append(keras.ops.convert_to_numpy(each({"token_ids": np.array(ids)})))
    np.testing.assert_allclose(logits[0], logits[1][..., kept_ids(task, small)], atol=1e-6)


def test_terms_are_those_of_the_kept_tokens():
    task = make("SparseEncoder")
    small = task.trim_vocabulary(TEXTS)
    expected = task.embed(TEXTS).toarray()[:, kept_ids(task, small)]
    np.testing.assert_allclose(small.embed(TEXTS).toarray(), expected, atol=1e-6)


def test_shared_tables_stay_shared():
    small = make("ReplacedTokenDetection", get_family("electra")).trim_vocabulary(TEXTS)
    tables = [m.backbone.embeddings.token_embedding for m in (small, small.generator)]
    assert tables[0] is tables[1]


def test_ids_in_the_arguments_of_a_backbone_follow_their_tokens():
    family = get_family("bart")
    task = tiny.task(family, ez.SequenceClassifier)
    begin = task.preprocessor.tokenizer.id_to_token(task.backbone.decoder_start_token_id)
    small = task.trim_vocabulary(["a"])
    assert small.preprocessor.tokenizer.id_to_token(small.backbone.decoder_start_token_id) == begin


def test_padding_keeps_its_id_where_positions_depend_on_it():
    tokens = ["<s>", "unused", "<pad>", "</s>", "<unk>", "▁", "a", "b", "<mask>"]
    scores = [None, -9.0, None, None, None, -1.0, -2.0, -3.0, None]
    tokenizer = ez.XLMRobertaTokenizer(tokens, scores)
    backbone = tiny.backbone(get_family("xlm-roberta"), vocabulary_size=9, pad_token_id=2)
    task = ez.TextEmbedder(backbone, ez.TextEmbedderPreprocessor(tokenizer))
    small = task.trim_vocabulary(["a"])
    assert small.preprocessor.tokenizer.pad_token_id == small.backbone.pad_token_id == 2
    np.testing.assert_array_equal(small.embed(["a", "a a a"]), task.embed(["a", "a a a"]))


class TestWhatIsKept:
    def test_prompts_before_texts(self):
        prompts = {"query": "c", "document": "d "}
        task = new("TextEmbedder", pooler=False)
        task.preprocessor = preprocessor("TextEmbedder", prompts=prompts)
        small = task.trim_vocabulary(["a", "b"])  # with prompts "ca" and "d a"
        for prompt in (None, "query", "document"):
            found, expected = (each.embed(["a", "b"], prompt=prompt) for each in (small, task))
            np.testing.assert_array_equal(found, expected)
        assert small.preprocessor.prompts == prompts

    def test_markers_and_skipped_words(self):
        task = new("LateInteraction", pooler=False)
        task.preprocessor = preprocessor(
            "LateInteraction", query_marker="o", document_marker="n", skiplist=["m"]
        )
        small = task.trim_vocabulary(["a m"])
        assert {"o", "n", "m"} <= set(small.preprocessor.tokenizer.get_vocabulary())
        for prompt in ("query", "document"):
            [found], [expected] = (each.embed(["a m"], prompt=prompt) for each in (small, task))
            np.testing.assert_array_equal(found, expected)

    def test_added_tokens(self, tmp_path):
        tokenizer = ez.BertTokenizer(
            tiny.tokenizer(BERT).vocabulary, added_tokens=[{"content": "<e>", "id": 27}, "<f>"]
        )
        backbone = tiny.backbone(BERT)
        task = ez.SequenceClassifier(
            backbone, ez.SequenceClassifierPreprocessor(tokenizer), num_classes=2
        )
        small = task.trim_vocabulary(["a"])
        small.save_to_preset(tmp_path / "small")
        again = ez.SequenceClassifier.from_preset(tmp_path / "small")
        np.testing.assert_array_equal(again.predict(["<e>a<f>"]), task.predict(["<e>a<f>"]))

    def test_a_subclass_with_its_own_kind(self):
        class OwnTokenizer(ez.BertTokenizer):
            kind = ez.BertTokenizer.kind._replace(name="OwnTokenizer")

        task = make("TextEmbedder")
        task.preprocessor = ez.TextEmbedderPreprocessor(
            OwnTokenizer(tiny.tokenizer(BERT).vocabulary)
        )
        small = task.trim_vocabulary(["a"])
        assert type(small.preprocessor.tokenizer) is OwnTokenizer
        np.testing.assert_array_equal(small.embed(["a"]), task.embed(["a"]))

    def test_settings_and_frozen_layers(self):
        task = make("SequenceClassifier")
        task.backbone.trainable = False
        task.calibrate(TEXTS, [task.labels[0]] * len(TEXTS))
        small = task.trim_vocabulary(TEXTS)
        assert not small.backbone.trainable and small.head.trainable
        assert small.classify(TEXTS) == task.classify(TEXTS)

    def test_later_training_does_not_change_the_other(self):
        task = make("SequenceClassifier")
        small = task.trim_vocabulary(TEXTS)
        before = task.predict(TEXTS)
        small.fit(TEXTS, [small.labels[0]] * len(TEXTS), verbose=0)
        np.testing.assert_array_equal(task.predict(TEXTS), before)


class TestRefused:
    def test_texts(self):
        task = make("TextEmbedder")
        for texts in ("a b", [], [["a"]], None):
            with pytest.raises(ValueError, match="texts"):
                task.trim_vocabulary(texts)

    def test_quantized_weights(self):
        task = make("TextEmbedder")
        task.quantize("int8")
        with pytest.raises(ValueError, match="trim_vocabulary.*quantize"):
            task.trim_vocabulary(TEXTS)

    def test_results_of_for_cpu(self):
        task = make("TextEmbedder")
        task.cpu_model = object()
        with pytest.raises(ValueError, match=re.escape("for_cpu")):
            task.trim_vocabulary(TEXTS)

    def test_a_query_encoder(self):
        task = make("SparseEncoder")
        table = ez.TermTable(task.preprocessor.tokenizer, vocabulary_size=30)
        task = ez.SparseEncoder(task.backbone, task.preprocessor, query_encoder=table)
        with pytest.raises(ValueError, match="query_encoder"):
            task.trim_vocabulary(TEXTS)

    def test_a_static_embedder(self):
        static = make("TextEmbedder").distil_static(dim=2)
        with pytest.raises(TypeError, match="FileTokenizer.*BertTokenizer"):
            static.trim_vocabulary(TEXTS)

    def test_a_task_without_a_tokenizer(self):
        task = ez.TextEmbedder(tiny.backbone(BERT))
        with pytest.raises(TypeError, match="tokenizer"):
            task.trim_vocabulary(TEXTS)
        for other in (task, "small"):
            with pytest.raises(TypeError, match="tokenizer"):
                make("TextEmbedder").compare_vocabulary(other, TEXTS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # of Keras's export
@pytest.mark.parametrize("format", ["onnx", "litert"])
def test_exports_answer_as_the_whole_model(format, tmp_path):
    texts = ["Good morning!", "Good night, and good luck."]
    task = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
    task.trim_vocabulary(texts).export(tmp_path / "served", format)
    found = ez.open_export(tmp_path / "served").embed(texts)
    np.testing.assert_allclose(found, task.embed(texts), atol=1e-6)


def test_uncovered_texts_are_reported():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "ab", "##b", "c"]
    backbone = BertBackbone(9, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8)
    task = ez.TextEmbedder(backbone, ez.TextEmbedderPreprocessor(ez.BertTokenizer(tokens)))
    small = task.trim_vocabulary(["a"])
    # "ab" and "c" become unknown.
    report = task.compare_vocabulary(small, ["a", "a a ab a", "c ab", "a zz"])
    assert report["uncovered"] == [
        {"index": 2, "text": "c ab", "changed": 1.0},
        {"index": 1, "text": "a a ab a", "changed": 0.25},
    ]
    assert report["covered_texts"] == 0.5
    assert report["covered_tokens"] == pytest.approx(6 / 9)
    whole = task.compare_vocabulary(task, ["ab c"])
    assert whole == {"covered_texts": 1.0, "covered_tokens": 1.0, "uncovered": []}
