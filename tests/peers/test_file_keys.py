"""Every key of the files beside config.json: equal numbers, refused by name, or irrelevant.

The keys are read from the installed libraries: one of a next version fails until it is decided.
"""

import copy
import dataclasses
import importlib
import inspect
import json
import re
import shutil
import typing
from collections import Counter

import keras
import numpy as np
import pytest
from paths import CHECKPOINTS

import encoder_zoo as ez
from encoder_zoo.encoders import find_family
from encoder_zoo.presets import adapters
from encoder_zoo.presets.formats import sentence_transformers as theirs

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),
]
EQUAL, REFUSED = "equal", "refused"


def read_json(path):
    return json.loads(path.read_text()) if path.exists() else {}


def rewrite(folder, file, **changes):
    (folder / file).write_text(json.dumps({**read_json(folder / file), **changes}))
    (folder / "encoder_zoo.json").unlink(missing_ok=True)


# -- peft ------------------------------------------------------------------------------------------

# {field of LoraConfig: values away from the default}. Those in HAND are written into the file by
# hand: peft makes such adapters of other models alone, or of data.
PEFT = {
    "task_type": ["SEQ_CLS"],
    "peft_type": ["LOHA", "IA3"],
    "auto_mapping": [{"base_model_class": "X", "parent_library": "x"}],
    "peft_version": ["0.1.0"],
    "base_model_name_or_path": ["another"],
    "revision": ["main"],
    "inference_mode": [False],
    "r": [3],
    "target_modules": [["query", "key"], r".*layer\.\d\..*dense"],
    "exclude_modules": [["layer.0.attention.self.query"]],
    "lora_alpha": [16],
    "lora_dropout": [0.5],
    "fan_in_fan_out": [True],
    "bias": ["all", "lora_only"],
    "use_rslora": [True],
    "modules_to_save": [["classifier"], ["classifier", "pooler"], ["embeddings"]],
    "init_lora_weights": [
        *(False, "gaussian", "eva", "olora", "pissa", "pissa_niter_2", "corda", "loftq"),
        *("orthogonal", "mica", "lora_ga"),
    ],
    "layers_to_transform": [[1]],
    "layers_pattern": ["layer"],
    "rank_pattern": [{"query": 3}],
    "alpha_pattern": [{"query": 3}],
    "megatron_config": [{"a": 1}],
    "megatron_core": ["another.core"],
    "trainable_token_indices": [[1, 2]],
    "loftq_config": [{"loftq_bits": 4}],
    "eva_config": [{"rho": 3.0}],
    "corda_config": [{"corda_method": "kpm"}],
    "lora_ga_config": [{"direction": "ArB2r"}],
    "use_dora": [True],
    "velora_config": [{"num_groups": 4}],
    "alora_invocation_tokens": [[1]],
    "use_qalora": [True],
    "qalora_group_size": [4],
    "monteclora_config": [{"a": 1}],
    "layer_replication": [[[0, 1], [0, 2]]],
    "runtime_config": [{"ephemeral_gpu_offload": True}],
    "lora_bias": [True],
    "target_parameters": [["classifier.weight"]],
    "use_bdlora": [{"a": 1}],
    "arrow_config": [{"top_k": 3}],
    "kasa_config": [{"a": 1}],
    "ensure_weight_tying": [True],
}
HAND = {"peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "megatron_config"}
HAND |= {"loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config"}
HAND |= {"monteclora_config", "layer_replication", "runtime_config", "use_bdlora", "arrow_config"}
HAND |= {
    "fan_in_fan_out",
    "target_parameters",
    "kasa_config",
    "alora_invocation_tokens",
    "use_qalora",
    "megatron_core",
    "revision",
}
PEFT_REFUSED = {
    *("peft_type", "fan_in_fan_out", "bias", "megatron_config", "trainable_token_indices"),
    *("use_dora", "velora_config", "lora_bias"),
    *("alora_invocation_tokens", "use_qalora", "monteclora_config", "layer_replication"),
    *("target_parameters", "use_bdlora", "arrow_config", "kasa_config"),
}
CHANGE_THE_BASE = ("olora", "pissa", "pissa_niter_2", "corda", "loftq", "mica", "lora_ga")
BASE = CHECKPOINTS / "Bert_ForSequenceClassification"


class TestPeft:
    def test_every_field_is_decided(self):
        peft = pytest.importorskip("peft")
        fields = {field.name for field in dataclasses.fields(peft.LoraConfig)}
        assert fields == set(PEFT)
        assert PEFT_REFUSED | set(adapters.ACCEPTED_PEFT_FIELDS) == fields
        assert not PEFT_REFUSED & set(adapters.ACCEPTED_PEFT_FIELDS)
        hints = typing.get_type_hints(peft.LoraConfig)["init_lora_weights"]
        named = {v for part in typing.get_args(hints) for v in typing.get_args(part)}
        named -= {"pissa_niter_[number of iters]"}
        assert named <= {*CHANGE_THE_BASE, *adapters.INITIALIZERS}

    @pytest.mark.parametrize(
        "field, value", [(field, value) for field, values in PEFT.items() for value in values]
    )
    def test_field(self, field, value, tmp_path, golden):
        checkpoint = golden("Bert_ForSequenceClassification")
        written = self._write(field, value, tmp_path)
        ours = ez.SequenceClassifier.from_preset(checkpoint.folder)
        if field in PEFT_REFUSED or value in (*CHANGE_THE_BASE, ["embeddings"]):
            named = "embed" if value == ["embeddings"] else field
            with pytest.raises(ValueError, match=f"(?s){named}"):
                ours.load_adapters(tmp_path)
            return
        ours.load_adapters(tmp_path)
        found = keras.ops.convert_to_numpy(ours(checkpoint.inputs))
        expected = self._logits(checkpoint, tmp_path)
        assert written or field in HAND or value in adapters.INITIALIZERS
        np.testing.assert_allclose(found, expected, atol=1e-4)

    def _write(self, field, value, folder) -> bool:
        """Write adapters by peft, with random weights; return whether peft took the field."""
        import peft
        import torch
        import transformers

        options = {"r": 2, "lora_alpha": 6, "target_modules": ["query", "value"]}
        options |= {"task_type": "SEQ_CLS"}
        if field == "task_type":
            options.pop(field)
        given = (
            {} if field in HAND or value in ("eva", "corda", "loftq", "lora_ga") else {field: value}
        )
        if field in ("layers_pattern",):
            given["layers_to_transform"] = [1]
        base = transformers.AutoModelForSequenceClassification.from_pretrained(BASE)
        options |= copy.deepcopy(given)  # which peft changes
        model = peft.get_peft_model(base, peft.LoraConfig(**options))
        torch.manual_seed(0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_" in name or "modules_to_save" in name:
                    weight.copy_(torch.randn(weight.shape) * 0.3)
        model.save_pretrained(folder)
        if not given:
            rewrite(folder, adapters.ADAPTER_CONFIG, **{field: value})
        return bool(given)

    def _logits(self, checkpoint, folder):
        import peft
        import torch
        import transformers

        config = read_json(folder / adapters.ADAPTER_CONFIG)
        readable = {"auto_mapping", "runtime_config", "revision", "lora_ga_config"}
        rest = {k: v for k, v in config.items() if k not in readable}
        if rest.get("init_lora_weights") == "eva":
            rest["eva_config"] = None
        (folder / adapters.ADAPTER_CONFIG).write_text(json.dumps(rest))
        base = transformers.AutoModelForSequenceClassification.from_pretrained(BASE)
        model = peft.PeftModel.from_pretrained(base, folder).eval()
        names = {"token_ids": "input_ids", "segment_ids": "token_type_ids"}
        names["padding_mask"] = "attention_mask"
        inputs = {
            names[n]: torch.tensor(np.asarray(v)).long() for n, v in checkpoint.inputs.items()
        }
        with torch.no_grad():
            return model(**inputs).logits.numpy()


# -- tokenizer_config.json -------------------------------------------------------------------------

TEXTS = ["the cat sat", "The CAT, sat on the mat. It was good!", "Café naïve", "the  dog   ran"]
TEXTS += ["漢字 cat", "good bad film " * 12, "`` '' don't A-B (x)", ""]
# Folders with the tokenizer of each class of transformers that families have; see `TOKENIZER_AS`.
TOKENIZER_OF = ["Bert", "MPNet", "Roberta", "XLMRoberta", "Camembert", "Albert", "XLNet"]
TOKENIZER_OF += ["DebertaV2", "ModernBert", "EuroBert", "Gemma3Text"]
# {folder: further names of a class with the same files}
TOKENIZER_AS = {
    "Bert": ["DistilBertTokenizer", "ElectraTokenizer", "BertTokenizerFast"],
    "Roberta": ["BartTokenizer", "RobertaTokenizerFast"],
}
# A word of the vocabulary that no text has, one that a text has, padding, and one that is new.
WORD, PIECE, PAD, NEW = "<word>", "<piece>", "<padding>", "<e>"
_TOKEN = {"__type": "AddedToken", "single_word": False, "rstrip": False, "normalized": False}
ROLES = ("bos", "eos", "cls", "sep", "unk", "mask", "pad")
# {key of transformers' tokenizers: values away from the default}
TOKENIZER_KEYS = {
    "truncation_side": ["left"],
    "padding_side": ["left", "right"],
    "model_max_length": [7],
    "max_len": [7],
    "model_input_names": [
        ["input_ids", "attention_mask"],
        ["input_ids", "token_type_ids", "attention_mask"],
    ],
    "do_lower_case": [True, False],
    "strip_accents": [True, False],
    "tokenize_chinese_chars": [False],
    "keep_accents": [True, False],
    "remove_space": [False],
    "split_by_punct": [True],
    "additional_special_tokens": [[NEW], [WORD], [PIECE]],
    "extra_special_tokens": [[NEW], [PIECE], {"e_token": NEW}],
    "model_specific_special_tokens": [{"e_token": NEW}],
    "split_special_tokens": [True],
    "unk_id": [1],
    "stride": [3],
    "max_length": [6],
    "truncation_strategy": ["only_first"],
    "pad_to_multiple_of": [8],
    "pad_token_type_id": [1],
    "clean_up_tokenization_spaces": [True],
    "add_prefix_space": [True, False],
    "trim_offsets": [True, False],
    "errors": ["strict"],
    "add_bos_token": [True, False],
    "add_eos_token": [True, False],
    **{f"{role}_token": [WORD, PAD, NEW] for role in ROLES},
}
OF_OBJECTS = "an object or a path of transformers' own, not in the file"
OF_CHATS = "of chats"
# {key: why it does not change ids}
TOKENIZER_IRRELEVANT = {
    **dict.fromkeys(
        ("_json_padding", "_json_truncation", "_spm_precompiled_charsmap", "added_tokens_decoder"),
        "read from tokenizer.json, or its added_tokens",
    ),
    **dict.fromkeys(
        (
            *("backend", "files_loaded", "gguf_file", "merges", "name_or_path", "post_processor"),
            *("tokenizer", "tokenizer_file", "tokenizer_object", "tokenizer_padding", "vocab"),
            *("tokenizer_truncation", "vocab_file", "verbose", "processor_class"),
            *("is_local", "local_files_only", "tokenizer_class"),
        ),
        OF_OBJECTS,
    ),
    **dict.fromkeys(
        ("chat_control_tokens", "chat_template", "response_schema", "response_template"), OF_CHATS
    ),
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": "of decoding",
    "fix_mistral_regex": "of Mistral's files",
}


def keys_of(cls) -> set[str]:
    """Return the names that the constructors of a tokenizer's class and of its bases read."""
    found = set()
    for base in cls.__mro__[:-1]:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters.values()
            variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            found |= {p.name for p in parameters if p.kind not in variable} - {"self"}
            source = inspect.getsource(base.__init__)
            found |= set(re.findall(r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"', source))
    return found


def of_vocabulary(folder, layout):
    """The files of a tokenizer as transformers saves them, or those of a vocabulary alone."""
    kept = {"saved": ("tokenizer.json",), "vocabulary": ("vocab.*", "merges.txt", "*.model")}
    files = [file for pattern in kept[layout] for file in folder.glob(pattern)]
    return [*files, *folder.glob("*config.json")] if files else []


class TestTokenizerConfig:
    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, tmp_path_factory):
        """{kind: (folder as transformers saves it, its tokenizer)}."""
        transformers = pytest.importorskip("transformers")
        found = {}
        for kind in TOKENIZER_OF:
            folder = tmp_path_factory.mktemp("tokenizers") / kind
            shutil.copytree(CHECKPOINTS / f"{kind}_Model", folder)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            tokenizer.save_pretrained(folder)
            found[kind] = folder, tokenizer
        return found

    def test_every_key_is_decided(self, saved):
        known = {*TOKENIZER_KEYS, *TOKENIZER_IRRELEVANT}
        for folder, tokenizer in saved.values():
            assert keys_of(type(tokenizer)) <= known
            assert {*read_json(folder / "tokenizer_config.json")} <= known

    @pytest.mark.parametrize("layout", ["saved", "vocabulary"])
    @pytest.mark.parametrize("kind", TOKENIZER_OF)
    def test_keys(self, saved, tmp_path, kind, layout):
        source, tokenizer = saved[kind]
        files = of_vocabulary(source, layout)
        if not files:
            pytest.skip("no such files")
        texts = "".join(TEXTS).lower()
        taken = set(tokenizer.all_special_tokens)
        absent = (t for t in tokenizer.get_vocab() if t not in taken and t.isascii())
        words = {
            WORD: next(t for t in sorted(absent) if t.lower() not in texts),
            PIECE: tokenizer.tokenize("dog")[0],
            PAD: tokenizer.pad_token,
        }
        classes = [None, *TOKENIZER_AS.get(kind, ())]
        classes += ["PreTrainedTokenizerFast"] if layout == "saved" else []
        counts, wrong = Counter(), []
        cases = [(k, v, c) for c in classes for k, vs in TOKENIZER_KEYS.items() for v in vs]
        for i, (key, value, name) in enumerate(cases):
            for name_of, word in words.items():
                value = json.loads(json.dumps(value).replace(name_of, json.dumps(word)[1:-1]))
            folder = tmp_path / str(i)
            folder.mkdir()
            for file in files:
                shutil.copy(file, folder)
            named = {} if name is None else {"tokenizer_class": name}
            rewrite(folder, "tokenizer_config.json", **named, **{key: value})
            outcome = self._outcome(folder, key)
            counts["tried"] += 1
            counts[outcome if isinstance(outcome, str) else "wrong"] += 1
            wrong += [] if isinstance(outcome, str) else [(name, key, value, *outcome)]
        print(f"\n{kind} {layout} | " + " | ".join(f"{n} {v}" for n, v in sorted(counts.items())))
        assert not wrong, "\n".join(ascii(one) for one in wrong)

    def _outcome(self, folder, key):
        for texts in ((TEXTS,), (TEXTS, TEXTS[::-1])):
            try:
                found = self._ours(folder, texts)
            except (ValueError, FileNotFoundError) as error:
                return REFUSED if key in str(error) else ("not named", str(error))
            try:
                expected = self._theirs(folder, texts)
            except Exception as error:
                return "theirs fails", repr(error)
            if found != expected:
                pairs = zip(found, expected, strict=True)
                return next(pair for pair in pairs if pair[0] != pair[1])
        return EQUAL

    def _theirs(self, folder, texts):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        longest = None if tokenizer.model_max_length < 1000 else 16
        rows = tokenizer(*texts, truncation=True, max_length=longest)
        segments = rows.get("token_type_ids")
        model_type = read_json(folder / "config.json")["model_type"]
        if segments is None or not find_family(model_type).uses_segments:
            segments = [[0] * len(row) for row in rows["input_ids"]]
        return list(zip(rows["input_ids"], segments, strict=True))

    def _ours(self, folder, texts):
        preprocessor = ez.SequenceClassifierPreprocessor.from_preset(folder)
        if preprocessor.tokenizer.model_max_length is None:
            preprocessor.max_sequence_length = 16
        x = {n: np.asarray(v) for n, v in preprocessor(texts if texts[1:] else texts[0]).items()}
        segments = x.get("segment_ids", np.zeros_like(x["token_ids"]))
        counts = x["padding_mask"].sum(axis=1)
        rows = zip(x["token_ids"].tolist(), segments.tolist(), counts, strict=True)
        return [(ids[:n], of_ids[:n]) for ids, of_ids, n in rows]


# -- sentence_bert_config.json and config_sentence_transformers.json -------------------------------


def test_every_key_of_sentence_transformers_transformer_is_decided():
    transformer = pytest.importorskip("sentence_transformers.base.modules.transformer")
    cls = transformer.Transformer
    known = {
        *theirs._READ,
        *theirs.ROLE_FIELDS,
        *theirs.IRRELEVANT_FIELDS,
        *theirs._OLD_NAMES.values(),
    }
    known |= {"processing_kwargs", "tokenizer_name_or_path"}  # refused, as the default tests show
    keys = {p for p in inspect.signature(cls.__init__).parameters if p != "self"}
    assert {*cls.config_keys, *keys} <= known


@pytest.mark.parametrize(
    "module", ["base", "sentence_transformer", "sparse_encoder", "multi_vector_encoder"]
)
def test_every_key_of_sentence_transformers_models_is_decided(module):
    pytest.importorskip("sentence_transformers")
    source = inspect.getsource(importlib.import_module(f"sentence_transformers.{module}.model"))
    keys = set(re.findall(r'model_config(?:\.get\(|\[)"(\w+)"', source))
    # The spelling of ColBERT's authors, by hand in a file of PyLate: unknown, so refused.
    undecided = keys - {*theirs.MODEL_FIELDS, *theirs.IRRELEVANT_MODEL_FIELDS}
    assert undecided <= {"attend_to_mask_tokens"}


# -- modules of sentence-transformers --------------------------------------------------------------

ACTIVATED = "torch.nn.modules.activation."
# {(module, key of its config.json): values}
POOLINGS = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
MODULE_KEYS = {
    ("Pooling", "pooling_mode"): [*POOLINGS, ["max", "cls"], "first"],
    ("Pooling", "include_prompt"): [False],
    ("Pooling", "embedding_dimension"): [7],
    ("Dense", "in_features"): [7],
    ("Dense", "out_features"): [7],
    ("Dense", "bias"): [False],
    ("Dense", "use_residual"): [True],
    ("Dense", "module_input_name"): ["token_embeddings"],
    ("Dense", "module_output_name"): ["token_embeddings"],
    ("Dense", "activation_function"): [
        *(ACTIVATED + name for name in ("Tanh", "GELU", "ReLU", "Sigmoid", "SiLU", "Softplus")),
        "torch.nn.modules.linear.Identity",
    ],
    ("Normalize", "module_input_name"): ["token_embeddings"],
    ("Normalize", "module_output_name"): ["token_embeddings"],
    ("SpladePooling", "pooling_strategy"): ["sum", "max", "mean"],
    ("SpladePooling", "activation_function"): ["log1p_relu", "relu", "gelu"],
    ("SpladePooling", "embedding_dimension"): [9],  # noted; the vocabulary's counts
    ("MultiVectorMask", "skiplist_words"): [[], ["cat", "."]],
    ("MultiVectorMask", "skiplist_tasks"): [["query", "document"], ["document"]],
    ("MultiVectorMask", "keep_only_token_ids"): [[5, 6]],
    **{(name, "an_unknown_field"): [1] for name in ("Pooling", "Dense", "Normalize")},
    **{(name, "an_unknown_field"): [1] for name in ("SpladePooling", "MultiVectorMask")},
}
MODULE_REFUSED = {
    *(
        ("in_features", 7),
        ("out_features", 7),
        ("embedding_dimension", 7),
        ("pooling_mode", "first"),
    ),
    *(("module_input_name", None), ("module_output_name", None), ("keep_only_token_ids", None)),
    *(("skiplist_tasks", "query"), ("pooling_strategy", "mean"), ("activation_function", "gelu")),
    *(("activation_function", ACTIVATED + "Softplus"), ("an_unknown_field", None)),
}


def module_is_refused(key, value):
    first = next(iter(value), None) if isinstance(value, list) else value
    if isinstance(value, list) and key not in ("skiplist_tasks", "keep_only_token_ids"):
        return False
    return bool({(key, None), (key, first)} & MODULE_REFUSED)


class TestModules:
    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, tmp_path_factory):
        """{module: (folder of a model with it, sentence-transformers' class, ours)}."""
        st = pytest.importorskip("sentence_transformers")
        from sentence_transformers.base.modules import Dense, Normalize, Transformer
        from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
        from sentence_transformers.sentence_transformer.modules import Pooling
        from sentence_transformers.sparse_encoder.modules import SpladePooling

        found, encoder = {}, str(CHECKPOINTS / "Bert_Model")
        first = Transformer(encoder, max_seq_length=12)
        width = first.get_embedding_dimension()
        modules = [first, Pooling(width), Dense(width, width), Normalize()]
        prompts = {"query": "the cat: ", "document": "good "}
        model = st.SentenceTransformer(modules=modules, device="cpu", prompts=prompts)
        model.save(str(folder := tmp_path_factory.mktemp("modules") / "embedder"))
        for name in ("Pooling", "Dense", "Normalize"):
            found[name] = folder, st.SentenceTransformer, ez.TextEmbedder
        masked = str(CHECKPOINTS / "Bert_ForMaskedLM")
        first = Transformer(masked, max_seq_length=12, transformer_task="fill-mask")
        model = st.SparseEncoder(modules=[first, SpladePooling("max")], device="cpu")
        model.save(str(folder := tmp_path_factory.mktemp("modules") / "sparse"))
        found["SpladePooling"] = folder, st.SparseEncoder, ez.SparseEncoder
        tokens = {"module_input_name": "token_embeddings"}
        first = Transformer(encoder, document_length=12, query_length=12)
        modules = [first, Dense(width, 5, **tokens), MultiVectorMask(["."]), Normalize(**tokens)]
        model = st.MultiVectorEncoder(modules=modules, device="cpu")
        model.save(str(folder := tmp_path_factory.mktemp("modules") / "late"))
        found["MultiVectorMask"] = folder, st.MultiVectorEncoder, ez.LateInteraction
        return found

    def test_every_key_is_decided(self):
        pytest.importorskip("sentence_transformers")
        import sentence_transformers.base.modules as base
        from sentence_transformers.multi_vector_encoder import modules as late
        from sentence_transformers.sentence_transformer import modules as dense
        from sentence_transformers.sparse_encoder import modules as sparse

        for name in ("Pooling", "Dense", "Normalize", "SpladePooling", "MultiVectorMask"):
            cls = next(getattr(m, name) for m in (base, dense, sparse, late) if hasattr(m, name))
            decided = {key for module, key in MODULE_KEYS if module == name}
            assert {*cls.config_keys} <= decided, name

    @pytest.mark.parametrize("package", ["base", "sentence_transformer", "sparse_encoder"])
    def test_every_other_module_is_refused(self, saved, package, tmp_path):
        library = importlib.import_module(f"sentence_transformers.{package}.modules")
        for name in dir(library):
            cls = getattr(library, name)
            if (
                inspect.isclass(cls)
                and hasattr(cls, "config_keys")
                and name not in theirs.MODULE_KINDS
            ):
                folder = shutil.copytree(saved["Dense"][0], tmp_path / name)
                modules = json.loads((folder / "modules.json").read_text())
                modules[2]["type"] = f"sentence_transformers.models.{name}"
                (folder / "modules.json").write_text(json.dumps(modules))
                with pytest.raises(ValueError, match=rf"modules.json: \[2\]: type is .*{name}"):
                    ez.TextEmbedder.from_preset(folder)

    @pytest.mark.parametrize(
        "module, key, value",
        [(module, key, v) for (module, key), values in MODULE_KEYS.items() for v in values],
    )
    def test_key(self, saved, tmp_path, module, key, value):
        source, library, cls = saved[module]
        folder = shutil.copytree(source, tmp_path / "model")
        modules = json.loads((folder / "modules.json").read_text())
        [path] = [entry["path"] for entry in modules if entry["type"].endswith("." + module)]
        (folder / path).mkdir(exist_ok=True)
        if key == "pooling_mode" and isinstance(value, list):  # wider than what the Dense takes
            modules = [entry for entry in modules if not entry["type"].endswith(".Dense")]
            (folder / "modules.json").write_text(json.dumps(modules))
        if (module, key, value) == ("Dense", "bias", False):
            self._remove(folder / path / "model.safetensors", "linear.bias")
        rewrite(folder / path, "config.json", **{key: value})
        if module_is_refused(key, value):
            with pytest.raises(ValueError, match=key):
                self._ours(folder, cls)
            return
        there = library(str(folder), device="cpu")
        for role in ("query", "document"):
            expected = getattr(there, f"encode_{role}")(TEXTS[:-1])
            found = self._ours(folder, cls)(TEXTS[:-1], role)
            for one, other in zip(found, expected, strict=True):
                other = other.to_dense().numpy() if hasattr(other, "to_dense") else other
                np.testing.assert_allclose(one, other, atol=1e-5)

    def _ours(self, folder, cls):
        task = cls.from_preset(folder)
        if cls is ez.SparseEncoder:
            return lambda texts, role: task.embed(texts, prompt=role).toarray()
        return lambda texts, role: task.embed(texts, prompt=role)

    def _remove(self, path, name):
        from safetensors.numpy import load_file, save_file

        arrays = load_file(path)
        del arrays[name]
        save_file(arrays, path)
