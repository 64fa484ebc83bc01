"""Texts that are longer than what is read are counted, and one line says so."""

import logging

import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.tasks.preprocessing.preprocessor import log_truncation_once

SHORT, LONG = "good film", " ".join(["good bad film"] * 9)  # of 2 and of 27 words
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]


@pytest.fixture(scope="module")
def tokenizer():
    return ez.BertTokenizer(VOCABULARY)


@pytest.fixture(scope="module")
def backbone():
    return ez.BertBackbone(8, 1, 1, 4, 8, max_sequence_length=16)


@pytest.fixture(scope="module")
def classifier(tokenizer, backbone):
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
    return ez.SequenceClassifier(backbone, preprocessor, num_classes=2)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING, "encoder_zoo")
    return lambda: [line for line in caplog.messages if "random weights" not in line]


LINE = "longer than 16 tokens, so the end is truncated. Use from_preset(..., window_length=16)"


@pytest.mark.slow(only="^predict$")
@pytest.mark.parametrize("method", ["predict", "classify", "predict_proba"])
def test_answers(classifier, lines, method):
    getattr(classifier, method)([LONG, SHORT, LONG])
    [line] = lines()
    assert line.startswith(f"2 of 3 texts are {LINE}")


def test_what_fits_exactly_is_not_counted(classifier, lines):
    words = ["film"] * 14
    classifier.classify([" ".join(words), "x" * 500])  # an unknown word is one token
    assert lines() == []
    classifier.classify([" ".join([*words, "film"])])
    assert lines()[0].startswith("1 of 1 texts are longer than 16 tokens")


@pytest.mark.slow
def test_more_than_a_batch(classifier, lines):
    classifier.predict([LONG] * 5 + [SHORT] * 2, batch_size=2, verbose=0)
    assert len(lines()) == 1 and lines()[0].startswith("5 of 7 texts")


def test_pairs_count_both_texts(classifier, lines):
    half = " ".join(["film"] * 7)
    classifier.predict(([half, half], [half, SHORT]), verbose=0)
    [line] = lines()
    assert line.startswith("1 of 2 pairs of texts are longer than 16 tokens")


@pytest.mark.slow
def test_fit_with_its_validation_is_one_call(classifier, lines):
    y = [0, 1]
    classifier.fit([LONG, SHORT], y, validation_data=([SHORT, LONG], y), verbose=0)
    [line] = lines()
    assert line.startswith("2 of 4 texts are longer")
    classifier.evaluate([LONG, SHORT], y, verbose=0)
    assert [line[:6] for line in lines()] == ["2 of 4", "1 of 2"]


@pytest.mark.slow
def test_a_dataset_reports_its_first_such_batch(classifier, lines):
    texts = tf.data.Dataset.from_tensor_slices(([SHORT, LONG, LONG, SHORT], [0, 1, 0, 1]))
    classifier.evaluate(texts.batch(2), verbose=0)
    [line] = lines()
    assert line.startswith("In a batch of the dataset, 1 of 2 texts are longer than 16 tokens")


@pytest.mark.matrix
@pytest.mark.slow
def test_masked_texts(tokenizer, lines):
    backbone = ez.BertBackbone(8, 1, 1, 4, 8, max_sequence_length=16, pooler=False)
    model = ez.MaskedLM(backbone, ez.MaskedLMPreprocessor(tokenizer))
    model.fill_mask([f"[MASK] {LONG}"])
    assert lines()[0].startswith("1 of 1 texts are longer than 16 tokens, so the end is truncated.")
    model.preprocess([LONG, SHORT])
    assert lines()[1].startswith("1 of 2 texts")


@pytest.mark.slow
def test_queries_and_texts(tokenizer, backbone, lines):
    reranker = ez.Reranker(backbone, ez.RerankerPreprocessor(tokenizer))
    reranker.rank("film", [LONG, SHORT, LONG])
    assert lines()[0].startswith("2 of 3 pairs of texts are longer than 16 tokens")
    reranker.preprocess((["film"], [[LONG, SHORT]]), [[1, 0]])
    assert lines()[1].startswith("1 of 2 pairs of texts")


@pytest.mark.matrix
@pytest.mark.slow
def test_tasks_that_read_windows_cut_nothing(tokenizer, lines):
    backbone = ez.BertBackbone(8, 1, 1, 4, 8, max_sequence_length=16, pooler=False)
    tagger = ez.TokenClassifier(backbone, ez.TokenClassifierPreprocessor(tokenizer), num_classes=2)
    tagger.extract_entities([LONG])
    reader = ez.SpanQA(backbone, ez.SpanQAPreprocessor(tokenizer))
    reader.answer("film", LONG)
    assert lines() == []


def test_an_error_logs_nothing(classifier, lines):
    with pytest.raises(RuntimeError), log_truncation_once():
        classifier.preprocess([LONG])
        raise RuntimeError
    assert lines() == []
