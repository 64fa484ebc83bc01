"""What single families have that others have not."""

import json
import shutil

import numpy as np
import pytest
from keras import ops
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez


def table(backbone) -> np.ndarray:
    return ops.convert_to_numpy(backbone.embeddings.position_embedding.embeddings)


# -- heads whose activation config.json says ---------------------------------------------------

FUNCTIONS = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, None: lambda x: x}


def changed(golden, name: str, folder, **fields):
    """A stored checkpoint with other fields in its configuration."""
    shutil.copytree(golden(name).folder, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


@pytest.mark.slow(except_for="^Electra_ForMultipleChoice")
@pytest.mark.parametrize(
    ("name", "key", "value", "layer"),
    [
        ("Electra_ForMultipleChoice", "summary_activation", "tanh", "sequence_summary.summary"),
        ("Electra_ForMultipleChoice", "summary_activation", None, "sequence_summary.summary"),
        ("XLNet_ForMultipleChoice", "summary_activation", "relu", "sequence_summary.summary"),
        ("DebertaV2_ForMultipleChoice", "pooler_hidden_act", "tanh", "pooler.dense"),
    ],
)
def test_the_layer_before_the_output_has_the_activation_of_config_json(
    golden, tmp_path, name, key, value, layer
):
    folder = changed(golden, name, tmp_path / "theirs", **{key: value})
    stored, weights = golden(name), load_file(folder / "model.safetensors")
    task = ez.MultipleChoice.from_preset(folder)
    x = task.backbone(stored.inputs)["sequence_output"]
    x = ops.convert_to_numpy(task.backbone.text_vectors(x, stored.inputs))
    inner = FUNCTIONS[value](x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"])
    output = "logits_proj" if name.startswith("XLNet") else "classifier"
    expected = inner @ weights[f"{output}.weight"].T + weights[f"{output}.bias"]
    np.testing.assert_allclose(task(stored.inputs), expected, rtol=1e-5, atol=1e-5)
    task.save_to_preset(tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())[key]
    assert written == (value or "linear")


@pytest.mark.slow
def test_electras_discriminator_has_the_activation_of_its_blocks(tiny):
    """Its classifier and its generator have GELU, whatever `hidden_act` says."""
    family = ez.ElectraBackbone.family
    task = tiny.randomize_weights(tiny.task(family, "ReplacedTokenDetection", activation="relu"))
    rows = tiny.rows(family)
    x = ops.convert_to_numpy(task.backbone(rows)["sequence_output"])
    kernels = [(layer.kernel, layer.bias) for layer in (task.head.hidden.dense,)]
    kernels += [(task.head.output_dense.kernel, task.head.output_dense.bias)]
    (inner, bias), (output, last) = [map(ops.convert_to_numpy, pair) for pair in kernels]
    expected = np.maximum(x @ inner + bias, 0) @ output + last
    np.testing.assert_allclose(task(rows), expected[..., 0], rtol=1e-5, atol=1e-5)
    assert task.generator.head.hidden.activation == "gelu"
    assert (
        tiny.task(family, "SequenceClassifier", activation="relu").head.hidden.activation == "gelu"
    )


def test_a_summary_that_is_not_implemented_is_refused(golden, tmp_path):
    folder = changed(golden, "Electra_Model", tmp_path / "theirs", summary_type="mean")
    with pytest.raises(ValueError, match=r"summary_type is 'mean'"):
        ez.Backbone.from_preset(folder)


def test_two_names_of_a_key_have_one_value(golden, tmp_path):
    folder = changed(golden, "DistilBert_Model", tmp_path / "theirs", num_hidden_layers=1)
    with pytest.raises(ValueError, match="num_hidden_layers is 1.*n_layers.*2"):
        ez.Backbone.from_preset(folder)
    folder = changed(golden, "DistilBert_Model", tmp_path / "other", num_hidden_layers=2)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["n_layers"]
    path.write_text(json.dumps(config))
    assert ez.Backbone.from_preset(folder).num_layers == 2


def test_a_new_head_drops_as_config_json_says(golden, tmp_path):
    folder = changed(golden, "Bert_Model", tmp_path / "theirs", classifier_dropout=0.4)
    assert ez.SequenceClassifier.from_preset(folder, num_classes=2).dropout == 0.4


# -- ELECTRA -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_electras_lower_layers_learn_more_slowly(tiny):
    """Adam's steps are as long as the learning rate, where all gradients are alike."""
    classifier = tiny.task(ez.ElectraBackbone.family, "SequenceClassifier")
    classifier.compile()
    variables = classifier.trainable_variables
    before = [ops.convert_to_numpy(variable) for variable in variables]
    optimizer = classifier.optimizer
    optimizer.build(variables)
    optimizer.restart(1.0, total_steps=100)
    for _ in range(3):  # at the learning rates 0.1, 0.2 and 0.3
        optimizer.apply([ops.ones(variable.shape) for variable in variables])
    steps = {
        id(variable): float(np.max(value - ops.convert_to_numpy(variable)))
        for variable, value in zip(variables, before, strict=True)
    }
    backbone = classifier.backbone
    parts = [classifier.head, *reversed(backbone.blocks), backbone.embeddings]
    for i, part in enumerate(parts):
        found = [steps[id(variable)] for variable in part.trainable_variables]
        np.testing.assert_allclose(found, 0.6 * 0.8**i, rtol=1e-3)


# -- DistilBERT --------------------------------------------------------------------------------


@pytest.mark.slow
def test_sinusoidal_positions_stay_as_they_are_and_are_saved(tiny, tmp_path):
    family = ez.DistilBertBackbone.family
    classifier = tiny.task(family, "SequenceClassifier", sinusoidal_positions=True)
    before = table(classifier.backbone)
    classifier.fit(["a b", "c"], ["O", "B-X"], verbose=0)
    np.testing.assert_array_equal(table(classifier.backbone), before)
    classifier.save_to_preset(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["sinusoidal_pos_embds"] is True
    loaded = ez.Backbone.from_preset(tmp_path)
    np.testing.assert_array_equal(table(loaded), before)
    assert not loaded.embeddings.position_embedding.trainable


def test_sinusoidal_positions_are_waves_of_growing_length():
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 4, "intermediate_dim": 4}
    backbone = ez.DistilBertBackbone(9, **sizes, sinusoidal_positions=True)
    positions = np.arange(512)
    waves = [positions, positions / 100]  # 10000 to the powers 0 and 2/4
    expected = np.stack([f(wave) for wave in waves for f in (np.sin, np.cos)], axis=1)
    np.testing.assert_allclose(table(backbone), expected, atol=1e-6)


@pytest.mark.slow
def test_heads_drop_what_distilberts_code_does_where_the_configuration_is_silent(tiny):
    family = ez.DistilBertBackbone.family
    shares = {
        name: tiny.task(family, name, dropout=0.4).dropout
        for name in ("SequenceClassifier", "TokenClassifier", "SpanQA")
    }
    assert shares == {"SequenceClassifier": 0.2, "TokenClassifier": 0.4, "SpanQA": 0.1}


# -- ALBERT ------------------------------------------------------------------------------------


def albert(**arguments):
    sizes = {"num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "embedding_dim": 4}
    return ez.AlbertBackbone(30, **{**sizes, **arguments})


@pytest.mark.slow
def test_albert_has_the_weights_of_its_groups_however_many_places_there_are(tmp_path):
    assert albert(num_layers=2).count_params() == albert(num_layers=7).count_params()
    backbone = albert(num_layers=5, num_groups=2)
    assert [block.name for block in backbone.blocks] == ["block_0"] * 3 + ["block_1"] * 2
    backbone.save_to_preset(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        names = [name for name in file.keys() if name.endswith("ffn.weight")]  # noqa: SIM118
    groups = "encoder.albert_layer_groups.{}.albert_layers.0.ffn.weight"
    assert sorted(names) == [groups.format(0), groups.format(1)]
    loaded = ez.Backbone.from_preset(tmp_path)
    ids = {"token_ids": np.array([[2, 7, 9, 3]])}
    np.testing.assert_array_equal(loaded(ids)["sequence_output"], backbone(ids)["sequence_output"])


def test_albert_projects_embeddings_of_its_own_width_too():
    backbone = albert(num_layers=1, embedding_dim=8)
    assert backbone.embeddings.projection.kernel.shape == (8, 8)


@pytest.mark.parametrize("groups", [0, 3])
def test_albert_refuses_groups_without_a_place(groups):
    with pytest.raises(ValueError, match=f"num_groups.*{groups}"):
        albert(num_layers=2, num_groups=groups)


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("inner_group_num", 2, "1"),
        ("num_hidden_layers", 10**9, "1000"),
        ("num_hidden_groups", 2, " 1,"),
        ("embedding_size", 7, " 6, .*word_embeddings.weight"),
    ],
)
def test_an_albert_that_cannot_be_is_refused_before_it_is_made(
    golden, tmp_path, field, value, words
):
    shutil.copytree(golden("Albert_Model").folder, tmp_path / "preset")
    path = tmp_path / "preset" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ValueError, match=rf"config\.json: {field} is {value}.*{words}"):
        ez.Backbone.from_preset(tmp_path / "preset")


def test_lora_of_a_shared_block_trains_one_pair_of_updates_each(tiny):
    backbone = albert(num_layers=6)
    backbone.enable_lora(rank=2)
    names = [v.path.split("/")[-1] for v in backbone.trainable_variables]
    assert sorted(names) == ["lora_kernel_a"] * 2 + ["lora_kernel_b"] * 2


def test_albert_drops_at_its_head_alone(tiny):
    family = ez.AlbertBackbone.family
    classifier = tiny.task(family, "SequenceClassifier")
    assert (classifier.dropout, classifier.backbone.dropout) == (0.1, 0.0)
    assert tiny.task(family, "SpanQA").dropout == 0.0


# -- XLM-RoBERTa, CamemBERT --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["XLMRoberta", "Camembert"])
def test_a_relative_of_roberta_is_found_by_any_of_its_classes(golden, name):
    folder = golden(f"{name}_Model").folder
    cls = getattr(ez, f"{name}Backbone")
    assert type(ez.RobertaBackbone.from_preset(folder)) is cls
    with pytest.raises(ValueError, match=f"contains a {name}Backbone"):
        ez.BertBackbone.from_preset(folder)
    with pytest.raises(ValueError, match="contains a RobertaBackbone"):
        cls.from_preset(golden("Roberta_Model").folder)


# -- ModernBERT --------------------------------------------------------------------------------


def modernbert(**arguments):
    sizes = {"num_layers": 4, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    return ez.ModernBertBackbone(30, **{**sizes, **arguments})


def changed_modernbert(golden, folder, **fields):
    """A stored checkpoint with other fields in its configuration; None takes one away."""
    shutil.copytree(golden("ModernBert_ForSequenceClassification").folder, folder)
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    kept = {key: value for key, value in config.items() if value is not None}
    path.write_text(json.dumps(kept))
    return folder


def test_local_blocks_see_the_window_alone():
    backbone = modernbert(num_layers=2, global_every=2, local_attention=4)
    ids = np.arange(12)[None] + 5
    probabilities = ops.convert_to_numpy(backbone.attention_probabilities({"token_ids": ids}))[0]
    distances = np.abs(np.arange(12)[:, None] - np.arange(12))
    assert (probabilities[0] > 0).all()
    np.testing.assert_array_equal(probabilities[1] > 0, np.stack([distances <= 2] * 2))


def test_rotary_positions_tell_distances_alone(tiny):
    """The same text further behind, after padding, has the same outputs."""
    backbone = tiny.randomize_weights(modernbert())
    text = np.array([[7, 3, 9, 4]])
    alone = backbone({"token_ids": text})["sequence_output"]
    ids, mask = np.pad(text, ((0, 0), (5, 0))), np.arange(9)[None] >= 5
    behind = backbone({"token_ids": ids, "padding_mask": mask})["sequence_output"]
    np.testing.assert_allclose(behind[:, 5:], alone, atol=1e-5)


def test_the_mean_of_a_text_leaves_padding_out(tiny):
    family = ez.ModernBertBackbone.family
    classifier = tiny.task(family, "SequenceClassifier", pooling="mean")
    rows = {"token_ids": np.array([[1, 6, 7, 2]]), "padding_mask": np.ones((1, 4), bool)}
    padded = {name: np.pad(value, ((0, 0), (0, 3))) for name, value in rows.items()}
    np.testing.assert_allclose(classifier(padded), classifier(rows), atol=1e-5)
    first = tiny.task(family, "SequenceClassifier", pooling="cls")
    first.set_weights(classifier.get_weights())
    assert np.abs(ops.convert_to_numpy(first(rows) - classifier(rows))).max() > 1e-3


def test_a_modernbert_knows_two_poolings_alone():
    with pytest.raises(ValueError, match="pooling is 'max'"):
        modernbert(pooling="max")


THETAS = {"global_rope_theta": 70.0, "local_rope_theta": 3.0}
PARAMETERS = {
    "full_attention": {"rope_type": "default", "rope_theta": 70.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3.0},
}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
TYPES = ["full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": None, **THETAS},
        {"rope_parameters": PARAMETERS, "global_rope_theta": 5.0},
        {"rope_parameters": {"full_attention": {}, "sliding_attention": None}, **THETAS},
    ],
    ids=["before transformers 5", "since", "both"],
)
def test_bases_of_rotary_positions_in_configurations_of_any_age(golden, tmp_path, fields):
    backbone = ez.Backbone.from_preset(changed_modernbert(golden, tmp_path / "theirs", **fields))
    assert {name: getattr(backbone, name) for name in THETAS} == THETAS


