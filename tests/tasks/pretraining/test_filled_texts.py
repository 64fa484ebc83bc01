"""`fill_mask`'s texts have the tokens that were scored, for every kind of tokenizer."""

import numpy as np
import pytest
from paths import CHECKPOINTS

import encoder_zoo as ez

FAMILIES = sorted(path.name for path in CHECKPOINTS.glob("*_ForMaskedLM"))
FRAMES = [
    "a {} cat",
    "a  {} cat",
    "a\n{} sat",
    "{} cat",
    " {} sat",
    "the cat {}",
    "the cat {}.",
    "cat, {} sat",
    "the ({} cat",
    "the-{} cat",
    "a {}, cat",
    "cat{} sat",
    "the {}cat",
    "a {} {} cat",
    "a {}{} sat",
    "{}",
]


@pytest.mark.slow(except_for="^Bert_", every=True)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_has_the_tokens_that_were_scored(family):
    model = ez.MaskedLM.from_preset(CHECKPOINTS / family)
    tokenizer = model.served_tokenizers[0]
    texts = [frame.replace("{}", tokenizer.mask_token) for frame in FRAMES]
    scored = tokenizer.tokenize(texts).to_list()
    words = tokenizer.detokenize(np.arange(tokenizer.vocabulary_size)[:, None]).numpy()
    filled, expected = [], []
    for ids, answers in zip(scored, model.fill_mask(texts, top_k=30), strict=True):
        masks = [i for i, token in enumerate(ids) if token == tokenizer.mask_token_id]
        rows = answers if len(masks) > 1 else [answers]
        for mask, row in zip(masks, rows, strict=True):
            for answer in row:
                token = tokenizer.token_to_id(answer["token"])
                # Not of a special token, of "▁", or of a token that goes on: "##s" begins no text.
                if words[token].strip() and tokenizer.token_format.starts_word(answer["token"]):
                    filled.append(answer["text"])
                    expected.append([*ids[:mask], token, *ids[mask + 1 :]])
    assert len(filled) > 5
    # A vocabulary has tokens that its own segmentation never finds, such as "bad" here.
    found = tokenizer.tokenize(filled)
    spelled = (tokenizer.detokenize(ids, False).numpy() for ids in (found, [*expected]))
    differs = [
        (text, got, right)
        for text, got, right in zip(filled, *map(list, spelled), strict=True)
        if got != right
    ]
    assert not differs


@pytest.mark.slow
def test_no_blank_is_doubled():
    model = ez.MaskedLM.from_preset("roberta_nano_en")
    [answers, first] = model.fill_mask(["A <mask> film", "<mask> are good films"], top_k=200)
    texts = {answer["token"]: answer["text"] for answer in answers}
    assert texts["Ġgood"] == "A good film"
    assert not any(text.startswith("A  ") for text in texts.values())
    # As transformers writes it: the token has a space before it, also at the text's begin.
    assert {a["text"][0] for a in first if a["token"].startswith("Ġ")} == {" "}


@pytest.mark.slow
def test_targets_are_the_same_tokens_with_the_same_scores():
    """The scores stay those among all tokens, as transformers' pipeline has them."""
    model = ez.MaskedLM.from_preset("bert_nano_en_uncased")
    scores = {row["token"]: row["score"] for row in model.fill_mask("A [MASK] film.", top_k=5000)}
    chosen = model.fill_mask("A [MASK] film.", targets=["bad", "good"])
    assert {row["token"] for row in chosen} == {"bad", "good"}
    assert [row["score"] for row in chosen] == sorted(scores[w] for w in ("bad", "good"))[::-1]
    for targets in (["unbelievablylong"], "good", [], [3]):
        with pytest.raises(ValueError, match=r"^targets"):
            model.fill_mask("A [MASK] film.", targets=targets)


@pytest.mark.slow
def test_the_tokens_are_those_of_the_preprocessor_of_now():
    """What the spellings of a vocabulary are kept for is another after another tokenizer."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backbone = ez.BertBackbone(7, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    model, found = None, []
    for words in (["cat", "dog"], ["sun", "sea"]):
        preprocessor = ez.MaskedLMPreprocessor(ez.BertTokenizer([*names, *words]))
        model = model or ez.MaskedLM(backbone, preprocessor)
        model.preprocessor = preprocessor
        answers = model.fill_mask("[MASK]", top_k=7)
        found.append([answer["token"] for answer in answers if answer["token"] not in names])
    first, second = found
    assert sorted(first) == ["cat", "dog"]
    assert second == [{"cat": "sun", "dog": "sea"}[word] for word in first]  # the same ids
