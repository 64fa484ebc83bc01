"""Folders with a wrong value at any key, or a file that is cut or changed, open or are refused.

A folder of each kind that the package writes is damaged at random places. What opens it either
answers, or raises an error of ours that names the file. Errors of Python and of libraries must not
come through: they name neither file nor key.
"""

import contextlib
import copy
import functools
import json
import pathlib
import random
import shutil
import zlib

import keras
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

VALUES = [None, True, -1, 0, 1.5, 1e300, 2**31, 10**30, "", "x", "../x", [], {}, [5], [None]]
VALUES += [{"a": 1}, [[1, 2]], "a" * 10_000]
TEXTS = ["a b ab", "c d e a b", "p", "ab cd"]


def task(name, family="bert", **arguments):
    return tiny.task(get_family(family), getattr(ez, name), **arguments)


def save_preset(folder, name, family="bert"):
    task(name, family).save_to_preset(folder)
    return getattr(ez, name).from_preset


def save_index(folder, name, verify=True):
    embedder = task(name) if name else None
    index = embedder.index(TEXTS) if name else ez.BM25Index(TEXTS)
    index.save(folder)
    return lambda path: ez.load_index(path, embedder, verify=verify).search(TEXTS[:1])


def save_hybrid(folder):
    embedders = task("TextEmbedder"), task("SparseEncoder")
    ez.HybridIndex([embedder.index(TEXTS) for embedder in embedders]).save(folder)
    return lambda path: ez.load_index(path, list(embedders), verify=False).search(TEXTS[:1])


def save_corpus(folder):
    tokenizer = tiny.tokenizer(get_family("bert"))
    ez.PretrainingCorpus.from_documents(folder, TEXTS * 20, tokenizer, 16, verbose=0)
    return lambda path: ez.PretrainingCorpus(path).verify()


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, number):
        return TEXTS[:2], [0, 1]


def save_tokens(folder):
    model = task("SequenceClassifier")

    def read(path):
        return model.evaluate(ez.TokenCache(Rows(), path), verbose=0)

    read(folder)
    return read


class Killed(Exception):
    pass


class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise Killed


def save_backup(folder):
    model = task("SequenceClassifier")

    def train(path, *callbacks):
        callbacks = [ez.BackupAndRestore(path), *callbacks]
        with contextlib.suppress(Killed):
            model.fit(TEXTS, [0, 1, 2, 0], epochs=2, verbose=0, callbacks=callbacks)

    train(folder, Kill())
    return lambda path: train(path, Kill())


FOLDERS = {
    "classifier": functools.partial(save_preset, name="SequenceClassifier"),
    "tagger of byte BPE": functools.partial(save_preset, name="TokenClassifier", family="roberta"),
    "masked LM of SentencePiece": functools.partial(save_preset, name="MaskedLM", family="albert"),
    "span QA of Unigram": functools.partial(save_preset, name="SpanQA", family="xlm-roberta"),
    "embedder": functools.partial(save_preset, name="TextEmbedder"),
    "late interaction": functools.partial(save_preset, name="LateInteraction"),
    "sparse encoder": functools.partial(save_preset, name="SparseEncoder"),
    "entity extractor": functools.partial(save_preset, name="EntityExtractor"),
    "reranker": functools.partial(save_preset, name="Reranker"),
    "vector index": functools.partial(save_index, name="TextEmbedder"),
    "sparse index": functools.partial(save_index, name="SparseEncoder"),
    "multi-vector index": functools.partial(save_index, name="LateInteraction"),
    "BM25 index": functools.partial(save_index, name=None),
    "changed vector index": functools.partial(save_index, name="TextEmbedder", verify=False),
    "changed sparse index": functools.partial(save_index, name="SparseEncoder", verify=False),
    "changed multi-vector index": functools.partial(
        save_index, name="LateInteraction", verify=False
    ),
    "changed BM25 index": functools.partial(save_index, name=None, verify=False),
    "changed hybrid index": save_hybrid,
    "corpus": save_corpus,
    "tokens": save_tokens,
    "backup": save_backup,
}


def paths_in(value, path=()):
    yield path
    value = dict(enumerate(value)) if isinstance(value, list) else value
    for key, inner in list(value.items())[:40] if isinstance(value, dict) else ():
        yield from paths_in(inner, (*path, key))


def changed(value, path, new):
    value = copy.deepcopy(value)
    if not path:
        return new
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = new
    return value


def damages(path, draw, most):
    """Return contents of a file that differ from what it holds, at most so many."""
    content = path.read_bytes()
    found = [b"", content[: len(content) // 2], content[:-1], content + b"\0", bytes(len(content))]
    for _ in range(8):
        index = draw.randrange(min(len(content), 400)) if content else 0
        found.append(content[:index] + bytes([draw.randrange(256)]) + content[index + 1 :])
    if path.suffix == ".json":
        value = json.loads(content)
        places = list(paths_in(value))
        pairs = [(place, new) for place in places for new in VALUES]
        pairs = draw.sample(pairs, min(most, len(pairs)))
        found += [json.dumps(changed(value, *pair)).encode() for pair in pairs]
    return draw.sample(found, min(most, len(found)))


def check(read, path, content, folder) -> None:
    """Open a folder with a damaged file, which is answered or refused by name."""
    path.write_bytes(content)
    try:
        read(folder)
    except (ValueError, OSError) as error:
        assert type(error) in (ValueError, FileNotFoundError), content[:200]
        assert len(str(error)) < 1500, content[:200]
        assert any(name in str(error) for name in (path.name, folder.name))


QUICK = ["classifier", "changed vector index", "corpus"]


@pytest.mark.slow(except_for="^({})-4$".format("|".join(QUICK)))
@pytest.mark.parametrize("most", [60, 4])
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_damaged_folder_is_read_or_refused_by_name(kind, most, tmp_path):
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    read = FOLDERS[kind](whole)
    read(whole)
    for file in filter(pathlib.Path.is_file, sorted(whole.rglob("*.*"))):
        name = file.relative_to(whole)
        draw = random.Random(zlib.crc32(f"{kind} {name}".encode()))
        for content in damages(file, draw, most):
            shutil.copytree(whole, damaged, dirs_exist_ok=True)
            check(read, damaged / name, content, damaged)
