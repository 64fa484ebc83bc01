"""Messages about training advise what works: each is provoked here, and what it says is done."""

import contextlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_tasks import BERT, TEXTS, make, new, preprocessor

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

Y = ["a", "b", "a", "b"]


def endless() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((TEXTS, Y)).repeat().batch(2)


@pytest.mark.slow
def test_an_endless_dataset_has_labels():
    with pytest.raises(ValueError, match="labels="):
        new("SequenceClassifier").fit(endless(), steps_per_epoch=1, verbose=0)
    new("SequenceClassifier", labels=["a", "b"]).fit(endless(), steps_per_epoch=1, verbose=0)


@pytest.mark.slow
def test_an_endless_dataset_has_steps():
    classifier = new("SequenceClassifier", labels=["a", "b"])
    with pytest.raises(ValueError, match="steps_per_epoch"):
        classifier.fit(endless(), verbose=0)
    assert classifier.fit(endless(), steps_per_epoch=1, verbose=0).history["loss"]


@pytest.mark.slow
def test_raw_texts_are_not_masked_by_predict():
    task = make("MaskedLM")
    with pytest.raises(ValueError, match="fill_mask"):
        task.predict(TEXTS)
    assert task.fill_mask("one [MASK]", top_k=1)
    assert task.evaluate(TEXTS, verbose=0) is not None


@pytest.mark.slow
def test_frozen_models_are_thawed():
    classifier = new("SequenceClassifier", labels=["a", "b"])
    classifier.trainable = False
    with pytest.raises(ValueError, match=r"frozen.*trainable"):
        classifier.fit(TEXTS, Y, verbose=0)
    classifier.trainable = True
    classifier.fit(TEXTS, Y, verbose=0)


def test_a_learning_rate_has_its_optimizer(caplog):
    classifier = new("SequenceClassifier", labels=["a", "b"])
    with pytest.raises(ValueError, match=r"learning_rate.*auto"):
        classifier.compile(optimizer=keras.optimizers.Adam(), learning_rate=1e-3)
    classifier.compile(optimizer=keras.optimizers.Adam(1e-3))
    classifier.compile(optimizer="auto", learning_rate=1e-3)
    assert not caplog.text
    classifier.compile(optimizer="adam")
    assert "Adam(5e-05)" in caplog.text
    caplog.clear()
    classifier.compile(optimizer=keras.optimizers.Adam(5e-5))
    classifier.compile(optimizer="auto", learning_rate=5e-5)
    assert not caplog.text


@pytest.mark.slow
def test_a_schedule_that_has_ended():
    classifier = new("SequenceClassifier", labels=["a", "b"])
    classifier.compile(optimizer=keras.optimizers.SGD(0.0))
    with pytest.raises(ValueError, match=r"learning rate is 0.*auto"):
        classifier.fit(TEXTS, Y, verbose=0)
    classifier.compile(optimizer=keras.optimizers.SGD(0.1))
    classifier.fit(TEXTS, Y, verbose=0)
    classifier.compile(optimizer="auto")
    classifier.fit(TEXTS, Y, verbose=0)


@pytest.mark.slow
def test_weights_above_zero():
    classifier = new("SequenceClassifier", labels=["a", "b"])
    with pytest.raises(ValueError, match=r"sample_weight.*0"):
        classifier.fit(TEXTS, Y, sample_weight=[0.0] * 4, verbose=0)
    classifier.fit(TEXTS, Y, sample_weight=[1.0, 0, 0, 0], verbose=0)
    classifier.fit(TEXTS, Y, verbose=0)


@pytest.mark.slow
def test_thresholds_belong_to_the_weights(caplog):
    classifier = new("SequenceClassifier", labels=["a", "b"])
    classifier.calibrate(TEXTS, Y)
    classifier.fit(TEXTS, Y, verbose=0)
    assert "calibrate" in caplog.text
    classifier.calibrate(TEXTS, Y)
    assert classifier.tune_thresholds(TEXTS, Y).keys() == {"b"}


@pytest.mark.slow
def test_thresholds_of_entities_belong_to_the_weights(caplog):
    extractor = new("EntityExtractor", pooler=False, labels=["X"])
    spans = [[(0, 3, "X")]] * 4
    extractor.tune_thresholds(TEXTS, spans)
    extractor.fit(TEXTS, spans, verbose=0)
    assert "tune_thresholds" in caplog.text
    assert extractor.tune_thresholds(TEXTS, spans).keys() == {"X"}


