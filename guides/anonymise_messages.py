# %% [markdown]
"""
Title: Anonymise 10,000 messages
Author: the authors of encoder_zoo
Date created: 2026/11/26
Last modified: 2026/11/26
Description: Find and replace names, addresses and numbers in a file, and measure what is missed.
Accelerator: None

Before customer messages are analyzed or published, remove any information that could identify the
authors. `EntityExtractor` finds entities for given label names. Models for "person", "email
address" and hundreds of other labels, such as GLiNER models for personal data, are available on the
hub:

    model = ez.EntityExtractor.from_preset("hf://urchade/gliner_multi_pii-v1")

Such a model has a size of about a gigabyte. To run without a network, this guide trains a small
model for a few minutes on 1,000 sentences from WNUT-17 (CC BY 4.0) and 1,000 synthetic messages. It
demonstrates the method, but the results are not good enough to be published, because one in seven
messages will still contain part of a name.
"""

# %%
import itertools
import json
import os
import pathlib
import random
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import pandas as pd

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)
rng = random.Random(0)

# %% [markdown]
"""
## Texts with names in them

WNUT-17 contains tweets and comments with annotated persons. We join the words in each sentence to a
text, and convert the tags to spans with a start, an end and a label.
"""

# %%
words, tags = ez.read_conll(HERE / "data" / "wnut17_excerpt.conll")
tweets, persons = [], []
for sentence, row in zip(words, tags, strict=True):
    starts = [0, *itertools.accumulate(len(word) + 1 for word in sentence)]
    spans = []
    for i, tag in enumerate(row):
        if tag == "B-person":
            spans.append([starts[i], starts[i], "person"])
        if tag.endswith("-person"):
            spans[-1][1] = starts[i] + len(sentence[i])
    tweets.append(" ".join(sentence))
    persons.append([tuple(span) for span in spans])
print(tweets[5], persons[5])

# %% [markdown]
"""
## Synthetic messages

Each message is a review sentence (UCI "Sentiment Labelled Sentences", CC BY 4.0) followed by a line
with names and addresses at known positions. For training, names from WNUT-17 are used. The 10,000
messages to anonymise use different sentences, names and lines. A model that only memorizes training
lines would fail on them.
"""

# %%
LEARNED = (
    "My name is {name}, mail me at {mail}.|Please call {name} on {phone}.|Regards, {name} ({mail}, "
    "{phone})|Contact: {name}, phone {phone}|{name} asked for it, {phone} is the number.|Send it "
    "to {mail} or ask {name}.|It is {phone} if you want to speak to {name}.|{name} here, my mail "
    "is {mail}|Mail {mail} or {phone}.|My friend {name} bought it too.|{mail} is where {name} gets "
    "letters.|Dear {name}, call {phone}|Best wishes, {name}"
).split("|")
SENT = (
    "I am {name} and you reach me under {phone}.|Thanks, {name}. My address is {mail}.|{name} will "
    "answer, {mail}, or ring {phone}.|Write to {mail}, signed {name}|Ask for {name} at {phone} "
    "please!|Yours, {name}"
).split("|")
FIRST = "Hannah Ivan Jin Katarzyna Liam Maria Noor Oscar Priya Rosa Samuel Tomoko Umar Vera".split()
LAST = "Haddad Johnson Kim Lindgren Nguyen Okafor Patel Rossi Smith Tanaka Varga Wilson".split()
PHONES = "+## ### #### ###", "(0##) ###-####", "0###/######", "###-###-####"


def message(sentence: str, line: str, name: str) -> tuple[str, list]:
    """Return a text and its spans."""
    mail = name.lower().replace(" ", rng.choice("._-")) + rng.choice(["", "7", "99"])
    mail += rng.choice(["@example.com", "@example.org", "@example.net"])
    phone = re.sub("#", lambda _: rng.choice("0123456789"), rng.choice(PHONES))
    fields = {
        "{name}": (name, "person"),
        "{mail}": (mail, "email address"),
        "{phone}": (phone, "phone number"),
    }
    text, spans = f"{sentence} ", []
    for part in re.split(r"(\{\w+\})", line):
        value, label = fields.get(part, (part, None))
        if label:
            spans.append((len(text), len(text) + len(value), label))
        text += value
    return text, spans


table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
sentences = [text for text in table["sentence"] if len(text) < 80]
half = len(sentences) // 2
known = {t[a:b] for t, row in zip(tweets[200:], persons[200:], strict=True) for a, b, _ in row}
known = sorted(name for name in known if re.fullmatch("[A-Za-z]+( [A-Za-z]+)?", name))
learned = [
    message(rng.choice(sentences[:half]), rng.choice(LEARNED), rng.choice(known))
    for _ in range(1000)
]
sent = [
    message(rng.choice(sentences[half:]), rng.choice(SENT), f"{rng.choice(FIRST)} {last}".strip())
    for last in rng.choices(["", *LAST], k=10_000)
]
print(*sent[:3], sep="\n")

# %% [markdown]
"""
## Train

The maximum entity width is given in words. For example, `hannah.kim@example.org` has 7 words,
because each dot is a word. This step can be skipped when you use a published model.
"""

