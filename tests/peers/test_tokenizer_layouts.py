"""Checkpoints with another kind of tokenizer than their family's, in the files of known ones."""

import json
import pathlib

import numpy as np
import pytest

import encoder_zoo as ez

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]
SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "max_position_embeddings": 130,
    "initializer_range": 0.5,
}
CORPUS = pathlib.Path(ez.__file__).parents[1].joinpath("README.md").read_text().split("\n")
TEXTS = [
    "The cat sat on the mat.",
    "  isn't  it?\ta nai\u0308ve Café\u00a0!",
    "",
    " ",
    "🙂 und ~ ﬁ ｶﾞ\u3000Ⅳ\n\n\n한국어 漢字 <h1> ▁x ##s",
    *(line for line in CORPUS[:60] if "[MASK]" not in line),  # to us no token, in a text
]
PAIRS = (["one text", "", "Café"], ["and another", "b", " 漢字"])


def pieces(size: int) -> list[str]:
    """Words and letters of a corpus."""
    words = [word for line in CORPUS for word in line.split() if word.isalpha()]
    return list(dict.fromkeys([*"abcdefghijklmnopqrstuvwxyzABCDé漢字한국.,!?#<>1", *words]))[:size]


def multilingual_e5_small(folder):
    """BERT with XLM-RoBERTa's tokenizer, whose padding has another id than config.json says."""
    front = ["<s>", "<pad>", "</s>", "<unk>"]
    tokens = ["▁", *(f"▁{p}" for p in pieces(400) if len(p) > 1), *(p for p in pieces(200))]
    tokens = list(dict.fromkeys(tokens))
    vocabulary = [*((t, 0.0) for t in front), *((t, -1 - 0.01 * i) for i, t in enumerate(tokens))]
    vocabulary.append(("<mask>", 0.0))
    transformers.XLMRobertaTokenizer(vocab=vocabulary).save_pretrained(folder)
    size = len(vocabulary) + 35
    config = transformers.BertConfig(vocab_size=size, pad_token_id=0, **SIZES)
    transformers.BertModel(config).save_pretrained(folder)
    edit(folder / "config.json", tokenizer_class="XLMRobertaTokenizer")
    return ez.XLMRobertaTokenizer


def klue_roberta(folder):
    """RoBERTa with a cased WordPiece vocabulary that begins with [CLS] and [PAD]."""
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    tokens = [*special, *pieces(300), *(f"##{p}" for p in pieces(40))]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    transformers.BertTokenizer(vocab=vocabulary, do_lower_case=False).save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    save_roberta(folder, len(tokens), bos_token_id=0, eos_token_id=2)
    edit(folder / "config.json", tokenizer_class="BertTokenizer")
    return ez.BertTokenizer


def roberta_with_sentencepiece(folder):
    multilingual_e5_small(folder)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    save_roberta(folder, size)
    return ez.XLMRobertaTokenizer


