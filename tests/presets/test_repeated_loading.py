"""A process that loads again and again holds as much memory as before.

Measured is what C's `malloc` has given and not taken back, Python's objects among it. A load adds
0.02 MB to it; if each load were kept, 16.7 MB for the model and tokenizer of `NANO`, 1.6 MB for the
tables and what was compiled for it alone, 1.1 MB for a tiny model and its tokenizer. The process as
a whole also grows or shrinks once by up to 24 MB, at a load that differs from run to run: its limit
is for memory that comes from elsewhere.
"""

import copy
import ctypes
import gc
import json
import sys
import weakref

import pytest
from processes import run

import encoder_zoo as ez
from encoder_zoo.encoders import list_families
from encoder_zoo.presets import restoring

NANO = "bert_nano_en_uncased"
MAX_HEAP = 3  # MB, less than half of what six kept loads of a tiny model take
MOST = 40  # MB
needs_mallinfo = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallinfo2")),
    reason="reads the heap's size from glibc, and the process's from /proc",
)
each_family = pytest.mark.parametrize("family", list_families(), ids=lambda family: family.name)
# One of each kind of tokenizer; the others when the slow tests run.
each_tokenizer = pytest.mark.parametrize(
    "family",
    [
        pytest.param(
            family,
            id=family.name,
            marks=[] if family.name in ("bert", "roberta") else pytest.mark.slow,
        )
        for family in list_families()
    ],
)

# Prints for each case by how much the process grew: in MB of its heap and in all, and by how many
# open files, threads, and mapped files.
MEASURE = """
import ctypes, gc, json, os, sys
import encoder_zoo as ez

fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Heap = type("Heap", (ctypes.Structure,), {"_fields_": [(n, ctypes.c_size_t) for n in fields]})
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Heap

def load(source, answers):
    if answers:
        task = ez.SequenceClassifier.from_preset(source, num_classes=2)
        task.classify(["A fine film.", "Unbelievably dull."])
    else:
        ez.BertTokenizer.from_preset(source), ez.Backbone.from_preset(source)

def sizes():
    gc.collect()
    heap = mallinfo()
    with open("/proc/self/status") as status:
        [kilobytes] = [line.split()[1] for line in status if line.startswith("VmRSS")]
    megabytes = (heap.uordblks + heap.hblkhd) / 2**20, int(kilobytes) / 1024
    with open("/proc/self/maps") as maps:
        mapped = sum("/" in line for line in maps)
    return *megabytes, *(len(os.listdir(f"/proc/self/{n}")) for n in ("fd", "task")), mapped

for source, count, warm_up, answers in json.loads(sys.argv[1]):
    for i in range(warm_up + count):
        if i == warm_up:
            before = sizes()
        load(source, answers)
        gc.collect()
    print("GROWN", json.dumps([after - first for after, first in zip(sizes(), before)]))
"""
COUNT = 6  # loads of a case after its warm-up


@pytest.fixture(scope="module")
def growths(tiny, minilm, tmp_path_factory):
    """{case: how much a fresh process, which runs one after the other, grows in `COUNT` loads}."""
    bert = next(family for family in list_families() if family.name == "bert")
    small = tmp_path_factory.mktemp("presets") / "tiny"
    tiny.task(bert, "SequenceClassifier").save_to_preset(small)
    cases = {
        "loading": (NANO, COUNT, 3, False),
        "answering": (NANO, COUNT, 3, True),
        "answering with MiniLM": (str(minilm), COUNT, 2, True),
        "small models": (str(small), COUNT, 5, False),
    }
    # Without kernels of oneDNN, which it compiles and keeps for some shapes.
    options = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    found = run(MEASURE, json.dumps([*cases.values()]), PYTHONMALLOC="malloc", **options)
    lines = [line for line in found.splitlines() if line.startswith("GROWN ")]
    grown = [json.loads(line.removeprefix("GROWN ")) for line in lines]
    return dict(zip(cases, grown, strict=True))


def assert_not_grown(growth) -> None:
    heap, megabytes, *counts = growth
    assert heap <= MAX_HEAP
    assert megabytes <= MOST
    assert counts == [0, 0, 0]  # open files, threads, mapped files


@pytest.mark.matrix
@needs_mallinfo
@pytest.mark.slow
def test_loading_again_and_again_takes_no_more_memory(growths):
    assert_not_grown(growths["loading"])


@pytest.mark.matrix
@needs_mallinfo
@pytest.mark.slow
def test_loading_and_answering_again_and_again_takes_no_more_memory(growths):
    """Each load of MiniLM would add the 90 MB of its weights if it were kept."""
    assert_not_grown(growths["answering"])
    assert_not_grown(growths["answering with MiniLM"])


@pytest.mark.matrix
@needs_mallinfo
@pytest.mark.slow
def test_small_models_take_no_more_memory(growths):
    assert_not_grown(growths["small models"])


@pytest.mark.slow
@each_tokenizer
def test_a_tokenizer_is_freed_with_the_last_reference(tiny, family):
    gc.collect()
    gc.disable()
    try:
        tokenizer = copy.copy(tiny.tokenizer(family))  # made anew; the fixture keeps its own
        tokenizer.tokenize(["ab ba", "unable"])
        tokenizer.tokenize_with_offsets(["ab ba"])
        parts = [weakref.ref(part) for part in (tokenizer, *tokenizer.graph.submodules)]
        del tokenizer
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


@pytest.mark.slow
def test_dropped_models_are_freed_before_the_next_is_loaded(monkeypatch):
    size = ez.Backbone.from_preset(NANO).count_params()
    monkeypatch.setattr(restoring, "MAX_WEIGHTS", 2 * size)
    restoring._loaded.clear()
    gc.disable()
    try:
        used = ez.Backbone.from_preset(NANO)
        dropped = [weakref.ref(ez.Backbone.from_preset(NANO)) for _ in range(3)]
        assert dropped[0]() is None and dropped[1]() is None
        assert used.count_params() == size
    finally:
        gc.enable()


@pytest.mark.slow(except_for="^eurobert")
@each_family
def test_tensorflow_knows_the_variables_of_two_models_by_the_same_names(tiny, family):
    first, second = (tiny.task(family, "SequenceClassifier") for _ in range(2))
    names = [[variable.value.name for variable in task.variables] for task in (first, second)]
    assert names[0] == names[1]
    assert first.backbone.name != second.backbone.name
    assert first.weights[0].path != second.weights[0].path


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's memory from /proc")
def test_a_model_takes_the_memory_of_its_weights(tmp_path):
    """The allocator of TensorFlow with oneDNN keeps what it held once, such as zeros of weights."""
    backbone = ez.BertBackbone(
        100_000, num_layers=1, hidden_dim=256, num_heads=4, intermediate_dim=512
    )
    megabytes = sum(weight.nbytes for weight in backbone.get_weights()) / 2**20
    backbone.save_to_preset(tmp_path)
    code = """
import gc, sys
import encoder_zoo as ez

def resident():
    gc.collect()
    with open("/proc/self/status") as status:
        [kilobytes] = [line.split()[1] for line in status if line.startswith("RssAnon")]
    return int(kilobytes) / 1024

ez.BertBackbone(10, num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=8)
before = resident()
backbone = ez.Backbone.from_preset(sys.argv[1])
print(resident() - before)
"""
    grown = float(run(code, tmp_path, TF_ENABLE_ONEDNN_OPTS="1").split()[-1])
    assert megabytes < grown < 1.4 * megabytes
