"""Adapters of peft over every state of a model: the formula written out, or refused untouched."""

import json
import re

import keras
import numpy as np
import pytest
from paths import CHECKPOINTS
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.common.layers import list_layers

PREFIX = "base_model.model."
QUERY, VALUE, OUTPUT = "attention.self.query", "attention.self.value", "output.dense"
POOLER = "bert.pooler.dense"
WHOLE = ("classifier", POOLER)
ENDS = (QUERY, "attention.self.key", VALUE, "attention.output.dense", "intermediate.dense", OUTPUT)


@pytest.fixture
def new(golden):
    """A function that opens the same model again."""
    folder = golden("Bert_ForSequenceClassification").folder
    return lambda: ez.SequenceClassifier.from_preset(folder)


@pytest.fixture
def inputs(golden):
    return golden("Bert_ForSequenceClassification").inputs


def names_of(*ends, layers=(0, 1)):
    return [f"bert.encoder.layer.{i}.{end}" for i in layers for end in ends]


def dense_of(model, name):
    """The dense layer of a module of transformers, by hand."""
    if name in WHOLE:
        return model.head.output_dense if name == "classifier" else model.backbone.pooler_dense
    i, end = re.fullmatch(r"bert\.encoder\.layer\.(\d+)\.(.*)", name).groups()
    block = model.backbone.blocks[int(i)]
    layers = {
        QUERY: block.attention.query_dense,
        VALUE: block.attention.value_dense,
        "attention.output.dense": block.attention.output_dense,
        "intermediate.dense": block.intermediate_dense,
        OUTPUT: block.output_dense,
    }
    return layers[end]


def write(folder, model, names, *, whole=(), seed=0, rank=2, ranks=None, **config):
    """Write a folder as peft does; return {module: (A, B) or (weight, bias)} of its tensors."""
    rng = np.random.default_rng(seed)
    given, arrays = {}, {}
    for name in names:
        inputs, units = dense_of(model, name).kernel.shape
        r = (ranks or {}).get(name, rank)
        given[name] = rng.normal(size=(r, inputs)), rng.normal(size=(units, r))
        for which, value in zip("AB", given[name], strict=True):
            arrays[f"{PREFIX}{name}.lora_{which}.weight"] = value.astype("float32")
    for name in whole:
        inputs, units = dense_of(model, name).kernel.shape
        given[name] = rng.normal(size=(units, inputs)), rng.normal(size=units)
        for part, value in zip(("weight", "bias"), given[name], strict=True):
            arrays[f"{PREFIX}{name}.{part}"] = value.astype("float32")
    folder.mkdir(exist_ok=True)
    save_file(arrays, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": rank, "lora_alpha": 3, **config}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return given


def expected_logits(model, given, scale, inputs):
    """The logits of a new model with W + scale B A, and with the weights that are given whole."""
    for name, (first, second) in given.items():
        dense = dense_of(model, name)
        if name in WHOLE and second.ndim == 1:
            dense.kernel.assign(first.T)
            dense.bias.assign(second)
        else:
            factor = scale(name) if callable(scale) else scale
            dense.kernel.assign(
                keras.ops.convert_to_numpy(dense.kernel) + factor * (second @ first).T
            )
    return logits(model, inputs)


def logits(model, inputs):
    return keras.ops.convert_to_numpy(model(inputs))


# {case: (modules, options of `write`, what the product is multiplied by)}
FILES = {
    "plain": (names_of(QUERY, VALUE), {"target_modules": ["query", "value"]}, 3 / 2),
    "another alpha": (
        names_of(QUERY, VALUE),
        {"lora_alpha": 7, "target_modules": ["query", "value"]},
        7 / 2,
    ),
    "another rank": (
        names_of(QUERY, VALUE),
        {"rank": 3, "target_modules": ["query", "value"]},
        1.0,
    ),
    "other targets": (
        names_of("attention.output.dense", OUTPUT),
        {"target_modules": ["output.dense"]},
        3 / 2,
    ),
    "rank-stabilized": (
        names_of(QUERY),
        {"use_rslora": True, "target_modules": ["query"]},
        3 / 2**0.5,
    ),
    "no alpha in the file": (names_of(QUERY), {"lora_alpha": 8, "target_modules": ["query"]}, 4.0),
    "patterns": (
        names_of(QUERY, VALUE),
        {
            "target_modules": ["query", "value"],
            "rank_pattern": {"layer.1.attention.self.query": 4, "value": 1},
            "alpha_pattern": {"^bert.encoder.layer.0.attention.self.value": 5},
            "ranks": dict(zip(names_of(QUERY, VALUE), (2, 1, 4, 1), strict=True)),
        },
        lambda name: {
            "bert.encoder.layer.0.attention.self.query": 3 / 2,
            "bert.encoder.layer.0.attention.self.value": 5 / 1,
            "bert.encoder.layer.1.attention.self.query": 3 / 4,
            "bert.encoder.layer.1.attention.self.value": 3 / 1,
        }[name],
    ),
    "patterns of the complete name": (  # "^" is the beginning of the name, not of a part
        names_of(QUERY, layers=[0]),
        {
            "target_modules": names_of(QUERY, layers=[0]),
            "rank_pattern": {"^query": 4},
            "alpha_pattern": {"^encoder.layer.0.attention.self.query": 5, "^query": 7},
        },
        3 / 2,
    ),
    "some layers": (
        names_of(QUERY, layers=[1]),
        {"target_modules": ["query"], "layers_to_transform": [1], "layers_pattern": "layer"},
        3 / 2,
    ),
    "whole names": (
        names_of(OUTPUT, layers=[0]),
        {"target_modules": names_of(OUTPUT, layers=[0])},
        3 / 2,
    ),
    "all but": (
        names_of(OUTPUT),
        {"target_modules": ["output.dense"], "exclude_modules": ["attention.output.dense"]},
        3 / 2,
    ),
    "a regular expression": (names_of(VALUE), {"target_modules": r".*\.value"}, 3 / 2),
    "the pooler too": (
        [*names_of("attention.output.dense", "intermediate.dense", OUTPUT), POOLER],
        {"target_modules": ["dense"]},
        3 / 2,
    ),
    "the pooler whole": (
        names_of(QUERY),
        {"target_modules": ["query"], "whole": WHOLE, "modules_to_save": ["classifier", "pooler"]},
        3 / 2,
    ),
}


# Those that other configurations are saved for; in the default run the richest only.
SAVED = [
    case if case == "patterns" else pytest.param(case, marks=pytest.mark.slow) for case in FILES
]


def with_head(options):
    return {"whole": ("classifier",), **options}


def enable(model, **arguments):
    model.enable_lora(**arguments)
    rng = np.random.default_rng(9)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape))


