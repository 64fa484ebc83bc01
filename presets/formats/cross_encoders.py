"""Read and write folders of cross-encoders from sentence-transformers.

Up to version 5.3, a folder contains a classifier of transformers with an additional field in
config.json. Later versions write `modules.json` with one module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from encoder_zoo.common.wording import quote
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.formats.checkpoint import Checkpoint, Preset, make_default_labels
from encoder_zoo.presets.formats.embedding_modules import TORCH_ACTIVATIONS, read_activation
from encoder_zoo.presets.formats.preset_files import CONFIG, MODEL_SETTINGS, MODULES
from encoder_zoo.presets.formats.preset_task import FolderFormat
from encoder_zoo.presets.formats.sentence_transformers import (
    check_case,
    check_transformer,
    read_length,
    read_model_settings,
    read_modules,
)
from encoder_zoo.presets.formats.stored_tokenizer import TOKENIZER_CONFIG, make_tokenizer_files

if TYPE_CHECKING:
    import keras

_SINCE_4, _BEFORE_4 = "sentence_transformers", "sbert_ce_default_activation_function"


def read_cross_encoder_activation(files: FolderFiles, config: Mapping) -> str:
    """Read the output activation of a cross-encoder, "sigmoid" or "linear".

    If no file contains an activation, the default is "sigmoid" for a single label in `config`, and
    "linear" otherwise.

    Args:
        files: `FolderFiles`. The files of the encoder.
        config: Dict. Content of config.json.

    Raises:
        ValueError: If the activation is not supported.

    Source: sentence-transformers 6.2, `cross_encoder/model.py`.
    """
    noted, path = config.get(_SINCE_4), files.path / CONFIG
    candidates = [
        (files.root.path / MODEL_SETTINGS, read_model_settings(files.root).get("activation_fn")),
        (path, noted.get("activation_fn") if isinstance(noted, dict) else noted),
        (path, config.get(_BEFORE_4)),
    ]
    for field, name in candidates:
        if name is not None:
            return read_activation(name, field, ("sigmoid", "linear"))
    return "sigmoid" if len(config.get("id2label") or ()) == 1 else "linear"


class CrossEncoderFolderFormat(FolderFormat):
    """Folder format of `Reranker`, as in CrossEncoder of sentence-transformers."""

    opened_by = "CrossEncoder"

    def read_arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        if "activation" not in given:
            _check_modules(checkpoint)
        [architecture, *_] = checkpoint.config.get("architectures") or [""]
        if not architecture.endswith("ForSequenceClassification"):
            return {}
        found = checkpoint.config.get("id2label")
        names = [*found.values()] if found else make_default_labels(2)  # as in transformers
        if len(names) > 1:
            raise ValueError(
                f"The checkpoint contains a classifier with {len(names)} labels "
                f"({', '.join(names[:5])}), but a Reranker only has one output. Use "
                "SequenceClassifier.from_preset, or create a new head with "
                "Reranker(Backbone.from_preset(source), preprocessor)."
            )
        if "activation" in given:
            return {}
        activation = read_cross_encoder_activation(checkpoint.files, checkpoint.config)
        return {"activation": activation}

    def read_preprocessor_arguments(self, preset: Preset, tokenizer) -> dict[str, object]:
        check_case(preset.files, tokenizer)
        root = preset.files.root
        settings, path = read_model_settings(root), root.path / MODEL_SETTINGS
        prompt, is_own = settings.get("default_prompt_name"), "activation_fn" in settings
        if is_own and prompt is not None and (settings.get("prompts") or {}).get(prompt):
            raise ValueError(
                f"{path}: default_prompt_name is {quote(prompt)}, but prompts are not supported "
                "for cross-encoders. Set default_prompt_name to null, and add the prompt to all "
                "queries."
            )
        return {"max_length": read_length(preset.files)}

    def make_config_fields(self, task: keras.Model) -> dict[str, object]:
        return make_cross_encoder_config(task.activation)

    def make_files(self, task: keras.Model, dtype: object = None) -> dict[str, object]:
        if task.preprocessor is None:
            return {}
        length = task.preprocessor.max_sequence_length  # length of a pair with special tokens
        files = make_tokenizer_files(task.preprocessor.tokenizer, length)
        return {TOKENIZER_CONFIG: files[TOKENIZER_CONFIG]}


def _check_modules(checkpoint: Checkpoint) -> None:
    """Check that a cross-encoder only has a Transformer module. Other models are not checked."""
    files = checkpoint.files.root
    is_other = read_model_settings(files).get("model_type", "CrossEncoder") != "CrossEncoder"
    if MODULES not in files or is_other:
        return
    kinds = [module.kind for module in read_modules(files)]
    if "Pooling" in kinds:  # models for text embeddings, before version 5.0
        return
    if kinds != ["Transformer"]:
        raise ValueError(
            f"{files.path / MODULES}: the modules are {quote(', '.join(kinds))}. Expected a single "
            "Transformer."
        )
    check_transformer(checkpoint.files, "sequence-classification")


def make_cross_encoder_config(activation: str) -> dict[str, object]:
    """Create the config.json fields for an activation, for sentence-transformers 2 to 6.

    Example:
        >>> make_cross_encoder_config("linear")["sbert_ce_default_activation_function"]
        'torch.nn.modules.linear.Identity'
    """
    name = TORCH_ACTIVATIONS[activation]
    return {_SINCE_4: {"activation_fn": name, "version": "4.0.0"}, _BEFORE_4: name}
