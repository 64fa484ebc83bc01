"""What is written for KerasHub computes there what it computes here, and back, in memory too."""

import numpy as np
import pytest

import encoder_zoo as ez

keras_hub = pytest.importorskip("keras_hub")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

SIZES = {
    "vocabulary_size": 40,
    "num_layers": 3,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 20,
    "max_sequence_length": 24,
}
TANH = {"activation": "gelu_pytorch_tanh"}
# Family: arguments without which KerasHub cannot say the model
FAMILIES = {
    "Bert": TANH,
    "Roberta": {},
    "Electra": {**TANH, "embedding_dim": 6},
    "DistilBert": {},
    "Albert": {**TANH, "embedding_dim": 6, "num_groups": 1},
    "XLMRoberta": {},
    "DebertaV2": {"position_buckets": 8, "max_relative_positions": 24},
    "Bart": {},
}
BYTE_BPE = ("Roberta", "Bart")
THERE = {"DebertaV2": "DebertaV3"}  # under another name
THEIRS = {"SequenceClassifier": "TextClassifier", "MaskedLM": "MaskedLM"}
HEADS = {
    "SequenceClassifier": {"num_classes": 3, "dropout": 0.25},
    "MaskedLM": {"head_activation": "gelu", "head_layer_norm_epsilon": 1e-5},
}
TASKS = [
    (family, task) for family in FAMILIES if family not in ("Electra", "Bart") for task in THEIRS
]
MORE = [*"dfghijklmnopqruvwxyzDEFGHIJKL"]  # as many tokens as rows
PIECES = ["▁the", "▁cat", "s", "▁", "a", "t", *MORE]
SCORES = [-1.0 - i for i in range(len(PIECES))]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "cafe", "café"]
WORDS += MORE


def class_there(family: str, kind: str) -> type:
    return getattr(keras_hub.models, THERE.get(family, family) + kind)


def make_backbone(family: str, **arguments) -> ez.Backbone:
    cls = getattr(ez, f"{family}Backbone")
    return randomise(cls(**SIZES, **FAMILIES[family], **arguments))


def make_task(family: str, task: str, **arguments):
    cls = getattr(ez, task)
    preprocessor = cls.record.preprocessor_class(make_tokenizer(family))
    head = dict(HEADS[task])
    if (family, task) == ("Albert", "MaskedLM"):
        head["head_activation"] = TANH["activation"]
    return randomise(cls(make_backbone(family), preprocessor, **head, **arguments))


def make_tokenizer(family: str):
    if family in BYTE_BPE:
        names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", "a", "b", "c", "Ġa", "ab", *MORE]
        vocabulary = {name: i for i, name in enumerate(names)}
        return ez.RobertaTokenizer(vocabulary, ["Ġ a", "a b"], pair_separators=2)
    if family == "XLMRoberta":
        tokens = ["<s>", "<pad>", "</s>", "<unk>", *PIECES, "<mask>"]
        return ez.XLMRobertaTokenizer(tokens, [*[None] * 4, *SCORES, None])
    if family == "DebertaV2":
        tokens = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *PIECES, "[MASK]"]
        return ez.DebertaV2Tokenizer(tokens, [*[None] * 4, *SCORES, None])
    if family == "Albert":
        tokens = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", *PIECES]
        options = {"lowercase": False, "keep_accents": True}
        return ez.AlbertTokenizer(tokens, [*[None] * 5, *SCORES], **options)
    return ez.BertTokenizer(WORDS)


def texts(family: str) -> list[str]:
    return ["ab a", "c ab"] if family in BYTE_BPE else ["The cats, sat", "the Café"]


def randomise(model):
    """Every weight, biases and the segment that RoBERTa has once, away from its first value."""
    rng = np.random.default_rng(0)
    model.set_weights([w + rng.normal(0, 0.3, w.shape) for w in model.get_weights()])
    return model


def inputs(family: str, task: str | None = None) -> dict:
    rng = np.random.default_rng(1)
    mask = np.arange(9) < np.array([[9], [6], [1]])
    ids = np.where(mask, rng.integers(5, 40, mask.shape), int("Roberta" in family))
    x = {"token_ids": ids, "padding_mask": mask}
    if family in ("Bert", "Electra", "Albert"):
        x["segment_ids"] = (mask & (np.arange(9) > 3)).astype(int)
    if task == "MaskedLM":
        x["mask_positions"] = np.array([[1, 4], [2, 3], [0, 0]])
    return x


def outputs(model, x: dict) -> list[np.ndarray]:
    """Of both libraries, in the same order; without what stands at padding."""
    if "decoder_token_ids" in getattr(model, "input", {}):  # BART there
        found = model(with_decoder_inputs(x))
        found = {"sequence_output": found["decoder_sequence_output"]}
    else:
        found = model(dict(x))
    if not isinstance(found, dict):
        found = {"sequence_output": found}
    pooled = [np.array(found["pooled_output"])] if "pooled_output" in found else []
    sequence = np.array(found["sequence_output"])
    return [*pooled, sequence[x["padding_mask"]] if sequence.shape[1] == 9 else sequence]


