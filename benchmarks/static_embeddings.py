"""Sentences a second of a static embedder beside model2vec and sentence-transformers.

    python benchmarks/static_embeddings.py

The model is distilled of the bundled embedder; all sides open the folder that it is saved in, and
take turns. Prints also what it and its teacher reach on STS-B's development set and on SQuAD's
questions (`pairs/stsb`, `qa/squad`). Needs model2vec and sentence-transformers.
"""

import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from sources import DATA, need_data

import encoder_zoo as ez

TEACHER, COUNT, ROUNDS = "bert_nano_en_uncased_embedder", 20_000, 5


def sentences(count: int) -> list[str]:
    lines = (DATA / "sst2" / "train.tsv").read_text("utf-8").split("\n")[1 : count + 1]
    return [line.split("\t")[1] for line in lines]


def measure_speed(folder: str, texts: list[str]) -> None:
    """Print medians of sentences a second."""
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer

    sides = {
        "encoder_zoo": ez.TextEmbedder.from_preset(folder).embed,
        "model2vec": StaticModel.from_pretrained(folder).encode,
        "sentence-transformers": SentenceTransformer(folder, device="cpu").encode,
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for name in list(sides) * (ROUNDS + 1):  # the first round warms up
        start = time.perf_counter()
        sides[name](texts)
        rates[name].append(len(texts) / (time.perf_counter() - start))
    print(f"\n| {len(texts):,} sentences | a second |\n|---|---|")
    for name, (_, *found) in rates.items():
        print(f"| {name} | {statistics.median(found):,.0f} |")


def quality(embedder: ez.TextEmbedder) -> str:
    """Return the columns of a model."""
    lines = (DATA / "pairs" / "stsb" / "dev.tsv").read_text("utf-8").split("\n")[1:]
    rows = [line.split("\t") for line in lines if line]
    pairs, scores = [row[1:3] for row in rows], [float(row[0]) for row in rows]
    examples = ez.read_squad(DATA / "qa" / "squad" / "dev.json")
    paragraphs = list(dict.fromkeys(example["context"] for example in examples))
    relevant = [paragraphs.index(example["context"]) for example in examples]
    questions = [example["question"] for example in examples]
    found = embedder.evaluate_retrieval(questions, paragraphs, relevant, cutoffs=[5])
    spearman = embedder.evaluate_similarity(pairs, scores)["spearman"]
    return f"{100 * spearman:.1f} | {100 * found['recall@5']:.1f} |"


def main() -> None:
    need_data("pairs", "qa", "sst2")
    teacher = ez.TextEmbedder.from_preset(TEACHER)
    start = time.perf_counter()
    static = teacher.distil_static()
    print(f"distilled in {time.perf_counter() - start:.0f} s")
    with tempfile.TemporaryDirectory() as folder:
        static.save_to_preset(folder)
        measure_speed(folder, sentences(COUNT))
    print("\n| | STS-B, Spearman | SQuAD, recall@5 |\n|---|---|---|")
    for name, model in ((TEACHER, teacher), ("distil_static", static)):
        print(f"| {name} | {quality(model)}", flush=True)


if __name__ == "__main__":
    main()
