"""Run all `Answers` classes with a NumPy engine, in a separate process."""

import sys

import numpy as np

import encoder_zoo as ez
from encoder_zoo.common.lazy import use_numpy
from encoder_zoo.tasks.classification.class_answers import ClassAnswers
from encoder_zoo.tasks.embedding.few_shot_answers import FewShotAnswers
from encoder_zoo.tasks.embedding.token_answers import TokenAnswers
from encoder_zoo.tasks.embedding.vector_answers import VectorAnswers
from encoder_zoo.tasks.preprocessing.batch_shapes import take_examples
from encoder_zoo.tasks.pretraining.detection_answers import DetectionAnswers
from encoder_zoo.tasks.pretraining.mask_answers import MaskAnswers
from encoder_zoo.tasks.question_answering.question_answers import QuestionAnswers
from encoder_zoo.tasks.ranking.rank_answers import RankAnswers
from encoder_zoo.tasks.tagging.tag_answers import TagAnswers

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] a cat sat anna in rome . ?".split()
A, CAT, SAT, ANNA, IN, ROME, STOP, ASKS = range(5, 13)


class Engine:
    """`Runner` that computes outputs with a NumPy function."""

    def __init__(self, preprocessor, compute):
        self.preprocessor = preprocessor
        self.compute = compute

    def run_examples(self, examples, batch_size=None):
        for i in range(int(examples["token_ids"].nrows())):
            index = np.array([i])
            inputs = self.preprocessor.pad(take_examples(examples, index))
            yield index, self.compute({name: np.asarray(v) for name, v in inputs.items()})

    def run_texts(self, texts, batch_size, encode):
        return np.concatenate([outputs for _, outputs in self.run_examples(encode(texts))])

    def predict(self, x, batch_size=None):
        if isinstance(x, dict):
            return self.compute(x)
        texts = tuple(self.preprocessor.read_texts(x))
        return self.run_texts(texts, batch_size, self.preprocessor.encode)


def one_hot(ids, size):
    return 9 * np.eye(size, dtype="float32")[ids]


def answers_of(answers_class, preprocessor_class, compute, *settings):
    preprocessor = preprocessor_class(ez.BertTokenizer(TOKENS))
    return answers_class(preprocessor, Engine(preprocessor, compute), *settings)


def first_words(inputs):
    return one_hot(inputs["token_ids"][:, 1], len(TOKENS))


def cities(inputs):
    return one_hot((inputs["token_ids"] == ROME) * 1, 2)


def spans_at_anna(inputs):  # (B, 2, L)
    is_anna = 9.0 * (inputs["token_ids"] == ANNA)[:, None]
    return np.repeat(is_anna, 2, axis=1).astype("float32")


def cats(inputs):
    return one_hot(np.full(inputs["mask_positions"].shape, CAT), len(TOKENS))


def romes(inputs):  # (B, L)
    return np.where(inputs["token_ids"] == ROME, 9.0, -9.0).astype("float32")


def count_annas(inputs):
    return (inputs["token_ids"] == ANNA).sum(axis=1, keepdims=True).astype("float32")


def all_words(inputs):
    return one_hot(inputs["token_ids"], len(TOKENS))


def answer_all() -> None:
    kind = "single_label_classification"
    of_classes = ClassAnswers, ez.SequenceClassifierPreprocessor, first_words
    classifier = answers_of(*of_classes, TOKENS, kind)
    assert [row["label"] for row in classifier.classify(["cat sat", "a cat"])] == ["cat", "a"]
    assert classifier.classify(["a", None], missing="none")[1] is None

    tagger = answers_of(TagAnswers, ez.TokenClassifierPreprocessor, cities, ["O", "B-CITY"])
    [[entity], nothing] = tagger.extract_entities(["Anna sat in Rome.", "a cat"])
    assert (entity["label"], entity["start"], entity["text"]) == ("CITY", 12, "Rome")
    assert nothing == []
    assert tagger.predict_tags([["in", "Rome"]]) == [["O", "B-CITY"]]

    asked = answers_of(QuestionAnswers, ez.SpanQAPreprocessor, spans_at_anna)
    assert asked.answer("a cat sat?", "In Rome Anna sat.")["start"] == 8

    filler = answers_of(MaskAnswers, ez.MaskedLMPreprocessor, cats)
    assert filler.fill_mask("a [MASK] sat.", top_k=1)[0]["text"] == "a cat sat."

    detector = answers_of(DetectionAnswers, ez.ReplacedTokenDetectionPreprocessor, romes)
    assert [row["score"] > 0.5 for row in detector.detect("cat in rome")] == [False, False, True]

    ranker = answers_of(RankAnswers, ez.RerankerPreprocessor, count_annas)
    assert [row["index"] for row in ranker.rank("in rome?", ["a cat", "anna"])] == [1, 0]

    size = len(TOKENS)
    embedder = answers_of(VectorAnswers, ez.TextEmbedderPreprocessor, first_words, size)
    assert embedder.embed(["cat", "rome"]).argmax(axis=1).tolist() == [CAT, ROME]

    head = np.eye(size)[:, [ROME, CAT]], np.zeros(2)
    parts = embedder.preprocessor, embedder.runner, ["city", "pet"], kind
    few = FewShotAnswers(*parts, embedding_dim=size, head_weights=head)
    assert [row["label"] for row in few.classify(["cat", "rome"])] == ["pet", "city"]

    late = answers_of(TokenAnswers, ez.LateInteractionPreprocessor, all_words, size)
    assert CAT in late.embed("a cat").argmax(axis=1)


if __name__ == "__main__":
    with use_numpy():
        answer_all()
    assert not sys.modules.keys() & {"keras", "tensorflow", "jax", "torch"}
