"""Corpora on disk: what is written, continued, refused; which rows are made, in which order."""

import functools
import gzip
import itertools
import json
import os
import random
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.extras.corpora import examples, reading
from encoder_zoo.extras.corpora.reading import Reader, read_examples
from encoder_zoo.extras.corpora.writing import Shard
from encoder_zoo.presets.files.manifest import compute_checksum, compute_manifest_digest
from encoder_zoo.tasks.preprocessing.batching import Plan

WORDS = "the cat sat on a mat and dog ran away with his good bad film".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
MASK = TOKENS.index("[MASK]")


@pytest.fixture(scope="module")
def tokenizer():
    return ez.BertTokenizer(TOKENS)


def documents(count=60, seed=0):
    rng = np.random.default_rng(seed)
    return [
        [" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(rng.integers(1, 9))]
        for _ in range(count)
    ]


def ids(document):
    return [[TOKENS.index(word) for word in sentence.split()] for sentence in document]


def held(corpus):
    """The documents of a corpus, as lists of sentences of ids."""
    found = []
    for shard in map(corpus.open_shard, range(corpus.num_shards)):
        sentences = [shard.tokens[a:b].tolist() for a, b in itertools.pairwise(shard.sentences)]
        found += [sentences[a:b] for a, b in itertools.pairwise(shard.documents)]
    return found


@pytest.fixture(scope="module")
def corpus(tokenizer, tmp_path_factory):
    """Of several shards."""
    folder = tmp_path_factory.mktemp("corpus") / "c"
    return ez.PretrainingCorpus.from_documents(folder, documents(), tokenizer, 100, verbose=0)


# -- written and read --------------------------------------------------------------------------


@pytest.mark.slow
def test_files_and_documents_become_the_ids_of_their_sentences(tokenizer, tmp_path, capsys):
    texts = documents()
    lines = ["\r\n".join(d) + "\r\n" for d in texts[:20]], ["\n".join(d) for d in texts[20:]]
    (tmp_path / "a.txt").write_bytes("\r\n \r\n\r\n".join(lines[0]).encode())
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write("\n\n".join(lines[1]).encode())
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.gz"]
    corpus = ez.PretrainingCorpus.from_files(tmp_path / "c", paths, tokenizer, shard_tokens=200)
    assert held(corpus) == [ids(document) for document in texts]
    assert corpus.num_shards > 2 and corpus.num_documents == len(texts)
    assert corpus.num_tokens == sum(len(s.split()) for document in texts for s in document)
    assert corpus.open_shard(0).tokens.dtype == "uint16"
    assert "60 documents" in capsys.readouterr().out
    corpus.verify()

    joined = ["\n".join(document) for document in texts]
    for given in (iter(texts), joined, tf.data.Dataset.from_tensor_slices(joined)):
        other = ez.PretrainingCorpus.from_documents(
            tmp_path / str(type(given).__name__), given, tokenizer, verbose=0
        )
        assert held(other) == held(corpus) and other.num_shards == 1


@pytest.mark.slow
def test_text_without_tokens_is_left_out(tokenizer, tmp_path):
    given = [["the cat", "\x01", "  "], ["\x01"], [], ["a dog"]]
    corpus = ez.PretrainingCorpus.from_documents(tmp_path / "c", given, tokenizer, verbose=0)
    assert held(corpus) == [ids(["the cat"]), ids(["a dog"])]
    with pytest.raises(ValueError, match="empty"):
        ez.PretrainingCorpus.from_documents(tmp_path / "d", [[]], tokenizer, verbose=0)


@pytest.mark.slow(only=r"^(files)$")
@pytest.mark.parametrize("kind", ["files", "documents"])
def test_a_begun_corpus_goes_on_with_the_next_shard(tokenizer, tmp_path, monkeypatch, kind):
    texts = documents()
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join("\n".join(d) for d in texts))

    def make(folder):
        if kind == "files":
            make, given = ez.PretrainingCorpus.from_files, [path]
        else:
            make, given = ez.PretrainingCorpus.from_documents, iter(texts)
        return make(tmp_path / folder, given, tokenizer, shard_tokens=200, verbose=0)

    whole = make("whole")
    write, written = Shard.write, []

    def fail_at_the_third(self, path, size):
        if len(written) == 2:
            raise InterruptedError
        written.append(path)
        write(self, path, size)

    monkeypatch.setattr(Shard, "write", fail_at_the_third)
    with pytest.raises(InterruptedError):
        make("begun")
    with pytest.raises(ValueError, match="begun.* 2 files"):
        ez.PretrainingCorpus(tmp_path / "begun")
    monkeypatch.setattr(Shard, "write", write)
    times = [path.stat().st_mtime_ns for path in sorted((tmp_path / "begun").glob("*.safe*"))]
    assert len(times) == 2
    begun = make("begun")
    assert held(begun) == held(whole) and begun.sha256 == whole.sha256
    shards = sorted((tmp_path / "begun").glob("*.safe*"))
    assert [path.stat().st_mtime_ns for path in shards][:2] == times
    # One that is complete is not made again.
    monkeypatch.setattr(Shard, "write", fail_at_the_third)
    assert make("begun").sha256 == whole.sha256


