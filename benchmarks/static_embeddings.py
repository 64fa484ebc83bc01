"""Compare static embedders with model2vec and sentence-transformers: speed and quality.

    python benchmarks/static_embeddings.py quality --dims 256 128 --seeds 0 1 2
    python benchmarks/static_embeddings.py speed

`speed` opens the same folder on all sides, which run in turns. `quality` distills a table from
all-MiniLM-L6-v2 (from a Python package) and evaluates it on the STS-B dev set and on held-out SQuAD
questions, before and after training on SQuAD pairs. It is compared to a table distilled by
model2vec, the bundled embedder, and the teacher. This script requires
`model2vec[distill,quantization]` and sentence-transformers.
"""

import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from embedding_quality import read_squad, read_stsb
from sources import DATA, MINILM, need_data

import encoder_zoo as ez

BUNDLED, COUNT, ROUNDS = "bert_nano_en_uncased_embedder", 20_000, 5
RECIPE = {"epochs": 3, "batch_size": 256}  # for 9,252 pairs


def sentences(count: int) -> list[str]:
    lines = (DATA / "sst2" / "train.tsv").read_text("utf-8").split("\n")[1 : count + 1]
    return [line.split("\t")[1] for line in lines]


def measure_speed(texts: list[str]) -> None:
    """Print median sentences per second."""
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer

    with tempfile.TemporaryDirectory() as folder:
        # Speed does not depend on the teacher, so a small teacher is used to save time.
        ez.TextEmbedder.from_preset(BUNDLED).distil_static().save_to_preset(folder)
        sides = {
            "encoder_zoo": ez.TextEmbedder.from_preset(folder).embed,
            "model2vec": StaticModel.from_pretrained(folder).encode,
            "sentence-transformers": SentenceTransformer(folder, device="cpu").encode,
        }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for name in list(sides) * (ROUNDS + 1):  # the first round is used for warming up
        start = time.perf_counter()
        sides[name](texts)
        rates[name].append(len(texts) / (time.perf_counter() - start))
    print(f"| {len(texts):,} sentences | a second |\n|---|---|")
    for name, (_, *found) in rates.items():
        print(f"| {name} | {statistics.median(found):,.0f} |")


def report(name: str, embedder: ez.TextEmbedder, size: str = "") -> None:
    """Evaluate a model and print its row."""
    *_, (pairs, scores) = read_stsb()
    *_, squad = read_squad()
    spearman = embedder.evaluate_similarity(pairs, scores)["spearman"]
    found = embedder.evaluate_retrieval(*squad)
    columns = [spearman, found["ndcg@10"], found["recall@10"]]
    print(f"| {name} | {size} | {' | '.join(f'{100 * x:.1f}' for x in columns)} |", flush=True)


def of_model2vec(dim: int) -> ez.TextEmbedder:
    """Distill an embedder with model2vec."""
    from model2vec.distill import distill

    with tempfile.TemporaryDirectory() as folder:
        distill(model_name=str(MINILM), pca_dims=dim, device="cpu").save_pretrained(folder)
        return ez.TextEmbedder.from_preset(folder)


def megabytes(embedder: ez.TextEmbedder) -> str:
    """Return the table size in half precision."""
    return f"{2 * embedder.backbone.get_table().size / 1e6:.1f}"


def measure_quality(dims: list[int], seeds: list[int]) -> None:
    print("| | MB | STS-B, Spearman | SQuAD, nDCG@10 | recall@10 |\n|---|---|---|---|---|")
    report("all-MiniLM-L6-v2", teacher := ez.TextEmbedder.from_preset(MINILM))
    report(BUNDLED, ez.TextEmbedder.from_preset(BUNDLED))
    pairs = read_squad()[0]
    for dim in dims:
        report(f"model2vec, {dim}", theirs := of_model2vec(dim), megabytes(theirs))
        ours = teacher.distil_static(dim)
        report(f"distil_static, {dim}", ours, megabytes(ours))
        distilled = ours.get_weights()
        for seed in seeds:
            keras.utils.set_random_seed(seed)
            ours.set_weights(distilled)
            ours.compile(learning_rate=2e-2)
            ours.fit(pairs, verbose=0, **RECIPE)
            report(f"trained on SQuAD, seed {seed}", ours, megabytes(ours))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", choices=("speed", "quality"))
    parser.add_argument("--dims", type=int, nargs="+", default=[256])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    need_data("pairs", "qa", "sst2")
    if options.work == "speed":
        measure_speed(sentences(COUNT))
    else:
        measure_quality(options.dims, options.seeds)


if __name__ == "__main__":
    main()
