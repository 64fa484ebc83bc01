"""Messages about encoders and tokenizers advise what works: each is provoked here, and followed."""

import dataclasses
import json

import pytest
from small_tasks import BERT, new

import encoder_zoo as ez
import encoder_zoo.encoders as encoders
import encoder_zoo.tasks as tasks_wing
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny


def test_names_of_other_libraries(tmp_path):
    classifier = new("SequenceClassifier", labels=["a", "b"])
    with pytest.raises(AttributeError, match=r"'save_pretrained'.*save_to_preset"):
        classifier.save_pretrained(tmp_path)
    classifier.save_to_preset(tmp_path)


def test_tokens_that_are_meant():
    with pytest.raises(ValueError, match=r"'\[MASKK\]'.*'\[MASK\]'"):
        tiny.tokenizer(BERT).token_to_id("[MASKK]")
    assert tiny.tokenizer(BERT).token_to_id("[MASK]")


def test_names_of_parts_are_their_own():
    class Own(ez.BertBackbone):
        pass

    class Titles(ez.SequenceClassifier):
        record = dataclasses.replace(ez.SequenceClassifier.record, name="span_qa")

    with pytest.raises(ValueError, match=r"'bert'"):
        ez.register_family(like=BERT, name="bert")(Own)
    with pytest.raises(ValueError, match=r"'span_qa'.*record of Titles"):
        ez.register_task(Titles)
    Titles.record = dataclasses.replace(Titles.record, name="titles_of_a_test")
    families, tasks = dict(encoders.FAMILIES), dict(tasks_wing.TASKS)
    try:
        assert ez.register_family(like=BERT, name="own_of_a_test")(Own) is Own
        assert ez.register_task(Titles) is Titles
    finally:
        encoders.FAMILIES.pop("own_of_a_test"), encoders._REGISTERED_FAMILIES.pop("own_of_a_test")
        tasks_wing.TASKS.pop("titles_of_a_test"), tasks_wing._REGISTERED.pop("titles_of_a_test")
    assert (families, tasks) == (encoders.FAMILIES, tasks_wing.TASKS)


@pytest.fixture
def preset(tmp_path):
    """A preset of a backbone, as others write it."""
    tiny.backbone(BERT).save_to_preset(tmp_path, tokenizer=tiny.tokenizer(BERT))
    (tmp_path / "encoder_zoo.json").unlink()
    return tmp_path


def change(file, **fields) -> None:
    """Set fields of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def drop(file, field: str) -> None:
    """Take a field out of a JSON file."""
    content = json.loads(file.read_text())
    del content[field]
    file.write_text(json.dumps(content))


def test_tokenizers_put_special_tokens_around_texts(preset):
    file, config = preset / "tokenizer.json", preset / "tokenizer_config.json"
    processor = json.loads(file.read_text())["post_processor"]
    drop(config, "tokenizer_class")
    change(file, post_processor=None)
    with pytest.raises(ValueError, match=r"tokenizer\.json: post_processor.*tokenizer_class"):
        ez.Tokenizer.from_preset(preset)
    change(config, tokenizer_class="BertTokenizer")
    assert ez.Tokenizer.from_preset(preset).vocabulary_size
    drop(config, "tokenizer_class")
    change(file, post_processor=processor)
    assert ez.Tokenizer.from_preset(preset).vocabulary_size


def test_tokenizers_say_how_they_normalize(preset):
    change(preset / "tokenizer.json", normalizer=None)
    with pytest.raises(ValueError, match=r"tokenizer\.json: normalizer.*PreTrainedTokenizerFast"):
        ez.Tokenizer.from_preset(preset)
    change(preset / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    [ids] = ez.Tokenizer.from_preset(preset).tokenize(["A a"]).to_list()
    assert ids == [1, 5]  # "A" is unknown, as tokenizer.json has it


def test_tokenizers_are_those_of_the_backbone(preset):
    other = tiny.tokenizer(get_family("roberta"))
    backbone = ez.Backbone.from_preset(preset)
    with pytest.raises(ValueError, match=r"RobertaTokenizer.*BertTokenizer.*from_preset"):
        ez.MaskedLM(backbone, ez.MaskedLM.record.preprocessor_class(other))
    own = ez.Tokenizer.from_preset(preset)
    ez.MaskedLM(backbone, ez.MaskedLM.record.preprocessor_class(own))


def test_special_tokens_are_in_the_vocabulary(preset):
    tokens = ez.Tokenizer.from_preset(preset).vocabulary_size
    config = preset / "tokenizer_config.json"
    change(config, additional_special_tokens=["<e>"])
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: .*'<e>'.*added_tokens"):
        ez.MaskedLM.from_preset(preset)
    drop(config, "additional_special_tokens")
    task = ez.MaskedLM.from_preset(preset, added_tokens=["<e>"])
    assert task.preprocessor.tokenizer.vocabulary_size == tokens + 1
    assert task.backbone.vocabulary_size >= tokens + 1


@pytest.mark.slow
def test_heads_have_their_pooler(tmp_path):
    with pytest.raises(ValueError, match=r"classifier.*pooler=True"):
        new("SequenceClassifier", pooler=False, labels=["a", "b"])
    new("SequenceClassifier", pooler=True, labels=["a", "b"])
    tiny.backbone(BERT, pooler=False).save_to_preset(tmp_path, tokenizer=tiny.tokenizer(BERT))
    assert ez.SequenceClassifier.from_preset(tmp_path, labels=["a", "b"]).backbone.pooler
    with pytest.raises(ValueError, match=r"Pretraining.*pooler=True"):
        new("Pretraining", pooler=False)
    new("Pretraining", pooler=True)


@pytest.mark.slow
def test_families_have_their_pretraining():
    electra = get_family("electra")
    with pytest.raises(ValueError, match=r"'bert'.*MaskedLM"):
        new("ReplacedTokenDetection", pooler=False)
    new("Pretraining"), new("MaskedLM", pooler=False)
    with pytest.raises(ValueError, match=r"'electra'.*MaskedLM.*ReplacedTokenDetection"):
        new("Pretraining", electra)
    new("MaskedLM", electra, pooler=False)
    new("ReplacedTokenDetection", electra, pooler=False)
