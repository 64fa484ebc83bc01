"""Errors for damaged files, and for values that are not lists of documents or paths."""

import gzip
import pathlib

import pytest

import encoder_zoo as ez


@pytest.mark.parametrize("documents", ["One.", b"One.", {"text": ["One."]}, [{"text": "One."}], 5])
def test_what_is_no_list_of_documents(documents, tmp_path):
    tokenizer = ez.BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] one".split())
    with pytest.raises(ValueError, match="documents is |Document 0 is "):
        ez.PretrainingCorpus.from_documents(tmp_path / "c", documents, tokenizer, verbose=0)


@pytest.mark.parametrize("paths", ["a.txt", pathlib.Path("a.txt"), 5, [5], None])
def test_what_is_no_list_of_paths(paths, tmp_path):
    tokenizer = ez.BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] one".split())
    with pytest.raises(ValueError, match=r"paths(\[0\])? is "):
        ez.PretrainingCorpus.from_files(tmp_path / "c", paths, tokenizer, verbose=0)


@pytest.mark.parametrize("size", [5, 40, -1])
def test_a_damaged_compressed_file_is_named(size, tmp_path):
    tokenizer = ez.BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] one".split())
    content = gzip.compress(b"One two.\n" * 1000)
    (tmp_path / "a.txt.gz").write_bytes(content[:size] if size > 0 else content[:-9] + bytes(9))
    with pytest.raises(ValueError, match="a.txt.gz is damaged"):
        ez.PretrainingCorpus.from_files(
            tmp_path / "c", [tmp_path / "a.txt.gz"], tokenizer, verbose=0
        )
