"""The reader of `pytorch_model.bin`, held to torch.load; hostile files are refused by name."""

import collections
import contextlib
import copyreg
import io
import itertools
import os
import pathlib
import pickle
import pickletools
import posixpath
import re
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from encoder_zoo.presets.files.pytorch_file import PyTorchFile

FORMATS = [True, False]
each_format = pytest.mark.parametrize("is_zip", FORMATS, ids=["zip", "stream"])
DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()


class OnlyReads:
    """A file with no more methods than `PyTorchFile` may use, which counts the bytes read."""

    def __init__(self, content: bytes, name: object = "pytorch_model.bin"):
        self._file = io.BytesIO(content)
        self.name = name
        self.count = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, content) -> int:
        count = self._file.readinto(content[:1_000_000])  # may read less than it is asked for
        self.count += count
        return count


def saved(value: object, is_zip: bool) -> bytes:
    """A file as torch.save writes it."""
    memory = io.BytesIO()
    torch.save(value, memory, _use_new_zipfile_serialization=is_zip)
    return memory.getvalue()


def opened(content: bytes) -> PyTorchFile:
    return PyTorchFile(OnlyReads(content))


def bits(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes of a tensor."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return (
        str(tensor.dtype).split(".")[1],
        tuple(tensor.shape),
        flat.view(torch.uint8).numpy().tobytes(),
    )


def assert_as_torch(content: bytes, names: set[str]) -> None:
    """Both read the same: names, types, shapes and bytes."""
    expected = torch.load(io.BytesIO(content), weights_only=True)
    file = opened(content)
    assert set(file.shapes) == names
    for name in names:
        found = file.read(name)
        assert file.get_dtype(name) == found.dtype and file.shapes[name] == found.shape
        assert found.flags.c_contiguous and found.flags.writeable
        assert (found.dtype.name, found.shape, found.tobytes()) == bits(expected[name])


# -- what torch.save writes ----------------------------------------------------------------------


@each_format
@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_every_type(is_zip, dtype):
    torch.manual_seed(0)
    numbers = (100 * torch.randn(6, 5, 4)).to(getattr(torch, dtype))
    tensors = {
        "whole": numbers,
        "one": numbers[3, 2, 1],
        "zero": torch.tensor(1.5).to(numbers.dtype),
        "empty": torch.zeros(0, 3, dtype=numbers.dtype),
        "empty inside": numbers[:, 2:2],
        "transposed": numbers.permute(2, 0, 1),
        "part": numbers[2:4],
        "columns": numbers[:, 1:3, 2],
        "steps": numbers[::2, ::3],
        "expanded": numbers[0, 0, :1].expand(3),
        "unsqueezed": numbers[1][None, :, None],
        "reversed": numbers.flip(0),
        "é 文": numbers[5, 4],
    }
    assert_as_torch(saved(tensors, is_zip), set(tensors))


@each_format
def test_a_module(is_zip):
    module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LayerNorm(3))
    module.register_buffer("position_ids", torch.arange(7).expand((1, -1)))
    state = module.state_dict()
    assert state._metadata  # gives the pickle a BUILD
    state["tied"] = state["0.weight"]
    state["parameter"] = module[0].weight
    state["frozen"] = torch.nn.Parameter(torch.arange(3), requires_grad=False)
    assert_as_torch(saved(state, is_zip), set(state))


@each_format
def test_plain_data_beside_the_tensors_is_left_out(is_zip):
    shared = [1, 2.5, True, None, "text", (1, 2, 3, 4), 2**70, -1, 70_000, 300]
    plain = {"epoch": 3, "config": {"a": shared, "b": {5: shared}}, "none": None, "": ()}
    assert_as_torch(saved({"bias": torch.ones(3), **plain}, is_zip), {"bias"})
    assert opened(saved({}, is_zip)).shapes == {}


@each_format
def test_more_tensors_than_a_byte_can_number(is_zip):
    tensors = {f"layer.{i}.weight": torch.full((2, i % 5), i) for i in range(400)}
    assert_as_torch(saved(tensors, is_zip), set(tensors))


def test_parts_of_storages_as_the_first_versions_wrote_them():
    whole = tensor(size=6, shape=(6,), strides=(1,), part=b"N")
    part = text("v") + number(2) + number(4) + b"\x87"
    part = tensor(size=6, shape=(2,), strides=(2,), offset=1, part=part)
    content = stream_file(state(whole=whole, part=part))
    assert_as_torch(content, {"whole", "part"})
    assert opened(content).read("part").tolist() == [3, 5]


