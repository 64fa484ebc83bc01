"""Answers to files of any size: what is read, written, continued after a kill, refused."""

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
import types
from typing import TypedDict

import numpy as np
import processes
import pytest
from not_installed import hide

import encoder_zoo as ez
from encoder_zoo.common.validation import PositiveInt
from encoder_zoo.extras.bulk import columns, files
from encoder_zoo.extras.bulk.rows import find_files
from encoder_zoo.presets.files.manifest import compute_manifest_digest

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


class Reversing:
    """A task that answers with the texts turned round."""

    record = types.SimpleNamespace(text_method="classify", answer_type=None)
    cpu_model = None
    weights = ()
    backbone = types.SimpleNamespace(get_config=dict)
    preprocessor = types.SimpleNamespace(
        get_config=dict, tokenizer=types.SimpleNamespace(get_config=dict)
    )

    def __init__(self, setting=0, fails_at=None):
        self.setting, self.fails_at, self.calls = setting, fails_at, []

    def get_config(self):
        return {"setting": self.setting}

    def classify(self, texts, top_k: PositiveInt | None = None):
        self.calls.append(len(texts))
        if len(self.calls) == self.fails_at:
            raise InterruptedError
        return [{"label": text[::-1], "score": len(text) / 2} for text in texts]

    def compare(self, first, second):
        return np.float32([len(a) - len(b) for a, b in zip(first, second, strict=True)])

    def embed(self, texts):
        return np.float32([[len(text), 1] for text in texts])

    def find(self, texts):
        return [[{"label": "A", "start": text.index("a")}] if "a" in text else [] for text in texts]

    def tag(self, pairs):
        return [np.full((len(a), 2), len(b), "float32") for a, b in zip(*pairs, strict=True)]


ROWS = [{"id": i, "text": f"text\n{i}, ä" if i % 3 else f'"{i}" a', "b": "x"} for i in range(40)]


