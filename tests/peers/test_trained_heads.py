"""A trained head is never dropped for a random one: families, heads, and what config.json says.

The folders are those that transformers wrote, with an edited config.json. Where transformers opens
one with all weights of the head, our outputs are its outputs. With `-m peers -s` pytest prints the
table.
"""

import collections
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import list_families

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

CHECKPOINTS = pathlib.Path(__file__).parents[1] / "golden" / "checkpoints"
TASKS = {
    "SequenceClassifier": "ForSequenceClassification",
    "TokenClassifier": "ForTokenClassification",
    "SpanQA": "ForQuestionAnswering",
    "MultipleChoice": "ForMultipleChoice",
    "MaskedLM": "ForMaskedLM",
}
OUTPUTS = ("logits", "start_logits", "end_logits")
NO_LABELS = {"id2label": None, "label2id": None}
# {kind: fields of config.json, where None is "not there"}; {} in a name is the family's prefix,
# {head} the class of the head.
ARCHITECTURES = {
    "no architectures": {"architectures": None},
    "the base model": {"architectures": ["{}Model"]},
    "the masked LM": {"architectures": ["{}ForMaskedLM"]},
    "the pretraining": {"architectures": ["{}ForPreTraining"]},
    "somebody's own class": {"architectures": ["MyTagger"]},
    "several": {"architectures": ["{}ForMaskedLM", "{head}"]},
}
LABELS = {
    "no labels": NO_LABELS,
    "num_labels": {**NO_LABELS, "num_labels": 3},
    "_num_labels": {**NO_LABELS, "_num_labels": 3},
    "num_labels of another count": {**NO_LABELS, "num_labels": 5},
    "label2id alone": {"id2label": None},
    "stale names": {**NO_LABELS, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}},
    "too few names": {**NO_LABELS, "id2label": {"0": "a", "1": "b"}},
    "regression": {**NO_LABELS, "num_labels": 3, "problem_type": "regression"},
    "several labels": {"problem_type": "multi_label_classification"},
    "masked LM and num_labels": {
        **NO_LABELS,
        "num_labels": 3,
        "architectures": ["{}ForMaskedLM"],
    },
}
# {kind: arguments of from_preset}, for labels O, B-PER, I-PER
ARGUMENTS = {
    "labels given": {"labels": ["O", "B-PER", "I-PER"]},
    "another order": {"labels": ["I-PER", "O", "B-PER"]},
    "a subset": {"labels": ["B-PER", "O"]},
    "other capitals": {"labels": ["o", "b-per", "i-per"]},
    "other names": {"labels": ["x", "y", "z"]},
    "the count given": {"num_classes": 3},
    "another count": {"num_classes": 4},
    "other names, another count": {"labels": ["v", "w", "x", "y"]},
}
ROWS = {"another order": [2, 0, 1], "a subset": [1, 0]}


def kinds_of(task: str):
    classes = task in ("SequenceClassifier", "TokenClassifier")
    for kind, fields in {**ARCHITECTURES, **(LABELS if classes else {})}.items():
        yield kind, fields, {}
    for kind, arguments in (ARGUMENTS if classes else {}).items():
        yield kind, {}, arguments
        yield f"{kind}, masked LM", {"architectures": ["{}ForMaskedLM"]}, arguments


def edited(source, folder, fields: dict, family, head: str):
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    for name, value in fields.items():
        if name == "architectures" and value:
            prefix, suffix = family.class_prefix, family.get_class_name(head)
            value = [name.format(prefix, head=suffix) for name in value]
        config.pop(name, None) if value is None else config.update({name: value})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def opens_there(folder, head: str) -> bool:
    """Whether transformers opens the folder with every weight of the head."""
    try:
        cls = getattr(transformers, f"AutoModel{head}")
        _, report = cls.from_pretrained(folder, output_loading_info=True)
    except (RuntimeError, ValueError, TypeError):
        return False
    return not report["missing_keys"] and not report["mismatched_keys"]


def outcome(task: str, golden, folder, arguments: dict, rows, records, expected=None) -> str:
    """Return "equal" for transformers' outputs, "refused by name" or "new by name"."""
    try:
        model = getattr(ez, task).from_preset(folder, **arguments)
    except ValueError as error:
        assert "outputs" in str(error) and ".weight" in str(error), error
        return "refused by name"
    if model.new_head is not None or model.head is None:
        lines = [record.getMessage() for record in records if "random weights" in record.msg]
        assert lines and "Not used: " in lines[0], lines
        return "new by name"
    values = keras.tree.flatten(model(golden.inputs))
    here = np.concatenate([keras.ops.convert_to_numpy(v).ravel() for v in values])
    stored = expected or golden.expected
    expected = [stored[name] for name in OUTPUTS if name in stored]
    there = np.stack(expected, 1) if len(expected) == 2 else expected[0]
    there = there if rows is None else there[..., rows]
    mask = golden.inputs["padding_mask"]
    here = here.reshape(there.shape)
    if len(expected) == 2:
        here, there = np.moveaxis(here, 1, -1), np.moveaxis(there, 1, -1)
    if here.shape[:2] == mask.shape:
        here, there = here[mask], there[mask]
    np.testing.assert_allclose(here, there, atol=2e-4, rtol=1e-4)
    return "equal"


