"""What would train or measure something else than the caller means, without an error: none does."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez

WORDS = "good fine nice bad poor awful the a film was it very".split()
TEXTS = ["good film", "the film was bad", "very nice", "awful", "it was fine", "poor film"]


@functools.cache
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


def backbone(pooler=True):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "max_sequence_length": 32}
    return ez.BertBackbone(tokenizer().vocabulary_size, **sizes, **plain, pooler=pooler)


def classifier(**arguments):
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer())
    return ez.SequenceClassifier(backbone(), preprocessor, **arguments)


def tagger(**arguments):
    return ez.TokenClassifier(
        backbone(pooler=False), ez.TokenClassifierPreprocessor(tokenizer()), **arguments
    )


def encoded(model, y):
    return model.preprocessor.encode(TEXTS[: len(y)], y)["labels"].numpy().tolist()


class TestNamesThatAreNumbers:
    @pytest.mark.parametrize("labels", [list("12345"), [1, 2, 3, 4, 5], np.arange(1, 6)])
    def test_whole_numbers_are_the_names(self, labels):
        stars = classifier(labels=labels)
        assert stars.labels == ["1", "2", "3", "4", "5"]
        assert encoded(stars, [1, 4, 5]) == encoded(stars, ["1", "4", "5"]) == [0, 3, 4]
        assert encoded(stars, np.array([1, 4], object)) == encoded(stars, tf.constant([1, 4]))
        with pytest.raises(ValueError, match="Row 1 has the unknown label '0'. Expected one of"):
            stars.fit(TEXTS, [1, 0, 1, 2, 3, 4])

    def test_also_in_a_dataset(self):
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS[:2], [5, 1])).batch(2)
        prepare = classifier(labels=[1, 5]).preprocessor
        assert [y.numpy().tolist() for _, y in dataset.map(prepare)] == [[1, 0]]

    def test_other_names_leave_them_class_numbers(self):
        assert encoded(classifier(labels=["1 star", "2 stars"]), [1, 0]) == [1, 0]

    def test_tags_of_words(self):
        model = tagger(labels=["1", "2"])
        words, tags = [["good", "film"]], [[2, 1]]
        assert model.preprocessor(words, tags)[1].numpy().tolist() == [[0, 1, 0, 0]]
        dataset = tf.data.Dataset.from_tensors((tf.ragged.constant(words), tf.constant(tags)))
        assert next(iter(dataset.map(model.preprocessor)))[1].numpy().tolist() == [[0, 1, 0, 0]]
        with pytest.raises(ValueError, match="Example 0, word 1: unknown tag '0'"):
            model.fit(words, [[1, 0]])

    def test_what_is_no_list_of_names_is_refused(self):
        for wrong in ("ab", {"a", "b"}, {"a": 0, "b": 1}):
            with pytest.raises(ValueError, match="Expected a list of names in the order"):
                classifier(labels=wrong)
        for wrong in ([0.5, 1.0], [True, False], [None]):
            with pytest.raises(ValueError, match=r"labels\[0\] is .* Expected a name"):
                classifier(labels=wrong)
        with pytest.raises(ValueError, match="must differ"):
            classifier(labels=[1, "1"])
