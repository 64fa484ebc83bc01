"""Annotations as their libraries hold them: datasets of Hugging Face, documents of spaCy."""

import datasets
import pytest

import encoder_zoo as ez

pytestmark = pytest.mark.peers
TEXTS = ["ann is in rome .", "is ann in ?", "rome ."]
SPANS = [[(0, 3, "PER"), (10, 14, "LOC")], [(3, 6, "PER")], []]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
NUMBERS = [[1, 0, 0, 3, 0], [0, 1, 0, 0], [3, 0]]
NAMED = [[TAGS[number] for number in row] for row in NUMBERS]
DICTS = [[dict(zip(("start", "end", "label"), s, strict=True)) for s in row] for row in SPANS]


def tokenizer():
    words = "ann is in rome . ?".split()
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])


def tagger(**arguments):
    preprocessor = ez.TokenClassifierPreprocessor(tokenizer())
    return ez.TokenClassifier(
        ez.BertBackbone(11, 1, 1, 4, 8, pooler=False), preprocessor, **arguments
    )


def sequence(feature):
    """Return a list of a feature, as versions of datasets before and after 4 write it."""
    return (getattr(datasets, "List", None) or datasets.Sequence)(feature)


def of_words(names=TAGS):
    features = {
        "id": datasets.Value("string"),
        "tokens": sequence(datasets.Value("string")),
        "pos_tags": sequence(datasets.ClassLabel(names=["X", "Y"])),
        "ner_tags": sequence(datasets.ClassLabel(names=names)),
    }
    columns = {
        "id": ["a", "b", "c"],
        "tokens": [text.split() for text in TEXTS],
        "pos_tags": [[0] * len(row) for row in NUMBERS],
        "ner_tags": NUMBERS,
    }
    return datasets.Dataset.from_dict(columns, datasets.Features(features))


def of_texts(names=("bad", "good"), labels=(1, 0, 1)):
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=[*names])}
    return datasets.Dataset.from_dict(
        {"text": TEXTS, "label": list(labels)}, datasets.Features(features)
    )


