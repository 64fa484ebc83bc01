"""Tokens added to a vocabulary: found in texts, kept in files, and rows for them in models."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import run

import encoder_zoo as ez
from encoder_zoo.encoders.tokenizers.segmentation.added_tokens import select_leftmost_spans

pytestmark = pytest.mark.eager

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "中", "new"]
MARKER = {"content": "<e>", "special": True}


def bert(*added, **options) -> ez.BertTokenizer:
    return ez.BertTokenizer(WORDS, added_tokens=added, **options)


def tokens(tokenizer, text: str) -> list[tuple[str, str]]:
    """What was found, and what it was found for."""
    ids, starts, ends = (part.numpy() for part in tokenizer.tokenize_with_offsets(text))
    assert tokenizer.tokenize(text).numpy().tolist() == ids.tolist()
    assert tokenizer.tokenize([text, "a"]).to_list() == [ids.tolist(), [5]]
    return [
        (tokenizer.id_to_token(i), text[s:e]) for i, s, e in zip(ids, starts, ends, strict=True)
    ]


@pytest.mark.slow(except_for="^added1")
@pytest.mark.parametrize(
    ("added", "text", "expected"),
    [
        # Words are looked for in the normalised text, markers in the text as it stands.
        ("Covid", "a COVIDb", [("a", "a"), ("Covid", "COVID"), ("b", "b")]),
        (MARKER, "<E>a<e>", [*[("[UNK]", c) for c in "<"], ("[UNK]", "E"), ("[UNK]", ">")]),
        # "ab" is a and ##b; cut out of it, b begins a word of its own.
        ({"content": "a", "normalized": False}, "ab", [("a", "a"), ("b", "b")]),
        ({"content": "new york"}, "a NEW york!", [("a", "a"), ("new york", "NEW york")]),
        ({"content": "<e>", "lstrip": True}, "a  <e> b", [("a", "a"), ("<e>", "  <e>")]),
        ({"content": "<e>", "rstrip": True}, "a <e>  b", [("a", "a"), ("<e>", "<e>  ")]),
        ({"content": "b", "single_word": True}, "ab b-", [("a", "a"), ("##b", "b"), ("b", "b")]),
    ],
)
def test_options(added, text, expected):
    assert tokens(bert(added), text)[: len(expected)] == expected


@pytest.mark.slow
def test_of_several_the_longest_counts_and_the_first_from_the_left():
    tokenizer = bert("xy", "xyz", "zx")
    assert tokens(tokenizer, "xyzx") == [("xyz", "xyz"), ("[UNK]", "x")]
    assert tokens(tokenizer, "xyxyzzx") == [("xy", "xy"), ("xyz", "xyz"), ("zx", "zx")]


@pytest.mark.slow
def test_no_token_reaches_from_one_text_into_the_next():
    tokenizer = bert({"content": "xy", "rstrip": True})
    ids = tokenizer.tokenize(["ax", "yb", "xy", " b", ""]).to_list()
    assert ids == [[1], [1], [10], [6], []]


@pytest.mark.slow
def test_ids_count_on_and_words_of_the_vocabulary_keep_theirs():
    tokenizer = bert("x", "new", {"content": "y", "id": 13})
    assert [t["id"] for t in tokenizer.added_tokens] == [10, 9, 13]
    assert tokenizer.vocabulary_size == 14
    assert tokenizer.get_vocabulary()[10:] == ["x", "[unused id 11]", "[unused id 12]", "y"]
    assert tokenizer.vocabulary == WORDS
    assert tokens(tokenizer, "newb") == [("new", "new"), ("b", "b")]


def test_special_ones_are_left_out_of_readable_text():
    tokenizer = bert(MARKER, "word")
    assert tokenizer.detokenize([5, 10, 11]).numpy() == b"a word"


def test_tokens_in_a_text_of_many_are_found_in_steps_not_one_by_one():
    assert select_leftmost_spans(tf.range(100_000), tf.range(2, 100_002)).numpy().tolist() == [
        *range(0, 100_000, 2)
    ]


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (["x", "x"], r"added_tokens\[1\].*'x'.*11"),
        ([{"content": "x", "id": 5}], "'x'.* 5"),
        ([""], r"added_tokens\[0\] is.*content"),
        ([{"content": "x", "strip": True}], "'strip'.*id, content, single_word"),
        ([{"content": "x", "lstrip": 1}], "'lstrip': 1"),
        ([{"content": "x", "id": 2**40}], str(2**40)),
    ],
)
def test_bad_tokens_are_refused(added, message):
    with pytest.raises(ValueError, match=message):
        bert(*added)


ADDED = {"id": 9, "content": "<z>"}


@pytest.mark.parametrize(
    ("file", "content", "place"),
    [
        ("tokenizer.json", {"added_tokens": 5}, r"added_tokens is 5"),
        ("tokenizer.json", {"added_tokens": [ADDED, "x"]}, r"added_tokens\[1\] is 'x'"),
        ("tokenizer.json", {"added_tokens": [{**ADDED, "id": 1.5}]}, r"added_tokens\[0\] .*id"),
        ("tokenizer.json", {"added_tokens": [{"id": 1}]}, r"added_tokens\[0\] .*content"),
        ("tokenizer_config.json", {"added_tokens_decoder": [5]}, "added_tokens_decoder is "),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": ADDED}}, r"decoder\['x'\]"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": "<z>"}}, r"decoder\['9'\]"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9" * 5000: ADDED}}, "decoder"),
        ("added_tokens.json", {"<z>": "9"}, "<z>"),
    ],
)
def test_malformed_files_are_named_with_the_key(file, content, place, tmp_path):
    tokenizer = bert()
    if file == "tokenizer.json":
        content = {**json.loads(tokenizer.to_files()[file]), **content}
    else:
        (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.get_vocabulary()))
        content = {"tokenizer_class": "BertTokenizer", **content} if "config" in file else content
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{file}: .*{place}") as error:
        ez.BertTokenizer.from_preset(tmp_path)
    assert len(str(error.value)) < 1500


@pytest.mark.slow
def test_settings_files_and_keras_files_keep_them(tmp_path):
    tokenizer = bert("word", {**MARKER, "lstrip": True})
    config = json.loads(json.dumps(tokenizer.get_config()))
    assert ez.BertTokenizer.from_config(config).added_tokens == tokenizer.added_tokens
    backbone = ez.BertBackbone(12, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
    classifier = ez.SequenceClassifier(backbone, preprocessor, num_classes=2)
    classifier.save_to_preset(tmp_path / "preset")
    classifier.save(tmp_path / "model.keras")
    for again in (
        ez.SequenceClassifier.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        found = again.preprocessor.tokenizer
        assert found.added_tokens == tokenizer.added_tokens
        assert tokens(found, "aWORD  <e>") == [("a", "a"), ("word", "WORD"), ("<e>", "  <e>")]


@pytest.mark.slow
def test_older_files_name_them_elsewhere(tmp_path):
    backbone = ez.BertBackbone(12, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    backbone.save_to_preset(tmp_path)
    (tmp_path / "encoder_zoo.json").unlink()
    tokenizer = bert()
    for name, text in tokenizer.to_files().items():
        (tmp_path / name).write_text(text)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"x": 10}))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"] = {"11": {"content": "y", "lstrip": True, "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = ez.BertTokenizer.from_preset(tmp_path)
    assert tokens(found, "aX  y") == [("a", "a"), ("x", "X"), ("y", "  y")]


@pytest.mark.matrix
@pytest.mark.slow
def test_they_work_in_tf_data_and_with_tensorflow_alone(tmp_path):
    tokenizer = bert("word", MARKER, {"content": "y", "single_word": True, "rstrip": True})
    texts = ["a WORD<e>y  b", "", "xyx y"]
    expected = tokenizer.tokenize(texts).to_list()
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(2).map(tokenizer.tokenize)
    assert [row for batch in dataset for row in batch.to_list()] == expected

    class Served(tf.Module):
        def __init__(self):
            super().__init__()
            self.tables = tokenizer.graph

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def __call__(self, texts):
            ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
            return {
                "ids": ids.to_tensor(-1),
                "starts": starts.to_tensor(),
                "ends": ends.to_tensor(),
            }

    tf.saved_model.save(Served(), str(tmp_path))
    code = (
        "import sys, tensorflow as tf\n"
        f"found = tf.saved_model.load({str(tmp_path)!r})(tf.constant({texts!r}))\n"
        "assert 'encoder_zoo' not in sys.modules\n"
        "print([[int(i) for i in row if i >= 0] for row in found['ids'].numpy()])"
    )
    assert json.loads(run(code).splitlines()[-1]) == expected


@pytest.mark.slow
def test_a_task_gets_rows_for_them():
    plain = ez.MaskedLM.from_preset("bert_nano_en_uncased")
    rows = plain.backbone.vocabulary_size
    task = ez.MaskedLM.from_preset("bert_nano_en_uncased", added_tokens=["covid-19", MARKER])
    tokenizer = task.preprocessor.tokenizer
    assert tokenizer.vocabulary_size == task.backbone.vocabulary_size == rows + 2
    table = np.array(task.backbone.embeddings.token_embedding.embeddings)
    old = np.array(plain.backbone.embeddings.token_embedding.embeddings)
    np.testing.assert_array_equal(table[:rows], old)
    np.testing.assert_allclose(table[rows:], np.stack([old.mean(0)] * 2), atol=1e-6)
    x = {"token_ids": np.array([[101, 2000, 4, 102]])}
    np.testing.assert_allclose(np.array(task(x))[..., :rows], np.array(plain(x)), atol=1e-5)
    assert tokenizer.token_to_id("covid-19") in tokenizer.tokenize("the COVID-19 test").numpy()
    task.fit(["the covid-19 <e> test"] * 4, epochs=1, verbose=0)


def test_a_tokenizer_with_more_tokens_than_rows_is_refused_with_what_to_do():
    backbone = ez.BertBackbone(10, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    preprocessor = ez.SequenceClassifierPreprocessor(bert("word"))
    with pytest.raises(ValueError, match=r"from_preset\(\.\.\., added_tokens=\[\.\.\.\]\)"):
        ez.SequenceClassifier(backbone, preprocessor, num_classes=2)
