"""Any family with any kind of tokenizer: which one a checkpoint's own files say."""

import functools
import json
import pathlib

import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import all_families, get_family
from encoder_zoo.encoders.tokenizers import (
    ALBERT_SENTENCEPIECE,
    BYTE_BPE,
    CAMEMBERT_SENTENCEPIECE,
    DEBERTA_SENTENCEPIECE,
    MODERN_BPE,
    TOKENIZERS,
    WORDPIECE,
    XLM_SENTENCEPIECE,
)
from encoder_zoo.encoders.tokenizers.choice import choose_tokenizer
from encoder_zoo.encoders.tokenizers.files import TokenizerFiles

each_kind = pytest.mark.parametrize("kind", TOKENIZERS, ids=lambda kind: kind.name)
# In the default run every kind with some families, and every family with some kinds.
PAIRS = [
    pytest.param(
        family,
        kind,
        id=f"{family.name}-{kind.name}",
        marks=[] if (i + j) % 5 == 0 else pytest.mark.slow,
    )
    for i, family in enumerate(all_families())
    for j, kind in enumerate(TOKENIZERS)
]
TEXTS = ["ab a  cd", "", "c d e\tab", "p é"]


def choose(contents=None, config=None, names=(), default=None):
    files = TokenizerFiles("preset", contents or {})
    return choose_tokenizer(files, config or {}, [*names, *files.contents], default)


def write(folder: pathlib.Path, files: dict, without=()) -> pathlib.Path:
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        if name not in without:
            content = content.encode() if isinstance(content, str) else content
            (folder / name).write_bytes(content)
    return folder


def edit(path: pathlib.Path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.fixture(scope="module")
def saved(tiny):
    """`saved(kind)` are the files that a small tokenizer of a kind writes."""

    @functools.cache
    def files(kind) -> dict:
        template = {"uses_segments": kind.uses_segments, "pair_separators": kind.pair_separators}
        return tiny.tokenizer_of(kind, **template).to_files()

    return files


@pytest.fixture(scope="module")
def model_files(tiny, tmp_path_factory):
    """`model_files(name)` are config.json and the weights of a small masked language model."""

    @functools.cache
    def files(name: str) -> dict:
        folder = tmp_path_factory.mktemp("models") / name
        tiny.task(get_family(name), "MaskedLM").save_to_preset(folder)
        return {n: (folder / n).read_bytes() for n in ("config.json", "model.safetensors")}

    return files


# -- which kind ----------------------------------------------------------------------------------


@each_kind
def test_tokenizer_json_decides_whatever_else_is_there(saved, kind):
    contents = {"tokenizer.json": json.loads(saved(kind)["tokenizer.json"])}
    every_file = [name for other in TOKENIZERS for name in other.files]
    for default in (None, *TOKENIZERS):
        assert choose(contents, names=every_file, default=default) == kind
    for name in ("PreTrainedTokenizerFast", "TokenizersBackend", *kind.checkpoint_names):
        said = {"tokenizer_config.json": {"tokenizer_class": name}}
        assert choose({**contents, **said}, default=WORDPIECE) == kind


def test_a_class_named_beside_a_tokenizer_json_of_another_kind_is_pointed_out(saved, caplog):
    contents = {"tokenizer.json": json.loads(saved(WORDPIECE)["tokenizer.json"])}
    contents["tokenizer_config.json"] = {"tokenizer_class": "RobertaTokenizerFast"}
    assert choose(contents) == WORDPIECE
    assert "tokenizer.json describes a BertTokenizer and counts" in caplog.text


def test_the_class_in_tokenizer_config_json_comes_before_that_in_config_json(caplog):
    one, other = {"tokenizer_class": "BertTokenizerFast"}, {"tokenizer_class": "RobertaTokenizer"}
    assert choose({}, one, default=BYTE_BPE) == WORDPIECE
    assert choose({"tokenizer_config.json": {}}, one, default=BYTE_BPE) == WORDPIECE
    assert not caplog.records
    assert choose({"tokenizer_config.json": one}, other) == WORDPIECE
    assert "is 'BertTokenizer' in tokenizer_config.json, which counts, and 'Rober" in caplog.text


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "MyTokenizerFast", 7, ["BertTokenizer"]])
def test_a_class_that_is_not_implemented_is_refused_by_name(file, name):
    said = {"tokenizer_class": name}
    with pytest.raises(ValueError, match=rf"{file}: tokenizer_class is .*, which is not impl"):
        choose({"tokenizer_config.json": said if file != "config.json" else {}}, said)


@pytest.mark.parametrize(
    ("names", "default", "expected"),
    [
        (["vocab.txt", "merges.txt"], BYTE_BPE, WORDPIECE),  # without vocab.json
        (["vocab.json", "merges.txt"], WORDPIECE, BYTE_BPE),
        (["vocab.json", "merges.txt"], MODERN_BPE, MODERN_BPE),
        (["vocab.txt", "vocab.json", "merges.txt"], WORDPIECE, WORDPIECE),
        (["sentencepiece.bpe.model"], WORDPIECE, XLM_SENTENCEPIECE),
        (["sentencepiece.bpe.model"], CAMEMBERT_SENTENCEPIECE, CAMEMBERT_SENTENCEPIECE),
        (["spiece.model"], BYTE_BPE, ALBERT_SENTENCEPIECE),
        (["spm.model"], None, DEBERTA_SENTENCEPIECE),
        ([], WORDPIECE, WORDPIECE),
    ],
)
def test_else_the_vocabularys_files_tell_and_then_the_family(names, default, expected):
    assert choose({}, {}, names, default) == expected


def test_without_any_file_it_is_said_which_are_expected():
    with pytest.raises(FileNotFoundError, match=r"Expected tokenizer.json, or vocab.txt, or voc"):
        choose()


# -- any family with any kind --------------------------------------------------------------------


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_every_family_opens_and_saves_every_kind_of_tokenizer(
    tiny, saved, model_files, tmp_path, family, kind
):
    segments = kind.uses_segments and family.uses_segments
    separators = kind.pair_separators
    expected = tiny.tokenizer_of(kind, uses_segments=segments, pair_separators=separators)
    folder = write(tmp_path / "theirs", {**saved(kind), **model_files(family.name)})
    edit(folder / "config.json", pad_token_id=expected.pad_token_id)
    task = ez.MaskedLM.from_preset(folder)
    tokenizer = task.preprocessor.tokenizer
    assert type(tokenizer) is kind.load()
    assert tokenizer.get_config() == expected.get_config()
    task.save_to_preset(tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["pad_token_id"] == expected.pad_token_id
    again = ez.Tokenizer.from_preset(tmp_path / "ours")
    assert again.get_config() == expected.get_config()
    for name in set(kind.files) & set(saved(kind)):  # these alone will do, with the class's name
        assert (tmp_path / "ours" / name).read_bytes()
