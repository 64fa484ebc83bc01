"""Every family's models and every task's, saved by transformers and opened here, and back."""

import shutil

import keras
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

# Inputs of the two others must end as their tokenizers' do, see test_bart_xlnet.py.
FAMILIES = [family for family in list_families() if family.name not in ("bart", "xlnet")]
# Those that transformers has a class for in almost every family.
TASKS = [
    task
    for task in list_tasks()
    if all(map(task.supports, FAMILIES)) and task.record.folder.opened_by is None
]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
each_task = pytest.mark.parametrize("task", ["Backbone", *(task.__name__ for task in TASKS)])


def suffix_of(task: str) -> str:
    return "" if task == "Backbone" else getattr(ez, task).record.head


def auto_class(task: str):
    """transformers' class that finds the class of a checkpoint."""
    return getattr(transformers, f"AutoModel{suffix_of(task)}")


def skip_without_class(family, task: str) -> None:
    suffix = suffix_of(task) or "Model"
    if not hasattr(transformers, family.class_prefix + suffix):
        pytest.skip(f"transformers has no {family.class_prefix}{suffix}")


def made_there(tiny, family, task: str):
    """A small model of transformers with large random weights."""
    sizes = {family.config_keys[name]: value for name, value in tiny.sizes(family).items()}
    tokenizer = tiny.tokenizer(family)
    ids = {key: getattr(tokenizer, name) for key, name in family.token_ids.items()}
    labels = {"num_labels": 3} if task in ("SequenceClassifier", "TokenClassifier") else {}
    own = {"pos_att_type": ["c2p", "p2c"]} if "terms" in family.config_keys else {}
    settings = {**family.constants, **sizes, **ids, **labels, **own, "initializer_range": 0.5}
    config = transformers.AutoConfig.for_model(family.name, **settings)
    if family.positions_skip_padding:
        key = family.config_keys["max_sequence_length"]
        setattr(config, key, getattr(config, key) + tokenizer.pad_token_id + 1)
    torch.manual_seed(0)
    skip_without_class(family, task)
    model = auto_class(task).from_config(config).eval()
    for parameter in model.parameters():  # biases and norms too, which begin at 0 and 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def outputs_there(model, inputs: dict) -> list[np.ndarray]:
    """In double precision: with weights as large as these its own roundings reach 1e-5."""
    model = model.double()
    names = {
        "token_ids": "input_ids",
        "padding_mask": "attention_mask",
        "segment_ids": "token_type_ids",
        "global_mask": "global_attention_mask",
    }
    given = {names[name]: torch.tensor(value.astype("int64")) for name, value in inputs.items()}
    if "MultipleChoice" in type(model).__name__:  # of one choice for each text
        given = {name: value[:, None] for name, value in given.items()}
    with torch.inference_mode():
        outputs = model(**given)
    if "start_logits" in outputs:
        return [torch.stack([outputs.start_logits, outputs.end_logits], dim=1).numpy()]
    found = [outputs.get(name) for name in ("logits", "last_hidden_state", "pooler_output")]
    return [value.numpy() for value in found if value is not None]


def outputs_here(model, inputs: dict) -> list[np.ndarray]:
    outputs = model(inputs)
    if isinstance(outputs, dict):
        outputs = [outputs[n] for n in ("sequence_output", "pooled_output") if n in outputs]
    return [keras.ops.convert_to_numpy(value) for value in keras.tree.flatten(outputs)]


def assert_close(here: list, there: list, mask: np.ndarray) -> None:
    """At real tokens; what transformers computes at padding is nobody's."""
    assert len(here) == len(there) > 0
    for a, b in zip(here, there, strict=True):
        assert a.shape == b.shape
        if a.shape[:2] == mask.shape:
            a, b = a[mask], b[mask]
        elif a.shape[1:] == (2, mask.shape[1]):  # starts and ends
            a, b = (np.moveaxis(value, 1, 2)[mask] for value in (a, b))
        print(f"largest difference {np.abs(a - b).max():.1e} of {np.abs(b).max():.1f}")
        # A sum's error is a share of its largest term, and that of the largest output.
        atol = 1e-5 * max(1.0, float(np.abs(b).max()))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol)


