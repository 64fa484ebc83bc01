"""Keys of the files beside config.json that change numbers are honoured, or refused by name."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from paths import GOLDEN
from safetensors.numpy import save_file

import encoder_zoo as ez

WORDS = [chr(ord("a") + i) for i in range(20)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = " ".join(WORDS)
CLS, SEP, FIRST = 2, 3, 5  # FIRST is the id of "a"
LONGEST = 8
SIDES = {"right": range(FIRST, FIRST + 6), "left": range(FIRST + 14, FIRST + 20)}


@pytest.fixture(params=["right", "left"])
def side(request):
    return request.param


@pytest.fixture
def tokenizer(side):
    return ez.BertTokenizer([*SPECIAL, *WORDS], truncation_side=side)


@pytest.fixture
def backbone():
    return ez.BertBackbone(25, 1, 2, 8, 16, max_sequence_length=LONGEST)


@pytest.fixture
def folder(tokenizer, backbone, tmp_path):
    """A saved classifier."""
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
    ez.SequenceClassifier(backbone, preprocessor, num_classes=2).save_to_preset(tmp_path / "saved")
    return tmp_path / "saved"


def rewrite(folder, file, **changes):
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))
    (folder / "encoder_zoo.json").unlink(missing_ok=True)  # whose sums are of the file before


def ids_of(x) -> list[int]:
    return np.asarray(x["token_ids"])[0].tolist()


class TestTruncationSide:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "kind",
        [
            ez.SequenceClassifierPreprocessor,
            ez.MaskedLMPreprocessor,
            ez.TextEmbedderPreprocessor,
            ez.SparseEncoderPreprocessor,
        ],
    )
    def test_of_single_texts(self, tokenizer, side, kind):
        examples = kind(tokenizer, sequence_length=LONGEST).encode([TEXT])
        assert examples["token_ids"].to_list() == [[CLS, *SIDES[side], SEP]]

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", [ez.SequenceClassifierPreprocessor, ez.RerankerPreprocessor])
    def test_of_pairs(self, tokenizer, side, kind):
        examples = kind(tokenizer, sequence_length=LONGEST).encode((["a b"], [TEXT]))
        kept = list(SIDES[side])[:3] if side == "right" else list(SIDES[side])[-3:]
        assert examples["token_ids"].to_list() == [[CLS, 5, 6, SEP, *kept, SEP]]

    @pytest.mark.slow
    def test_of_choices(self, tokenizer, side):
        preprocessor = ez.MultipleChoicePreprocessor(tokenizer, sequence_length=LONGEST)
        examples = preprocessor.encode((["a b"], [[TEXT, "c"]]))
        kept = list(SIDES[side])[:3] if side == "right" else list(SIDES[side])[-3:]
        assert examples["token_ids"].to_list() == [[CLS, 5, 6, SEP, *kept, SEP]]

    @pytest.mark.slow
    @pytest.mark.parametrize("role", ["query", "document"])
    def test_markers_of_late_interaction_stay(self, side, role):
        tokenizer = ez.BertTokenizer([*SPECIAL, *WORDS, "[Q]", "[D]"], truncation_side=side)
        preprocessor = ez.LateInteractionPreprocessor(
            tokenizer,
            query_length=LONGEST,
            document_length=LONGEST,
            query_marker="[Q]",
            document_marker="[D]",
        )
        kept = list(SIDES[side])[:5] if side == "right" else list(SIDES[side])[-5:]
        marker = {"query": 25, "document": 26}[role]
        found = preprocessor.encode_texts(tf.constant([TEXT]), role)["token_ids"].to_list()
        assert found == [[CLS, marker, *kept, SEP]]

    @pytest.mark.slow
    def test_of_the_shorter_text_of_windows(self, tokenizer, side):
        preprocessor = ez.SequenceClassifierPreprocessor(tokenizer, window_length=LONGEST)
        rows = preprocessor.encode_windows((["a b c d"], [TEXT]))["token_ids"].to_list()
        shorter = [5, 6] if side == "right" else [7, 8]
        assert {tuple(row[:4]) for row in rows} == {(CLS, *shorter, SEP)}

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_in_a_graph(self, tokenizer, side):
        preprocessor = ez.SequenceClassifierPreprocessor(tokenizer, sequence_length=LONGEST)
        found = tf.function(lambda x: preprocessor(x)["token_ids"])(tf.constant([TEXT]))
        assert found.numpy().tolist() == [[CLS, *SIDES[side], SEP]]

    @pytest.mark.slow
    def test_presets_keep_it(self, folder, side):
        """REPORTS: the start was read where transformers' pipeline reads the end."""
        config = json.loads((folder / "tokenizer_config.json").read_text())
        assert config.get("truncation_side", "right") == side
        opened = ez.SequenceClassifier.from_preset(folder)
        assert ids_of(opened.preprocessor([TEXT])) == [CLS, *SIDES[side], SEP]

    @pytest.mark.slow(except_for="^left")
    def test_where_tokenizer_json_names_it(self, folder, side):
        rewrite(folder, "tokenizer_config.json", truncation_side=None)
        block = {"direction": "Left", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        rewrite(folder, "tokenizer.json", truncation=block)
        opened = ez.SequenceClassifier.from_preset(folder)
        assert ids_of(opened.preprocessor([TEXT])) == [CLS, *SIDES["left"], SEP]

    @pytest.mark.slow
    def test_of_masks(self, tokenizer, backbone, side):
        task = ez.MaskedLM(backbone, ez.MaskedLMPreprocessor(tokenizer))
        cut = {"right": TEXT + " [MASK]", "left": "[MASK] " + TEXT}[side]
        read = {"right": "a [MASK] " + TEXT, "left": TEXT + " [MASK] a"}[side]
        where = {"right": "after its first 6", "left": "before its last 6"}[side]
        with pytest.raises(ValueError, match=rf"texts\[0\] contains \[MASK\] {where} tokens"):
            task.fill_mask(cut)
        alone = {"right": "a [MASK] a b c d", "left": "q r s t [MASK] a"}[side]
        long, short = task.fill_mask(read, top_k=1)[0], task.fill_mask(alone, top_k=1)[0]
        assert long["token"] == short["token"]
        np.testing.assert_allclose(long["score"], short["score"], atol=1e-6)

    @pytest.mark.slow
    def test_of_replaced_tokens(self, tokenizer, backbone, side):
        backbone = ez.ElectraBackbone(25, 1, 2, 8, 16, max_sequence_length=LONGEST)
        task = ez.ReplacedTokenDetection(backbone, ez.ReplacedTokenDetectionPreprocessor(tokenizer))
        [found] = task.detect([TEXT])
        words = WORDS[:6] if side == "right" else WORDS[-6:]
        assert [token["token"] for token in found] == words

    @pytest.mark.slow
    def test_of_explanations(self, folder, side):
        task = ez.SequenceClassifier.from_preset(folder)
        [explained] = task.explain([TEXT], method="gradient_x_input")
        words = WORDS[:6] if side == "right" else WORDS[-6:]
        assert [w["text"] for w in explained["words"] if w["attribution"]] == words

    def test_a_side_that_is_none(self, folder):
        rewrite(folder, "tokenizer_config.json", truncation_side="middle")
        with pytest.raises(ValueError, match="truncation_side is 'middle'"):
            ez.SequenceClassifier.from_preset(folder)


class TestLengths:
    @pytest.fixture
    def side(self):
        return "right"

    @pytest.mark.slow(except_for="^max_len")
    @pytest.mark.parametrize("key", ["model_max_length", "max_len"])
    def test_a_length_below_the_positions_counts(self, folder, key, tmp_path):
        rewrite(folder, "tokenizer_config.json", **{"model_max_length": None, key: 5})
        opened = ez.SequenceClassifier.from_preset(folder)
        assert ids_of(opened.preprocessor([TEXT])) == [CLS, 5, 6, 7, SEP]
        opened.save_to_preset(tmp_path / "again")
        again = ez.SequenceClassifier.from_preset(tmp_path / "again")
        assert again.preprocessor.max_sequence_length == 5

    def test_arguments_come_first(self, folder):
        rewrite(folder, "tokenizer_config.json", model_max_length=5)
        opened = ez.SequenceClassifier.from_preset(folder, sequence_length=7)
        assert ids_of(opened.preprocessor([TEXT])) == [CLS, 5, 6, 7, 8, 9, SEP]
        windows = ez.SequenceClassifier.from_preset(folder, window_length=6)
        assert windows.preprocessor.max_sequence_length == 6

    @pytest.mark.parametrize("length", [100, int(1e30), None])
    def test_a_length_above_the_positions(self, folder, length):
        rewrite(folder, "tokenizer_config.json", model_max_length=length)
        opened = ez.SequenceClassifier.from_preset(folder)
        assert opened.preprocessor.max_sequence_length == LONGEST

    @pytest.mark.slow
    def test_the_length_of_the_truncation_block_is_of_no_call(self, folder):
        block = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        rewrite(folder, "tokenizer.json", truncation=block)
        opened = ez.SequenceClassifier.from_preset(folder)
        assert ids_of(opened.preprocessor([TEXT])) == [CLS, *SIDES["right"], SEP]

    @pytest.mark.slow
    def test_padding_on_the_left_gives_the_numbers_without_padding(self, folder, tmp_path):
        rewrite(folder, "tokenizer_config.json", padding_side="left")
        opened = ez.SequenceClassifier.from_preset(folder)
        together = opened.predict([TEXT, "a"], verbose=0)
        alone = [opened.predict([text], verbose=0)[0] for text in (TEXT, "a")]
        np.testing.assert_allclose(together, alone, atol=1e-5)
        opened.save_to_preset(tmp_path / "again")
        config = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
        assert config["padding_side"] == "left"

    @pytest.mark.slow
    def test_questions_behind_contexts_where_padding_is_left(self):
        tokenizer = ez.BertTokenizer([*SPECIAL, *WORDS], padding_side="left")
        preprocessor = ez.SpanQAPreprocessor(tokenizer)
        assert ids_of(preprocessor((["a"], ["b c"]))) == [CLS, 6, 7, SEP, 5, SEP]


class TestSentenceTransformers:
    @pytest.fixture
    def embedder_folder(self, tmp_path):
        tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *WORDS, "A"]
        ids = {token: i for i, token in enumerate(tokens)}
        tokenizer = ez.RobertaTokenizer(ids, merges=[])
        backbone = ez.RobertaBackbone(26, 1, 2, 8, 16, max_sequence_length=LONGEST)
        task = ez.TextEmbedder(backbone, ez.TextEmbedderPreprocessor(tokenizer))
        task.save_to_preset(tmp_path / "embedder")
        return tmp_path / "embedder"

    def test_lower_casing_that_the_tokenizer_does_not_do(self, embedder_folder):
        """REPORTS: a RoBERTa folder was read without lower-casing, cosine 0.80."""
        rewrite(embedder_folder, "sentence_bert_config.json", do_lower_case=True)
        with pytest.raises(ValueError, match="do_lower_case.*texts"):
            ez.TextEmbedder.from_preset(embedder_folder)
        rewrite(embedder_folder, "sentence_bert_config.json", do_lower_case=False)  # as advised
        ez.TextEmbedder.from_preset(embedder_folder)

    @pytest.mark.slow(except_for=r"^tokenizer_name_or_path-another$")
    @pytest.mark.parametrize(
        "field, value",
        [
            ("query_length", 4),
            ("document_length", 4),
            ("query_expansion", {"strategy": "min", "length": 4}),
            ("processing_kwargs", {"text": {"max_length": 4}}),
            ("module_output_name", "sentence_embedding"),
            ("tokenizer_args", {"truncation_side": "left"}),
            ("config_args", {"hidden_act": "relu"}),
            ("model_args", {"ignore_mismatched_sizes": True}),
            ("tokenizer_name_or_path", "another"),
            ("whitening", True),
        ],
    )
    def test_settings_that_are_not_implemented(self, embedder_folder, field, value):
        rewrite(embedder_folder, "sentence_bert_config.json", **{field: value})
        with pytest.raises(ValueError, match=f"sentence_bert_config.json: {field[:6]}"):
            ez.TextEmbedder.from_preset(embedder_folder)

    def test_unknown_settings_of_the_model(self, embedder_folder):
        rewrite(embedder_folder, "config_sentence_transformers.json", whitening=[1.0])
        with pytest.raises(ValueError, match="'whitening'"):
            ez.TextEmbedder.from_preset(embedder_folder)


