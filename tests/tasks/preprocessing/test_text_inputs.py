"""Texts as people have them: what every task's preprocessor takes, and how it refuses the rest."""

import re

import numpy as np
import pandas as pd
import paths
import pytest
import tensorflow as tf

import encoder_zoo as ez

FAMILIES = ["Bert", "Roberta"]
TEXTS = ["the cat sat", "a dog ran on the mat", "not very good !"]


@pytest.fixture(scope="module", params=FAMILIES)
def classifier(request):

    folder = paths.CHECKPOINTS
    return ez.SequenceClassifier.from_preset(folder / f"{request.param}_ForSequenceClassification")


def ids(preprocessor, texts) -> list:
    return preprocessor(texts)["token_ids"].numpy().tolist()


@pytest.mark.parametrize("bad", [None, 3, float("nan"), ["x"], {}])
def test_case_21_a_row_that_is_no_text_is_named(classifier, bad):
    for texts in (["good", bad], np.array(["good", bad], dtype=object)):
        for use in (classifier.preprocessor, classifier.predict, classifier.classify):
            with pytest.raises(ValueError, match=rf"\[1\] is {re.escape(repr(bad))}.*a string"):
                use(texts)
    with pytest.raises(ValueError, match=rf"\[1\] is {re.escape(repr(bad))}"):
        classifier.preprocessor((["a", "b"], ["c", bad]))
    if not isinstance(bad, list | dict):
        with pytest.raises(ValueError, match=f"is {bad}"):
            classifier.preprocessor(bad)


@pytest.mark.slow
@pytest.mark.parametrize(
    "odd", ["a\0b", "a\ud800b", pytest.param("a\ufffdb", marks=pytest.mark.slow)]
)
def test_case_22_odd_characters_are_the_same_everywhere_and_lose_no_text(classifier, odd):
    preprocessor = classifier.preprocessor
    clean = odd.encode("utf-8", "replace").decode().replace("?", "\ufffd")
    text = f"the cat {odd} sat"
    eagerly = preprocessor([text])["token_ids"].numpy()
    tensor = tf.constant([f"the cat {clean} sat".encode()])
    in_data = tf.data.Dataset.from_tensors(tensor).map(lambda x: preprocessor(x)["token_ids"])
    np.testing.assert_array_equal(next(iter(in_data)), eagerly)
    exported = tf.function(
        lambda x: preprocessor(x)["token_ids"], input_signature=[tf.TensorSpec([None], tf.string)]
    )
    np.testing.assert_array_equal(exported(tensor), eagerly)
    # What follows the odd character is still there.
    last = preprocessor.tokenizer.tokenize([" sat"])[0].numpy()[-1]
    assert eagerly[0, -2] == last


@pytest.mark.slow(except_for="^Bert")
def test_case_22_bytes_that_are_not_utf8_are_refused_where_they_can_be_seen(classifier):
    preprocessor = classifier.preprocessor
    wrong = "caf\xe9".encode("latin-1")
    for texts in (["good", wrong], np.array([b"good", wrong]), tf.constant([b"good", wrong])):
        with pytest.raises(ValueError, match=r"texts\[1\].*byte 3"):
            preprocessor(texts)
    # In a graph nobody can be told: there such a byte reads as U+FFFD, which is documented.
    in_graph = tf.data.Dataset.from_tensors([wrong]).map(lambda x: preprocessor(x)["token_ids"])
    np.testing.assert_array_equal(next(iter(in_graph)), ids(preprocessor, ["caf\ufffd"]))


@pytest.mark.slow(except_for="^Bert")
def test_case_23_no_texts_give_no_rows(classifier):
    for empty in (
        [],
        (),
        np.array([], dtype=str),
        tf.constant([], tf.string),
        pd.Series([], dtype=str),
    ):
        x = ([], []) if isinstance(empty, tuple) else empty
        batch = classifier.preprocessor(x)
        assert batch["token_ids"].shape[0] == 0 and batch["token_ids"].shape.rank == 2
        assert batch["padding_mask"].shape[0] == 0 and batch["padding_mask"].shape.rank == 2
    assert classifier.predict([], verbose=0).shape == (0, 3)
    assert classifier.classify([]) == []