# %%
texts, spans = (list(column) for column in zip(*learned, strict=True))
model = ez.EntityExtractor.from_preset("bert_nano_en_uncased", max_width=8)
history = model.fit(tweets[200:] + texts, persons[200:] + spans, epochs=4, batch_size=16, verbose=2)

# %% [markdown]
"""
## Which threshold?

By default, an entity is returned if its score is above 0.5. When texts are anonymised, missing a
name is worse than replacing an additional word, so the threshold should be lower. Use held-out
texts to select it. For your data, annotate the entities in a few hundred texts with an annotation
tool supported by `ez.read_annotations`. In this guide, we use the first 300 messages, for which all
entities are known.
"""

# %%
checked, right = (list(column) for column in zip(*sent[:300], strict=True))
axes = ez.display.thresholds(model, checked, right)
axes[0].figure.savefig(OUTPUT / "anonymise_thresholds.png")
THRESHOLD = 0.1
scores = model.evaluate_entities(checked, right, threshold=THRESHOLD)
print(f"Messages at {THRESHOLD}: {scores['recall']:.0%} of all entities are found")
for label, values in scores["per_type"].items():
    print(f"  {label:14} precision {values['precision']:.2f}, recall {values['recall']:.2f}")

# %% [markdown]
"""
Synthetic messages are easier than real texts. In held-out tweets, fewer persons are found:
"""

# %%
scores = model.evaluate_entities(tweets[:200], persons[:200], ["person"], threshold=THRESHOLD)
print(f"Tweets: precision {scores['precision']:.2f}, recall {scores['recall']:.2f}")

# %% [markdown]
"""
## Process the whole file

`answer_files` can be used for files of any size. It writes predictions to Parquet files in the same
order. Call it again to continue after an interruption. Offsets are character positions in a
message.
"""

# %%
messages = pd.DataFrame({"message": [text for text, _ in sent]})
messages.to_csv(OUTPUT / "messages.csv", index=False)
answers = OUTPUT / "found_in_messages"
for path in answers.glob("*"):  # results of a previous run of this guide
    path.unlink()
ez.answer_files(
    model, OUTPUT / "messages.csv", answers, columns="message", threshold=THRESHOLD, batch_size=64
)
entities = pd.read_parquet(answers)["entities"]
found = pd.DataFrame(
    {"row": row, **entity} for row, of_row in enumerate(entities) for entity in of_row
)
print(found.head(3))
print(found.groupby("label")["score"].describe()[["count", "mean", "min"]].round(2))

# %% [markdown]
"""
## Replace entities

For entities with a fixed format, such as email addresses, regular expressions are better. The model
is needed for names. We replace each entity by its label and store the offsets in the new text, so
that the labels can be replaced later.
"""

# %%
PATTERNS = {
    "email address": r"[\w.+-]+@[\w-]+(\.[\w-]+)+",
    "phone number": r"\+?\(?\d[\d ()/-]{6,}\d",
}


def list_labels(text: str, found: list) -> list:
    """Return the label of the entity for each character, or None."""
    labels = [None] * len(text)
    spans = [(entity["start"], entity["end"], entity["label"]) for entity in found]
    for label, pattern in PATTERNS.items():
        spans += [(*match.span(), label) for match in re.finditer(pattern, text)]
    for start, end, label in spans:
        labels[start:end] = [label] * (end - start)
    return labels


def anonymise(text: str, labels: list) -> dict:
    """Return the text with labels instead of entities, and the offsets of the labels."""
    new, replaced = "", []
    for label, run in itertools.groupby(range(len(text)), key=labels.__getitem__):
        part = f"[{label}]" if label else "".join(text[i] for i in run)
        if label:
            replaced.append({"label": label, "start": len(new), "end": len(new) + len(part)})
        new += part
    return {"text": new, "replaced": replaced}


marks = [list_labels(*row) for row in zip(messages["message"], entities, strict=True)]
rows = [anonymise(*row) for row in zip(messages["message"], marks, strict=True)]
with open(OUTPUT / "anonymised.jsonl", "w", encoding="utf-8") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)
print(*(row["text"] for row in rows[:5]), sep="\n")

# %% [markdown]
"""
## Measure what is missed

The most important result is the number of messages that still contain an entity or part of an
entity. To measure this for your data, annotate a few hundred anonymised messages. A base model that
was trained for this task will miss far fewer entities, but not zero. Sensitive texts should be read
by a person before they are published.
"""

# %%
left = {"person": 0, "email address": 0, "phone number": 0}
safe = 0
for (_, spans), labels in zip(sent, marks, strict=True):
    kept = [label for start, end, label in spans if None in labels[start:end]]
    safe += not kept
    for label in kept:
        left[label] += 1
print(f"{safe} of {len(rows)} messages contain no entities. Remaining entities: {left}")
shown = [i for i, (text, spans) in enumerate(sent[:300]) if len(entities[i]) != len(spans)][:8]
true = [[dict(zip(("start", "end", "label"), s, strict=True)) for s in sent[i][1]] for i in shown]
picture = ez.display.entities([sent[i][0] for i in shown], [entities[i] for i in shown], true=true)
picture.show()
picture.save(OUTPUT / "anonymise_mistakes.html", title="Right, missed, made up")
