# %% [markdown]
"""
Title: Answer more texts than fit into memory
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Process files of any size, write Parquet files, and continue after interruptions.
Accelerator: None

Processing millions of texts takes hours, and a machine can fail during this time. `ez.answer_files`
reads files row by row, processes a few thousand rows at a time, and writes predictions to Parquet
files. It requires `pip install pyarrow`.

    python guides/many_texts.py

This command classifies the review sentences in this folder (UCI "Sentiment Labelled Sentences", CC
BY 4.0). The process is killed before it has finished. A second process then continues, and the
predictions are read. For your own files, run for example:

    python guides/many_texts.py "reviews/*.jsonl" answers --columns body --keep id
    python guides/many_texts.py texts.txt.gz vectors --task TextEmbedder \\
        --preset bert_nano_en_uncased_embedder
"""

# %%
import argparse
import os
import pathlib
import signal
import subprocess
import sys
import time

import pyarrow.dataset

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent

# %% [markdown]
"""
## One call

All rows are read and checked first. An error with the file, the row and the line is raised for
invalid JSON, for missing fields, and for numbers instead of texts. If a row has no text, its
prediction is null. The progress is logged.

Predictions are written to shards (`00000.parquet` and so on) in the original row order. A shard is
written atomically, so it can never be incomplete. After an interruption, the same call will
continue with the first missing shard. Checksums for the files, the model and the settings are used
to make sure that two different runs are not mixed.
"""


# %%
def answer(options: argparse.Namespace) -> None:
    """Answer the rows of files."""
    task = getattr(ez, options.task).from_preset(options.preset)
    ez.answer_files(
        task,
        options.texts,
        options.answers,
        columns=options.columns,
        keep=options.keep,
        shard_rows=options.shard_rows,
        batch_size=64,
    )


# %% [markdown]
"""
## Kill and restart
"""


# %%
def kill_in_the_middle(arguments: list[str], answers: pathlib.Path) -> None:
    """Run this program in a process that is killed when it has written two shards."""
    process = subprocess.Popen([sys.executable, __file__, *arguments])
    while len(list(answers.glob("*.parquet"))) < 2 and process.poll() is None:
        time.sleep(0.01)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    print(f"killed after {len(list(answers.glob('*.parquet')))} shards", flush=True)


# %% [markdown]
"""
## Read the answers

The folder can be read as a single table in pandas, polars, DuckDB or Spark. Large tables should be
read in batches. Here, we print the first rows and count the labels.
"""


# %%
def show(answers: pathlib.Path) -> None:
    """Print some answers and the number of rows for each label."""
    dataset = pyarrow.dataset.dataset(answers)
    print(dataset.head(3).drop_columns(["file"]).to_pylist())
    counts = {}
    for batch in dataset.to_batches(columns=dataset.schema.names[-2:-1]):
        for entry in batch.column(0).value_counts().to_pylist():
            counts[str(entry["values"])] = counts.get(str(entry["values"]), 0) + entry["counts"]
    rows = dataset.to_table(columns=["row"])["row"].to_pylist()
    print(f"{len(rows)} rows, each once and in order: {rows == list(range(len(rows)))}")
    print(dict(list(counts.items())[:5]))


# %%
def main() -> None:
    parser = argparse.ArgumentParser(description="Answers the texts of files of any size.")
    parser.add_argument("texts", nargs="?", help="file, or pattern for several files")
    parser.add_argument("answers", nargs="?", help="folder to write to")
    parser.add_argument("--task", default="SequenceClassifier")
    parser.add_argument("--preset", default="bert_nano_en_uncased_sentiment")
    parser.add_argument("--columns", default="text", help="column with the texts")
    parser.add_argument("--keep", nargs="*", default=[], help="columns to copy")
    parser.add_argument("--shard-rows", type=int, default=100_000)
    options = parser.parse_args()
    if options.texts:
        return answer(options)

    answers = HERE / "output" / "answers"
    if answers.exists():
        for path in answers.iterdir():
            path.unlink()
    sentences = str(HERE / "data" / "sentiment_sentences.tsv")
    arguments = [sentences, str(answers), "--columns", "sentence", "--keep", "source"]
    arguments += ["--shard-rows", "500"]
    kill_in_the_middle(arguments, answers)
    answer(parser.parse_args(arguments))
    show(answers)


if __name__ == "__main__":
    main()