def with_decoder_inputs(x: dict) -> dict:
    """Inputs of BART there: the decoder reads the same tokens, shifted by one."""
    ids, mask = x["token_ids"], x["padding_mask"]
    before = np.concatenate([np.full_like(ids[:, :1], 2), ids[:, :-1]], axis=1)
    inputs = {"encoder": (ids, mask), "decoder": (before, mask)}
    return {
        f"{part}_{name}": values
        for part, both in inputs.items()
        for name, values in zip(("token_ids", "padding_mask"), both, strict=True)
    }


def assert_same(there, here, x: dict, tolerance: float = 1e-5) -> None:
    expected, found = outputs(there, x), outputs(here, x)
    difference = max(np.abs(e - f).max() for e, f in zip(expected[-1:], found[-1:], strict=True))
    print(f"{there.name}: {difference:.1e}")
    assert difference < tolerance
    if len(expected) == len(found) == 2:
        assert np.abs(expected[0] - found[0]).max() < tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_a_written_backbone_computes_there_what_it_computes_here(family, tmp_path):
    here = make_backbone(family)
    here.save_to_preset(tmp_path, tokenizer=make_tokenizer(family), format="keras_hub")
    there = class_there(family, "Backbone").from_preset(str(tmp_path))
    assert_same(there, here, inputs(family))
    tokenizer = class_there(family, "Tokenizer").from_preset(str(tmp_path))
    expected = make_tokenizer(family).tokenize(texts(family)).to_list()
    assert [np.array(ids).tolist() for ids in tokenizer(texts(family))] == expected
    assert_same(there, ez.Backbone.from_preset(tmp_path), inputs(family))


@pytest.mark.parametrize(("family", "task"), TASKS)
def test_a_written_task_computes_there_what_it_computes_here(family, task, tmp_path):
    here = make_task(family, task)
    here.save_to_preset(tmp_path, format="keras_hub")
    there = class_there(family, THEIRS[task]).from_preset(str(tmp_path))
    x = inputs(family, task)
    assert_same(there, here, x)
    assert there.preprocessor.sequence_length == SIZES["max_sequence_length"]
    if task == "SequenceClassifier":
        assert there.dropout == 0.25
        expected = here.predict(texts(family), verbose=0)
        np.testing.assert_allclose(there.predict(texts(family), verbose=0), expected, atol=1e-5)
    again = getattr(ez, task).from_preset(tmp_path)
    np.testing.assert_allclose(np.array(again(x)), np.array(here(x)), atol=1e-5)


@pytest.mark.parametrize(("family", "task"), TASKS)
def test_a_task_in_memory_becomes_one_of_ours(family, task, tmp_path):
    make_task(family, task).save_to_preset(tmp_path, format="keras_hub")
    there = class_there(family, THEIRS[task]).from_preset(str(tmp_path))
    randomise(there)
    here = getattr(ez, task).from_keras_hub(there)
    assert_same(there, here, inputs(family, task))
    ids = [np.array(ids).tolist() for ids in there.preprocessor.tokenizer(texts(family))]
    assert here.preprocessor.tokenizer.tokenize(texts(family)).to_list() == ids
    if task == "SequenceClassifier":
        assert (here.num_classes, here.dropout) == (3, 0.25)
        expected = there.predict(texts(family), verbose=0)
        np.testing.assert_allclose(here.predict(texts(family), verbose=0), expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16", "float16"])
def test_a_backbone_in_memory_keeps_its_dtype_policy(family, policy, tmp_path):
    make_backbone(family).save_to_preset(tmp_path, format="keras_hub")
    cls = class_there(family, "Backbone")
    there = cls.from_preset(str(tmp_path), dtype=policy)
    here = ez.Backbone.from_keras_hub(there)
    assert here.dtype_policy.name == policy
    tables = here.embeddings.token_embedding, there.token_embedding
    assert tables[0].embeddings.dtype == tables[1].embeddings.dtype
    if policy == "float32":
        assert_same(there, here, inputs(family))
    again = ez.Backbone.from_keras_hub(there, dtype="float32")  # the weights as they are there
    expected = cls.from_preset(str(tmp_path))
    assert_same(expected, again, inputs(family), 0.1 if policy.endswith("16") else 1e-5)


def test_weights_in_bfloat16_are_read(tmp_path):
    make_backbone("Roberta").save_to_preset(tmp_path, dtype="bfloat16", format="keras_hub")
    here = ez.Backbone.from_preset(tmp_path)
    there = keras_hub.models.RobertaBackbone.from_preset(str(tmp_path), dtype="float32")
    assert_same(there, here, inputs("Roberta"))


def test_a_kerashub_tokenizer_that_strips_no_accents_is_read_as_such(tmp_path):
    backbone = make_backbone("Bert")
    backbone.save_to_preset(
        tmp_path, tokenizer=ez.BertTokenizer(WORDS, strip_accents=False), format="keras_hub"
    )
    there = keras_hub.models.BertTokenizer.from_preset(str(tmp_path))
    here = ez.BertTokenizer.from_preset(tmp_path)
    assert np.array(there("Café")).tolist() == here.tokenize("Café").numpy().tolist() == [10]
    assert make_tokenizer("Bert").tokenize("Café").numpy().tolist() == [9]