class TestAdapters:
    @pytest.fixture(scope="class")
    @classmethod
    def model(cls):
        tokenizer = ez.BertTokenizer([*SPECIAL, *WORDS])
        backbone = ez.BertBackbone(25, 1, 2, 8, 16, max_sequence_length=LONGEST)
        preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
        return ez.SequenceClassifier(backbone, preprocessor, num_classes=2)

    @pytest.fixture
    def adapters(self, model, tmp_path):
        layer = "bert.encoder.layer.0.attention.self.query"
        arrays = {
            f"base_model.model.{layer}.lora_A.weight": np.ones((2, 8), "float32"),
            f"base_model.model.{layer}.lora_B.weight": np.ones((8, 2), "float32"),
        }
        save_file(arrays, tmp_path / "adapter_model.safetensors")
        rewrite(tmp_path, "adapter_config.json", peft_type="LORA", r=2)
        return tmp_path

    @pytest.mark.parametrize(
        "name, value",
        [
            ("init_lora_weights", "pissa"),
            ("init_lora_weights", "pissa_niter_4"),
            ("init_lora_weights", "olora"),
            ("init_lora_weights", "corda"),
            ("init_lora_weights", "loftq"),
            ("use_qalora", True),
            ("layer_replication", [[0, 1], [0, 2]]),
            ("use_dora", True),
            ("lora_bias", True),
            ("bias", "all"),
            ("bias", "lora_only"),
            ("fan_in_fan_out", True),
            ("trainable_token_indices", [1, 2]),
            ("target_parameters", ["weight"]),
            ("arrow_config", {"top_k": 3}),
            ("megatron_config", {"a": 1}),
            ("alora_invocation_tokens", [1]),
            ("peft_type", "LOHA"),
            ("an_option_of_the_next_version", True),
        ],
    )
    def test_others_than_plain_lora(self, model, adapters, name, value):
        """REPORTS: "pissa", use_qalora, layer_replication were read as plain LoRA."""
        rewrite(adapters, "adapter_config.json", **{name: value})
        with pytest.raises(ValueError, match=rf"adapter_config\.json.*{name}"):
            model.load_adapters(adapters)

    def test_an_alpha_that_is_absent_is_pefts(self, model, adapters):
        model.load_adapters(adapters)
        assert model.backbone.blocks[0].attention.query_dense.lora_alpha == 8


