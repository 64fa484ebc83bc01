"""Pairs of ALBERT's sentence-order objective."""

import pytest

import encoder_zoo as ez

DOCUMENTS = [[f"d{d} s{s}" for s in range(d % 7)] for d in range(300)]


def test_pairs_are_neighbours_of_one_document_and_half_of_them_are_swapped():
    (first, second), labels = ez.sentence_order_pairs(DOCUMENTS)
    assert len(first) == sum(len(document) // 2 for document in DOCUMENTS)
    for a, b, label in zip(first, second, labels, strict=True):
        if label == "swapped":
            a, b = b, a
        document, sentence = a.split()
        assert sentence in ("s0", "s2", "s4") and b == f"{document} s{int(sentence[1:]) + 1}"
    share = labels.count("swapped") / len(labels)
    assert abs(share - 0.5) < 4 * 0.5 / len(labels) ** 0.5
    assert ez.sentence_order_pairs(DOCUMENTS)[1] == labels
    assert ez.sentence_order_pairs(DOCUMENTS, seed=1)[1] != labels


def test_every_text_stands_in_one_pair():
    (first, second), _ = ez.sentence_order_pairs(DOCUMENTS)
    assert len({*first, *second}) == 2 * len(first)


def test_a_text_in_place_of_a_document_is_refused():
    with pytest.raises(ValueError, match=r"documents\[1\] is "):
        ez.sentence_order_pairs([["a", "b"], "a b"])
