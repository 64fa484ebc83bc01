"""Saved folders have what text-embeddings-inference and vLLM read.

Neither server is installed here. The requirements are written down from their sources: the structs
`ModelConfig`, `PoolConfig` and `STConfig` and the function `get_backend_model_type` in
router/src/lib.rs and the enum `Config` in backends/candle/src/lib.rs of text-embeddings-inference,
and vllm/model_executor/models/registry.py of vLLM.
"""

import json

import pytest
import tokenizers
from safetensors import safe_open
from small_tasks import make, preprocessor

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

TEI_MODEL_TYPES = {
    "bert",
    "camembert",
    "distilbert",
    "modernbert",
    "mpnet",
    "nomic_bert",
    "roberta",
    "xlm-roberta",
}
VLLM_ARCHITECTURES = {
    "BertModel",
    "ModernBertModel",
    "RobertaModel",
    "XLMRobertaModel",
    "BertForSequenceClassification",
    "ModernBertForSequenceClassification",
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
    "BertForTokenClassification",
    "ModernBertForTokenClassification",
}
pytestmark = pytest.mark.slow
IN_BOTH = ["bert", "modernbert", "roberta", "xlm_roberta"]
ONLY_IN_TEI = ["camembert", "distilbert", "mpnet", "nomic_bert"]


def save(folder, task):
    """Save a task, and return its config.json."""
    task.save_to_preset(folder)
    return read(folder, "config.json")


def read(folder, name):
    return json.loads((folder / name).read_text("utf-8"))


def check_model_config(folder, config):
    """Check what text-embeddings-inference reads of every model."""
    assert all(isinstance(name, str) for name in config["architectures"])
    assert config["model_type"] in TEI_MODEL_TYPES
    positions = config.get("max_position_embeddings", config.get("n_positions"))
    assert isinstance(positions, int) and positions > 0
    assert isinstance(config.get("pad_token_id", 0), int)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("a b").ids
    with safe_open(folder / "model.safetensors", "numpy") as weights:
        names = weights.keys()
        assert {weights.get_slice(name).get_dtype() for name in names} == {"F32"}


@pytest.mark.parametrize("family", IN_BOTH + ONLY_IN_TEI)
def test_embedders(family, tmp_path):
    parts = tiny.backbone(get_family(family)), preprocessor("TextEmbedder", get_family(family))
    config = save(tmp_path, ez.TextEmbedder(*parts, pooling="mean"))
    check_model_config(tmp_path, config)
    [architecture] = config["architectures"]
    assert not architecture.endswith("Classification")  # it would be taken for a classifier
    assert (architecture in VLLM_ARCHITECTURES) == (family in IN_BOTH)
    pooling = read(tmp_path, "1_Pooling/config.json")
    modes = {name: pooling[f"pooling_mode_{name}"] for name in ("cls_token", "mean_tokens")}
    modes |= {n: pooling[f"pooling_mode_{n}"] for n in ("max_tokens", "mean_sqrt_len_tokens")}
    assert {name for name, is_used in modes.items() if is_used is True} == {"mean_tokens"}
    assert isinstance(read(tmp_path, "sentence_bert_config.json")["max_seq_length"], int)
    types = [module["type"].split(".")[-1] for module in read(tmp_path, "modules.json")]
    assert types[:2] == ["Transformer", "Pooling"]  # vLLM reads the pooling by this list
    prompts = read(tmp_path, "config_sentence_transformers.json").get("prompts", {})
    assert all(isinstance(text, str) for text in prompts.values())


@pytest.mark.parametrize("name", ["SequenceClassifier", "Reranker"])
@pytest.mark.parametrize("family", IN_BOTH)
def test_classifiers_and_rerankers(family, name, tmp_path):
    config = save(tmp_path, make(name, get_family(family)))
    check_model_config(tmp_path, config)
    assert config["architectures"][0].endswith("ForSequenceClassification")
    assert config["architectures"][0] in VLLM_ARCHITECTURES
    # One label makes a reranker, more make a classifier.
    assert (len(config["id2label"]) == 1) == (name == "Reranker")
    assert {v: int(k) for k, v in config["id2label"].items()} == config["label2id"]


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_token_classifiers_are_for_vllm_only(family, tmp_path):
    config = save(tmp_path, make("TokenClassifier", get_family(family)))
    assert config["architectures"][0] in VLLM_ARCHITECTURES
