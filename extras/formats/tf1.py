"""Read TensorFlow 1 checkpoints, such as models from https://github.com/google-research/bert.

A checkpoint contains configuration, vocabulary and weights, for example `bert_config.json`,
`vocab.txt` and `bert_model.ckpt.*`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import pathlib
import re
import shutil
import tempfile

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders import get_family
from encoder_zoo.encoders.family import Family
from encoder_zoo.presets.files.file_bytes import check_file_size, check_is_float
from encoder_zoo.presets.files.folder_files import FolderFiles, get_size
from encoder_zoo.presets.formats.checkpoint import Checkpoint, TokenizerPreset
from encoder_zoo.presets.formats.preset_files import CONFIG
from encoder_zoo.presets.formats.stored_tokenizer import read_stored_tokenizer

WEIGHTS = None  # repositories with these files also contain weights in another format


@dataclasses.dataclass(frozen=True)
class Tf1Names:
    """Names in TensorFlow 1 checkpoints for an encoder family.

    Attributes:
        config_file: String. Configuration file name.
        parts: Tuple of pairs (regular expression, replacement), which are applied to variable names
            in order.
    """

    config_file: str
    parts: tuple[tuple[str, str], ...]


TF1 = {
    "bert": Tf1Names(
        config_file="bert_config.json",
        parts=(
            (r"^cls/predictions/output_bias$", "cls/predictions/bias"),
            (r"^cls/seq_relationship/output_weights$", "cls/seq_relationship/weight"),
            (r"^cls/seq_relationship/output_bias$", "cls/seq_relationship/bias"),
            # Heads of models that `run_squad.py` and `run_classifier.py` fine-tuned.
            (r"^cls/squad/output_weights$", "qa_outputs/weight"),
            (r"^cls/squad/output_bias$", "qa_outputs/bias"),
            (r"^output_weights$", "classifier/weight"),
            (r"^output_bias$", "classifier/bias"),
        ),
    )
}
# Regular expressions and replacements for variable names in all families.
_PARTS = (
    (r"encoder/layer_(\d+)/", r"encoder/layer/\1/"),
    (r"LayerNorm/gamma$", "LayerNorm/weight"),
    (r"LayerNorm/beta$", "LayerNorm/bias"),
    (r"/kernel$", "/weight"),
    (r"(embeddings/\w+_embeddings)$", r"\1/weight"),
)
# Optimizer variables.
_TRAINING = re.compile(r"adam_[mv]$|^global_step$|LAMB|/Adam")


def list_files() -> list[str]:
    """List glob patterns for checkpoint files, without tokenizer files."""
    configs = [names.config_file for names in TF1.values()]
    return [*configs, "*.index", "*.data-*"]


list_tokenizer_file_names = list_files


def open_checkpoint(files: FolderFiles, settings: dict) -> Checkpoint | None:
    """Open the TensorFlow 1 checkpoint in a folder. Return None for other folders."""
    family = _find_family(files)
    return Tf1Checkpoint(files, family) if family else None


def open_tokenizer(files: FolderFiles, settings: dict) -> TokenizerPreset | None:
    """Open the tokenizer of a TensorFlow 1 checkpoint. Return None for other folders."""
    if (family := _find_family(files)) is None:
        return None
    path, config = _read_config(files, family)
    stored = read_stored_tokenizer(files, config, family.tokenizer)
    return TokenizerPreset(files, config, path, family, settings, stored)


def _find_family(files: FolderFiles) -> Family | None:
    if CONFIG in files:
        return None
    found = (name for name, names in TF1.items() if names.config_file in files)
    return next((get_family(name) for name in found), None)


def _read_config(files: FolderFiles, family: Family) -> tuple[pathlib.Path, dict]:
    path = files.path / TF1[family.name].config_file
    return path, {"model_type": family.name, **files.read_json(path.name)}


class Tf1Checkpoint(Checkpoint):
    """A TensorFlow 1 checkpoint in a folder. It contains no code.

    TensorFlow can only read files by path, and the file at a path could be replaced after it was
    checked. For this reason, TensorFlow reads copies of the checked files.

    Args:
        files: `FolderFiles`. The files of the checkpoint.
        family: The `Family` for this checkpoint.

    Raises:
        ValueError: If the folder does not contain exactly one checkpoint, or if TensorFlow cannot
            read it.
    """

    def __init__(self, files: FolderFiles, family: Family):
        self.files = files
        self.family = family
        self.settings = {}
        self.config_file, self.config = _read_config(files, family)
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
        self._names = {
            _convert_name(name, family): name for name in shapes if not _TRAINING.search(name)
        }
        self.shapes = {
            ours: tuple(shapes[theirs][:: -1 if theirs.endswith("/kernel") else 1])
            for ours, theirs in self._names.items()
        }
        # Checkpoints do not store labels for a fine-tuned head.
        head = "ForSequenceClassification"
        output = f"{family.heads[head].output}.weight"
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


def _convert_name(name: str, family: Family) -> str:
    """Convert a variable name to the Hugging Face format.

    Example:
        >>> from encoder_zoo.encoders import get_family
        >>> _convert_name("bert/encoder/layer_3/output/LayerNorm/gamma", get_family("bert"))
        'encoder.layer.3.output.LayerNorm.weight'
    """
    name = name.removeprefix(f"{family.prefix}/")
    for old, new in (*_PARTS, *TF1[family.name].parts):
        name = re.sub(old, new, name)
    return name.replace("/", ".")
