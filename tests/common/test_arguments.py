"""Arguments that cannot be meant are refused by name, before any work is done.

One test runs over the signatures of all public callables.
"""

import inspect
import pickle
import types
from typing import Literal

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.common.validation import (
    Fraction,
    PositiveFloat,
    PositiveInt,
    check_argument,
    get_rules,
    validate_arguments,
)

# Methods that Keras calls, with tensors or from inside of graphs.
IN_GRAPHS = {
    "call", "build", "collate", "compute_loss", "compute_metrics", "compute_output_spec",
    "logits_of", "encoded", "input_ranges", "make_predict_function", "make_train_function",
    "make_test_function",
}  # fmt: skip
# Called by constructors, with arguments of theirs.
IN_CONSTRUCTORS = {"make_dense", "make_norm", "make_table", "make_dropout", "make_layer"}
ODD = [
    "", "no", "128", "maybe", 0, 1, -1, -5, 1.5, True, None, [8], {}, (1, 2), np.nan, np.inf,
    -np.inf, 2**80, 1e400, b"x", object(), np.zeros(3), np.float32(0.5), np.int64(-3),
    np.bool_(True), lambda: 1,
]  # fmt: skip


def public_callables() -> dict[str, types.FunctionType]:
    """Of all public names: functions, constructors and public methods of this package."""
    found = {}
    for name in ez.__all__:
        value = getattr(ez, name, None)
        if inspect.isfunction(value):
            found[name] = value
        elif inspect.isclass(value):
            for base in value.__mro__:
                if not base.__module__.startswith("encoder_zoo."):
                    continue
                for method, function in vars(base).items():
                    public = method == "__init__" or not method.startswith("_")
                    elsewhere = method in IN_GRAPHS | IN_CONSTRUCTORS
                    ours = getattr(function, "__module__", "").startswith("encoder_zoo.")
                    if public and ours and not elsewhere and inspect.isfunction(function):
                        found[f"{base.__name__}.{method}"] = function
    return found


def called(function, arguments: dict) -> None:
    """Calls it without a built object, and without the arguments that it cannot do without."""
    takes_self = "self" in inspect.signature(function).parameters
    unbuilt = types.SimpleNamespace(defaults={})
    function(**({"self": unbuilt} if takes_self else {}), **arguments)


CALLABLES = public_callables()


def test_there_are_public_callables():
    expected = {"Encoder.__init__", "TextEmbedder.embed", "TextModel.fit"}
    assert expected <= set(CALLABLES)


@pytest.mark.parametrize("name", sorted(CALLABLES))
def test_arguments_with_a_rule_are_checked_before_any_work(name):
    function = CALLABLES[name]
    for argument, rule in get_rules(function).items():
        for odd in ODD:
            try:
                check_argument(argument, odd, rule)
            except ValueError as error:
                assert str(error).startswith(f"{argument} is ") and len(str(error)) < 200
                with pytest.raises(ValueError, match=f"^{argument} is "):
                    called(function, {argument: odd})


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("sequence_length", ["128", 0, 1, 2, -5, 1.5, True, [8]]),
        ("doc_stride", ["1", -1, 1.5, np.nan, True, [1]]),
        ("window_length", ["384", 0, -1, 2.5]),
        ("mask_rate", ["0.15", 0, 1, -0.1, np.nan, np.inf, True]),
        ("seed", ["0", -1, 1.5, [1, 2], np.nan]),
        ("batch_size", [0, -1, "32", 1.5, True, [32]]),
        ("learning_rate", [0, -1, np.nan, np.inf, "fast", True]),
        ("top_k", [0, -1, 1.5, "x", True]),
        ("jit_compile", ["maybe", 1, 0, "yes"]),
        ("lowercase", ["no", 1, 0, "false", []]),
        ("pack_texts", ["no", 1]),
        ("delete_checkpoint", ["no", 1]),
        ("num_layers", [0, -1, 1.0, "2", None, True]),
    ],
)
def test_values_that_were_once_accepted(argument, wrong):
    takers = {
        name: function
        for name, function in CALLABLES.items()
        if argument in inspect.signature(function).parameters
    }
    assert takers
    for function in takers.values():
        for value in wrong:
            with pytest.raises(ValueError, match=f"^{argument} is "):
                called(function, {argument: value})


def test_numbers_of_numpy_are_numbers():
    class Reader:
        @validate_arguments
        def read(self, batch_size: PositiveInt, flag: bool, learning_rate: PositiveFloat):
            return batch_size, flag, learning_rate

    given = np.int64(8), np.bool_(True), np.float32(0.5)
    assert Reader().read(*given) == given