def test_another_source_or_tokenizer_is_another_corpus(tokenizer, corpus, tmp_path):
    other = ez.BertTokenizer(TOKENS, lowercase=False)
    with pytest.raises(ValueError, match="another corpus: tokenizer"):
        ez.PretrainingCorpus.from_documents(corpus.folder, documents(), other, 100)
    with pytest.raises(ValueError, match="another corpus: shard_tokens.*100"):
        ez.PretrainingCorpus.from_documents(corpus.folder, documents(), tokenizer, 101)
    (tmp_path / "a.txt").write_text("the cat")
    with pytest.raises(ValueError, match="another corpus: source"):
        ez.PretrainingCorpus.from_files(corpus.folder, [tmp_path / "a.txt"], tokenizer, 100)
    with pytest.raises(ValueError, match="different tokenizer"):
        corpus.check_tokenizer(other)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])  # of the file: that is read, and one to come
def test_a_file_that_changes_while_it_is_tokenized_is_no_part(
    tokenizer, tmp_path, monkeypatch, number
):
    text = "\n\n".join("\n".join(document) for document in documents())
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text(text)
    write, written = Shard.write, []

    def writes(shard, path, vocabulary_size):
        write(shard, path, vocabulary_size)
        written.append(path)
        if len(written) == 2:
            paths[number].write_text(text.replace("cat", "dog"))

    monkeypatch.setattr(Shard, "write", writes)
    make = ez.PretrainingCorpus.from_files
    with pytest.raises(ValueError, match=f"{paths[number].name} was changed"):
        make(tmp_path / "c", paths, tokenizer, 100, verbose=0)
    assert len(written) == 2
    with pytest.raises(ValueError, match="changed.*Delete"):
        make(tmp_path / "c", paths, tokenizer, 100, verbose=0)
    make(tmp_path / "d", paths, tokenizer, 100, verbose=0)
    os.utime(paths[0], ns=(0, 10**9))
    with pytest.raises(ValueError, match=r"changed.*PretrainingCorpus\(folder\)"):
        make(tmp_path / "d", paths, tokenizer, 100, verbose=0)
    assert ez.PretrainingCorpus(tmp_path / "d").num_documents == 120


@pytest.mark.parametrize(
    "changed",
    [{"tokens": -5}, {"documents": 0}, {"bytes": True}, {"position": [0, -1]}, {"position": [0.5]}],
)
def test_a_description_that_cannot_be_is_damaged(tokenizer, tmp_path, begun, changed):
    manifest = json.loads((begun / "corpus.json").read_text())
    manifest["shards"][0] |= changed
    (begun / "corpus.json").write_text(
        json.dumps({**manifest, "sha256": compute_manifest_digest(manifest)})
    )
    with pytest.raises(ValueError, match="corpus.json is damaged"):
        ez.PretrainingCorpus.from_files(begun, [begun.parent / "a.txt"], tokenizer, 100, verbose=0)


@pytest.mark.parametrize("place", [[0, 10**6], [7, 0], [1, 5], [0, "ab"], [0]])
def test_a_place_in_no_file_is_damage(tokenizer, begun, place):
    manifest = json.loads((begun / "corpus.json").read_text())
    manifest["shards"][-1]["position"] = place
    (begun / "corpus.json").write_text(
        json.dumps({**manifest, "sha256": compute_manifest_digest(manifest)})
    )
    with pytest.raises(ValueError, match="corpus.json is damaged"):
        ez.PretrainingCorpus.from_files(begun, [begun.parent / "a.txt"], tokenizer, 100, verbose=0)


