"""The fields of config.json that decide how a cross-encoder answers."""

from __future__ import annotations

from collections.abc import Mapping

from encoder_zoo.common.wording import shown
from encoder_zoo.tasks.base.class_names import labels_from_config

# Names of PyTorch's classes, under any of its modules, as sentence-transformers writes them.
TORCH_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "linear"}


def stored_activation(config: Mapping) -> str | None:
    """Return the activation that sentence-transformers noted in config.json; None if it did not.

    Args:
        config: of version 4.0 or later, {"sentence_transformers": {"activation_fn": ...}}, or of an
            earlier one, {"sbert_ce_default_activation_function": ...}.

    Raises:
        ValueError: "config.json: the activation is 'torch.nn.modules.activation.Tanh'. ..."

    Example:
        >>> stored_activation({"sbert_ce_default_activation_function": "torch.nn.Identity"})
        'linear'
    """
    noted = config.get("sentence_transformers")
    path = noted.get("activation_fn") if isinstance(noted, Mapping) else None
    path = path or config.get("sbert_ce_default_activation_function")
    return None if path is None else activation_named(path)


def activation_named(path: object) -> str:
    """Return the activation of a class's name in PyTorch.

    Raises:
        ValueError: as of `stored_activation`.

    Example:
        >>> activation_named("torch.nn.modules.activation.Sigmoid")
        'sigmoid'
    """
    parts = path.split(".") if isinstance(path, str) else [""]
    if parts[0] != "torch" or parts[-1] not in TORCH_ACTIVATIONS:
        raise ValueError(
            f"config.json: the activation is {shown(path)}. Expected torch's Sigmoid or Identity. "
            'Pass activation="sigmoid" or "linear" to choose one.'
        )
    return TORCH_ACTIVATIONS[parts[-1]]


def check_one_label(config: Mapping, suffix: str) -> None:
    """Raise a ValueError for a classifier of several labels.

    Args:
        config: contents of config.json.
        suffix: of the class of classifiers.

    Example:
        >>> config = {"architectures": ["BertForSequenceClassification"]}
        >>> check_one_label(config, "ForSequenceClassification")
        Traceback (most recent call last):
        ValueError: The checkpoint is a classifier of 2 labels, LABEL_0, LABEL_1, and a Reranker ...
    """
    [architecture, *_] = config.get("architectures") or [""]
    labels = labels_from_config(config)
    if architecture.endswith(suffix) and len(labels) > 1:
        raise ValueError(
            f"The checkpoint is a classifier of {len(labels)} labels, {', '.join(labels[:5])}, and "
            "a Reranker has one output. Load it with SequenceClassifier.from_preset; or load its "
            "encoder with Backbone.from_preset, for a Reranker with a new head."
        )
