"""Every key of the files beside config.json: equal numbers, refused by name, or irrelevant.

The keys are read from the installed libraries: one of a next version fails until it is decided.
"""

import dataclasses
import importlib
import inspect
import json
import re
import shutil
import typing

import keras
import numpy as np
import pytest
from paths import CHECKPOINTS

import encoder_zoo as ez
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
HAND |= {"kasa_config", "alora_invocation_tokens", "use_qalora", "megatron_core", "revision"}
PEFT_REFUSED = {
    *("peft_type", "fan_in_fan_out", "bias", "use_rslora", "rank_pattern", "alpha_pattern"),
    *("megatron_config", "trainable_token_indices", "use_dora", "velora_config", "lora_bias"),
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
        assert PEFT_REFUSED | set(adapters.IRRELEVANT) == fields
        assert not PEFT_REFUSED & set(adapters.IRRELEVANT)
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
            named = "not of this model.*embed" if value == ["embeddings"] else field
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
        model = peft.get_peft_model(base, peft.LoraConfig(**{**options, **given}))
        torch.manual_seed(0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_" in name or "modules_to_save" in name:
                    weight.copy_(torch.randn(weight.shape) * 0.3)
        model.save_pretrained(folder)
        if not given:
            rewrite(folder, adapters.CONFIG, **{field: value})
        return bool(given)

    def _logits(self, checkpoint, folder):
        import peft
        import torch
        import transformers

        config = read_json(folder / adapters.CONFIG)
        readable = {"auto_mapping", "runtime_config", "revision", "lora_ga_config"}
        rest = {k: v for k, v in config.items() if k not in readable}
        if rest.get("init_lora_weights") == "eva":
            rest["eva_config"] = None
        (folder / adapters.CONFIG).write_text(json.dumps(rest))
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
# {key of transformers' tokenizers: values away from the default}
TOKENIZER_KEYS = {
    "truncation_side": ["left"],
    "padding_side": ["left", "right"],
    "model_max_length": [7],
    "max_len": [7],
    "model_input_names": [["input_ids", "attention_mask"]],
    "do_lower_case": [True, False],
    "strip_accents": [True, False],
    "tokenize_chinese_chars": [False],
    "additional_special_tokens": [["<e>"]],
    "model_specific_special_tokens": [{"e_token": "<e>"}],
    "split_special_tokens": [True],
    "unk_id": [1],
    "stride": [3],
    "max_length": [6],
    "truncation_strategy": ["only_first"],
    "pad_to_multiple_of": [8],
    "pad_token_type_id": [1],
    "clean_up_tokenization_spaces": [True],
    "add_prefix_space": [True],
    "add_bos_token": [True, False],
    "add_eos_token": [True, False],
    **{f"{role}_token": ["dog"] for role in ("bos", "eos", "cls", "sep", "unk", "mask", "pad")},
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


class TestTokenizerConfig:
    def test_every_key_is_decided(self):
        transformers = pytest.importorskip("transformers")
        found = keys_of(transformers.BertTokenizer)
        assert found <= {*TOKENIZER_KEYS, *TOKENIZER_IRRELEVANT}

    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, tmp_path_factory):
        transformers = pytest.importorskip("transformers")
        folder = tmp_path_factory.mktemp("tokenizer") / "Bert"
        shutil.copytree(CHECKPOINTS / "Bert_Model", folder)
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
        return folder

    @pytest.mark.parametrize(
        "key, value", [(key, value) for key, values in TOKENIZER_KEYS.items() for value in values]
    )
    def test_key(self, saved, tmp_path, key, value):
        folder = shutil.copytree(saved, tmp_path / "tokenizer")
        rewrite(folder, "tokenizer_config.json", **{key: value})
        for texts in ((TEXTS,), (TEXTS, TEXTS[::-1])):
            try:
                found = self._ours(folder, texts)
            except ValueError as error:
                assert key in str(error)
            else:
                assert found == self._theirs(folder, texts)

    def _theirs(self, folder, texts):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        longest = None if tokenizer.model_max_length < 1000 else 16
        rows = tokenizer(*texts, truncation=True, max_length=longest)
        segments = rows.get("token_type_ids") or [[0] * len(row) for row in rows["input_ids"]]
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
    known = {*theirs._READ, *theirs.OF_ROLES, *theirs.IRRELEVANT, *theirs._OLD_NAMES.values()}
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