@pytest.fixture
def begun(tokenizer, tmp_path, monkeypatch):
    """The folder of a corpus of a file that was interrupted in its third shard."""
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(d) for d in documents()))
    write = Shard.write

    def fails(shard, path, vocabulary_size):
        if "00002" in path.name:
            raise InterruptedError
        write(shard, path, vocabulary_size)

    with monkeypatch.context() as patched:
        patched.setattr(Shard, "write", fails)
        with pytest.raises(InterruptedError):
            ez.PretrainingCorpus.from_files(
                tmp_path / "c", [tmp_path / "a.txt"], tokenizer, 100, verbose=0
            )
    return tmp_path / "c"


def test_a_changed_bit_is_found_when_its_file_is_read(corpus, tmp_path):
    folder = shutil.copytree(corpus.folder, tmp_path / "c")
    path = folder / corpus.manifest["shards"][1]["file"]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    damaged = ez.PretrainingCorpus(folder)
    damaged.open_shard(0)
    with pytest.raises(ValueError, match=f"{path.name} is damaged"):
        damaged.open_shard(1)


@pytest.mark.slow
def test_other_documents_than_before_do_not_continue_a_corpus(tokenizer, tmp_path, monkeypatch):
    write, texts = Shard.write, documents()
    make = functools.partial(
        ez.PretrainingCorpus.from_documents, tokenizer=tokenizer, shard_tokens=100, verbose=0
    )
    whole = make(tmp_path / "whole", texts)

    def fails(shard, path, vocabulary_size):
        if path.name.endswith("3.safetensors") or "00003" in path.name:
            raise InterruptedError
        write(shard, path, vocabulary_size)

    with monkeypatch.context() as patched:
        patched.setattr(Shard, "write", fails)
        with pytest.raises(InterruptedError):
            make(tmp_path / "c", iter(texts))
    for other in (texts[::-1], [["the cat"], *texts], [[*texts[0], "dog"], *texts[1:]], texts[:2]):
        with pytest.raises(ValueError, match="documents"):
            make(tmp_path / "c", iter(other))
    assert make(tmp_path / "c", iter(texts)).sha256 == whole.sha256


def test_what_is_no_document_is_named(tokenizer, tmp_path):
    make = ez.PretrainingCorpus.from_documents
    with pytest.raises(ValueError, match="Document 1.* 7"):
        make(tmp_path / "c", ["the cat", 7], tokenizer)
    with pytest.raises(ValueError, match=r"Document 0.*\['a'\]"):
        make(tmp_path / "c", [[["a"]]], tokenizer)
    with pytest.raises(ValueError, match="Document 0.*UTF-8"):
        make(tmp_path / "c", [b"\xff"], tokenizer)
    with pytest.raises(ValueError, match="shard_tokens is 0"):
        make(tmp_path / "c", ["the cat"], tokenizer, shard_tokens=0)
    (tmp_path / "a.txt").write_bytes(b"the cat\n\xff\n")
    with pytest.raises(ValueError, match=r"a\.txt.*UTF-8.*byte 10"):
        ez.PretrainingCorpus.from_files(tmp_path / "c", [tmp_path / "a.txt"], tokenizer)
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        ez.PretrainingCorpus.from_files(tmp_path / "c", [tmp_path / "none.txt"], tokenizer)


