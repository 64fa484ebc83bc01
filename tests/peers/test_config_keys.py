"""Every key of every family's config.json: honoured, refused by name, or recorded as irrelevant.

The keys are those of the installed transformers: of the configuration's class, of what it writes,
of its other names for them, and those that the code of its models reads. Each is set away from its
default, and once left out, in a checkpoint with large weights that transformers writes, with every
head. Run with `-s` to see the counts; with KERAS_BACKEND=torch it takes the least time.
"""

import collections
import copy
import dataclasses
import inspect
import json
import logging
import re

import numpy as np
import pytest
from keras import ops

import encoder_zoo as ez
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.presets.formats.config import _make_rules
from encoder_zoo.tasks import list_tasks
from encoder_zoo.testing import tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

# -- what is recorded ----------------------------------------------------------------------------

# {key: why it cannot change numbers here}; the tests show that it does not change transformers'.
IRRELEVANT = {
    "_name_or_path": "where it was loaded from",
    "transformers_version": "what wrote it",
    "output_attentions": "which outputs are returned there",
    "output_hidden_states": "which outputs are returned there",
    "return_dict": "how outputs are returned there",
    "_attn_implementation": "kernel of the attention there",
    "deterministic_flash_attn": "kernel of the attention there",
    "chunk_size_feed_forward": "how the feed-forward net is divided there",
    "pretraining_tp": "how matrices were divided in pretraining",
    "dtype": "precision there; here the tensors' own, and that of Keras's policy",
    "use_cache": "generation",
    "forced_eos_token_id": "generation",
    "bos_token_id": "tokenizer's, which says it itself",
    "eos_token_id": "tokenizer's, which says it itself; BART's classifiers read the token that "
    "ends the text there, which is the last one here",
    "cls_token_id": "tokenizer's, which says it itself",
    "sep_token_id": "tokenizer's, which says it itself",
    "mask_token_id": "tokenizer's, which says it itself",
    "initializer_range": "new weights",
    "initializer_cutoff_factor": "new weights",
    "init_std": "new weights",
    "problem_type": "loss; the classifier reads it, and its outputs are logits",
    "encoder_layerdrop": "training there",
    "decoder_layerdrop": "training there",
    "sparse_prediction": "loss there",
    "sparse_pred_ignore_index": "loss there",
    "mem_len": "memory of texts before, which is not passed on here",
    "reuse_len": "memory of texts before, which is not passed on here",
    "use_mems_eval": "memory of texts before, which is not passed on here",
    "use_mems_train": "memory of texts before, which is not passed on here",
    "legacy": "names of the masked-LM head's tensors, both of which are read",
    "final_logit_softcapping": "generation",
    "_sliding_window_pattern": "for information: layer_types says which blocks are local",
    "image_token_id": "Gemma 3 with images, another model_type",
    "mm_tokens_per_image": "Gemma 3 with images, another model_type",
    "text_config": "Gemma 3 with images, another model_type",
    "vision_config": "Gemma 3 with images, another model_type",
}
# Keys without a rule that are read all the same.
READ = {
    "tie_word_embeddings": "the tensors of the output projection tell, and are refused if untied",
    "embedding_size": "where a family has none, it must be the width",
    "rope_parameters": "of which `convert_rope_fields` makes `rope_theta` and `rope_scaling`",
}
# Of keys that say which model this is: other tests are of them.
ELSEWHERE = {
    "architectures": "which head the checkpoint has, see test_heads",
    "id2label": "names of the classes",
    "label2id": "names of the classes",
    "num_labels": "number of the classes, which transformers writes as id2label",
    "model_type": "which family it is",
}

# -- checkpoints ---------------------------------------------------------------------------------

