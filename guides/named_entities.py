"""Fine-tune a bundled BERT to find names in tweets, and look at them highlighted.

    python guides/named_entities.py

Everything is on your disk: the preset is in the package, 1,200 sentences of WNUT-17 (CC BY 4.0) are
beside this file. Afterwards `guides/output/named_entities.html` shows held-out sentences with what
the model found, what it missed and what it made up.

WNUT-17 is hard on purpose: its names are rare and new, and people write them carelessly. The best
systems of 2017 found 42 % (F1) on its test set with all of the data and far larger models. A nano
model that reads lower case finds the more usual names; do not expect more. For results on your own
data, pass `--preset bert_base_en_uncased`, or a folder, and `--data` with a file in the form of
ours: a word, a tab and its tag (O, B-person, I-person) in every line, an empty line after every
sentence. Its first 200 sentences are held out.
"""

import argparse
import html
import pathlib
import time

import keras

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
COLORS = ["#ffd8a8", "#a5d8ff", "#b2f2bb", "#eebefa", "#ffc9c9", "#ffec99"]
MINE = [
    "Just landed in Chicago, meeting Michael at the airport!",
    "watching Arsenal lose again while London is on strike",
]
PAGE = """<!doctype html><meta charset="utf-8"><title>Named entities</title>
<style>
body {{ font: 16px/1.9 system-ui, sans-serif; max-width: 46em; margin: 3em auto; color: #222; }}
h1 {{ font-size: 1.4em; }} p {{ border-bottom: 1px solid #eee; padding-bottom: .5em; }}
mark {{ padding: .15em .35em; border-radius: .35em; }}
small {{ font-size: .65em; font-weight: 600; margin-left: .4em; opacity: .65; }}
.missed {{ background: none; border-bottom: 2px dashed #e03131; border-radius: 0; }}
.wrong {{ outline: 2px solid #e03131; }}
</style>
<h1>{title}</h1>
<p>Colour: found and right. Red frame: made up, or not quite right. Dashed red: missed.</p>
{body}"""


def read_sentences(path: pathlib.Path) -> tuple[list[list[str]], list[list[str]]]:
    """Words and tags of every sentence."""
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    rows = [[line.split("\t") for line in block.split("\n")] for block in blocks]
    return [[word for word, _ in row] for row in rows], [[tag for _, tag in row] for row in rows]


def true_entities(words: list[str], tags: list[str]) -> set[tuple[str, int, int]]:
    """(type, start, end) in characters of the words with one space between them."""
    spans, start = [], 0
    for word, tag in zip(words, tags, strict=True):
        end = start + len(word)
        if tag.startswith("B-"):
            spans.append([tag[2:], start, end])
        elif tag.startswith("I-"):
            spans[-1][2] = end
        start = end + 1
    return {tuple(span) for span in spans}


def highlighted(text: str, found: list[dict], true: set, colors: dict[str, str]) -> str:
    """A paragraph of HTML."""
    guesses = {(e["label"], e["start"], e["end"]) for e in found}
    marks = [(start, end, label, "right") for label, start, end in guesses & true]
    marks += [(start, end, label, "wrong") for label, start, end in guesses - true]
    covered = [(start, end) for start, end, _, _ in marks]
    marks += [
        (start, end, label, "missed")
        for label, start, end in true - guesses
        if all(end <= s or e <= start for s, e in covered)
    ]
    parts, place = [], 0
    for start, end, label, kind in sorted(marks):
        color = "" if kind == "missed" else f' style="background:{colors[label]}"'
        parts.append(html.escape(text[place:start]))
        parts.append(f'<mark class="{kind}"{color}>{html.escape(text[start:end])}')
        parts.append(f"<small>{html.escape(label)}</small></mark>")
        place = end
    return "<p>" + "".join(parts) + html.escape(text[place:]) + "</p>"


def write_page(classifier, words, tags, title: str, path: pathlib.Path) -> None:
    """Held-out sentences with an entity, and two of our own."""
    types = sorted({label[2:] for label in classifier.labels if label != "O"})
    colors = dict(zip(types, COLORS * 9, strict=False))
    found = classifier.extract_entities(words, strategy="first")
    rows = [
        highlighted(" ".join(sentence), entities, true_entities(sentence, tag), colors)
        for sentence, tag, entities in zip(words, tags, found, strict=True)
        if entities or true_entities(sentence, tag)
    ][:40]
    mine = classifier.extract_entities(MINE, strategy="first")
    for text, entities in zip(MINE, mine, strict=True):
        true = {(e["label"], e["start"], e["end"]) for e in entities}  # nobody knows better
        rows.insert(0, highlighted(text, entities, true, colors))
    path.write_text(PAGE.format(title=title, body="\n".join(rows)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--data", type=pathlib.Path, default=HERE / "data" / "wnut17_excerpt.conll")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    start = time.perf_counter()
    keras.utils.set_random_seed(0)
    OUTPUT.mkdir(exist_ok=True)

    words, tags = read_sentences(options.data)
    held_out_words, held_out_tags = words[:200], tags[:200]

    # The whole job: load, fit on words with tags, ask. The labels are learned from the data.
    classifier = ez.TokenClassifier.from_preset(options.preset)
    classifier.fit(
        words[200:],
        tags[200:],
        validation_data=(held_out_words, held_out_tags),
        epochs=options.epochs,
        batch_size=16,
        verbose=2,
    )
    scores = classifier.evaluate_entities(held_out_words, held_out_tags)

    print(f"\nHeld-out entity F1 {scores['f1']:.3f}, of that by type:")
    for label, values in scores["per_type"].items():
        counts = f"precision {values['precision']:.2f}, recall {values['recall']:.2f}"
        print(f"  {label:14} {counts}, {values['support']:.0f} true entities")
    for text in MINE:
        print(f"\n{text}")
        for entity in classifier.extract_entities(text, strategy="first"):
            print(f"  {entity['label']}: {entity['text']} ({entity['score']:.2f})")

    page = OUTPUT / "named_entities.html"
    title = f"{options.preset} on {options.data.stem}: entity F1 {scores['f1']:.2f}"
    write_page(classifier, held_out_words, held_out_tags, title, page)
    print(f"\nHighlighted: {page}\n{time.perf_counter() - start:.0f} seconds in all")


if __name__ == "__main__":
    main()
