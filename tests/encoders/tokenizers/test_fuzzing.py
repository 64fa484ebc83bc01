"""Readers of files from strangers, fed with files that were changed at random.

A reader may take a file or refuse it with a `ValueError` of some lines; nothing else may come of
it, soon and in little memory. A run of 100,000 files for each reader:

    ENCODER_ZOO_FUZZ=100000 pytest tests/encoders/tokenizers/test_fuzzing.py
"""

import io
import json
import os
import pathlib
import pickletools
import time
import zipfile

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.encoders.tokenizers import DEBERTA_SENTENCEPIECE, MODERN_BPE
from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.sentencepiece_model import (
    CONTROL,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    read_model,
    serialize_model,
)
from encoder_zoo.encoders.tokenizers.sentencepiece_tokenizer import (
    SentencePieceTokenizer,
    convert_scores,
)
from encoder_zoo.encoders.tokenizers.text.charsmap import read_charsmap
from encoder_zoo.encoders.tokenizers.tokenizer import Vocabulary
from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer
from encoder_zoo.extras.formats.kerashub import KerasHubCheckpoint
from encoder_zoo.presets.files.hdf5_file import Hdf5File
from encoder_zoo.presets.files.json_data import parse_object
from encoder_zoo.presets.files.manifest import read_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.pytorch_file import PyTorchFile
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.presets.formats.config import check_config, check_sizes

SECONDS = 20  # for one small file, on a busy machine
COUNT = int(os.environ.get("ENCODER_ZOO_FUZZ", 0))
fuzz = settings(
    max_examples=COUNT or 60,
    derandomize=not COUNT,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

# -- what is done to a file ----------------------------------------------------------------------

NUMBERS = [0, 1, -1, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64, -(2**63), 10**30]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["../x", "/etc/passwd", "\ud800", "\0", "x" * 10_000, "Lambda", "[CLS]"]),
    st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.sampled_from(["a", "id", "content", "type"]), st.integers(), max_size=2),
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "delete", "repeat", "number", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=6,
)


def edited(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    """Bytes with some of them changed."""
    for kind, share, some in edits:
        i = int(share * len(content))
        if kind == "flip":
            content = (
                content[:i] + bytes([content[i] ^ some[0]]) + content[i + 1 :] if content else b""
            )
        elif kind == "insert":
            content = content[:i] + some + content[i:]
        elif kind == "delete":
            content = content[:i] + content[i + some[0] :]
        elif kind == "repeat":
            content = content[: i + some[0]] + content[i:]
        elif kind == "number":
            content = content[:i] + some * (8 // len(some)) + content[i + 8 :]
        else:
            content = content[:i]
    return content


def changed(value: object, changes: list[tuple[float, object]]) -> object:
    """JSON with some of its values replaced, or left out, at any depth."""
    value = json.loads(json.dumps(value))
    for share, odd in changes:
        places = []
        waiting = [value]
        while waiting:
            node = waiting.pop()
            entries = list(node.items() if isinstance(node, dict) else enumerate(node))
            places += [(node, key) for key, _ in entries]
            waiting += [inner for _, inner in entries if isinstance(inner, dict | list)]
        if places:
            node, key = places[int(share * len(places))]
            if odd == "\0":
                del node[key]
            else:
                node[key] = odd
    return value


CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), ODD), max_size=4)


def survives(read, *arguments) -> object:
    """What the reader makes of a file, None where it refuses it as it should."""
    start = time.process_time()
    try:
        return read(*arguments)
    except (ValueError, FileNotFoundError) as error:
        assert type(error) in (ValueError, FileNotFoundError), repr(error)
        assert 0 < len(str(error)) < 1500, len(str(error))
        return None
    finally:
        assert time.process_time() - start < SECONDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzzing")


# -- safetensors ---------------------------------------------------------------------------------

TENSORS = save({f"bert.layer.{i}": np.ones((2, i), "float32") for i in range(4)})


def read_tensors(path: pathlib.Path) -> int:
    with open(path, "rb") as opened:
        file = SafetensorsFile(opened)
        return sum(file.read(name).nbytes for name in file.shapes)


@pytest.mark.slow
@fuzz
@given(edits=EDITS, changes=CHANGES)
def test_safetensors(folder, edits, changes):
    path = folder / "model.safetensors"
    length = int.from_bytes(TENSORS[:8], "little")
    header = changed(json.loads(TENSORS[8 : 8 + length]), changes)
    text = json.dumps(header).encode("utf-8", "replace")
    whole = len(text).to_bytes(8, "little") + text + TENSORS[8 + length :]
    for content in (whole, edited(whole, edits)):
        path.write_bytes(content)
        assert (survives(read_tensors, path) or 0) <= len(content)