def written(folder, kind, rows=ROWS):
    """A file of rows."""
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        parquet.write_table(
            pa.Table.from_pylist(rows), path, row_group_size=max(7, len(rows) // 100)
        )
    elif kind.startswith("jsonl"):
        lines = "".join(json.dumps(row) + "\n\n" for row in rows).encode()
        path.write_bytes(gzip.compress(lines) if kind.endswith("gz") else lines)
    else:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz", "csv"])
def test_every_row_has_its_answer_in_order(tmp_path, kind, capsys):
    path, task = written(tmp_path, kind), Reversing()
    shards = ez.answer_files(task, path, tmp_path / "out", keep=["id"], shard_rows=15)
    assert [shard.name for shard in shards] == ["00000.parquet", "00001.parquet", "00002.parquet"]
    found = parquet.read_table(tmp_path / "out")
    assert found.column_names == ["file", "row", "id", "label", "score"]
    ids = [str(row["id"]) if kind == "csv" else row["id"] for row in ROWS]
    assert found["id"].to_pylist() == ids and found["row"].to_pylist() == list(range(40))
    assert found["label"].to_pylist() == [row["text"][::-1] for row in ROWS]
    assert "40 of 40 rows" in capsys.readouterr().out
    # A finished run is not made again.
    times = [shard.stat().st_mtime_ns for shard in shards]
    again = ez.answer_files(Reversing(), path, tmp_path / "out", keep=["id"], shard_rows=15)
    assert [shard.stat().st_mtime_ns for shard in again] == times
    assert capsys.readouterr().out == ""


def test_lines_of_several_files_are_rows(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo \n\nfour".encode())
    with gzip.open(tmp_path / "b.txt.gz", "wt", encoding="utf-8") as file:
        file.write("five\n")
    (tmp_path / "c.tsv").write_text('id\ttext\n1\t"six\n')
    (tmp_path / "dump.tsv.csv").write_text('id,text\n1,"seven, "\n')  # the last ending counts
    given = [tmp_path / "*.txt*", tmp_path / "c.tsv", tmp_path / "dump.tsv.csv"]
    ez.answer_files(Reversing(), given, tmp_path / "out", shard_rows=3, verbose=0)
    found = parquet.read_table(tmp_path / "out")
    assert found["label"].to_pylist() == ["eno", " owt", None, "ruof", "evif", 'xis"', " ,neves"]
    assert found["row"].to_pylist() == [0, 1, 2, 3, 0, 0, 0]
    names = [os.path.basename(name) for name in found["file"].to_pylist()]
    assert names == ["a.txt"] * 4 + ["b.txt.gz", "c.tsv", "dump.tsv.csv"]


def test_a_pattern_of_folders_finds_every_file_once(tmp_path):
    for name in ("b.txt", "a/c.txt", "a/b/d.txt"):
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).write_text(name)
    expected = [tmp_path / "t" / name for name in ("a/b/d.txt", "a/c.txt", "b.txt")]
    assert find_files(str(tmp_path / "t/**/*.txt")) == expected
    assert find_files(tmp_path / "t/**") == expected
    again = [tmp_path / "t/b.txt", tmp_path / "t/**/*.txt", tmp_path / "t/a/*.txt"]
    assert find_files(again) == [expected[2], *expected[:2]]


def test_columns_become_the_arguments_of_a_method(tmp_path):
    path, task = written(tmp_path, "jsonl"), Reversing()
    arguments = {"second": "b", "first": "text"}
    ez.answer_files(task, path, tmp_path / "c", columns=arguments, method="compare", verbose=0)
    lengths = [len(row["text"]) - 1 for row in ROWS]
    assert parquet.read_table(tmp_path / "c")["answer"].to_pylist() == lengths
    ez.answer_files(task, path, tmp_path / "t", columns=["text", "b"], method="tag", verbose=0)
    found = parquet.read_table(tmp_path / "t")["answer"].to_pylist()
    assert found == [[[1.0, 1.0]] * len(row["text"]) for row in ROWS]
    ez.answer_files(task, path, tmp_path / "e", method="embed", verbose=0)
    table = parquet.read_table(tmp_path / "e")
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 2)
    assert table["embedding"].to_pylist() == [[len(row["text"]), 1] for row in ROWS]


def test_lists_have_one_type_also_where_all_are_empty(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join("b\n" if i < 20 else "ba\n" for i in range(30)))
    task = Reversing()
    task.record = types.SimpleNamespace(
        answer_type=TypedDict("Found", {"label": str, "start": int})
    )
    ez.answer_files(task, path, tmp_path / "out", method="find", shard_rows=10, verbose=0)
    found = parquet.read_table(tmp_path / "out")["answer"].to_pylist()
    assert found == [[]] * 20 + [[{"label": "A", "start": 1}]] * 10


def test_rows_without_text_have_null(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(files, "CHUNK_ROWS", 2)
    texts = [None, " ", "", None, "a", "b", None]
    path = written(
        tmp_path, "jsonl", [{"text": text, "n": i or None} for i, text in enumerate(texts)]
    )
    ez.answer_files(Reversing(), path, tmp_path / "out", keep=["n"], shard_rows=3, verbose=0)
    found = parquet.read_table(tmp_path / "out")
    assert found["label"].to_pylist() == [None] * 4 + ["a", "b", None]
    assert found["n"].to_pylist() == [None, 1, 2, 3, 4, 5, 6]
    assert "5 of 7 rows have no text" in caplog.text
    path.write_text('{"text": ""}\n')
    with pytest.raises(ValueError, match="rows.jsonl"):
        ez.answer_files(Reversing(), path, tmp_path / "new")


def test_an_interrupted_run_goes_on_with_the_next_shard(tmp_path, monkeypatch):
    path = written(tmp_path, "csv")
    ez.answer_files(Reversing(), path, tmp_path / "whole", shard_rows=10, verbose=0)
    task = Reversing(fails_at=4)  # the first call finds out the columns
    with pytest.raises(InterruptedError):
        ez.answer_files(task, path, tmp_path / "out", shard_rows=10, verbose=0)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "00000.parquet",
        "00001.parquet",
        "_answers.json",
    ]
    (tmp_path / "out" / "00000.parquet").write_bytes(b"PAR1 cut off")
    task = Reversing()
    shards = ez.answer_files(task, path, tmp_path / "out", shard_rows=10, verbose=0)
    assert task.calls == [10, 10, 10]  # without the second
    for shard in shards:
        assert shard.read_bytes() == (tmp_path / "whole" / shard.name).read_bytes()