class TestDamage:
    @pytest.fixture
    def folder(self, tokenizer, tmp_path):
        given = [["the cat sat", "a dog"], ["his film"]]
        ez.PretrainingCorpus.from_documents(tmp_path / "c", given, tokenizer, verbose=0)
        return tmp_path / "c"

    def rewrite(self, folder, shard=None, **changes):
        """A shard or fields of the manifest changed, with checksums that fit."""
        manifest = json.loads((folder / "corpus.json").read_text())
        if shard:
            path = folder / "shard-00000.safetensors"
            shard.write(path, len(TOKENS))
            entry = {"bytes": path.stat().st_size, "sha256": compute_checksum(path)}
            manifest["shards"][0] |= entry
        manifest |= changes
        manifest["sha256"] = compute_manifest_digest(manifest)
        (folder / "corpus.json").write_text(json.dumps(manifest))

    def test_a_byte_that_changed_is_found(self, folder):
        path = folder / "shard-00000.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match="shard-00000.safetensors is damaged"):
            ez.PretrainingCorpus(folder).verify()
        path.write_bytes(content[:-2])
        with pytest.raises(ValueError, match="is damaged"):
            ez.PretrainingCorpus(folder).open_shard(0)

    @pytest.mark.parametrize(
        "changes", [{"format": 2}, {"shards": [{}]}, {"shards": 7}, {"tokenizer": None}]
    )
    def test_a_manifest_that_is_made_up_is_refused(self, folder, changes):
        self.rewrite(folder, **changes)
        with pytest.raises(ValueError, match=r"corpus.json.*(damaged|format is 2)"):
            ez.PretrainingCorpus(folder)

    def test_a_shard_out_of_the_folder_is_refused(self, folder):
        manifest = json.loads((folder / "corpus.json").read_text())
        self.rewrite(folder, shards=[{**manifest["shards"][0], "file": "../x.safetensors"}])
        with pytest.raises(ValueError, match="corpus.json is.*x.safetensors"):
            ez.PretrainingCorpus(folder).open_shard(0)

    @pytest.mark.parametrize(
        "sentences, wanted", [([0, 3, 3, 7], [0, 2, 3]), ([0, 3, 9], [0, 2]), ([0, 7], [0, 2, 1])]
    )
    def test_borders_outside_of_the_tokens_are_refused(self, folder, sentences, wanted):
        self.rewrite(folder, Shard(np.ones(7), np.array(sentences), np.array(wanted)))
        with pytest.raises(ValueError, match="shard.*(sentence|document)"):
            ez.PretrainingCorpus(folder).open_shard(0)

    def test_ids_outside_of_the_vocabulary_are_refused(self, folder, tokenizer):
        self.rewrite(folder, Shard.create([[[5, 6, 77]], [[5]]]))
        shard = ez.PretrainingCorpus(folder).open_shard(0)
        slots = [(shard, examples.fill_with_sentences(shard, 8), 0)]
        with pytest.raises(ValueError, match="id 77.* 20 tokens"):
            read_examples(slots, tokenizer, len(TOKENS))


# -- parts -------------------------------------------------------------------------------------


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 2, 7))]
)
def test_parts_of_files_joined_are_what_one_process_writes(tokenizer, tmp_path, count):
    texts = documents(90, seed=3)
    lines = ["\n".join(document) for document in texts]
    lines[5] += "\n\u3000\n\x01\n\n\n \n"  # a blank line of another kind, no tokens, blank lines
    (tmp_path / "a.txt").write_text("\n\n".join(lines[:50]), encoding="utf-8")
    (tmp_path / "empty.txt").touch()
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("\n\n".join(lines[50:70]))
    (tmp_path / "c.txt").write_text("\r\n\r\n".join(lines[70:]))
    paths = [tmp_path / name for name in ("a.txt", "empty.txt", "b.txt.gz", "c.txt")]
    make = ez.PretrainingCorpus.from_files
    whole = make(tmp_path / "whole", paths, tokenizer, 150, verbose=0)
    assert whole.num_shards > 5 and whole.num_documents == 90
    folders = [tmp_path / f"part{i}" for i in range(count)]
    parts = [
        make(folder, paths, tokenizer, 150, verbose=0, part=(i, count))
        for i, folder in enumerate(folders)
    ]
    assert sum(part.num_documents for part in parts) == 90
    if count < 4:
        assert min(part.num_documents for part in parts) > 10
    joined = ez.PretrainingCorpus.join(tmp_path / "joined", folders[::-1], verbose=0)
    assert contents(joined.folder) == contents(whole.folder)
    assert held(joined) == [document for part in parts for document in held(part)]


@pytest.mark.slow
def test_parts_of_documents_are_joined_in_their_order(tokenizer, tmp_path, monkeypatch):
    texts, make = documents(), ez.PretrainingCorpus.from_documents
    whole = make(tmp_path / "whole", texts, tokenizer, 100, verbose=0)
    folders = [tmp_path / f"part{i}" for i in range(3)]
    for i, folder in enumerate(folders):  # the last is empty
        given = texts[i * 40 : (i + 1) * 40]
        make(folder, given, tokenizer, 100, verbose=0, part=(i, 3))
    # A join that failed goes on.
    write, written = Shard.write, []

    def fail_at_the_third(self, path, size):
        if len(written) == 2:
            raise InterruptedError
        written.append(path)
        write(self, path, size)

    monkeypatch.setattr(Shard, "write", fail_at_the_third)
    with pytest.raises(InterruptedError):
        ez.PretrainingCorpus.join(tmp_path / "joined", folders, verbose=0)
    monkeypatch.setattr(Shard, "write", write)
    joined = ez.PretrainingCorpus.join(tmp_path / "joined", folders, verbose=0)
    assert contents(joined.folder) == contents(whole.folder) and joined.sha256 == whole.sha256