# -- PyTorch -------------------------------------------------------------------------------------


def pytorch_content(is_zip: bool) -> bytes:
    module = torch.nn.Linear(3, 2)
    module.register_buffer("ids", torch.arange(7)[None])
    state = module.state_dict()
    state["tied"] = state["weight"]
    state["transposed"] = state["weight"].t()
    state["half"] = torch.nn.Parameter(torch.ones(2, 2).half()[:, 1])
    state["note"] = [1, None, ("text", 2.5)]
    memory = io.BytesIO()
    torch.save(state, memory, _use_new_zipfile_serialization=is_zip)
    return memory.getvalue()


def instructions(pickled: bytes) -> list[bytes]:
    """The instructions of a pickle."""
    starts = [start for _, _, start in pickletools.genops(pickled)]
    return [pickled[i:j] for i, j in zip(starts, [*starts[1:], None], strict=True)]


class PyTorchParts:
    """A file in the parts of which it is put together with another pickle."""

    def __init__(self, is_zip: bool):
        self.whole = pytorch_content(is_zip)
        if is_zip:
            with zipfile.ZipFile(io.BytesIO(self.whole)) as archive:
                self.entries = {name: archive.read(name) for name in archive.namelist()}
            self.pickled = self.entries["archive/data.pkl"]
        else:
            self.entries = None
            rest = io.BytesIO(self.whole)
            ends = [0]
            for _ in range(4):
                list(pickletools.genops(rest))
                ends.append(rest.tell())
            self.pickled = self.whole[ends[3] : ends[4]]
            self.start, self.end = self.whole[: ends[3]], self.whole[ends[4] :]
        self.instructions = instructions(self.pickled)

    def with_pickle(self, pickled: bytes) -> bytes:
        if self.entries is None:
            return self.start + pickled + self.end
        memory = io.BytesIO()
        with zipfile.ZipFile(memory, "w") as archive:
            for name, content in self.entries.items():
                archive.writestr(name, pickled if name == "archive/data.pkl" else content)
        return memory.getvalue()


PYTORCH = {"zip": PyTorchParts(True), "stream": PyTorchParts(False)}
SHARES = st.floats(0, 1, exclude_max=True)
MOVES = st.lists(
    st.tuples(st.sampled_from("copy move drop swap".split()), SHARES, SHARES), max_size=4
)


def moved(parts: list[bytes], moves: list[tuple[str, float, float]]) -> bytes:
    """Instructions of a pickle with some of them at other places."""
    parts = list(parts)
    for kind, first, second in moves:
        i, j = int(first * len(parts)), int(second * len(parts))
        if kind == "copy":
            parts.insert(i, parts[j])
        elif kind == "swap":
            parts[i], parts[j] = parts[j], parts[i]
        elif len(parts) > 1:
            part = parts.pop(i)
            if kind == "move":
                parts.insert(j, part)
    return b"".join(parts)


def read_pytorch(content: bytes) -> int:
    file = io.BytesIO(content)
    file.name = "pytorch_model.bin"
    tensors = PyTorchFile(file)
    arrays = {name: tensors.read(name) for name in tensors.shapes}
    assert all(a.shape == tensors.shapes[name] for name, a in arrays.items())
    return sum(array.nbytes for array in arrays.values())


@pytest.mark.parametrize("kind", PYTORCH)
@fuzz
@given(edits=EDITS, moves=MOVES)
def test_pytorch(kind, edits, moves):
    parts = PYTORCH[kind]
    pickled = moved(parts.instructions, moves)
    for content in (
        edited(parts.whole, edits),
        parts.with_pickle(pickled),
        parts.with_pickle(edited(pickled, edits)),
    ):
        # Each of the seven tensors is at most one of those views that may take four times it all.
        assert (survives(read_pytorch, content) or 0) <= 4 * 7 * len(content)


# -- JSON ----------------------------------------------------------------------------------------

SIZES = {"vocabulary_size": 9, "num_layers": 1, "num_heads": 2, "hidden_dim": 4}
LABELS = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}


def read_config(content: bytes, family) -> None:
    config = parse_object(content, "config.json")
    path = pathlib.Path("config.json")
    check_config(config, family, path)
    check_sizes(config, family, {"a": (3,)}, path, 10**9)


