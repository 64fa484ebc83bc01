"""What `ez.display` draws: the right characters marked, nothing of a text taken for HTML."""

import html.parser

import numpy as np
import pytest
from not_installed import hide

import encoder_zoo as ez
from encoder_zoo.extras.display import charts

NASTY = "<script>alert('x')</script> & Rome \"e\u0301\" \U0001f600 \u05d0"


class Parsed(html.parser.HTMLParser):
    """The tags of HTML, and the text with and inside of marks."""

    def __init__(self, source: str):
        super().__init__()
        self.tags, self.text, self.marked, self.inside = [], "", [], []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.inside.append(tag)
        if tag == "mark":
            self.marked.append("")

    def handle_endtag(self, tag):
        assert self.inside.pop() == tag

    def handle_data(self, data):
        if "small" in self.inside:  # a caption
            return
        self.text += data
        if "mark" in self.inside:
            self.marked[-1] += data


def entity(text: str, part: str, label: str = "LOC") -> dict:
    start = text.index(part)
    return {"label": label, "text": part, "start": start, "end": start + len(part)}


@pytest.mark.parametrize("part", ["Rome", "<script>", "\U0001f600", NASTY])
def test_entities_mark_their_own_characters_and_the_text_stays_as_it_is(part):
    picture = ez.display.entities(NASTY, [entity(NASTY, part, label="<b>")])
    parsed = Parsed(picture._repr_html_())
    assert parsed.text == NASTY
    assert parsed.marked == [part]
    assert set(parsed.tags) == {"p", "mark", "small"} and not parsed.inside
    assert repr(picture) == NASTY.replace(part, f"[{part} <b>]")


def test_entities_beside_the_true_ones():
    text = "Anna met Ben in Rome."
    found = [entity(text, "Anna", "PER"), entity(text, "Ben", "LOC")]
    true = [entity(text, "Anna", "PER"), entity(text, "Ben", "PER"), entity(text, "Rome")]
    picture = ez.display.entities(text, found, true)
    assert picture.text == "[Anna PER] met [Ben !LOC] in [Rome ?LOC]."
    assert picture.html.count("dashed") == 1 and picture.html.count("outline") == 1


def test_entities_inside_of_each_other():
    text = "The mayor of New York, <b>Ben</b>."
    found = [entity(text, "mayor of New York", "ROLE"), entity(text, "New York", "LOC")]
    found += [entity(text, "New", "X"), entity(text, "New York", "ORG")]
    picture = ez.display.entities(text, found)
    assert picture.text == "The [mayor of [[[New X] York ORG] LOC] ROLE], <b>Ben</b>."
    assert picture.html.count("<mark") == picture.html.count("</mark>") == 4
    assert "<b>Ben" not in picture.html
    missed = ez.display.entities(
        text, found[:1], [*found[1:2], entity(text, "mayor", "X"), found[0]]
    )
    assert missed.text == "The [[mayor ?X] of [New York ?LOC] ROLE], <b>Ben</b>."


def test_sentences_in_words():
    found = [[{"label": "LOC", "start": 3, "end": 7}], []]
    picture = ez.display.entities([["In", "Rome", "."], ["Hm"]], found)
    assert picture.text == "In [Rome LOC] .\nHm"
    tags = ["O", "B-LOC", "O", "B-PER", "I-PER"]
    picture = ez.display.entities([["In", "Rome", ",", "Anna", "Bo"]], [["O"] * 5], true=[tags])
    assert picture.text == "In [Rome ?LOC] , [Anna Bo ?PER]"
    with pytest.raises(ValueError, match="2 words.* 5 tags"):
        ez.display.entities([["In", "Rome"]], [tags])


@pytest.mark.parametrize(
    "texts, found, message",
    [
        (["a", "b"], [[]], "2 texts.* 1"),
        ("Rome", [{"label": "LOC", "start": 2, "end": 9}], "2:9.*'Rome'"),
        ("Oslo", [entity("Rome", "Rome")], "'Rome' at 0:4.*'Oslo'"),
        ("Rome", [entity("Rome", "Rom"), entity("Rome", "me")], "overlap.* 'me' in 'Rome'"),
    ],
)
def test_entities_of_another_text_are_refused(texts, found, message):
    with pytest.raises(ValueError, match=message):
        ez.display.entities(texts, found)


