"""Folders of static embeddings, of sentence-transformers and of model2vec, and back.

A table has a row for each token; or fewer, with the row of each token and its weight. Written is
model2vec's layout with sentence-transformers' files beside it, which both libraries open.

Comment letters: V vocabulary, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from safetensors.numpy import save

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.validation import Rule, check_argument
from encoder_zoo.common.wording import invalid, shown
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer
from encoder_zoo.presets.files.file_bytes import check_floats
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder
from encoder_zoo.presets.files.json_data import FLAG
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.formats.huggingface import open_weights
from encoder_zoo.presets.formats.preset_files import CONFIG, MODULES, SAFETENSORS
from encoder_zoo.presets.formats.sentence_transformers import (
    STATIC,
    Module,
    embedding_modules,
    first_module,
)

if TYPE_CHECKING:
    import keras

    from encoder_zoo.encoders.family import Family

TOKENIZER = "tokenizer.json"
MODEL_TYPE = "model2vec"
# The table in sentence-transformers' files, and in model2vec's.
THEIRS, MODEL2VEC = "embedding.weight", "embeddings"
MAPPING, WEIGHTS = "mapping", "weights"
COUNT_OR_NULL = Rule(
    lambda v: v is None or (type(v) is int and v >= 1), "an integer of 1 or more, or null"
)
MAX_LENGTH = 512  # of model2vec, where its config.json does not say it
# Bytes of a table with a row for each token, in float32: so many, or so many times the file's. The
# largest known table, of 500,000 tokens, has 512 MB, and rows that stand for 30 tokens are usual.
TABLE_BYTES, TABLE_RATIO = 2**29, 16


class StoredFile(NamedTuple):
    """A tokenizer.json that is not read yet, as `StoredTokenizer`."""

    files: Mapping[str, object]
    name = FileTokenizer.__name__

    @property
    def kind(self) -> StoredFile:
        """Return what loads the class of the tokenizer."""
        return self

    def load(self) -> type[FileTokenizer]:
        """Return the class."""
        return FileTokenizer

    def arguments(self, family: object) -> dict:
        """Return further arguments of the tokenizer."""
        return {}

    def special_tokens_to_add(self, tokenizer: FileTokenizer) -> list:
        """Return the tokens that files name and the tokenizer lacks."""
        return []


def static_module(files: FolderFiles) -> Module | None:
    """Return the table's module, if the files are those of static embeddings.

    Args:
        files: of the whole folder.
    """
    if MODULES in files:
        if str(first_module(files).get("type")).split(".")[-1] != STATIC:
            return None
        return embedding_modules(files)[0]
    config = files.read_json(CONFIG) if CONFIG in files else {}
    return Module(STATIC, "") if config.get("model_type") == MODEL_TYPE else None


class StaticCheckpoint(Checkpoint):
    """A folder of static embeddings.

    Args:
        files: of the whole folder.
        settings: contents of its `encoder_zoo.json`.
        module: of the table.

    Raises:
        ValueError: If there is no tokenizer.json, or if the weights have other names or shapes, or
            a mapping beyond the table.
    """

    @property
    def family(self) -> Family:
        """Return the family of a `TokenTable`."""
        from encoder_zoo.encoders.families.token_table import TokenTable  # it needs Keras

        return TokenTable.family

    def __init__(self, files: FolderFiles, settings: dict, module: Module):
        self.settings = settings
        self.files = Subfolder(files, module.path) if module.path else files
        self.own = files.read_json(CONFIG) if CONFIG in files else {}
        self.config_file = files.path / (CONFIG if CONFIG in files else MODULES)
        if TOKENIZER not in self.files:
            raise ValueError(
                f"{self.files.path} has no {TOKENIZER}. Static embeddings tokenize by it: add the "
                "file."
            )
        [file] = open_weights(self.files)
        self._file, names = file, set(file.shapes)
        self._table = THEIRS if THEIRS in names else MODEL2VEC
        shapes = {name: tuple(file.shapes[name]) for name in names}
        table = shapes.get(self._table, ())
        known = names <= {self._table, MAPPING, WEIGHTS}
        flat = all(len(shapes[n]) == 1 for n in names & {MAPPING, WEIGHTS})
        if len(table) != 2 or not all(table) or not known or not flat:
            raise ValueError(
                f"{file.path}: the weights are {shown(shapes)}. Expected {THEIRS} or {MODEL2VEC}, "
                f"(tokens, width), and at most {MAPPING} and {WEIGHTS}, a number for each token."
            )
        count = shapes.get(MAPPING, table)[0]
        if shapes.get(WEIGHTS, (count,)) != (count,):
            raise invalid(f"{file.path}: the shape of {WEIGHTS}", shapes[WEIGHTS], f"({count},)")
        stored, needed = 4 * table[0] * table[1], 4 * count * table[1]
        if needed > max(TABLE_BYTES, TABLE_RATIO * stored):
            raise ValueError(
                f"{file.path}: {MAPPING} makes a table of {needed} bytes from {stored} that are "
                f"stored. Expected at most {max(TABLE_BYTES, TABLE_RATIO * stored)}."
            )
        sizes = {"vocab_size": count, "hidden_size": table[1]}
        ones = ("num_hidden_layers", "num_attention_heads", "intermediate_size")
        self.config = {**sizes, **dict.fromkeys(ones, 1)}
        self.shapes = {THEIRS: (count, table[1])}
        self.weight_files = frozenset([SAFETENSORS.file])

    def tensor(self, name: str) -> np.ndarray:
        """Return the table with a row for each token, (V, D) float32."""
        if self._file.dtype(self._table) != np.int8:  # of model2vec's quantized tables
            check_floats(self._file.dtype(self._table), self._file.path, self._table)
        table = np.asarray(self._file.read(self._table)).astype("float32")  # (R, D)
        if MAPPING in self._file.shapes:
            rows = np.asarray(self._file.read(MAPPING))
            if rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(table):
                raise ValueError(
                    f"{self._file.path}: {MAPPING} has a number that is no row of {self._table}. "
                    f"Expected 0 to {len(table) - 1}."
                )
            table = table[rows]
        if WEIGHTS in self._file.shapes:
            check_floats(self._file.dtype(WEIGHTS), self._file.path, WEIGHTS)
            table = table * np.asarray(self._file.read(WEIGHTS)).astype("float32")[:, None]
        return table

    def stored_tokenizer(self) -> StoredFile:
        # model2vec leaves unknown words out, sentence-transformers has vectors of them.
        keeps = bool(self.own.get("keeps_unknown", self._table == THEIRS))
        text = self.files.read_text(TOKENIZER)
        return StoredFile({"tokenizer_json": text, "keeps_unknown": keeps})

    def own_arguments(self) -> dict[str, object]:
        """Return the arguments of `TextEmbedder` in model2vec's config.json."""
        if "normalize" not in self.own:
            return {}
        check_argument(f"{self.config_file}: normalize", self.own["normalize"], FLAG)
        return {"normalize": self.own["normalize"]}

    def length(self) -> int | None:
        """Return the most tokens of a text that are read."""
        default = MAX_LENGTH if self._table == MODEL2VEC else None
        length = self.own.get("max_length", default)
        check_argument(f"{self.config_file}: max_length", length, COUNT_OR_NULL)
        return length


def static_files(task: keras.Model, dtype: object) -> dict[str, object]:
    """Return the files of a `TextEmbedder` with a `TokenTable`, beside those of all embedders.

    Args:
        task: the embedder.
        dtype: of the table; None for its own.
    """
    table = task.backbone.table()
    tokenizer, preprocessor = None, task.preprocessor
    if preprocessor is not None:
        tokenizer = preprocessor.tokenizer
    config = {
        "model_type": MODEL_TYPE,
        "architectures": ["StaticModel"],
        "hidden_dim": table.shape[1],
        "normalize": task.normalize,
        "max_length": preprocessor.max_length if preprocessor is not None else None,
        "keeps_unknown": tokenizer is None or tokenizer.keeps_unknown,
    }
    if not config["keeps_unknown"] and tokenizer.unknown_id is not None:
        # sentence-transformers, which keeps unknown words, then has the same sums.
        table = table.copy()
        table[tokenizer.unknown_id] = 0
    return {CONFIG: config, SAFETENSORS.file: save({MODEL2VEC: table.astype(dtype or "float32")})}