def load_another(model, folder):
    write(folder / "another", model, names_of(VALUE, OUTPUT), seed=7, whole=WHOLE, lora_alpha=9)
    model.load_adapters(folder / "another")


STATES = {
    "fresh": lambda model, folder: None,
    "enabled": lambda model, folder: enable(model, rank=2),
    "enabled otherwise": lambda model, folder: enable(model, rank=4, alpha=9, layers=["output"]),
    "loaded another": load_another,
}


@pytest.fixture(scope="module")
def known():
    """{case: (its folder, the logits)}, as they are made once."""
    return {}


@pytest.fixture(scope="module")
def plain():
    """A model without adapters and its weights, which `right` restores before each case."""
    model = ez.SequenceClassifier.from_preset(CHECKPOINTS / "Bert_ForSequenceClassification")
    return model, model.get_weights()


@pytest.fixture
def right(plain, inputs, known, tmp_path_factory):
    """A function that returns the folder of a case's file, and the logits by the formula."""
    model, weights = plain

    def right(case):
        if case not in known:
            names, options, scale = FILES[case]
            folder = tmp_path_factory.mktemp("file")
            model.set_weights(weights)
            given = write(folder, model, names, **with_head(options))
            if case == "no alpha in the file":
                rewrite(folder, lora_alpha=...)
            known[case] = folder, expected_logits(model, given, scale, inputs)
        return known[case]

    return right


@pytest.mark.slow(except_for="^fresh")
@pytest.mark.parametrize("state", STATES)
def test_the_formula_over_every_state(state, new, inputs, right, tmp_path):
    """Each file after another state, and after another file."""
    model = new()
    STATES[state](model, tmp_path)
    for case in FILES:
        folder, expected = right(case)
        model.load_adapters(folder)
        np.testing.assert_allclose(logits(model, inputs), expected, atol=2e-4, err_msg=case)


