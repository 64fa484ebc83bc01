"""Vocabularies learned from text."""

import random

import pytest
from not_installed import hide

from encoder_zoo.presets import train_vocabulary
from encoder_zoo.presets.train_vocabulary import (
    train_albert_unigram,
    train_byte_bpe,
    train_unigram,
    train_wordpiece,
)

TEXTS = ["The lowest of the low, lower than Élan."] * 20 + ["new newer newest"] * 10


@pytest.mark.slow
def test_wordpiece_vocabulary():
    tokenizer = train_wordpiece(TEXTS, 60)
    tokens = tokenizer.get_vocabulary()
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(tokens) == len(set(tokens)) <= 60
    assert {"low", "the", "elan"[:1]} <= set(tokens)
    assert not any(c.isupper() for token in tokens[5:] for c in token)
    assert 1 not in tokenizer.tokenize(TEXTS).values.numpy()


def test_wordpiece_of_the_same_texts_is_the_same():
    texts = ["".join(random.Random(seed).choices("abcdefghij", k=9)) for seed in range(50)]
    first, again = (train_wordpiece(texts, 90).get_vocabulary() for _ in range(2))
    assert list(first) == list(again)
    assert list(first[5:25]) == [f"##{c}" for c in "abcdefghij"] + list("abcdefghij")
    assert list(first) == list(train_wordpiece([" \n".join(texts)], 90).get_vocabulary())


def test_cased_wordpiece_keeps_case_and_accents():
    tokenizer = train_wordpiece(iter(TEXTS), 60, lowercase=False)
    assert not tokenizer.lowercase
    assert {"T", "É"} <= set(tokenizer.get_vocabulary())


@pytest.mark.slow
def test_byte_bpe_vocabulary():
    tokenizer = train_byte_bpe(iter(TEXTS), 280)
    tokens = tokenizer.get_vocabulary()
    assert tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokens[-1] == "<mask>"
    assert len(tokens) == 280
    assert len(tokenizer.merges) == 280 - 256 - 5
    assert tokenizer.detokenize(tokenizer.tokenize("½ 中")).numpy().decode() == "½ 中"


@pytest.mark.slow
def test_unigram_vocabulary():
    tokenizer = train_unigram(iter(TEXTS), 40)
    tokens = tokenizer.get_vocabulary()
    assert tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokens[-1] == "<mask>"
    assert len(tokens) == len(set(tokens)) <= 40
    assert "▁low" in tokens
    assert 3 not in tokenizer.tokenize(TEXTS).values.numpy()
    assert tokenizer.tokenize("ｌｏｗ").numpy().tolist() == [tokenizer.token_to_id("▁low")]


@pytest.mark.slow
def test_albert_vocabulary():
    tokenizer = train_albert_unigram(iter(TEXTS), 40)
    tokens = tokenizer.get_vocabulary()
    assert tokens[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert len(tokens) <= 40
    assert not {"É", "é", "T", "L"} & set("".join(tokens[5:]))
    assert 1 not in tokenizer.tokenize(TEXTS).values.numpy()
    assert "É" in "".join(train_albert_unigram(TEXTS, 40, lowercase=False).get_vocabulary())


def test_bad_arguments():
    with pytest.raises(ValueError, match="texts is 'abc'"):
        train_wordpiece("abc", 60)
    with pytest.raises(ValueError, match="texts is 'abc'"):
        train_unigram("abc", 60)
    with pytest.raises(ValueError, match="sentencepiece.*[Vv]ocab"):
        train_unigram(TEXTS, 5)
    with pytest.raises(ValueError, match="vocabulary_size is 100.*261"):
        train_byte_bpe(TEXTS, 100)


def test_missing_library_is_named(monkeypatch):
    hide(monkeypatch, train_vocabulary.tokenizers)
    with pytest.raises(ImportError, match="pip install tokenizers"):
        train_wordpiece(TEXTS, 60)


def test_missing_sentencepiece_is_named(monkeypatch):
    hide(monkeypatch, train_vocabulary.sentencepiece)
    with pytest.raises(ImportError, match="pip install sentencepiece"):
        train_unigram(TEXTS, 60)
