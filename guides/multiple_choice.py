# %% [markdown]
"""
Title: Multiple choice
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Fine-tune a bundled BERT to pick the text that answers a question.
Accelerator: None

`MultipleChoice` computes a score for each choice together with the question, and compares the
scores, as in SWAG and RACE. In this guide, questions are created from the reviews in this folder
(CC BY 4.0). One of two to four customers is content while the others complain, or the other way
round, and the question asks for this customer. Therefore, the model has to read the question and
the choices together.

If questions refer to passages, pass them as a third column, `(questions, choices, contexts)`. Use
`window_length=...` to read long passages completely.
"""

# %%
import os
import pathlib
import random

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## The data

For every question, there is a list with any number of choices, and a label. The label is the index
of the correct choice. Sentences in held-out questions are not used in training questions.
"""

# %%
# Questions by the sentiment of the correct choice.
QUESTIONS = {"1": "Who is content?", "0": "Who complains?"}
rng = random.Random(0)
lines = (HERE / "data" / "sentiment_sentences.tsv").read_text(encoding="utf-8").split("\n")
reviews = [line.split("\t") for line in lines[1:] if line]
rng.shuffle(reviews)


def make_questions(reviews: list, count: int) -> tuple[list, list, list]:
    """Return questions, their choices, and the indices of the correct choices."""
    sentences = {key: [row[2] for row in reviews if row[0] == key] for key in QUESTIONS}
    questions, choices, labels = [], [], []
    for i in range(count):
        asked, other = "01"[i % 2], "10"[i % 2]
        right = rng.choice(sentences[asked])
        listed = [right, *rng.sample(sentences[other], rng.randint(1, 3))]
        rng.shuffle(listed)
        questions.append(QUESTIONS[asked])
        choices.append(listed)
        labels.append(listed.index(right))
    return questions, choices, labels


*train, answers = make_questions(reviews[:2500], 1200)
*held_out, right_answers = make_questions(reviews[2500:], 200)
print(train[0][0], train[1][0], answers[0])
chance = sum(1 / len(listed) for listed in held_out[1]) / len(held_out[1])
print(f"{len(answers)} training questions, {len(right_answers)} held out; chance {chance:.2f}")

# %% [markdown]
"""
## Training

Load an encoder with a new head, train it and evaluate it. `accuracy` is the fraction of questions
for which the correct choice has the highest score.
"""

# %%
model = ez.MultipleChoice.from_preset("bert_nano_en_uncased")
model.compile(learning_rate=3e-4)
model.fit(tuple(train), answers, epochs=3, batch_size=16, verbose=2)
accuracy = model.evaluate(tuple(held_out), right_answers, verbose=0, return_dict=True)["accuracy"]
print(f"accuracy {accuracy:.2f}, by chance {chance:.2f}")

# %% [markdown]
"""
## Questions of your own

`choose` returns the best choice with its index and probability. Use `top_k` to return several
choices, sorted by score. The best choice depends on the question.
"""

# %%
CHOICES = ["The screen broke after a week.", "Great sound, I love it!", "It is a waste of money."]
for question in QUESTIONS.values():
    print(question, model.choose(question, CHOICES))
for choice in model.choose("Who complains?", CHOICES, top_k=3):
    print(f"{choice['score']:.2f} {choice['text']}")

# %% [markdown]
"""
## Save and serve

The folder can be loaded in transformers as `BertForMultipleChoice`. `model.export("served/1")`
saves a SavedModel, which takes texts, returns answers and only requires TensorFlow.
"""

# %%
model.save_to_preset(OUTPUT / "multiple_choice")
again = ez.MultipleChoice.from_preset(OUTPUT / "multiple_choice")
print(again.choose("Who is content?", CHOICES)["text"])
