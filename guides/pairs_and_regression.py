# %% [markdown]
"""
Title: Pairs and regression
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: Classify pairs of texts, and predict a number for each text.
Accelerator: None

Does this sentence answer that question? This is a classification task for text pairs. How hard is
this sentence to read? This is a regression task, where a number is predicted for a text or a pair
of texts. The data for this guide is created from an excerpt of SQuAD 1.1 (CC BY-SA 4.0) in this
folder.
"""

# %%
import os
import pathlib
import random
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import numpy as np

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## Pairs: does the sentence answer the question?

We pair each question with the sentence that contains its answer, and with another sentence from the
same paragraph. QNLI was created from SQuAD in the same way (Wang et al., GLUE, 2019, section 3.3).
We hold out whole paragraphs.
"""


# %%
def make_pairs(example: dict) -> list[tuple[str, str, str]]:
    """Return two tuples (question, sentence, label), with and without the answer."""
    start = example["answers"][0]["answer_start"]
    spans = [m.span() for m in re.finditer(r".+?(?:[.?!](?= )|$)", example["context"])]
    right = [example["context"][a:b].strip() for a, b in spans if a <= start < b]
    wrong = [example["context"][a:b].strip() for a, b in spans if not a <= start < b]
    if not right or not wrong:
        return []
    question = example["question"]
    return [(question, right[0], "answer"), (question, random.choice(wrong), "other")]


examples = ez.read_squad(HERE / "data" / "squad_excerpt.json")
contexts = list(dict.fromkeys(example["context"] for example in examples))
held_back = set(contexts[::6])
train = [p for e in examples if e["context"] not in held_back for p in make_pairs(e)]
held_out = [p for e in examples if e["context"] in held_back for p in make_pairs(e)]
print(f"{len(train)} training pairs, {len(held_out)} held out; the first two:")
print(train[0], train[1], sep="\n")

# %% [markdown]
"""
Text pairs can be passed as a list of pairs or as a tuple `(first texts, second texts)`. Labels are
a separate argument.
"""

# %%
x, y = [pair[:2] for pair in train], [pair[2] for pair in train]
held_out_x, held_out_y = [pair[:2] for pair in held_out], [pair[2] for pair in held_out]
classifier = ez.Classifier.from_preset("bert_nano_en_uncased")
history = classifier.fit(
    x, y, validation_data=(held_out_x, held_out_y), epochs=3, batch_size=32, verbose=2
)
answers = classifier.classify(held_out_x)
axes = ez.display.confusion_matrix(held_out_y, answers)

# %% [markdown]
"""
To compare two texts, a model needs attention heads that attend to the same word in the other text.
There are only a few in a nano model. It classifies about 55 of 100 pairs correctly, compared with
50 for random guesses. On QNLI, BERT-base classifies nine of ten pairs correctly (Devlin et al.
2019, table 1). For the shortest pair, each picture shows a head of the last layer. Blue lines show
the attention between both texts:
"""

# %%
answered = [pair for pair in held_out if pair[2] == "answer"]
question, sentence, _ = min(answered, key=lambda pair: len(pair[0] + pair[1]))
ez.display.attention(classifier, question, sentence, layer=1, head=None).show()

# %% [markdown]
"""
## Regression: a number for each text

With `problem_type="regression"`, the model has one output without softmax, and is trained with the
mean squared error. As a simple target, we use the fraction of words with more than five letters,
which is related to how hard a text is to read. Targets should be scaled to a standard deviation
near 1.
"""


# %%
def long_words(text: str) -> float:
    words = re.findall(r"\w+", text)
    return sum(len(word) > 5 for word in words) / len(words)


texts = list({pair[1]: None for pair in train if len(pair[1].split()) > 4})
held_out_texts = list({pair[1]: None for pair in held_out if len(pair[1].split()) > 4})
targets = np.array([long_words(text) for text in texts])
held_out_targets = np.array([long_words(text) for text in held_out_texts])
mean, spread = targets.mean(), targets.std()

regressor = ez.SequenceClassifier.from_preset(
    "bert_nano_en_uncased", num_classes=1, problem_type="regression"
)
regressor.compile(metrics=["pearson"])
history = regressor.fit(
    texts,
    (targets - mean) / spread,
    validation_data=(held_out_texts, (held_out_targets - mean) / spread),
    epochs=4,
    batch_size=16,
    verbose=2,
)

# %% [markdown]
"""
"pearson" is the correlation with the targets. It does not depend on their scale. `predict` returns
one column per target. The texts with the lowest and the highest prediction are printed at the end.
"""

# %%
predicted = regressor.predict(held_out_texts, verbose=0)[:, 0] * spread + mean
for i in predicted.argsort()[[0, -1]]:
    print(f"{predicted[i]:.2f}, true {held_out_targets[i]:.2f}: {held_out_texts[i]}")