@pytest.mark.slow
def test_parts_that_do_not_belong_together_are_refused(tokenizer, tmp_path):
    texts, make = documents(), ez.PretrainingCorpus.from_documents
    join = ez.PretrainingCorpus.join

    def part(name, shard_tokens=100, **arguments):
        make(tmp_path / name, texts, tokenizer, shard_tokens, verbose=0, **arguments)
        return tmp_path / name

    first, second, whole = part("first", part=(0, 2)), part("second", part=(1, 2)), part("whole")
    words = shutil.copytree(second, tmp_path / "words")
    manifest = json.loads((words / "corpus.json").read_text())
    manifest["tokenizer"]["sha256"] = "0" * 64
    (words / "corpus.json").write_text(
        json.dumps({**manifest, "sha256": compute_manifest_digest(manifest)})
    )
    for others, message in (
        ([], r" 0 of 2\..* 0 to 1 of 2"),
        ([first], "0 of 2.*0 of 2"),
        ([part("of3", part=(1, 3))], "0 of 2.*1 of 3"),
        ([whole], "whole.*`part`"),
        ([part("sizes", shard_tokens=99, part=(1, 2))], "shard_tokens.*100"),
        ([words], "tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            join(tmp_path / "joined", [first, *others], verbose=0)
    with pytest.raises(ValueError, match=r"another corpus: part was \[0, 2\].* \[1, 2\]"):
        part("first", part=(1, 2))
    with pytest.raises(ValueError, match=r"part is \(2, 2\)"):
        part("more", part=(2, 2))
    shard = second / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-2] + b"\0\0")
    with pytest.raises(ValueError, match="shard-00000.safetensors is damaged"):
        join(tmp_path / "joined", [first, second], verbose=0)


# -- which rows are made -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def shard():
    """300 documents; every token tells where it stands."""
    rng = np.random.default_rng(1)
    number = itertools.count()
    return Shard.create(
        [
            [
                [next(number) for _ in range(rng.integers(1, 30))]
                for _ in range(1 if d % 5 == 0 else rng.integers(2, 20))
            ]
            for d in range(300)
        ]
    )


def spans_of(made):
    return [made.spans[a:b].tolist() for a, b in itertools.pairwise(made.example_splits)]


def document_of(shard, token):
    sentence = np.searchsorted(shard.sentences, token, "right") - 1
    return int(np.searchsorted(shard.documents, sentence, "right") - 1)


@pytest.mark.parametrize("length", [16, 64, 512])
def test_full_sentences_fill_rows_across_documents(shard, length):
    """Liu et al. 2019, section 4.2: nothing is lost, and no further sentence would fit in."""
    made = examples.fill_with_sentences(shard, length)
    found = spans_of(made)
    assert [t for row in found for a, b in row for t in range(a, b)] == list(
        range(len(shard.tokens))
    )
    sizes = np.array([1 + sum(b - a + 1 for a, b in row) for row in found])
    np.testing.assert_array_equal(made.lengths, sizes)
    assert sizes.max() <= length
    for row, following in itertools.pairwise(found):
        for (_, end), (start, _) in itertools.pairwise(row):  # parted at documents alone
            assert document_of(shard, end - 1) + 1 == document_of(shard, start)
        assert all(document_of(shard, a) == document_of(shard, b - 1) for a, b in row)
        start = following[0][0]
        sentence = shard.sentences[np.searchsorted(shard.sentences, start, "right")] - start
        new = document_of(shard, start) != document_of(shard, start - 1)
        size = 1 + sum(b - a + 1 for a, b in row)
        assert size + min(sentence, length - 2) + new > length


