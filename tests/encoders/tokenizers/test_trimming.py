"""A trimmed vocabulary: texts have the same tokens, and each kept token has a reason."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import GOLDEN
from tokenizers import Tokenizer as Library

import encoder_zoo as ez
from encoder_zoo.encoders.tokenizers import TOKENIZERS, tokenizer
from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
from encoder_zoo.encoders.tokenizers.files.special_tokens import Template
from encoder_zoo.encoders.tokenizers.trimming import count_changed_tokens, trim_tokenizer
from encoder_zoo.testing import tiny

pytestmark = pytest.mark.eager

TOKENS = json.loads((GOLDEN / "tokens.json").read_text())
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
XLM = ["<s>", "<pad>", "</s>", "<unk>"]


@pytest.fixture(autouse=True, scope="module")
def by_the_library():
    """Other tests of this folder use the graphs, which take a second for each vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "LIBRARY_BYTES", 2**20)
        yield


each_kind = pytest.mark.parametrize("kind", TOKENIZERS, ids=lambda kind: kind.name)


def names(found, texts):
    tokens = found.get_vocabulary()
    return [[tokens[i] for i in row] for row in found.tokenize(texts).to_list()]


def with_scores(scores: dict, **options):
    special = dict.fromkeys(XLM)
    scores = {**special, **scores, "<mask>": None}
    return ez.XLMRobertaTokenizer(list(scores), list(scores.values()), **options)


# Words over the letters of the tiny vocabularies, letters without a token, and spaces.
TEXTS = st.lists(st.text(st.sampled_from("aabbccdefghpqz  é"), max_size=9), min_size=1, max_size=5)


@each_kind
@settings(max_examples=10)  # of up to five texts, for each of the 13 kinds
@given(texts=TEXTS)
def test_texts_have_the_same_tokens(kind, texts):
    whole = tiny.build_tokenizer(kind)
    trimmed, kept = trim_tokenizer(whole, texts)
    assert names(trimmed, texts) == names(whole, texts)
    assert trimmed.get_vocabulary() == [whole.get_vocabulary()[i] for i in kept]
    for role in ("start_token", "end_token", "pad_token", "mask_token", "unknown_token"):
        assert trimmed.id_to_token(getattr(trimmed, f"{role}_id")) == getattr(whole, role)


@pytest.mark.parametrize("kind", [k for k in TOKENIZERS if k.name != "BertweetTokenizer"])
def test_the_library_reads_the_same_tokens_from_the_saved_file(kind):
    texts = ["ab a  cd", "", "c d e\tab", "pé ab"]
    whole = tiny.build_tokenizer(kind)
    expected = Library.from_str(whole.to_files()["tokenizer.json"])
    trimmed, _ = trim_tokenizer(whole, texts)
    found = Library.from_str(trimmed.to_files()["tokenizer.json"])
    assert found.get_vocab_size() == trimmed.vocabulary_size
    for text in texts:
        assert found.encode(text).tokens == expected.encode(text).tokens
        assert (
            found.encode(text, add_special_tokens=False).ids
            == trimmed.tokenize([text]).to_list()[0]
        )


@pytest.mark.parametrize("name", ["bert_nano_en_uncased", "roberta_nano_en"])
def test_real_vocabularies_and_texts(name):
    whole = ez.Tokenizer.from_preset(name)
    trimmed, kept = trim_tokenizer(whole, TOKENS["texts"])
    assert names(trimmed, TOKENS["texts"]) == names(whole, TOKENS["texts"])
    assert len(kept) < 0.5 * whole.vocabulary_size


@pytest.mark.parametrize("name", ["nmt_nfkc", "bytes", "bpe", "bpe_spaces"])
def test_models_of_sentencepiece(name):
    content = (GOLDEN / "sentencepiece" / f"{name}.model").read_bytes()
    whole = ez.XLMRobertaTokenizer.from_sentencepiece(content)
    texts = TOKENS["texts"][:6]
    trimmed, kept = trim_tokenizer(whole, texts)
    assert names(trimmed, texts) == names(whole, texts)
    assert len(kept) < whole.vocabulary_size
    again = ez.XLMRobertaTokenizer.from_sentencepiece(trimmed.proto)
    assert names(again, texts) == names(whole, texts)


