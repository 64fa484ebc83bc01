"""Any family with any kind of tokenizer: which one a checkpoint's own files say."""

import functools
import json
import pathlib

import pytest
import tensorflow as tf
from processes import run
from tokenizers import Tokenizer as Library
from tokenizers import processors

import encoder_zoo as ez
from encoder_zoo.encoders import get_family, list_families
from encoder_zoo.encoders.tokenizers import (
    ALBERT_SENTENCEPIECE,
    BERTWEET,
    BYTE_BPE,
    CAMEMBERT_SENTENCEPIECE,
    DEBERTA_SENTENCEPIECE,
    MODERN_BPE,
    TOKENIZERS,
    WORDPIECE,
    XLM_SENTENCEPIECE,
)
from encoder_zoo.encoders.tokenizers.choice import choose_tokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles

pytestmark = pytest.mark.eager

each_kind = pytest.mark.parametrize("kind", TOKENIZERS, ids=lambda kind: kind.name)
each_with_json = pytest.mark.parametrize(
    "kind", [kind for kind in TOKENIZERS if kind is not BERTWEET], ids=lambda kind: kind.name
)
# In the default run every kind with some families, and every family with some kinds.
PAIRS = [
    pytest.param(
        family,
        kind,
        id=f"{family.name}-{kind.name}",
        marks=[] if (i + j) % 5 == 0 else pytest.mark.slow,
    )
    for i, family in enumerate(list_families())
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
        return tiny.build_tokenizer(kind, **template).to_files()

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


@each_with_json
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
    assert "describes a BertTokenizer" in caplog.text


def test_the_class_in_tokenizer_config_json_comes_before_that_in_config_json(caplog):
    one, other = {"tokenizer_class": "BertTokenizerFast"}, {"tokenizer_class": "RobertaTokenizer"}
    assert choose({}, one, default=BYTE_BPE) == WORDPIECE
    assert choose({"tokenizer_config.json": {}}, one, default=BYTE_BPE) == WORDPIECE
    assert not caplog.records
    assert choose({"tokenizer_config.json": one}, other) == WORDPIECE
    assert "'BertTokenizer' in tokenizer_config.json and" in caplog.text


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "MyTokenizerFast", 7, ["BertTokenizer"]])
def test_a_class_that_is_not_implemented_is_refused_by_name(file, name):
    said = {"tokenizer_class": name}
    with pytest.raises(ValueError, match=rf"{file}: tokenizer_class is "):
        choose({"tokenizer_config.json": said if file != "config.json" else {}}, said)