def test_a_call_with_too_many_arguments_is_pythons_own_error():
    class Reader:
        @validate_arguments
        def read(self, batch_size: PositiveInt | None = None):
            return batch_size

    with pytest.raises(TypeError, match="positional"):
        Reader().read(1, 2)


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ("a\nb", r"'a\\nb'"),
        ("a\r", r"'a\\r'"),
        ("\ud800", "UTF-8"),
        (7, "7"),
        (None, "None"),
    ],
)
def test_a_vocabulary_holds_what_a_file_can_hold(odd, words):
    with pytest.raises(ValueError, match=rf"vocabulary\[6\] is.*{words}"):
        ez.BertTokenizer([*WORDS, odd])


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("utf-16", "UTF-16"),
        ("utf-8-sig", "byte order mark"),
        ("latin-1", "byte 37"),
    ],
)
def test_a_vocabulary_in_another_encoding_is_named(tmp_path, encoding, words):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*WORDS, "naïve"]), encoding=encoding)
    with pytest.raises(ValueError, match=f"vocab.txt.*{words}"):
        ez.BertTokenizer(str(path))


def test_lines_may_end_as_on_windows(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(WORDS).encode())
    assert ez.BertTokenizer(tmp_path / "vocab.txt").get_vocabulary() == WORDS


@pytest.mark.matrix
@pytest.mark.parametrize(
    "family",
    ["bert", *(pytest.param(n, marks=pytest.mark.slow) for n in ("roberta", "xlm-roberta"))],
)
def test_tokenizers_and_tasks_can_be_pickled(tiny, family):
    from encoder_zoo.encoders import get_family

    task = tiny.task(get_family(family), "SequenceClassifier")
    tokenizer = task.preprocessor.tokenizer
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.get_config() == tokenizer.get_config()
    texts = ["abc d", "b"]
    assert again.tokenize(texts).to_list() == tokenizer.tokenize(texts).to_list()
    copied = pickle.loads(pickle.dumps(task))
    np.testing.assert_array_equal(copied.predict(texts, verbose=0), task.predict(texts, verbose=0))


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, where another test has imported it
def test_a_fork_of_a_process_that_used_a_model_says_so():
    import multiprocessing
    import os

    if not hasattr(os, "fork"):
        pytest.skip("no forks here")
    tokenizer = ez.BertTokenizer(WORDS)
    tokenizer.tokenize(["cat"])
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child():
        try:
            tokenizer.tokenize(["cat"])
        except RuntimeError as error:
            theirs.send(str(error))

    process = context.Process(target=child)
    process.start()
    assert ours.poll(60)
    assert "multiprocessing.get_context('spawn')" in ours.recv()
    process.join()


def test_unknown_arguments_of_methods_are_named_with_what_may_be_meant():
    class Reader:
        @validate_arguments
        def read(self, text, top_k: PositiveInt = 1):
            return top_k

        @validate_arguments
        def write(self, text, top_k: PositiveInt = 1, **kwargs):
            return kwargs

    with pytest.raises(TypeError, match="read.*'n_best'.*'top_k'"):
        Reader().read("a", n_best=2)
    with pytest.raises(TypeError, match="'deep'.*text, top_k"):
        Reader().read("a", deep=2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'text'"):
        Reader().read(top_k=2)
    with pytest.raises(TypeError, match="multiple values for argument 'top_k'"):
        Reader().write("a", 2, top_k=2, deep=2)
    assert Reader().write("a", deep=2) == {"deep": 2}


def test_only_what_is_decorated_is_checked(tiny):
    from encoder_zoo.encoders import get_family

    class Comparing(ez.SequenceClassifier):
        def compare(self, first, second, top_k=0, epochs=-1):
            return first + second

        def classify(self, texts, batch_size: PositiveInt = 1):
            return batch_size

    model = Comparing(tiny.backbone(get_family("bert")), num_classes=2)
    assert model.compare("a", second="b") == "ab"
    assert model.classify([], batch_size=0) == 0


def test_an_annotation_carries_its_rule_however_it_is_written():
    @validate_arguments
    def function(
        a: PositiveInt | None = None,
        b: "Fraction" = 0.5,
        c: "Literal['x'] | PositiveInt" = "x",
        d: "bool | NotImported" = False,  # noqa: F821
        e: "np.ndarray | PositiveInt" = 1,
    ):
        return a, b, c, d, e

    assert set(get_rules(function)) == {"a", "b", "c"}
    assert function(1, 0.25, 7, "anything", None) == (1, 0.25, 7, "anything", None)
    for name, wrong, words in [
        ("a", 0, "a is 0. Expected an integer of 1 or more, or None."),
        ("b", 1, "b is 1. Expected a number between 0 and 1."),
        ("c", "y", "c is 'y'. Expected 'x', or an integer of 1 or more."),
    ]:
        with pytest.raises(ValueError) as error:
            function(**{name: wrong})
        assert str(error.value) == words


def test_a_decorated_function_keeps_its_signature_and_can_be_pickled():
    function = ez.train_vocabulary
    assert list(inspect.signature(function).parameters) == [
        "texts", "vocabulary_size", "family", "options",
    ]  # fmt: skip
    assert inspect.getfullargspec(ez.BertTokenizer.__init__).args[:2] == ["self", "vocabulary"]
    assert pickle.loads(pickle.dumps(function)) is function