class TestWordPiece:
    def test_tokens_that_match_in_an_unknown_word_are_kept(self):
        # "abd" fails after "ab". Without "ab", it would be split into "a" and "##bd".
        whole = ez.BertTokenizer([*BERT, "a", "ab", "c", "##bd", "##x", "unused"])
        trimmed, kept = trim_tokenizer(whole, ["abd", "a", "cbd"])
        assert kept == [0, 1, 2, 3, 4, 5, 6, 7, 8]
        assert names(trimmed, ["abd"]) == [["[UNK]"]]

    def test_unknown_words_are_normalized_first(self):
        whole = ez.BertTokenizer([*BERT, "a", "ae", "c", "##ed"])
        trimmed, kept = trim_tokenizer(whole, ["AÉD!", "a", "ced"])
        assert len(kept) == 9
        assert names(trimmed, ["AÉD!"]) == [["[UNK]", "[UNK]"]]

    def test_a_very_long_word_needs_no_tokens(self):
        whole = ez.BertTokenizer([*BERT, "a", "##a", "b"])
        _, kept = trim_tokenizer(whole, ["a" * 101])
        assert kept == [0, 1, 2, 3, 4]


class TestBPE:
    @staticmethod
    def tokenizer(merges, *more):
        tokens = [
            *XLM,
            "<mask>",
            *make_byte_alphabet(),
            *(m.replace(" ", "") for m in merges),
            *more,
        ]
        return ez.RobertaTokenizer({token: i for i, token in enumerate(tokens)}, merges)

    def test_tokens_on_the_way_are_kept_and_other_merges_are_not(self):
        whole = self.tokenizer(["b c", "a b", "a bc", "x y"])
        trimmed, _ = trim_tokenizer(whole, ["abc"])
        assert trimmed.get_vocabulary()[-2:] == ["bc", "abc"]
        assert trimmed.merges == ["b c", "a bc"]

    def test_all_bytes_are_kept(self):
        trimmed, _ = trim_tokenizer(self.tokenizer(["a b"]), ["ab"])
        assert set(make_byte_alphabet()) <= set(trimmed.get_vocabulary())
        assert "".join(names(trimmed, ["日"])[0]) == "æĹ¥"

    def test_ids_without_a_token_are_left_out(self):
        tokens = [*XLM, "<mask>", *make_byte_alphabet()]
        whole = ez.RobertaTokenizer({token: 2 * i for i, token in enumerate(tokens)}, [])
        trimmed, kept = trim_tokenizer(whole, ["a"])
        assert trimmed.vocabulary_size == len(tokens) and kept == list(range(0, 2 * len(tokens), 2))

    def test_words_that_are_tokens_keep_their_token(self):
        tokens = [
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|mask|>",
            *make_byte_alphabet(),
            "cat",
            "dog",
        ]
        whole = ez.EuroBertTokenizer({token: i for i, token in enumerate(tokens)}, [])
        trimmed, _ = trim_tokenizer(whole, ["cat"])
        assert trimmed.get_vocabulary()[-1] == "cat"
        assert names(trimmed, ["cat"]) == [["cat"]]

    def test_bytes_of_characters_are_kept(self):
        octets = [f"<0x{byte:02X}>" for byte in range(256)]
        tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *octets, "▁", "a", "b", "▁a", "ab"]
        whole = ez.GemmaTokenizer(tokens, ["▁ a", "a b"])
        trimmed, _ = trim_tokenizer(whole, ["ab"])
        assert trimmed.get_vocabulary()[-3:] == ["a", "b", "ab"]
        assert names(trimmed, ["é"]) == [["<0xC3>", "<0xA9>"]]


