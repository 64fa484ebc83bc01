"""Folders of sentence-transformers: read as each version wrote them, refused where unknown, saved.

The folders and vectors in `golden/sentence_transformers` were made by versions 1.2 to 6.2.
"""

import json
import logging
import os
import shutil

import numpy as np
import pytest
from check_known import check_source
from fake_hub import Hub, environment
from paths import GOLDEN
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.presets.formats.cross_encoders import make_cross_encoder_config
from encoder_zoo.presets.hub import select_files
from encoder_zoo.presets.registry import get_listed_settings

FOLDERS = GOLDEN / "sentence_transformers"
VERSIONS = sorted(path.name for path in FOLDERS.iterdir())
PROMPTS = {"query": "query : ", "passage": "a : "}
NORMALIZED = {"normalize": True, "similarity_function": "cosine"}
TANH = {"activation": "tanh", "use_bias": True, "residual": False}
# What the script that made the folders told each version.
SETTINGS = {
    "1.2.1": {"pooling": ["max", "mean"], "dense": [{"units": 5, **TANH}], "normalize": False},
    "2.2.2": {"pooling": ["cls", "mean"], "dense": [{"units": 6, **TANH}], **NORMALIZED},
    "2.7.0": {"pooling": "weightedmean", "dense": [], **NORMALIZED},
    "3.4.1": {
        "pooling": "max",
        "dense": [{"units": 5, "activation": "gelu", "use_bias": False, "residual": False}],
        "normalize": False,
        "similarity_function": "dot",
    },
    "4.1.0": {
        "pooling": "lasttoken",
        "dense": [{**TANH, "units": 4, "activation": "linear"}],
        "normalize": False,
        "similarity_function": "euclidean",
    },
    "5.3.0": {"pooling": "mean_sqrt_len_tokens", "dense": [], **NORMALIZED},
    "5.4.1": {"pooling": ["mean", "cls"], "dense": [], "dim": 6, **NORMALIZED},
    "5.7.0": {"pooling": "cls", "dense": [{**TANH, "units": 8, "activation": "silu"}]},
    "6.2.0": {
        "pooling": ["mean", "lasttoken"],
        "dense": [
            {**TANH, "units": 8, "activation": "relu", "residual": True},
            {**TANH, "units": 6, "activation": "sigmoid"},
            {**TANH, "units": 6, "residual": True},
        ],
        "normalize": True,
        "similarity_function": "manhattan",
    },
}


@pytest.fixture(scope="module")
def embedders():
    return {version: ez.TextEmbedder.from_preset(FOLDERS / version) for version in VERSIONS}


@pytest.fixture
def folder(tmp_path):
    """The newest folder, to be changed."""
    return copied(tmp_path, "6.2.0")


def copied(tmp_path, version: str):
    return shutil.copytree(FOLDERS / version, tmp_path / "copy")


