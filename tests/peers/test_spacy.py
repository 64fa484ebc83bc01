"""Documents of spaCy itself as texts, words, entities and answers."""

import pytest

import encoder_zoo as ez

pytestmark = pytest.mark.peers
TEXTS = ["Ms. Anna Bell isn't in New York.", "Über Oslo 🙂 fliegt José."]
SPANS = [[(4, 13, "PER"), (23, 31, "LOC")], [(5, 9, "LOC"), (19, 23, "PER")]]
LABELS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


@pytest.fixture(scope="module")
def docs():
    spacy = pytest.importorskip("spacy")
    documents = [*spacy.blank("en").pipe(TEXTS)]
    for document, spans in zip(documents, SPANS, strict=True):
        document.ents = [document.char_span(start, end, label) for start, end, label in spans]
    return documents


@pytest.fixture(scope="module")
def tagger():
    return ez.TokenClassifier.from_preset("bert_nano_en_uncased", labels=LABELS)


def test_entities_are_labels_in_characters(docs, tagger):
    expected = tagger.preprocessor.encode(TEXTS, SPANS)["labels"].to_list()
    assert tagger.preprocessor.encode(docs)["labels"].to_list() == expected
    spans = [list(document.ents) for document in docs]
    assert tagger.preprocessor.encode(docs, spans)["labels"].to_list() == expected
    assert tagger.preprocessor.encode(TEXTS, spans)["labels"].to_list() == expected
    part = docs[0][1:]  # "Anna Bell isn't in New York."
    [labels] = tagger.preprocessor.encode([part])["labels"].to_list()
    [wanted] = tagger.preprocessor.encode([part.text], [[(0, 9, "PER"), (19, 27, "LOC")]])[
        "labels"
    ].to_list()
    assert labels == wanted


def test_tags_are_of_its_tokens(docs, tagger):
    tags = [[t.ent_iob_ + (f"-{t.ent_type_}" if t.ent_type_ else "") for t in d] for d in docs]
    words = [[token.text for token in document] for document in docs]
    expected = tagger.preprocessor.encode(words, tags)["labels"].to_list()
    assert tagger.preprocessor.encode(docs, tags)["labels"].to_list() == expected
    assert [len(row) for row in tagger.predict_tags(docs)] == [len(document) for document in docs]


def test_found_entities_are_spans_of_the_document(docs, tagger):
    assert tagger.extract_entities(docs) == tagger.extract_entities(TEXTS)
    [found] = tagger.extract_entities([docs[0]], "none")
    for entity in found:
        span = docs[0].char_span(entity["start"], entity["end"], alignment_mode="expand")
        assert entity["text"] in span.text


def test_contexts_and_answers(docs):
    model = ez.SpanQA.from_preset("bert_nano_en_uncased")
    assert model.answer("Who?", docs[1]) == model.answer("Who?", TEXTS[1])
    best = model.answer("Who?", docs)
    assert docs[best["passage"]].text[best["start"] : best["end"]] == best["text"]
    y = [document.ents[0] for document in docs]
    answers = [{"text": span.text, "answer_start": span.start_char} for span in y]
    questions = ["Who?", "Where?"]
    found = model.preprocessor.encode((questions, docs), y)["labels"].numpy().tolist()
    assert (
        found == model.preprocessor.encode((questions, TEXTS), answers)["labels"].numpy().tolist()
    )