SIZES = {
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "max_sequence_length": 24,
    "embedding_dim": 8,
    "local_attention": 4,
    "position_buckets": 8,
    "max_relative_positions": 16,
    "terms": ["c2p", "p2c"],
    "num_key_value_heads": 1,
}
ACTIVATIONS = ("relu", "gelu_new", "quick_gelu")
EPSILONS = ("layer_norm_eps", "rms_norm_eps", "norm_eps")
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}
BASE = {"rope_type": "default", "rope_theta": 30.0}
KINDS = ("full_attention", "sliding_attention")
# Of keys whose values say more than their type.
VALUES = {
    **dict.fromkeys(EPSILONS, (1e-2,)),
    "summary_type": ("first", "last", "mean", "cls_index"),
    "summary_activation": (*ACTIVATIONS, "tanh", None),
    "summary_proj_to_labels": (True,),
    "summary_first_dropout": (0.3,),
    "classifier_pooling": ("cls", "bos", "mean", "late"),
    "attn_type": ("uni",),
    "problem_type": ("multi_label_classification",),
    "dtype": ("float16",),
    "_attn_implementation": ("eager",),
    "norm_rel_ebd": ("none",),
    "pos_att_type": (["c2p"], ["p2c"], "p2c|c2p", []),
    "position_buckets": (-1, 4),
    "max_relative_positions": (-1, 12),
    "conv_kernel_size": (3,),
    "conv_act": ("relu", "quick_gelu"),
    "conv_groups": (2,),
    "attention_head_size": (4,),
    "pooler_hidden_size": (8,),
    "embedding_size": (8, 12, 16),
    "layer_types": (["full_attention", "sliding_attention", "full_attention"], [KINDS[1]] * 3),
    "rope_parameters": (
        LINEAR,
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 50.0},
        {"rope_type": "yarn", "factor": 2.0, "rope_theta": 50.0},
        BASE,
        {KINDS[0]: BASE, KINDS[1]: {**BASE, "rope_theta": 7.0}},
        {KINDS[0]: LINEAR, KINDS[1]: BASE},
    ),
    "rope_theta": (30.0,),
    "rope_scaling": ({"rope_type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 2.0}),
    "partial_rotary_factor": (0.5,),
    "global_attn_every_n_layers": (2,),
    "global_rope_theta": (30.0,),
    "local_rope_theta": (7.0,),
    "num_hidden_groups": (2, 3),
    "type_vocab_size": (0, 1, 3),
    "hidden_size": (32,),
    "d_model": (32,),
    "dim": (32,),
    "d_head": (4,),
    "head_dim": (4,),
    "num_attention_heads": (4,),
    "n_heads": (4,),
    "n_head": (4,),
    "num_key_value_heads": (2,),
    "encoder_attention_heads": (4,),
    "decoder_attention_heads": (4,),
    "sliding_window": (5,),
    "local_attention": (3, 8),
    "reuse_len": (2,),
    "transformers_version": ("4.1.0",),
    "_name_or_path": ("elsewhere",),
}
LEFT_OUT = "left out"
TOLERANCE = 1e-4  # as a share of the largest output
# {key: the newer one that transformers writes in its place}
NEWER = {
    "rope_theta": "rope_parameters",
    "rope_scaling": "rope_parameters",
    "global_rope_theta": "rope_parameters",
    "local_rope_theta": "rope_parameters",
    "rope_local_base_freq": "rope_parameters",
    "sliding_window_pattern": "layer_types",
    "global_attn_every_n_layers": "layer_types",
}
# Those that may be refused with a head or with other keys: by its tokenizer, or by transformers.
ALONE = {
    "pad_token_id",
    "vocab_size",
    "tie_word_embeddings",
    "embedding_size",
    "num_hidden_layers",
    "return_dict",
    *NEWER,
}


def keys_of(family) -> set[str]:
    """All keys that the installed transformers knows for a family."""
    cls = transformers.AutoConfig.for_model(family.name).__class__
    code = inspect.getsource(
        inspect.getmodule(getattr(transformers, f"{family.class_prefix}Model"))
    )
    read = re.findall(r"config, [\"'](\w+)[\"']", code) + re.findall(r"(?<!`)config\.(\w+)", code)
    fields = [field.name for field in dataclasses.fields(cls)]
    keys = {*read, *fields, *cls().to_dict(), *cls.attribute_map}
    return {key for key in {*keys, *older_keys_of(cls)} if not callable(getattr(cls, key, None))}


def older_keys_of(cls) -> list[str]:
    """The keys of older versions that a configuration's class still reads."""
    code = inspect.getsource(inspect.getmodule(cls))
    if "rope_parameters" in cls.__dataclass_fields__:
        code += inspect.getsource(cls.convert_rope_params_to_dict)
    return re.findall(r"kwargs\.(?:get|pop)\([\"'](\w+)", code)


def honoured(family) -> set[str]:
    """The keys that are read, or have a rule, in our record of the family."""
    return {*_make_rules(family), *family.repeated_keys, *family.key_aliases, *READ}


def settings_of(family) -> dict:
    """Of a small model, by transformers' keys."""
    keys = family.config_keys
    own = {keys[name]: value for name, value in SIZES.items() if name in keys}
    own |= {key: own[other] for key, other in family.repeated_keys.items()}
    own |= {key: family.constants[key] for key in family.rules if key in family.constants}
    tokenizer = tiny.tokenizer(family)
    own[keys["vocabulary_size"]] = tokenizer.vocabulary_size
    own |= {key: getattr(tokenizer, name) for key, name in family.token_ids.items()}
    return {**own, "initializer_range": 0.5, "init_std": 0.5}


def values_of(family, key: str, config) -> list:
    """Values of a key away from the one it has, and that it is left out."""
    now = getattr(config, key, None)
    if key in VALUES:
        found = list(VALUES[key])
    elif key.endswith(("_act", "activation", "activation_function")):
        found = list(ACTIVATIONS)
    elif type(now) is bool:
        found = [not now]
    elif key.endswith("_token_id"):
        found = [5]
    elif type(now) is int:
        found = [now + 1]
    elif type(now) is float or "dropout" in key:
        found = [0.3]
    elif now is None:
        found = [3, True]
    else:
        raise AssertionError(f"{family.name}: no values for {key}, which is {now!r}")
    return [*(value for value in found if value != now), *([] if now is None else [None]), LEFT_OUT]


def class_of(family, suffix: str):
    return getattr(transformers, family.get_class_name(suffix), None)


def heads_of(family) -> dict[str, type]:
    """{head: our class} of those that transformers has, too."""
    tasks = {"Model": ez.Backbone}
    for task in list_tasks():
        suffix = task.record.head
        if suffix in family.heads and task.supports(family) and class_of(family, suffix):
            tasks.setdefault(suffix, task)
    return tasks


def write(family, suffix: str, changed: dict, folder) -> dict:
    """Write a checkpoint of transformers; return its configuration as it reads it."""
    left_out = [key for key, value in changed.items() if value is LEFT_OUT]
    left_out += [NEWER[key] for key in changed if key in NEWER]
    settings = {**settings_of(family), **changed}
    settings = {key: value for key, value in settings.items() if value is not LEFT_OUT}
    if suffix.endswith("Classification"):
        settings.setdefault("num_labels", 3)
    config = transformers.AutoConfig.for_model(family.name, **settings)
    torch.manual_seed(0)
    model = class_of(family, suffix)(config)
    for parameter in model.parameters():  # biases and norms too, which begin at 0 and 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    model.save_pretrained(folder)
    # transformers does not write all that it reads.
    path = folder / "config.json"
    written = {**json.loads(path.read_text()), **changed}
    written = {key: value for key, value in written.items() if key not in left_out}
    path.write_text(json.dumps(written))
    if suffix != "Model":
        for name, content in tiny.tokenizer(family).to_files().items():
            content = content if isinstance(content, bytes) else content.encode()
            (folder / name).write_bytes(content)
    return class_of(family, suffix).config_class.from_pretrained(folder).to_dict()


def inputs_of(family, config: dict) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.integers(6, 22, (3, 9))
    mask = np.arange(9) < np.array([[9], [6], [3]])
    ids = np.where(mask, ids, config["pad_token_id"] or 0)
    if family.name == "bart":  # its classifier reads the last end token
        ids[np.arange(3), mask.sum(axis=1) - 1] = config["eos_token_id"]
    if family.name == "xlnet":  # its classifier reads the last position
        ids, mask = (
            np.stack([np.roll(a, 9 - n) for a, n in zip(values, mask.sum(axis=1), strict=True)])
            for values in (ids, mask)
        )
    segments = config.get("type_vocab_size", 1)
    last = 2 if family.name == "xlnet" else max(segments if type(segments) is int else 1, 1) - 1
    inputs = {"token_ids": ids, "padding_mask": mask}
    if family.uses_segments:
        inputs["segment_ids"] = np.where(mask & (np.arange(9) > 3), min(last, 1), 0)
    return inputs


NAMES = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
}
OUTPUTS = ("prediction_logits", "seq_relationship_logits", "sop_logits", "logits")


