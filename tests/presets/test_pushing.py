"""`push_to_hub`: the real client against a server that plays the hub, and back by `from_preset`."""

import json
import os

import numpy as np
import pytest
from fake_hub import environment
from writable_hub import TOKEN, WritableHub

import encoder_zoo as ez

# The client's own, of an argument of its own.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
TEXTS = ["a b ab", "", "c d e a b", "p"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The server, and a client that is told to use it, a cache of its own and a token."""
    hub = WritableHub(tmp_path / "repositories")
    for name, value in {**environment(hub, tmp_path), "HF_TOKEN": TOKEN}.items():
        monkeypatch.setenv(name, value)
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)  # since 0.31
    monkeypatch.setattr("encoder_zoo.presets.hub_requests._PAUSES", (0.01, 0.01, None))
    yield hub
    hub.stop()


@pytest.fixture
def classifier(tiny):
    return tiny.task(ez.BertBackbone.family, "SequenceClassifier")


class TestWhatWasPushed:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "name",
        [
            "SequenceClassifier",
            "TextEmbedder",
            *(
                pytest.param(name, marks=pytest.mark.slow)
                for name in ("TokenClassifier", "SpanQA", "MaskedLM")
            ),
        ],
    )
    def test_gives_the_same_answers(self, hub, tiny, name):
        task = tiny.task(ez.BertBackbone.family, name)
        address = task.push_to_hub("user/model")
        assert address == f"hf://user/model@{hub.heads['user/model']}"
        inputs = tiny.rows(ez.BertBackbone.family)
        for source in ("hf://user/model", address):
            loaded = getattr(ez, name).from_preset(source)
            for a, b in zip(task.get_weights(), loaded.get_weights(), strict=True):
                np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(
                np.concatenate([np.ravel(o) for o in np.atleast_1d(task(inputs))]),
                np.concatenate([np.ravel(o) for o in np.atleast_1d(loaded(inputs))]),
            )
            tokens = [model.preprocessor.tokenizer.get_vocabulary() for model in (task, loaded)]
            assert tokens[0] == tokens[1]

    @pytest.mark.slow
    def test_classifies_texts_alike(self, hub, classifier):
        loaded = ez.SequenceClassifier.from_preset(classifier.push_to_hub("user/model"))
        assert loaded.classify(TEXTS) == classifier.classify(TEXTS)

    @pytest.mark.slow
    def test_is_one_commit_of_a_new_repository(self, hub, classifier):
        classifier.push_to_hub("hf://user/model", private=True, commit_message="First")
        assert hub.messages == ["First"] and hub.visibility == {"user/model": "private"}
        files = set(hub.files("user/model"))
        assert files == {
            ".gitattributes", "README.md", "config.json", "encoder_zoo.json", "model.safetensors",
            "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
        }  # fmt: skip
        assert len(hub.blobs) == 1  # the weights

    @pytest.mark.slow
    def test_replaces_an_earlier_preset_and_keeps_other_files(self, hub, classifier):
        classifier.push_to_hub("user/model", shard_bytes=4000)
        folder = hub.folders["user/model"]
        (folder / "onnx").mkdir()
        (folder / "onnx" / "model.safetensors").write_bytes(b"mine")
        (folder / "pytorch_model.bin").write_bytes(b"of the model before")
        (folder / "notes.md").write_text("mine")
        classifier.push_to_hub("user/model", dtype="bfloat16")
        names = set(hub.files("user/model"))
        assert {"onnx/model.safetensors", "notes.md", "model.safetensors"} <= names
        assert not [name for name in names if name.startswith(("model-", "pytorch_model"))]
        assert "model.safetensors.index.json" not in names
        manifest = json.loads((folder / "encoder_zoo.json").read_text())
        assert set(manifest["files"]) < names
        assert ez.SequenceClassifier.from_preset("hf://user/model").labels == classifier.labels

    @pytest.mark.slow
    def test_is_not_committed_twice(self, hub, classifier):
        first = classifier.push_to_hub("user/model")
        assert classifier.push_to_hub("user/model") == first
        assert len(hub.messages) == 1

    @pytest.mark.slow
    def test_may_be_a_backbone_with_its_tokenizer(self, hub, classifier):
        tokenizer = classifier.preprocessor.tokenizer
        address = classifier.backbone.push_to_hub("user/encoder", tokenizer)
        loaded = ez.Backbone.from_preset(address)
        for a, b in zip(classifier.backbone.get_weights(), loaded.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        assert ez.Tokenizer.from_preset("hf://user/encoder").get_vocabulary() == (
            tokenizer.get_vocabulary()
        )

    @pytest.mark.matrix
    @pytest.mark.slow
    @pytest.mark.eager
    def test_may_be_in_the_format_of_keras_hub(self, hub, tiny):
        classifier = tiny.task(ez.RobertaBackbone.family, "SequenceClassifier")
        address = classifier.push_to_hub("user/model", format="keras_hub")
        assert "model.weights.h5" in hub.files("user/model")
        loaded = ez.SequenceClassifier.from_preset(address)
        assert [answer["label"] for answer in loaded.classify(TEXTS)] == [
            answer["label"] for answer in classifier.classify(TEXTS)
        ]


class TestTheCard:
    @pytest.mark.slow
    def test_names_the_repository(self, hub, classifier):
        classifier.push_to_hub("user/model")
        card = (hub.folders["user/model"] / "README.md").read_text()
        assert "# model\n" in card
        assert 'ez.SequenceClassifier.from_preset("hf://user/model")\n' in card
        assert 'AutoModelForSequenceClassification.from_pretrained("user/model")' in card

    @pytest.mark.slow
    def test_of_a_user_is_kept(self, hub, classifier):
        classifier.push_to_hub("user/model")
        card = hub.folders["user/model"] / "README.md"
        own = b"---\nlibrary_name: keras\ntags: [mine]\nlicense: mit\n---\n\n# My own\r\n"
        card.write_bytes(own)
        classifier.push_to_hub("user/model", dtype="float16")
        assert card.read_bytes() == own
        assert len(hub.messages) == 2

    @pytest.mark.slow
    def test_of_the_repository_tells_what_a_model_began_from(self, hub, classifier, tmp_path):
        card = "---\nlibrary_name: keras\ntags: [a]\nlicense: mit\nlanguage: de\n---\n"
        classifier.push_to_hub("user/model")
        (hub.folders["user/model"] / "README.md").write_text(card)
        tuned = ez.SequenceClassifier.from_preset("hf://user/model")
        tuned.save_to_preset(tmp_path / "tuned")
        written = (tmp_path / "tuned" / "README.md").read_text()
        assert "base_model: user/model\n" in written
        assert "license: mit\nlanguage:\n- de\n" in written


class TestFailures:
    @pytest.mark.slow
    def test_without_a_token(self, hub, classifier, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "hf_other")
        with pytest.raises(ValueError, match=r"^hf://user/model: .*\(401\)"):
            classifier.push_to_hub("user/model")
        classifier.push_to_hub("user/model", token=TOKEN)

    @pytest.mark.slow
    def test_where_the_token_may_not_write(self, hub, classifier):
        hub.refuse["/api/repos/create"] = 403
        with pytest.raises(ValueError, match=r"^hf://org/model: .*\(403\)"):
            classifier.push_to_hub("org/model")

    @pytest.mark.slow
    def test_of_an_upload_name_their_cause(self, hub, classifier, monkeypatch):
        monkeypatch.setattr(hub, "_store", lambda oid, body: (403, {}))
        with pytest.raises(ValueError, match=r"\(403\)"):
            classifier.push_to_hub("user/model")

    @pytest.mark.slow
    def test_of_a_server_that_is_not_there(self, hub, classifier):
        hub.stop()
        with pytest.raises(ValueError, match="^hf://user/model: .*not be uploaded"):
            classifier.push_to_hub("user/model")

    @pytest.mark.slow
    def test_of_a_commit_leave_the_repository_as_it_was(self, hub, classifier):
        classifier.push_to_hub("user/model")
        before = {name: path.read_bytes() for name, path in hub.files("user/model").items()}
        hub.refuse["/api/models/user/model/commit/main"] = 500
        with pytest.raises(ValueError, match="not be uploaded.* 500"):
            classifier.push_to_hub("user/model", dtype="float16")
        hub.refuse.clear()
        assert before == {n: path.read_bytes() for n, path in hub.files("user/model").items()}

    @pytest.mark.slow
    def test_of_saving_come_before_a_repository_is_made(self, hub, classifier):
        classifier.backbone.blocks[0].output_dense.quantize("int8")
        with pytest.raises(ValueError, match="quantized"):
            classifier.push_to_hub("user/model")
        assert hub.folders == {}

    @pytest.mark.slow(except_for=r"^\.\./b$")
    @pytest.mark.parametrize("wrong", ["model", "", "a/b/c", "hf://model", "../b", None, 3])
    def test_of_names_that_are_none(self, classifier, wrong):
        with pytest.raises(ValueError, match="^repository is.*'user/name'"):
            classifier.push_to_hub(wrong)

    @pytest.mark.slow
    def test_leave_nothing_on_the_disk(self, hub, classifier, tmp_path, monkeypatch):
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        hub.refuse["/api/repos/create"] = 403
        before = set(os.listdir(tmp_path))
        with pytest.raises(ValueError):
            classifier.push_to_hub("user/model")
        assert set(os.listdir(tmp_path)) == before


@pytest.mark.slow
def test_a_large_file_is_uploaded_once(hub, classifier, tmp_path):
    classifier.push_to_hub("user/model")
    hub.log.clear()
    classifier.push_to_hub("user/copy")
    assert not [path for method, path, _ in hub.log if method == "PUT"]


def test_files_that_are_replaced_are_those_of_presets():
    from encoder_zoo.presets.pushing import _is_replaced

    names = ["config.json", "model-00001-of-00002.safetensors", "1_Pooling/config.json"]
    assert all(map(_is_replaced, names))
    assert not any(map(_is_replaced, ["README.md", "onnx/model.onnx", "x/config.json"]))
