"""KerasHub presets: the same numbers here and there."""

import numpy as np
import pytest

import encoder_zoo as ez

keras_hub = pytest.importorskip("keras_hub")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

FAMILIES = ["Bert", "Roberta"]
SIZES = {
    "vocabulary_size": 40,
    "num_layers": 3,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 20,
    "max_sequence_length": 24,
}


def whole(names: list[str]) -> list[str]:
    """Return the vocabulary with unused names, one for every row of the embeddings."""
    return names + [f"[unused{i}]" for i in range(SIZES["vocabulary_size"] - len(names))]


def make_there(family: str, task: str | None):
    """A model of KerasHub's with random weights, biases among them."""
    backbone = getattr(keras_hub.models, f"{family}Backbone")(**SIZES)
    if family == "Bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s"]
        tokenizer = keras_hub.models.BertTokenizer(whole(words), lowercase=True)
    else:
        names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", "a", "b", "c", "Ġa", "ab"]
        vocabulary = {name: i for i, name in enumerate(whole(names))}
        tokenizer = keras_hub.models.RobertaTokenizer(vocabulary, ["Ġ a", "a b"])
    model = backbone
    if task == "SequenceClassifier":
        preprocessor = getattr(keras_hub.models, f"{family}TextClassifierPreprocessor")(tokenizer)
        cls = getattr(keras_hub.models, f"{family}TextClassifier")
        model = cls(backbone, num_classes=3, preprocessor=preprocessor)
    elif task == "MaskedLM":
        preprocessor = getattr(keras_hub.models, f"{family}MaskedLMPreprocessor")(tokenizer)
        model = getattr(keras_hub.models, f"{family}MaskedLM")(backbone, preprocessor=preprocessor)
    rng = np.random.default_rng(0)
    model.set_weights([w + rng.normal(0, 0.3, w.shape) for w in model.get_weights()])
    return model


def inputs(family: str, task: str | None) -> dict:
    rng = np.random.default_rng(1)
    mask = np.arange(9) < np.array([[9], [6], [1]])
    ids = np.where(mask, rng.integers(5, 40, mask.shape), {"Bert": 0, "Roberta": 1}[family])
    x = {"token_ids": ids, "padding_mask": mask}
    if family == "Bert":
        x["segment_ids"] = (mask & (np.arange(9) > 3)).astype(int)
    if task == "MaskedLM":
        x["mask_positions"] = np.array([[1, 4], [2, 3], [0, 0]])
    return x


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", [None, "SequenceClassifier", "MaskedLM"])
def test_a_kerashub_preset_computes_what_it_computes_there(family, task, tmp_path):
    there = make_there(family, task)
    there.save_to_preset(str(tmp_path))
    here = getattr(ez, task or "Backbone").from_preset(tmp_path)
    x = inputs(family, task)
    expected, found = there(dict(x)), here(x)
    if task is None:
        expected = expected["sequence_output"] if isinstance(expected, dict) else expected
        mask = x["padding_mask"]
        expected, found = np.array(expected)[mask], np.array(found["sequence_output"])[mask]
    difference = np.abs(np.array(expected) - np.array(found)).max()
    print(f"{family} {task}: {difference:.1e}")
    assert difference < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokenizer_of_a_kerashub_preset_is_read(family, tmp_path):
    there = make_there(family, "SequenceClassifier")
    there.save_to_preset(str(tmp_path))
    here = ez.SequenceClassifier.from_preset(tmp_path)
    texts = ["The cats sat", "the cat"] if family == "Bert" else ["ab a", "c ab"]
    expected = [np.array(ids).tolist() for ids in there.preprocessor.tokenizer(texts)]
    assert here.preprocessor.tokenizer.tokenize(texts).to_list() == expected


def test_a_kerashub_tokenizer_of_another_class_is_refused(tmp_path):
    make_there("Bert", "SequenceClassifier").save_to_preset(str(tmp_path))
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace('"BertTokenizer"', '"RobertaTokenizer"'))
    with pytest.raises(ValueError, match=r"class_name is 'RobertaTokenizer'.*BertToken"):
        ez.SequenceClassifier.from_preset(tmp_path)


def test_a_kerashub_preset_saves_as_a_preset_of_ours(tmp_path):
    make_there("Roberta", "SequenceClassifier").save_to_preset(str(tmp_path / "theirs"))
    here = ez.SequenceClassifier.from_preset(tmp_path / "theirs")
    here.save_to_preset(tmp_path / "ours")
    again = ez.SequenceClassifier.from_preset(tmp_path / "ours")
    x = inputs("Roberta", None)
    np.testing.assert_array_equal(np.array(here(x)), np.array(again(x)))