@pytest.mark.slow
def test_graphs_that_were_traced_before_are_forgotten(new, inputs, right):
    """Also where the shapes of all weights are the same, and only the scale is another."""
    model, data = new(), {name: np.asarray(values) for name, values in inputs.items()}
    labels = np.arange(len(data["token_ids"])) % 2
    for case in ("plain", "another alpha"):
        model.predict(data, verbose=0)
        model.evaluate(data, labels, verbose=0)
        folder, expected = right(case)
        model.load_adapters(folder)
        np.testing.assert_allclose(model.predict(data, verbose=0), expected, atol=2e-4)
        loss = model.evaluate(data, labels, verbose=0, return_dict=True)["loss"]
        odds = np.log(np.exp(expected).sum(axis=1)) - expected[np.arange(len(labels)), labels]
        np.testing.assert_allclose(loss, odds.mean(), atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", SAVED)
def test_they_are_saved_as_they_are(case, new, inputs, right, tmp_path):
    """Also with several ranks and scales; and merged in a preset."""
    model = new()
    folder, expected = right(case)
    model.load_adapters(folder)
    model.save_adapters(tmp_path / "again")
    model.save_to_preset(tmp_path / "preset")
    for folder, loads in (("again", True), ("preset", False)):
        found = new() if loads else ez.SequenceClassifier.from_preset(tmp_path / folder)
        if loads:
            found.load_adapters(tmp_path / folder)
        np.testing.assert_allclose(logits(found, inputs), expected, atol=2e-4, err_msg=folder)
    config = json.loads((tmp_path / "again" / "adapter_config.json").read_text())
    known = [*names_of(*ENDS), POOLER]
    chosen = [n for n in known if any(f".{n}".endswith(f".{t}") for t in config["target_modules"])]
    assert sorted(chosen) == sorted(FILES[case][0])


@pytest.mark.slow
def test_training_between_two_files_leaves_nothing(new, inputs, tmp_path):
    """peft: weights that the second adapter does not hold are those of the model below."""
    model = new()
    write(tmp_path / "a", model, names_of(QUERY), seed=1, whole=WHOLE, target_modules=["query"])
    given = write(tmp_path / "b", model, names_of(VALUE), seed=2, whole=["classifier"])
    model.load_adapters(tmp_path / "a")
    for weight in model.trainable_weights:  # as `fit` would
        weight.assign(weight + 1)
    model.load_adapters(tmp_path / "b")
    right = expected_logits(new(), given, 3 / 2, inputs)
    np.testing.assert_allclose(logits(model, inputs), right, atol=2e-4)
    assert {id(w) for w in model.trainable_weights} >= {id(w) for w in model.head.weights}


def test_a_task_without_classes_takes_those_of_the_file(golden, new, inputs, tmp_path):
    model = new()
    given = write(tmp_path / "file", model, names_of(QUERY), whole=WHOLE, target_modules=["query"])
    later = ez.SequenceClassifier(
        ez.Backbone.from_preset(golden("Bert_ForSequenceClassification").folder)
    )
    later.load_adapters(tmp_path / "file")
    right = expected_logits(new(), given, 3 / 2, inputs)
    np.testing.assert_allclose(logits(later, inputs), right, atol=2e-4)


# -- refused, and untouched ------------------------------------------------------------------------


def rewrite(folder, **changes):
    path = folder / "adapter_config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({n: v for n, v in config.items() if v is not ...}))


def retensor(folder, change):
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)


def without(part):
    return lambda arrays: {n: a for n, a in arrays.items() if part not in n}


def widened(arrays):
    return {n: np.concatenate([a, a]) if ".layer.0." in n else a for n, a in arrays.items()}


def renamed(arrays):
    return {n.replace(".bert.", ".roberta."): a for n, a in arrays.items()}


