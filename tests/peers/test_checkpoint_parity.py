"""What transformers computes with the folders that we save, and we with those that it saves."""

import json

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import list_families
from encoder_zoo.tasks import list_tasks

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

FAMILIES = ["Bert", "Roberta", "Electra"]
OUTPUTS = ("logits", "start_logits", "end_logits")
TASKS = [
    task.__name__
    for task in list_tasks()
    if all(task.supports(f) for f in list_families() if f.name != "bart")
    and task.record.folder.opened_by is None
]
TEXTS = [
    "The cat sat on the mat.",
    "ÀÉÎ naïve café — “quotes”… 漢字 🙂",
    "  two\tspaces\nand a verylongwordindeed, isn't it?",
    "",
]


def outputs_there(model, inputs: dict, names=OUTPUTS) -> list[np.ndarray]:
    if type(model).__name__.endswith("ForMultipleChoice"):  # each text is an only choice
        inputs = {name: values[:, None] for name, values in inputs.items()}
    with torch.inference_mode():
        outputs = model.eval()(
            input_ids=torch.tensor(inputs["token_ids"]),
            attention_mask=torch.tensor(inputs["padding_mask"].astype(int)),
            token_type_ids=torch.tensor(inputs["segment_ids"]),
        )
    return [outputs[name].numpy() for name in names if name in outputs]


def outputs_here(model, inputs: dict) -> list[np.ndarray]:
    import keras

    return [keras.ops.convert_to_numpy(o) for o in keras.tree.flatten(model(inputs))]


def largest_difference(here: list, there: list, mask: np.ndarray) -> float:
    """Over real tokens; an output of one row for each text has no others."""
    if len(there) == 2:
        there = [np.stack(there, axis=1)]  # (B, 2, L): starts and ends
        mask = np.repeat(mask[:, None], 2, axis=1)
    [a], [b] = here, there
    d = np.abs(a - b)
    return float((d[mask] if d.shape[: mask.ndim] == mask.shape else d).max())


def opened_there(folder, task: str, **arguments):
    """The model, which must have taken every weight and no other."""
    cls = getattr(transformers, f"AutoModel{getattr(ez, task).record.head}")
    model, report = cls.from_pretrained(folder, output_loading_info=True, **arguments)
    assert not any(report.values()), report
    return model


@pytest.mark.parametrize("form", ["single file", "shards"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
def test_transformers_opens_what_we_save(golden, family, task, form, tmp_path):
    head = getattr(ez, task).record.head
    checkpoint = golden(family + "_" + head)
    model = getattr(ez, task).from_preset(checkpoint.folder)
    model.save_to_preset(tmp_path / "preset", **({"shard_bytes": 3000} if form == "shards" else {}))
    there = opened_there(tmp_path / "preset", task)
    assert type(there).__name__ == family + head
    inputs = checkpoint.inputs
    difference = largest_difference(
        outputs_here(model, inputs),
        outputs_there(there, inputs),
        inputs["padding_mask"],
    )
    print(f"{family} {task} {form}: {difference:.1e}")
    assert difference < 1e-5  # large weights, on purpose; see below for those of a real model
    original = getattr(transformers, family + head).from_pretrained(checkpoint.folder)
    for a, b in zip(outputs_there(original, inputs), outputs_there(there, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    if getattr(model, "labels", None):
        assert list(there.config.id2label.values()) == model.labels

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "preset")
    ours = model.preprocessor.tokenizer.tokenize(TEXTS).to_list()
    assert tokenizer(TEXTS, add_special_tokens=False)["input_ids"] == ours
    assert tokenizer.pad_token_id == model.preprocessor.tokenizer.pad_token_id


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_opens_half_precision(golden, family, dtype, tmp_path):
    checkpoint = golden(f"{family}_ForSequenceClassification")
    model = ez.SequenceClassifier.from_preset(checkpoint.folder)
    model.save_to_preset(tmp_path / "half", dtype=dtype)
    assert opened_there(tmp_path / "half", "SequenceClassifier").dtype == getattr(torch, dtype)
    there = opened_there(tmp_path / "half", "SequenceClassifier", dtype=torch.float32)
    here = ez.SequenceClassifier.from_preset(tmp_path / "half")
    inputs = checkpoint.inputs
    there = outputs_there(there, inputs, ["logits"])
    assert largest_difference(outputs_here(here, inputs), there, inputs["padding_mask"]) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_we_open_what_transformers_made_of_what_we_saved(golden, family, tmp_path):
    """There, back again, and trained in between."""
    checkpoint = golden(f"{family}_ForSequenceClassification")
    ez.SequenceClassifier.from_preset(checkpoint.folder).save_to_preset(tmp_path / "ours")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    for parameter in model.parameters():
        parameter.data += 0.01
    model.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(
        tmp_path / "theirs"
    )
    back = ez.SequenceClassifier.from_preset(tmp_path / "theirs")
    assert back.labels == ["O", "B-PER", "I-PER"]
    inputs = checkpoint.inputs
    there = outputs_there(model, inputs, ["logits"])
    assert largest_difference(outputs_here(back, inputs), there, inputs["padding_mask"]) < 1e-5
    ids = back.preprocessor.tokenizer.tokenize(TEXTS).to_list()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert tokenizer(TEXTS, add_special_tokens=False)["input_ids"] == ids


@pytest.mark.parametrize("family", FAMILIES)
def test_we_open_shards_and_bfloat16_that_transformers_wrote(family, tmp_path):
    config = getattr(transformers, f"{family}Config")(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_act="gelu_new",
        layer_norm_eps=1e-3,
        hidden_dropout_prob=0.3,
    )
    model = getattr(transformers, f"{family}Model")(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    here = ez.Backbone.from_preset(tmp_path)
    assert here.dropout == 0.3 and here.layer_norm_epsilon == 1e-3
    inputs = {
        "token_ids": np.array([[7, 8, 9, 10, 1, 1]]),
        "padding_mask": np.array([[1, 1, 1, 1, 0, 0]], bool),
        "segment_ids": np.zeros((1, 6), int),
    }
    there = outputs_there(model.float(), inputs, ["last_hidden_state"])
    ours = [np.array(here(inputs)["sequence_output"])]
    assert largest_difference(ours, there, inputs["padding_mask"]) < 1e-5


def test_all_minilm_goes_round_and_is_the_same_there(minilm, tmp_path):
    here = ez.SequenceClassifier.from_preset(minilm, labels=["bad", "good"])
    here.save_to_preset(tmp_path / "preset")
    there = opened_there(tmp_path / "preset", "SequenceClassifier")
    inputs = {name: value.numpy() for name, value in here.preprocessor(TEXTS).items()}
    difference = largest_difference(
        outputs_here(here, inputs), outputs_there(there, inputs, ["logits"]), inputs["padding_mask"]
    )
    print(f"all-MiniLM-L6-v2: {difference:.1e}")
    assert difference < 1e-6
    config = json.loads((tmp_path / "preset" / "config.json").read_text())
    assert config["label2id"] == {"bad": 0, "good": 1}