def edit(path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_modules(folder, change) -> None:
    path = folder / "modules.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def refusal(source) -> str:
    with pytest.raises(ValueError) as caught:
        ez.TextEmbedder.from_preset(source)
    return str(caught.value)


def vectors(embedder, **options) -> np.ndarray:
    return embedder.embed(np.load(FOLDERS / "6.2.0" / "expected.npz")["texts"].tolist(), **options)


class TestEveryVersion:
    @pytest.mark.slow(except_for="^3")
    @pytest.mark.parametrize("version", VERSIONS)
    def test_vectors_are_those_of_the_library(self, embedders, version):
        """Also of a text that is longer than 16 tokens. Shortened ones get length 1 again."""
        embedder, stored = embedders[version], np.load(FOLDERS / version / "expected.npz")
        texts, expected = stored["texts"].tolist(), stored["vectors"]
        if embedder.dim:
            expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(embedder.embed(texts), expected, atol=1e-5)
        if embedder.preprocessor.prompts:
            found = embedder.embed(texts, prompt="query")
            np.testing.assert_allclose(found, stored["prompted"], atol=1e-5)

    @pytest.mark.parametrize("version", VERSIONS)
    def test_settings_are_those_of_its_files(self, embedders, version):
        embedder = embedders[version]
        settings = SETTINGS[version]
        assert {name: getattr(embedder, name) for name in settings} == settings
        assert embedder.preprocessor.max_length == 16

    def test_prompts(self, embedders):
        of = {version: e.preprocessor for version, e in embedders.items()}
        assert of["2.7.0"].prompts == of["6.2.0"].prompts == PROMPTS
        assert (of["2.7.0"].default_prompt, of["6.2.0"].default_prompt) == ("passage", None)
        assert not of["2.7.0"].include_prompt and not of["6.2.0"].include_prompt
        assert of["5.3.0"].include_prompt and of["3.4.1"].prompts == {}

    @pytest.mark.slow
    @pytest.mark.parametrize("version", ["1.2.1", "6.2.0"])
    def test_parts_load_by_themselves(self, embedders, version):
        embedder = embedders[version]
        preprocessor = ez.TextEmbedderPreprocessor.from_preset(FOLDERS / version)
        names = ("max_length", "prompts", "default_prompt", "include_prompt")
        for name in names:
            assert getattr(preprocessor, name) == getattr(embedder.preprocessor, name)
        backbone = ez.Backbone.from_preset(FOLDERS / version, pooler=False)
        for a, b in zip(backbone.get_weights(), embedder.backbone.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        tokens = ez.Tokenizer.from_preset(FOLDERS / version).tokenize(["the cat"])
        assert tokens.to_list() == preprocessor.tokenizer.tokenize(["the cat"]).to_list()

    def test_the_caller_overrides_the_files(self, folder):
        given = {"pooling": ["cls", "max"], "normalize": False, "dim": 2, "max_length": 9}
        given |= {"prompts": {"query": "a "}, "include_prompt": True}
        embedder = ez.TextEmbedder.from_preset(folder, **given)
        both = {**embedder.get_config(), **embedder.preprocessor.get_config()}
        assert {name: both[name] for name in given} == given
        assert embedder.dense == SETTINGS["6.2.0"]["dense"]
        assert ez.TextEmbedder.from_preset(folder, dense=()).embedding_dim == 16

    def test_a_pooling_of_another_width_needs_other_dense_layers(self, folder):
        with pytest.raises(ValueError, match=r"2_Dense: linear.weight is \(8, 16\)"):
            ez.TextEmbedder.from_preset(folder, pooling="cls")

    def test_given_dense_layers_are_new_and_that_is_said(self, folder, caplog):
        ez.TextEmbedder.from_preset(folder, dense=[{"units": 3}])
        assert "dense layers" in caplog.text


class TestBareEncoders:
    def test_the_default_pooling_is_said(self, golden, caplog):
        embedder = ez.TextEmbedder.from_preset(golden("Bert_Model").folder)
        assert (embedder.pooling, embedder.normalize) == ("mean", True)
        said = [r.getMessage() for r in caplog.records if "pooling" in r.getMessage()]
        assert said == [
            "Bert_Model does not specify a pooling method. Using the default, pooling='mean'."
        ]

    def test_a_backbone_with_an_argument_of_that_name_keeps_its_own(self, golden):
        folder = golden("ModernBert_Model").folder
        own = ez.Backbone.from_preset(folder).pooling
        embedder = ez.TextEmbedder.from_preset(folder, pooling=["max", "mean"])
        assert (embedder.pooling, embedder.backbone.pooling) == (["max", "mean"], own)

    def test_a_given_one_is_not_the_default(self, golden, caplog):
        ez.TextEmbedder.from_preset(golden("Bert_Model").folder, pooling="cls")
        assert "default" not in caplog.text

    @pytest.mark.slow
    def test_the_length_is_the_tokenizers(self, golden, tmp_path):
        folder = shutil.copytree(golden("Bert_Model").folder, tmp_path / "bare")
        edit(folder / "tokenizer_config.json", model_max_length=20)
        assert ez.TextEmbedder.from_preset(folder).preprocessor.max_length == 20
        edit(folder / "tokenizer_config.json", model_max_length=int(1e30))
        embedder = ez.TextEmbedder.from_preset(folder)
        assert embedder.preprocessor.max_length is None
        assert embedder.preprocessor.max_sequence_length == 32  # the positions of the model


class TestRefused:
    """Each error names the file and what is expected."""

    @pytest.mark.parametrize(
        "kind",
        [
            "custom_st.Transformer",
            "sentence_transformers_evil.models.Pooling",
            "sentence_transformers.models.LSTM",
            "sentence_transformers.models.CLIPModel",
            "sentence_transformers.models.Normalize.__class__",
            7,
            None,
        ],
    )
    def test_an_unknown_module(self, folder, kind):
        edit_modules(folder, lambda modules: [modules[0], {**modules[1], "type": kind}])
        message = refusal(folder)
        assert f"modules.json: [1]: type is {kind!r}" in message
        assert "Transformer, Pooling, Dense, Normalize" in message
        assert ez.Backbone.from_preset(folder).num_layers == 1  # the encoder is known

    @pytest.mark.parametrize(
        "order", [[0, 1, 5, 2], [1, 0], [0], [0, 2, 1], [0, 1, 5, 5], [], [0, 1, 1], [0, 5, 1]]
    )
    def test_an_unknown_order(self, folder, order):
        edit_modules(folder, lambda modules: [modules[i] for i in order])
        message = refusal(folder)
        assert "modules.json: the modules are" in message
        assert all(kind in message for kind in ("Transformer", "Pooling", "Dense", "Normalize"))

    @pytest.mark.parametrize("path", ["../1_Pooling", "/etc", "a/b", "..", "", 3, "1_Pooling\0"])
    def test_a_path_out_of_the_folder(self, folder, path):
        def change(modules):
            return [modules[0], {**modules[1], "path": path}, *modules[2:]]

        edit_modules(folder, change)
        assert f"modules.json: [1]: path is {path!r}" in refusal(folder)

    @pytest.mark.parametrize("content", ["{}", "[3]", "[[]]", "[", '"x"'])
    def test_modules_of_another_form(self, folder, content):
        (folder / "modules.json").write_text(content)
        assert "modules.json" in refusal(folder)

    def test_links_out_of_the_folder(self, folder, tmp_path):
        outside = shutil.move(folder / "1_Pooling", tmp_path / "outside")
        (folder / "1_Pooling").symlink_to(outside)
        assert "is a link to" in refusal(folder)

    @pytest.mark.parametrize(
        ("file", "changes", "words"),
        [
            ("1_Pooling", {"pooling_mode": "first"}, "pooling_mode is 'first'"),
            ("1_Pooling", {"pooling_mode": []}, r"pooling_mode is \[\]"),
            ("1_Pooling", {"pooling_mode": [["cls"]]}, "pooling_mode is"),
            ("1_Pooling", {"pooling_mode": None}, "pooling_mode is None"),
            ("1_Pooling", {"embedding_dimension": 9}, "is 9.* 8"),
            ("1_Pooling", {"include_prompt": "no"}, "include_prompt is 'no'"),
            ("1_Pooling", {"pooling_mode_attention": True}, "'pooling_mode_att"),
            ("2_Dense", {"activation_function": "os.system"}, "'os.system'"),
            ("2_Dense", {"activation_function": "torch.nn.Softplus"}, "torch.nn.Softplus"),
            ("2_Dense", {"in_features": 8}, "in_features is 8.* 16"),
            ("2_Dense", {"out_features": 10**12}, "1000000000000"),
            ("2_Dense", {"out_features": True}, "out_features is True"),
            ("2_Dense", {"bias": False}, "linear.bias"),
            ("2_Dense", {"use_residual": False}, "residual"),
            ("2_Dense", {"module_input_name": "token_embeddings"}, "is 'token_embeddings'"),
            ("2_Dense", {"scale": 2}, "'scale'"),
            ("5_Normalize", {"module_input_name": "token_embeddings"}, "is 'token_embeddings'"),
        ],
    )
    def test_a_setting_of_a_module(self, folder, file, changes, words):
        edit(folder / file / "config.json", **changes)
        with pytest.raises(ValueError, match=words) as caught:
            ez.TextEmbedder.from_preset(folder)
        assert str(folder / file) in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "changes", "words"),
        [
            ("sentence_bert", {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
            ("sentence_bert", {"max_seq_length": 0}, "max_seq_length is 0"),
            ("sentence_bert", {"max_seq_length": "9"}, "max_seq_length is '9'"),
            (
                "sentence_bert",
                {"modality_config": {"text": {"method_output_name": "pooler_output"}}},
                "modality_config is 'pooler_output'",
            ),
            ("st", {"prompts": ["query: "]}, "prompts is"),
            ("st", {"prompts": {"query": 3}}, "prompts is"),
            ("st", {"default_prompt_name": "q"}, "default_prompt_name is 'q'.*passage, query"),
            ("st", {"similarity_fn_name": "maxsim"}, "similarity_fn_name is 'maxsim'"),
            ("st", {"truncate_dim": -1}, "truncate_dim is -1"),
        ],
    )
    def test_a_setting_of_the_model(self, folder, name, changes, words):
        files = {"st": "config_sentence_transformers.json"}
        file = files.get(name, f"{name}_config.json")
        edit(folder / file, **changes)
        with pytest.raises(ValueError, match=f"{file}: {words}"):
            ez.TextEmbedder.from_preset(folder)

    def test_weights_that_are_not_numbers(self, folder):
        path = folder / "2_Dense" / "model.safetensors"
        tensors = load_file(path)
        tensors["linear.bias"][0] = np.nan
        save_file(tensors, path)
        assert "linear.bias has 1 values that are NaN" in refusal(folder)
        ez.TextEmbedder.from_preset(folder, allow_nonfinite=True)

    def test_lower_case_that_the_tokenizer_keeps(self, tmp_path):
        folder = copied(tmp_path, "2.2.2")
        (folder / "tokenizer.json").unlink()
        edit(folder / "tokenizer_config.json", do_lower_case=False)
        edit(folder / "sentence_bert_config.json", do_lower_case=True)
        assert "do_lower_case is true, but the tokenizer keeps uppercase" in refusal(folder)


class TestLengths:
    def test_the_files_count_in_the_order_of_the_library(self, folder):
        def length() -> int:
            return ez.TextEmbedderPreprocessor.from_preset(folder).max_length

        edit(folder / "tokenizer_config.json", model_max_length=30)
        assert length() == 30
        edit(folder / "sentence_bert_config.json", max_seq_length=20)
        assert length() == 20
        edit(folder / "sentence_bert_config.json", tokenizer_args={"model_max_length": 10})
        assert length() == 10

    def test_other_names_of_the_file(self, tmp_path):
        folder = copied(tmp_path, "2.2.2")
        path = folder / "sentence_bert_config.json"
        edit(path, max_seq_length=7)
        path.rename(folder / "sentence_xlm-roberta_config.json")
        assert ez.TextEmbedder.from_preset(folder).preprocessor.max_length == 7


class TestSaved:
    @pytest.mark.slow
    @pytest.mark.parametrize("version", VERSIONS)
    def test_it_comes_back_as_it_was(self, embedders, version, tmp_path, caplog):
        embedder = embedders[version]
        embedder.save_to_preset(tmp_path / "saved")
        with caplog.at_level(logging.WARNING):
            loaded = ez.TextEmbedder.from_preset(tmp_path / "saved")
        assert caplog.text == ""
        np.testing.assert_array_equal(vectors(loaded), vectors(embedder))
        for name in ("pooling", "dense", "normalize", "dim", "similarity_function"):
            assert getattr(loaded, name) == getattr(embedder, name)
        configs = [task.preprocessor.get_config() for task in (loaded, embedder)]
        tokenizers = [config.pop("tokenizer").get_config() for config in configs]
        assert configs[0] == configs[1] and tokenizers[0] == tokenizers[1]

    def test_the_layout_is_the_old_one(self, embedders, tmp_path):
        embedders["2.2.2"].save_to_preset(tmp_path / "saved")
        old, new = FOLDERS / "2.2.2", tmp_path / "saved"
        for name in ("modules.json", "sentence_bert_config.json", "2_Dense/config.json"):
            assert json.loads((new / name).read_text()) == json.loads((old / name).read_text())
        pooling = json.loads((new / "1_Pooling/config.json").read_text())
        assert pooling == {
            "word_embedding_dimension": 8,
            "pooling_mode_cls_token": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_mean_sqrt_len_tokens": False,
        }
        settings = json.loads((new / "encoder_zoo.json").read_text())
        assert settings["preprocessor"] == {"sequence_length": None}
        assert {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"} <= set(
            settings["files"]
        )

    def test_an_order_that_flags_cannot_say_is_a_list(self, embedders, tmp_path):
        embedders["5.4.1"].save_to_preset(tmp_path / "saved")
        pooling = json.loads((tmp_path / "saved/1_Pooling/config.json").read_text())
        assert pooling == {"embedding_dimension": 8, "pooling_mode": ["mean", "cls"]}

    @pytest.mark.slow
    def test_module_folders_of_an_earlier_save_do_not_remain(self, embedders, golden, tmp_path):
        target = tmp_path / "saved"
        embedders["6.2.0"].save_to_preset(target)
        (target / "0_notes").mkdir()
        (target / "0_notes" / "mine.txt").write_text("kept")
        assert {"2_Dense", "3_Dense", "4_Dense"} <= set(os.listdir(target))
        embedders["5.3.0"].save_to_preset(target)
        assert not list(target.glob("*_Dense"))
        assert (target / "0_notes" / "mine.txt").read_text() == "kept"
        folder = golden("Bert_ForSequenceClassification").folder
        ez.SequenceClassifier.from_preset(folder).save_to_preset(target)
        assert not list(target.glob("*sentence*")) and not (target / "modules.json").exists()

    @pytest.mark.slow
    def test_half_precision(self, embedders, tmp_path):
        embedders["6.2.0"].save_to_preset(tmp_path / "half", dtype="float16")
        weights = load_file(tmp_path / "half" / "2_Dense" / "model.safetensors")
        assert {array.dtype.name for array in weights.values()} == {"float16"}
        loaded = ez.TextEmbedder.from_preset(tmp_path / "half")
        np.testing.assert_allclose(vectors(loaded), vectors(embedders["6.2.0"]), atol=0.01)

    def test_an_activation_that_the_library_lacks_is_refused_before_anything_is_written(
        self, folder, tmp_path
    ):
        dense = [{"units": 4, "activation": "gelu_new"}]
        embedder = ez.TextEmbedder.from_preset(folder, dense=dense)
        with pytest.raises(ValueError, match=r"dense\[0\]: activation is 'gelu_new'"):
            embedder.save_to_preset(tmp_path / "saved")
        assert not (tmp_path / "saved").exists()

    @pytest.mark.parametrize("name", ["1_Pooling/config.json", "2_Dense/model.safetensors"])
    def test_a_changed_file_of_a_module_is_noticed(self, embedders, tmp_path, name):
        embedders["6.2.0"].save_to_preset(tmp_path / "saved")
        path = tmp_path / "saved" / name
        path.write_bytes(path.read_bytes().replace(b"e", b"E", 1))
        assert f"{path} is damaged or changed" in refusal(tmp_path / "saved")

    @pytest.mark.slow
    def test_files_of_modules_are_read_of_one_version(self, embedders, tmp_path, monkeypatch):
        """A writer replaces the folder after it was opened and before its modules are read."""
        from encoder_zoo.presets import loading

        embedders["6.2.0"].save_to_preset(tmp_path / "saved")
        restore = loading.restore_backbone

        def replaced(*arguments, **options):
            embedders["5.3.0"].save_to_preset(tmp_path / "saved")
            return restore(*arguments, **options)

        monkeypatch.setattr(loading, "restore_backbone", replaced)
        loaded = ez.TextEmbedder.from_preset(tmp_path / "saved")
        np.testing.assert_array_equal(vectors(loaded), vectors(embedders["6.2.0"]))

    def test_the_card_says_how_it_is_opened(self, embedders, tmp_path):
        embedders["2.2.2"].save_to_preset(tmp_path / "saved")
        card = (tmp_path / "saved" / "README.md").read_text()
        assert 'model = SentenceTransformer("saved")' in card
        assert "library_name: keras" in card
        assert "- sentence-similarity" in card and "- feature-extraction" in card


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub({})
    for name, value in environment(hub, tmp_path).items():
        monkeypatch.setenv(name, value)
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield hub
    hub.stop()


class TestHub:
    @pytest.mark.slow
    @pytest.mark.parametrize("version", ["1.2.1", "6.2.0"])
    def test_the_files_of_the_modules_are_downloaded(self, hub, embedders, version):
        hub.folders["org/model"] = FOLDERS / version
        loaded = ez.TextEmbedder.from_preset("hf://org/model")
        np.testing.assert_array_equal(vectors(loaded), vectors(embedders[version]))
        assert hub.count("GET", "expected.npz") == 0
        hub.stop()
        again = ez.TextEmbedder.from_preset("hf://org/model")  # from the cache
        np.testing.assert_array_equal(vectors(again), vectors(embedders[version]))

    @pytest.mark.slow
    def test_a_preprocessor_takes_no_weights(self, hub):
        hub.folders["org/model"] = FOLDERS / "6.2.0"
        preprocessor = ez.TextEmbedderPreprocessor.from_preset("hf://org/model")
        assert preprocessor.prompts == PROMPTS
        assert not hub.count("GET", ".safetensors")

    @pytest.mark.slow(except_for="^1")
    @pytest.mark.parametrize("version", ["1.2.1", "2.2.2", "6.2.0"])
    def test_the_headers_are_enough_to_check_it(self, hub, version):
        hub.folders["org/model"] = FOLDERS / version
        found = check_source("hf://org/model")
        assert found.opens, found.why_not
        assert not any("Dense" in name for name in found.weights)

    @pytest.mark.slow
    def test_modules_are_checked_too(self, hub, folder):
        edit(folder / "2_Dense" / "config.json", bias=False)
        hub.folders["org/model"] = folder
        found = check_source("hf://org/model")
        assert not found.opens and "2_Dense: the weights" in found.why_not

    def test_weights_of_one_format_are_selected_in_every_folder(self):
        names = ["modules.json", "0_BERT/pytorch_model.bin", "0_BERT/config.json", "2_Dense/a.py"]
        names += ["2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "onnx/config.json"]
        expected = [*names[:3], "2_Dense/model.safetensors"]
        assert select_files("", names) == expected
        assert select_files("", names, weights=False) == ["modules.json", "0_BERT/config.json"]
        with pytest.raises(ValueError, match="no model.safetensors"):
            select_files("", [names[0], *names[4:]])


class TestListed:
    @pytest.mark.slow
    def test_prompts_of_the_list_where_the_hub_has_none(self, hub, tmp_path):
        bare = copied(tmp_path, "5.4.1")
        hub.folders["intfloat/e5-base-v2"] = bare
        prompts = {"query": "query: ", "passage": "passage: "}
        for source in ("e5_base_en_uncased", "hf://intfloat/e5-base-v2", "intfloat/e5-base-v2"):
            embedder = ez.TextEmbedder.from_preset(source)
            assert embedder.preprocessor.prompts == prompts
            assert embedder.pooling == ["mean", "cls"]  # the files' own
        preprocessor = ez.TextEmbedderPreprocessor.from_preset("e5_base_en_uncased", prompts={})
        assert preprocessor.prompts == {}
        edit(bare / "config_sentence_transformers.json", prompts={"query": "q: ", "document": ""})
        shutil.rmtree(tmp_path / "cache")
        embedder = ez.TextEmbedder.from_preset("e5_base_en_uncased")
        assert embedder.preprocessor.prompts == {"query": "q: "}  # the files count more

    def test_every_entry_has_settings_that_are_known(self):
        for row in ez.list_presets():
            settings = get_listed_settings(row.name)
            assert settings.keys() <= {"prompts", "default_prompt", "pooling", "normalize"}
            assert get_listed_settings(f"{row.source}@main") == settings or row.source == "bundled"
        assert get_listed_settings("bge_small_en_uncased")["prompts"]["query"].endswith(
            "passages: "
        )


class TestCrossEncoders:
    """The rules for the activation, by sentence-transformers' source."""

    SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"

    @pytest.fixture
    def one_label(self, golden, tmp_path):
        folder = shutil.copytree(golden("Bert_ForSequenceClassification").folder, tmp_path / "ce")
        tensors = load_file(folder / "model.safetensors")
        for name in ("classifier.weight", "classifier.bias"):
            tensors[name] = tensors[name][:1].copy()
        save_file(tensors, folder / "model.safetensors")
        edit(folder / "config.json", id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})
        return folder

    @staticmethod
    def activation(folder) -> str:
        return ez.Reranker.from_preset(folder).activation

    def test_nothing_said_is_a_sigmoid(self, one_label):
        assert self.activation(one_label) == "sigmoid"

    def test_the_key_before_version_4(self, one_label):
        edit(one_label / "config.json", sbert_ce_default_activation_function=self.IDENTITY)
        assert self.activation(one_label) == "linear"

    def test_the_form_since_version_4(self, one_label):
        edit(one_label / "config.json", sentence_transformers={"activation_fn": self.IDENTITY})
        edit(one_label / "config.json", sbert_ce_default_activation_function=self.SIGMOID)
        assert self.activation(one_label) == "linear"

    def test_the_form_since_version_5_4(self, one_label):
        kind = "sentence_transformers.base.modules.transformer.Transformer"
        module = {"idx": 0, "name": "0", "path": "", "type": kind}
        (one_label / "modules.json").write_text(json.dumps([module]))
        settings = {"model_type": "CrossEncoder", "activation_fn": self.IDENTITY}
        (one_label / "config_sentence_transformers.json").write_text(json.dumps(settings))
        assert self.activation(one_label) == "linear"

    def test_another_activation_is_refused(self, one_label):
        edit(one_label / "config.json", sbert_ce_default_activation_function="os.system")
        with pytest.raises(ValueError, match=r"config.json: .*'os.system'"):
            self.activation(one_label)

    @pytest.mark.slow
    def test_both_older_forms_are_written(self):
        assert make_cross_encoder_config("linear") == {
            "sentence_transformers": {"activation_fn": self.IDENTITY, "version": "4.0.0"},
            "sbert_ce_default_activation_function": self.IDENTITY,
        }
