"""Read TensorFlow 1 checkpoints of BERT from https://github.com/google-research/bert.

A checkpoint contains configuration, vocabulary and weights, for example `bert_config.json`,
`vocab.txt` and `bert_model.ckpt.*`.
"""

from __future__ import annotations

import fnmatch
import math
import pathlib
import re
import shutil
import tempfile

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders import get_family
from encoder_zoo.presets.files.file_bytes import check_file_size, check_is_float
from encoder_zoo.presets.files.folder_files import FolderFiles, get_size
from encoder_zoo.presets.formats.checkpoint import Checkpoint, TokenizerPreset
from encoder_zoo.presets.formats.preset_files import CONFIG
from encoder_zoo.presets.formats.stored_tokenizer import read_stored_tokenizer

WEIGHTS = None  # repositories with these files also contain weights in another format


_FAMILY, _CONFIG_FILE = "bert", "bert_config.json"
# Regular expressions and replacements, which are applied to variable names in order.
_PARTS = (
    (r"encoder/layer_(\d+)/", r"encoder/layer/\1/"),
    (r"LayerNorm/gamma$", "LayerNorm/weight"),
    (r"LayerNorm/beta$", "LayerNorm/bias"),
    (r"/kernel$", "/weight"),
    (r"(embeddings/\w+_embeddings)$", r"\1/weight"),
    (r"^cls/predictions/output_bias$", "cls/predictions/bias"),
    (r"^cls/seq_relationship/output_weights$", "cls/seq_relationship/weight"),
    (r"^cls/seq_relationship/output_bias$", "cls/seq_relationship/bias"),
    # Heads of models that `run_squad.py` and `run_classifier.py` fine-tuned.
    (r"^cls/squad/output_weights$", "qa_outputs/weight"),
    (r"^cls/squad/output_bias$", "qa_outputs/bias"),
    (r"^output_weights$", "classifier/weight"),
    (r"^output_bias$", "classifier/bias"),
)
# Optimizer variables.
_TRAINING = re.compile(r"adam_[mv]$|^global_step$|LAMB|/Adam")


def list_files() -> list[str]:
    """List glob patterns for checkpoint files, without tokenizer files."""
    return [_CONFIG_FILE, "*.index", "*.data-*"]


list_tokenizer_file_names = list_files


def open_checkpoint(files: FolderFiles, settings: dict) -> Checkpoint | None:
    """Open the TensorFlow 1 checkpoint in a folder. Return None for other folders."""
    return Tf1Checkpoint(files) if _has_checkpoint(files) else None


def open_tokenizer(files: FolderFiles, settings: dict) -> TokenizerPreset | None:
    """Open the tokenizer of a TensorFlow 1 checkpoint. Return None for other folders."""
    if not _has_checkpoint(files):
        return None
    family, (path, config) = get_family(_FAMILY), _read_config(files)
    stored = read_stored_tokenizer(files, config, family.tokenizer)
    return TokenizerPreset(files, config, path, family, settings, stored)


def _has_checkpoint(files: FolderFiles) -> bool:
    return CONFIG not in files and _CONFIG_FILE in files


def _read_config(files: FolderFiles) -> tuple[pathlib.Path, dict]:
    return files.path / _CONFIG_FILE, {"model_type": _FAMILY, **files.read_json(_CONFIG_FILE)}


class Tf1Checkpoint(Checkpoint):
    """A TensorFlow 1 checkpoint in a folder. It contains no code.

    TensorFlow can only read files by path, and the file at a path could be replaced after it was
    checked. For this reason, TensorFlow reads copies of the checked files.

    Args:
        files: `FolderFiles`. The files of the checkpoint.

    Raises:
        ValueError: If the folder does not contain exactly one checkpoint, or if TensorFlow cannot
            read it.
    """

    def __init__(self, files: FolderFiles):
        self.files = files
        self.family = get_family(_FAMILY)
        self.settings = {}
        self.config_file, self.config = _read_config(files)
        stem = _find_checkpoint_name(files)
        parts = [name for name in files.listed if fnmatch.fnmatchcase(name, f"{stem}.data-*")]
        copies = files.enter_context(tempfile.TemporaryDirectory())
        for name in (f"{stem}.index", *parts):
            with open(pathlib.Path(copies) / name, "wb") as copy:
                shutil.copyfileobj(files.open_file(name), copy)
        try:
            self._reader = tf.train.load_checkpoint(str(pathlib.Path(copies) / stem))
        except Exception as error:  # TensorFlow raises many error types
            index = files.path / f"{stem}.index"
            raise ValueError(
                f"TensorFlow cannot open {index}: {error}. Download the checkpoint again."
            ) from None
        shapes = self._read_shapes(sum(get_size(files.open_file(name)) for name in parts))
        self._names = {_convert_name(name): name for name in shapes if not _TRAINING.search(name)}
        self.shapes = {
            ours: tuple(shapes[theirs][:: -1 if theirs.endswith("/kernel") else 1])
            for ours, theirs in self._names.items()
        }
        # Checkpoints do not store labels for a fine-tuned head.
        head = "ForSequenceClassification"
        output = f"{self.family.heads[head].output}.weight"
        if output in self.shapes:
            self.set_head(head, None, self.shapes[output][0])

    def _read_shapes(self, size: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all variables. Check that they fit in `size` bytes."""
        shapes = self._reader.get_variable_to_shape_map()
        self._dtypes = self._reader.get_variable_to_dtype_map()
        declared = sum(
            math.prod(shape) * max(self._dtypes[name].size or 1, 1)
            for name, shape in shapes.items()
        )
        check_file_size(self.folder, declared, size)
        return shapes

    def read_tensor(self, name: str) -> np.ndarray:
        theirs = self._names[name]
        check_is_float(np.dtype(self._dtypes[theirs].as_numpy_dtype), self.folder, theirs)
        try:
            value = self._reader.get_tensor(theirs)
        except Exception as error:  # TensorFlow raises many error types
            raise ValueError(
                f"TensorFlow cannot read {theirs} in {self.folder}: {error}. Download the "
                "checkpoint again."
            ) from None
        return value.T if theirs.endswith("/kernel") else value


def _find_checkpoint_name(files: FolderFiles) -> str:
    """Return the name of the only checkpoint in a folder, without the suffix .index."""
    found = [name for name in files.listed if name.endswith(".index")]
    if len(found) != 1:
        raise ValueError(
            f"{files.path} contains {', '.join(found) or 'no .index file'}. Expected a single "
            "checkpoint, such as bert_model.ckpt.index."
        )
    return found[0].removesuffix(".index")


def _convert_name(name: str) -> str:
    """Convert a variable name to the Hugging Face format.

    Example:
        >>> _convert_name("bert/encoder/layer_3/output/LayerNorm/gamma")
        'encoder.layer.3.output.LayerNorm.weight'
    """
    name = name.removeprefix("bert/")
    for old, new in _PARTS:
        name = re.sub(old, new, name)
    return name.replace("/", ".")
