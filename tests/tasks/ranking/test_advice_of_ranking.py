"""Messages about rankings and answers advise what works: each is provoked here, and followed."""

import pytest
from small_tasks import TEXTS, make, new, preprocessor

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny


def test_rerankers_take_one_query():
    task = make("Reranker")
    with pytest.raises(ValueError, match=r"\['one', 'two'\]"):
        task.rank(["one", "two"], TEXTS)
    assert [task.rank(query, TEXTS) for query in ("one", "two")]


@pytest.mark.slow
def test_losses_of_lists():
    task = make("Reranker")
    x, y = (["one", "two"], [["three", "four"], ["five", "six"]]), [[1, 0], [0, 1]]
    task.compile(loss="binary_crossentropy")
    with pytest.raises(ValueError, match=r"binary_crossentropy.*'auto'.*LambdaLoss"):
        task.fit(x, y, verbose=0)
    for loss in ("auto", ez.losses.LambdaLoss()):
        task.compile(loss=loss)
        task.fit(x, y, verbose=0)


@pytest.mark.slow
def test_rerankers_have_one_output(tmp_path):
    new("SequenceClassifier", labels=["a", "b", "c"]).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match=r"3 labels.*SequenceClassifier.*Backbone\.from_preset"):
        ez.Reranker.from_preset(tmp_path)
    assert ez.SequenceClassifier.from_preset(tmp_path).num_classes == 3
    own = ez.Reranker.record.preprocessor_class(ez.Tokenizer.from_preset(tmp_path))
    ez.Reranker(ez.Backbone.from_preset(tmp_path), own)


@pytest.mark.slow
def test_columns_of_queries_are_passed():
    reranker = make("Reranker")
    three = {"q": ["one", "two"], "d": ["a", "b"], "e": ["c", "d"]}
    with pytest.raises(ValueError, match=r"'q', 'd', 'e'.*\(x\[\.\.\.\], x\[\.\.\.\]\)"):
        reranker.fit(three, [0, 1], verbose=0)
    reranker.fit((three["q"], three["d"]), [0, 1], verbose=0)


@pytest.mark.slow
def test_long_texts_are_split_to_be_ranked(caplog):
    text = " ".join("abcdefgh" * 3)
    reranker = make("Reranker")
    reranker.rank("a", [text])
    assert "16 tokens" in caplog.text and "passages" in caplog.text
    caplog.clear()
    parts = [text[i : i + 16] for i in range(0, len(text), 16)]
    assert len(reranker.rank("a", parts)) == len(parts)
    assert not caplog.text


@pytest.mark.slow
def test_beams_are_of_xlnet():
    xlnet = get_family("xlnet")
    with pytest.raises(ValueError, match="BertTokenizer"):
        ez.SpanQA(tiny.backbone(xlnet), preprocessor("SpanQA"), beam=(2, 2))
    ez.SpanQA(tiny.backbone(xlnet), preprocessor("SpanQA"))
    with pytest.raises(ValueError, match="'bert'"):
        new("SpanQA", beam=(2, 2))
    new("SpanQA")


@pytest.mark.slow
def test_one_context_is_explained():
    task, passages = make("SpanQA"), ["one two", "three four"]
    with pytest.raises(ValueError, match=r"explain.*passages\[answer\['passage'\]\]"):
        task.explain("one", passages)
    answer = task.answer("one", passages)
    assert task.explain("one", passages[answer["passage"]])
