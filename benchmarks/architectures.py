"""Compare BERT, RoBERTa, ModernBERT and DeBERTa with equal parameters, data and steps.

    python benchmarks/architectures.py --families bert roberta modernbert deberta-v2 --seeds 0 1 2

Each architecture is pretrained on masked tokens and then fine-tuned with this package. All models
have four layers with width 128 and share a WordPiece vocabulary with 4,096 tokens, to make losses
comparable. To keep parameter counts equal, gated layers in ModernBERT are narrower. The models only
differ in what the papers change: position embeddings (tables, rotations or distances), layer norm
order, gates, and local attention in two out of three layers.

For each model, this prints loss and accuracy on masked tokens in held-out text, accuracy on the
SST-2 dev set, and entity F1 on CoNLL-2003 testa. All values include mean, minimum and maximum over
all seeds.

To provide the data, set `ENCODER_ZOO_DATA` to a folder with `text/wikipedia_train.txt.gz` and
`text/wikipedia_valid.txt` (one paragraph per line), and all files needed by benchmarks/sst2.py and
benchmarks/token_classification.py.
"""

import argparse
import gzip
import json
import random

import keras
import numpy as np
from sources import DATA, need_data
from sst2 import read as read_sst2

import encoder_zoo as ez

LENGTH = 64  # number of tokens per row in pretraining (the rest of a paragraph is not used)
VOCABULARY_SIZE = 4096
# BERT uses 0.15. Small models learn more per step with more tokens to predict.
MASK_RATE = 0.3
FINE_TUNING_RATE = 5e-4  # narrow models can take larger steps than wide models
SIZE = {
    "num_layers": 4,
    "num_heads": 4,
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "max_sequence_length": 128,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
# Gated layers have three kernels, while other layers have two.
ARCHITECTURES = {
    "bert": (ez.BertBackbone, {}),
    "roberta": (ez.RobertaBackbone, {"pad_token_id": 0}),
    "modernbert": (ez.ModernBertBackbone, {"intermediate_dim": 341, "local_attention": 32}),
    "deberta-v2": (ez.DebertaV2Backbone, {"position_buckets": 32, "max_relative_positions": 64}),
}


def paragraphs(name: str) -> list[str]:
    """Read all paragraphs longer than a title."""
    path = DATA / "text" / name
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if len(line) > 200]


def build(family: str, tokenizer: ez.BertTokenizer) -> ez.MaskedLM:
    """Build a masked language model with random weights, scaled up for a narrow model.

    Position tables are initialized with sine waves. See guides/pretraining.py.
    """
    backbone_class, arguments = ARCHITECTURES[family]
    backbone = backbone_class(tokenizer.vocabulary_size, pooler=False, **{**SIZE, **arguments})
    model = ez.MaskedLM(backbone, ez.MaskedLMPreprocessor(tokenizer, LENGTH, mask_rate=MASK_RATE))
    for weight in model.trainable_variables:
        if weight.path.endswith("kernel"):
            weight.assign(weight * (weight.shape[0] ** -0.5 / 0.02))
        if "position_embedding" in weight.path:
            count, width = weight.shape
            angles = np.arange(count)[:, None] * 1000.0 ** -np.linspace(0, 1, width // 2)
            weight.assign(0.02 * np.concatenate([np.sin(angles), np.cos(angles)], 1))
    return model


def pretrained(family: str, tokenizer, texts, held_out, seed: int, options) -> tuple:
    """Pretrain a backbone and evaluate masked language modeling on held-out text."""
    keras.utils.set_random_seed(seed)
    model = build(family, tokenizer)
    model.compile(learning_rate=options.learning_rate)
    drawn = random.Random(seed).sample(texts, options.texts)
    model.fit(drawn, batch_size=options.batch_size, epochs=options.epochs, verbose=2)
    model.preprocessor.mask_rate = 0.15  # same rate as in other evaluations
    measured = model.evaluate(held_out, verbose=0, return_dict=True)
    return model.backbone, {"loss": measured["loss"], "masked accuracy": measured["accuracy"]}


def copied(backbone: ez.Backbone, task: str) -> ez.Backbone:
    """Copy an encoder, and add a new pooler if the task needs it."""
    pooled = backbone.family.get_head(task).pooled
    copy = type(backbone).from_config({**backbone.get_config(), "pooler": pooled})
    known = {weight.path.split("/", 1)[1]: weight for weight in backbone.weights}
    for weight in copy.weights:
        name = weight.path.split("/", 1)[1]
        if not name.startswith("pooler"):
            weight.assign(known[name])
    return copy


def fine_tuned(backbone: ez.Backbone, tokenizer, options) -> dict[str, float]:
    """Fine-tune a pretrained backbone and return SST-2 accuracy and CoNLL-2003 entity F1."""
    train = [part[: options.limit] for part in read_sst2("train")]
    classifier = ez.SequenceClassifier(
        copied(backbone, "ForSequenceClassification"),
        ez.SequenceClassifierPreprocessor(tokenizer),
        num_classes=2,
    )
    classifier.compile(learning_rate=FINE_TUNING_RATE)
    classifier.fit(*train, epochs=2, verbose=2)
    accuracy = classifier.evaluate(*read_sst2("dev"), verbose=0, return_dict=True)["accuracy"]

    folder = DATA / "ner" / "conll2003"
    words, tags = (part[: options.limit] for part in ez.read_conll(folder / "train.conll"))
    tagger = ez.TokenClassifier(
        copied(backbone, "ForTokenClassification"),
        ez.TokenClassifierPreprocessor(tokenizer),
        labels=sorted({tag for row in tags for tag in row}),
    )
    tagger.compile(learning_rate=FINE_TUNING_RATE)
    tagger.fit(words, tags, epochs=3, verbose=2)
    scores = tagger.evaluate_entities(*ez.read_conll(folder / "testa.conll"))
    return {"SST-2": accuracy, "CoNLL F1": scores["f1"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--families", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--texts", type=int, default=40_000, help="paragraphs to pretrain on")
    parser.add_argument("--epochs", type=int, default=1, help="pretraining epochs")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--limit", type=int, help="maximum sentences for fine-tuning")
    options = parser.parse_args()
    need_data("text", "sst2", "ner/conll2003")

    texts = paragraphs("wikipedia_train.txt.gz")
    held_out = paragraphs("wikipedia_valid.txt")[:1000]
    tokenizer = ez.train_vocabulary(texts, VOCABULARY_SIZE, "bert")
    for family in options.families:
        rows = []
        for seed in options.seeds:
            backbone, row = pretrained(family, tokenizer, texts, held_out, seed, options)
            row |= fine_tuned(backbone, tokenizer, options)
            print(json.dumps({"family": family, "seed": seed, **row}), flush=True)
            rows.append(row)
        parts = [
            f"{key} {np.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"
            for key, values in ((key, [row[key] for row in rows]) for key in rows[0])
        ]
        print(f"{family}: {backbone.count_params():,} parameters, {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