@each_format
def test_a_training_checkpoint_is_refused_with_its_keys(is_zip):
    model = {"weight": torch.ones(2)}
    said = refusal(saved({"state_dict": model, "epoch": 3}, is_zip))
    assert "'state_dict' contains objects that are neither tensors" in said and "'epoch'" in said
    assert "torch.save(model.state_dict(), path)" in said
    assert "'optimizer' contains" in refusal(saved({**model, "optimizer": [{0: model}]}, is_zip))
    assert "dictionary of tensors" in refusal(saved(torch.ones(2), is_zip))
    assert "dictionary of tensors" in refusal(saved([model], is_zip))
    assert "the file contains no tensors" in refusal(saved({"epoch": 3}, is_zip))
    assert "keys that are not strings" in refusal(saved({1: torch.ones(1)}, is_zip))


@each_format
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (torch.ones(2, dtype=torch.complex64), "torch.ComplexFloatStorage"),
        (torch.ones(2).to(torch.float8_e4m3fn), "torch._utils._rebuild_tensor_v3"),
        (torch.ones(2, 2).to_sparse(), "torch._utils._rebuild_sparse_tensor"),
        (torch.ones(2, device="meta"), "torch._utils._rebuild_meta_tensor_no_storage"),
        (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        (torch.float32, "torch.float32"),
        (b"bytes", "_codecs.encode"),
        ({1, 2}, "__builtin__.set"),
        (torch.Size([1, 2]), "torch.Size"),
        (torch.ones(2).numpy(), "numpy"),
        (collections.Counter("a"), "collections.Counter"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_plain_tensor_is_refused_by_its_name(is_zip, value, named):
    said = refusal(saved({"ones": torch.ones(2), "other": value}, is_zip))
    assert f"uses the name '{named}" in said or named in said
    assert "Only tensors are read, and no code from the file is executed." in said


# -- what is read of a file ----------------------------------------------------------------------


@each_format
def test_opening_reads_no_tensors_and_reading_one_takes_no_more(is_zip):
    large = torch.arange(4_000_000, dtype=torch.float32).reshape(2000, 2000)
    content = saved({"large": large, "half": large[:1000].half(), "t": large.t()}, is_zip)
    file = OnlyReads(content)
    tracemalloc.start()
    tensors = PyTorchFile(file)
    assert file.count < 70_000 and tracemalloc.get_traced_memory()[1] < 500_000
    for name, copies in (("large", 1), ("half", 1), ("t", 2)):
        tracemalloc.reset_peak()
        file.count = 0
        values = tensors.read(name)
        _, peak = tracemalloc.get_traced_memory()
        assert values.nbytes <= peak < copies * values.nbytes + 100_000
        assert file.count < values.nbytes + 1000
        del values
    tracemalloc.stop()
    assert np.array_equal(tensors.read("large"), large.numpy())
    assert np.array_equal(tensors.read("t"), large.numpy().T)


def test_opening_reads_the_directory_and_the_pickle_once():
    content = saved({str(i): torch.ones(100) for i in range(2000)}, True)
    file = OnlyReads(content)
    PyTorchFile(file)
    directory = len(content) - content.index(b"PK\1\2")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        pickled = archive.getinfo("archive/data.pkl").file_size
    assert file.count < directory + pickled + 2000


# -- files made by hand --------------------------------------------------------------------------


def text(value: str) -> bytes:
    content = value.encode()
    return b"X" + struct.pack("<I", len(content)) + content


def number(value: int) -> bytes:
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def named(name: str) -> bytes:
    module, _, name = name.rpartition(".")
    return f"c{module}\n{name}\n".encode()


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


ORDERED = named("collections.OrderedDict") + b")R"


def tensor(
    key="0",
    size=6,
    shape=(2, 3),
    strides=(3, 1),
    offset=0,
    kind="torch.FloatStorage",
    part=b"",
    hooks=ORDERED,
    more=b"",
) -> bytes:
    """The instructions that make a tensor."""
    storage = text("storage") + named(kind) + text(key) + text("cpu") + number(size) + part
    view = number(offset) + numbers(shape) + numbers(strides) + b"\x89" + hooks + more
    return named("torch._utils._rebuild_tensor_v2") + b"((" + storage + b"tQ" + view + b"tR"


def state(**values: bytes) -> bytes:
    """A pickle of a dictionary, of the instructions for its values."""
    entries = b"".join(text(name) + value for name, value in values.items())
    return b"\x80\x02}(" + entries + b"u."


FLOATS = np.arange(6, dtype="float32").tobytes()


def zip_file(pickled: bytes, storages=None, **entries: bytes) -> bytes:
    memory = io.BytesIO()
    storages = {"0": FLOATS} if storages is None else storages
    content = {"data.pkl": pickled, **{f"data/{key}": storages[key] for key in storages}, **entries}
    with zipfile.ZipFile(memory, "w") as archive:
        for name, value in content.items():
            archive.writestr(f"archive/{name}", value)
    return memory.getvalue()


def stream_file(pickled: bytes, storages=None, keys=None, count=None, little_endian=True) -> bytes:
    storages = {"0": FLOATS} if storages is None else storages
    system = {"protocol_version": 1001, "little_endian": little_endian, "type_sizes": {}}
    start = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, system)]
    end = pickle.dumps(list(storages) if keys is None else keys, 2)
    data = [
        struct.pack("<q", len(value) // 4 if count is None else count) + value
        for value in storages.values()
    ]
    return b"".join([*start, pickled, end, *data])


def both(pickled: bytes, storages=None) -> list[bytes]:
    return [zip_file(pickled, storages), stream_file(pickled, storages)]


EVENTS: list[tuple] = []
WATCHING: list[bool] = []


def note_event(event: str, arguments: tuple) -> None:
    if WATCHING and event != "builtins.id":
        EVENTS.append((event, *arguments))


@pytest.fixture(scope="module", autouse=True)
def audit_hook():
    """Notes all that Python reports of itself: imports, calls of the system, opened files."""
    sys.addaudithook(note_event)


@contextlib.contextmanager
def nothing_runs():
    """Raise if anything is opened, imported, compiled or run meanwhile."""
    EVENTS.clear()
    WATCHING.append(True)
    try:
        yield
    finally:
        WATCHING.clear()
    assert EVENTS == []


def refusal(content: bytes) -> str:
    """The error with which a file is refused, without anything that runs: one readable text."""
    with nothing_runs(), pytest.raises(ValueError) as caught:
        file = opened(content)
        for name in file.shapes:
            file.read(name)
    assert type(caught.value) is ValueError
    said = str(caught.value)
    assert said.startswith("pytorch_model.bin") and len(said) < 500 and "\n" not in said
    return said


@pytest.mark.parametrize("content", both(state(a=tensor())), ids=["zip", "stream"])
def test_the_files_made_by_hand_are_good_ones(content):
    assert opened(content).read("a").tolist() == [[0, 1, 2], [3, 4, 5]]


# -- pickles that run something ------------------------------------------------------------------


@pytest.fixture
def evil_package(tmp_path, monkeypatch):
    """A module in the working directory that leaves a mark when it is imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('it_ran', 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    assert not (tmp_path / "it_ran").exists() and "evil" not in sys.modules


class Calls:
    """Is saved as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


COMMAND = "touch it_ran"
CALLS = {
    "posix.system": Calls(os.system, COMMAND),
    "__builtin__.eval": Calls(eval, f"__import__('os').system({COMMAND!r})"),
    "__builtin__.exec": Calls(exec, "import evil"),
    "__builtin__.getattr": Calls(getattr, "text", "upper"),
    "__builtin__.__import__": Calls(__import__, "evil"),
    "io.open": Calls(open, "it_ran", "w"),
    "__builtin__.compile": Calls(compile, "import evil", "", "exec"),
    "commands.Popen": Calls(subprocess.Popen, ["touch", "it_ran"]),
    "commands.check_output": Calls(subprocess.check_output, ["touch", "it_ran"]),
    "copy_reg._reconstructor": Calls(copyreg._reconstructor, object, object, None),
    "pickle.loads": Calls(pickle.loads, pickle.dumps(1)),
    "torch.serialization.load": Calls(torch.load, "other.bin"),
    "torch.storage._load_from_bytes": Calls(torch.storage._load_from_bytes, b""),
    "torch.hub.load": Calls(torch.hub.load, "owner/repository", "model"),
    "numpy": Calls(np.load, "other.npy"),
    "posixpath.join": Calls(posixpath.join, "a", "b"),
    "itertools.repeat": Calls(itertools.repeat, 1),
}


@each_format
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_refused_by_the_function_s_name(is_zip, name, evil_package):
    value = {"weight": torch.ones(2), "evil": CALLS[name]}
    contents = [saved(v, is_zip) for v in (value, [value], CALLS[name])]
    for content in contents:
        assert f"uses the name '{name}" in (said := refusal(content))
        assert "Only tensors are read, and no code from the file is executed." in said


def run(name: str) -> bytes:
    return named(name) + text(COMMAND) + b"\x85R"


HOSTILE = {
    "a module of the folder": (named("evil.anything"), "uses the name 'evil.anything'"),
    "builtins of Python 3": (run("builtins.exec"), "uses the name 'builtins.exec'"),
    "a process": (run("subprocess.Popen"), "uses the name 'subprocess.Popen'"),
    "nested calls": (
        named("collections.OrderedDict") + run("os.system") + b"\x85R",
        "uses the name 'os.system'",
    ),
    "an argument of a tensor": (tensor(hooks=run("os.system")), "uses the name 'os.system'"),
    "a known name in a longer one": (named("torch._utils.os.system"), "'torch._utils.os.system'"),
    "a name with control signs": (named("os\x1b[2J.system"), r"uses the name 'os\x1b[2J.system'"),
    "a long name": (named("a." + "b" * 300), "a name of more than 256 bytes"),
    "a name in UTF-8": (named("os.é"), r"uses the name 'os.\\xc3\\xa9'"),
    "INST": (b"(" + text(COMMAND) + b"ios\nsystem\n", "the instruction INST"),
    "OBJ": (b"(" + named("collections.OrderedDict") + b"o", "the instruction OBJ"),
    "NEWOBJ": (named("collections.OrderedDict") + b")\x81", "the instruction NEWOBJ."),
    "NEWOBJ_EX": (named("torch.FloatStorage") + b")}\x92", "the instruction NEWOBJ_EX"),
    "STACK_GLOBAL": (text("os") + text("system") + b"\x93", "the instruction STACK_GLOBAL"),
    "EXT1": (b"\x82\x01", "the instruction EXT1"),
    "a call of a storage": (named("torch.FloatStorage") + b")R", "calls 'torch.FloatStorage'"),
    "a call of text": (text("os.system") + b")R", "calls a non-function"),
    "a call of a tensor": (tensor() + b")R", "calls a non-function"),
    "a call with a list": (named("collections.OrderedDict") + b"]R", "collections.OrderedDict"),
    "a call with items": (
        named("collections.OrderedDict") + b"]\x85R",
        "an OrderedDict is created with arguments",
    ),
    "a state for a dictionary": (b"}}b", "modifies an object that is not an OrderedDict"),
    "a state for a tensor": (tensor() + b"}b", "modifies an object that is not an OrderedDict"),
    "a state for a name": (named("torch.FloatStorage") + b"}b", "is not an OrderedDict"),
    "a state with slots": (ORDERED + b"N}\x86b", "a state that is not a dictionary"),
    "a state that sets a method": (
        ORDERED + b"}" + text("__setstate__") + named("os.system") + b"sb",
        "uses the name 'os.system'",
    ),
    "a name as a value": (
        named("torch.FloatStorage"),
        "'a' contains objects that are neither tensors",
    ),
    "a storage as a value": (
        b"(" + text("storage") + named("torch.FloatStorage") + text("0") + text("cpu") + b"K\6tQ",
        "'a' contains objects that are neither tensors",
    ),
    "another persistent id": (b"(" + text("module") + b"NNNNtQ", "a storage is malformed"),
    "a persistent id of text": (text("0") + b"Q", "a storage is malformed"),
    "a persistent id in text": (b"P0\n", "the instruction PERSID"),
    "a key that is a tuple": (b"})Ns", "a key that is neither a string nor"),
    "a key that is a huge number": (b"}" + number(2**61 - 1) + b"Ns", "nor a small integer"),
    "a key that is a tensor": (b"}" + tensor() + b"Ns", "a key that is neither a string nor"),
    "a key twice": (b"}(" + (text("a") + b"N") * 2 + b"u", "sets the key 'a' twice"),
    "a key without a value": (b"}(" + text("a") + b"u", "sets a key without a value"),
    "an entry of a tuple": (b")Na", "modifies an object that is not a list"),
    "items of a list": (b"](NNu", "modifies an object that is not a dictionary"),
    "text that is not UTF-8": (b"X\1\0\0\0\xff", "has text that is not UTF-8"),
    "an unknown instruction": (b"\xff", "the instruction 0xff, which is unknown"),
    "protocol 4": (b"\x80\x04", "has protocol 4. Expected protocol 2"),
    "an empty stack": (b"a", "modifies an object that is not a list"),
    "a mark that is not there": (b"tt", "uses a mark that does not exist"),
    "nothing to call": (b"(R", "takes a value from an empty stack"),
    "a hook": (tensor(hooks=ORDERED + b"K\0Ns"), "has hooks"),
    "an attribute": (tensor(more=b"}" + text("conj") + b"\x88s"), "has hooks or attributes"),
    "a memo's entry that is not there": (b"h\5", "memo index 5, but only has 0"),
    "a memo's entry of 32 bits": (b"j" + b"\xff" * 4, "memo index 4294967295, but only has 0"),
    "a memo of an empty stack": (b"(q\0", "memoizes a value from an empty stack"),
    "a huge memo": (b"Nr\0\0\0\x80", "memo index 2147483648. Expected 0"),
    "a list in itself, with a name": (
        b"]q\0h\0a" + named("os.system"),
        "uses the name 'os.system'",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickles_are_refused_by_name(case, evil_package):
    value, expected = HOSTILE[case]
    for content in both(state(w=tensor(), a=value)):
        assert expected in refusal(content)


NEEDED = """
    PROTO MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE
    EMPTY_TUPLE EMPTY_LIST EMPTY_DICT TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS
    GLOBAL REDUCE BUILD BINPERSID BINPUT LONG_BINPUT BINGET LONG_BINGET
""".split()


@pytest.mark.parametrize("opcode", pickletools.opcodes, ids=lambda opcode: opcode.name)
def test_all_other_instructions_are_refused_by_name(opcode):
    said = refusal(zip_file(b"\x80\x02" + opcode.code.encode("latin-1") + b"." * 20))
    assert (f"contains the instruction {opcode.name}." in said) == (opcode.name not in NEEDED)


# -- pickles that take much ----------------------------------------------------------------------


def laughs(make: bytes, last: bytes = b"", depth: int = 60) -> bytes:
    """A list of values, each of which holds the one before it ten times."""
    content = make.replace(b"*", b"N" * 10) + b"q\0"
    for i in range(1, depth):
        content += make.replace(b"*", bytes([ord("h"), i - 1]) * 10) + bytes([ord("q"), i])
    return b"](" + content + last + b"e"


MILLION = 1_000_000
BOMBS = {
    "nested tuples": (laughs(b"(*t"), None),
    "nested lists": (laughs(b"](*e"), None),
    "nested tuples as a persistent id": (laughs(b"(*t", b"Q"), "a storage is malformed"),
    "tuples in tuples": (b")" + b"\x85" * 100_000, None),
    "lists a million deep": (b"](" * 300, "nested more than 100 deep"),
    "marks": (b"(" * MILLION, "nested more than 100 deep"),
    "instructions": (b"(" + b"N" * MILLION, "more than 1000000 instructions"),
    "a long list in many lists": (
        b"](" + b"](" + b"N" * 100_000 + b"eq\0" + b"]h\0a" * 50_000 + b"e",
        None,
    ),
    "text of 2 GB": (b"X\0\0\0\x80aaaa", "ends too early|is truncated"),
    "text of 8 MB": (b"X" + struct.pack("<I", 9 * 2**20) + b"a" * 9 * 2**20, "more than 8388608 b"),
    "a number of 2 GB": (b"\x8b\0\0\0\x7faaaa", "the instruction LONG4"),
    "numbers of one hash": (
        b"}(" + b"".join(number(i * (2**61 - 1)) + b"N" for i in range(1, 9)) + b"u",
        "nor a small integer",
    ),
}


@pytest.mark.slow(only="^(a long|instructions|tuples)")
@pytest.mark.parametrize("case", BOMBS)
def test_bombs_take_little_time_and_memory(case):
    value, expected = BOMBS[case]
    archive, stream = both(state(b=tensor(), a=value))

    def read(content: bytes) -> None:
        if expected is None:
            assert list(opened(content).shapes) == ["b"]
        else:
            assert re.search(expected, refusal(content))

    start = time.process_time()
    read(stream)
    assert time.process_time() - start < 10
    tracemalloc.start()
    read(archive)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 120 * 10**6


# -- tensors that are not in their storages ------------------------------------------------------

TENSORS = {
    "ten gigabytes of one number": (
        {"shape": (2_500_000_000,), "strides": (0,)},
        "need 10000000000",
    ),
    "many times what is there": ({"shape": (100, 100), "strides": (0, 0)}, "need 40000"),
    "beyond its storage": ({"shape": (7,), "strides": (1,)}, "exceeds storage '0'"),
    "an offset beyond": ({"shape": (6,), "strides": (1,), "offset": 1}, "offset 1 exceeds"),
    "a stride beyond": ({"shape": (2,), "strides": (6,)}, r"strides \(6,\) and offset 0 exceeds"),
    "a huge stride": ({"shape": (2,), "strides": (2**62,)}, "exceeds"),
    "a negative stride": ({"shape": (2,), "strides": (-1,), "offset": 5}, "invalid shape"),
    "a negative offset": ({"offset": -1}, "invalid shape, offset"),
    "a negative size": ({"shape": (-2, -3)}, "invalid shape"),
    "a size of 64 bits": ({"shape": (2**63,), "strides": (0,)}, "invalid shape"),
    "an offset of 64 bits": ({"offset": 2**64}, "invalid shape, offset"),
    "sizes that wrap": ({"shape": (2**32, 2**32), "strides": (0, 0)}, "the invalid shape"),
    "sizes that wrap, with 0": (
        {"shape": (0, 2**32, 2**32), "strides": (1,) * 3},
        "the invalid",
    ),
    "nine dimensions": ({"shape": (1,) * 9, "strides": (1,) * 9}, "9 dimensions"),
    "fewer strides": ({"shape": (2, 3), "strides": (1,)}, "2 dimensions and 1 strides"),
    "another size": (
        {"size": 5, "shape": (5,), "strides": (1,)},
        "has 24 bytes. Expected 20|truncated|has",
    ),
    "a huge storage": ({"size": 2**40}, "has 24 bytes. Expected|is truncated"),
    "a negative storage": ({"size": -6}, "storage '0' is malformed"),
    "a storage of 64 bits": ({"size": 2**63}, "storage '0' is malformed"),
    "another type": ({"kind": "torch.LongStorage"}, "has 24 bytes. Expected 48|is truncated"),
    "no type": ({"kind": "collections.OrderedDict"}, "storage '0' is malformed"),
    "a missing storage": ({"key": "1"}, "storage '1' is missing|does not match the tensors"),
    "a path": ({"key": "../../etc/passwd"}, "passwd' is missing|does not match the tensors"),
    "a part beyond": (
        {"part": text("v") + number(3) + number(4) + b"\x87"},
        "a part of storage '0'",
    ),
    "a negative part": (
        {"part": text("v") + number(-1) + number(4) + b"\x87"},
        "a part of storage '0'",
    ),
    "beyond its part": (
        {"part": text("v") + number(2) + number(4) + b"\x87"},
        "exceeds storage '0'",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_are_not_there_are_refused(case):
    arguments, expected = TENSORS[case]
    for content in both(state(a=tensor(**arguments))):
        tracemalloc.start()
        assert re.search(expected, refusal(content))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10**6


def test_one_storage_with_two_types_is_refused():
    for content in both(state(a=tensor(), b=tensor(kind="torch.IntStorage"))):
        assert "storage '0' has two types or sizes" in refusal(content)


def test_tied_tensors_count_once_and_other_views_each():
    names = [f"t{i}" for i in range(100)]
    floats = {"0": np.zeros(10**5, "float32").tobytes()}

    def views(offset: int) -> bytes:
        views = {
            name: tensor(size=10**5, shape=(99_000,), strides=(1,), offset=offset * i)
            for i, name in enumerate(names)
        }
        return state(**views)

    for content in both(views(0), floats):
        assert len(opened(content).shapes) == 100
    for content in both(views(1), floats):
        assert "the tensors need 39600000 bytes, but the file has 4" in refusal(content)


# -- files that are not whole --------------------------------------------------------------------


@each_format
def test_a_file_cut_off_anywhere_is_refused(is_zip):
    content = saved({"a": torch.ones(3), "b": torch.zeros(2, 2)}, is_zip)
    for length in range(len(content)):
        assert re.search("is truncated|starts with|directory", refusal(content[:length])), length


@each_format
@pytest.mark.parametrize("more", [b"\0", b"PK\5\6", bytes(22), b"#!/bin/sh"])
def test_bytes_before_and_after_are_refused(is_zip, more):
    content = saved({"a": torch.ones(3)}, is_zip)
    assert re.search("Expected|end with", refusal(content + more))
    assert re.search("starts with", refusal(more + content))


def test_two_files_in_one_are_refused():
    archive, stream = both(state(a=tensor()))
    assert "Expected" in refusal(stream + archive)
    assert "end with a zip directory" in refusal(archive + stream)
    assert "does not end at the end of the file" in refusal(archive + archive)


def test_a_file_that_becomes_shorter_is_noticed():
    file = OnlyReads(saved({"a": torch.ones(1000)}, True))
    tensors = PyTorchFile(file)
    file._file.truncate(file.seek(0, 2) // 2)
    with pytest.raises(ValueError, match="changed"):
        tensors.read("a")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is truncated: the file has 0 bytes"),
        (b"PK", "is truncated"),
        (b"PK\3\4", "not end with a zip directory"),
        (b"\x80", "is truncated"),
        (b"version https://git-lfs", "starts with b'version '"),
        (bytes(257) + b"ustar" + bytes(250), "a tar archive"),
        (pickle.dumps({}, 2), "magic number"),
        (pickle.dumps({}, 4), "protocol 4"),
        (stream_file(state(a=tensor()), little_endian=False), "big-endian machine"),
        (stream_file(state(a=tensor()), keys=["1"]), "list of storages"),
        (stream_file(state(a=tensor()), keys=["0", "0"]), "list of storages"),
        (stream_file(state(a=tensor()), keys=[0]), "list of storages is malformed"),
        (stream_file(state(a=tensor()), keys={"0": 1}), "list of storages is malformed"),
        (stream_file(state(a=tensor()), count=5), "storage '0' has 5 elements. Expected 6"),
        (stream_file(state(a=tensor()), count=-1), "has 18446744073709551615 elements"),
        (zip_file(state(a=tensor()), byteorder=b"big"), "the byte order is b'big'"),
        (zip_file(state(a=tensor()) + b"."), "data.pkl has extra bytes"),
        (zip_file(state(a=tensor())[:-1]), "data.pkl ends too early"),
        (zip_file(state(a=tensor()), **{"constants.pkl": b"x"}), "is a TorchScript program"),
        (zip_file(state(a=tensor()), **{"code/a.py": b"x"}), "'archive/code/a.py'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",  # the time of writing is in it
)
def test_other_files_are_refused_by_what_they_are(content, expected):
    assert expected in refusal(content)


# -- zip archives --------------------------------------------------------------------------------


def archive_of(*entries: tuple[str, bytes], method=zipfile.ZIP_STORED, comment=b"") -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", method) as archive:
        archive.comment = comment
        for name, content in entries:
            archive.writestr(name, content)
    return memory.getvalue()


GOOD = ("a/data.pkl", state(a=tensor())), ("a/data/0", FLOATS)
ZIPS = {
    "compressed": (archive_of(*GOOD, method=zipfile.ZIP_DEFLATED), "'a/data.pkl' is compressed"),
    "a bomb": (
        archive_of(("a/data.pkl", bytes(10**8)), method=zipfile.ZIP_DEFLATED),
        "'a/data.pkl' is compressed",
    ),
    "bzip2": (archive_of(*GOOD, method=zipfile.ZIP_BZIP2), "'a/data.pkl' is compressed"),
    "a comment": (archive_of(*GOOD, comment=b"x"), "end with a zip directory"),
    "an absolute name": (archive_of(*GOOD, ("/etc/passwd", b"")), "'/etc/passwd' is not a plain"),
    "a name above": (archive_of(*GOOD, ("a/../b", b"")), "'a/../b' is not a plain name"),
    "a drive": (archive_of(*GOOD, ("C:/b", b"")), "'C:/b' is not a plain name"),
    "a backslash": (archive_of(*GOOD, ("a\\b", b"")), "is not a plain name"),
    "a folder": (archive_of(*GOOD, ("a/b/", b"")), "'a/b/' is not a plain name"),
    "two folders": (archive_of(*GOOD, ("b/data.pkl", b"")), "has 2 folders. Expected one"),
    "two cases": (
        archive_of(*GOOD, ("a/DATA/0", FLOATS)),
        "'a/data/0' and 'a/DATA/0' only differ in case",
    ),
    "a pickle of two cases": (archive_of(*GOOD, ("a/Data.pkl", b"")), "only differ in case"),
    "capitals": (archive_of(*GOOD, ("a/BYTEORDER", b"big")), "'a/BYTEORDER' contains capital"),
    "capitals of numbers": (archive_of(GOOD[0], ("a/Data/0", FLOATS)), "contains capital"),
    "another pickle": (
        archive_of(*GOOD, ("a/model.pkl", b"")),
        "has a second pickle, 'a/model.pkl'",
    ),
    "big-endian": (archive_of(*GOOD, ("a/byteorder", b"big")), "the byte order is b'big'"),
    "no folder": (archive_of(("data.pkl", state(a=tensor()))), "no data.pkl"),
    "no pickle": (archive_of(GOOD[1]), "no data.pkl"),
    "nothing": (archive_of(), "starts with b'PK"),
}


@pytest.mark.parametrize("case", ZIPS)
def test_hostile_zip_archives_are_refused_by_name(case):
    content, expected = ZIPS[case]
    assert expected in refusal(content)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_entry_that_is_there_twice_is_refused():
    assert "'a/data/0' occurs twice" in refusal(archive_of(*GOOD, GOOD[1]))


def patched(content: bytes, signature: bytes, number: int, offset: int, value: bytes) -> bytes:
    """A zip archive with some bytes of its n-th header of a kind replaced."""
    start = [match.start() for match in re.finditer(re.escape(signature), content)][number] + offset
    return content[:start] + value + content[start + len(value) :]


LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
PATCHES = {
    "encrypted": (CENTRAL, 1, 8, b"\1", "'a/data/0' is encrypted"),
    "a patch": (CENTRAL, 1, 8, b"\x20", "'a/data/0' is compressed"),
    "overlapping": (CENTRAL, 1, 42, bytes(4), "overlaps the following data|does not start with"),
    "too large": (CENTRAL, 1, 20, struct.pack("<2I", 1000, 1000), "overlaps the following data"),
    "two sizes": (CENTRAL, 1, 20, struct.pack("<I", 23), "has 23 compressed bytes and 24"),
    "beyond the file": (CENTRAL, 1, 42, struct.pack("<I", 10**9), "overlaps the following data"),
    "no zip64": (CENTRAL, 1, 42, b"\xff" * 4, "'a/data/0' lacks a 64-bit size or offset"),
    "a disk": (CENTRAL, 1, 34, b"\1", "is in another file"),
    "a name that goes on": (CENTRAL, 1, 28, b"\xff\xff", "zip directory is damaged|not a plain"),
    "another header": (LOCAL, 1, 0, b"XXXX", "header of the zip entry 'a/data/0'"),
    "another name": (LOCAL, 1, 30, b"b", "header of the zip entry 'a/data/0'"),
    "another method": (LOCAL, 0, 8, b"\x08", "header of the zip entry 'a/data.pkl'"),
    "other flags": (LOCAL, 0, 6, b"\1", "header of the zip entry 'a/data.pkl'"),
    "a long extra field": (LOCAL, 0, 28, b"\xff", "header of the zip entry 'a/data.pkl'"),
    "fewer entries": (END, 0, 8, b"\1\0\1\0", "the zip directory is damaged"),
    "two counts": (END, 0, 8, b"\1\0", "does not end at the end of the file"),
    "another disk": (END, 0, 4, b"\1", "does not end at the end of the file"),
    "another start": (END, 0, 16, b"\0", "does not end at the end of the file"),
    "a huge directory": (END, 0, 12, b"\xff" * 4, "does not end at the end of the file"),
}


@pytest.mark.parametrize("case", PATCHES)
def test_archives_that_say_two_things_are_refused(case):
    *patch, expected = PATCHES[case]
    assert re.search(expected, refusal(patched(archive_of(*GOOD), *patch)))


def test_zip64_is_read_and_compared():
    content = saved({"a": torch.arange(3.0)}, True)  # torch always writes the end for 64 bits
    for offset, value in ((24, b"\1"), (40, b"\1"), (48, b"\1"), (4, b"\1"), (16, b"\1")):
        assert "directory" in refusal(patched(content, b"PK\6\6", 0, offset, value))
    assert "directory is damaged" in refusal(patched(content, b"PK\6\7", 0, 8, b"\1"))
    # An entry whose sizes and offset are in its extra field, as those beyond 4 GB are.
    archive = archive_of(*GOOD)
    entry_start, end = archive.rindex(CENTRAL), archive.index(END)
    entry = archive[entry_start:end]
    large = struct.pack("<2H2Q4s4x", 1, 24, 24, 24, entry[42:46])
    entry = entry[:20] + b"\xff" * 8 + entry[28:30] + b"\x1c\0" + entry[32:42] + b"\xff" * 4
    size = struct.pack("<I", end - archive.index(CENTRAL) + len(large))
    ending = archive[end : end + 12] + size + archive[end + 16 :]
    content = archive[:entry_start] + entry + b"a/data/0" + large + ending
    assert zipfile.ZipFile(io.BytesIO(content)).read("a/data/0") == FLOATS
    assert opened(content).read("a").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_errors_name_the_path():
    file = OnlyReads(b"", pathlib.Path("folder/pytorch_model.bin"))
    with pytest.raises(ValueError, match=r"folder.pytorch_model\.bin"):
        PyTorchFile(file)
