"""On PyTorch, `compile(jit_compile=True)` predicts with one exported function, as the layers do."""

import re

import pytest
from processes import run

from encoder_zoo.encoders import FAMILIES
from encoder_zoo.tasks import list_tasks

OWN = [task.record.name for task in list_tasks()]
# The layers are called for these: with max pooling, operations of Keras depend on the sizes, and
# Longformer has a condition on the positions of global tokens.
NOT_EXPORTED = {"text_embedder", "sparse_encoder", "longformer"}

PARTS = """
import gc, logging, threading, weakref
import keras, numpy as np, torch
import encoder_zoo as ez
from encoder_zoo.common.layers import list_layers
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.tasks import TASKS, get_task
from encoder_zoo.encoders.kernels.exported_forward import ExportedForward
from encoder_zoo.testing import tiny

TEXTS = ["a b c", "ab d", "c"]
messages = []
handler = logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
logger = logging.getLogger("encoder_zoo.encoders.kernels.exported_forward")
logger.setLevel("DEBUG")
logger.addHandler(handler)
used = []  # whether each batch was computed by an exported function
find = ExportedForward._get_function

def noted(self, inputs):
    function = find(self, inputs)
    used.append(function is not None)
    return function

ExportedForward._get_function = noted

def classifier(**arguments):
    model = tiny.task(get_family("bert"), ez.SequenceClassifier, **arguments)
    model.compile(jit_compile=True)
    return model

def layers(model, texts=TEXTS):
    inputs = {name: np.asarray(x) for name, x in model.preprocessor(texts).items()}
    with torch.no_grad():
        return keras.ops.convert_to_numpy(model(inputs, training=False))

def check(model, texts=TEXTS, exported=True):
    used.clear()
    found = model.predict(texts, verbose=0)
    np.testing.assert_allclose(found, layers(model, texts), atol=1e-6)
    assert used == [exported]
    return found

def check_refused(model, before=None):
    used.clear()
    found = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(found, layers(model), atol=1e-6)
    assert not used
    assert before is None or found.shape != before.shape or np.abs(found - before).max() > 1e-6
"""
CURRENT = """
model = classifier()
before = check(model)
for lengths in ([1, 3], [5], [2] * 9, [1]):
    check(model, ["a " * length for length in lengths])
model.set_weights([weight * 0.5 + 0.01 for weight in model.get_weights()])
changed = check(model)
assert np.abs(changed - before).max() > 1e-6
model.compile(jit_compile=False, learning_rate=0.1)
model.fit(TEXTS, [0, 1, 0], verbose=0)
model.compile(jit_compile=True)
assert np.abs(check(model) - changed).max() > 1e-6
model.backbone.enable_lora(2)
check(model)
for weight in model.variables:
    if "lora" in weight.path:
        weight.assign(np.full(weight.shape, 0.1))
check(model)

hook = model.backbone.blocks[0].register_forward_hook(lambda module, given, x: x * 0)
used.clear()
hooked = model.predict(TEXTS, verbose=0)
hook.remove()
assert not used and np.abs(hooked - check(model)).max() > 1e-6
[found] = [weight for weight in model.variables if "head/logits/bias" in weight.path]
found._value = torch.nn.Parameter(found.value + 3)  # as code that does not use Keras may do
check_refused(model)
head, model.head = model.head, tiny.task(get_family("bert"), ez.SequenceClassifier).head
check_refused(model)
del head

assert not messages
gone = weakref.ref(model)
del model, found, weight
gc.collect()
assert gone() is None
"""
CHANGED = """
import copy, pickle

def change_precision(model):
    for layer in list_layers(model):
        layer.dtype_policy = "mixed_bfloat16"

def swap_blocks(model):
    blocks = model.backbone.blocks
    blocks[0], blocks[1] = blocks[1], blocks[0]

def change_formula(model):
    model.backbone.blocks[0].attention_norm.epsilon = 10.0

for change in (change_precision, swap_blocks, change_formula):
    model = classifier()
    before = check(model)
    change(model)
    check_refused(model, before)

model = classifier()
before = check(model)
model.abstain_below, model.temperature = 0.9, 2.0
np.testing.assert_array_equal(check(model), before)
for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
    weights = [weight * 0.5 for weight in other.get_weights()]
    other.set_weights(weights)
    np.testing.assert_allclose(other.predict(TEXTS, verbose=0), layers(other), atol=1e-6)
    assert np.abs(other.predict(TEXTS, verbose=0) - before).max() > 1e-6
np.testing.assert_array_equal(check(model), before)
model.trim_vocabulary(TEXTS)
np.testing.assert_allclose(model.predict(TEXTS, verbose=0), before, atol=1e-6)

family = get_family("bert")
preprocessor = ez.TextEmbedderPreprocessor(tiny.tokenizer(family))
model = ez.TextEmbedder(tiny.backbone(family), preprocessor, pooling="mean")
model.compile(jit_compile=True)
check(model)
model.normalize = not model.normalize
check_refused(model)
"""
REFUSED = """
model = classifier()
call = model.head.call
model.head.call = lambda x, **options: call(x, **options) * float(x.sum()) ** 0
check(model, exported=False)
check(model, exported=False)
assert len(messages) == 1 and "SequenceClassifier" in messages[0]
"""
OTHERS = """
import warnings

warnings.simplefilter("ignore")  # Keras's, about layers without `quantize`
model = classifier()
expected, found = layers(model), []
threads = [
    threading.Thread(target=lambda: found.append(model.predict(TEXTS, verbose=0)))
    for _ in range(6)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 6
for outputs in found:
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
model.quantize("int8")
check(model)
keras.config.set_dtype_policy("mixed_bfloat16")
check(classifier())
"""
ALL = """
import sys

for name in sys.argv[1].split():
    family = get_family(name if name in FAMILIES else "bert")
    cls = get_task(name) if name in TASKS else ez.SequenceClassifier
    if not cls.supports(family):
        family, cls = (get_family("electra"), cls) if name in TASKS else (family, ez.MaskedLM)
    model, x = tiny.task(family, cls), cls.tiny_data().x
    if model.record.instead_of_predict:
        predict, x = model.predict_on_batch, tiny.examples(family)
    else:
        predict = lambda x: model.predict(x, verbose=0)
    expected = keras.tree.flatten(predict(x))
    model.compile(jit_compile=True)
    used.clear()
    for outputs, other in zip(keras.tree.flatten(predict(x)), expected, strict=True):
        np.testing.assert_allclose(outputs, other, atol=1e-5, err_msg=name)
    print("RESULT", name, all(used))
"""


@pytest.mark.slow
def test_the_exported_function_computes_with_the_current_weights():
    run(PARTS + CURRENT, KERAS_BACKEND="torch")


@pytest.mark.slow
def test_an_outdated_function_is_not_used():
    run(PARTS + CHANGED, KERAS_BACKEND="torch")


@pytest.mark.slow
def test_what_pytorch_cannot_export_is_computed_by_the_layers():
    run(PARTS + REFUSED, KERAS_BACKEND="torch")


@pytest.mark.slow
def test_threads_precisions_and_quantized_layers():
    run(PARTS + OTHERS, KERAS_BACKEND="torch")


@pytest.mark.slow
@pytest.mark.parametrize("names", [" ".join(OWN), " ".join(FAMILIES)], ids=["tasks", "families"])
def test_every_task_and_family_is_exported_and_predicts_as_its_layers(names):
    found = run(PARTS + ALL, names, KERAS_BACKEND="torch")
    results = re.findall(r"RESULT (\S+) (\w+)", found)
    assert [name for name, _ in results] == names.split()
    assert {name for name, exported in results if exported == "False"} <= NOT_EXPORTED