class TestColbertOfItsAuthors:
    """Fields of artifact.metadata: read, refused by name, or recorded as irrelevant."""

    @pytest.fixture
    def stanford(self, tmp_path):
        return shutil.copytree(GOLDEN / "late_interaction" / "stanford", tmp_path / "stanford")

    @pytest.mark.parametrize(
        "name, value",
        [
            ("interaction", "flipr"),
            ("similarity", "l2"),
            ("relu", True),
            ("dim", 7),
            ("query_maxlen", 0),
            ("whitening", [1.0]),
        ],
    )
    def test_fields_that_are_refused(self, stanford, name, value):
        rewrite(stanford, "artifact.metadata", **{name: value})
        with pytest.raises(ValueError, match=f"artifact.metadata.*{name}"):
            ez.LateInteraction.from_preset(stanford)

    @pytest.mark.slow
    def test_fields_of_training_and_of_the_index(self, stanford):
        before = ez.LateInteraction.from_preset(stanford).embed(["a cat"], "query")
        rewrite(stanford, "artifact.metadata", bsize=7, ncells=3, nbits=4, lr=1.0, meta={"a": 1})
        after = ez.LateInteraction.from_preset(stanford).embed(["a cat"], "query")
        np.testing.assert_array_equal(before[0], after[0])


