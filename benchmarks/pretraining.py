"""Compare tokens per second for pretraining BERT with encoder_zoo and transformers.

    python benchmarks/pretraining.py                        # BERT-Mini, batches of 32 rows of 128
    python benchmarks/pretraining.py --layers 6 --hidden 384 --rounds 3 --steps 8
    python benchmarks/pretraining.py --dtype bfloat16

Both sides train a new model with both heads on the same rows. Each row is a pair of segments with
full length, and half of all pairs are random. In every batch, 15 % of all tokens are masked. The
optimizer is AdamW with gradient clipping, and dropout is 0.1. This package reads a corpus from disk
and plans rows while training. The Trainer gets these rows as ids in memory, and
`DataCollatorForLanguageModeling` masks them. Times are measured from the end of the third step to
the end of the last step, so that they do not include tracing. Token counts are based on the batch
shape. Sides run in turns on the same machine. This script requires the extra `peers`.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from sources import MINILM

import encoder_zoo as ez
from encoder_zoo.extras.corpora.examples import make_planner
from encoder_zoo.extras.corpora.reading import Reader, read_examples

HERE = pathlib.Path(__file__).parent
WARM = 3  # number of steps to skip before measuring
SENTENCES = 20  # number of sentences per document


class Clock:
    """Measure seconds from the end of step `WARM` to the end of the last step."""

    def __init__(self):
        self.ends = []

    def step(self) -> None:
        self.ends.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        return self.ends[-1] - self.ends[WARM - 1]


def documents() -> list[list[str]]:
    """Group sentences from the guides into documents."""
    path = HERE.parent / "guides" / "data" / "sentiment_sentences.tsv"
    header, *lines = path.read_text(encoding="utf-8").strip().split("\n")
    column = header.split("\t").index("sentence")
    texts = [line.split("\t")[column] for line in lines]
    return [texts[i : i + SENTENCES] for i in range(0, len(texts), SENTENCES)]


def our_side(corpus: ez.PretrainingCorpus, tokenizer, options):
    """Return a function to train for several steps and measure seconds."""
    backbone = ez.BertBackbone(
        tokenizer.vocabulary_size,
        num_layers=options.layers,
        num_heads=options.hidden // 64,
        hidden_dim=options.hidden,
        intermediate_dim=4 * options.hidden,
        pooler=True,
        dtype="mixed_bfloat16" if options.dtype == "bfloat16" else "float32",
    )
    preprocessor = ez.PretrainingPreprocessor(tokenizer, options.length, short_share=0.0)
    model = ez.Pretraining(backbone, preprocessor)

    def train() -> float:
        clock = Clock()
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: clock.step()
        )
        steps = WARM + options.steps
        model.fit(
            corpus,
            batch_size=options.batch_size,
            steps_per_epoch=steps,
            callbacks=[callback],
            verbose=0,
        )
        return clock.seconds

    return train


def their_side(corpus: ez.PretrainingCorpus, tokenizer, options):
    """Return a function to train with the transformers Trainer. See `our_side`."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=tokenizer.vocabulary_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
    )
    model = transformers.BertForPreTraining(config)
    rows = prepared_rows(corpus, tokenizer, options)
    steps = WARM + options.steps
    rows = [rows[i % len(rows)] for i in range(steps * options.batch_size)]
    theirs = transformers.AutoTokenizer.from_pretrained(MINILM)
    collator = transformers.DataCollatorForLanguageModeling(theirs, mlm_probability=0.15)

    class Callback(transformers.TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            self.clock.step()

    def train() -> float:
        callback = Callback()
        callback.clock = Clock()
        arguments = transformers.TrainingArguments(
            tempfile.mkdtemp(),
            per_device_train_batch_size=options.batch_size,
            max_steps=steps,
            learning_rate=1e-4,
            weight_decay=0.01,
            bf16=options.dtype == "bfloat16",
            use_cpu=options.cpu,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model, arguments, collator, train_dataset=rows, callbacks=[callback]
        )
        trainer.train()
        return callback.clock.seconds

    return train


def prepared_rows(corpus: ez.PretrainingCorpus, tokenizer, options) -> list[dict]:
    """Convert pairs in the corpus to transformers inputs, without masks."""
    preprocessor = ez.PretrainingPreprocessor(tokenizer, options.length, short_share=0.0)
    prepared = []
    for slot in Reader(corpus, make_planner(preprocessor), seed=0).read_in_order():
        row = read_examples([slot], tokenizer, corpus.vocabulary_size)
        ids, count = row["token_ids"], len(row["token_ids"])
        positions = np.arange(options.length)
        padded = np.full(options.length, tokenizer.pad_token_id)
        padded[:count] = ids
        prepared.append(
            {
                "input_ids": padded.tolist(),
                "attention_mask": (positions < count).astype(int).tolist(),
                "token_type_ids": ((positions >= row["first_length"]) & (positions < count))
                .astype(int)
                .tolist(),
                "next_sentence_label": int(row["labels"][0]),
            }
        )
    return prepared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6, help="measured steps per round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--gpu", dest="cpu", action="store_false", help="use a GPU for torch")
    options = parser.parse_args()

    tokenizer = ez.BertTokenizer.from_preset(MINILM)
    folder = tempfile.mkdtemp() + "/corpus"
    corpus = ez.PretrainingCorpus.from_documents(folder, documents(), tokenizer, verbose=0)
    sides = {"encoder_zoo": our_side, "transformers": their_side}
    sides = {name: make(corpus, tokenizer, options) for name, make in sides.items()}
    tokens = options.steps * options.batch_size * options.length
    rates = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, train in sides.items():
            rates[name].append(tokens / train())
    for name, found in rates.items():
        spread = f"{min(found):,.0f} to {max(found):,.0f}"
        print(f"{name}: {statistics.median(found):,.0f} tokens/s ({spread})")
    ours, theirs = (statistics.median(found) for found in rates.values())
    print(f"ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
