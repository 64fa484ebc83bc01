"""Model cards: fields that the hub reads, facts, and examples that run."""

import re
import shutil

import pytest
import yaml

import encoder_zoo as ez
from encoder_zoo.presets.origin import Origin, find_origin, read_card
from encoder_zoo.tasks import list_tasks

TEXTS, LABELS = ["a b ab", "c d e", "p a b", "b"], ["O", "B-X", "I-X", "O"]


def card_of(model, folder, **options) -> str:
    model.save_to_preset(folder, **options)
    return (folder / "README.md").read_text(encoding="utf-8")


def head_of(card: str) -> dict:
    """The fields at the beginning, as the hub reads them."""
    return yaml.safe_load(card.split("---\n")[1])


@pytest.fixture
def classifier(tiny):
    return tiny.task(ez.BertBackbone.family, "SequenceClassifier")


class TestOrigin:
    @pytest.mark.slow
    def test_of_a_listed_preset(self, tmp_path):
        classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", labels=["a", "b"])
        card = card_of(classifier, tmp_path / "mine")
        head = head_of(card)
        assert head["license"] == "cc-by-sa-4.0" and head["language"] == ["en"]
        assert "base_model" not in head  # it is in no repository
        assert "the weights of bert_nano_en_uncased (licence: cc-by-sa-4.0)." in card

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("roberta_base_en", Origin("FacebookAI/roberta-base", "mit", ("en",))),
            ("hf://ProsusAI/finbert", Origin("ProsusAI/finbert", None, ("en",))),
            ("hf://ProsusAI/finbert@main", Origin("ProsusAI/finbert", None, ("en",))),
            ("mmbert_base", Origin("jhu-clsp/mmBERT-base", "mit", ("multilingual",))),
            ("hf://somebody/model", Origin("somebody/model")),
            ("somebody/model@v1", Origin("somebody/model")),
            ("folder", Origin()),
        ],
    )
    def test_of_names_and_addresses(self, tmp_path, source, expected):
        assert find_origin(source, tmp_path) == expected

    @pytest.mark.slow
    def test_is_kept_when_a_preset_is_saved_again(self, classifier, tmp_path):
        classifier.backbone.origin = Origin("org/base", "apache-2.0", ("en", "no"))
        first = card_of(classifier, tmp_path / "first")
        again = ez.TokenClassifier.from_preset(tmp_path / "first", labels=["O", "B-X", "I-X"])
        assert head_of(first)["language"] == ["en", "no"]  # and not False
        assert again.backbone.origin == classifier.backbone.origin
        assert head_of(card_of(again, tmp_path / "again"))["base_model"] == "org/base"

    def test_of_a_new_model_is_unknown(self, classifier, tmp_path):
        card = card_of(classifier, tmp_path / "mine")
        assert not {"license", "language", "base_model"} & head_of(card).keys()
        assert "began from" not in card

    @pytest.mark.parametrize(
        ("front", "expected"),
        [
            ("license: mit\nlanguage: en", Origin(None, "mit", ("en",))),
            (
                "language:\n- en\n- zh-Hans\nlicense: other",
                Origin(None, "other", ("en", "zh-Hans")),
            ),
            ("language: [\"en\", 'no']\ntags: [de]", Origin(None, None, ("en", "no"))),
            ("base_model:\n  - org/a\n  - org/b", Origin("org/a")),
            ("base_model: bert\nlicense: [MIT]\nlanguage: English please", Origin()),
            ("license: |\n  mit\n  x: y", Origin()),
            ("model:\n  license: mit", Origin()),
        ],
    )
    def test_in_cards_of_others(self, tmp_path, front, expected):
        path = tmp_path / "README.md"
        for newline in ("\n", "\r\n"):
            path.write_bytes(f"---\n{front}\n---\n# Title\n".replace("\n", newline).encode())
            assert read_card(path) == expected

    @pytest.mark.parametrize("content", [b"", b"# Title", b"---\nlicense: mit", b"\xff\xfe" * 9])
    def test_of_cards_without_fields(self, tmp_path, content):
        (tmp_path / "README.md").write_bytes(content)
        assert read_card(tmp_path / "README.md") == Origin()