def replaced(path, other):
    new = path.with_name("new")
    new.write_text(other)
    os.replace(new, path)


def overwritten(path, other):
    with open(path, "r+") as file:
        file.write(other)


def dated(path, other):
    """Overwritten, with the time of the last writing set back."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    overwritten(path, other)
    os.utime(path, ns=times)


def removed(path, other):
    path.unlink()


@pytest.mark.parametrize("change", [replaced, overwritten, dated, removed])
@pytest.mark.parametrize("number", [0, 1])  # of the file: that is read, and one to come
def test_a_file_that_changes_meanwhile_is_no_answer(tmp_path, change, number):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text("good film\n" * 20)
    task, changes = Reversing(), []
    answer = task.classify

    def classify(texts, top_k=None):
        if len(task.calls) == 2:  # the first finds out the columns
            change(paths[number], "bad movie\n" * 20)
            changes.append(1)
        return answer(texts)

    task.classify = classify
    with pytest.raises(ValueError, match=f"{paths[number].name} was changed while it was read"):
        ez.answer_files(task, paths, tmp_path / "out", shard_rows=10, verbose=0)
    assert changes and [path.name for path in (tmp_path / "out").glob("*.parquet")] == [
        "00000.parquet"  # of before
    ]
    if change is not removed:
        with pytest.raises(ValueError, match="another run: files"):
            ez.answer_files(Reversing(), paths, tmp_path / "out", verbose=0, shard_rows=10)
    paths[number].write_text("good film\n" * 20)  # as it was
    shards = ez.answer_files(Reversing(), paths, tmp_path / "out", shard_rows=10, verbose=0)
    assert set(pa.concat_tables(map(parquet.read_table, shards))["label"].to_pylist()) == {
        "mlif doog"
    }


@pytest.mark.parametrize(
    "changed",
    [{"rows": [-1]}, {"rows": [2.5]}, {"rows": [10, 30]}, {"rows": None}, {"schema": "AAAA"}],
)
def test_a_description_that_cannot_be_is_damaged(tmp_path, changed):
    path, out = written(tmp_path, "csv"), tmp_path / "out"
    ez.answer_files(Reversing(), path, out, verbose=0)
    description = {**json.loads((out / "_answers.json").read_text()), **changed}
    (out / "_answers.json").write_text(
        json.dumps({**description, "sha256": compute_manifest_digest(description)})
    )
    with pytest.raises(ValueError, match="_answers.json is damaged. Write to another folder"):
        ez.answer_files(Reversing(), path, out, verbose=0)


def test_rows_behind_those_that_are_said_to_be_all_are_not_left_out(tmp_path):
    path, out = written(tmp_path, "csv"), tmp_path / "out"
    [shard] = ez.answer_files(Reversing(), path, out, verbose=0)
    description = {**json.loads((out / "_answers.json").read_text()), "rows": [3]}
    (out / "_answers.json").write_text(
        json.dumps({**description, "sha256": compute_manifest_digest(description)})
    )
    shard.unlink()
    with pytest.raises(ValueError, match="more rows than.* 3"):
        ez.answer_files(Reversing(), path, out, verbose=0)


def test_a_shard_with_a_broken_page_is_made_anew(tmp_path):
    path, out = written(tmp_path, "csv"), tmp_path / "out"
    [shard] = ez.answer_files(Reversing(), path, out, verbose=0)
    whole = shard.read_bytes()
    column = parquet.ParquetFile(shard).metadata.row_group(0).column(2)
    begin = column.dictionary_page_offset or column.data_page_offset
    broken = bytearray(whole)
    broken[begin + column.total_compressed_size - 3] ^= 1
    shard.write_bytes(broken)
    assert parquet.ParquetFile(shard).metadata.num_rows == len(ROWS)  # what its footer says
    ez.answer_files(Reversing(), path, out, verbose=0)
    assert shard.read_bytes() == whole


@pytest.mark.slow
def test_other_prompts_or_sizes_are_another_run(tmp_path):
    path, out = tmp_path / "a.txt", tmp_path / "out"
    path.write_text("good film\n")
    preset = "bert_nano_en_uncased_embedder"

    def answer(**arguments):
        embedder = ez.TextEmbedder.from_preset(preset, **arguments)
        return ez.answer_files(embedder, path, out, verbose=0)

    prompts = {"query": "query: ", "document": "text: "}
    answer(prompts=prompts, default_prompt="query")
    answer(prompts=prompts, default_prompt="query")  # is the same
    for other in (
        {"prompts": {**prompts, "query": "q: "}, "default_prompt": "query"},
        {"prompts": prompts, "default_prompt": "document"},
        {"prompts": prompts, "default_prompt": "query", "normalize": False},
        {"prompts": prompts, "default_prompt": "query", "dtype": "bfloat16"},
        {"prompts": prompts, "default_prompt": "query", "max_length": 8},
    ):
        with pytest.raises(ValueError, match="another run: model"):
            answer(**other)


def test_another_run_is_refused(tmp_path):
    path, out = written(tmp_path, "csv"), tmp_path / "out"
    ez.answer_files(Reversing(), path, out, verbose=0)
    for task, arguments, name in (
        (Reversing(1), {}, "model"),
        (Reversing(), {"method": "embed"}, "method.*classify.*embed"),
        (Reversing(), {"columns": "b"}, "columns.*text.*b"),
        (Reversing(), {"keep": ["id"]}, "keep"),
        (Reversing(), {"top_k": 2}, "options"),
        (Reversing(), {"shard_rows": 3}, "shard_rows.*100000.* 3"),
    ):
        with pytest.raises(ValueError, match=f"out.*another run: {name}"):
            ez.answer_files(task, path, out, **arguments)
    fast = Reversing()
    for dtype in ("float32", "int8"):
        fast.cpu_model = types.SimpleNamespace(identity=dtype)  # of for_cpu(dtype)
        with pytest.raises(ValueError, match="another run: model"):
            ez.answer_files(fast, path, out)
        ez.answer_files(fast, path, tmp_path / dtype, verbose=0)
    with pytest.raises(ValueError, match="another run: model"):
        ez.answer_files(fast, path, tmp_path / "float32")
    with open(path, "a") as file:
        file.write("41,more,x\r\n")
    with pytest.raises(ValueError, match="another run: files"):
        ez.answer_files(Reversing(), path, out)
    with pytest.raises(ValueError, match="other files"):
        ez.answer_files(Reversing(), path, tmp_path)
    (out / "_answers.json").write_text("{}")
    with pytest.raises(ValueError, match="_answers.json is damaged"):
        ez.answer_files(Reversing(), path, out)


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "a.jsonl",
            b'{"text": "a"}\n\n{"text": 7}\n',
            r"a\.jsonl, row 1 \(line 3\): 'text' is 7",
        ),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": "b \\ud800"}\n',
            r"row 1 \(line 2\): 'text' has the lone surrogate '\\ud800' at character 2",
        ),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text\n',
            r"row 1 \(line 2\) is not readable as JSON: Invalid",
        ),
        ("a.jsonl", b'{"text": "a"}\n[1]\n', r"row 1 \(line 2\) is \[1\]"),
        ("a.jsonl", b'{"txt": "a"}\n', r"row 0 \(line 1\) has no 'text', only txt"),
        (
            "a.csv",
            b"id,text\n1,a\n2\n",
            r"row 1 \(line 3\) has 1 fields",
        ),
        (
            "a.csv",
            b'id,text\n1,a\n2,"b\n',
            r"row 1 \(line 3\) cannot be read as CSV: unexpected end",
        ),
        ("a.csv", b"id,body\n1,a\n", r"a\.csv.*'text'.*id, body"),
        ("a.txt", b"a\n\xff\n", r"a\.txt.*line 2"),
        ("a.txt.gz", gzip.compress(b"a\n" * 99, mtime=0)[:-9], r"a\.txt\.gz is damaged"),
        ("a.parquet", b"PAR1PAR1", r"a\.parquet.*row 0.*Parquet"),
        ("a.doc", b"a", r"a\.doc.*\.txt, \.csv"),
    ],
)
def test_a_row_that_cannot_be_answered_is_named_before_any_work(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    task = Reversing()
    with pytest.raises(ValueError, match=message):
        ez.answer_files(task, tmp_path / name, tmp_path / "out")
    assert not task.calls and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1", "18446744073709551615"], r"row 1 \(line 2\): 'id' is 18446744073709551615, but"),
        (
            ["9007199254740993", "0.5"],
            r"row 0 \(line 1\): 'id' is 9007199254740993, .*double",
        ),
        (["0.5", "-9007199254740993"], r"row 1 \(line 2\): 'id' is -9007199254740993, .*double"),
    ],
)
def test_an_integer_that_a_kept_column_cannot_hold_is_named_before_any_work(
    tmp_path, lines, message
):
    task, path = Reversing(), tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "a", "id": {value}}}\n' for value in lines))
    with pytest.raises(ValueError, match=message):
        ez.answer_files(task, path, tmp_path / "out", keep=["id"])
    for name, value in zip("bc", lines, strict=True):  # in files of their own
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "a", "id": {value}}}\n')
    with pytest.raises(ValueError, match=r"\.jsonl, row 0 \(line 1\): 'id' is -?\d+"):
        ez.answer_files(task, tmp_path / "[bc].jsonl", tmp_path / "out", keep=["id"])
    assert not task.calls and not (tmp_path / "out").exists()


def test_integers_that_a_kept_column_holds_are_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    for name, ids in (("floats", [2**53, 0.5]), ("integers", [2**63 - 1, -(2**63)])):
        path.write_text("".join(json.dumps({"text": "a", "id": i}) + "\n" for i in ids))
        ez.answer_files(Reversing(), path, tmp_path / name, keep=["id"], verbose=0)
        assert parquet.read_table(tmp_path / name)["id"].to_pylist() == ids
    large = tmp_path / "large.parquet"
    table = pa.table({"text": ["a"], "id": pa.array([2**64 - 1], pa.uint64())})
    parquet.write_table(table, large)
    ez.answer_files(Reversing(), large, tmp_path / "large", keep=["id"], verbose=0)
    assert parquet.read_table(tmp_path / "large")["id"].to_pylist() == [2**64 - 1]
    with pytest.raises(ValueError, match=r"row 0: 'id' is 18446744073709551615, .*int64"):
        ez.answer_files(Reversing(), [path, large], tmp_path / "both", keep=["id"])


def test_arguments_are_checked_before_any_work(tmp_path):
    path, task = written(tmp_path, "jsonl"), Reversing()
    for arguments, message in (
        ({"method": "clasify"}, "Reversing has no method .clasify"),
        ({"topk": 3}, "classify.* .*'topk'"),
        ({"method": "compare"}, "compare.*missing.*'second'"),
        ({"top_k": 0}, "top_k is 0"),
        ({"keep": ["row"]}, "keep.*is"),
        ({"keep": ["no"]}, "has no 'no', only id, text, b"),
        ({"columns": 7}, "columns is 7"),
    ):
        with pytest.raises(ValueError, match=message):
            ez.answer_files(task, path, tmp_path / "out", **arguments)
    with pytest.raises(FileNotFoundError, match=r"none\*\.txt"):
        ez.answer_files(task, tmp_path / "none*.txt", tmp_path / "out")
    mixed = written(tmp_path, "jsonl", [{"text": "a", "n": 1}, {"text": "b", "n": "x"}])
    with pytest.raises(ValueError, match="'n'.*int and str"):
        ez.answer_files(task, mixed, tmp_path / "out", keep=["n"])
    with pytest.raises(ValueError, match="keep.*is.*label, score"):
        path = written(tmp_path, "csv", [{"text": "a", "label": 1}])
        ez.answer_files(task, path, tmp_path / "out", keep=["label"])


def test_a_missing_pyarrow_is_named_before_any_work(tmp_path, monkeypatch):
    hide(monkeypatch, columns.pa)
    with pytest.raises(ImportError, match="needs the package pyarrow: `pip install pyarrow`"):
        ez.answer_files(Reversing(), tmp_path / "none.txt", tmp_path / "out")


# -- batches -----------------------------------------------------------------------------------


def test_batches_of_any_table_get_the_answers_columns():
    pandas = pytest.importorskip("pandas")
    given = {"id": [1, 2, 3], "text": ["ab", None, "c"]}
    opened = []
    answers = ez.BatchAnswers(lambda: opened.append(1) or Reversing())
    arrays = {name: np.array(values, object) for name, values in given.items()}
    expected = {**given, "label": ["ba", None, "c"], "score": [1.0, None, 0.5]}
    for batch in (given, arrays, pa.table(given), pandas.DataFrame(given)):
        found = answers(batch).to_pydict()
        assert [found[name] for name in ("text", "label")] == [given["text"], expected["label"]]
        assert list(found) == list(expected)
    assert opened == [1]
    with pytest.raises(ValueError, match=r"Row 0: 'text' is 6"):
        answers({"text": [6, 7]})


def test_a_batch_without_text_has_the_columns_of_the_others():
    task = Reversing()
    answers = ez.BatchAnswers(task)
    empty = answers({"text": np.array([" ", ""])})
    assert empty.column_names == ["text", "label", "score"]
    assert empty["label"].to_pylist() == empty["score"].to_pylist() == [None, None]
    assert answers({"text": []}).num_rows == 0
    assert task.calls == [1]  # the schema is learned once
    assert empty.schema == answers({"text": np.array(["ab"])}).schema
    after = ez.BatchAnswers(task)
    after({"text": ["ab"]})
    assert after({"text": pa.array([None], pa.string())}).schema == empty.schema
    assert task.calls == [1, 1, 1]


def test_batches_have_no_progress_bars_of_their_own():
    asked = []

    class Talking(Reversing):
        def embed(self, texts, verbose="auto"):
            asked.append(verbose)
            return super().embed(texts)

    ez.BatchAnswers(Talking(), method="embed")({"text": ["ab"]})
    assert {*asked} == {0}


def test_a_column_of_the_batch_is_not_overwritten():
    answers = ez.BatchAnswers(Reversing())
    message = "column 'label', .*label, score. Rename"
    for text in ("ab", " "):
        with pytest.raises(ValueError, match=message):
            answers({"text": [text], "label": [1]})


@pytest.mark.slow(except_for="^TextEmbedder")
@pytest.mark.parametrize(
    ("name", "columns", "batch"),
    [
        ("MaskedLM", "text", {"text": ["a [MASK] b"]}),
        ("TextEmbedder", "text", {"text": ["a"]}),
        (
            "MultipleChoice",
            {"questions": "q", "choices": "c"},
            {"q": ["Who?"], "c": [["He.", "She."]]},
        ),
    ],
)
def test_tasks_answer_batches_without_text_with_their_columns(name, columns, batch):
    task = getattr(ez, name).from_preset("bert_nano_en_uncased")
    batch = pa.table(batch)
    expected = ez.BatchAnswers(task, columns)(batch)
    blank = pa.table([pa.nulls(2, field.type) for field in batch.schema], schema=batch.schema)
    found = ez.BatchAnswers(task, columns)(blank)
    assert found.schema == expected.schema
    assert all(found[n].null_count == 2 for n in found.column_names)


def test_sparse_vectors_are_lists_of_their_entries():
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix(np.float32([[0, 2, 0], [0, 0, 0], [1, 0, 3]]))
    found = columns.make_answer_columns(matrix, "embed")["embedding"].to_pylist()
    assert [[tuple(entry.values()) for entry in row] for row in found] == [
        [(1, 2.0)],
        [],
        [(0, 1.0), (2, 3.0)],
    ]


# -- real models -------------------------------------------------------------------------------

TEXTS = ["A wonderful movie!", "", "Anna Smith lives in Paris.", "Bad. " * 40, "The food was cold."]


@pytest.mark.slow
def test_answers_are_those_of_the_task_in_memory(tmp_path):
    classifier = ez.Classifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    path = tmp_path / "a.txt"
    path.write_text("\n".join(TEXTS * 3))
    ez.answer_files(classifier, path, tmp_path / "out", shard_rows=8, verbose=0)
    found = parquet.read_table(tmp_path / "out").to_pylist()
    texts = [text for text in TEXTS * 3 if text]
    expected = classifier.classify(texts)
    answers = [row for row in found if row["label"] is not None]
    assert [row["label"] for row in answers] == [answer["label"] for answer in expected]
    scores = [[row["score"] for row in rows] for rows in (answers, expected)]
    np.testing.assert_allclose(*scores, atol=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
def test_every_task_answers_files(tmp_path):
    rows = [{"text": text or "x", "second": "Who?", "choices": ["a", "b c"]} for text in TEXTS]
    path = written(tmp_path, "jsonl", rows)
    qa = {"question": "second", "context": "text"}
    choices = {"questions": "text", "choices": "choices"}
    nli = ["contradiction", "neutral", "entailment"]
    cases = [
        ("TextEmbedder", {}, {}, "embedding"),
        ("TokenClassifier", {"labels": ["O", "B-X"]}, {}, "entities"),
        ("SpanQA", {}, {"columns": qa}, "start"),
        ("Reranker", {}, {"columns": ["second", "text"]}, "score"),
        ("MultipleChoice", {}, {"columns": choices}, "index"),
        ("ZeroShotClassifier", {"labels": nli}, {"labels": ["food", "art"]}, "label"),
        ("Classifier", {"num_classes": 2}, {"method": "predict"}, "output"),
    ]
    for name, arguments, options, column in cases:
        task = getattr(ez, name).from_preset("bert_nano_en_uncased", **arguments)
        ez.answer_files(task, path, tmp_path / name, shard_rows=3, verbose=0, **options)
        found = parquet.read_table(tmp_path / name)
        assert len(found[column]) == 5 and found[column].null_count == 0, name


# Answers texts and dies in the middle, if it is told to, by SIGKILL.
SCRIPT = """
import os, signal, sys
import encoder_zoo as ez

