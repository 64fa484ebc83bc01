"""Nothing is traced twice: graphs live from call to call, whatever the calls are given."""

import contextlib
import ctypes
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import run

import encoder_zoo as ez
from encoder_zoo.common.context import Context
from encoder_zoo.encoders import FAMILIES, get_family, training
from encoder_zoo.encoders.core import EncoderBlock
from encoder_zoo.tasks.training import text_model
from encoder_zoo.testing import tiny

WORDS = "the cat sat on a mat and dog ran away with his good bad film".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def sentences(count, seed):
    rng = np.random.default_rng(seed)
    return [list(rng.choice(WORDS, rng.integers(2, 12))) for _ in range(count)]


def sequence_data(count, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(s) for s in sentences(count, seed)], rng.integers(0, 2, count).tolist()


def token_data(count, seed):
    rng, words = np.random.default_rng(seed), sentences(count, seed)
    return words, [list(rng.choice(["O", "B-X"], len(sentence))) for sentence in words]


def span_data(count, seed):
    words = sentences(count, seed)
    answers = [{"text": s[1], "answer_start": len(s[0]) + 1} for s in words]
    return (["the cat ?"] * count, [" ".join(s) for s in words]), answers


def masked_data(count, seed):
    return sequence_data(count, seed)[:1]


@functools.cache
def tokenizer():
    return ez.BertTokenizer(TOKENS)


def task(kind, preprocessor, **arguments):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    pooler = kind is ez.SequenceClassifier
    backbone = ez.BertBackbone(
        len(TOKENS), **sizes, dropout=0.0, attention_dropout=0.0, pooler=pooler
    )
    return kind(backbone, preprocessor(tokenizer()), **arguments)


def sequence_task():
    return task(ez.SequenceClassifier, ez.SequenceClassifierPreprocessor, num_classes=2)


TASKS = {
    "sequence": (sequence_task, sequence_data, lambda m, x: m.classify(x[:1])),
    "token": (
        lambda: task(ez.TokenClassifier, ez.TokenClassifierPreprocessor, labels=["O", "B-X"]),
        token_data,
        lambda m, x: m.extract_entities(x[:1]),
    ),
    "span": (
        lambda: task(ez.SpanQA, ez.SpanQAPreprocessor),
        span_data,
        lambda m, x: m.answer([x[0][0]], [x[1][0]]),
    ),
    "masked": (
        lambda: task(ez.MaskedLM, ez.MaskedLMPreprocessor),
        masked_data,
        lambda m, x: m.fill_mask("the [MASK] sat"),
    ),
}


@pytest.fixture
def traces(monkeypatch):
    """Counts the traces of a task's `call`, one number for each kind: [with, without training]."""
    counts = [0, 0]

    def count(kind):
        call = kind.call

        def counted(self, inputs, training=None):
            if tf.inside_function():
                counts[0 if training else 1] += 1
            return call(self, inputs, training=training)

        monkeypatch.setattr(kind, "call", counted)

    for kind in (ez.SequenceClassifier, ez.TokenClassifier, ez.SpanQA, ez.MaskedLM):
        count(kind)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name == "sequence" else pytest.param(name, marks=pytest.mark.slow) for name in TASKS],
)
def test_each_graph_is_traced_once(name, traces):
    make, data, ask = TASKS[name]
    model = make()
    model.fit(*data(20, 0), batch_size=8, verbose=0)
    assert traces == [1, 0]
    model.fit(*data(37, 1), batch_size=16, epochs=2, verbose=0)
    model.compile(learning_rate=1e-3)
    model.fit(*data(9, 2), batch_size=4, validation_data=data(5, 3), verbose=0)
    model.evaluate(*data(11, 4), batch_size=4, verbose=0)
    ask(model, data(1, 5)[0])
    first = list(traces)
    assert first[0] == 1 and first[1] <= 2  # one graph that evaluates, one that predicts
    if name != "masked":
        model.predict(data(21, 6)[0], batch_size=4, verbose=0)
    model.fit(*data(33, 7), batch_size=8, validation_data=data(6, 8), verbose=0)
    model.evaluate(*data(7, 9), verbose=0)
    ask(model, data(1, 10)[0])
    assert traces == first


@pytest.mark.slow
def test_metrics_of_keras_are_traced_once(traces):
    model = sequence_task()
    model.compile("adam", "crossentropy", ["accuracy", keras.metrics.F1Score()])
    for seed in range(2):
        model.fit(*sequence_data(8, seed), verbose=0)
    assert traces == [1, 0]