def outputs_there(family, suffix: str, folder, inputs: dict) -> list[np.ndarray]:
    """In double precision: with weights as large as these its own roundings reach 1e-5."""
    dtype = torch.float32 if family.name == "xlnet" else torch.float64  # it has no other
    model = class_of(family, suffix).from_pretrained(folder, dtype=dtype).eval()
    given = {NAMES[name]: torch.tensor(value.astype("int64")) for name, value in inputs.items()}
    if suffix == "ForMultipleChoice":  # of one choice for each text
        given = {name: value[:, None] for name, value in given.items()}
    if (family.name, suffix) == ("xlnet", "ForMaskedLM"):  # each token from all others
        itself = torch.eye(9).repeat(3, 1, 1)
        given |= {"perm_mask": itself, "target_mapping": itself}
    with torch.inference_mode():
        outputs = model(**given, return_dict=True)
    if "start_logits" in outputs:
        return [torch.stack([outputs.start_logits, outputs.end_logits], dim=1).numpy()]
    found = [outputs.get(name) for name in (*OUTPUTS, "last_hidden_state", "pooler_output")]
    return [value.numpy() for value in found if value is not None]


def outputs_here(model, inputs: dict) -> list[np.ndarray]:
    outputs = model(inputs)
    if isinstance(outputs, dict):
        order = ("masked_lm", "next_sentence", "sentence_order", "sequence_output", "pooled_output")
        outputs = [outputs[name] for name in order if name in outputs]
    return (
        [ops.convert_to_numpy(value) for value in outputs]
        if isinstance(outputs, list)
        else [ops.convert_to_numpy(outputs)]
    )