class TestResults:
    @pytest.mark.slow
    def test_are_those_of_the_last_evaluation(self, classifier, tmp_path):
        assert "evaluation" not in card_of(classifier, tmp_path / "mine")
        results = classifier.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
        card = card_of(classifier, tmp_path / "mine")
        assert head_of(card)["metrics"] == ["accuracy"]
        for name, value in results.items():
            assert f"| {name} | {value:.4g} |" in card
        assert dict(classifier.last_evaluation) == pytest.approx(results)

    @pytest.mark.slow
    def test_are_forgotten_by_training(self, classifier, tmp_path):
        classifier.evaluate(TEXTS, LABELS, verbose=0)
        assert classifier.last_evaluation
        classifier.fit(TEXTS, LABELS, epochs=2, verbose=0, validation_data=(TEXTS, LABELS))
        assert not classifier.last_evaluation
        assert "evaluation" not in card_of(classifier, tmp_path / "mine")

    @pytest.mark.slow
    @pytest.mark.matrix
    def test_are_forgotten_by_other_weights(self, classifier, tiny, tmp_path):
        def distil():
            teacher = tiny.task(ez.BertBackbone.family, "SequenceClassifier")
            teacher.weights[-1].assign([9.0, -9.0, 0.0])
            ez.Distillation(teacher, classifier).fit(TEXTS, epochs=2, verbose=0)

        def train_backbone():
            other = ez.SequenceClassifier(classifier.backbone, classifier.preprocessor, 2)
            other.fit(TEXTS, [0, 1, 0, 1], epochs=2, verbose=0)

        def load_adapters():
            other = tiny.task(ez.BertBackbone.family, "SequenceClassifier")
            other.enable_lora(1)
            other.save_adapters(tmp_path / "adapters")
            classifier.load_adapters(tmp_path / "adapters")

        def set_weights():
            classifier.set_weights(first)

        first = classifier.get_weights()
        for change in (distil, set_weights, train_backbone, load_adapters):
            classifier.evaluate(TEXTS, LABELS, verbose=0)
            classifier.predict(TEXTS, verbose=0)
            assert classifier.last_evaluation, change
            change()
            assert not classifier.last_evaluation, change
            assert "evaluation" not in card_of(classifier, tmp_path / change.__name__), change

    @pytest.mark.slow
    def test_of_few_shots_are_forgotten_by_training(self, tiny):
        classifier = tiny.task(ez.BertBackbone.family, "FewShotClassifier")
        texts, labels = TEXTS[:2], [0, 1]
        classifier.fit(texts, labels, verbose=0)
        accuracy = classifier.evaluate(texts, labels)
        assert dict(classifier.last_evaluation) == accuracy
        classifier.fit(texts, labels[::-1], verbose=0)
        assert not classifier.last_evaluation

    @pytest.mark.slow
    def test_of_a_list_are_returned_as_keras_does(self, classifier):
        results = classifier.evaluate(TEXTS, LABELS, verbose=0)
        assert results == pytest.approx(list(classifier.last_evaluation.values()))


EXAMPLE = re.compile(r"```python\n(import encoder_zoo.*?)```", re.DOTALL)


class TestExamples:
    @pytest.mark.slow(except_for="^Reranker")
    @pytest.mark.eager
    @pytest.mark.parametrize("task", list_tasks(), ids=lambda task: task.__name__)
    def test_run_beside_the_folder(self, tiny, tmp_path, monkeypatch, task):
        detects = task is ez.ReplacedTokenDetection  # which BERT has no head for
        family = ez.ElectraBackbone.family if detects else ez.BertBackbone.family
        model = tiny.task(family, task.__name__)
        card = card_of(model, tmp_path / "mine")
        [code] = EXAMPLE.findall(card)
        monkeypatch.chdir(tmp_path)
        names = {}
        exec(code, names)
        assert type(names["model"]) is task
        assert (task.record.text_method is None) == (len(code.splitlines()) == 3)

    @pytest.mark.slow
    def test_are_in_the_words_of_keras_hub_too(self, tiny, tmp_path):
        classifier = tiny.task(ez.RobertaBackbone.family, "SequenceClassifier")
        card = card_of(classifier, tmp_path / "mine", format="keras_hub")
        assert 'keras_hub.models.RobertaTextClassifier.from_preset("mine")' in card
        assert 'model.classify("' in card

    def test_ask_nothing_of_a_model_without_a_tokenizer(self, tiny, tmp_path):
        backbone = tiny.backbone(ez.BertBackbone.family)
        classifier = ez.SequenceClassifier(backbone, labels=["a", "b"])
        assert "model.classify" not in card_of(classifier, tmp_path / "mine")
        shutil.rmtree(tmp_path / "mine")
        assert "model." not in EXAMPLE.findall(card_of(backbone, tmp_path / "mine"))[0]


def test_words_that_yaml_reads_as_something_else_are_quoted():
    from encoder_zoo.presets.model_card import _format_yaml

    values = ["en", "no", "y", "Off", "null", "1.5", "a: b", "x #y", 'he said "hi"', "ä\nb"]
    assert yaml.safe_load(_format_yaml("language", values)) == {"language": values}