@pytest.mark.parametrize(
    "fields, every",
    [
        ({"layer_types": None}, 3),
        ({"layer_types": None, "global_attn_every_n_layers": 1}, 1),
        ({"layer_types": TYPES[:1] * 2}, 1),
        ({"layer_types": TYPES, "global_attn_every_n_layers": 5}, 5),
        ({"layer_types": TYPES}, 3),
    ],
)
def test_which_blocks_are_global_in_configurations_of_any_age(golden, tmp_path, fields, every):
    backbone = ez.Backbone.from_preset(changed_modernbert(golden, tmp_path / "theirs", **fields))
    local = [bool(i % every) for i in range(backbone.num_layers)]
    assert [bool(i % backbone.global_every) for i in range(backbone.num_layers)] == local


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("layer_types", TYPES[::-1], ""),
        ("layer_types", [*TYPES, TYPES[1]], "3.*2 layers"),
        ("rope_parameters", {"rope_type": "yarn"}, "'full_attention'"),
        ("rope_parameters", {"full_attention": {"rope_type": "yarn"}}, "'default'"),
        ("rope_parameters", {"full_attention": YARN, "sliding_attention": None}, "the same"),
        ("rope_scaling", {"factor": 2}, "'factor'"),
        ("partial_rotary_factor", 0.5, "0.5"),
        ("head_dim", 4, "4"),
        ("attention_bias", True, "False"),
        ("mlp_bias", True, "False"),
        ("norm_bias", True, "False"),
        ("classifier_bias", True, "False"),
        ("decoder_bias", False, "True"),
        ("classifier_activation", "quick_gelu", "gelu"),
        ("classifier_pooling", "max", "'cls' or 'mean'"),
        ("hidden_activation", "quick_gelu", "gelu"),
        ("local_attention", 0, "0"),
    ],
)
def test_a_modernbert_that_is_not_implemented_is_refused(golden, tmp_path, field, value, words):
    folder = changed_modernbert(golden, tmp_path / "theirs", **{field: value})
    with pytest.raises(ValueError, match=rf"config\.json: {field}.*{words}"):
        ez.Backbone.from_preset(folder)


