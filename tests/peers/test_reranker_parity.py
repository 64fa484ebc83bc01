"""Scores and losses of sentence-transformers' CrossEncoder, and folders opened by both sides."""

import json

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from sentence_transformers import CrossEncoder  # noqa: E402
from sentence_transformers.cross_encoder import losses as theirs  # noqa: E402

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

FAMILIES = ["bert", "roberta", "xlm_roberta", "modernbert"]
QUERIES = ["a b ab", "c", "a b c d e f g h i j k l", "p", "d e f"]
TEXTS = ["d e", "c d e a b a b a b a b a b c", "p o n m l k j", "a", "d e f g h i"]
PATHS = {"sigmoid": "torch.nn.modules.activation.Sigmoid", "linear": "torch.nn.Identity"}


def reranker(name: str, activation: str, **arguments):
    family = get_family(name)
    backbone = tiny.backbone(family, pooler=ez.Reranker.get_family_head(family).pooled)
    preprocessor = ez.RerankerPreprocessor(tiny.tokenizer(family), **arguments)
    return tiny.randomize_weights(ez.Reranker(backbone, preprocessor, activation=activation))


@pytest.mark.parametrize("activation", ["sigmoid", "linear"])
@pytest.mark.parametrize("family", FAMILIES)
class TestFolders:
    def test_they_open_what_we_save(self, family, activation, tmp_path):
        ours = reranker(family, activation)
        ours.save_to_preset(tmp_path)
        model = CrossEncoder(str(tmp_path), device="cpu")
        assert model.num_labels == 1 and model.max_seq_length == 16
        there = model.predict(list(zip(QUERIES, TEXTS, strict=True)), batch_size=5)
        difference = np.abs(ours.score(QUERIES, TEXTS) - there).max()
        print(f"{family} {activation}: {difference:.1e}")
        assert difference < 1e-5
        assert np.ptp(there) > 1e-3
        ranked = model.rank(QUERIES[0], TEXTS)
        order = [hit["index"] for hit in ours.rank(QUERIES[0], TEXTS)]
        assert order == [hit["corpus_id"] for hit in ranked]

    @pytest.mark.parametrize("form", ["now", "4.0", "2.0", "silent"])
    def test_we_open_what_they_save(self, family, activation, form, tmp_path):
        """In the form of today, and in those that earlier versions wrote."""
        reranker(family, activation, max_length=12).save_to_preset(tmp_path / "ours")
        model = CrossEncoder(str(tmp_path / "ours"), device="cpu")
        assert model.max_seq_length == 12
        folder = tmp_path / "theirs"
        if form == "now":
            model.save_pretrained(str(folder))
            assert (folder / "modules.json").exists()
        else:
            model.model.save_pretrained(str(folder))
            model.tokenizer.save_pretrained(str(folder))
            path = folder / "config.json"
            config = json.loads(path.read_text())
            for name in ("sentence_transformers", "sbert_ce_default_activation_function"):
                config.pop(name, None)
            fields = {
                "4.0": {"sentence_transformers": {"activation_fn": PATHS[activation]}},
                "2.0": {"sbert_ce_default_activation_function": PATHS[activation]},
                "silent": {},
            }
            path.write_text(json.dumps({**config, **fields[form]}))
        model = CrossEncoder(str(folder), device="cpu")
        ours = ez.Reranker.from_preset(folder)
        assert ours.activation == ("sigmoid" if form == "silent" else activation)
        there = model.predict(list(zip(QUERIES, TEXTS, strict=True)), batch_size=5)
        difference = np.abs(ours.score(QUERIES, TEXTS) - there).max()
        print(f"{family} {activation} {form}: {difference:.1e}")
        assert difference < 1e-5


