"""Parts of a preset by themselves: a tokenizer's own folder, a given preprocessor, own classes."""

import json

import keras
import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.testing import tiny

NANO = "bert_nano_en_uncased"
TEXT = "a b ab c"


class TestTokenizer:
    @pytest.mark.slow(except_for="^bert$", every=True)
    @pytest.mark.parametrize("name", FAMILIES)
    def test_of_every_family_returns(self, name, tmp_path):
        tokenizer = tiny.tokenizer(get_family(name))
        tokenizer.save_to_preset(tmp_path / "tokenizer")
        again = ez.Tokenizer.from_preset(tmp_path / "tokenizer")
        assert type(again) is type(tokenizer)
        assert again.get_config() == tokenizer.get_config()
        assert again.tokenize(TEXT).numpy().tolist() == tokenizer.tokenize(TEXT).numpy().tolist()
        manifest = json.loads((tmp_path / "tokenizer" / "encoder_zoo.json").read_text())
        assert manifest["task"] == "tokenizer"
        tokenizer.save_to_preset(tmp_path / "tokenizer")  # is replaced

    @pytest.mark.slow
    def test_added_tokens_and_other_libraries(self, tmp_path):
        tokenizers = pytest.importorskip("tokenizers")
        tokenizer = ez.Tokenizer.from_preset(NANO, added_tokens=["zzq"])
        tokenizer.save_to_preset(tmp_path / "tokenizer")
        again = ez.BertTokenizer.from_preset(tmp_path / "tokenizer")
        assert (
            again.token_to_id("zzq")
            == tokenizer.token_to_id("zzq")
            == len(again.get_vocabulary()) - 1
        )
        theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
        found = theirs.encode("A zzq film", add_special_tokens=False).ids
        assert found == again.tokenize("A zzq film").numpy().tolist()

    def test_a_model_is_not_replaced_by_its_tokenizer(self, tmp_path):
        backbone = tiny.backbone(get_family("bert"))
        tokenizer = tiny.tokenizer(get_family("bert"))
        backbone.save_to_preset(tmp_path / "model", tokenizer=tokenizer)
        with pytest.raises(ValueError, match="a tokenizer"):
            tokenizer.save_to_preset(tmp_path / "model")
        assert (tmp_path / "model" / "model.safetensors").exists()
        tokenizer.save_to_preset(tmp_path / "tokenizer")
        with pytest.raises(ValueError, match="a preset"):
            backbone.save_to_preset(tmp_path / "tokenizer")
        assert ez.Tokenizer.from_preset(tmp_path / "tokenizer").get_config()


class TestGivenPreprocessor:
    """As in KerasHub: `from_preset(source, preprocessor=...)`."""

    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "preset"
        task = tiny.task(get_family("bert"), ez.SequenceClassifier)
        task.save_to_preset(folder)
        return folder

    @pytest.mark.slow
    def test_is_the_one_of_the_task(self, folder):
        made = ez.SequenceClassifierPreprocessor.from_preset(folder, sequence_length=8)
        task = ez.SequenceClassifier.from_preset(folder, preprocessor=made)
        assert task.preprocessor.sequence_length == 8
        expected = ez.SequenceClassifier.from_preset(folder, sequence_length=8)
        texts = ["a b c", "d"]
        np.testing.assert_allclose(
            task.predict(texts, verbose=0), expected.predict(texts, verbose=0), atol=1e-6
        )
        assert made.get_config()["sequence_length"] == 8

    @pytest.mark.slow
    def test_what_does_not_fit_is_refused(self, folder):
        made = ez.SequenceClassifierPreprocessor.from_preset(folder)
        with pytest.raises(TypeError, match="sequence_length.*preprocessor"):
            ez.SequenceClassifier.from_preset(folder, preprocessor=made, sequence_length=8)
        other = ez.SequenceClassifierPreprocessor.from_preset(NANO)
        with pytest.raises(ValueError, match="SequenceClassifierPreprocessor.from_preset"):
            ez.SequenceClassifier.from_preset(folder, preprocessor=other)
        for wrong in (ez.MaskedLMPreprocessor.from_preset(folder), made.tokenizer, "any"):
            with pytest.raises(TypeError, match="SequenceClassifierPreprocessor"):
                ez.SequenceClassifier.from_preset(folder, preprocessor=wrong)