path, out, dies_at = sys.argv[1:]
classifier = ez.Classifier.from_preset("bert_nano_en_uncased_sentiment")
classify, calls = classifier.classify, []


def counted(texts, **options):
    calls.append(len(texts))
    if len(calls) == int(dies_at):
        os.kill(os.getpid(), signal.SIGKILL)
    return classify(texts, **options)


classifier.classify = counted
ez.answer_files(classifier, path, out, shard_rows=100)
"""


@pytest.fixture(scope="module")
def classifier():
    """The task of `SCRIPT`, with which this process goes on where a killed one stopped."""
    return ez.Classifier.from_preset("bert_nano_en_uncased_sentiment")


@pytest.mark.matrix
@pytest.mark.slow
def test_a_killed_run_goes_on_and_loses_nothing(tmp_path, classifier, monkeypatch):
    rng = np.random.default_rng(0)
    words = "good bad food movie was the never again great phone".split()
    texts = [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(450)]
    path, out = tmp_path / "texts.txt", tmp_path / "out"
    path.write_text("\n".join(texts))
    ez.answer_files(classifier, path, tmp_path / "whole", shard_rows=100, verbose=0)
    killed = subprocess.run([sys.executable, "-c", SCRIPT, path, out, "4"], timeout=1800)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(out.glob("*.parquet"))) == 2
    assert list(out.glob(".*.saving-*"))  # what it was writing
    classify, calls = classifier.classify, []

    def counted(texts, **options):
        calls.append(len(texts))
        return classify(texts, **options)

    monkeypatch.setattr(classifier, "classify", counted)
    ez.answer_files(classifier, path, out, shard_rows=100, verbose=0)
    assert calls == [100, 100, 50]
    tables = [parquet.read_table(tmp_path / name) for name in ("whole", "out")]
    assert tables[0].equals(tables[1]) and tables[0]["row"].to_pylist() == list(range(450))
    assert not list(out.glob(".*"))


@pytest.mark.matrix
@pytest.mark.slow
def test_a_process_killed_at_any_moment_goes_on(tmp_path, classifier):
    path, out = tmp_path / "texts.txt", tmp_path / "out"
    path.write_text("".join(f"text {i}\n" for i in range(10_000)))
    script = SCRIPT.replace("100)", "500)")
    process = subprocess.Popen([sys.executable, "-c", script, path, out, "0"])
    limit = time.monotonic() + 600
    while len(list(out.glob("*.parquet"))) < 3 and time.monotonic() < limit:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(list(out.glob("*.parquet"))) < 20
    ez.answer_files(classifier, path, out, shard_rows=500, verbose=0)
    assert parquet.read_table(out)["row"].to_pylist() == list(range(10_000))


# Answers a small and a large file of each kind with 1 MB at a time, and prints the peak of memory
# after each in KB. Each kind has a process of its own, so that peaks of others do not hide its own.
MEMORY = """
import os, sys
sys.path.insert(0, sys.argv[1])
import encoder_zoo as ez
from encoder_zoo.extras.bulk import columns, files
from encoder_zoo.extras.bulk.rows import find_files
from test_many_texts import Reversing