def mmbert(folder):
    """ModernBERT with Gemma's tokenizer, in tokenizer.json alone."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    library = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), "isolated")
    known = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=known, initial_alphabet=["▁"], show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    fuse = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence(fuse)
    content = json.loads(library.to_str())
    added = [token for token in content["added_tokens"] if token["content"] in special]
    vocabulary = content["model"]["vocab"]
    for token in ("\n", "\n\n", "\t", "▁▁", "<table>", "<h1>"):
        vocabulary[token] = len(vocabulary)
        options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added.append({"id": vocabulary[token], "content": token, "special": False, **options})
    content |= {"added_tokens": added, "post_processor": template("<bos>", "<eos>", vocabulary)}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    names = dict(zip(("pad", "eos", "bos", "unk", "mask"), special, strict=True))
    names = {f"{name}_token": token for name, token in names.items()}
    said = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "add_bos_token": True}
    said |= {"cls_token": "<bos>", "sep_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**said, "add_eos_token": True}))
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "cls_token_id": 2}
    config = transformers.ModernBertConfig(
        vocab_size=len(vocabulary), sep_token_id=1, **ids, **SIZES
    )
    transformers.ModernBertModel(config).save_pretrained(folder)
    return ez.GemmaTokenizer


def bert_with_byte_bpe(folder):
    from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet

    tokens = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "<mask>",
        *make_byte_alphabet(),
        "Ġt",
        "th",
        "Ġth",
        "the",
    ]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [("Ġ", "t"), ("t", "h"), ("Ġt", "h"), ("th", "e")]
    transformers.RobertaTokenizer(vocab=vocabulary, merges=merges).save_pretrained(folder)
    config = transformers.BertConfig(vocab_size=len(tokens), pad_token_id=1, **SIZES)
    transformers.BertModel(config).save_pretrained(folder)
    return ez.RobertaTokenizer


def save_roberta(folder, size, **ids):
    sizes = {**SIZES, "vocab_size": size, "type_vocab_size": 1, "pad_token_id": 1, **ids}
    transformers.RobertaModel(transformers.RobertaConfig(**sizes)).save_pretrained(folder)


def template(start, end, vocabulary) -> dict:
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    first, last = ({"SpecialToken": {"id": token, "type_id": 0}} for token in (start, end))
    tokens = {t: {"id": t, "ids": [vocabulary[t]], "tokens": [t]} for t in (start, end)}
    pair = [first, a, last, b, last]
    kind = "TemplateProcessing"
    return {"type": kind, "single": pair[:3], "pair": pair, "special_tokens": tokens}


def edit(path: pathlib.Path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


LAYOUTS = [
    multilingual_e5_small,
    klue_roberta,
    roberta_with_sentencepiece,
    mmbert,
    bert_with_byte_bpe,
]


def ids_and_segments(task, there, returns_segments):
    """Of pairs, as both put them together."""
    ours = task.preprocessor(PAIRS)
    theirs = there(
        *PAIRS, padding=True, return_tensors="np", return_token_type_ids=returns_segments
    )
    return ours, theirs


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_both_read_the_same_ids_and_compute_the_same(layout, tmp_path):
    torch.manual_seed(0)
    folder = tmp_path / "theirs"
    folder.mkdir()
    kind = layout(folder)
    task = ez.SequenceClassifier.from_preset(folder, num_classes=2)
    assert type(task.preprocessor.tokenizer) is kind
    task.save_to_preset(tmp_path / "ours")
    for source in (folder, tmp_path / "ours"):
        there = transformers.AutoTokenizer.from_pretrained(source)
        here = ez.Tokenizer.from_preset(source)
        expected = there(TEXTS, add_special_tokens=False)["input_ids"]
        assert here.tokenize(TEXTS).to_list() == expected
        ours, theirs = ids_and_segments(task, there, "segment_ids" in task.preprocessor(PAIRS))
        np.testing.assert_array_equal(ours["token_ids"], theirs["input_ids"])
        if "segment_ids" in ours:
            np.testing.assert_array_equal(ours["segment_ids"], theirs["token_type_ids"])
    model = transformers.AutoModel.from_pretrained(folder).double().eval()
    inputs = {name: torch.tensor(theirs[name]) for name in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        expected = model(**inputs).last_hidden_state.numpy()
    found = np.asarray(task.backbone(ours)["sequence_output"])
    mask = theirs["attention_mask"].astype(bool)
    np.testing.assert_allclose(found[mask], expected[mask], atol=2e-5)


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize("lowers", [False, True])
def test_settings_that_differ_count_as_in_transformers(tmp_path, name, strips, lowers):
    klue_roberta(tmp_path)
    edit(tmp_path / "tokenizer_config.json", tokenizer_class=name)
    edit(tmp_path / "tokenizer_config.json", strip_accents=strips, do_lower_case=lowers)
    normalizer = json.loads((tmp_path / "tokenizer.json").read_text())["normalizer"]
    normalizer |= {"strip_accents": not strips, "lowercase": not lowers}
    edit(tmp_path / "tokenizer.json", normalizer=normalizer)
    texts = ["A é ABC café", "Be", *pieces(50)]
    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    here = ez.BertTokenizer.from_preset(tmp_path)
    assert here.tokenize(texts).to_list() == there(texts, add_special_tokens=False)["input_ids"]


def test_names_in_tokenizer_json_count_as_in_transformers(tmp_path):
    klue_roberta(tmp_path)
    text = (tmp_path / "vocab.txt").read_text()
    (tmp_path / "vocab.txt").write_text(text.replace("\né\n", "\n[unused1]\n"))
    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    here = ez.BertTokenizer.from_preset(tmp_path)
    assert here.tokenize(["a é"]).to_list() == there(["a é"], add_special_tokens=False)["input_ids"]


def test_a_real_fine_tuned_minilm_reads_as_in_transformers():
    package = pytest.importorskip("sre_embedding_model")
    [path] = pathlib.Path(package.__file__).parent.rglob("tokenizer.json")
    there = transformers.AutoTokenizer.from_pretrained(path.parent)
    here = ez.Tokenizer.from_preset(path.parent)
    assert here.tokenize(TEXTS).to_list() == there(TEXTS, add_special_tokens=False)["input_ids"]
