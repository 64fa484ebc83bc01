"""Reading checkpoints of TensorFlow 1: a configuration, the vocabulary and `*.ckpt.*`, such as
`bert_config.json`, `vocab.txt` and `bert_model.ckpt.*` of https://github.com/google-research/bert.
"""

from __future__ import annotations

import math
import pathlib
import re

import numpy as np

from encoder_zoo.encoders import all_families
from encoder_zoo.encoders.family import Family
from encoder_zoo.lazy import tf
from encoder_zoo.presets.files.arrays import check_floats, check_held
from encoder_zoo.presets.files.plain_files import preset_file, read_json
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.tokenizer_files import StoredTokenizer, read_stored_tokenizer

# Parts of names there and here, in every family; the rest of a name is the same but for "/".
_PARTS = (
    (r"encoder/layer_(\d+)/", r"encoder/layer/\1/"),
    (r"LayerNorm/gamma$", "LayerNorm/weight"),
    (r"LayerNorm/beta$", "LayerNorm/bias"),
    (r"/kernel$", "/weight"),
    (r"(embeddings/\w+_embeddings)$", r"\1/weight"),
)
# The optimizer's own: not part of the model.
_TRAINING = re.compile(r"adam_[mv]$|^global_step$|LAMB|/Adam")


def family_in(folder: pathlib.Path) -> Family | None:
    """The family of the TensorFlow 1 checkpoint in a folder, None if there is no such."""
    for family in all_families():
        if family.tf1 and (folder / family.tf1.config_file).exists():
            return family
    return None


class Tf1Checkpoint(Checkpoint):
    """A folder with a TensorFlow 1 checkpoint.

    TensorFlow's own reader of tensors opens it; a checkpoint holds no code.

    Args:
        folder: see above.
        family: see `family_in`.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """

    def __init__(self, folder: pathlib.Path, family: Family):
        self.folder = folder
        self.family = family
        self.settings = {}
        self.config_file = folder / family.tf1.config_file
        self.config = {"model_type": family.name, **read_json(self.config_file)}
        index = _index_file(folder)
        parts = [preset_file(folder, p.name) for p in folder.glob(f"{index.stem}.data-*")]
        try:
            self._reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        except Exception as error:  # TensorFlow turns its errors into many of Python's
            raise ValueError(f"{index}: TensorFlow cannot open it: {error}") from None
        shapes = self._variables(parts)
        self._names = {
            _translate(name, family): name for name in shapes if not _TRAINING.search(name)
        }
        self.shapes = {
            ours: tuple(shapes[theirs][:: -1 if theirs.endswith("/kernel") else 1])
            for ours, theirs in self._names.items()
        }
        # Such checkpoints do not hold the names of a fine-tuned head's classes.
        head = "ForSequenceClassification"
        output = f"{family.heads[head].output}.weight"
        if output in self.shapes:
            self.set_head(head, None, self.shapes[output][0])

    def _variables(self, parts: list[pathlib.Path]) -> dict[str, tuple[int, ...]]:
        """{variable: shape}, none of which promises more than there is."""
        shapes = self._reader.get_variable_to_shape_map()
        self._dtypes = self._reader.get_variable_to_dtype_map()
        promised = sum(
            math.prod(shape) * max(self._dtypes[name].size or 1, 1)
            for name, shape in shapes.items()
        )
        check_held(self.folder, promised, sum(part.stat().st_size for part in parts))
        return shapes

    def tensor(self, name: str) -> np.ndarray:
        theirs = self._names[name]
        check_floats(np.dtype(self._dtypes[theirs].as_numpy_dtype), self.folder, theirs)
        try:
            value = self._reader.get_tensor(theirs)
        except Exception as error:  # TensorFlow turns its errors into many of Python's
            raise ValueError(f"{self.folder}: {theirs} is not readable: {error}") from None
        return value.T if theirs.endswith("/kernel") else value

    def stored_tokenizer(self) -> StoredTokenizer:
        return read_stored_tokenizer(self.folder, self.config, self.family.tokenizer)


def _index_file(folder: pathlib.Path) -> pathlib.Path:
    """The one checkpoint in the folder."""
    found = sorted(path.name for path in folder.glob("*.index"))
    if len(found) != 1:
        raise ValueError(
            f"{folder}: expected one checkpoint, such as bert_model.ckpt.index. "
            f"Found: {', '.join(found) or 'none'}."
        )
    return preset_file(folder, found[0])


def _translate(name: str, family: Family) -> str:
    """A variable's name in the Hugging Face format.

    Example:
        >>> from encoder_zoo.encoders import get_family
        >>> _translate("bert/encoder/layer_3/output/LayerNorm/gamma", get_family("bert"))
        'encoder.layer.3.output.LayerNorm.weight'
    """
    name = name.removeprefix(f"{family.prefix}/")
    for old, new in (*_PARTS, *family.tf1.parts):
        name = re.sub(old, new, name)
    return name.replace("/", ".")
