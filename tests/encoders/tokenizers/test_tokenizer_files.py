"""The tokenizer files of a Hugging Face folder, read and written."""

import functools
import json
import logging

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece

from encoder_zoo.common.wording import decode_text
from encoder_zoo.encoders import list_families
from encoder_zoo.encoders.tokenizers import BYTE_BPE, WORDPIECE
from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
from encoder_zoo.encoders.tokenizers.comparison import create_tokenizer
from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet, parse_merges
from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.formats.stored_tokenizer import read_tokenizer_files
from encoder_zoo.tasks.classification.sequence_classifier_preprocessor import (
    SequenceClassifierPreprocessor,
)

pytestmark = pytest.mark.eager

BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "Cat", "##s", "é", "中", ","]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", *make_byte_alphabet(), "Ġc", "Ġca", "<mask>"]
TEXTS = ["Cats, cat CAT é É 中中", "", "a  cat\n\ncats's", " cat"]


@functools.cache  # traced once
def bert(**options):
    return BertTokenizer(BERT_TOKENS, **options)


@functools.cache
def roberta(**options):
    vocabulary = {token: i for i, token in enumerate(ROBERTA_TOKENS)}
    return RobertaTokenizer(vocabulary, ["Ġ c", "Ġc a"], **options)


def write_tokenizer(tokenizer, folder):
    folder.mkdir(exist_ok=True)
    for name, text in tokenizer.to_files().items():
        (folder / name).write_text(text, encoding="utf-8")


def read_bert_tokenizer(folder):
    with OpenFolder(folder, ["*"]) as files:
        return create_tokenizer(BertTokenizer, read_tokenizer_files(files, WORDPIECE))


def read_roberta_tokenizer(folder):
    with OpenFolder(folder, ["*"]) as files:
        return create_tokenizer(RobertaTokenizer, read_tokenizer_files(files, BYTE_BPE))


CASES = {
    "uncased": (bert, {}, read_bert_tokenizer),
    "cased": (
        bert,
        {"lowercase": False, "strip_accents": True, "split_chinese_characters": False},
        read_bert_tokenizer,
    ),
    "roberta": (roberta, {}, read_roberta_tokenizer),
    "roberta with a prefix space": (roberta, {"add_prefix_space": True}, read_roberta_tokenizer),
}


@pytest.mark.parametrize("name", CASES)
def test_written_files_read_back(tmp_path, name):
    make, options, read = CASES[name]
    tokenizer = make(**options)
    write_tokenizer(tokenizer, tmp_path / "new")
    assert read(tmp_path / "new").get_config() == tokenizer.get_config()
    for path in tmp_path.glob("new/*"):
        if path.name in ("vocab.txt", "vocab.json", "merges.txt"):
            path.unlink()  # tokenizer.json alone will do
    assert read(tmp_path / "new").get_config() == tokenizer.get_config()


@pytest.mark.slow(except_for="^(cased|uncased)")
@pytest.mark.parametrize("name", CASES)
def test_the_library_reads_the_same_ids(tmp_path, name):
    make, options, _ = CASES[name]
    tokenizer = make(**options)
    write_tokenizer(tokenizer, tmp_path)
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = [e.ids for e in library.encode_batch(TEXTS, add_special_tokens=False)]
    assert tokenizer.tokenize(TEXTS).to_list() == expected
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    pair = library.encode("cat", "cat").ids
    separators = [end] * tokenizer.pair_separators
    one = tokenizer.tokenize("cat").numpy().tolist()
    assert pair == [start, *one, *separators, *one, end]


def test_the_library_finds_the_mask(tmp_path):
    tokenizer = roberta(special_tokens_in_text=True)
    write_tokenizer(tokenizer, tmp_path)
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "a <mask> cat</s>"
    assert (
        library.encode(text, add_special_tokens=False).ids
        == tokenizer.tokenize(text).numpy().tolist()
    )


def write(folder, **files):
    """Files by their names without .json; vocab is vocab.txt's."""
    for name, content in files.items():
        if name == "vocab":
            (folder / "vocab.txt").write_text("\n".join(content) + "\n", encoding="utf-8")
        else:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("config", "tokens", "lowercase"),
    [
        ({"do_lower_case": False}, BERT_TOKENS[:6], False),
        ({"do_lower_case": True}, BERT_TOKENS, True),
        ({}, BERT_TOKENS, False),  # the vocabulary has "Cat"
        ({}, [t for t in BERT_TOKENS if t != "Cat"], True),
    ],
)
def test_lower_casing_is_read_or_seen_in_the_vocabulary(tmp_path, config, tokens, lowercase):
    write(tmp_path, vocab=tokens, tokenizer_config=config)
    assert read_bert_tokenizer(tmp_path).lowercase is lowercase