def test_transformers_opens_it_as_a_classifier_of_one_label(tmp_path):
    import transformers

    ours = reranker("bert", "linear")
    ours.save_to_preset(tmp_path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    batch = tokenizer(QUERIES, TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        there = model(**batch).logits.numpy()
    assert there.shape == (5, 1)
    np.testing.assert_allclose(ours.predict((QUERIES, TEXTS), verbose=0), there, atol=1e-5)


SCORES = [[2.0, 0.0, 1.0, 3.0], [1.0, 0.0], [0.0, 0.0, 5.0]]
LOGITS = [[0.3, 1.2, -0.7, 0.1], [-1.0, 0.5], [1.5, 0.2, -2.0]]


class Stub(CrossEncoder):
    """A model that returns given logits."""

    def __init__(self, logits):
        torch.nn.Module.__init__(self)
        self.values = list(logits)

    num_labels = 1
    device = torch.device("cpu")

    def preprocess(self, pairs, **_):
        return {"text": torch.tensor([float(text) for _, text in pairs])}

    def forward(self, inputs, **_):
        return {"scores": inputs["text"][:, None]}


def padded(rows) -> np.ndarray:
    most = max(map(len, rows))
    return np.float32([[*row, *[-np.inf] * (most - len(row))] for row in rows])


class TestLosses:
    @pytest.mark.parametrize(
        ("ours", "name", "arguments"),
        [
            ("RankNet", "RankNetLoss", {}),
            ("LambdaLoss", "LambdaLoss", {}),
            ("LambdaLoss", "LambdaLoss", {"k": 2}),
            ("ListNet", "ListNetLoss", {}),
            ("PListMLE", "PListMLELoss", {}),
        ],
    )
    def test_of_each_list(self, ours, name, arguments):
        loss = getattr(ez.losses, ours)(**arguments)
        extra = {"respect_input_order": False} if ours == "PListMLE" else {}
        there = getattr(theirs, name)(Stub([]), **arguments, **extra)
        found = np.asarray(loss.call(padded(SCORES), padded(LOGITS)))
        for i, (y, s) in enumerate(zip(SCORES, LOGITS, strict=True)):
            expected = there((["q"], [[str(v) for v in s]]), [torch.tensor(y)])
            assert found[i] == pytest.approx(float(expected), abs=1e-5, rel=1e-5)

    @pytest.mark.parametrize(("ours", "name"), [("ListNet", "ListNetLoss")])
    def test_of_a_batch(self, ours, name):
        there = getattr(theirs, name)(Stub([]))
        texts = [[str(v) for v in s] for s in LOGITS]
        expected = float(there((["q"] * 3, texts), [torch.tensor(y) for y in SCORES]))
        found = float(getattr(ez.losses, ours)()(padded(SCORES), padded(LOGITS)))
        assert found == pytest.approx(expected, abs=1e-5)

    @pytest.mark.parametrize("ours", ["RankNet", "LambdaLoss"])
    def test_of_a_batch_they_take_the_mean_over_its_pairs(self, ours):
        """We take that over its queries: an example counts alike in every batch."""
        there = getattr(theirs, {"RankNet": "RankNetLoss"}.get(ours, ours))(Stub([]))
        texts = [[str(v) for v in s] for s in LOGITS]
        expected = float(there((["q"] * 3, texts), [torch.tensor(y) for y in SCORES]))
        values = np.asarray(getattr(ez.losses, ours)().call(padded(SCORES), padded(LOGITS)))
        assert np.average(values, weights=[6, 1, 2]) == pytest.approx(expected, rel=1e-5)

    def test_margins_and_negatives(self):
        logits = np.float32([[0.3, 1.2, -0.7], [-1.0, 0.5, 2.0]])
        scores = np.float32([[9.0, 0.5, 1.0], [3.0, -2.0, 0.25]])
        columns = [[str(v) for v in column] for column in logits.T.tolist()]
        margins = theirs.MarginMSELoss(Stub([]))((["q", "q"], *columns), torch.tensor(scores))
        found = float(ez.losses.ListMarginMSE()(scores, logits))
        assert found == pytest.approx(float(margins), rel=1e-5)

        there = theirs.MultipleNegativesRankingLoss(Stub([]), num_negatives=0)
        chosen = there.calculate_loss([torch.tensor(column) for column in logits.T], 2)
        labels = np.tile(np.float32([1, 0, 0]), (2, 1))
        found = float(ez.losses.MultipleNegatives()(labels, logits))
        assert found == pytest.approx(float(chosen), rel=1e-5)


def test_the_metric_of_lists_is_that_of_trec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    from encoder_zoo.tasks.ranking.reranker import NDCG

    rng = np.random.default_rng(0)
    for count in (1, 2, 7, 25):
        relevance, scores = rng.integers(0, 3, count), rng.normal(size=count)
        relevance[rng.integers(count)] = 1
        judged = {"q": {str(i): int(v) for i, v in enumerate(relevance)}}
        judge = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10"})
        there = judge.evaluate({"q": {str(i): float(v) for i, v in enumerate(scores)}})["q"]
        metric = NDCG(k=10)
        metric.update_state(np.float32([relevance]), np.float32([scores]))
        assert float(metric.result()) == pytest.approx(there["ndcg_cut_10"], abs=1e-6)