@pytest.mark.slow(except_for="^Bert")
def test_case_24_unequal_lengths_are_refused_with_both(classifier):
    with pytest.raises(ValueError, match="3 texts, 2 second"):
        classifier.predict((TEXTS, TEXTS[:2]))
    with pytest.raises(ValueError, match="3 texts.*2 labels"):
        classifier.fit(TEXTS, [0, 1])
    with pytest.raises(ValueError, match="3 texts.*4 sample weights"):
        classifier.evaluate(TEXTS, [0, 1, 2], sample_weight=[1.0, 1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"\(texts, second texts\).*3 columns"):
        classifier.predict((TEXTS, TEXTS, TEXTS))


@pytest.mark.slow(except_for="^Bert")
def test_case_25_every_container_gives_the_same(classifier):
    preprocessor = classifier.preprocessor
    for texts in (
        pd.Series(TEXTS, index=[7, 8, 9]),
        pd.Series(TEXTS, dtype="string"),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        [text.encode() for text in TEXTS],
        tf.constant(TEXTS),
    ):
        assert ids(preprocessor, texts) == ids(preprocessor, TEXTS)
        assert ids(preprocessor, (texts, texts)) == ids(preprocessor, (TEXTS, TEXTS))


@pytest.mark.slow
def test_case_25_a_dataset_gives_the_same_as_a_list(classifier):
    expected = classifier.predict(TEXTS, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(2)
    np.testing.assert_allclose(classifier.predict(dataset, verbose=0), expected, atol=1e-5)
    np.testing.assert_array_equal(classifier.predict(pd.Series(TEXTS), verbose=0), expected)


@pytest.mark.slow(only=r"^(Roberta)$")
def test_case_25_every_container_of_labels_gives_the_same(classifier):
    numbers, names = [0, 2, 1], ["O", "I-PER", "B-PER"]
    for labels in (numbers, names):
        for kind in (list, np.array, pd.Series, tf.constant):
            encoded = classifier.preprocessor.encode(TEXTS, kind(labels))["labels"]
            assert encoded.numpy().tolist() == numbers


# The other tasks take text in ways of their own: the task's class, and what takes the text.
USES = {
    "fill_mask": ("MaskedLM", lambda task, x: task.fill_mask(x)),
    "predict tags": ("TokenClassifier", lambda task, x: task.predict(x, verbose=0)),
    "extract_entities": ("TokenClassifier", lambda task, x: task.extract_entities(x)),
    "predict spans": ("SpanQA", lambda task, x: task.predict((x, x), verbose=0)),
    "answer": ("SpanQA", lambda task, x: task.answer(question=x, context=x)),
}
CHECKPOINTS = {
    "MaskedLM": "ForMaskedLM",
    "TokenClassifier": "ForTokenClassification",
    "SpanQA": "ForQuestionAnswering",
}


@pytest.fixture(scope="module", params=["Bert", pytest.param("Roberta", marks=pytest.mark.slow)])
def others(request):

    folder = paths.CHECKPOINTS
    return {
        name: getattr(ez, name).from_preset(folder / f"{request.param}_{suffix}")
        for name, suffix in CHECKPOINTS.items()
    }


def with_masks(name, task, texts) -> list[str]:
    """The texts as `fill_mask` needs them."""
    mask = task.preprocessor.tokenizer.mask_token
    return [f"{text} {mask}" for text in texts] if name == "fill_mask" else list(texts)


@pytest.mark.parametrize("name", USES)
def test_case_21_in_every_task(others, name):
    cls, use = USES[name]
    for bad in (None, 3, float("nan")):
        for texts in (["good", bad], np.array(["good", bad], dtype=object)):
            with pytest.raises(ValueError, match=rf"\[1\] is {re.escape(repr(bad))}.*a string"):
                use(others[cls], texts)


@pytest.mark.slow(only="^Bert-predict tags")
@pytest.mark.parametrize("name", USES)
def test_case_23_in_every_task(others, name):
    cls, use = USES[name]
    for empty in ([], np.array([], dtype=str), tf.constant([], tf.string)):
        assert len(use(others[cls], empty)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fill_mask", "extract_entities", "answer"])
def test_case_22_and_25_in_every_task(others, name):
    cls, use = USES[name]
    texts = with_masks(name, others[cls], ["the cat a\0b sat", "a dog \ufffd ran on the mat"])
    expected = use(others[cls], texts)
    odd = [texts[0], texts[1].replace("\ufffd", "\ud800")]
    for same in (
        odd,
        np.array(texts, dtype=object),
        pd.Series(texts),
        tf.constant(texts),
        [text.encode() for text in texts],
    ):
        assert values_of(use(others[cls], same)) == pytest.approx(values_of(expected), abs=1e-6)


def values_of(answers) -> list:
    """The strings and numbers in nested answers, in their order."""
    if not isinstance(answers, list | dict):
        return [answers]
    parts = answers if isinstance(answers, list) else [[*answers], *answers.values()]
    return [value for part in parts for value in values_of(part)]


@pytest.mark.matrix
def test_case_24_in_every_task(others):
    qa, tagger = others["SpanQA"], others["TokenClassifier"]
    with pytest.raises(ValueError, match="2 questions, 1 contexts"):
        qa.answer(question=["a", "b"], context=["c"])
    with pytest.raises(ValueError, match="2 texts.* 1"):
        tagger.fit(["a", "b"], [[]])
    with pytest.raises(ValueError, match=r"texts is 'abc'"):
        tagger.predict("abc")
