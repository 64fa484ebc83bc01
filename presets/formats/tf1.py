"""Reading the original TensorFlow 1 checkpoints of BERT: `bert_config.json`, `vocab.txt` and
`bert_model.ckpt.*`, as https://github.com/google-research/bert publishes them."""

from __future__ import annotations

import pathlib
import re

import numpy as np

from encoder_zoo.encoders.backbone import Family
from encoder_zoo.lazy import tf
from encoder_zoo.presets.files.plain_files import preset_file, read_json
from encoder_zoo.presets.formats.checkpoint import Checkpoint

CONFIG = "bert_config.json"
# Parts of names there and here; the rest of a name is the same but for "/" and ".".
_PARTS = (
    (r"^bert/", ""),
    (r"encoder/layer_(\d+)/", r"encoder/layer/\1/"),
    (r"LayerNorm/gamma$", "LayerNorm/weight"),
    (r"LayerNorm/beta$", "LayerNorm/bias"),
    (r"/kernel$", "/weight"),
    (r"(embeddings/\w+_embeddings)$", r"\1/weight"),
    (r"^cls/predictions/output_bias$", "cls/predictions/bias"),
    (r"^cls/seq_relationship/output_weights$", "cls/seq_relationship/weight"),
    (r"^cls/seq_relationship/output_bias$", "cls/seq_relationship/bias"),
    # Fine-tuned by the same code, `run_squad.py` and `run_classifier.py`.
    (r"^cls/squad/output_weights$", "qa_outputs/weight"),
    (r"^cls/squad/output_bias$", "qa_outputs/bias"),
    (r"^output_weights$", "classifier/weight"),
    (r"^output_bias$", "classifier/bias"),
)
# The optimizer's own: not part of the model.
_TRAINING = re.compile(r"adam_[mv]$|^global_step$|LAMB|/Adam")


class Tf1Checkpoint(Checkpoint):
    """A folder with a TensorFlow 1 checkpoint.

    TensorFlow's own reader of tensors opens it; a checkpoint holds no code.

    Args:
        folder: see above.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.settings = {}
        self.config_file = folder / CONFIG
        self.config = {"model_type": "bert", **read_json(self.config_file)}
        index = _index_file(folder)
        for part in folder.glob(f"{index.stem}.data-*"):
            preset_file(folder, part.name)
        try:
            self._reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        except Exception as error:  # TensorFlow turns its errors into many of Python's
            raise ValueError(f"{index}: TensorFlow cannot open it: {error}") from None
        self._names = {
            _translate(name): name
            for name in self._reader.get_variable_to_shape_map()
            if not _TRAINING.search(name)
        }
        shapes = self._reader.get_variable_to_shape_map()
        self.shapes = {
            ours: tuple(shapes[theirs][:: -1 if theirs.endswith("/kernel") else 1])
            for ours, theirs in self._names.items()
        }
        self._describe_head()

    def tensor(self, name: str) -> np.ndarray:
        theirs = self._names[name]
        try:
            value = self._reader.get_tensor(theirs)
        except Exception as error:  # TensorFlow turns its errors into many of Python's
            raise ValueError(f"{self.folder}: {theirs} is not readable: {error}") from None
        return value.T if theirs.endswith("/kernel") else value

    def load_tokenizer(self, family: Family):
        return family.load_tokenizer(self.folder)

    def _describe_head(self) -> None:
        """States the classes of a fine-tuned head, whose names such checkpoints do not hold."""
        if "classifier.weight" in self.shapes:
            count = self.shapes["classifier.weight"][0]
            self.config["architectures"] = ["BertForSequenceClassification"]
            self.config["id2label"] = {str(i): f"LABEL_{i}" for i in range(count)}


def _index_file(folder: pathlib.Path) -> pathlib.Path:
    """The one checkpoint in the folder."""
    found = sorted(path.name for path in folder.glob("*.index"))
    if len(found) != 1:
        raise ValueError(
            f"{folder}: expected one checkpoint, such as bert_model.ckpt.index. "
            f"Found: {', '.join(found) or 'none'}."
        )
    return preset_file(folder, found[0])


def _translate(name: str) -> str:
    """A variable's name in the Hugging Face format.

    Example:
        >>> _translate("bert/encoder/layer_3/attention/output/LayerNorm/gamma")
        'encoder.layer.3.attention.output.LayerNorm.weight'
    """
    for old, new in _PARTS:
        name = re.sub(old, new, name)
    return name.replace("/", ".")