def test_a_setting_that_only_tokenizer_json_has_is_pointed_out(tmp_path, caplog):
    write_tokenizer(bert(lowercase=False), tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert not read_bert_tokenizer(tmp_path).lowercase and not caplog.text
    del config["do_lower_case"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert not read_bert_tokenizer(tmp_path).lowercase
    assert "do_lower_case is False in tokenizer.json" in caplog.text


def test_settings_and_names_of_special_tokens(tmp_path):
    tokens = ["<p>", "<u>", "<c>", "<s>", "<m>", "é"]
    config = {"strip_accents": False, "tokenize_chinese_chars": False, "do_lower_case": True}
    names = {"cls_token": "<c>", "sep_token": {"content": "<s>"}, "pad_token": "<p>"}
    names |= {"mask_token": "<m>", "unk_token": "<u>"}
    write(tmp_path, vocab=tokens, tokenizer_config=config, special_tokens_map=names)
    tokenizer = read_bert_tokenizer(tmp_path)
    assert tokenizer.special_token_ids == (2, 3, 0, 4, 1)
    assert tokenizer.strip_accents is False
    assert tokenizer.split_chinese_characters is False
    assert tokenizer.tokenize("É").numpy().tolist() == [5]


def test_merges_written_as_strings(tmp_path):
    write_tokenizer(roberta(), tmp_path)
    (tmp_path / "vocab.json").unlink()
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    write(tmp_path, tokenizer=content)
    assert read_roberta_tokenizer(tmp_path).merges == ["Ġ c", "Ġc a"]


def test_added_word_is_pointed_out(tmp_path, caplog):
    write_tokenizer(bert(), tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["added_tokens"].append({"id": 11, "content": "new word", "special": False})
    write(tmp_path, tokenizer=content)
    (tmp_path / "vocab.txt").unlink()
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        assert read_bert_tokenizer(tmp_path).token_to_id("new word") == 11


def changed(part, field, value):
    def change(content):
        content[part] = {**(content[part] or {}), field: value}

    return change


@pytest.mark.parametrize(
    ("make", "read", "change", "message"),
    [
        (
            bert,
            read_bert_tokenizer,
            changed("normalizer", "type", "NFC"),
            "normalizer is {'type': 'NFC'",
        ),
        (
            bert,
            read_bert_tokenizer,
            changed("pre_tokenizer", "type", "Whitespace"),
            "pre_tokenizer is {'type': 'Whitespace'}",
        ),
        (bert, read_bert_tokenizer, changed("model", "type", "BPE"), "model.type is 'BPE'"),
        (roberta, read_roberta_tokenizer, changed("normalizer", "type", "NFC"), "normalizer is"),
        (
            roberta,
            read_roberta_tokenizer,
            changed("pre_tokenizer", "type", "Split"),
            "pre_tokenizer is.*'Split'.*'ByteLevel'",
        ),
        (
            roberta,
            read_roberta_tokenizer,
            changed("model", "ignore_merges", True),
            "model.ignore_merges is True",
        ),
    ],
)
def test_other_pipelines_are_refused(tmp_path, make, read, change, message):
    write_tokenizer(make(), tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    change(content)
    write(tmp_path, tokenizer=content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path)


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"vocab.txt.*tokenizer.json"):
        read_bert_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"vocab.json.*merges.txt.*tokenizer.json"):
        read_roberta_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer_config.json.*JSON"):
        read_bert_tokenizer(tmp_path)
    write(tmp_path, tokenizer_config={"do_lower_case": "no"}, vocab=BERT_TOKENS)
    with pytest.raises(ValueError, match=r"tokenizer_config.json: do_lower_case is 'no'"):
        read_bert_tokenizer(tmp_path)
    write(tmp_path, tokenizer_config=[1])
    with pytest.raises(ValueError, match=r"tokenizer_config.json.*list"):
        read_bert_tokenizer(tmp_path)


@pytest.mark.slow
def test_from_preset(minilm):
    tokenizer = BertTokenizer.from_preset(minilm)
    assert tokenizer.tokenize("Héllo wörld").numpy().tolist() == [7592, 2088]
    with pytest.raises(ValueError, match="contains a BertTokenizer"):
        RobertaTokenizer.from_preset(minilm)


@pytest.mark.parametrize("family", list_families(), ids=lambda family: family.name)
def test_a_familys_tokenizer_is_of_its_class_and_writes_its_files(tiny, family):
    tokenizer = tiny.tokenizer(family)
    assert type(tokenizer) is family.tokenizer.load()
    written = tokenizer.to_files()
    assert set(family.tokenizer.files) < set(written)
    name = json.loads(written["tokenizer_config.json"])["tokenizer_class"]
    assert name.removesuffix("Fast") in family.tokenizer.checkpoint_names


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("make", "segments", "separators"),
    [
        (bert, True, 1),
        *(
            pytest.param(bert, segments, separators, marks=pytest.mark.slow)
            for segments, separators in ((False, 1), (False, 2), (True, 2))
        ),
        pytest.param(roberta, False, 2, marks=pytest.mark.slow),
        (roberta, True, 1),
    ],
)
def test_the_library_puts_pairs_together_as_the_template_says(tmp_path, make, separators, segments):
    tokenizer = make(uses_segments=segments, pair_separators=separators)
    write_tokenizer(tokenizer, tmp_path)
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoded = library.encode("cat", "cat")
    inputs = SequenceClassifierPreprocessor(tokenizer)((["cat"], ["cat"]))
    assert encoded.ids == inputs["token_ids"][0].numpy().tolist()
    ours = inputs["segment_ids"][0].numpy().tolist() if segments else [0] * len(encoded.ids)
    assert encoded.type_ids == ours
    assert segments == ("segment_ids" in inputs)


def test_an_id_far_beyond_the_tokens_is_refused_before_it_takes_memory(tmp_path):
    write_tokenizer(bert(), tmp_path)
    (tmp_path / "vocab.txt").unlink()
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["x"] = 4_000_000_000
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"model\.vocab.*4000000000"):
        read_bert_tokenizer(tmp_path)