def largest_difference(here: list, there: list, mask: np.ndarray) -> float:
    """At real tokens, as a share of the largest output; infinite for other shapes."""
    differences = [0.0 if len(here) == len(there) > 0 else np.inf]
    for a, b in zip(here, there, strict=False):
        if a.shape != b.shape:
            return np.inf
        if a.shape[:2] == mask.shape:
            a, b = a[mask], b[mask]
        elif a.ndim == 3 and a.shape[1:] == (2, mask.shape[1]):  # starts and ends
            a, b = (np.moveaxis(value, 1, 2)[mask] for value in (a, b))
        differences.append(float(np.abs(a - b).max() / max(1.0, float(np.abs(b).max()))))
    return max(differences)


def dropouts_there(family, suffix: str, folder) -> set[float]:
    model = class_of(family, suffix).from_pretrained(folder)
    inside = f"{model.base_model_prefix}."
    return {
        module.p
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Dropout) and not name.startswith(inside) and module.p
    }


# -- the table -----------------------------------------------------------------------------------


def outcome(family, suffix: str, cls: type, changed: dict, folder) -> str:
    """ "equal", "refused", "not there" (transformers itself refuses it), or what is wrong."""
    folder.mkdir()
    try:
        config = write(family, suffix, changed, folder / "there")
        inputs = inputs_of(family, config)
        expected = outputs_there(family, suffix, folder / "there", inputs)
    except Exception as error:  # whatever it is: nobody has such a model
        return f"not there by {error!r}"
    try:
        here = cls.from_preset(folder / "there")
    except ValueError as error:
        named = [name for key in changed for name in (key, *written_as(family, key))]
        # transformers' own size is not that of the weights, whose shapes are all named.
        named += ["do not match config.json"] if LEFT_OUT in changed.values() else []
        refused = any(name in str(error) for name in named)
        return f"refused: {error}" if refused else f"refuses: {error}"
    except Exception as error:
        return f"crashes: {error!r}"
    difference = largest_difference(outputs_here(here, inputs), expected, inputs["padding_mask"])
    if not difference < TOLERANCE:
        return f"differs by {difference:.1e}"
    if suffix != "Model" and hasattr(here, "dropout"):
        dropped = dropouts_there(family, suffix, folder / "there")
        if dropped != ({here.dropout} if here.dropout else set()):
            return f"drops {here.dropout}, not {dropped}"
    here.save_to_preset(folder / "here")
    again = outputs_there(family, suffix, folder / "here", inputs)
    difference = largest_difference(again, expected, inputs["padding_mask"])
    return "equal" if difference < TOLERANCE else f"saved, differs by {difference:.1e}"