def test_an_answer_in_its_context():
    best = {"text": "Rome", "start": NASTY.index("Rome"), "score": 0.5}
    best["end"] = best["start"] + 4
    picture = ez.display.answer(NASTY, best, "<Where>?")
    assert "<Where>" not in picture.html and "<script>" not in picture.html
    assert Parsed(picture.html).marked == ["Rome"]
    assert picture.text.split("\n") == ["<Where>?", "Rome (0.50)", NASTY.replace("Rome", "[Rome]")]


def test_shades_of_several_answers_add_up():
    rows = [("Anna", 0, 4, 0.25), ("Anna sings", 0, 10, 0.24)]
    rows = [dict(zip(("text", "start", "end", "score"), row, strict=True)) for row in rows]
    true = [{"text": "sings here", "answer_start": 5}]
    picture = ez.display.answer("Anna sings here.", rows, true=true)
    assert Parsed(picture.html).marked == ["Anna", " ", "sings", " here"]
    # shades are the roots of 0.49, 0.24, 0.24; the last is only the right answer's
    assert [picture.html.count(f"146,43,{shade})") for shade in ("0.70", "0.49")] == [1, 2]
    assert "Right: sings here" in picture.text


def test_no_answer():
    none = {"text": "", "start": 0, "end": 0, "score": 0.9}
    assert ez.display.answer("Anna sings.", none).text == "No answer (0.90)\nAnna sings."


@pytest.fixture(scope="module")
def model():
    return ez.MaskedLM.from_preset("bert_nano_en_uncased")


@pytest.mark.slow
def test_attention_of_a_pair(model):
    """Beside the probabilities of the whole row as the backbone gives them."""
    ids = model.preprocessor.tokenizer(["who sings?", "anna sings."]).to_list()
    ids = [[2, *ids[0], 3, *ids[1], 3]]
    token = model.preprocessor.tokenizer.id_to_token
    tokens = [token(i) for i in ids[0]]
    assert tokens[0] == "[CLS]" and tokens.count("[SEP]") == 2
    middle = tokens.index("[SEP]") + 1
    segments = [[int(i >= middle) for i in range(len(tokens))]]
    inputs = {"token_ids": np.array(ids), "segment_ids": np.array(segments)}
    row = np.asarray(model.backbone.attention_probabilities(inputs))[0, 1, 0]
    picture = ez.display.attention(model, "who sings?", "anna sings.", layer=-1, head=0)
    title, *lines = picture.text.split("\n")
    assert title.startswith("Layer 1, head 0")
    best = [f"{a} → {tokens[p.argmax()]} ({p.max():.2f})" for a, p in zip(tokens, row, strict=True)]
    assert [line.strip() for line in lines] == best
    assert picture.html.count("<line ") == (row >= 0.02).sum()


@pytest.mark.slow
def test_attention_says_what_there_is(model):
    with pytest.raises(ValueError, match="layer.*2.* -2 to 1"):
        ez.display.attention(model, "a", layer=2)
    with pytest.raises(ValueError, match="head.*-1.* 0 to 3"):
        ez.display.attention(model, "a", head=-1)
    with pytest.raises(ValueError, match="preprocessor"):
        ez.display.attention(ez.MaskedLM(model.backbone), "a")
    assert "<script>" not in ez.display.attention(model, "<script>", layer=0).html


def test_a_page(tmp_path):
    ez.display.entities(NASTY, []).save(tmp_path / "page.html", title="<b>")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>&lt;b&gt;</h1>" in page and "<script>" not in page and "viewport" in page


def test_show_outside_of_a_notebook_prints(capsys):
    ez.display.Picture("<p>", "plain").show()
    assert capsys.readouterr().out == "plain\n"


def explained(sentence: str, *added: float, **more) -> dict:
    """An explanation of a text, with the attributions of its words."""
    words, offset = [], 0
    for word, value in zip(sentence.split(), added, strict=True):
        start = sentence.index(word, offset)
        offset = start + len(word)
        words.append({"part": 0, "text": word, "start": start, "end": offset, "attribution": value})
    return {
        "texts": [sentence],
        "words": words,
        "logit": 1.0,
        "baseline": 0.5,
        "score": 0.9,
        **more,
    }