def test_document_sentences_stay_in_their_document_and_fill_slots(shard):
    made = examples.fill_from_documents(shard, 512, random.Random(0))
    assert (np.diff(made.example_splits) == 1).all()
    spans = sorted(made.spans.tolist())
    assert [t for a, b in spans for t in range(a, b)] == list(range(len(shard.tokens)))
    assert all(document_of(shard, a) == document_of(shard, b - 1) for a, b in spans)
    slots = np.add.reduceat(made.lengths, made.slot_splits[:-1])
    assert slots.max() <= 512 and slots.mean() > 0.95 * 512 > made.lengths.mean()
    again = examples.fill_from_documents(shard, 512, random.Random(1))
    assert sorted(again.spans.tolist()) == spans and again.spans.tolist() != made.spans.tolist()


def segments(shard, **arguments):
    arguments = {"length": 64, "swapped": False, "short_share": 0.0, **arguments}
    made = examples.make_segment_pairs(shard, rng=random.Random(0), **arguments)
    assert made.lengths.max() <= arguments["length"]
    return made, list(zip(spans_of(made), made.labels.tolist(), strict=True))


def test_the_next_sentence_is_anothers_in_half_of_the_pairs(shard):
    """Devlin et al. 2019, appendix A.2."""
    made, pairs = segments(shard)
    splits = set(shard.sentences.tolist())
    chances = 0
    for ((a, b), (c, d)), label in pairs:
        same = document_of(shard, a) == document_of(shard, d - 1)
        assert same == (label == 0)
        assert document_of(shard, c) == document_of(shard, d - 1)
        if (b - a) + (d - c) < 61:  # not shortened: whole sentences
            assert {a, b, c, d} <= splits
            assert label or b == c
        chances += label
    # A chunk of a single sentence has no choice: as the last of a document, or as a whole one.
    assert 0.5 < made.labels.mean() < 0.75
    # No sentence is lost: what was to follow a random pair comes later.
    begun = {a for ((a, _), _), _ in pairs}
    firsts = shard.sentences[shard.documents[:-1]].tolist()
    shortened = [a for ((a, b), (c, d)), _ in pairs if (b - a) + (d - c) == 61]
    assert len(set(firsts) - begun) <= len(shortened)


def test_half_of_alberts_pairs_are_swapped(shard):
    """Lan et al. 2020, section 3.1: both segments are of one document and follow each other."""
    made, pairs = segments(shard, swapped=True)
    for ((a, b), (c, d)), label in pairs:
        if label:
            a, b, c, d = c, d, a, b
        assert a < b <= c < d and document_of(shard, a) == document_of(shard, d - 1)
        assert b == c or (b - a) + (d - c) == 61
    assert abs(made.labels.mean() - 0.5) < 4 * 0.5 / len(pairs) ** 0.5


def test_pairs_fill_their_rows_and_a_share_is_shorter():
    shard = Shard.create([[[7] * 5] * 2000, [[8] * 5] * 2000])
    made, _ = segments(shard)
    # All but those whose second segment is from the end of a document.
    assert (made.lengths < 63).mean() < 0.03 and made.lengths.max() == 64
    made, pairs = segments(shard, short_share=0.3)
    short = (made.lengths < 60).mean()
    # Of those for 2 up to 61 tokens, few fill the row all the same.
    assert abs(short - 0.3 * 55 / 60) < 4 * (0.21 / len(pairs)) ** 0.5


def test_what_is_too_long_is_cut_token_by_token_from_the_longer_segment():
    """As `truncate_seq_pair` of the released code, at front and end by chance."""
    rng, fronts = random.Random(0), []
    for _ in range(500):
        lengths = [rng.randint(1, 40), rng.randint(1, 40)]
        room = rng.randint(2, 50)
        wanted = list(lengths)
        while sum(wanted) > room:
            wanted[0 if wanted[0] > wanted[1] else 1] -= 1
        given = (100, 100 + lengths[0]), (200, 200 + lengths[1])
        found = examples._truncate_pair(*given, room, rng)
        assert [b - a for a, b in found] == wanted
        for (a, b), (c, d) in zip(found, given, strict=True):
            assert c <= a < b <= d
            fronts += [(a - c) / (d - c - (b - a))] if d - c > b - a else []
    assert abs(np.mean(fronts) - 0.5) < 0.05


def test_a_single_document_has_real_pairs_only():
    _, pairs = segments(Shard.create([[[7] * 9] * 50]))
    assert pairs and not any(label for _, label in pairs)