@keras.saving.register_keras_serializable(package="test_parts_of_presets")
class Scaled(ez.BertBackbone):
    """A backbone of a user with one weight more, and an argument of its own."""

    def __init__(self, *args, first_scale=2.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.first_scale = first_scale

    def build(self, input_shape=None):
        super().build(input_shape)
        first = keras.initializers.Constant(self.first_scale)
        self.scale = self.add_weight(shape=(), initializer=first, name="scale")

    def _make_outputs(self, sequence_output, inputs):
        return super()._make_outputs(sequence_output * self.scale, inputs)


class WithTable(ez.BertBackbone):
    """A backbone of a user with another layer."""

    def build(self, input_shape=None):
        super().build(input_shape)
        self.table = keras.layers.Embedding(2, 4)
        self.table.build()


class TestOwnBackbone:
    def test_low_rank_updates_of_other_layers_are_refused(self, tmp_path):
        own = WithTable(9, 1, 2, 4, 8, max_sequence_length=16, pooler=False)
        own.table.enable_lora(1)
        with pytest.raises(ValueError, match="weights.*table/.*embeddings"):
            own.save_to_preset(tmp_path / "refused")
        assert not (tmp_path / "refused").exists()

    @pytest.mark.slow
    def test_has_the_pretrained_weights(self, caplog):
        own = Scaled.from_preset(NANO, first_scale=3.0, pooler=True)
        assert type(own) is Scaled
        assert own.pooler_is_new and "pooler" in caplog.text
        assert "keep their initial values" in caplog.text and "scale" in caplog.text
        plain = ez.BertBackbone.from_preset(NANO)
        inputs = {"token_ids": np.array([[2, 7, 9, 3]])}
        np.testing.assert_allclose(
            own(inputs)["sequence_output"], 3.0 * plain(inputs)["sequence_output"], atol=1e-5
        )
        task = ez.SequenceClassifier(
            own, ez.SequenceClassifierPreprocessor.from_preset(NANO), num_classes=2
        )
        assert task.predict(["A text."], verbose=0).shape == (1, 2)

    @pytest.mark.slow
    def test_without_weights_of_its_own_nothing_is_logged(self, caplog):
        class Plain(ez.BertBackbone):
            pass

        own, plain = Plain.from_preset(NANO), ez.BertBackbone.from_preset(NANO)
        assert "initial values" not in caplog.text
        inputs = {"token_ids": np.array([[2, 7, 9, 3]])}
        np.testing.assert_allclose(own(inputs)["sequence_output"], plain(inputs)["sequence_output"])

    def test_another_family_is_refused(self):
        class Other(ez.RobertaBackbone):
            pass

        with pytest.raises(ValueError, match="contains a BertBackbone"):
            Other.from_preset(NANO)

    @pytest.mark.slow
    def test_weights_of_its_own_are_refused_and_its_class_is_named(self, tmp_path, caplog):
        class Plain(ez.BertBackbone):
            pass

        own = Scaled.from_preset(NANO, pooler=True)
        task = ez.SequenceClassifier(own, num_classes=2)
        for save in (own.save_to_preset, task.save_to_preset):
            with pytest.raises(ValueError, match="weights.*scale"):
                save(tmp_path / "refused")
        assert not (tmp_path / "refused").exists()
        plain = Plain.from_preset(NANO, pooler=True)
        ez.SequenceClassifier(plain, num_classes=2).save_to_preset(tmp_path / "plain")
        caplog.clear()
        assert type(Plain.from_preset(tmp_path / "plain")) is Plain
        assert "was saved as" not in caplog.text
        ez.BertBackbone.from_preset(tmp_path / "plain")
        assert "was saved as a Plain but is loaded as a BertBackbone" in caplog.text
        plain.enable_lora(2)
        plain.save_to_preset(tmp_path / "lora")  # merged, as for other backbones

    @pytest.mark.slow
    def test_a_file_of_keras_keeps_its_weights(self, tmp_path):
        own = Scaled.from_preset(NANO, pooler=True, first_scale=3.0)
        task = ez.SequenceClassifier(own, num_classes=2)
        inputs = {"token_ids": np.array([[2, 7, 9, 3]])}
        expected = task.predict(inputs, verbose=0)
        task.save(tmp_path / "own.keras")
        again = keras.saving.load_model(tmp_path / "own.keras")
        np.testing.assert_allclose(again.predict(inputs, verbose=0), expected, atol=1e-5)
        assert float(again.backbone.scale) == 3.0
