# %% [markdown]
"""
Title: Many texts on several machines
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Ray Data spreads the texts over workers, each of which loads the model once.
Accelerator: None

    pip install "ray[data]" && python guides/many_texts_on_ray.py

starts a Ray cluster of two workers on this machine, classifies the review sentences beside this
file (UCI "Sentiment Labelled Sentences", CC BY 4.0) with the bundled classifier, and compares the
answers with those of one process. On a cluster of machines `ray.init(address="auto")` is what
changes. `ez.answer_files` does the same on one machine, see the guide on many texts, and goes on
after a kill.
"""

# %%
import collections
import functools
import pathlib
import tempfile

import ray

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
WORKERS = 2

# %% [markdown]
"""
## One line for the engine

`ez.BatchAnswers` is a function of batches of columns: it adds those of the answers. Ray makes one
in each worker, which calls `open_classifier` once, and gives it one batch after the other. Types of
the columns are the same in all batches.
"""

# %%
open_classifier = functools.partial(
    ez.SequenceClassifier.from_preset, "bert_nano_en_uncased_sentiment"
)


def classified(sentences: ray.data.Dataset) -> ray.data.Dataset:
    """Return a dataset with the columns "label" and "score" added."""
    return sentences.map_batches(
        ez.BatchAnswers,
        fn_constructor_args=[open_classifier],
        fn_constructor_kwargs={"columns": "sentence"},
        compute=ray.data.ActorPoolStrategy(size=WORKERS),
        batch_size=256,
    )


# %% [markdown]
"""
## Run it

Ray reads Parquet, CSV, JSON and more, from disks and from object stores, writes Parquet, and starts
a batch again whose worker died.
"""


# %%
def main() -> None:
    lines = (HERE / "data" / "sentiment_sentences.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t")[2] for line in lines[1:]]
    rows = [{"row": i, "sentence": text} for i, text in enumerate(texts)]
    ray.init(num_cpus=WORKERS + 1, include_dashboard=False)  # one reads and writes
    with tempfile.TemporaryDirectory() as folder:
        sentences = ray.data.from_items(rows, override_num_blocks=8)
        classified(sentences).write_parquet(folder)
        table = ray.data.read_parquet(folder).to_pandas().sort_values("row")
    ray.shutdown()
    print(table[["row", "sentence", "label", "score"]].head())

    classifier = open_classifier()
    alone = [answer["label"] for answer in classifier.classify(texts)]
    once = table["row"].tolist() == list(range(len(rows)))
    print(f"{len(table)} rows of {len(rows)}, each once: {once}")
    print(f"labels as in one process: {table['label'].tolist() == alone}")
    print(collections.Counter(alone))


if __name__ == "__main__":
    main()
