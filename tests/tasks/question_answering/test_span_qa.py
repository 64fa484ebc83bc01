"""SpanQA: transformers' numbers, labels and windows by hand, the search, learning."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import CHECKPOINTS, ROOT

import encoder_zoo as ez
from encoder_zoo.tasks.question_answering.answers import find_spans, list_answers, split_inputs

SQUAD = ROOT / "guides" / "data" / "squad_excerpt.json"
NAMES = ["anna", "ben", "carl", "dora"]
PLACES = ["rome", "paris", "oslo", "kyoto"]
WORDS = [*NAMES, *PLACES, "jo", "##sé", "who", "where", "lives", "in", "is", "there", ".", "?"]
EXAMPLES = [
    {
        "question": question,
        "context": f"{name} lives in {place}.",
        "answers": [{"text": text, "answer_start": f"{name} lives in {place}.".index(text)}],
    }
    for name in ["Anna", "José", "Carl", "Dora"]
    for place in ["Rome", "Paris", "Oslo", "Kyoto"]
    for question, text in (("Who lives there?", name), ("Where is it?", place))
]
IMPOSSIBLE = {"question": "Who?", "context": "Rome is in.", "answers": []}
QUESTIONS = [e["question"] for e in EXAMPLES]
CONTEXTS = [e["context"] for e in EXAMPLES]
ANSWERS = [e["answers"] for e in EXAMPLES]


@pytest.fixture(scope="module")  # traced once
def tokenizer():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return ez.BertTokenizer([*special, *WORDS], strip_accents=False)


@pytest.fixture(scope="module")
def build(tokenizer):
    def build(**settings):
        backbone = ez.BertBackbone(
            tokenizer.vocabulary_size,
            num_layers=1,
            num_heads=2,
            hidden_dim=32,
            intermediate_dim=64,
            dropout=0.0,
            attention_dropout=0.0,
            max_sequence_length=48,
            pooler=False,
        )
        return ez.SpanQA(backbone, ez.SpanQAPreprocessor(tokenizer, **settings))

    return build


@pytest.fixture(scope="module")
def model(build):
    """For tests that do not train."""
    keras.utils.set_random_seed(0)
    return build()


@pytest.fixture(scope="module")
def roberta():
    """A family with two separators, without segments, whose white space has tokens."""
    return ez.SpanQA.from_preset(CHECKPOINTS / "Roberta_ForQuestionAnswering")


@pytest.mark.parametrize("size", [1, 2])
def test_rows_of_a_stream_without_an_answer(model, size):
    (question, context), answer = (QUESTIONS[0], CONTEXTS[0]), ANSWERS[0]
    answers = [answer, None, None, answer]
    rows = [((question, context), answer) for answer in answers]
    expected = model.evaluate(([question] * 4, [context] * 4), answers, size, verbose=0)
    found = model.evaluate(iter(rows), batch_size=size, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def labelled(model, example) -> list[str]:
    """For every window the tokens that its labels mark."""
    inputs, y = model.preprocessor([example])
    name = model.preprocessor.tokenizer.id_to_token
    return [
        " ".join(name(i) for i in ids[first : last + 1])
        for ids, (first, last) in zip(inputs["token_ids"].numpy(), y.numpy(), strict=True)
    ]


# (context, answer, the tokens that stand for it)
PIECES = [
    ("José lives in Rome.", "José", "jo ##sé"),
    ("José lives in Rome.", "sé", "##sé"),
    ("José lives in Rome.", "os", "jo ##sé"),  # whole tokens around the answer
    ("🙂🙂 Anna lives.", "Anna lives", "anna lives"),
    ("Anna  lives", " lives", "lives"),  # white space around an answer does not count
    ("Anna lives in Rome ", "Rome ", "rome"),
    ("Anna lives in Rome.\n", "Rome.\n", "rome ."),
    ("Rome\u3000\x1c\x85 is in", "Rome\u3000\x1c\x85 ", "rome"),
    ("Anna lives in Rome\u200b", "Rome\u200b", "rome"),  # a character without a token
    ("Anna lives in\u200b Rome", "in\u200b", "in"),
]


class TestLabels:
    def example(self, context, text, question="Who?", **more):
        answers = [{"text": text, "answer_start": context.index(text)}]
        return {"question": question, "context": context, "answers": answers, **more}

    @pytest.mark.slow(only=r"^(Jos\\xe9 lives in Rome\.-Jos|Jos\\xe9 lives in Rome\.-s)")
    @pytest.mark.parametrize("context, text, tokens", PIECES)
    def test_pieces_of_the_answer(self, model, context, text, tokens):
        assert labelled(model, self.example(context, text)) == [tokens]

    def test_pieces_of_the_answer_in_a_dataset(self, model):
        examples = [self.example(context, text) for context, text, _ in PIECES]
        [(x, y)] = as_dataset(examples).ragged_batch(len(examples))
        _, labels = model.preprocessor(x, y)
        _, expected = model.preprocessor(examples)
        np.testing.assert_array_equal(labels, expected)

    @pytest.mark.slow
    def test_an_answer_that_the_tokenizer_drops_is_refused(self, model):
        for text in (" ", "\u200b"):
            examples = [EXAMPLES[0], self.example("Anna lives\u200b in Rome", text)]
            with pytest.raises(ValueError, match=r"Example 1\b.*no token"):
                model.preprocessor(examples)
        message = "Example 1.*no token"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            model.evaluate(as_dataset(examples), verbose=0)

    @pytest.mark.slow
    def test_family_with_two_separators_and_no_segments(self, roberta):
        example = self.example("the cat sat on the mat", "cat sat", "the dog?")
        inputs, _ = roberta.preprocessor([example])
        token = roberta.preprocessor.tokenizer.id_to_token
        row = [token(i) for i in inputs["token_ids"].numpy()[0]]
        assert row.count("</s>") == 3
        assert labelled(roberta, example) == ["Ġcat Ġsat"]
        assert "segment_ids" not in inputs
        # All bytes of a character; the space before is a token of its own, without characters.
        assert labelled(roberta, self.example("a  🙂 b\n", "🙂 b\n")) == ["ð Ł Ļ Ĥ Ġ b"]

    @pytest.mark.slow
    @pytest.mark.parametrize("family", ["Bert", "Roberta"])
    def test_clean_answers_are_labelled_as_transformers_example_scripts_do(self, roberta, family):
        bert = ez.BertTokenizer(CHECKPOINTS / "Bert_ForQuestionAnswering" / "vocab.txt")
        tokenizer = roberta.preprocessor.tokenizer if family == "Roberta" else bert
        preprocessor = ez.SpanQAPreprocessor(tokenizer, sequence_length=3000, window_length=3000)
        examples = [e for e in ez.read_squad(SQUAD)[::12] if e["answers"][0]["text"].isascii()]
        assert len(examples) > 80
        rows = preprocessor.encode(examples)
        columns = preprocessor.find_context_start(rows)
        for example, column, label in zip(examples, columns, rows["labels"].numpy(), strict=True):
            _, starts, ends = tokenizer.tokenize_with_offsets(example["context"])
            answer = example["answers"][0]
            first = np.flatnonzero(starts <= answer["answer_start"])[-1]
            last = np.flatnonzero(ends >= answer["answer_start"] + len(answer["text"]))[0]
            assert label.tolist() == [column + first, column + last]

    def test_windows_hold_the_answer_or_point_at_the_start_token(self, build):
        model = build(window_length=16, doc_stride=4)  # 16 - 3 specials - 2 = 11 tokens each
        context = "Rome is there . " * 5 + "Anna lives in Oslo"  # 24 tokens, windows at 0, 7, 14
        found = labelled(model, self.example(context, "Anna lives"))
        assert found == ["[CLS]", "[CLS]", "anna lives"]
        found = labelled(model, self.example(context[:-14], "Anna"))
        assert found == ["[CLS]", "[CLS]", "anna"]

    def test_an_answer_in_the_overlap_is_labelled_in_both_windows(self, build):
        model = build(window_length=16, doc_stride=4)
        context = "Rome is there . Rome is there Anna lives . Rome is there ."  # Anna: token 7
        assert labelled(model, self.example(context, "Anna")) == ["anna", "anna"]
        # Half of it: not wholly inside the first window, which ends after token 10.
        longer = "Rome is there . Rome is there Rome is Anna lives in Oslo . Rome"
        assert labelled(model, self.example(longer, "Anna lives in Oslo")) == [
            "[CLS]",
            "anna lives in oslo",
        ]

    def test_answers_outside_all_windows_are_counted(self, build, caplog):
        model = build(window_length=16, doc_stride=4)  # windows at 0 and 7, of 11 tokens
        context = "Rome is there . Rome Anna lives in Oslo . Rome is there ."
        found = labelled(model, self.example(context, "Anna lives in Oslo . Rome is"))
        assert found == ["[CLS]", "[CLS]"]
        assert "1 of 1 questions" in caplog.text and "doc_stride" in caplog.text
        caplog.clear()
        labelled(model, self.example(context, "Anna lives in Oslo"))
        labelled(model, {**IMPOSSIBLE, "answers": []})
        assert "questions" not in caplog.text

    def test_unanswerable_questions(self, model):
        for answers in ([], None, {"text": [], "answer_start": []}):
            assert labelled(model, {**IMPOSSIBLE, "answers": answers}) == ["[CLS]"]

    @pytest.mark.slow
    def test_the_forms_of_answers_and_examples_are_one(self, model):
        preprocessor = model.preprocessor
        expected = preprocessor(EXAMPLES)[1].numpy()
        columns = {"question": QUESTIONS, "context": CONTEXTS, "answers": ANSWERS}
        flat = [a[0] for a in ANSWERS]
        lists = [{k: [a[k]] for k in ("text", "answer_start")} for a in flat]
        for arguments in (
            (columns,),
            ((QUESTIONS, CONTEXTS), ANSWERS),
            ((QUESTIONS, CONTEXTS), flat),
            ((QUESTIONS, CONTEXTS), lists),
            ((QUESTIONS, CONTEXTS), [np.array(a * 2) for a in ANSWERS]),  # parquet gives arrays
        ):
            np.testing.assert_array_equal(preprocessor(*arguments)[1], expected)


class TestSearch:
    def brute_force(self, logits, inside, longest):
        length = logits.shape[-1]
        spans = [
            (logits[0, i] + logits[1, j], i, j)
            for i in range(length)
            for j in range(i, min(i + longest, length))
            if inside[i] and inside[j]
        ]
        return sorted(spans, reverse=True)

    @pytest.mark.parametrize("longest", [1, 3, 20])
    def test_it_equals_looking_at_every_span(self, longest):
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(4, 2, 11)).astype("float32")
        inside = np.zeros((4, 11), bool)
        inside[:3, 4:9] = inside[3, 10:] = True
        found = find_spans(tf.constant(logits), tf.constant(inside), longest, 5)
        for row in range(4):
            expected = self.brute_force(logits[row], inside[row], longest)
            total = np.logaddexp.reduce([s for s, _, _ in expected])
            assert found.total[row].numpy() == pytest.approx(total, rel=1e-5)
            for k, (score, first, last) in enumerate(expected[:5]):
                assert (found.start[row, k], found.end[row, k]) == (first, last)
                assert found.score[row, k].numpy() == pytest.approx(score, rel=1e-5)
            assert np.all(found.score[row, len(expected) :] < -1e8)
            assert found.null[row].numpy() == pytest.approx(logits[row, :, 0].sum(), rel=1e-5)

    def test_scores_are_shares_of_all_spans(self, model):
        context = "Anna lives in Rome."  # 5 tokens: 15 spans
        found = model.answer("Who?", context, top_k=40)
        assert len(found) == 15
        assert sum(a["score"] for a in found) == pytest.approx(1.0, abs=1e-5)
        assert [a["score"] for a in found] == sorted((a["score"] for a in found), reverse=True)
        assert all(a["text"] == context[a["start"] : a["end"]] for a in found)
        with_null = model.answer("Who?", context, top_k=40, null_threshold=0.0)
        assert len(with_null) == 16
        assert sum(a["score"] for a in with_null) == pytest.approx(1.0, abs=1e-5)
        assert {"", *(a["text"] for a in found)} == {a["text"] for a in with_null}

    def test_the_threshold_decides_between_an_answer_and_none(self, model):
        assert model.answer("Who?", "Anna", null_threshold=1e6)["text"] == "Anna"
        nothing = model.answer("Who?", "Anna", null_threshold=-1e6)
        assert (nothing["text"], nothing["start"], nothing["end"]) == ("", 0, 0)

    def test_a_stored_threshold_is_part_of_the_evaluation(self, model):
        """All questions have an answer, and the model does not answer any or every question."""
        found = model.answer(QUESTIONS[:8], CONTEXTS[:8])
        rows = [
            {**example, "answers": [{"text": answer["text"], "answer_start": answer["start"]}]}
            for example, answer in zip(EXAMPLES, found, strict=False)
        ]
        assert model.evaluate_answers(rows) == {"exact_match": 100.0, "f1": 100.0, "total": 8}
        try:
            for model.null_threshold, right in ((-1e6, 0.0), (1e6, 100.0)):
                texts = [answer["text"] for answer in model.answer(QUESTIONS[:8], CONTEXTS[:8])]
                assert (texts == [""] * 8) == (right == 0.0)
                scores = model.evaluate_answers(rows)
                assert (scores["exact_match"], scores["f1"]) == (right, right)
        finally:
            model.null_threshold = None

    @pytest.mark.slow
    def test_the_best_of_several_passages(self, model):
        passages = ["Anna lives in Rome.", "José lives in Oslo.", "Carl is there."]
        spans = []
        outputs = model.predict((["Who?"] * 3, passages))
        for number, (passage, [logits]) in enumerate(zip(passages, outputs, strict=True)):
            _, starts, ends = model.preprocessor.tokenizer.tokenize_with_offsets(passage)
            inside = [4 <= i < 4 + len(starts) for i in range(logits.shape[-1])]
            spans += [
                (score, number, int(starts[i - 4]), int(ends[j - 4]))
                for score, i, j in self.brute_force(logits, inside, 30)
            ]
        total = np.logaddexp.reduce([score for score, *_ in spans])
        spans = sorted(spans, reverse=True)
        found = model.answer("Who?", passages, top_k=12)
        assert [(a["passage"], a["start"], a["end"]) for a in found] == [s[1:] for s in spans[:12]]
        shares = [np.exp(score - total) for score, *_ in spans[:12]]
        np.testing.assert_allclose([a["score"] for a in found], shares, rtol=1e-4)
        assert model.answer("Who?", passages) == found[0]
        assert model.answer("Who?", tuple(passages)) == found[0]
        assert all(a["text"] == passages[a["passage"]][a["start"] : a["end"]] for a in found)
        nothing = model.answer("Who?", passages, null_threshold=-1e6)
        assert (nothing["text"], nothing["passage"]) == ("", None)
        with pytest.raises(ValueError, match="passage"):
            model.answer("Who?", [])

    def test_the_length_of_answers_is_limited(self, model):
        found = model.answer("Who?", "Anna lives in Rome.", top_k=40, max_answer_length=2)
        assert len(found) == 9

    @pytest.mark.slow
    def test_top_k_counts_answers_not_spans_of_tokens(self, roberta):
        # 4 tokens for each 🙂, and for all spaces but one a token that has no characters.
        for context, count in (("🙂🙂 b", 6), ("a   🙂🙂   ", 6)):
            every = roberta.answer("the?", context, top_k=count + 5)
            assert len(every) == count
            assert all(answer["text"].strip() == answer["text"] != "" for answer in every)
            for n in (2, 3, 8, count - 1):
                found = roberta.answer("the?", context, top_k=n)
                assert [a["end"] for a in found] == [a["end"] for a in every[:n]]
                assert [a["start"] for a in found] == [a["start"] for a in every[:n]]

    def test_windows_give_spans_of_the_whole_context_once(self, build):
        model = build(window_length=16, doc_stride=4)
        context = " ".join(NAMES * 6)  # 24 tokens
        found = model.answer("Who?", context, top_k=200, max_answer_length=1)
        assert sorted(a["start"] for a in found) == [
            i for i in range(len(context)) if i == 0 or context[i - 1] == " "
        ]


class TestLearning:
    @pytest.fixture
    def trained(self, build):
        model = build()
        model.compile(learning_rate=2e-3)
        model.fit([*EXAMPLES, IMPOSSIBLE] * 12, epochs=8, batch_size=8, verbose=0)
        return model

    @pytest.mark.slow
    def test_from_squad_examples_to_answers(self, trained):
        assert trained.evaluate(EXAMPLES, verbose=0, return_dict=True)["accuracy"] == 1.0
        answer = trained.answer(question="Where is it?", context="José lives in Oslo.")
        assert (answer["text"], answer["start"], answer["end"]) == ("Oslo", 14, 18)
        assert answer["score"] > 0.5
        several = trained.answer(["Who lives there?"] * 2, ["Anna lives in Rome.", CONTEXTS[9]])
        assert [a["text"] for a in several] == ["Anna", "José"]
        scores = trained.evaluate_answers(EXAMPLES)
        assert scores == {"exact_match": 100.0, "f1": 100.0, "total": 32}
        scores = trained.evaluate_answers([*EXAMPLES, IMPOSSIBLE])
        assert (scores["HasAns_exact_match"], scores["NoAns_exact_match"]) == (100.0, 100.0)
        assert scores["best_exact_match"] == 100.0


def as_dataset(examples):
    def rows():
        for e in examples:
            yield (
                (e["question"], e["context"]),
                {k: [a[k] for a in e["answers"]] for k in ("text", "answer_start")},
            )

    string, strings = tf.TensorSpec([], tf.string), tf.TensorSpec([None], tf.string)
    answers = {"text": strings, "answer_start": tf.TensorSpec([None], tf.int32)}
    dataset = tf.data.Dataset.from_generator(rows, output_signature=((string, string), answers))
    return dataset.apply(tf.data.experimental.assert_cardinality(len(examples)))


@pytest.mark.matrix
@pytest.mark.slow
def test_datasets_give_the_same_evaluation_as_lists(model):
    examples = [*EXAMPLES, IMPOSSIBLE]
    expected = model.evaluate(examples, verbose=0)
    for dataset in (as_dataset(examples), as_dataset(examples).ragged_batch(5)):
        np.testing.assert_allclose(model.evaluate(dataset, verbose=0), expected, rtol=1e-5)
    named = as_dataset(examples).map(lambda x, y: {"question": x[0], "context": x[1], "answers": y})
    np.testing.assert_allclose(model.evaluate(named, verbose=0), expected, rtol=1e-5)
    assert len(model.predict(named)) == len(examples)


@pytest.mark.slow
def test_the_loss_does_not_depend_on_padding(build, model):
    padded = build(sequence_length=40)
    padded.set_weights(model.get_weights())
    np.testing.assert_allclose(
        padded.evaluate(EXAMPLES, verbose=0)[0], model.evaluate(EXAMPLES, verbose=0)[0], rtol=1e-5
    )


@pytest.mark.slow
def test_the_loss_is_the_mean_of_the_two_cross_entropies(model):
    loss = model.evaluate(EXAMPLES[:1], verbose=0)[0]
    [[logits]] = model.predict(EXAMPLES[:1])
    _, y = model.preprocessor(EXAMPLES[:1])
    log_probabilities = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    picked = log_probabilities[[0, 1], y.numpy()[0]]
    assert loss == pytest.approx(-picked.mean(), rel=1e-5)


@pytest.mark.slow
def test_predictions_are_one_list_of_windows_for_each_question(build):
    model = build(window_length=16, doc_stride=4)
    contexts = ["Anna lives.", " ".join(NAMES * 6), "Ben."]
    outputs = model.predict((["Who?"] * 3, contexts))
    assert [len(windows) for windows in outputs] == [1, 3, 1]
    assert [w.shape for w in outputs[1]] == [(2, 16), (2, 16), (2, 15)]
    assert model.predict(([], [])) == []
    prepared = tf.data.Dataset.from_tensors(model.preprocessor((["Who?"] * 3, contexts)))
    rows = model.predict(prepared, verbose=0)  # padded to 16 tokens
    assert rows.shape == (5, 2, 16)
    np.testing.assert_allclose(rows[1:3], outputs[1][:2], atol=1e-5)


class TestRefusals:
    @pytest.mark.parametrize(
        "change, message",
        [
            (
                {"answers": [{"text": "Rome", "answer_start": 3}]},
                "Example 1: .*'Rome'",
            ),
            ({"answers": [{"text": "Rome", "answer_start": 3}]}, "14"),
            ({"answers": [{"text": "Atlantis", "answer_start": 3}]}, "'Atlantis'"),
            ({"answers": [{"text": "", "answer_start": 0}]}, "empty list"),
            ({"answers": [{"text": "Rome"}]}, "is not an answer"),
            ({"context": ""}, "Example 1: .*context"),
            ({"question": "who " * 38}, "Example 1: .*38 tokens.* 37"),
        ],
    )
    def test_fit_names_the_example(self, model, change, message):
        answerless = {"answers": []} if "answers" not in change else {}
        examples = [EXAMPLES[0], {**EXAMPLES[0], **answerless, **change}]
        with pytest.raises(ValueError, match=message):
            model.fit(examples)

    @pytest.mark.parametrize(
        "answers",
        [
            [{"text": "Rome", "answer_start": "14"}],
            [{"text": "Rome", "answer_start": 14.0}],
            {"text": b"Rome", "answer_start": 14},
            {"text": ["Rome"], "answer_start": [14.0]},
            {"answer_start": [14]},
            "Rome",
        ],
    )
    def test_answers_of_other_types(self, answers):
        with pytest.raises(ValueError, match="^Example 1: .*answer"):
            list_answers([None, answers])

    def test_answers_in_columns_of_different_lengths(self):
        with pytest.raises(ValueError, match=r"Row 1.*None.*y\[1\]"):
            list_answers([None, {"text": ["Rome"], "answer_start": None}])
        for starts in ([], 14):
            with pytest.raises(ValueError, match="^Example 1: .*answer_start"):
                list_answers([None, {"text": ["Rome"], "answer_start": starts}])

    def test_missing_answers(self, model):
        for call in (model.fit, model.evaluate, model.evaluate_answers):
            with pytest.raises(ValueError, match="answers are missing"):
                call((QUESTIONS[:2], CONTEXTS[:2]))
        with pytest.raises(ValueError, match="question"):
            model.evaluate_answers([])

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "change, message",
        [
            pytest.param(
                {"answers": [{"text": "Rome", "answer_start": 3}]},
                "Example 4.*Rome",
                id="answer",
            ),
            pytest.param(
                {"question": "who " * 38},
                "Example 4.*38 tokens.* 37",
                id="question",
                marks=pytest.mark.slow,
            ),
            pytest.param(
                {"context": " ", "answers": []},
                "Example 4.*context",
                id="context",
                marks=pytest.mark.slow,
            ),
        ],
    )
    def test_a_dataset_names_the_example_of_the_batch(self, model, change, message):
        dataset = as_dataset([*EXAMPLES[:4], {**EXAMPLES[4], **change}])
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            model.evaluate(dataset, verbose=0)

    def test_settings_without_a_meaning(self, build):
        with pytest.raises(ValueError, match="doc_stride is -1"):
            build(doc_stride=-1)
        for name in ("sequence_length", "window_length"):
            with pytest.raises(ValueError, match="sequence_length.* 8.* 12"):
                build(**{name: 8})
        model = build(window_length=13)
        for name in ("top_k", "max_answer_length"):
            with pytest.raises(ValueError, match=f"{name} is 0"):
                model.answer("Who?", "Anna.", **{name: 0})

    def test_answer_with_an_empty_context(self, model):
        with pytest.raises(ValueError, match="Example 0: .*context"):
            model.answer("Who?", " ")

    @pytest.mark.slow
    def test_spaces_that_are_tokens_are_no_context(self, roberta):
        with pytest.raises(ValueError, match="Example 1: .*context"):
            roberta.answer(["Who?"] * 2, ["Anna", "   "])
        served = tf.function(roberta.signatures()["serving_default"], autograph=False)
        contexts = ["a  🙂 b  ", "  ", "", " é"]
        found = served(tf.constant(["Who?"] * 4), tf.constant(contexts))
        first, last = roberta.answer(["Who?"] * 2, [contexts[0], contexts[3]])
        texts = [text.decode() for text in found["text"].numpy()]
        assert texts == [first["text"], "", "", last["text"]]
        np.testing.assert_array_equal(found["score"][1:3], [0, 0])

    def test_texts_alone(self, model):
        with pytest.raises(ValueError, match=r"\(questions, contexts\)"):
            model.predict(["Who?"])

    def test_an_example_without_a_context(self, model):
        with pytest.raises(ValueError, match="Row 1.*'context'"):
            model.fit([EXAMPLES[0], {"question": "Who?", "answers": []}])

    def test_columns_beside_questions_and_contexts(self, model, caplog):
        x = {"id": ["a1"], "question": ["Who?"], "context": ["Anna."]}
        given = model._read_data(x, [{"text": "Anna", "answer_start": 0}])
        assert "'question'" in caplog.text and "'context'" in caplog.text
        assert split_inputs(given.x, given.y)[2] is given.y

    def test_examples_of_different_kinds(self):
        answerless = {"question": "Who?", "context": "Anna."}
        for examples, message in (
            ([answerless, EXAMPLES[0]], "Row 0.*'answers'"),
            ([EXAMPLES[0], None], "Row 1 is None"),
            ({"question": ["Who?"], "text": ["Anna."], "id": ["a1"]}, "questions, contexts"),
        ):
            with pytest.raises(ValueError, match=message):
                split_inputs(examples, None)


@pytest.mark.matrix
@pytest.mark.slow  # test_conformance.py saves and opens every task
def test_a_saved_preset_gives_the_same_answers(build, tmp_path):
    model = build(sequence_length=32, window_length=30, doc_stride=7)
    model.save_to_preset(tmp_path / "preset")
    loaded = ez.SpanQA.from_preset(tmp_path / "preset")
    settings = loaded.preprocessor
    assert (settings.sequence_length, settings.window_length, settings.doc_stride) == (32, 30, 7)
    assert loaded.answer(QUESTIONS, CONTEXTS) == model.answer(QUESTIONS, CONTEXTS)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.answer(QUESTIONS, CONTEXTS) == model.answer(QUESTIONS, CONTEXTS)


@pytest.mark.slow
def test_sample_weights_are_of_questions(model):
    model.compile()
    pair = (QUESTIONS[:2], CONTEXTS[:2])  # two rows: as many as labels in a row
    losses = [
        model.evaluate(pair, ANSWERS[:2], sample_weight=weights, verbose=0, return_dict=True)[
            "loss"
        ]
        for weights in ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0])
    ]
    alone = model.evaluate((QUESTIONS[:1], CONTEXTS[:1]), ANSWERS[:1], verbose=0, return_dict=True)
    assert losses[0] == pytest.approx(alone["loss"] / 2, rel=1e-5)  # Keras divides by all rows
    assert losses[0] + losses[1] == pytest.approx(losses[2], rel=1e-5)
    with pytest.raises(ValueError, match="3 sample weights"):
        model.evaluate(pair, ANSWERS[:2], sample_weight=[1.0, 1.0, 1.0])


@pytest.mark.slow(only="^0")
@pytest.mark.parametrize("threshold", [float("inf"), -float("inf"), 0.5])
def test_a_preset_keeps_the_threshold(tiny, tmp_path, threshold):
    """Also infinite ones, which JSON has no number for: always an answer, and never one."""
    from encoder_zoo.encoders import get_family

    model = tiny.task(get_family("bert"), "SpanQA")
    model.null_threshold = threshold
    model.save_to_preset(tmp_path)
    assert ez.SpanQA.from_preset(tmp_path).null_threshold == threshold