def test_an_explanation_shades_words():
    found = explained("<b> is & good", 0.5, 0.0, -1.0, 2.0, label="<i>")
    picture = ez.display.explanation(found)
    assert picture.text.split("\n") == [
        "<i> (0.90)",
        "<b> is & good",
        "  +2.00  ████████████  good",
        "  -1.00  ░░░░░░        &",
        "  +0.50  ███           <b>",
        "  +0.00                is",
    ]
    parsed = Parsed(picture.html)
    assert parsed.text.count("<b> is & good") == 1 and "i" not in parsed.tags
    assert not parsed.inside
    # shades are half of the share of the strongest word's
    for style in ("28,126,214,0.50)", "224,49,49,0.25)", "28,126,214,0.12)"):
        assert picture.html.count(f"background:rgba({style}") == 1
    assert "1.00: 0.50 with all words masked, +1.50 by the words" in picture.html


def test_explanations_of_entities_and_answers():
    entity = explained("In Rome", 0.1, 0.4, text="Rome", label="LOC", start=3, end=7)
    picture = ez.display.explanation([[entity], [], [entity, entity]])
    assert picture.text.count("Rome: LOC (0.90)\nIn Rome\n  +0.40  ████████████  Rome") == 3
    assert picture.html.count('font-weight:700">Rome') == 3
    answer = explained("In Rome", 0.1, 0.4, text="", start=0, end=0)
    assert ez.display.explanation(answer).text.startswith("No answer (0.90)")
    assert ez.display.explanation([[]]).text == "Nothing to explain."
    with pytest.raises(ValueError, match="explain"):
        ez.display.explanation("Rome")


@pytest.mark.slow
def test_the_most_confident_mistakes():
    classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
    texts = ["Great <b>film</b>!", "Awful.", "I loved it.", "Not bad, a bit long perhaps.", "Bad."]
    labels = ["negative", "negative", "negative", "positive", "negative"]
    scores, index = classifier.predict_proba(texts), {"negative": 0, "positive": 1}
    true = [scores[i, index[label]] for i, label in enumerate(labels)]
    wrong = [i for i in np.argsort(true) if true[i] < 0.5]
    picture = ez.display.errors(classifier, texts, labels)
    title, head, *lines = picture.text.split("\n")
    assert title == f"{len(wrong)} of 5 texts are labelled incorrectly."
    assert head.split() == ["predicted", "true", "text"]
    assert [line.split()[4:] for line in lines] == [texts[i].split() for i in wrong]
    assert [float(line.split()[3]) for line in lines] == pytest.approx(
        [true[i] for i in wrong], abs=6e-4
    )
    assert "film" in Parsed(picture.html).text
    assert "<b>film" not in picture.html
    numbers = [index[label] for label in labels]
    assert ez.display.errors(classifier, np.array(texts), numbers).text == picture.text
    assert len(ez.display.errors(classifier, texts, labels, top_k=1).text.split("\n")) == 3
    right = [classifier.labels[i] for i in scores.argmax(axis=1)]
    shown = ez.display.errors(classifier, texts, right).text
    assert shown == "0 of 5 texts are labelled incorrectly."
    with pytest.raises(ValueError, match="5 texts.* 2 labels"):
        ez.display.errors(classifier, texts, labels[:2])


def test_mistakes_are_of_one_label(tiny):
    family = ez.BertBackbone.family
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(family))
    kind = {"labels": ["O", "P"], "problem_type": "multi_label_classification"}
    model = ez.SequenceClassifier(tiny.backbone(family), preprocessor, **kind)
    with pytest.raises(ValueError, match="errors"):
        ez.display.errors(model, ["a"], [["O"]])


def test_learning_curves_of_a_history():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    history = {"accuracy": [0.5, 0.75], "loss": [2.0, 1.0], "val_loss": [3.0, 2.5]}
    axes = ez.display.learning_curves(history)
    assert [axis.get_title() for axis in axes] == ["loss", "accuracy"]
    assert [line.get_ydata().tolist() for line in axes[0].lines] == [[2.0, 1.0], [3.0, 2.5]]
    assert [line.get_xdata().tolist() for line in axes[1].lines] == [[1, 2]]
    axes = ez.display.learning_curves({"loss": [1.0], "f1": [0.0], "recall": [0.0]})
    assert len(axes) == len(axes[0].figure.axes) == 3
    pyplot.close("all")
    with pytest.raises(ValueError, match="history is.*fit"):
        ez.display.learning_curves({"accuracy": [1.0]})