@pytest.mark.slow
def test_numbers_have_no_classes():
    scorer = new("SequenceClassifier", num_classes=1, problem_type="regression")
    with pytest.raises(ValueError, match=r"predict_proba.*predict\b"):
        scorer.predict_proba(TEXTS)
    assert len(scorer.predict(TEXTS, verbose=0)) == 4
    with pytest.raises(ValueError, match=r"class_weight.*sample_weight"):
        scorer.fit(TEXTS, [0.0, 1, 2, 3], class_weight={0: 2.0}, verbose=0)
    scorer.fit(TEXTS, [0.0, 1, 2, 3], sample_weight=[1.0, 2, 1, 1], verbose=0)


@pytest.mark.slow
def test_class_weight_of_several_labels():
    multi = new("SequenceClassifier", labels=["a", "b"], problem_type="multi_label_classification")
    y, loss = np.eye(2)[[0, 1, 0, 1]], keras.losses.BinaryCrossentropy(from_logits=True)
    multi.compile(loss=loss)
    with pytest.raises(ValueError, match=r"class_weight.*'auto'"):
        multi.fit(TEXTS, y, class_weight={0: 2.0, 1: 1.0}, verbose=0)
    multi.fit(TEXTS, y, sample_weight=[1.0, 2, 1, 1], verbose=0)
    multi.compile(loss="auto")
    multi.fit(TEXTS, y, class_weight={0: 2.0, 1: 1.0}, verbose=0)


@pytest.mark.slow
def test_metrics_of_tokens():
    tagger = new("TokenClassifier", pooler=False, labels=["O", "B-X", "I-X"])
    with pytest.raises(ValueError, match=r"'auc'.*'f1_macro'.*multi_label=True"):
        tagger.compile(metrics=["auc"])
    words, tags = [["one", "two"], ["three"]], [["B-X", "I-X"], ["O"]]
    for metric in ("f1_macro", keras.metrics.AUC(multi_label=True, num_labels=3)):
        tagger.compile(metrics=[metric])
        history = tagger.fit(words, tags, verbose=0).history
        assert len(history) == 2 and np.isfinite(list(history.values())).all()


@pytest.mark.slow
def test_steps_in_half_precision(caplog):
    def fit(dtype: str, epochs: int = 1) -> int:
        task = ez.SequenceClassifier(
            tiny.backbone(BERT, pooler=True, dtype=dtype),
            preprocessor("SequenceClassifier"),
            labels=["a", "b"],
            dtype=dtype,
        )
        task.compile()
        if dtype == "mixed_float16":
            task.optimizer.initial_scale = 2.0**30  # the first gradients overflow
        task.fit(TEXTS, Y, epochs=epochs, verbose=0)
        return int(getattr(task.optimizer, "inner_optimizer", task.optimizer).iterations)

    assert fit("mixed_float16") == 0
    assert "mixed_bfloat16" in caplog.text
    assert fit("mixed_float16", 40) and fit("mixed_bfloat16")


def corpus(folder, tokenizer, documents) -> ez.PretrainingCorpus:
    return ez.PretrainingCorpus.from_documents(
        folder, documents, tokenizer, shard_tokens=4, verbose=0
    )


DOCUMENTS = [["a b c", "d e f g"], ["h i", "j k l"], ["m n o", "p a b"]]


def test_a_corpus_is_completed(tmp_path):
    def breaks_off():
        yield from DOCUMENTS[:2]
        raise InterruptedError

    tokenizer = tiny.tokenizer(BERT)
    with contextlib.suppress(InterruptedError):
        corpus(tmp_path, tokenizer, breaks_off())
    with pytest.raises(ValueError, match=r"2 files.*from_documents"):
        ez.PretrainingCorpus(tmp_path)
    whole = corpus(tmp_path, tokenizer, DOCUMENTS)
    assert ez.PretrainingCorpus(tmp_path).num_documents == whole.num_documents == 3