# -- in which order ----------------------------------------------------------------------------


def full(shard, rng):
    return examples.fill_with_sentences(shard, 16)


def pairs(shard, rng):
    return examples.make_segment_pairs(shard, 16, False, 0.1, rng)


def keys(slots):
    return [(shard.tokens.tobytes(), made.spans.tobytes(), slot) for shard, made, slot in slots]


def test_every_pass_has_every_row_once_in_another_order(corpus, monkeypatch):
    monkeypatch.setattr(reading, "WINDOW_FILES", 3)
    reader = Reader(corpus, full, seed=5)
    count = reader.count()
    stream = keys(itertools.islice(reader.iterate_shuffled(), 2 * count))
    ordered = keys(reader.read_in_order())
    assert len(set(ordered)) == count
    first, second = stream[:count], stream[count:]
    assert sorted(first) == sorted(second) == sorted(ordered)
    assert first != second and first != ordered
    assert keys(itertools.islice(Reader(corpus, full, 6).iterate_shuffled(), count)) != first


def test_a_place_is_found_again_without_planning_what_is_done(corpus, monkeypatch):
    monkeypatch.setattr(reading, "WINDOW_FILES", 3)
    reader = Reader(corpus, pairs, seed=5)
    count = reader.count()
    stream = keys(itertools.islice(reader.iterate_shuffled(), 4 * count))
    for done in (1, count, 3 * count + 7):
        rest = Reader(corpus, pairs, 5).iterate_shuffled(done)
        assert keys(itertools.islice(rest, 20)) == stream[done : done + 20]
    planned = []

    def noted(shard, rng):
        planned.append(shard)
        return pairs(shard, rng)

    windows = json.loads(json.dumps(reader.windows))
    rest = Reader(corpus, noted, 5, windows).iterate_shuffled(3 * count + 7)
    assert keys(itertools.islice(rest, 20)) == stream[3 * count + 7 :][:20]
    assert len(planned) <= 3 * 3  # of 3 shards each: the window, the one behind it, and a further


@pytest.mark.slow
def test_workers_read_the_parts_of_each_batch(corpus, tokenizer):
    preprocessor = ez.MaskedLMPreprocessor(tokenizer, 16)

    def token_ids(worker):
        def masked(rows, seed):
            return preprocessor.collate(rows, seed)[0]["token_ids"]

        maker = types.SimpleNamespace(
            preprocessor=preprocessor, worker=worker, collate=lambda: masked
        )
        data = corpus.make_training_data(Plan(8, steps_per_epoch=5), maker)
        return [batch.numpy().tolist() for batch in data.make_batches(3).take(4)]

    whole, parts = token_ids((0, 1)), [token_ids((n, 3)) for n in range(3)]
    assert [len(batch) for batch in whole] == [8] * 4
    assert MASK in np.array(whole)
    for step, batch in enumerate(whole):
        assert [len(part[step]) for part in parts] == [2, 3, 3]
        assert [row for part in parts for row in part[step]] == batch  # masked alike, too


def test_rows_are_laid_out_as_the_preprocessor_lays_out_texts(tokenizer, tmp_path):
    given = [["the cat sat", "a dog"], ["his film ran away"]]
    corpus = ez.PretrainingCorpus.from_documents(tmp_path / "c", given, tokenizer, verbose=0)
    shard = corpus.open_shard(0)
    pair = examples.ShardExamples(
        np.array([[0, 3], [3, 5]]), np.array([0, 2]), np.array([0]), np.array([0, 1])
    )
    found = read_examples([(shard, pair, 0)], tokenizer, len(TOKENS))
    expected = ez.SequenceClassifierPreprocessor(tokenizer).encode((["the cat sat"], ["a dog"]))
    assert found["token_ids"].tolist() == expected["token_ids"].to_list()[0]
    assert found["first_length"].tolist() == expected["first_length"].numpy().tolist()
    assert found["labels"].tolist() == [0]
    slots = [(shard, examples.fill_with_sentences(shard, 32), 0)]
    row = read_examples(slots, tokenizer, len(TOKENS))
    words = "[CLS] the cat sat a dog [SEP] his film ran away [SEP]".split()
    assert [TOKENS[i] for i in row["token_ids"]] == words
    assert row["first_length"].tolist() == [len(words)]
