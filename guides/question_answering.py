# %% [markdown]
"""
Title: Question answering
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Fine-tune a bundled BERT to answer questions about a text, and visualize attention.
Accelerator: None

Nothing has to be downloaded for this guide. The preset is included in the package, and an excerpt
from SQuAD 1.1 (CC BY-SA 4.0) is in this folder.

A large model and a large dataset are needed for question answering. If a nano model is trained on a
few hundred questions, it will only learn which types of words are used in answers, with an F1 near
8. Use `"bert_base_en_uncased"` and all of SQuAD 1.1 or 2.0 for better results. In the paper (Devlin
et al. 2019, table 2), BERT-base reaches an F1 of 88.5 on SQuAD 1.1. This result was not measured
here.
"""

# %%
import os
import pathlib

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

We hold out whole paragraphs. Otherwise, the model would be evaluated on paragraphs that it was
trained on.
"""

# %%
examples = ez.read_squad(HERE / "data" / "squad_excerpt.json")
contexts = list(dict.fromkeys(example["context"] for example in examples))
held_back = set(contexts[::10])
train = [e for e in examples if e["context"] not in held_back]
held_out = [e for e in examples if e["context"] in held_back]
print(f"{len(train)} training questions, {len(held_out)} held out; the first one:")
print(train[0]["question"], train[0]["answers"])

# %% [markdown]
"""
## Training

Load a preset and call `fit` with questions and contexts. If some questions have no answer, as in
SQuAD 2.0, `evaluate_answers` will also find a threshold to decide when no answer is returned.
"""

# %%
model = ez.SpanQA.from_preset("bert_nano_en_uncased")
before = model.evaluate_answers(held_out)
model.fit(train, epochs=4, batch_size=16, verbose=2)
after = model.evaluate_answers(held_out)
for name, scores in {"before": before, "after": after}.items():
    print(f"{name:7} exact match {scores['exact_match']:.1f}, F1 {scores['f1']:.1f}")

# %% [markdown]
"""
## Questions of your own

Several questions can be asked about the same text.
"""

# %%
CONTEXT = "Anna sings in Rome every summer, and Ben has played the piano there since 2019."
for answer in model.answer(["Who sings?", "Since when does Ben play?"], CONTEXT):
    print(answer)

# %% [markdown]
"""
## Predicted and correct answers

The predicted answer is marked by a blue line above the text, and the correct answer by a green line
below it. A darker word is part of more answers among the best twenty.
"""

# %%
shown = held_out[:: -(-len(held_out) // 6)]
pictures = [
    ez.display.answer(
        e["context"],
        model.answer(e["question"], e["context"], top_k=20),
        question=e["question"],
        true=e["answers"],
    )
    for e in shown
]
picture = sum(pictures[1:], start=pictures[0])
picture.show()
picture.save(OUTPUT / "question_answering.html", title="Held-out questions")

# %% [markdown]
"""
## Attention

Each line shows how much a token on the left attends to a token on the right. Darker lines have a
larger probability, and blue lines connect the two texts. There is one picture for each head of the
first layer. Most tokens attend to the next token in head 1, and to the previous token in head 3.
Most BERT models have such heads (Clark et al., "What Does BERT Look At?", 2019, section 3.1).
"""

# %%
ez.display.attention(model, "Who sings in Rome?", "Anna sings in Rome.", layer=0, head=None).show()
