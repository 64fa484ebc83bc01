"""Find entailment among the classes of an NLI model; scores of labels from its logits.

Comment letters: N texts, M labels, C classes of the NLI model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keras import ops

from encoder_zoo.presets.formats.checkpoint import default_labels
from encoder_zoo.tasks.base.class_names import validated_labels

ADVICE = (
    "Name them in the order of the checkpoint's card, such as from_preset(source, "
    'labels=["contradiction", "neutral", "entailment"]).'
)


class NliClasses(NamedTuple):
    """Indices of two classes of an NLI model.

    Attributes:
        entailment: of the class that the hypothesis follows from the premise.
        contradiction: of the class that it cannot be true; of two classes that it does not follow.
    """

    entailment: int
    contradiction: int


def find_nli_classes(labels: Sequence[str] | None, num_classes: int | None) -> NliClasses:
    """Return which classes are entailment and contradiction, whatever their order and capitals.

    Args:
        labels: names of the classes; None if they have none.
        num_classes: C; None if there is no head.

    Raises:
        ValueError: "The classes have no names, LABEL_0, LABEL_1, LABEL_2: ...", "The classes are
            bad, good. Expected those of natural-language inference, ..."

    Example:
        >>> find_nli_classes(["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], 3)
        NliClasses(entailment=0, contradiction=2)
        >>> find_nli_classes(["not_entailment", "entailment"], 2)
        NliClasses(entailment=1, contradiction=0)
    """
    if labels is None and num_classes is not None:
        numbered = ", ".join(default_labels(num_classes))
        raise ValueError(
            f"The classes have no names, {numbered}: which of them is entailment is unknown. "
            f"{ADVICE}"
        )
    names = [label.lower() for label in labels or ()]
    entailing = [i for i, name in enumerate(names) if name.startswith("entail")]
    contrary = [i for i, name in enumerate(names) if name.startswith("contra")]
    if len(names) == 2 and len(entailing) == 1:
        contrary = [1 - entailing[0]]
    if len(entailing) != 1 or len(contrary) != 1:
        found = f"The classes are {', '.join(labels)}" if labels else "There are no classes"
        raise ValueError(
            f"{found}. Expected those of natural-language inference (NLI), in any order: "
            "entailment, neutral, contradiction; or entailment and not_entailment. Load a "
            "checkpoint that was trained on NLI, or fit a SequenceClassifier of pairs with these "
            "labels."
        )
    return NliClasses(entailing[0], contrary[0])


def label_scores(logits, classes: NliClasses, count: int, multi_label: bool):
    """Return the score of each label for each text, (N, M).

    Args:
        logits: (N * M, C) of the NLI model, of all labels of a text one after the other.
        classes: indices of entailment and contradiction.
        count: M.
        multi_label: whether each label is judged by itself, by entailment against contradiction;
            else the entailments of all labels against each other.

    Source: Yin et al. 2019, section 5, and the zero-shot pipeline of transformers.

    Example:
        >>> import numpy as np
        >>> logits = np.log(np.float32([[1, 1, 2], [1, 1, 6]]))
        >>> classes = NliClasses(entailment=2, contradiction=0)
        >>> for multi_label in (False, True):
        ...     print(ops.convert_to_numpy(label_scores(logits, classes, 2, multi_label)).round(3))
        [[0.25 0.75]]
        [[0.667 0.857]]
    """
    logits = ops.convert_to_tensor(logits)
    entailment = ops.reshape(logits[:, classes.entailment], (-1, count))
    if not multi_label:
        return ops.softmax(entailment, axis=-1)
    contradiction = ops.reshape(logits[:, classes.contradiction], (-1, count))
    return ops.sigmoid(entailment - contradiction)


def hypotheses_of(labels: Sequence[str], hypothesis_template: str, multi_label: bool) -> list[str]:
    """Return the sentence about each label.

    Args:
        labels: two or more; with `multi_label` one or more.
        hypothesis_template: with {} where the label goes.
        multi_label: see `label_scores`.

    Raises:
        ValueError: "hypothesis_template is 'About sports.'. Expected a sentence with one {} ...",
            "labels is 'sports' (str). Expected a list ...", "labels has one label, whose score ..."

    Example:
        >>> hypotheses_of(["sports", "politics"], "This text is about {}.", False)
        ['This text is about sports.', 'This text is about politics.']
    """
    if not isinstance(hypothesis_template, str) or hypothesis_template.count("{}") != 1:
        raise ValueError(
            f"hypothesis_template is {hypothesis_template!r:.80}. Expected a sentence with one "
            "{} where the label goes, such as 'This text is about {}.'"
        )
    names = validated_labels(labels)
    if not names or not all(name.strip() for name in names):
        raise ValueError(f"labels is {labels!r:.80}. Expected a list of names, none empty.")
    if len(names) == 1 and not multi_label:
        raise ValueError(
            f"labels has one label, {names[0]!r}, whose score among all labels is always 1. "
            "Expected two or more, or multi_label=True, which judges each by itself."
        )
    return [hypothesis_template.replace("{}", name) for name in names]
