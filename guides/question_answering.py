"""Fine-tune a bundled BERT to answer questions from a text, and see where it looks.

    python guides/question_answering.py
    python guides/question_answering.py --ask "Who sings?" "Anna sings and Ben plays."

Everything is on your disk: the preset is in the package, an excerpt of SQuAD 1.1 (CC BY-SA 4.0) is
beside this file. Afterwards `guides/output/question_answering.html` shows held-out questions with
the answer marked and every word shaded by how likely the answer is to begin or end there.

Be warned: to answer questions takes a large model and much data. A nano model with a few hundred
questions learns what kind of words answers are made of, and little more; its scores stay low. For
more, there are `--preset bert_base_en_uncased` and `--data` with the whole of SQuAD, 1.1 or 2.0. In
its paper (Devlin et al. 2019, table 2) BERT-base reaches an F1 of 88.5 on SQuAD 1.1; that is the
paper's recipe, and no measurement of this guide.
"""

import argparse
import html
import itertools
import pathlib
import time

import keras
import numpy as np

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
PAGE = """<!doctype html><meta charset="utf-8"><title>Question answering</title>
<style>
body {{ font: 16px/1.8 system-ui, sans-serif; max-width: 46em; margin: 3em auto; color: #222; }}
h1 {{ font-size: 1.4em; }} h2 {{ font-size: 1.05em; margin: 2em 0 .3em; }}
p {{ margin: 0; }} .right {{ color: #2b8a3e; }} .wrong {{ color: #c92a2a; }}
span {{ border-radius: .2em; }} mark {{ background: none; outline: 2px solid #1c7ed6;
  border-radius: .2em; padding: .05em; }} .true {{ border-bottom: 3px solid #2b8a3e; }}
</style>
<h1>{title}</h1>
<p>Blue frame: the model's answer. Green line: the right one. Shade: how likely the answer begins
or ends at a word.</p>
{body}"""


def shades(model: ez.SpanQA, question: str, context: str) -> list[tuple[int, int, float]]:
    """(start, end, probability of being the answer's first or last) of the context's pieces."""
    [windows] = model.predict(([question], [context]))
    logits = windows[0]  # the first window is enough for a picture
    _, starts, ends = model.preprocessor.tokenizer.tokenize_with_offsets(context)
    column = int(model.preprocessor.context_column(model.preprocess(([question], [context])))[0])
    logits = logits[:, column:-1]
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return list(zip(starts.numpy(), ends.numpy(), probabilities.max(axis=0), strict=False))


def shaded(context: str, pieces: list, answer: dict, right: list[dict]) -> str:
    """A paragraph of HTML, character by character in runs of one look."""
    looks = np.zeros((len(context), 3))
    for start, end, probability in pieces:
        looks[start:end, 0] = round(float(probability) ** 0.5, 2)
    looks[answer["start"] : answer["end"], 1] = 1
    for true in right[:1]:
        looks[true["answer_start"] : true["answer_start"] + len(true["text"]), 2] = 1
    cuts = [0, *(np.flatnonzero((looks[1:] != looks[:-1]).any(axis=1)) + 1), len(context)]
    parts = []
    for start, end in itertools.pairwise(cuts):
        shade, guessed, right = looks[start]
        tag = "mark" if guessed else "span"
        kind = ' class="true"' if right else ""
        text = html.escape(context[start:end])
        style = f' style="background:rgba(255,146,43,{shade:.2f})"'
        parts.append(f"<{tag}{kind}{style}>{text}</{tag}>")
    return "<p>" + "".join(parts) + "</p>"


def write_page(
    model: ez.SpanQA,
    examples: list[dict],
    null_threshold: float | None,
    title: str,
    path: pathlib.Path,
) -> None:
    """Questions, answers and shaded contexts."""
    rows = []
    for example in examples:
        question, context, right = (example[k] for k in ("question", "context", "answers"))
        answer = model.answer(question, context, null_threshold=null_threshold)
        is_right = answer["text"] in ([true["text"] for true in right] or [""])
        rows.append(
            f"<h2>{html.escape(question)}</h2>"
            f'<p class="{"right" if is_right else "wrong"}">{html.escape(told(answer))}</p>'
            + shaded(context, shades(model, question, context), answer, right)
        )
    path.write_text(PAGE.format(title=title, body="\n".join(rows)), encoding="utf-8")


def told(answer: dict) -> str:
    """An answer and its share among all that are possible."""
    return f"{answer['text'] or 'No answer'} ({answer['score']:.2f})"


def summary(scores: dict) -> str:
    """The scores of SQuAD 1.1, or of 2.0, which calls them otherwise."""
    return f"exact match {scores['exact_match']:.1f}, F1 {scores['f1']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument(
        "--data", default=HERE / "data" / "squad_excerpt.json", help="in SQuAD's format"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--ask",
        nargs=2,
        action="append",
        metavar=("QUESTION", "CONTEXT"),
        help="your own question and the text that answers it; may be given several times",
    )
    options = parser.parse_args()
    start = time.perf_counter()
    keras.utils.set_random_seed(0)
    OUTPUT.mkdir(exist_ok=True)

    # Whole paragraphs are held back: a question about a text that was read is too easy.
    examples = ez.read_squad(options.data)
    contexts = list(dict.fromkeys(example["context"] for example in examples))
    held_back = set(contexts[::10])
    train = [e for e in examples if e["context"] not in held_back]
    held_out = [e for e in examples if e["context"] in held_back]
    # Only where some questions have no answer (SQuAD 2.0), the model may say that there is none.
    null_threshold = None if all(e["answers"] for e in examples) else 0.0

    # The whole job: load, fit on questions and contexts, ask.
    model = ez.SpanQA.from_preset(options.preset)
    before = model.evaluate_answers(held_out, null_threshold=null_threshold)
    model.fit(train, epochs=options.epochs, batch_size=16, verbose=2)
    after = model.evaluate_answers(held_out, null_threshold=null_threshold)

    print(f"\n{len(train)} questions to learn from, {len(held_out)} held out")
    print(f"before  {summary(before)}\nafter   {summary(after)}")
    shown = held_out[:: -(-len(held_out) // 30)]
    for question, context in options.ask or [(e["question"], e["context"]) for e in shown[::5]]:
        answer = model.answer(question, context, null_threshold=null_threshold)
        print(f"\n{question}\n  {told(answer)}")

    page = OUTPUT / "question_answering.html"
    write_page(model, shown, null_threshold, f"{options.preset}: {summary(after)}", page)
    print(f"\nShaded: {page}\n{time.perf_counter() - start:.0f} seconds in all")


if __name__ == "__main__":
    main()