@pytest.mark.slow
def test_what_is_traced_follows_what_trains(traces):
    model = sequence_task()
    data = sequence_data(8, 0)
    model.fit(*data, verbose=0)
    before = model.predict(data[0], verbose=0)
    model.backbone.enable_lora(rank=2)
    kernel = model.backbone.blocks[0].intermediate_dense.kernel.numpy()
    model.compile(learning_rate=0.1)
    model.fit(*data, epochs=3, verbose=0)
    assert traces[0] == 2
    np.testing.assert_array_equal(model.backbone.blocks[0].intermediate_dense.kernel, kernel)
    assert np.abs(model.predict(data[0], verbose=0) - before).max() > 1e-3


@pytest.mark.slow
def test_recomputation_is_traced_when_it_is_asked_for(traces):
    model = sequence_task()
    model.fit(*sequence_data(8, 0), verbose=0)
    model.backbone.enable_gradient_checkpointing()
    model.fit(*sequence_data(8, 0), verbose=0)
    assert traces[0] > 1


@pytest.mark.slow
def test_a_fit_reports_nothing_of_the_fit_before():
    model = sequence_task()
    texts, _ = sequence_data(32, 0)
    model.compile(learning_rate=1e-12)
    right = model.predict(texts, verbose=0).argmax(axis=-1)
    assert model.fit(texts, right, verbose=0).history["accuracy"] == [1.0]
    assert model.fit(texts, 1 - right, epochs=2, verbose=0).history["accuracy"] == [0.0, 0.0]
    model.fit(texts, right, verbose=0)
    model.evaluate(texts, right, verbose=0)
    assert model.fit(texts, 1 - right, verbose=0).history["accuracy"] == [0.0]


@pytest.mark.slow
def test_a_fit_reports_nothing_of_one_that_was_interrupted():
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    model = sequence_task()
    texts, _ = sequence_data(32, 0)
    model.compile(learning_rate=1e-12)
    right = model.predict(texts, verbose=0).argmax(axis=-1)
    with pytest.raises(KeyboardInterrupt):
        model.fit(texts, right, batch_size=8, verbose=0, callbacks=[Interrupt()])
    with pytest.raises(ValueError, match="Row 0 has the label 7"):
        model.fit(texts, [7] * 32, verbose=0)
    assert model.fit(texts, 1 - right, verbose=0).history["accuracy"] == [0.0]


@pytest.mark.slow
def test_a_second_fit_learns_as_a_fresh_optimizer_would():
    data = sequence_data(24, 0)
    weights = sequence_task().get_weights()

    def fitted(model, epochs):
        model.set_weights(weights)
        keras.utils.set_random_seed(1)
        return model.fit(*data, epochs=epochs, batch_size=8, verbose=0).history["loss"]

    once, twice = sequence_task(), sequence_task()
    for model in (once, twice):
        model.compile(learning_rate=1e-2)
    fitted(twice, 1)
    np.testing.assert_allclose(fitted(twice, 3), fitted(once, 3), rtol=1e-5)


ENDS = """
import contextlib, gc, sys
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.ops import gradient_registry
import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

trained = sys.argv[1]
strategy = tf.distribute.MirroredStrategy(["CPU:0"])

def registered():
    gc.collect()
    gc.collect()
    return sum(name.startswith("CustomGradient") for name in gradient_registry.list())

before = registered()
with strategy.scope() if trained == "replicas" else contextlib.nullcontext():
    tasks = {"in chunks": ez.TextEmbedder, "sparse": ez.SparseEncoder, "late": ez.LateInteraction}
    model = tiny.task(get_family("bert"), tasks.get(trained, ez.SequenceClassifier))
if trained == "recompute_block":
    model.backbone.enable_gradient_checkpointing()
if trained == "in chunks":
    model.compile(chunk_size=2)
data = model.tiny_data()
model.fit(data.x, data.y, batch_size=4, verbose=0)
during = registered()
del model, data, strategy
after = registered()
print("RESULT", before, during, after, sum(isinstance(o, FuncGraph) for o in gc.get_objects()))
"""


@pytest.mark.slow(every=True)
@pytest.mark.parametrize(
    "trained", ["plain", "recompute_block", "in chunks", "sparse", "late", "replicas"]
)
def test_graphs_of_a_model_end_with_it(trained):
    """TensorFlow's registry of gradients would keep them for good."""
    found = run(ENDS, trained).split("RESULT ")[1].split()
    before, during, after, graphs = map(int, found)
    assert before < during and after == before and graphs == 0