@pytest.mark.parametrize("make", [of_words, lambda: of_words().select([0, 1, 2])])
def test_names_of_tags_are_read_from_features(make):
    words = [text.split() for text in TEXTS]
    assert ez.read_annotations(make()) == (words, NAMED)
    dataset = make()
    for given in ((dataset, None), (dataset["tokens"], dataset["ner_tags"])):
        task = tagger()
        task._read_data(*given)
        assert task.labels == ["O", "B-LOC", "B-PER"]
    task = tagger(labels=TAGS)
    x, y = task.preprocessor.separate(dataset, None)
    _, y, _ = task.preprocessor(x, y)
    assert y.numpy().tolist() == [
        [0, 1, 0, 0, 3, 0, 0],
        [0, 0, 1, 0, 0, 0, 0],
        [0, 3, 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("kind", ["numpy", "torch", "pandas", "arrow", "polars", "jax"])
def test_datasets_of_every_format_have_their_names(kind):
    """Numbers in the place of names were read in the order of the model's labels."""
    texts, words = of_texts().with_format(kind), of_words().with_format(kind)
    assert ez.read_annotations(texts) == (TEXTS, ["good", "bad", "good"])
    assert ez.read_annotations(words) == ([text.split() for text in TEXTS], NAMED)
    if kind in ("numpy", "torch", "jax"):  # columns of the others are their library's
        task = tagger(labels=TAGS[::-1])
        expected = task.evaluate([text.split() for text in TEXTS], NAMED, verbose=0)
        assert task.evaluate(words["tokens"], words["ner_tags"], verbose=0) == expected


def test_a_transform_of_ones_own_is_kept():
    def upper(rows):
        return {**rows, "text": [text.upper() for text in rows["text"]]}

    found = ez.read_annotations(of_texts().with_transform(upper))
    assert found == ([text.upper() for text in TEXTS], ["good", "bad", "good"])


def test_rows_of_a_dataset_without_their_features_have_numbers():
    with pytest.raises(ValueError, match="such as 3"):
        tagger().fit(list(of_words()))


def test_other_names_of_as_many_classes_are_taken_by_number(caplog):
    task = tagger(labels=[tag.replace("PER", "P") for tag in TAGS])
    assert task.preprocessor.separate(of_words(), None)[1] == NUMBERS
    assert "numbers" in caplog.text
    with pytest.raises(ValueError, match="'B-PER'"):
        tagger(labels=TAGS[:1] + TAGS[3:]).fit(of_words())


def test_names_of_classes_are_read_from_features(caplog):
    assert ez.read_annotations(of_texts()) == (TEXTS, ["good", "bad", "good"])
    assert "text 'text', labels 'label'" in caplog.text
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer())
    classifier = ez.SequenceClassifier(ez.BertBackbone(11, 1, 1, 4, 8), preprocessor)
    classifier._read_data(of_texts(), None)
    assert classifier.labels == ["bad", "good"]
    with pytest.raises(ValueError, match="Row 1 "):
        classifier.fit(of_texts(labels=(1, -1, 0)))  # -1 is a label that is hidden


def test_splits_and_streams_are_named():
    splits = datasets.DatasetDict({"train": of_words(), "test": of_words()})
    with pytest.raises(ValueError, match="'train'"):
        tagger().fit(splits)
    stream = of_words().to_iterable_dataset()
    with pytest.raises(ValueError, match=r"Dataset.from_list\(list\(dataset\)"):
        ez.read_annotations(stream)
    again = datasets.Dataset.from_list(list(stream), features=stream.features)
    assert ez.read_annotations(again).y == NAMED


def test_spans_of_a_dataset_are_columns():
    struct = {"start": datasets.Value("int32"), "end": datasets.Value("int32")}
    struct["label"] = datasets.ClassLabel(names=["LOC", "PER"])
    features = {"text": datasets.Value("string"), "entities": sequence(struct)}
    rows = [
        {"text": text, "entities": [{**s, "label": ["LOC", "PER"].index(s["label"])} for s in row]}
        for text, row in zip(TEXTS, DICTS, strict=True)
    ]
    dataset = datasets.Dataset.from_list(rows, features=datasets.Features(features))
    with pytest.raises(ValueError, match=r"Row 0: .* 1"):
        ez.read_annotations(dataset)


@pytest.fixture(scope="module")
def docs():
    spacy = pytest.importorskip("spacy")
    made = [*spacy.blank("en").pipe(TEXTS)]
    for doc, spans in zip(made, SPANS, strict=True):
        doc.ents = [doc.char_span(*span) for span in spans]
    return made


def test_documents_and_their_files(docs, tmp_path):
    from spacy.tokens import DocBin
    from spacy.training import Example

    DocBin(docs=docs).to_disk(tmp_path / "train.spacy")
    examples = [Example(doc.copy(), doc) for doc in docs]
    for source in (docs, examples, tmp_path / "train.spacy", str(tmp_path / "train.spacy")):
        assert ez.read_annotations(source) == (TEXTS, DICTS)
    task = tagger()
    task._read_data(docs, None)
    assert task.labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


def test_documents_without_annotations_are_refused(docs, tmp_path):
    import spacy
    from spacy.tokens import DocBin

    bare = spacy.blank("en")("ann is here")
    with pytest.raises(ValueError, match=r"Row 3.*doc.ents"):
        ez.read_annotations([*docs, bare])
    bare.ents = []
    DocBin(docs=[*docs, bare]).to_disk(tmp_path / "train.spacy")
    assert ez.read_annotations(tmp_path / "train.spacy").y == [*DICTS, []]
    grouped = spacy.blank("en")("ann is here")
    grouped.spans["sc"] = [grouped.char_span(0, 3, "PER")]
    with pytest.raises(ValueError, match="sc.*doc.ents"):
        ez.read_annotations([grouped])
    grouped.ents = grouped.spans["sc"]
    assert ez.read_annotations([grouped]).y == [DICTS[0][:1]]


def test_categories_of_documents(docs):
    import spacy

    made = [spacy.blank("en")(text) for text in TEXTS]
    for doc, good in zip(made, (1.0, 0.0, 1.0), strict=True):
        doc.cats = {"good": good, "bad": 1 - good}
    assert ez.read_annotations(made) == (TEXTS, ["good", "bad", "good"])