@pytest.mark.parametrize(
    ("names", "default", "expected"),
    [
        (["vocab.txt", "merges.txt"], BYTE_BPE, WORDPIECE),  # without vocab.json
        (["vocab.json", "merges.txt"], WORDPIECE, BYTE_BPE),
        (["vocab.json", "merges.txt"], MODERN_BPE, MODERN_BPE),
        (["vocab.txt", "vocab.json", "merges.txt"], WORDPIECE, WORDPIECE),
        (["vocab.txt", "bpe.codes"], BYTE_BPE, BERTWEET),
        (["vocab.txt", "bpe.codes"], WORDPIECE, BERTWEET),
        (["vocab.txt", "bpe.codes"], None, BERTWEET),
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
    with pytest.raises(FileNotFoundError, match=r"tokenizer.json.*vocab.txt"):
        choose()


# -- any family with any kind --------------------------------------------------------------------


@pytest.mark.slow(only="^(electra|deberta-v2|bart|mpnet|nomic_bert)-")
@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_every_family_opens_and_saves_every_kind_of_tokenizer(
    tiny, saved, model_files, tmp_path, family, kind
):
    segments = kind.uses_segments and family.uses_segments
    separators = kind.pair_separators
    expected = tiny.build_tokenizer(kind, uses_segments=segments, pair_separators=separators)
    folder = write(tmp_path / "theirs", {**saved(kind), **model_files(family.name)})
    edit(folder / "config.json", pad_token_id=expected.pad_token_id)
    if family.name == "mpnet" and expected.pad_token_id != 1:  # its positions are counted from 1
        expected = f"pad_token_id is {expected.pad_token_id}"
        with pytest.raises(ValueError, match=expected):
            ez.MaskedLM.from_preset(folder)
        return
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


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_tokenizer_without_segments_or_with_two_separators_keeps_them(
    tiny, saved, model_files, tmp_path, name
):
    folder = write(tmp_path, {**saved(WORDPIECE), **model_files(name)})
    tokens = {"sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    step = {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False, **tokens}
    edit(folder / "tokenizer.json", post_processor=step)
    edit(folder / "config.json", pad_token_id=0)
    task = ez.SequenceClassifier.from_preset(folder, num_classes=2, verify=False)
    inputs = task.preprocessor((["a"], ["b"]))
    library = Library.from_file(str(folder / "tokenizer.json")).encode("a", "b")
    assert inputs["token_ids"].numpy().tolist() == [library.ids] == [[2, 5, 3, 3, 6, 3]]
    assert "segment_ids" not in inputs
    assert task.predict((["a"], ["b"]), verbose=0).shape == (1, 2)
    task.save_to_preset(tmp_path / "again")
    again = ez.BertTokenizer.from_preset(tmp_path / "again")
    assert (again.pair_separators, again.uses_segments) == (2, False)


def test_spans_that_would_be_trimmed_are_logged_of_added_tokens_and_refused_of_others(
    saved, tmp_path, caplog
):
    """Late interaction's markers end with a space; transformers gives MPNet RoBERTa's step."""
    folder = write(tmp_path, saved(WORDPIECE))
    step = {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    step |= {"trim_offsets": True, "add_prefix_space": False}
    edit(folder / "tokenizer.json", post_processor=step)
    ez.BertTokenizer.from_preset(folder)
    assert "spans" not in caplog.text
    content = json.loads((folder / "tokenizer.json").read_text())
    number = len(content["model"]["vocab"])
    marker = {"id": number, "content": "[Q] ", "special": True, "normalized": False}
    marker |= {"single_word": False, "lstrip": False, "rstrip": False}
    edit(folder / "tokenizer.json", added_tokens=[*content["added_tokens"], marker])
    tokenizer = ez.BertTokenizer.from_preset(folder)
    assert "'[Q] '" in caplog.text
    found = [part.to_list()[0] for part in tokenizer.tokenize_with_offsets(["a[Q] a"])]
    library = Library.from_file(str(folder / "tokenizer.json"))
    library = library.encode("a[Q] a", add_special_tokens=False)
    assert found == [library.ids, [0, 1, 5], [1, 5, 6]] and library.ids == [5, number, 5]
    assert library.offsets == [(0, 1), (1, 4), (5, 6)]
    content["model"]["vocab"]["aĠ"] = number
    edit(folder / "tokenizer.json", model=content["model"], added_tokens=content["added_tokens"])
    (folder / "vocab.txt").unlink()
    with pytest.raises(ValueError, match="post_processor is.*RobertaProcessing"):
        ez.BertTokenizer.from_preset(folder)


@pytest.mark.parametrize("field", ["trim_offsets", "add_prefix_space", None])
def test_a_roberta_processing_without_a_field_is_read_as_the_library_does(saved, tmp_path, field):
    """It takes such a step for BertProcessing: one separator, segments, nothing trimmed."""
    folder = write(tmp_path, saved(WORDPIECE))
    step = {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    fields = {"trim_offsets": True, "add_prefix_space": True}
    step |= {name: value for name, value in fields.items() if name != field}
    edit(folder / "tokenizer.json", post_processor=step)
    edit(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    tokenizer = ez.BertTokenizer.from_preset(folder)
    library = Library.from_file(str(folder / "tokenizer.json"))
    found = library.encode("a", "b")
    inputs = ez.SequenceClassifierPreprocessor(tokenizer)((["a"], ["b"]))
    assert inputs["token_ids"].numpy().tolist() == [found.ids]
    assert tokenizer.uses_segments == (found.type_ids[-1] == 1) == (field is not None)


def make_template(single, pair):
    """A TemplateProcessing step, from the library's own notation."""
    ids = {"[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    special = [(token, i) for token, i in ids.items() if token in f"{single} {pair}"]
    step = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    return json.loads(step.__getstate__())


TEMPLATES = {
    "two before": ("[MASK] [CLS] $A [SEP]", "[MASK] [CLS] $A [SEP] $B:1 [SEP]:1"),
    "another after the second text": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [UNK]:1"),
    "start repeated": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [CLS]:1 $B:1 [SEP]:1"),
    "two of segment 0": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1"),
    "three between, no segments": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [UNK] [SEP] $B [SEP]"),
    "none after": ("[CLS] $A", "[CLS] $A [SEP] $B:1"),
    "two after": ("[CLS] $A [SEP] [UNK]", "[CLS] $A [SEP] $B:1 [SEP]:1 [UNK]:1"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_with_several_special_tokens_is_followed(saved, tmp_path, name):
    folder = write(tmp_path, saved(WORDPIECE))
    edit(folder / "tokenizer.json", post_processor=make_template(*TEMPLATES[name]))
    edit(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    library = Library.from_file(str(folder / "tokenizer.json"))
    tokenizer = ez.Tokenizer.from_preset(folder)
    tokenizer.save_to_preset(tmp_path / "again")
    again = ez.Tokenizer.from_preset(tmp_path / "again")
    assert again.get_config() == tokenizer.get_config()
    saved_file = Library.from_file(str(tmp_path / "again" / "tokenizer.json"))
    preprocessor = ez.SequenceClassifierPreprocessor(again)
    preprocessor.num_segments = 2
    for texts in ((["a b", ""],), (["a", "a b a"], ["b b", ""])):
        expected = [library.encode(*row) for row in zip(*texts, strict=True)]
        ids = [e.ids for e in expected]
        assert [saved_file.encode(*row).ids for row in zip(*texts, strict=True)] == ids
        columns = tuple(map(tf.constant, texts))
        for encode in (preprocessor.encode, tf.function(preprocessor.encode)):
            assert encode(columns if len(texts) == 2 else columns[0])["token_ids"].to_list() == ids
        segments = preprocessor(texts if len(texts) == 2 else texts[0]).get("segment_ids")
        if again.uses_segments:
            found = [
                row[: len(e)] for row, e in zip(segments.numpy().tolist(), expected, strict=True)
            ]
            assert found == [e.type_ids for e in expected]
    # Long texts are truncated to the model's length, and answers are found at their tokens.
    qa = ez.SpanQAPreprocessor(again, sequence_length=24)
    answer = {"text": "b", "answer_start": 2}
    x, y = qa((["a"], ["a b a"]), [answer])
    ids = x["token_ids"].numpy()
    assert ids[0][y.numpy()[0][0]] == again.token_to_id("b")
    tagger = ez.TokenClassifierPreprocessor(again, sequence_length=8)
    length = 8 - library.num_special_tokens_to_add(False)
    examples = tagger.encode(["a " * 20])
    assert examples["token_ids"].row_lengths().numpy().max() == 8
    windows = tagger.split_into_windows(tagger.tokenize(["a " * 20]))
    assert windows.length.numpy().max() == length


def test_a_template_that_cannot_be_followed_is_refused(saved, tmp_path):
    folder = write(tmp_path, saved(WORDPIECE))
    single = [
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    step = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {}}
    edit(folder / "tokenizer.json", post_processor=step)
    with pytest.raises(ValueError, match=r"post_processor: single is 'A:0 \[SEP\]:0'"):
        ez.BertTokenizer.from_preset(folder)
    step = {"type": "BertProcessing", "sep": ["[MASK]", 4], "cls": ["[CLS]", 2]}
    edit(folder / "tokenizer.json", post_processor=step)
    with pytest.raises(ValueError, match=r"sep_token or eos_token is '\[SEP\]'.*post_processor"):
        ez.BertTokenizer.from_preset(folder)


# -- a padding token of another kind -------------------------------------------------------------


def test_padding_of_config_json_counts_where_the_model_reads_it(saved, model_files, tmp_path):
    # multilingual-e5-small has BERT's pad_token_id, 0, and XLM-RoBERTa's tokenizer, whose is 1.
    folder = write(tmp_path / "bert", {**saved(XLM_SENTENCEPIECE), **model_files("bert")})
    edit(folder / "config.json", pad_token_id=0)
    assert ez.MaskedLM.from_preset(folder).preprocessor.tokenizer.pad_token_id == 1
    # RoBERTa counts positions from the padding's id.
    folder = write(tmp_path / "roberta", {**saved(WORDPIECE), **model_files("roberta")})
    with pytest.raises(ValueError, match=r"pad_token_id.* 1.*config.json.*'\[PAD\]'"):
        ez.MaskedLM.from_preset(folder)
    # A BERT's own tokenizer must fit its configuration.
    folder = write(tmp_path / "own", {**saved(WORDPIECE), **model_files("bert")})
    edit(folder / "config.json", pad_token_id=1)
    with pytest.raises(ValueError, match=r"pad_token_id.* 1.*config.json.*'\[PAD\]'"):
        ez.MaskedLM.from_preset(folder)


# -- a folder of tokenizer files alone -----------------------------------------------------------


@pytest.mark.slow(except_for="^(BertTokenizer|MPNetTokenizer)")
@each_kind
def test_a_tokenizer_opens_from_its_own_files_alone(tiny, saved, tmp_path, kind):
    expected = tiny.build_tokenizer(
        kind, uses_segments=kind.uses_segments, pair_separators=kind.pair_separators
    )
    least = {"tokenizer.json", "tokenizer_config.json"}
    least = {*kind.files, "tokenizer_config.json"} if kind is BERTWEET else least
    for i, files in enumerate((set(saved(kind)), least)):
        folder = write(tmp_path / str(i), {name: saved(kind)[name] for name in files})
        tokenizer = kind.load().from_preset(folder)
        assert tokenizer.get_config() == expected.get_config()
    assert tokenizer.tokenize(TEXTS).to_list() == expected.tokenize(TEXTS).to_list()


def test_roberta_opens_from_its_configuration_and_vocabulary_alone(saved, model_files, tmp_path):
    names = ("vocab.json", "merges.txt")
    files = {name: saved(BYTE_BPE)[name] for name in names}
    folder = write(tmp_path, {**files, "config.json": model_files("roberta")["config.json"]})
    tokenizer = ez.RobertaTokenizer.from_preset(folder)
    assert tokenizer.vocabulary == json.loads(files["vocab.json"])
    preprocessor = ez.SequenceClassifierPreprocessor.from_preset(folder, sequence_length=8)
    assert preprocessor(["ab"])["token_ids"].shape == (1, 8)
    edit(folder / "config.json", vocab_size=20)
    with pytest.raises(ValueError, match=r" 28.*vocab_size in config.json is 20"):
        ez.RobertaTokenizer.from_preset(folder)
    with pytest.raises(ValueError, match=r"no model.safetensors"):
        ez.Backbone.from_preset(folder)


def test_a_saved_preset_gives_its_tokenizer_without_its_weights(tiny, tmp_path):
    tiny.task(get_family("bert"), "MaskedLM").save_to_preset(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert ez.Tokenizer.from_preset(tmp_path).vocabulary_size == 24
    (tmp_path / "vocab.txt").write_text("[PAD]")  # its own files are compared with their checksums
    with pytest.raises(ValueError, match=r"vocab.txt"):
        ez.Tokenizer.from_preset(tmp_path)


def test_for_a_tokenizer_no_weights_are_downloaded():
    from encoder_zoo.presets.hub import select_files

    needed = ["config.json", "encoder_zoo.json", "tokenizer.json", "vocab.txt"]
    others = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "a.py"]
    assert select_files("hf://a/b", [*needed, *others], weights=False) == needed
    theirs = ["assets/tokenizer/vocabulary.txt", "model.weights.h5", "task.weights.h5"]
    assert select_files("hf://a/b", [*needed, *theirs], weights=False) == [*needed, theirs[0]]


# -- what two files say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "strips"), [("BertTokenizer", False), ("PreTrainedTokenizerFast", True)]
)
def test_settings_that_differ_are_pointed_out(tiny, tmp_path, caplog, name, strips):
    """AutoTokenizer of transformers takes the same; see tests/peers/test_tokenizer_layouts.py."""
    folder = write(tmp_path, tiny.build_tokenizer(WORDPIECE).to_files())
    edit(folder / "tokenizer_config.json", strip_accents=False, tokenizer_class=name)
    normalizer = json.loads((folder / "tokenizer.json").read_text())["normalizer"]
    edit(folder / "tokenizer.json", normalizer={**normalizer, "strip_accents": True})
    assert ez.BertTokenizer.from_preset(folder).strip_accents is strips
    assert "strip_accents is False in tokenizer_config.json" in caplog.text


def test_names_of_tokens_that_differ_are_those_of_tokenizer_json(saved, tmp_path, caplog):
    folder = write(tmp_path, saved(WORDPIECE))
    lines = (folder / "vocab.txt").read_text().replace("\np\n", "\n[unused1]\n")
    (folder / "vocab.txt").write_text(lines)
    tokenizer = ez.BertTokenizer.from_preset(folder)
    assert tokenizer.vocabulary == saved(WORDPIECE)["vocab.txt"].split("\n")[:-1]
    assert "for example '[unu" in caplog.text


# -- constructors --------------------------------------------------------------------------------


def test_a_huge_id_in_a_vocabulary_is_refused_before_it_takes_memory():
    with pytest.raises(ValueError, match=r"vocabulary.*4000000000000"):
        ez.RobertaTokenizer(
            {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 4 * 10**12}, []
        )
    with pytest.raises(ValueError, match=r"vocabulary is "):
        ez.ModernBertTokenizer(["[CLS]", "[SEP]"], [])


def test_kerashub_is_not_given_a_tokenizer_that_its_class_cannot_hold(tiny):
    from encoder_zoo.extras.formats.kerashub_models import convert_tokenizer

    backbone = tiny.backbone(get_family("roberta"))
    with pytest.raises(ValueError, match=r"BertTokenizer.*RobertaTokenizer"):
        convert_tokenizer(tiny.build_tokenizer(WORDPIECE), backbone)


# -- without TensorFlow --------------------------------------------------------------------------

WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None
import encoder_zoo as ez
task = ez.MaskedLM.from_preset(sys.argv[1])
task.save_to_preset(sys.argv[2])
"""


@pytest.mark.slow
def test_the_choice_needs_no_tensorflow(saved, model_files, tmp_path):
    folder = write(tmp_path / "theirs", {**saved(XLM_SENTENCEPIECE), **model_files("bert")})
    run(WITHOUT_TENSORFLOW, folder, tmp_path / "ours", KERAS_BACKEND="jax")
    ours, theirs = (
        ez.MaskedLM.from_preset(f).preprocessor.tokenizer for f in (tmp_path / "ours", folder)
    )
    assert type(ours) is ez.XLMRobertaTokenizer
    assert ours.get_config() == theirs.get_config()