@fuzz
@given(name=st.sampled_from(sorted(FAMILIES)), edits=EDITS, changes=CHANGES)
def test_configurations(name, edits, changes):
    family = get_family(name)
    config = {family.config_keys[argument]: size for argument, size in SIZES.items()}
    content = json.dumps(changed({**config, **LABELS, **family.constants}, changes)).encode()
    survives(read_config, content, family)
    survives(read_config, edited(content, edits), family)


@fuzz
@given(edits=EDITS, changes=CHANGES)
def test_manifests(folder, edits, changes):
    files = {"config.json": {"bytes": 2, "sha256": "0" * 64}}
    manifest = {"format": 1, "task": "classifier", "files": files, "preprocessor": {"a": 1}}
    content = json.dumps(changed(manifest, changes)).encode()
    for text in (content, edited(content, edits)):
        (folder / "encoder_zoo.json").write_bytes(text)
        survives(read_folder_manifest, folder, True)
        survives(read_folder_manifest, folder, False)


def read_folder_manifest(folder: pathlib.Path, verify: bool) -> None:
    with OpenFolder(folder, ["*"]) as files:
        read_manifest(files, verify)


# -- tokenizers ----------------------------------------------------------------------------------

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "ab"]
SPECIAL = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
IDS = {word: i for i, word in enumerate(WORDS)}
ADDED = [
    {"id": i, "content": word, "special": i < 5, "normalized": False} for word, i in IDS.items()
]


class WordPieceReader(BertTokenizer):
    """Reads the files, and makes nothing of them."""

    def __init__(self, vocabulary, **options):
        assert all(isinstance(token, str) for token in vocabulary)


class ByteBPEReader(RobertaTokenizer):
    """Likewise."""

    kind = MODERN_BPE
    has_unknown_bytes = False

    def __init__(self, vocabulary, merges, **options):
        assert all(type(i) is int for i in vocabulary.values())
        assert all(len(merge.split(" ")) == 2 for merge in merges)


class SentencePieceReader(SentencePieceTokenizer):
    """Likewise."""

    kind = DEBERTA_SENTENCEPIECE._replace(files=("spiece.model",))

    def __init__(
        self,
        vocabulary,
        scores,
        precompiled_charsmap=None,
        merges=None,
        remove_extra_whitespaces=True,
        **options,
    ):
        assert all(isinstance(token, str) for token in vocabulary)
        self._vocabulary, self._scores = Vocabulary(vocabulary), convert_scores(scores, vocabulary)
        self.precompiled_charsmap = precompiled_charsmap
        self.remove_extra_whitespaces = remove_extra_whitespaces


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
UNIGRAM = [[word, -float(i)] for word, i in IDS.items()]
NMT = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
READERS = {
    "WordPiece": (
        WordPieceReader,
        {"normalizer": {"type": "BertNormalizer", "lowercase": True}},
        {"type": "WordPiece", "vocab": IDS, "unk_token": "[UNK]"},
        {"vocab.txt": "\n".join(WORDS)},
    ),
    "byte-level BPE": (
        ByteBPEReader,
        {"pre_tokenizer": BYTE_LEVEL},
        {"type": "BPE", "vocab": IDS, "merges": [["a", "b"]]},
        {"vocab.json": IDS, "merges.txt": "#version: 0.2\na b\n"},
    ),
    "SentencePiece": (
        SentencePieceReader,
        {
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [METASPACE]},
            "normalizer": {"type": "Sequence", "normalizers": [NMT]},
        },
        {"type": "Unigram", "vocab": UNIGRAM, "unk_id": 1},
        {},
    ),
}


def read_tokenizer(reader, files: dict[str, bytes]) -> None:
    contents = {
        name: parse_object(content, name) if name.endswith(".json") else content.decode()
        for name, content in files.items()
    }
    reader.from_files(TokenizerFiles("folder", contents))


@pytest.mark.slow(except_for="^WordPiece")
@pytest.mark.parametrize("name", READERS)
@fuzz
@given(data=st.data())
def test_tokenizer_files(name, data):
    reader, steps, model, files = READERS[name]
    fast = {**steps, "model": model, "added_tokens": ADDED}
    decoder = {str(token["id"]): token for token in ADDED}
    files = {
        "tokenizer.json": fast,
        "tokenizer_config.json": {**SPECIAL, "added_tokens_decoder": decoder},
        "special_tokens_map.json": SPECIAL,
        "added_tokens.json": {"[CLS]": 2},
        **files,
    }
    names = data.draw(st.lists(st.sampled_from(sorted(files)), unique=True))
    written = {}
    for file in names:
        content = files[file]
        if file.endswith(".json"):
            content = json.dumps(changed(content, data.draw(CHANGES)))
        written[file] = content.encode()
    survives(read_tokenizer, reader, written)
    if names:
        last = names[-1]
        text = edited(written[last], data.draw(EDITS)).decode("utf-8", "replace")
        survives(read_tokenizer, reader, {**written, last: text.encode()})