def at(axis, threshold: float) -> list[float]:
    """Return the precision and recall that curves show at a threshold."""
    lines = {line.get_label(): line for line in axis.lines}
    shown = []
    for name in ("precision", "recall"):
        line = lines[name]
        assert line.get_drawstyle() == "steps-pre"  # a value holds up to its threshold
        index = np.searchsorted(line.get_xdata(), threshold)
        shown.append(float(line.get_ydata()[index]))
    return shown


@pytest.mark.slow
def test_thresholds_of_several_labels(tiny):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    metrics = pytest.importorskip("sklearn.metrics")
    family = ez.BertBackbone.family
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(family))
    kind = {"labels": ["O", "P"], "problem_type": "multi_label_classification"}
    model = ez.SequenceClassifier(tiny.backbone(family), preprocessor, **kind)
    texts, true = ["a b", "c", "d e f", "b a", "c d"], [["O"], ["O", "P"], [], ["P"], ["O"]]
    model.thresholds = {"P": 0.25}
    axes = ez.display.thresholds(model, texts, true)
    assert [axis.get_title() for axis in axes] == ["O: 3 held out", "P: 2 held out"]
    assert [axis.lines[2].get_label() for axis in axes] == ["now 0.50", "now 0.25"]
    tuned = model.tune_thresholds(texts, true)
    assert [axis.lines[3].get_xdata()[0] for axis in axes] == [*tuned.values()]
    for axis, label in zip(axes, "OP", strict=True):
        right = [label in row for row in true]
        for threshold in np.linspace(0.01, 1, 50):
            rows = model.classify(texts, threshold=float(threshold))
            found = [any(row["label"] == label for row in answers) for answers in rows]
            precision, recall = at(axis, threshold)
            assert recall == pytest.approx(metrics.recall_score(right, found))
            if any(found):
                assert precision == pytest.approx(metrics.precision_score(right, found))
            else:
                assert np.isnan(precision)
    pyplot.close("all")


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True])
def test_thresholds_of_entities_are_those_of_what_is_chosen(tiny, nested):
    """Spans that overlap compete: the curve must be that of `extract_entities`."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    model = tiny.task(ez.BertBackbone.family, "EntityExtractor")
    data = model.tiny_data()
    scored = model._score_labels(data.x, data.y, nested=nested)
    for threshold in (0.0, 0.3, 0.45, 0.5, 0.55, 0.7):
        right = model.evaluate_entities(data.x, data.y, threshold=threshold, nested=nested)
        of_labels = zip(*scored[:4], strict=True)
        for name, scores, hits, count in of_labels:
            expected = right["per_type"].get(name, {"precision": 0, "recall": 0, "support": 0})
            kept = scores > threshold
            assert hits[kept].sum() == pytest.approx(expected["precision"] * kept.sum())
            assert hits[kept].sum() == pytest.approx(expected["recall"] * count)
            assert count == expected["support"]
    axes = ez.display.thresholds(model, data.x, data.y, labels=["c"])
    assert [axis.get_title() for axis in axes] == ["c: 2 held out"]
    tagger = tiny.task(ez.BertBackbone.family, "TokenClassifier")
    texts, spans = ["a b"], [[(0, 1, tagger.labels[1][2:])]]
    [axis, *_] = ez.display.thresholds(tagger, texts, spans)
    assert axis.lines[2].get_label() == "now 0.00"  # entities of any score are answered
    pyplot.close("all")


def test_thresholds_of_models_without(tiny):
    model = tiny.task(ez.BertBackbone.family, "SequenceClassifier")
    with pytest.raises(ValueError, match="problem_type='single_label"):
        ez.display.thresholds(model, ["a"] * 3, model.labels[:3])


def test_a_confusion_matrix_counts_true_labels_down():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    answers = [{"label": label} for label in ("b", "a", "b", "b")]
    axes = ez.display.confusion_matrix(np.array(["a", "a", "a", "b"]), answers, labels=["b", "a"])
    assert [int(text.get_text()) for text in axes.texts] == [1, 0, 2, 1]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["b", "a"]
    pyplot.close("all")
    with pytest.raises(ValueError, match="true` has 1.*predicted` has 2"):
        ez.display.confusion_matrix(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="'b'.*labels"):
        ez.display.confusion_matrix(["a"], ["b"], labels=["a"])


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    hide(monkeypatch, charts.plt)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        ez.display.learning_curves({"loss": [1.0]})
    with pytest.raises(ImportError, match="pip install matplotlib"):
        ez.display.confusion_matrix([1], [1])
