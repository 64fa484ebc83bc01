# %% [markdown]
"""
Title: Many texts on several machines
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Distribute texts over several workers with Ray Data.
Accelerator: None

    pip install "ray[data]" && python guides/many_texts_on_ray.py

This command starts a Ray cluster with two workers on this machine. It classifies the review
sentences in this folder (UCI "Sentiment Labelled Sentences", CC BY 4.0) with the bundled
classifier, and compares the predictions with a single process. For a cluster of machines, use
`ray.init(address="auto")`. For a single machine, `ez.answer_files` is easier to use and can
continue after an interruption, see the guide on many texts.
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

`ez.BatchAnswers` takes a batch and adds columns with predictions. Ray creates an instance in each
worker. This instance calls `open_classifier` once and then processes batches. Column types are the
same for all batches.
"""

# %%
open_classifier = functools.partial(
    ez.SequenceClassifier.from_preset, "bert_nano_en_uncased_sentiment"
)


def classify(sentences: ray.data.Dataset) -> ray.data.Dataset:
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

Ray can read Parquet, CSV, JSON and other formats from disks or object stores, and can write
Parquet. If a worker fails, its batch will be processed again.
"""


# %%
def main() -> None:
    lines = (HERE / "data" / "sentiment_sentences.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t")[2] for line in lines[1:]]
    rows = [{"row": i, "sentence": text} for i, text in enumerate(texts)]
    ray.init(num_cpus=WORKERS + 1, include_dashboard=False)  # one for input and output
    with tempfile.TemporaryDirectory() as folder:
        sentences = ray.data.from_items(rows, override_num_blocks=8)
        classify(sentences).write_parquet(folder)
        table = ray.data.read_parquet(folder).to_pandas().sort_values("row")
    ray.shutdown()
    print(table[["row", "sentence", "label", "score"]].head())

    classifier = open_classifier()
    alone = [answer["label"] for answer in classifier.classify(texts)]
    once = table["row"].tolist() == list(range(len(rows)))
    print(f"{len(table)} of {len(rows)} rows, without duplicates: {once}")
    print(f"same labels as in one process: {table['label'].tolist() == alone}")
    print(collections.Counter(alone))


if __name__ == "__main__":
    main()