@pytest.mark.parametrize("family", [family.name for family in list_families()])
def test_a_trained_head_is_taken_or_named(golden, family, tmp_path, caplog):
    record = next(f for f in list_families() if f.name == family)
    counts = collections.Counter()
    for task, head in TASKS.items():
        source = CHECKPOINTS / f"{record.class_prefix}_{head}"
        if head not in record.heads or not source.is_dir():
            continue
        for i, (kind, fields, arguments) in enumerate(kinds_of(task)):
            folder = tmp_path / f"{task}_{i}"
            edited(source, folder, fields, record, head)
            caplog.clear()
            rows = ROWS.get(kind.removesuffix(", masked LM"))
            stored = golden(f"{record.class_prefix}_{head}")
            found = outcome(task, stored, folder, arguments, rows, caplog.records)
            counts[found] += 1
            if not arguments and opens_there(folder, head):
                assert found == "equal", (task, kind)
            if "another count" not in kind and kind != "too few names":
                assert found == "equal", (task, kind)
            shutil.rmtree(folder)
    print(f"\n{family}: {sum(counts.values())} tried, {dict(counts)}")


def outputs_there(folder, family, head: str, inputs: dict) -> dict[str, np.ndarray]:
    model = getattr(transformers, f"AutoModel{head}").from_pretrained(folder).eval()
    names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
    names |= {"segment_ids": "token_type_ids"} if family.uses_segments else {}
    given = {names[n]: torch.tensor(inputs[n].astype("int64")) for n in names}
    if head == "ForMultipleChoice":  # of one choice for each text
        given = {name: value[:, None] for name, value in given.items()}
    with torch.inference_mode():
        found = model(**given)
    return {name: found[name].numpy() for name in OUTPUTS if found.get(name) is not None}


def in_its_own_shard(folder, tensors: dict, head: set[str]) -> None:
    shards = [{}, {}]
    for name, value in tensors.items():
        shards[name in head][name] = value
    index = {}
    for i, shard in enumerate(shards):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        safetensors_torch.save_file(shard, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
    content = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(content)


def pickled(folder, tensors: dict, head: set[str]) -> None:
    torch.save(tensors, folder / "pytorch_model.bin")


def inside(folder, tensors: dict, head: set[str]) -> None:
    tensors = {f"module.{name}": value for name, value in tensors.items()}
    safetensors_torch.save_file(tensors, folder / "model.safetensors")


def without_biases(folder, tensors: dict, head: set[str]) -> None:
    tensors = {n: v for n, v in tensors.items() if not (n in head and n.endswith(".bias"))}
    path = folder / "model.safetensors"
    safetensors_torch.save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("family", [family.name for family in list_families()])
def test_a_trained_head_is_taken_wherever_it_lies(golden, family, tmp_path, caplog):
    record = next(f for f in list_families() if f.name == family)
    counts = collections.Counter()
    for task, head in TASKS.items():
        source = CHECKPOINTS / f"{record.class_prefix}_{head}"
        if head not in record.heads or not source.is_dir():
            continue
        stored, layers = golden(source.name), tuple(record.heads[head].tensors.values())
        for write in (in_its_own_shard, pickled, inside, without_biases):
            if write is without_biases and record.heads[head].tied_bias:
                continue
            folder = edited(source, tmp_path / f"{task}_{write.__name__}", {}, record, head)
            tensors = safetensors_torch.load_file(folder / "model.safetensors")
            (folder / "model.safetensors").unlink()
            inner = {name: name.removeprefix(f"{record.prefix}.") for name in tensors}
            write(folder, tensors, {name for name in tensors if inner[name].startswith(layers)})
            expected = None
            if write is without_biases:  # the stored outputs are of all tensors
                expected = outputs_there(folder, record, head, stored.inputs)
            caplog.clear()
            found = outcome(task, stored, folder, {}, None, caplog.records, expected)
            assert found == "equal", (task, write.__name__)
            counts[write.__name__] += 1
            shutil.rmtree(folder)
    print(f"\n{family}: {sum(counts.values())} equal, {dict(counts)}")
