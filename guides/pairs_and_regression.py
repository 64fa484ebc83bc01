# %% [markdown]
"""
Title: Pairs and regression
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: Two texts and a class for both; a text and a number.
Accelerator: None

Does this sentence answer that question? That is a class for a pair of texts. How hard to read is
this sentence? That is a number for one text; a pair may have a number just as well. The data of
this guide is made from the excerpt of SQuAD 1.1 (CC BY-SA 4.0) beside it.
"""

# %%
import os
import pathlib
import random
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # without TensorFlow's own lines

import keras
import numpy as np

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## Pairs: does the sentence answer the question?

For each question the sentence with its answer, and another one of the same paragraph: that is how
the QNLI task was made of SQuAD (Wang et al., GLUE, 2019, section 3.3). Whole paragraphs are held
out.
"""


# %%
def pairs_of(example: dict) -> list[tuple[str, str, str]]:
    """(question, sentence, label): one that answers, one that does not."""
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
train = [p for e in examples if e["context"] not in held_back for p in pairs_of(e)]
held_out = [p for e in examples if e["context"] in held_back for p in pairs_of(e)]
print(f"{len(train)} pairs to learn from, {len(held_out)} held out; the first two:")
print(train[0], train[1], sep="\n")

# %% [markdown]
"""
Texts in pairs are a list of pairs, or the tuple `(first texts, second texts)`; the labels are an
argument of their own.
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
To compare two texts takes heads that look from a word to the same word in the other text. A nano
model has hardly any: it is right about 55 pairs of 100, where guessing is about 50. BERT-base gets
nine out of ten of QNLI right (Devlin et al. 2019, table 1). The blue lines go from one text to the
other, for the shortest pair:
"""

# %%
answered = [pair for pair in held_out if pair[2] == "answer"]
question, sentence, _ = min(answered, key=lambda pair: len(pair[0] + pair[1]))
ez.display.attention(classifier, question, sentence, layer=1, head=0).show()

# %% [markdown]
"""
## Regression: a number for each text

`problem_type="regression"` has one output, no softmax, and the mean squared error as its loss. The
number here can be reckoned, so that we know what is right: the share of a text's words that are
longer than five letters, which makes a text hard to read. Numbers of a spread near 1 train best.
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
"pearson" is the correlation with the truth, which the scale leaves alone. `predict` gives the
numbers, one column for each; here are the easiest and the hardest text to read, as it says.
"""

# %%
predicted = regressor.predict(held_out_texts, verbose=0)[:, 0] * spread + mean
for i in predicted.argsort()[[0, -1]]:
    print(f"{predicted[i]:.2f}, true {held_out_targets[i]:.2f}: {held_out_texts[i]}")
