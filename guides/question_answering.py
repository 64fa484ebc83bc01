# %% [markdown]
"""
Title: Question answering
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Fine-tune a bundled BERT to answer questions from a text, and see where it looks.
Accelerator: None

Everything is on your disk: the preset is in the package, an excerpt of SQuAD 1.1 (CC BY-SA 4.0) is
beside this guide.

Be warned: to answer questions takes a large model and much data. A nano model with a few hundred
questions learns what kind of words answers are made of, and little more: its F1 stays near 8. For
more, take `"bert_base_en_uncased"` and the whole of SQuAD, 1.1 or 2.0. In its paper (Devlin et al.
2019, table 2) BERT-base reaches an F1 of 88.5 on SQuAD 1.1; that is the paper's recipe, and no
measurement of this guide.
"""

# %%
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # without TensorFlow's own lines

import keras

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## The data

Whole paragraphs are held back: a question about a text that was read is too easy.
"""

# %%
examples = ez.read_squad(HERE / "data" / "squad_excerpt.json")
contexts = list(dict.fromkeys(example["context"] for example in examples))
held_back = set(contexts[::10])
train = [e for e in examples if e["context"] not in held_back]
held_out = [e for e in examples if e["context"] in held_back]
print(f"{len(train)} questions to learn from, {len(held_out)} held out; the first one:")
print(train[0]["question"], train[0]["answers"])

# %% [markdown]
"""
## The whole job

Load, and fit on questions and contexts. With questions that have no answer (SQuAD 2.0),
`evaluate_answers` finds the threshold from which on the model says that there is none.
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

Several questions may be about one text.
"""

# %%
CONTEXT = "Anna sings in Rome every summer, and Ben has played the piano there since 2019."
for answer in model.answer(["Who sings?", "Since when does Ben play?"], CONTEXT):
    print(answer)

# %% [markdown]
"""
## Where it looks

The blue line above is the model's answer, the green one below the right answer. The shade is the
share of the twenty best answers that a word is part of.
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

On the left the tokens that attend, on the right those that they attend to: the darker a line, the
larger the probability. Blue lines go from one text to the other. This head attends to the token
before, as some head does in nearly every BERT (Clark et al., "What Does BERT Look At?",
2019, section 3.1).
"""

# %%
ez.display.attention(model, "Who sings in Rome?", "Anna sings in Rome.", layer=0, head=1).show()
