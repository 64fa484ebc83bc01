"""Pretraining: what is learnt of a corpus, continued in its middle, saved and opened."""

import contextlib
import re

import keras
import numpy as np
import pytest
from keras import ops

import encoder_zoo as ez
from encoder_zoo.extras.corpora.reading import Reader
from encoder_zoo.tasks.preprocessing.batching import Plan
from encoder_zoo.tasks.training.sources import CorpusData

WORDS = "the cat sat on a mat and dog ran away with his good bad film".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SMALL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}


def documents():
    """Each in words of its own, so that it shows where a sentence of another begins."""
    rng = np.random.default_rng(0)
    return [
        [
            " ".join(rng.choice(WORDS[5 * (d % 3) : 5 * (d % 3) + 5], rng.integers(3, 8)))
            for _ in range(rng.integers(4, 9))
        ]
        for d in range(90)
    ]


@pytest.fixture(scope="module")
def tokenizer():
    return ez.BertTokenizer(TOKENS)


@pytest.fixture(scope="module")
def corpus(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "c"
    return ez.PretrainingCorpus.from_documents(folder, documents(), tokenizer, 300, verbose=0)


def pretraining(tokenizer, dropout=0.0, **arguments):
    keras.utils.set_random_seed(3)
    rates = {"dropout": dropout, "attention_dropout": dropout}
    backbone = ez.BertBackbone(len(TOKENS), **SMALL, **rates, pooler=True)
    preprocessor = ez.PretrainingPreprocessor(tokenizer, 32, **arguments)
    return ez.Pretraining(backbone, preprocessor)


@pytest.fixture(scope="module")
def trained(tokenizer, corpus):
    model = pretraining(tokenizer)
    for weight in model.trainable_variables:
        if weight.path.endswith("kernel"):  # BERT's stddev is meant for a width of 768
            weight.assign(weight * (weight.shape[0] ** -0.5 / 0.02))
    model.compile(learning_rate=1e-2)
    history = model.fit(corpus, batch_size=16, steps_per_epoch=40, epochs=6, verbose=0).history
    return model, history


@pytest.mark.slow
@pytest.mark.matrix
def test_both_objectives_are_learnt(trained, corpus):
    model, history = trained
    names = ["loss", *(f"masked_lm_{n}" for n in ("accuracy", "loss"))]
    names += [f"next_sentence_{n}" for n in ("accuracy", "loss")]
    assert sorted(history) == sorted(names)
    total = np.add(history["masked_lm_loss"], history["next_sentence_loss"])
    # The loss is a mean over batches, the metrics one over tokens and over pairs.
    np.testing.assert_allclose(history["loss"], total, rtol=0.02)
    assert history["masked_lm_loss"][-1] < history["masked_lm_loss"][0] - 0.3
    accuracies = history["next_sentence_accuracy"]
    assert accuracies[-1] > accuracies[0] + 0.1
    results = model.evaluate(corpus, batch_size=16, verbose=0, return_dict=True)
    assert results["next_sentence_accuracy"] > 0.7 and results["masked_lm_accuracy"] > 0.15
    again = model.evaluate(corpus, batch_size=16, verbose=0, return_dict=True)
    assert again == results


@pytest.mark.slow
def test_the_loss_is_the_sum_of_both_means(tokenizer):
    """Devlin et al. 2019, appendix A.2."""
    model = pretraining(tokenizer)
    model.compile()
    first, second = ["the cat sat", "the dog ran away with his film"], ["on a mat", "good"]
    x, y, weights = model.preprocessor((first, second), [0, 1], sample_weight=[1.0, 0.5])
    outputs = model(x)

    def mean(name):
        log = ops.convert_to_numpy(ops.log_softmax(outputs[name])).astype("float64")
        labels, weight = y[name].numpy(), weights[name].numpy()
        each = -np.take_along_axis(log, labels[..., None], -1)[..., 0]
        return (each * weight).sum() / weight.sum()

    found = model.evaluate(x, y, sample_weight=weights, batch_size=2, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(mean("masked_lm") + mean("next_sentence"), rel=1e-5)
    assert found["next_sentence_loss"] == pytest.approx(mean("next_sentence"), rel=1e-5)
    assert y["next_sentence"].numpy().tolist() == [0, 1]
    segments = x["segment_ids"].numpy()[0]
    assert segments.tolist() == [0] * 5 + [1] * 4 + [0] * (32 - 9)


@pytest.mark.slow
def test_it_is_saved_for_itself_and_for_the_other_tasks(trained, tmp_path, caplog):
    model, _ = trained
    model.save_to_preset(tmp_path / "p")
    loaded = ez.Pretraining.from_preset(tmp_path / "p")
    assert [record for record in caplog.records if record.name == "encoder_zoo"] == []
    assert loaded.preprocessor.sequence_length == 32 and loaded.learning_rate == 1e-2
    x = {"token_ids": np.array([[2, 7, 4, 3, 8, 3]]), "segment_ids": np.array([[0] * 4 + [1] * 2])}
    x["padding_mask"] = np.ones((1, 6), bool)
    outputs = {name: ops.convert_to_numpy(value) for name, value in model(x).items()}
    assert outputs.keys() == {"masked_lm", "next_sentence"}
    for name, value in loaded(x).items():
        np.testing.assert_array_equal(outputs[name], value)
    masked = ez.MaskedLM.from_preset(tmp_path / "p")
    np.testing.assert_allclose(masked(x), outputs["masked_lm"], atol=1e-6)
    assert masked.fill_mask("the cat [MASK]", top_k=1)[0]["token"] in TOKENS
    classifier = ez.SequenceClassifier.from_preset(tmp_path / "p", num_classes=2)
    pooled = model.backbone(x)["pooled_output"]
    np.testing.assert_allclose(classifier.backbone(x)["pooled_output"], pooled, atol=1e-6)
    model.save(tmp_path / "p.keras")
    reopened = keras.saving.load_model(tmp_path / "p.keras")
    np.testing.assert_allclose(reopened(x)["masked_lm"], outputs["masked_lm"], atol=1e-6)
    assert reopened.optimizer.iterations == 240  # six epochs of forty steps


def test_the_papers_recipe_is_the_default(tokenizer):
    model = pretraining(tokenizer)
    model.compile()
    schedule = model.optimizer._learning_rate
    assert (model.learning_rate, schedule.warmup) == (1e-4, 0.01)
    model._prepare_optimizer(1000)
    rates = [float(schedule(step)) for step in (0, 5, 10, 505, 1000)]
    np.testing.assert_allclose(rates, [1e-5, 6e-5, 1e-4, 5e-5, 0], atol=1e-9)


class Steps(keras.callbacks.Callback):
    """Notes the loss of every step, and raises an error at one of them."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.fails_at, self.losses = fails_at, {}

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.losses[self.epoch, batch] = logs["loss"]
        if self.fails_at == (self.epoch, batch):
            raise InterruptedError


@pytest.mark.slow
def test_killed_in_the_middle_of_a_shard_it_goes_on_with_the_next_rows(
    tokenizer, corpus, tmp_path, monkeypatch
):
    def train(fails_at=None, seed=5, folder=None):
        model = pretraining(tokenizer, dropout=0.1)
        model.compile(learning_rate=1e-2, run_eagerly=True)
        keras.utils.set_random_seed(seed)
        steps = Steps(fails_at)
        backup = [ez.BackupAndRestore(tmp_path / folder, save_freq=2)] if folder else []
        arguments = {"batch_size": 32, "steps_per_epoch": 4, "epochs": 2, "verbose": 0}
        with contextlib.suppress(InterruptedError):
            model.fit(corpus, callbacks=[steps, *backup], **arguments)
        return steps.losses

    whole = train()
    assert len(set(whole.values())) == 8
    before = train(fails_at=(1, 3), folder="b")
    windows = []
    window = Reader._plan_window

    def noted(self, number):
        windows.append(number)
        return window(self, number)

    monkeypatch.setattr(Reader, "_plan_window", noted)
    after = train(seed=99, folder="b")
    assert min(after) == (1, 2) and min(windows) > 0  # what is done is not planned again
    joined = {**before, **after}
    assert joined.keys() == whole.keys()
    np.testing.assert_allclose([joined[k] for k in whole], list(whole.values()), atol=1e-6)


@pytest.mark.slow(except_for="^MaskedLM")
@pytest.mark.parametrize("task", ["MaskedLM", "ReplacedTokenDetection"])
def test_a_corpus_is_for_every_task_that_pretrains(tokenizer, corpus, task, caplog):
    family = ez.ElectraBackbone if task == "ReplacedTokenDetection" else ez.RobertaBackbone
    sizes = {**SMALL, "num_heads": 4}
    backbone = family(len(TOKENS), **sizes, pooler=False)
    preprocessor = getattr(ez, f"{task}Preprocessor")(tokenizer, 32)
    model = getattr(ez, task)(backbone, preprocessor)
    model.compile(run_eagerly=True)
    history = model.fit(corpus, batch_size=8, steps_per_epoch=2, validation_data=None, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    with caplog.at_level("INFO", "encoder_zoo"):
        CorpusData(corpus).make_source(
            Plan(8, range(100), steps_per_epoch=2), model.batch_maker
        ).check()
    times = 100 * 2 * 8 * 32 / corpus.num_tokens
    assert "200 steps" in caplog.text
    assert "51,200 tokens" in caplog.text
    assert f"{times:.1f} times" in caplog.text


@pytest.mark.slow
def test_packed_rows_of_documents_hold_what_rows_of_their_own_hold(tokenizer, corpus):
    def batch(packed):
        keras.utils.set_random_seed(0)
        preprocessor = ez.MaskedLMPreprocessor(
            tokenizer, 64, mask_rate=0.01, across_documents=False, pack_texts=packed
        )
        model = ez.MaskedLM(ez.BertBackbone(len(TOKENS), **SMALL, pooler=False), preprocessor)
        data = CorpusData(corpus).make_source(Plan(4, steps_per_epoch=2), model.batch_maker)
        x, y, _ = next(iter(data.make_batches(7)))
        found = x["token_ids"].numpy()
        np.put_along_axis(found, x["mask_positions"].numpy()[:, :1], y.numpy()[:, :1], 1)
        texts = [t for row in found for t in np.split(row, np.flatnonzero(row == 2))]
        return x, sorted(t[t != 0].tolist() for t in texts if len(t))

    packed, texts = batch(True)
    own, expected = batch(False)
    assert texts == expected and len(texts) > 4
    assert packed["token_ids"].shape == (4, 64) and own["token_ids"].shape == (len(texts), 64)
    starts = packed["text_starts"].numpy()
    assert [set(np.flatnonzero(r == 2)) for r in packed["token_ids"].numpy()] == [
        set(row[row < 64].tolist()) for row in starts
    ]


@pytest.mark.slow
def test_mistakes_are_named(tokenizer, corpus):
    bert = {"pooler": True, **SMALL}
    with pytest.raises(ValueError, match="'electra'.*second head"):
        ez.Pretraining(ez.ElectraBackbone(20, **SMALL))
    with pytest.raises(ValueError, match="head is 'ForPreTraining'.*'roberta'"):
        ez.Pretraining(ez.RobertaBackbone(20, **bert))
    with pytest.raises(ValueError, match="pooler"):
        ez.Pretraining(ez.BertBackbone(20, **SMALL, pooler=False))
    with pytest.raises(ValueError, match="pack_texts"):
        ez.PretrainingPreprocessor(tokenizer, pack_texts=True)
    model = pretraining(tokenizer)
    with pytest.raises(ValueError, match="labels.*PretrainingCorpus"):
        model.fit(["the cat"])
    with pytest.raises(ValueError, match="save_to_preset.*MaskedLM"):
        model.predict(["the cat"])
    with pytest.raises(ValueError, match="shuffle is False"):
        model.fit(corpus, shuffle=False)
    with pytest.raises(ValueError, match="Received y with a dataset"):
        model.fit(corpus, [1])
    with pytest.raises(ValueError, match="dynamic is False"):
        pretraining(tokenizer, dynamic=False).fit(corpus)
    other = ez.BertTokenizer([*TOKENS[:-1], "movie"])
    with pytest.raises(ValueError, match="different tokenizer"):
        pretraining(other).evaluate(corpus)
    with pytest.raises(ValueError, match="preprocessor.* is None"):
        ez.MaskedLM(model.backbone).fit(corpus)


@pytest.mark.slow(only="^(labels0|labels1)")
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 0], "2 texts, but 3 labels"),
        ([0], "2 texts, but 1 labels"),
        ([0.9, 0], "Row 0 "),
        ([0, 2], "Row 1 has the label 2"),
        ([0, -1], "Row 1 has the label -1"),
        (["in_order", "other"], "Row 1 has the unknown label 'other'"),
        ([[0.5, 0.5], [1, 0]], "Expected one label per pair"),
    ],
)
def test_labels_of_pairs_are_checked(tiny, labels, message):
    from encoder_zoo.encoders import get_family

    model = tiny.task(get_family("albert"), "Pretraining")
    with pytest.raises(ValueError, match=re.escape(message)):
        model.fit((["a b", "b a"], ["a", "b"]), labels)


def test_labels_of_sentence_order_may_be_names(tiny):
    from encoder_zoo.encoders import get_family

    preprocessor = tiny.task(get_family("albert"), "Pretraining").preprocessor
    pairs, labels = ez.sentence_order_pairs([["a b.", "b.", "a.", "b a."]] * 3)
    _, y, _ = preprocessor(pairs, labels)
    assert y["sentence_order"].numpy().tolist() == [int(name == "swapped") for name in labels]