class TestUnigram:
    def test_the_lowest_score_is_kept(self):
        # Unknown characters cost 10 more than the lowest score. "▁?b" and "c" with -24 are better
        # than "▁", an unknown character and "bc" with -32, but not if the lowest score were -12.
        scores = {"▁?b": -12.0, "c": -12.0, "▁bc": -1.0, "▁": -1.0, "bc": -1.0, "low": -20.0}
        whole = with_scores({**scores, "unused": -13.0})
        trimmed, _ = trim_tokenizer(whole, ["?bc", "▁ abc"])
        assert names(trimmed, ["?bc"]) == [["▁?b", "c"]]
        assert trimmed.get_vocabulary()[4:-1] == ["▁?b", "c", "▁", "bc", "low"]

    def test_tokens_with_fixed_positions_are_kept(self):
        front = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
        scores = [None, None, None, None, -100.0, None, None, -2.0, -3.0, None]
        whole = ez.CamembertTokenizer([*front, "▁oui", "▁non", "<mask>"], scores)
        trimmed, kept = trim_tokenizer(whole, ["oui"])
        assert kept == [0, 1, 2, 3, 4, 5, 6, 7, 9]
        again = ez.CamembertTokenizer.from_sentencepiece(trimmed.proto)
        assert again.get_vocabulary() == trimmed.get_vocabulary()


def test_the_tokens_of_a_template_are_kept_with_new_ids():
    template = Template(("[CLS]", "x"), ("[SEP]",), ("[SEP]",), ("[SEP]",), True)
    tokens = [*BERT, "y", "x", "a"]
    step = template.to_step({token: i for i, token in enumerate(tokens)})
    trimmed, _ = trim_tokenizer(ez.BertTokenizer(tokens, post_processor=step), ["a"])
    assert trimmed.get_vocabulary() == [*BERT, "x", "a"]
    assert trimmed.template_ids.before == (2, 5)
    assert trimmed.post_processor["special_tokens"]["x"]["ids"] == [5]


class TestAddedTokens:
    def test_they_keep_their_options_with_new_ids(self):
        options = [{"content": "<e>", "lstrip": True, "id": 9}, {"content": "b", "special": True}]
        whole = ez.BertTokenizer([*BERT, "a", "b", "c"], added_tokens=options)
        trimmed, kept = trim_tokenizer(whole, ["c <e>"])
        assert kept == [0, 1, 2, 3, 4, 6, 7, 9]
        assert [token["id"] for token in trimmed.added_tokens] == [7, 5]
        for before, after in zip(whole.added_tokens, trimmed.added_tokens, strict=True):
            assert {**before, "id": 0} == {**after, "id": 0}
        assert names(trimmed, ["c <e> b"]) == [["c", "<e>", "b"]]

    def test_an_id_between_tokens(self):
        tokens = [*BERT, "a", "[unused id 6]", "b"]
        options = [{"content": "<e>", "id": 6}]
        whole = ez.BertTokenizer(tokens, added_tokens=options)
        trimmed, _ = trim_tokenizer(whole, ["b"])
        assert trimmed.get_vocabulary()[5:] == ["<e>", "b"]
        assert names(trimmed, ["b<e>"]) == [["b", "<e>"]]


def test_other_ids_can_be_kept_with_all_that_is_merged_to_them():
    whole = TestBPE.tokenizer(["b c", "a bc"])
    trimmed, kept = trim_tokenizer(whole, ["x"], [whole.token_to_id("abc")])
    assert names(trimmed, ["abc"]) == [["abc"]] and len(kept) == whole.vocabulary_size


def test_a_text_with_other_tokens_is_refused(monkeypatch):
    from encoder_zoo.encoders.tokenizers import trimming

    monkeypatch.setattr(trimming, "_match_longest", lambda word, known: [])
    whole = ez.BertTokenizer([*BERT, "a", "ab", "c", "##bd"])
    with pytest.raises(ValueError, match=re.escape("'abd'")):
        trim_tokenizer(whole, ["a", "abd", "cbd"])


def test_changed_tokens_are_counted():
    whole = ez.BertTokenizer([*BERT, "a", "ab", "##b", "c"])
    trimmed, _ = trim_tokenizer(whole, ["a", "ab"])
    changed, count = count_changed_tokens(whole, trimmed, ["ab a", "c a ab c", "", "zz", "ab b"])
    assert changed.tolist() == [0, 2, 0, 0, 0]
    assert count.tolist() == [2, 4, 0, 1, 2]
    assert isinstance(changed, np.ndarray)