@pytest.mark.slow
def test_a_modernbert_without_a_head_takes_a_new_one(golden, tmp_path, caplog):
    """As gte-modernbert comes: a model alone, with the mean for its pooling."""
    shutil.copytree(golden("ModernBert_Model").folder, tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "classifier_pooling": "mean"}))
    classifier = ez.SequenceClassifier.from_preset(tmp_path / "theirs", labels=["no", "yes"])
    assert "random weights" in caplog.text
    assert classifier.backbone.pooling == "mean"
    assert len(classifier.classify(["the cat"])[0]["label"]) > 1
    stored = golden("ModernBert_Model")
    found = ops.convert_to_numpy(classifier.backbone(stored.inputs)["sequence_output"])
    real = stored.inputs["padding_mask"]
    np.testing.assert_allclose(found[real], stored.expected["last_hidden_state"][real], atol=1e-5)


# -- DeBERTa -----------------------------------------------------------------------------------


def test_debertas_masked_lm_head_has_two_names(golden, tmp_path):
    """Transformers calls it `lm_predictions` where a configuration says `legacy: false`."""
    checkpoint = golden("DebertaV2_ForMaskedLM")
    shutil.copytree(checkpoint.folder, tmp_path, dirs_exist_ok=True)
    renamed = {}
    for name, array in load_file(checkpoint.folder / "model.safetensors").items():
        name = name.replace("cls.predictions.transform.", "lm_predictions.lm_head.")
        renamed[name.replace("cls.predictions.bias", "lm_predictions.lm_head.bias")] = array
    assert sum(name.startswith("lm_predictions.lm_head.") for name in renamed) == 5
    save_file(renamed, tmp_path / "model.safetensors")
    found = ops.convert_to_numpy(ez.MaskedLM.from_preset(tmp_path)(checkpoint.inputs))
    real = checkpoint.inputs["padding_mask"].astype(bool)
    np.testing.assert_allclose(found[real], checkpoint.expected["logits"][real], atol=1e-5)