PIECES = [Piece("<unk>", 0.0, UNKNOWN), Piece("<s>", 0.0, CONTROL), Piece("▁a", -1.5), Piece("b")]
MODEL = serialize_model(SentencePieceModel(PIECES, precompiled_charsmap=bytes(16)))


@fuzz
@given(edits=EDITS)
def test_sentencepiece_models(edits):
    survives(read_model, edited(MODEL, edits), "spiece.model")


@fuzz
@given(content=st.binary(max_size=64))
def test_normalisation_maps(content):
    trie = len(content).to_bytes(4, "little")
    survives(read_charsmap, content, "precompiled_charsmap")
    survives(read_charsmap, trie + content + b"a\0", "precompiled_charsmap")


# -- HDF5 ----------------------------------------------------------------------------------------


def hdf5_content() -> bytes:
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        for name, shape in (("dense", (2, 3)), ("dense_1", (3,)), ("embedding", (4, 2))):
            file[f"layers/{name}/vars/0"] = np.ones(shape, "float32")
            file[f"layers/{name}/vars/1"] = np.ones(shape[-1:], "float32")
    return memory.getvalue()


HDF5 = hdf5_content()


def read_hdf5(path: pathlib.Path) -> int:
    with open(path, "rb") as opened:
        file = Hdf5File(opened)
        return sum(
            file.read(f"{name}/vars/{i}").nbytes
            for name in ("dense", "dense_1", "embedding")
            for i, _ in enumerate(file.list_shapes(name))
        )


@fuzz
@given(edits=EDITS)
def test_hdf5(folder, edits):
    path = folder / "model.weights.h5"
    path.write_bytes(edited(HDF5, edits))
    assert (survives(read_hdf5, path) or 0) <= len(HDF5) + 6 * 256


KERAS_HUB = {
    "config.json": {
        "class_name": "BertBackbone",
        "config": {"num_layers": 1, "num_heads": 2, "hidden_dim": 4, "vocabulary_size": 9},
    },
    "task.json": {
        "class_name": "BertTextClassifier",
        "config": {"num_classes": 3, "dropout": 0.1, "activation": "linear"},
    },
    "tokenizer.json": {"class_name": "BertTokenizer", "config": {"lowercase": True}},
}
ARRAYS = {
    "model.weights.h5": {
        "reversible_embedding": [(9, 4)],
        "position_embedding": [(8, 4)],
        "embedding": [(2, 4)],
        "layer_normalization": [(4,), (4,)],
        "dense": [(4, 4), (4,)],
    },
    "task.weights.h5": {"dense": [(4, 3), (3,)]},
}
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def read_kerashub(folder: pathlib.Path, settings: dict) -> None:
    with KerasHubCheckpoint(OpenFolder(folder, ["*"]), settings) as checkpoint:
        check_config(checkpoint.config, checkpoint.family, checkpoint.config_file)
        shapes = checkpoint.shapes
        check_sizes(checkpoint.config, checkpoint.family, shapes, checkpoint.config_file, 10**9)
        for name in shapes:
            checkpoint.read_tensor(name)
        checkpoint.read_tokenizer()


@pytest.mark.slow
@fuzz
@given(data=st.data())
def test_kerashub_presets(folder, data):
    preset = folder / "kerashub"
    (preset / "assets" / "tokenizer").mkdir(parents=True, exist_ok=True)
    (preset / "assets" / "tokenizer" / "vocabulary.txt").write_text("\n".join(WORDS))
    for name, content in KERAS_HUB.items():
        (preset / name).write_text(json.dumps(changed(content, data.draw(CHANGES))))
    for name, layers in ARRAYS.items():
        shapes = {
            f"layers/{layer}/vars/{i}": shape
            for layer, arrays in layers.items()
            for i, shape in enumerate(arrays)
        }
        odd = data.draw(st.dictionaries(st.sampled_from(sorted(shapes)), SHAPES, max_size=2))
        with h5py.File(preset / name, "w") as file:
            for place, shape in {**shapes, **odd}.items():
                file[place] = np.zeros(shape, "float32")
    settings = data.draw(st.sampled_from([{}, {"head": {"labels": ["a", "b", "c"]}}]))
    survives(read_kerashub, preset, changed(settings, data.draw(CHANGES)))