# {case: (fields of the configuration, change of the tensors, words of the error)}
REFUSED = {
    "no tensor": ({}, lambda arrays: {}, r"layer\.0\.attention\.self\.query\.lora_A\.weight \(m"),
    "no update": ({}, without("lora_"), r"layer\.1\.attention\.self\.value\.lora_B\.weight \(mis"),
    "no update of a pattern": (
        {"target_modules": ".*query"},
        without("lora_"),
        r"lora_A\.weight, lora_B\.weight of target_modules '\.\*query' \(missing",
    ),
    "no layer of such a name": ({"target_modules": ["q_proj"]}, dict, "unexpected"),
    "a layer missing": ({}, without("layer.1.attention.self.query"), r"layer\.1.*lora_A.*missing"),
    "A missing": ({}, without("layer.0.attention.self.query.lora_A"), "lora_A.*missing"),
    "B missing": ({}, without("layer.0.attention.self.query.lora_B"), "lora_B.*missing"),
    "no head": ({}, without("classifier"), r"classifier\.weight \(missing"),
    "a layer too many": ({"target_modules": ["query"]}, dict, "value.*unexpected"),
    "unknown": ({}, lambda arrays: {**arrays, "x": np.ones(1, "float32")}, "x.*unexpected"),
    "biases": ({"bias": "all"}, dict, "bias is 'all'"),
    "biases without a word": (
        {},
        lambda arrays: {**arrays, f"{PREFIX}{POOLER}.bias": np.ones(8, "float32")},
        r"pooler.dense",
    ),
    "another module saved": ({"modules_to_save": ["embeddings", 3]}, dict, "modules_to_save"),
    "shapes": ({}, widened, "expected"),
    "another model": ({}, renamed, "roberta.*unexpected"),
    "another rank": ({"r": 3}, dict, r"is \(2, .*expected \(3,"),
    "a rank by pattern": ({"rank_pattern": {"query": 3}}, dict, r"is \(2, .*expected \(3,"),
    "an expression as pattern": ({"rank_pattern": {"(a+)+$": 3}}, dict, "rank_pattern"),
    "an alpha that is none": ({"alpha_pattern": {"query": "x"}}, dict, "alpha_pattern"),
    "an expression of layers": ({"layers_pattern": "(a+)+$"}, dict, "layers_pattern"),
    "layers": ({"layers_to_transform": ["0"]}, dict, "layers_to_transform"),
    "targets": ({"target_modules": [1]}, dict, "target_modules"),
    "rank-stabilized": ({"use_rslora": "yes"}, dict, "use_rslora"),
    "dora": ({"use_dora": True}, dict, "use_dora"),
    "another method": ({"peft_type": "IA3"}, dict, "peft_type"),
    "parameters": ({"target_parameters": ["weight"]}, dict, "target_parameters"),
    "NaN": ({}, lambda arrays: {n: a * np.nan for n, a in arrays.items()}, "NaN"),
}  # fmt: skip


def state_of(model):
    """Everything that `load_adapters` may change, bit for bit."""
    layers = [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]
    return {
        "weights": [(id(w), w.path, w.trainable, np.asarray(w).tobytes()) for w in model.weights],
        "layers": [(layer.path, layer.trainable) for layer in model._flatten_layers()],
        "updates": [(layer.path, layer.lora_rank, layer.lora_alpha) for layer in layers],
        "classes": (model.num_classes, model.labels, model.head is None, model.built),
        "before": {n: v.tobytes() for n, v in model.weights_before_adapters.items()},
    }


@pytest.mark.slow(except_for=r"^fresh$")
@pytest.mark.parametrize("state", ["fresh", "enabled otherwise", "loaded another"])
def test_what_does_not_fit_changes_nothing(state, new, tmp_path):
    model = new()
    STATES[state](model, tmp_path)
    before = state_of(model)
    for case, (config, change, message) in REFUSED.items():
        folder = tmp_path / case.replace(" ", "_")
        options = {"whole": ["classifier"], "target_modules": ["query", "value"], **config}
        write(folder, model, names_of(QUERY, VALUE), **options)
        retensor(folder, change)
        with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
            model.load_adapters(folder)
        assert state_of(model) == before, case


def test_a_task_without_classes_is_untouched_too(golden, new, tmp_path):
    write(tmp_path / "file", new(), names_of(QUERY), whole=WHOLE, target_modules=["query", "value"])
    folder = golden("Bert_ForSequenceClassification").folder
    model = ez.SequenceClassifier(ez.Backbone.from_preset(folder))
    before = state_of(model)
    with pytest.raises(ValueError, match=r"value\.lora_A\.weight \(missing"):
        model.load_adapters(tmp_path / "file")
    assert state_of(model) == before


@pytest.mark.slow
def test_weights_below_that_are_not_known(new, tmp_path):
    """A backbone with updates of its own: nobody has noted the head and pooler before them."""
    trained = new()
    trained.backbone.enable_lora(2)
    write(
        tmp_path / "file", trained, names_of(QUERY), whole=["classifier"], target_modules=["query"]
    )
    before = state_of(trained)
    with pytest.raises(ValueError, match=r"pooler.*from_preset"):
        trained.load_adapters(tmp_path / "file")
    assert state_of(trained) == before
    write(tmp_path / "whole", trained, names_of(QUERY), whole=WHOLE, target_modules=["query"])
    trained.load_adapters(tmp_path / "whole")