TRAINED_AND_DROPPED = """
import ctypes, gc, sys
import encoder_zoo as ez

class Memory(ctypes.Structure):  # of glibc's mallinfo2
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Memory
used = []
for _ in range(24):
    model = ez.Classifier.from_preset("bert_nano_en_uncased", num_classes=2, sequence_length=8)
    model.fit(["good", "bad"] * 4, [1, 0] * 4, batch_size=4, verbose=0)
    del model
    gc.collect()
    found = mallinfo()
    used.append((found.uordblks + found.hblkhd) / 2**20)
print("RESULT", max(used[16:]) - max(used[8:16]))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc 2.33 tells what is in use"
)
def test_models_that_are_gone_leave_no_memory():
    """TensorFlow keeps the kernels of each graph that has run, 3 MB of such a model."""
    assert float(run(TRAINED_AND_DROPPED, KERAS_BACKEND="tensorflow").split("RESULT ")[1]) < 5


def trained(name, change=lambda backbone: None):
    """Return the weights of a small classifier of a family, changed and trained with dropout."""
    keras.utils.set_random_seed(0)
    family = get_family(name)
    model = tiny.task(family, ez.SequenceClassifier, dropout=0.2)
    change(model.backbone)
    model.compile(learning_rate=1e-2)
    model.fit(["a b c", "ab", "c d a b", "a"] * 3, [0, 1] * 6, batch_size=4, verbose=0)
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


@pytest.fixture
def one_by_one(monkeypatch):
    """A function after which each block is traced by itself."""
    return lambda: monkeypatch.setattr(training, "get_context", Context)


@pytest.mark.slow(every=True)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "bert"])  # "alike" below
def test_blocks_traced_once_train_as_those_traced_one_by_one(name, one_by_one):
    once = trained(name)
    one_by_one()
    for weight, other in zip(once, trained(name), strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-6)


class StrangersBlock(EncoderBlock):
    """A block of another class with the same settings."""


def set_each(backbone, name, values):
    for block, value in zip(backbone.blocks, values, strict=True):
        setattr(block, name, value)


CHANGES = {  # and how many of two blocks are traced
    "alike": (lambda backbone: None, 1),
    "rates": (lambda backbone: setattr(backbone.blocks[1].output_dropout_layer, "rate", 0.5), 2),
    "frozen": (lambda backbone: setattr(backbone.blocks[0], "trainable", False), 2),
    "updates": (lambda backbone: backbone.blocks[1].attention.query_dense.enable_lora(2), 2),
    "attributes": (lambda backbone: setattr(backbone.blocks[1], "depth", 1), 2),
    "tuples": (lambda backbone: set_each(backbone, "depths", [(1, 2), (1, 3)]), 2),
    "lists": (lambda backbone: set_each(backbone, "depths", [[1, 2], [1, 3]]), 2),
    "dicts": (lambda backbone: set_each(backbone, "depths", [{"a": 1}, {"a": [1]}]), 2),
    "equal lists": (lambda backbone: set_each(backbone, "depths", [[1, {"a": 2}]] * 2), 1),
    "private": (lambda backbone: set_each(backbone, "_depth", [1, 2]), 2),
    "objects": (lambda backbone: set_each(backbone, "depth", [object(), object()]), 2),
    "arrays": (lambda backbone: set_each(backbone, "scale", [np.ones(1), np.zeros(1)]), 2),
    "functions": (lambda backbone: set_each(backbone, "formula", [np.abs, lambda x: x]), 2),
    "of others": (lambda backbone: setattr(backbone.blocks[1], "__class__", StrangersBlock), 2),
}


@pytest.mark.slow(except_for="updates")
@pytest.mark.parametrize("name", CHANGES)
def test_blocks_that_are_not_alike_are_traced_each(name, one_by_one, monkeypatch):
    traced, call = [], EncoderBlock.call

    def noted(self, x, attention_mask=None, training=None, **context):
        if training and tf.inside_function():
            traced.append(self)
        return call(self, x, attention_mask, training, **context)

    monkeypatch.setattr(EncoderBlock, "call", noted)
    change, count = CHANGES[name]
    once = trained("bert", change)
    assert len(traced) == count
    one_by_one()
    for weight, other in zip(once, trained("bert", change), strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-6)
    assert len(traced) == count + 2


class PenalizedBlock(EncoderBlock):
    """A block with a loss of its own: the square of a weight that nothing else reads."""

    def build(self, shape):
        super().build(shape)
        value = keras.initializers.Constant(int(self.name.removeprefix("block_")) + 1)
        self.start = self.add_weight(shape=(), initializer=value, name="start")
        self.seen = keras.metrics.Sum(name=f"seen_{self.name}")

    def call(self, x, *args, **kwargs):
        self.add_loss(keras.ops.square(self.start))
        self.seen.update_state(self.start)
        return super().call(x, *args, **kwargs)


def make_penalized_block(self, i):
    return super(ez.BertBackbone, self).make_block(i, PenalizedBlock)


@keras.saving.register_keras_serializable(package="tests")
class PenalizedBackbone(ez.BertBackbone):
    make_block = make_penalized_block


@pytest.fixture(params=["family", "user"])
def penalized(request, monkeypatch):
    """A classifier with two penalized blocks, in a backbone of the package or of a user."""
    if request.param == "family":
        monkeypatch.setattr(ez.BertBackbone, "make_block", make_penalized_block)
    cls = ez.BertBackbone if request.param == "family" else PenalizedBackbone
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = cls(len(TOKENS), **sizes, dropout=0.0, attention_dropout=0.0)
    inputs = ez.SequenceClassifierPreprocessor(tokenizer())
    return ez.SequenceClassifier(backbone, inputs, num_classes=2, dropout=0.0)


@pytest.mark.slow(except_for="user")
def test_losses_and_metrics_of_blocks_that_share_a_trace(penalized):
    x, y = sequence_data(8, 0)
    blocks = penalized.backbone.blocks
    penalized.compile(optimizer=keras.optimizers.SGD(0.1), metrics=[])
    logits = penalized.predict(x, verbose=0)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    of_labels = -np.log(chances[np.arange(8), y]).mean()
    history = penalized.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0).history
    assert history["loss"][0] == pytest.approx(of_labels + 1**2 + 2**2, rel=1e-5)
    if keras.config.backend() != "jax":  # where Keras drops the metrics of layers
        assert [float(block.seen.result()) for block in blocks] == [1, 2]
    # The gradient of a square is twice the weight, and the learning rate is 0.1.
    np.testing.assert_allclose([float(block.start) for block in blocks], [0.8, 1.6], rtol=1e-6)


def test_losses_of_blocks_with_gradient_checkpointing(penalized):
    penalized.backbone.enable_gradient_checkpointing()
    with pytest.raises(ValueError, match="PenalizedBlock 'block_0' adds a loss"):
        penalized.fit(*sequence_data(8, 0), verbose=0)


def test_metrics_of_blocks_with_gradient_checkpointing(penalized, monkeypatch):
    monkeypatch.setattr(PenalizedBlock, "add_loss", lambda self, loss: None)
    penalized.backbone.enable_gradient_checkpointing()
    with pytest.raises(ValueError, match="PenalizedBlock 'block_0' updates the variable.*total"):
        penalized.fit(*sequence_data(8, 0), verbose=0)


def test_weights_that_blocks_update_with_gradient_checkpointing(penalized, monkeypatch):
    """Their values would be lost, such as the moving averages of BatchNormalization."""
    monkeypatch.setattr(PenalizedBlock, "add_loss", lambda self, loss: self.start.assign(loss))
    monkeypatch.setattr(keras.metrics.Mean, "update_state", lambda *arguments, **options: None)
    penalized.backbone.enable_gradient_checkpointing()
    with pytest.raises(ValueError, match="PenalizedBlock 'block_0' updates the variable.*start"):
        penalized.fit(*sequence_data(8, 0), verbose=0)


@pytest.mark.slow
def test_graphs_of_fit_alone_run_as_they_were_traced(monkeypatch):
    """TensorFlow merges operations of `evaluate`; those of `fit` keep values for gradients."""
    asked = []

    def noted(applies):
        asked.append(applies)
        return contextlib.nullcontext()

    monkeypatch.setattr(text_model, "disable_graph_rewriting", noted)
    model = sequence_task()
    model.fit(*sequence_data(8, 0), batch_size=4, verbose=0)
    assert asked == [True, True]
    model.evaluate(*sequence_data(8, 1), batch_size=4, verbose=0)
    assert asked[2:] == [False, False]