@pytest.mark.slow
def test_a_corpus_has_the_tokenizer_of_its_task(tmp_path):
    other = corpus(tmp_path / "other", tiny.tokenizer(get_family("modernbert")), DOCUMENTS)
    task = new("Pretraining")
    with pytest.raises(ValueError, match=r"other.*ModernBertTokenizer"):
        task.fit(other, verbose=0)
    task.fit(corpus(tmp_path / "own", tiny.tokenizer(BERT), DOCUMENTS), verbose=0)


@pytest.mark.slow
def test_a_corpus_has_a_folder_of_its_own(tmp_path):
    tokenizer = tiny.tokenizer(BERT)
    corpus(tmp_path / "a", tokenizer, DOCUMENTS)
    other = ez.BertTokenizer(tokenizer.get_vocabulary(), lowercase=False)
    with pytest.raises(ValueError, match=r"tokenizer.*sha256"):
        corpus(tmp_path / "a", other, DOCUMENTS)
    assert corpus(tmp_path / "b", other, DOCUMENTS).num_documents == 3
    shutil.rmtree(tmp_path / "a")
    assert corpus(tmp_path / "a", other, DOCUMENTS).num_documents == 3


@pytest.mark.slow
def test_a_student_has_the_labels_of_its_teacher():
    teacher = new("SequenceClassifier", labels=["a", "b"])
    with pytest.raises(ValueError, match=r"labels.*\['b', 'a'\].*\['a', 'b'\]"):
        ez.Distillation(teacher, new("SequenceClassifier", labels=["b", "a"]))
    ez.Distillation(teacher, new("SequenceClassifier", labels=["a", "b"]))
    assert ez.Distillation(teacher, new("SequenceClassifier")).student.labels == ["a", "b"]


@pytest.mark.slow
def test_a_student_has_weights_of_its_own(tmp_path):
    new("SequenceClassifier", labels=["no", "yes"]).save_to_preset(tmp_path)
    teacher = ez.SequenceClassifier.from_preset(tmp_path)
    with pytest.raises(ValueError, match=r"share.*from_preset"):
        ez.Distillation(teacher, teacher)
    ez.Distillation(teacher, ez.SequenceClassifier.from_preset(tmp_path))


@pytest.mark.slow
def test_distillation_by_relations():
    teacher = new("SequenceClassifier", labels=["a", "b"])
    heads = [tiny.backbone(BERT, num_heads=n) for n in (2, 4)]
    options = {"preprocessor": teacher.preprocessor, "objectives": ["relations"]}
    with pytest.raises(ValueError, match=r"4 attention heads.*2.*relation_heads"):
        ez.Distillation(heads[1], heads[0], **options)
    distilled = ez.Distillation(heads[1], heads[0], relation_heads=4, **options)
    with pytest.raises(ValueError, match=r"objectives.*\['relations'\].*soft_labels"):
        distilled.fit(TEXTS, Y, verbose=0)
    distilled.fit(TEXTS, verbose=0)
    both = ["relations", "soft_labels"]
    distilled = ez.Distillation(teacher, new("SequenceClassifier"), objectives=both)
    distilled.fit(TEXTS, Y, verbose=0)


def fit_with_backup(folder, x, y, **options) -> list[int]:
    """The epochs of a fit whose backup stays."""
    backup = ez.BackupAndRestore(folder, delete_checkpoint=False)
    classifier = new("SequenceClassifier", labels=["a", "b"])
    return classifier.fit(x, y, callbacks=[backup], verbose=0, **options).epoch


@pytest.mark.slow
def test_a_backup_belongs_to_its_run(tmp_path):
    assert fit_with_backup(tmp_path / "a", TEXTS, Y, batch_size=2) == [0]
    with pytest.raises(ValueError, match=r"batch_size is 2 in the backup.* 4 now.*backup_dir"):
        fit_with_backup(tmp_path / "a", TEXTS, Y, batch_size=4)
    assert fit_with_backup(tmp_path / "b", TEXTS, Y, batch_size=4) == [0]


@pytest.mark.slow
def test_a_damaged_backup_is_deleted(tmp_path):
    assert fit_with_backup(tmp_path / "a", TEXTS, Y) == [0]
    for file in (tmp_path / "a").rglob("*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"1 backups"):
        fit_with_backup(tmp_path / "a", TEXTS, Y)
    shutil.rmtree(tmp_path / "a")
    assert fit_with_backup(tmp_path / "a", TEXTS, Y) == [0]