def test_tokens_added_behind_a_vocab_txt_keep_their_ids(tmp_path, caplog):
    write_tokenizer(bert(), tmp_path)
    size = bert().vocabulary_size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": size}))
    tokenizer = read_bert_tokenizer(tmp_path)
    assert tokenizer.id_to_token(size) == "[E1]" and tokenizer.vocabulary_size == size + 1


# All at which `str.splitlines` ends a line, and further white space; "\r\n" is an end for all.
BREAKS = "\r \x0b \x0c \x1c \x1d \x1e \x1f \x85 \u2028 \u2029 \r\n \xa0 \u3000 \u200b \ufeff".split(
    " "
)


@pytest.mark.slow(except_for=r"^'\\\\u2028")
@pytest.mark.parametrize("character", BREAKS, ids=ascii)
def test_lines_of_a_vocabulary_are_those_of_the_library(character, tmp_path):
    """Which splits at "\n" alone, and trims the white space of Unicode behind a token."""
    path = tmp_path / "vocab.txt"
    for word in (
        f"a{character}b",
        f"ab{character}",
        f"{character}ab",
        f"ab{character} {character}",
    ):
        for end in ("", "\n"):
            content = "\n".join([*BERT_TOKENS[:5], word, "cat"]) + end
            path.write_bytes(content.encode())
            theirs = WordPiece.read_file(str(path))
            for ours in (BertTokenizer(path), read_bert_tokenizer(tmp_path)):
                # White space alone is "" there, and no token of any text.
                words = [token if token.strip() else "" for token in ours.get_vocabulary()]
                found = {token: i for i, token in enumerate(words)}
                assert found == theirs, (word, end)
                assert ours.tokenize(["cat"]).to_list() == [[theirs["cat"]]]


def test_lines_of_white_space_are_tokens_that_no_text_has(tmp_path):
    words = [word for word in BREAKS if word.isspace() and "\n" not in word]
    path = tmp_path / "vocab.txt"
    path.write_bytes("\n".join([*BERT_TOKENS[:5], *words, "cat", ""]).encode())
    ours = BertTokenizer(path, clean_text=False)
    assert ours.token_to_id("cat") == WordPiece.read_file(str(path))["cat"] == 5 + len(words)
    found = ours.tokenize([f"cat{word}cat" for word in words if word not in "\x1c\x1d\x1e\x1f"])
    assert set(found.flat_values.numpy().tolist()) == {5 + len(words)}


@pytest.mark.parametrize("character", [c for c in BREAKS if c != "\r\n"], ids=ascii)
def test_lines_of_merges_are_those_of_the_library(character, tmp_path):
    vocabulary = {t: i for i, t in enumerate(["a", "b", "ab", character, f"a{character}"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    for line in (f"a {character}", f"a{character}", f"a b{character}", f"a{character}b", "a b"):
        content = f"#version: 0.2\na b\n{line}\n"
        (tmp_path / "merges.txt").write_bytes(content.encode())
        try:
            BPE.from_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
            pairs = BPE.read_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))[1]
        except Exception:  # the library's own are of this class
            pairs = None
        found = parse_merges(decode_text((tmp_path / "merges.txt").read_bytes(), "merges.txt"))
        found = [tuple(merge.split(" ")) for merge in found]
        if pairs is not None:
            assert found == pairs, line
        else:  # refused here, too
            assert any(len(pair) != 2 or not vocabulary.keys() >= {*pair} for pair in found), line