@pytest.mark.parametrize(
    "name", ["relative_attention", "share_att_key", "norm_rel_ebd", "position_biased_input"]
)
def test_what_debertas_configuration_must_say(name, golden, tmp_path):
    """Without these fields it is another model, whose numbers would be wrong here."""
    shutil.copytree(golden("DebertaV2_Model").folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config[name]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"{name} is "):
        ez.Backbone.from_preset(tmp_path)


@pytest.mark.slow
def test_tokens_that_debertas_do_not_attend_to_are_one_vector(golden):
    """As in transformers: they begin as zeros and attend to all tokens alike, but to padding."""
    backbone = ez.Backbone.from_preset(golden("DebertaV2_Model").folder)
    tokens = np.array([[1, 7, 9, 2, 5, 6, 5, 0]])
    real, attended = (np.arange(8)[None] < count for count in (7, 4))

    def outputs(**inputs):
        return ops.convert_to_numpy(backbone(inputs)["sequence_output"])[0]

    found = outputs(token_ids=tokens, padding_mask=real, attended_mask=attended)
    np.testing.assert_allclose(found[:4], outputs(token_ids=tokens[:, :4]), atol=1e-5)
    np.testing.assert_allclose(found[5:7], found[[4, 4]], atol=1e-5)
    longer = outputs(token_ids=tokens[:, :7], attended_mask=attended[:, :7])
    np.testing.assert_allclose(found[:7], longer, atol=1e-5)