class TestTokenizers:
    """Keys of tokenizer_config.json; the tables of all classes are in tests/peers."""

    TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "▁a", "▁b", "▁", "a", "b", "<mask>")
    SCORES = (None, None, None, None, -1.0, -1.5, -2.0, -3.0, -3.0, None)

    @pytest.fixture
    def saved(self, tmp_path):
        """Return a function that saves a tokenizer with changed keys, and opens it."""

        def open_again(tokenizer, **changes):
            folder = tmp_path / "tokenizer"
            folder.mkdir(exist_ok=True)
            for name, content in tokenizer.to_files().items():
                content = content if isinstance(content, bytes) else content.encode()
                (folder / name).write_bytes(content)
            (folder / "special_tokens_map.json").unlink()
            rewrite(folder, "tokenizer_config.json", **changes)
            return ez.Tokenizer.from_preset(folder)

        return open_again

    @pytest.fixture
    def xlm(self):
        return ez.XLMRobertaTokenizer(list(self.TOKENS), list(self.SCORES))

    @pytest.mark.parametrize(
        "key, value, message",
        [
            ("add_prefix_space", False, "add_prefix_space is False"),
            ("bos_token", "<mask>", "bos_token is '<mask>'"),
            ("mask_token", "<e>", "mask_token.*'<e>'"),
            ("mask_token", "▁b", "mask_token is '▁b'"),
            ("mask_token", "<pad>", "mask_token.*'<pad>'.*'<pad>'"),
        ],
    )
    def test_keys_that_are_refused(self, saved, xlm, key, value, message):
        with pytest.raises(ValueError, match=message):
            saved(xlm, **{key: value})

    @pytest.mark.slow
    def test_a_further_special_token_stays_a_piece(self, saved, xlm):
        found = saved(xlm, additional_special_tokens=["▁b"])
        assert found.tokenize(["a b"]).to_list() == [[4, 5]]

    @pytest.mark.parametrize("backend, segments", [(None, True), ("tokenizers", False)])
    def test_segments_are_those_of_the_version_that_wrote_the_files(self, saved, backend, segments):
        tokens = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁a"]
        albert = ez.AlbertTokenizer(tokens, [None] * 5 + [-1.0])
        assert saved(albert).uses_segments  # written by name
        names = {"model_input_names": None, "backend": backend}
        assert saved(albert, **names).uses_segments is segments

    @pytest.mark.parametrize("name", ["do_lower_case", "keep_accents"])
    def test_albert_keys_against_tokenizer_json(self, saved, name):
        tokens = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁a"]
        albert = ez.AlbertTokenizer(tokens, [None] * 5 + [-1.0])
        other = json.loads(albert.to_files()["tokenizer_config.json"])[name] is False
        with pytest.raises(ValueError, match=f"{name} is {other}.*normalizer"):
            saved(albert, **{name: other})