@each_task
@each_family
def test_we_open_what_transformers_saved(tiny, family, task, tmp_path, caplog):
    there, inputs = made_there(tiny, family, task), tiny.rows(family)
    there.save_pretrained(tmp_path)
    for name, text in tiny.tokenizer(family).to_files().items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    here = getattr(ez, task).from_preset(tmp_path)
    # Nothing is random and nothing is left over.
    assert [record for record in caplog.records if record.name == "encoder_zoo"] == []
    assert_close(outputs_here(here, inputs), outputs_there(there, inputs), inputs["padding_mask"])


@each_task
@each_family
def test_transformers_opens_what_we_saved(tiny, family, task, tmp_path):
    skip_without_class(family, task)
    here = tiny.backbone(family) if task == "Backbone" else tiny.task(family, task)
    inputs = tiny.rows(family)
    here.save_to_preset(tmp_path / "preset")
    there, report = auto_class(task).from_pretrained(tmp_path / "preset", output_loading_info=True)
    assert not any(report.values()), report
    there = outputs_there(there.eval(), inputs)
    assert_close(outputs_here(here, inputs), there, inputs["padding_mask"])


@pytest.mark.parametrize("family", list_families(), ids=lambda family: family.name)
def test_transformers_tokenizes_as_the_saved_tokenizer_does(tiny, golden, family, tmp_path):
    is_there = hasattr(transformers, family.get_class_name("ForMaskedLM"))
    folder = golden(f"{family.class_prefix}_{'ForMaskedLM' if is_there else 'Model'}").folder
    task = ez.MaskedLM.from_preset(folder)
    task.save_to_preset(tmp_path)
    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = task.preprocessor.tokenizer
    texts = ["The cat sat on the mat.", "  isn't  it?\ta naïve café", "", "🙂 und ~"]
    ours = tokenizer.tokenize(texts).to_list()
    assert there(texts, add_special_tokens=False)["input_ids"] == ours
    names = ("start_token", "end_token", "pad_token", "mask_token", "unknown_token")
    theirs = (there.cls_token, there.sep_token, there.pad_token, there.mask_token, there.unk_token)
    assert tuple(getattr(tokenizer, name) for name in names) == theirs
    pair = there("the cat", "is it", return_token_type_ids=True)
    packed = ez.SequenceClassifier.from_preset(folder, num_classes=2).preprocessor(
        (["the cat"], ["is it"])
    )
    assert packed["token_ids"].numpy().tolist() == [pair["input_ids"]]
    if family.uses_segments:
        assert packed["segment_ids"].numpy().tolist() == [pair["token_type_ids"]]


@each_family
def test_we_tokenize_as_what_transformers_made_of_the_vocabulary_and_saved(
    golden, family, tmp_path
):
    folder = golden(f"{family.class_prefix}_Model").folder
    there = transformers.AutoTokenizer.from_pretrained(folder)
    there.save_pretrained(tmp_path)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, tmp_path)
    if there("a")["input_ids"] == there("a", add_special_tokens=False)["input_ids"]:
        # Without special tokens by transformers itself: what ours would add is not in the file.
        with pytest.raises(ValueError, match="post_processor"):
            family.tokenizer.load().from_preset(tmp_path)
        return
    here = family.tokenizer.load().from_preset(tmp_path)
    texts = [
        "The cat sat on the mat.",
        "  isn't  it?\ta nai\u0308ve café\u00a0!",
        "",
        "🙂 und ~ ﬁ ｶﾞ\u3000Ⅳ\n",
    ]
    assert here.tokenize(texts).to_list() == there(texts, add_special_tokens=False)["input_ids"]
