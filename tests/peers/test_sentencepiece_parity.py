"""SentencePiece tokenizers on whole corpora: ids and offsets of `tokenizers`, `sentencepiece`.

The models are trained here by SentencePiece, on the same data.
"""

import importlib.util
import json
import pathlib

import paths
import pytest

from encoder_zoo.encoders.tokenizers.sentencepiece import (
    AlbertTokenizer,
    CamembertTokenizer,
    XLMRobertaTokenizer,
)

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
sentencepiece = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")
BATCH = 2000


def _beside(name):
    path = pathlib.Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


corpora = _beside("test_tokenizers_parity")
ALBERT = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
    "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"],
}
# how the model is trained, and our class
MODELS = {
    "32,000 pieces": ({"vocab_size": 32000}, XLMRobertaTokenizer),
    "CamemBERT's ids, symbols": (
        {"vocab_size": 8000, "user_defined_symbols": ["<entity>", "C++", "@@"]},
        CamembertTokenizer,
    ),
    "bytes": (
        {"vocab_size": 8000, "byte_fallback": True, "character_coverage": 0.98},
        XLMRobertaTokenizer,
    ),
    "no normalisation": (
        {"vocab_size": 8000, "normalization_rule_name": "identity"},
        XLMRobertaTokenizer,
    ),
    "ALBERT's": ({"vocab_size": 8000, **ALBERT}, AlbertTokenizer),
    "BPE": ({"vocab_size": 8000, "model_type": "bpe"}, XLMRobertaTokenizer),
    "BPE, bytes, spaces kept": (
        {
            "vocab_size": 8000,
            "model_type": "bpe",
            "byte_fallback": True,
            "character_coverage": 0.98,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "allow_whitespace_only_pieces": True,
        },
        XLMRobertaTokenizer,
    ),
}
# The two implementations differ in white space, which without a normalisation is only the space
# to SentencePiece; in graphemes, of which `tokenizers` asks for the shortest rule and drops the
# rest, where SentencePiece goes on (Vietnamese written in parts); in user-defined symbols, which
# SentencePiece protects; and in rounding, where two ways are equally good.
DIFFERENCES = 0.005


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    """{name: the model's file}, each trained when it is first asked for."""
    folder, trained = tmp_path_factory.mktemp("models"), {}
    texts = [text.replace("\n", " ") for text in corpora.multilingual(data) + corpora.xquad(data)]

    def make(name):
        if name not in trained:
            prefix = folder / str(len(trained))
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_prefix=str(prefix),
                minloglevel=2,
                **MODELS[name][0],
            )
            trained[name] = prefix.with_suffix(".model").read_bytes()
        return trained[name]

    return make


def theirs(tokenizer, folder):
    """transformers' tokenizer of the files that ours writes."""
    for name, content in tokenizer.to_files().items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    if tokenizer.byte_fallback or tokenizer.merges:  # transformers' own class leaves them out
        path = str(folder / "tokenizer.json")
        return transformers.PreTrainedTokenizerFast(tokenizer_file=path)
    return getattr(transformers, type(tokenizer).__name__).from_pretrained(folder)


def without_special(texts, tokenizer):
    """Texts in which transformers finds no special token, which to us are text."""
    special = [token for token in tokenizer.get_vocabulary()[:8] if token[0] in "<["] + ["<mask>"]
    return [text for text in texts if not any(token in text for token in special)]


@pytest.mark.parametrize("corpus", corpora.CORPORA, ids=lambda corpus: corpus.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_ids_and_offsets(name, corpus, data, model, tmp_path):
    ours = MODELS[name][1].from_sentencepiece(model(name))
    library = theirs(ours, tmp_path)
    texts = without_special(corpus(data), ours)
    texts = texts[:20_000] if corpus.__name__ == "random_unicode" else texts
    wrong_ids, wrong_offsets = [], []
    for i in range(0, len(texts), BATCH):
        batch = texts[i : i + BATCH]
        ids, starts, ends = (part.to_list() for part in ours.tokenize_with_offsets(batch))
        assert ours.tokenize(batch).to_list() == ids
        expected = library(batch, add_special_tokens=False, return_offsets_mapping=True)
        for j, text in enumerate(batch):
            spans = list(zip(starts[j], ends[j], strict=True))
            if ids[j] != expected["input_ids"][j]:
                wrong_ids.append(text)
            elif spans != [tuple(o) for o in expected["offset_mapping"][j]]:
                wrong_offsets.append(text)
    print(
        f"\n{name} | {corpus.__name__} | {len(texts)} texts | {len(wrong_ids)} id mismatches | "
        f"{len(wrong_offsets)} offset mismatches"
    )
    assert (wrong_ids, wrong_offsets) == ([], [])


GOLDEN = paths.GOLDEN / "sentencepiece"


@pytest.mark.parametrize(
    ("cls", "model", "segments"),
    [(AlbertTokenizer, "albert", True), (XLMRobertaTokenizer, "nmt_nfkc", False)],
)
def test_pairs_have_segments_where_the_family_has(cls, model, segments, tmp_path):
    ours = cls.from_sentencepiece((GOLDEN / f"{model}.model").read_bytes())
    pair = theirs(ours, tmp_path)("one two", "three")
    assert ("token_type_ids" in pair) == segments
    if segments:
        first = 2 + len(ours.tokenize("one two"))
        second = 1 + len(ours.tokenize("three"))
        assert pair["token_type_ids"] == [0] * first + [1] * second


@pytest.mark.parametrize("corpus", [corpora.xquad, corpora.multilingual], ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "ALBERT's"])
def test_ids_of_the_original(name, corpus, data, model):
    ours = MODELS[name][1].from_sentencepiece(model(name))
    original = sentencepiece.SentencePieceProcessor(model_proto=model(name))
    shift = 1 if type(ours) is XLMRobertaTokenizer else 4
    texts = without_special(corpus(data), ours)
    expected = [[3 if i == 0 else i + shift for i in row] for row in original.encode(texts)]
    found = ours.tokenize(texts).to_list()
    other = sum(a != b for a, b in zip(found, expected, strict=True))
    print(f"\n{name} | {corpus.__name__} | {len(texts)} texts | {other} differ from sentencepiece")
    assert other <= DIFFERENCES * len(texts) + 40 * (name == "no normalisation")


@pytest.mark.parametrize("name", ["32,000 pieces", "CamemBERT's ids, symbols"])
def test_transformers_opens_the_model_alone_with_the_same_ids(name, model, data, tmp_path):
    ours = MODELS[name][1].from_sentencepiece(model(name))
    library = theirs(ours, tmp_path)
    content = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert content["tokenizer_class"] == type(library).__name__
    (tmp_path / "tokenizer.json").unlink()
    library = type(library).from_pretrained(tmp_path)
    texts = without_special(corpora.xquad(data)[:500], ours)
    assert library(texts, add_special_tokens=False)["input_ids"] == ours.tokenize(texts).to_list()
