"""Spans of tags, and their scores, equal to seqeval's on random tags."""

import random

import numpy as np
import pytest

from encoder_zoo import EntityF1
from encoder_zoo.tasks.tagging.tags import find_spans

pytestmark = pytest.mark.peers
PREFIXES = {"IOB1": "IB", "IOB2": "IB", "IOBES": "IBES"}


def random_tags(scheme: str, rng: random.Random, length: int) -> list[str]:
    """Any tags of the scheme's alphabet, ill-formed more often than not."""
    tags = ["O", *(f"{p}-{kind}" for p in PREFIXES[scheme] for kind in ("PER", "LOC", "X-Y"))]
    return [rng.choice(tags) for _ in range(length)]


@pytest.mark.parametrize("scheme", PREFIXES)
def test_spans_equal_those_of_the_conll_script_as_seqeval_has_it(scheme):
    from seqeval.metrics.sequence_labeling import get_entities

    rng = random.Random(0)
    for _ in range(2000):
        tags = random_tags(scheme, rng, rng.randrange(12))
        expected = [(kind, first, last + 1) for kind, first, last in get_entities(tags)]
        known = [f"{p}-{kind}" for p in "IBES" for kind in ("PER", "LOC", "X-Y")]
        assert find_spans(tags, tag_set=known) == expected, tags


@pytest.mark.parametrize("scheme", PREFIXES)
def test_spans_equal_those_of_seqevals_strict_mode(scheme):
    from seqeval import scheme as schemes

    rng = random.Random(1)
    for _ in range(2000):
        tags = random_tags(scheme, rng, rng.randrange(12))
        found = schemes.Entities([tags], getattr(schemes, scheme)).entities[0]
        expected = [(e.tag, e.start, e.end) for e in found]
        known = [f"{p}-{kind}" for p in PREFIXES[scheme] for kind in ("PER", "LOC", "X-Y")]
        assert find_spans(tags, scheme, known) == expected, tags


@pytest.mark.parametrize("average", ["micro", "macro", "weighted"])
@pytest.mark.parametrize("scheme", PREFIXES)
def test_entity_f1_equals_seqeval_on_sentences_of_many_lengths(scheme, average):
    import numpy as np
    from seqeval.metrics import f1_score, precision_score, recall_score

    rng = random.Random(2)
    kinds = ("PER", "LOC", "X-Y")
    tags = ["O", *(f"{p}-{kind}" for p in PREFIXES[scheme] for kind in kinds)]
    for _ in range(20):
        lengths = [rng.randrange(1, 15) for _ in range(20)]
        true = [random_tags(scheme, rng, n) for n in lengths]
        guess = [[t if rng.random() < 0.7 else rng.choice(tags) for t in row] for row in true]
        padded = [
            [[tags.index(t) for t in r] + [-1] * (15 - len(r)) for r in x] for x in (true, guess)
        ]
        metric = EntityF1(tags, average)
        metric.update_state(*np.array(padded))
        found = {name: float(value) for name, value in metric.result().items()}
        expected = {
            "precision": precision_score(true, guess, average=average),
            "recall": recall_score(true, guess, average=average),
        }
        expected["f1"] = f1_score(true, guess, average=average)
        assert expected == pytest.approx(found, abs=1e-6)


def _sentence(scheme, rng):
    """Return well-formed tags of a scheme."""
    tags = []
    for _ in range(rng.integers(1, 6)):
        kind, length = rng.choice(["PER", "LOC"]), rng.integers(1, 4)
        joins = tags and tags[-1].endswith(kind)
        first, inside, last, single = {
            "IOB1": ("B" if joins else "I", "I", "I", "B" if joins else "I"),
            "IOB2": ("B", "I", "I", "B"),
            "IOE1": ("I", "I", "I", "I"),
            "IOE2": ("I", "I", "E", "E"),
            "IOBES": ("B", "I", "E", "S"),
            "BILOU": ("B", "I", "L", "U"),
            "BMES": ("B", "M", "E", "S"),
        }[scheme]
        letters = [single] if length == 1 else [first, *[inside] * (length - 2), last]
        tags += ["O"] if rng.random() < 0.4 else [f"{letter}-{kind}" for letter in letters]
    return tags


@pytest.mark.filterwarnings("ignore:.*seems not to be NE tag")
@pytest.mark.parametrize(
    ("scheme", "strict"),
    # Without its scheme seqeval does not read L and U. It does not know M, which is given as I.
    [(s, None) for s in ("IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BMES")]
    + [(s, s) for s in ("IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU")],
)
def test_schemes_score_as_seqeval_scores_them(scheme, strict):
    import seqeval.metrics
    import seqeval.scheme

    from encoder_zoo.tasks.tagging.entity_metrics import score_tags

    rng = np.random.default_rng(0)
    vocabulary = sorted({tag for _ in range(60) for tag in _sentence(scheme, rng)})
    options = {"mode": "strict", "scheme": getattr(seqeval.scheme, strict)} if strict else {}
    for share in np.linspace(0, 1, 40):
        true = [_sentence(scheme, rng) for _ in range(3)]
        predicted = [
            [tag if rng.random() < share else str(rng.choice(vocabulary)) for tag in tags]
            for tags in true
        ]
        scores = score_tags(true, predicted, strict, vocabulary)
        true, predicted = (
            [[tag.replace("M-", "I-") for tag in tags] for tags in rows]
            for rows in (true, predicted)
        )
        for name, ours in (("precision", scores["precision"]), ("f1", scores["f1"])):
            score = getattr(seqeval.metrics, f"{name}_score")
            assert ours == pytest.approx(score(true, predicted, zero_division=0, **options)), true
