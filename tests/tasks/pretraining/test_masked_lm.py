"""MaskedLM: transformers' numbers, how tokens are masked, learning, filling in."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import encoder_zoo as ez

WORDS = "the cat sat on mat dog ran under ##s ##ing big small red old".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MASK = SPECIAL.index("[MASK]")


@pytest.fixture(scope="module")
def tokenizer():
    return ez.BertTokenizer([*SPECIAL, *WORDS])


def random_texts(count, length, seed=0):
    rng = np.random.default_rng(seed)
    whole = [w for w in WORDS if not w.startswith("##")]
    return [" ".join(rng.choice(whole, length)) for _ in range(count)]


def unmask(x, y, weights):
    """The token ids before masking, rebuilt from the labels."""
    ids = x["token_ids"].numpy().copy()
    for row, (positions, labels, weight) in enumerate(
        zip(x["mask_positions"], y, weights, strict=True)
    ):
        real = weight.numpy() > 0
        ids[row, positions.numpy()[real]] = labels.numpy()[real]
    return ids


@pytest.mark.slow(except_for="^Bert")
@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra"])
def test_logits_at_masked_positions_are_those_of_all_positions(golden, family):
    checkpoint = golden(f"{family}_ForMaskedLM")
    model = ez.MaskedLM.from_preset(checkpoint.folder)
    positions = np.array([[3, 0], [5, 1], [0, 0]])
    some = ops.convert_to_numpy(model({**checkpoint.inputs, "mask_positions": positions}))
    everywhere = ops.convert_to_numpy(model(checkpoint.inputs))
    np.testing.assert_allclose(
        some, np.take_along_axis(everywhere, positions[..., None], 1), atol=1e-5
    )


class TestMasking:
    @pytest.mark.slow
    def test_eighty_ten_ten_over_a_hundred_thousand_tokens(self, tokenizer):
        """Devlin et al. 2019, section 3.1: of 15 %, 80 % masked, 10 % random, 10 % kept."""
        texts = random_texts(1000, 100)
        preprocessor = ez.MaskedLMPreprocessor(tokenizer)
        original = ez.SequenceClassifierPreprocessor(tokenizer)(texts)["token_ids"].numpy()
        x, y, weights = preprocessor(texts)
        assert weights.numpy().sum() == 15_000  # 15 of the 100 words of every text
        np.testing.assert_array_equal(unmask(x, y, weights), original)

        new = tf.gather(x["token_ids"], x["mask_positions"], batch_dims=1).numpy()
        kinds = collections.Counter(
            np.where(new == MASK, "mask", np.where(new == y, "same", "random")).ravel().tolist()
        )
        # Standard deviations of 15,000 draws: 0.3 % and 0.25 %. A random token is the same one
        # by chance once in 14 times.
        assert kinds["mask"] / 15_000 == pytest.approx(0.8, abs=0.013)
        assert kinds["random"] / 15_000 == pytest.approx(0.1 * 13 / 14, abs=0.01)
        assert kinds["same"] / 15_000 == pytest.approx(0.1 + 0.1 / 14, abs=0.01)
        assert new.min() >= MASK

    @pytest.mark.slow
    def test_special_tokens_and_padding_are_never_selected(self, tokenizer):
        texts = [*random_texts(200, 7), *random_texts(200, 3, seed=1)]
        x, y, weights = ez.MaskedLMPreprocessor(tokenizer, 16, mask_rate=0.9)(texts)
        labels = y.numpy()[weights.numpy() > 0]
        assert labels.min() >= len(SPECIAL)
        assert x["token_ids"].shape == (400, 16)
        assert y.shape == (400, round(0.9 * 16))

    @pytest.mark.slow
    def test_at_least_one_token_of_a_short_text(self, tokenizer):
        _, _, weights = ez.MaskedLMPreprocessor(tokenizer)(["cat", "the cat"])
        assert weights.numpy().sum(axis=1).tolist() == [1.0, 1.0]

    def test_an_empty_text_has_nothing_to_predict(self, tokenizer):
        _, _, weights = ez.MaskedLMPreprocessor(tokenizer)(["", "the cat"])
        assert weights.numpy().sum(axis=1).tolist() == [0.0, 1.0]

    @pytest.mark.slow
    def test_whole_words_are_masked_with_all_their_pieces(self, tokenizer):
        rng = np.random.default_rng(0)
        ends = ["", "s", "ing", "sing"]
        texts = [
            " ".join(rng.choice(["cat", "dog", "mat"]) + rng.choice(ends) for _ in range(12))
            for _ in range(300)
        ]
        preprocessor = ez.MaskedLMPreprocessor(tokenizer, mask_rate=0.3, whole_words=True)
        rows = preprocessor.encode(texts)
        x, y, weights = preprocessor.collate(rows)
        continues = [tokenizer.id_to_token(i).startswith("##") for i in range(19)]
        selected = np.zeros(x["token_ids"].shape, bool)
        for row in range(300):
            selected[row, x["mask_positions"][row].numpy()[weights[row].numpy() > 0]] = True
        original = unmask(x, y, weights)
        pieces = np.array(continues)[original]
        assert pieces.any()
        # A continuation is selected exactly when the piece before it is.
        np.testing.assert_array_equal(
            selected[:, 1:][pieces[:, 1:]], selected[:, :-1][pieces[:, 1:]]
        )
        share = selected.sum() / (original >= len(SPECIAL)).sum()
        assert 0.25 < share <= 0.31

    def test_dynamic_masks_differ_between_calls_and_static_ones_do_not(self, tokenizer):
        texts = random_texts(20, 30)
        dynamic = ez.MaskedLMPreprocessor(tokenizer)
        first, second = dynamic(texts), dynamic(texts)
        assert (first[0]["token_ids"].numpy() != second[0]["token_ids"].numpy()).any()

        static = ez.MaskedLMPreprocessor(tokenizer, dynamic=False)
        first, second = static(texts), static(texts)
        np.testing.assert_array_equal(first[0]["token_ids"], second[0]["token_ids"])
        again = ez.MaskedLMPreprocessor(tokenizer, dynamic=False, seed=1)(texts)
        assert (first[0]["token_ids"].numpy() != again[0]["token_ids"].numpy()).any()

    def test_the_same_seed_gives_the_same_masks(self, tokenizer):
        texts = random_texts(20, 30)
        first = ez.MaskedLMPreprocessor(tokenizer, seed=3)(texts)[0]["token_ids"]
        second = ez.MaskedLMPreprocessor(tokenizer, seed=3)(texts)[0]["token_ids"]
        np.testing.assert_array_equal(first, second)


def small_model(tokenizer, **arguments):
    backbone = ez.BertBackbone(
        tokenizer.vocabulary_size,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        dropout=0.0,
        pooler=False,
    )
    return ez.MaskedLM(backbone, ez.MaskedLMPreprocessor(tokenizer, **arguments))


@pytest.mark.slow
def test_the_loss_is_the_mean_over_real_predictions(tokenizer):
    model = small_model(tokenizer, dynamic=False)
    texts = ["the cat", "the big red dog sat on the small old mat under the big cat"]
    model.compile()
    loss = model.evaluate(texts, verbose=0, batch_size=2)[0]
    x, y, weights = model.preprocessor(texts)
    log = ops.convert_to_numpy(ops.log_softmax(model(x)))
    each = -np.take_along_axis(log, y.numpy()[..., None], axis=-1)[..., 0]
    expected = (each * weights.numpy()).sum() / weights.numpy().sum()
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_it_learns_a_pattern_and_fills_it_in(tokenizer):
    model = small_model(tokenizer)
    texts = ["the cat sat on the mat", "the dog ran under the mat"] * 50
    model.compile(learning_rate=1e-2)
    history = model.fit(texts, epochs=8, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    fills = model.fill_mask("the cat sat on the [MASK]", top_k=2)
    assert fills[0]["token"] == "mat"
    assert fills[0]["text"] == "the cat sat on the mat"
    assert 1 >= fills[0]["score"] > fills[1]["score"] > 0


@pytest.mark.slow
def test_several_masks_and_several_texts(tokenizer):
    model = small_model(tokenizer)
    one, two = model.fill_mask(["a [MASK].", "[MASK] on [MASK]"], top_k=3)
    assert [set(fill) for fill in one] == [{"token", "text", "score"}] * 3
    assert [len(fills) for fills in two] == [3, 3]
    assert all(fill["text"].startswith("[MASK] on ") for fill in two[1])


@pytest.mark.slow
def test_a_text_without_mask_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"texts\[1\] does not contain \[MASK\]"):
        small_model(tokenizer).fill_mask(["a [MASK]", "a cat"])


def test_labels_are_refused(tokenizer):
    with pytest.raises(ValueError, match="labels.*y"):
        small_model(tokenizer).fit(["the cat"], [1])


@pytest.mark.slow
def test_roberta_fills_in_words_with_their_space(golden):
    model = ez.MaskedLM.from_preset(golden("Roberta_ForMaskedLM").folder)
    fills = model.fill_mask("the cat sat on<mask>!", top_k=300)
    by_token = {fill["token"]: fill["text"] for fill in fills}
    assert by_token["Ġthe"] == "the cat sat on the!"
    assert by_token["s"] == "the cat sat ons!"


def test_predicting_on_raw_text_is_refused_with_what_to_do(golden):
    model = ez.MaskedLM.from_preset(golden("Bert_ForMaskedLM").folder)
    with pytest.raises(ValueError, match="fill_mask"):
        model.predict(["the cat sat"])


@pytest.mark.parametrize("task", [ez.MaskedLM, ez.Pretraining, ez.ReplacedTokenDetection])
def test_metrics_count_every_token_alike_however_long_its_batch_is(task):
    """Keras's own count a token of a batch that is padded to ten half as much as one of five."""
    kind = ez.ElectraBackbone if task is ez.ReplacedTokenDetection else ez.BertBackbone
    model = task(kind(20, 1, 2, 8, 16, pooler=task is ez.Pretraining))
    model.compile()
    rng = np.random.default_rng(0)
    batches, right, total = [], 0.0, 0.0
    for rows, masks in ((2, 5), (3, 10)):
        labels = rng.integers(5, 20, (rows, masks))
        logits = rng.normal(size=(rows, masks, 20)).astype("float32")
        logits[0, :, :] += 9 * np.eye(20)[labels[0]]  # a row that is right
        weights = np.float32(rng.integers(0, 2, (rows, masks)))
        right += ((logits.argmax(-1) == labels) * weights).sum()
        total += weights.sum()
        batches.append((labels, logits, weights))
    model.reset_metrics()
    for labels, logits, weights in batches:
        rows, masks = labels.shape
        x = {
            "token_ids": np.full((rows, masks), 7),
            "mask_positions": np.tile(np.arange(masks), (rows, 1)),
        }
        y, found = labels, logits
        if task is ez.Pretraining:
            y = {"masked_lm": labels, "next_sentence": np.zeros(rows, int)}
            found = {"masked_lm": logits, "next_sentence": np.zeros((rows, 2), "float32")}
            weights = {"masked_lm": weights, "next_sentence": np.ones(rows, "float32")}
        elif task is ez.ReplacedTokenDetection:
            drawn = x["token_ids"]
            found = {"generator": logits, "detection": np.ones((rows, masks), "float32")}
            found |= {"token_ids": drawn}
        results = model.compute_metrics(x, y, found, weights)
    name = {ez.MaskedLM: "accuracy", ez.Pretraining: "masked_lm_accuracy"}.get(
        task, "generator_accuracy"
    )
    assert float(results[name]) == pytest.approx(right / total)
