"""Read and write folders of static embeddings from sentence-transformers and model2vec.

The table of vectors has one row per token. In a compressed table, tokens can share a row: a mapping
selects the row of each token, and a weight scales the row. Both libraries can read the folders that
this module writes.

Comments use these letters for shapes: V vocabulary, R rows, D vector size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from safetensors.numpy import save

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.validation import Rule, check_argument
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer
from encoder_zoo.presets.files.file_bytes import check_is_float
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder
from encoder_zoo.presets.files.json_data import JSON_FLAG
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.formats.huggingface import StoredTensor, open_weights
from encoder_zoo.presets.formats.preset_files import CONFIG, MODULES, SAFETENSORS
from encoder_zoo.presets.formats.sentence_transformers import (
    STATIC,
    Module,
    read_embedding_modules,
    read_first_module,
)

if TYPE_CHECKING:
    import keras

    from encoder_zoo.encoders.family import Family

TOKENIZER = "tokenizer.json"
MODEL_TYPE = "model2vec"
# Names of the table in sentence-transformers and in model2vec.
THEIRS, MODEL2VEC = "embedding.weight", "embeddings"
MAPPING, STATIC_WEIGHTS = "mapping", "weights"
COUNT_OR_NULL = Rule(
    lambda v: v is None or (type(v) is int and v >= 1), "an integer of 1 or more, or null"
)
MAX_LENGTH = 512  # default of model2vec
# Maximum size of an uncompressed table in float32: in bytes, or relative to the stored table. The
# largest known table has 500,000 tokens and 512 MB. A row is typically shared by 30 tokens.
MAX_TABLE_BYTES, MAX_TABLE_RATIO = 2**29, 16


class StoredFile(NamedTuple):
    """Content of tokenizer.json, from which a tokenizer can be created later.

    This class has the same methods as `StoredTokenizer`.
    """

    files: Mapping[str, object]
    name = FileTokenizer.__name__

    @property
    def kind(self) -> StoredFile:
        """Return this object in place of a `TokenizerClass`, because only its `name` is used."""
        return self

    def read(self) -> FileTokenizer:
        """Create the tokenizer."""
        return FileTokenizer(**self.files)

    def read_arguments(self, family: object) -> dict:
        """Return additional arguments for the tokenizer."""
        return {}

    def list_special_tokens_to_add(self, tokenizer: FileTokenizer) -> list:
        """List the special tokens in the files that are missing in the tokenizer."""
        return []


def find_static_module(files: FolderFiles) -> Module | None:
    """Find the module with static embeddings, or return None for other folders.

    Args:
        files: `FolderFiles`. The files of the whole folder.
    """
    if MODULES in files:
        if str(read_first_module(files).get("type")).split(".")[-1] != STATIC:
            return None
        return read_embedding_modules(files)[0]
    config = files.read_json(CONFIG) if CONFIG in files else {}
    return Module(STATIC, "") if config.get("model_type") == MODEL_TYPE else None


class StaticCheckpoint(Checkpoint):
    """Checkpoint with static embeddings.

    Args:
        files: `FolderFiles`. The files of the whole folder.
        settings: Dict. The `encoder_zoo.json` content.
        module: The `Module` of the table.

    Raises:
        ValueError: If tokenizer.json is missing, if a weight name or shape is unexpected, or if the
            expanded table would be too large.
    """

    @property
    def family(self) -> Family:
        """The family of `TokenTable`."""
        from encoder_zoo.encoders.families.token_table import TokenTable  # needs Keras

        return TokenTable.family

    def __init__(self, files: FolderFiles, settings: dict, module: Module):
        self.settings = settings
        self.files = Subfolder(files, module.path) if module.path else files
        self.own = files.read_json(CONFIG) if CONFIG in files else {}
        self.config_file = files.path / (CONFIG if CONFIG in files else MODULES)
        if TOKENIZER not in self.files:
            raise ValueError(
                f"{self.files.path} does not contain {TOKENIZER}, which static embeddings require."
            )
        [file] = open_weights(self.files)
        self._file, names = file, set(file.shapes)
        self._table = THEIRS if THEIRS in names else MODEL2VEC
        shapes = {name: tuple(file.shapes[name]) for name in names}
        table = shapes.get(self._table, ())
        known = names <= {self._table, MAPPING, STATIC_WEIGHTS}
        flat = all(len(shapes[n]) == 1 for n in names & {MAPPING, STATIC_WEIGHTS})
        if len(table) != 2 or not all(table) or not known or not flat:
            raise ValueError(
                f"{file.path}: the weights have the shapes {quote(shapes)}. Expected {THEIRS} or "
                f"{MODEL2VEC} of shape (tokens, width), and optionally {MAPPING} and "
                f"{STATIC_WEIGHTS} of shape (tokens,)."
            )
        count = shapes.get(MAPPING, table)[0]
        if shapes.get(STATIC_WEIGHTS, (count,)) != (count,):
            raise invalid(
                f"{file.path}: {STATIC_WEIGHTS}.shape", shapes[STATIC_WEIGHTS], f"({count},)"
            )
        stored, needed = 4 * table[0] * table[1], 4 * count * table[1]
        if needed > max(MAX_TABLE_BYTES, MAX_TABLE_RATIO * stored):
            raise ValueError(
                f"{file.path}: {MAPPING} would expand a table of {stored} bytes to {needed} bytes. "
                f"Expected at most {max(MAX_TABLE_BYTES, MAX_TABLE_RATIO * stored)} bytes."
            )
        sizes = {"vocab_size": count, "hidden_size": table[1]}
        ones = ("num_hidden_layers", "num_attention_heads", "intermediate_size")
        self.config = {**sizes, **dict.fromkeys(ones, 1)}
        self.shapes = {THEIRS: (count, table[1])}
        self.weight_files = frozenset([SAFETENSORS.file])

    def read_tensor(self, name: str) -> np.ndarray:
        """Return the table of shape (V, D) as float32, with one row per token.

        Raises:
            ValueError: If the mapping contains a row outside of the table.
        """
        if self._file.get_dtype(self._table) != np.int8:  # quantized tables of model2vec
            check_is_float(self._file.get_dtype(self._table), self._file.path, self._table)
        table = np.asarray(self._file.read(self._table)).astype("float32")  # (R, D)
        if MAPPING in self._file.shapes:
            rows = np.asarray(self._file.read(MAPPING))
            if rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(table):
                raise ValueError(
                    f"{self._file.path}: {MAPPING} contains an invalid row of {self._table}. "
                    f"Expected integers from 0 to {len(table) - 1}."
                )
            table = table[rows]
        if STATIC_WEIGHTS in self._file.shapes:
            weights = StoredTensor(self._file, STATIC_WEIGHTS).read()
            table = table * weights.astype("float32")[:, None]
        return table

    def read_tokenizer(self) -> StoredFile:
        # model2vec skips unknown words. sentence-transformers uses a vector for them.
        keeps = bool(self.own.get("keeps_unknown", self._table == THEIRS))
        text = self.files.read_text(TOKENIZER)
        return StoredFile({"tokenizer_json": text, "keeps_unknown": keeps})

    def read_model2vec_arguments(self) -> dict[str, object]:
        """Get the arguments for `TextEmbedder` from config.json of model2vec."""
        if "normalize" not in self.own:
            return {}
        check_argument(f"{self.config_file}: normalize", self.own["normalize"], JSON_FLAG)
        return {"normalize": self.own["normalize"]}

    def read_length(self) -> int | None:
        """Return the maximum number of tokens per text, or None for no limit."""
        default = MAX_LENGTH if self._table == MODEL2VEC else None
        length = self.own.get("max_length", default)
        check_argument(f"{self.config_file}: max_length", length, COUNT_OR_NULL)
        return length


def make_static_files(task: keras.Model, dtype: object) -> dict[str, object]:
    """Create config.json and the safetensors file for a `TextEmbedder` with a `TokenTable`.

    Args:
        task: The `TextEmbedder` to save.
        dtype: Dtype of the stored table. If None, float32 will be used.
    """
    table = task.backbone.get_table()
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
        # sentence-transformers does not skip unknown words, so their vector is set to 0.
        table = table.copy()
        table[tokenizer.unknown_id] = 0
    return {CONFIG: config, SAFETENSORS.file: save({MODEL2VEC: table.astype(dtype or "float32")})}