# -- enable_lora -----------------------------------------------------------------------------------

OTHERS = {
    "rank": {"rank": 4},
    "alpha": {"rank": 2, "alpha": 5},
    "fewer": {"rank": 2, "layers": ["query"]},
    "more": {"rank": 2, "layers": ["query", "value", "output"]},
    "others": {"rank": 2, "layers": ["intermediate"]},
}


@pytest.mark.slow(except_for=r"^others-True$")
@pytest.mark.parametrize("of_task", [True, False])
@pytest.mark.parametrize("other", OTHERS)
def test_a_second_enable_lora_is_refused(other, of_task, new):
    model = new()
    enable(model, rank=2)
    before = state_of(model)
    with pytest.raises(ValueError, match="rank 2.*alpha 2.* 4 layers"):
        (model if of_task else model.backbone).enable_lora(**OTHERS[other])
    assert state_of(model) == before


@pytest.mark.parametrize(
    "again", [{"rank": 2}, {"rank": 2, "alpha": 2.0, "layers": ["value", "query"]}]
)
def test_the_same_enable_lora_changes_nothing(again, new):
    model = new()
    enable(model, rank=2)
    before = state_of(model)
    model.enable_lora(**again)
    assert state_of(model) == before


def test_a_layer_that_takes_no_update_leaves_the_model_as_it_was(new):
    model = new()
    model.backbone.blocks[1].attention.value_dense.kernel_constraint = keras.constraints.NonNeg()
    before = state_of(model)
    with pytest.raises(ValueError, match="kernel.constraint"):
        model.enable_lora(2)
    assert state_of(model) == before


def test_updates_that_peft_cannot_hold_are_not_left_out(tiny, tmp_path):
    """XLNet's projections are no linear layers in transformers."""
    model = tiny.task(ez.XLNetBackbone.family, "SequenceClassifier")
    model.enable_lora(2, layers=["query", "intermediate"])
    with pytest.raises(ValueError, match="attention/query"):
        model.save_adapters(tmp_path)


def thaw_layers(block):
    for layer in list_layers(block):
        layer.trainable = True


TRAINED_TOO = {
    "a block": ("SequenceClassifier", "block_0", lambda m: thaw_layers(m.backbone.blocks[0])),
    "the embeddings": (
        "TokenClassifier",
        "token_embedding",
        lambda m: setattr(m.backbone.embeddings.token_embedding, "trainable", True),
    ),
    "a bias": (
        "SequenceClassifier",
        "bias",
        lambda m: setattr(m.backbone.blocks[0].attention.query_dense.bias, "trainable", True),
    ),
}


@pytest.mark.slow(except_for="^a block$")
@pytest.mark.parametrize("case", TRAINED_TOO)
def test_weights_that_are_trained_too_are_not_left_out(case, tiny, tmp_path):
    name, path, thaw = TRAINED_TOO[case]
    model = tiny.task(ez.BertBackbone.family, name)
    model.enable_lora(2)
    model.save_adapters(tmp_path / "adapters")
    thaw(model)
    with pytest.raises(ValueError, match=f"{path}.*save_to_preset"):
        model.save_adapters(tmp_path / "others")
    assert not (tmp_path / "others").exists()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "int8"])
def test_precisions(dtype, golden, inputs, tmp_path):
    """The base in fewer bits: what the adapters add is what they add to float32."""
    folder = golden("Bert_ForSequenceClassification").folder

    def made():
        model = ez.SequenceClassifier.from_preset(
            folder, dtype="float32" if dtype == "int8" else dtype
        )
        if dtype == "int8":
            model.quantize("int8")
        return model

    model = made()
    write(
        tmp_path / "file",
        ez.SequenceClassifier.from_preset(folder),
        names_of(QUERY, VALUE),
        whole=["classifier"] if dtype != "int8" else [],
        target_modules=["query", "value"],
    )
    if dtype == "int8":
        rewrite(tmp_path / "file", task_type=None)
    retensor(tmp_path / "file", lambda arrays: {n: a / 3 for n, a in arrays.items()})
    float32 = ez.SequenceClassifier.from_preset(folder)
    float32.load_adapters(tmp_path / "file")
    model.load_adapters(tmp_path / "file")
    np.testing.assert_allclose(logits(model, inputs), logits(float32, inputs), atol=0.1, rtol=0.1)
