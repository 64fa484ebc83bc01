"""All readers and writers of folders raise an error for values that are not paths."""

import pathlib

import pytest

import encoder_zoo as ez

INDEX = ez.BM25Index(["one two"])
READERS = {
    "BM25Index.load": ez.BM25Index.load,
    "load_index": ez.load_index,
    "open_export": ez.open_export,
    "PretrainingCorpus": ez.PretrainingCorpus,
}
WRITERS = {
    "save": INDEX.save,
    "write_conll": lambda path: ez.write_conll(path, [["a"]], [["O"]]),
    "answer picture": lambda path: ez.display.entities(["a"], [[]]).save(path),
}
NO_PATHS = [None, 5, b"x", "", "a\0b", [], {}, 1.5, pathlib.Path("a\0b")]


@pytest.mark.parametrize("path", NO_PATHS, ids=repr)
@pytest.mark.parametrize("name", [*READERS, *WRITERS])
def test_what_is_no_path(name, path):
    with pytest.raises(ValueError, match="(path|folder) is.*Expected a path"):
        {**READERS, **WRITERS}[name](path)


@pytest.mark.parametrize("name", ["BM25Index.load", "load_index", "open_export"])
def test_a_file_is_no_folder(name, tmp_path):
    file = tmp_path / "file.onnx"
    file.write_bytes(b"x")
    with pytest.raises(ValueError, match="file.onnx is a file. Expected a folder"):
        READERS[name](file)
    with pytest.raises(ValueError, match="file.onnx is a file. Expected a folder"):
        READERS[name](str(file))