files.CHUNK_CHARACTERS = 2**20
for kind in sys.argv[3:]:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    for size in ("small", "large"):
        path, out = f"{sys.argv[2]}/{size}/rows.{kind}", f"{sys.argv[2]}/{size}/{kind}"
        ez.answer_files(Reversing(), path, out, method="embed", keep=["id"], verbose=0)
        with open("/proc/self/status") as status:  # ru_maxrss begins with that of the parent
            peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
        print(kind, size, peak, flush=True)
    os._exit(0)
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    kinds = ("jsonl", "parquet")
    rng = np.random.default_rng(0)
    noise = [rng.bytes(2000).hex() for _ in range(100)]
    for name, count in (("small", 12_500), ("large", 50_000)):  # 50 MB and 200 MB
        (tmp_path / name).mkdir()
        rows = [{"id": i, "text": noise[i % 100]} for i in range(count)]
        for kind in kinds:
            written(tmp_path / name, kind, rows)
    lines = processes.run(MEMORY, os.path.dirname(__file__), tmp_path, *kinds).splitlines()
    peaks = {(kind, size): int(peak) for kind, size, peak in map(str.split, lines)}
    assert len(peaks) == 4
    for kind in kinds:
        assert peaks[kind, "large"] - peaks[kind, "small"] < 75_000, peaks


def test_a_single_column_is_kept_by_its_name_and_a_file_is_no_folder(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"id": 7, "text": "a"}\n')
    answer = ez.answer_files(Reversing(), path, tmp_path / "out", keep="id", verbose=0)
    assert parquet.read_table(answer[0]).column("id").to_pylist() == [7]
    for name in ("out.parquet", "out.jsonl", "out.csv"):
        with pytest.raises(ValueError, match="folder. is.*'out'"):
            ez.answer_files(Reversing(), path, tmp_path / name, verbose=0)
        assert not (tmp_path / name).exists()
    with pytest.raises(ValueError, match="other than 'file' and 'row'"):
        ez.answer_files(Reversing(), path, tmp_path / "out", keep="row", verbose=0)