def written_as(family, key: str) -> list[str]:
    """What an error about a key may call it."""
    if key == "tie_word_embeddings":
        return ["tied to the token embedding"]
    names = transformers.AutoConfig.for_model(family.name).__class__.attribute_map
    return [names[key]] if key in names else []


COUNTS = collections.Counter()
FINE = ("equal", "refused", "not there")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_key_is_honoured_or_refused_or_recorded(name, tmp_path):
    """Each value by itself without a head; with each head all that are honoured at once."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    family, counts, wrong = get_family(name), collections.Counter(), {}
    config = transformers.AutoConfig.for_model(name, **settings_of(family))
    keys, heads = keys_of(family) - set(ELSEWHERE), heads_of(family)
    recorded = keys & set(IRRELEVANT) - honoured(family)
    undecided = keys - honoured(family) - recorded
    values = {key: values_of(family, key, config) for key in sorted(keys)}

    def tried(suffix: str, changed: dict) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        # A copy: transformers writes into nested values.
        return outcome(family, suffix, heads[suffix], copy.deepcopy(changed), folder)

    def note(suffix: str, key: str, value: object, found: str) -> None:
        kind = next((kind for kind in FINE if found.startswith(kind)), "wrong")
        if kind == "wrong" or (key in recorded and kind == "refused"):
            wrong[suffix, key, str(value)] = found
        counts["irrelevant" if key in recorded and kind == "equal" else kind] += 1

    equal = collections.defaultdict(list)
    for key, value in [(key, value) for key, tries in values.items() for value in tries]:
        found = tried("Model", {key: value})
        note("Model", key, value, found)
        if found == "equal":
            equal[key].append(value)
    for suffix in [suffix for suffix in heads if suffix != "Model"]:
        for i in range(max(map(len, equal.values()))):
            changed = {key: values[i % len(values)] for key, values in equal.items()}
            if name == "bart":  # its classifier there reads what ends the texts, its tokenizer's
                changed.pop("eos_token_id", None)
            for key in ALONE & changed.keys():
                value = changed.pop(key)
                note(suffix, key, value, tried(suffix, {key: value}))
            together = tried(suffix, changed)
            for key, value in changed.items():
                found = "equal" if together == "equal" else tried(suffix, {key: value})
                note(suffix, key, value, found)
    logging.disable(logging.NOTSET)
    print(f"\n{name}: {len(keys)} keys, {len(heads)} heads: {dict(counts)}")
    COUNTS.update(counts)
    print(f"all so far: {sum(COUNTS.values())} tried: {dict(COUNTS)}")
    assert not undecided, f"transformers knows keys that nobody has decided on: {sorted(undecided)}"
    assert not wrong, "\n".join(f"{case}: {what}" for case, what in wrong.items())
