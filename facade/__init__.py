"""encoder_zoo: encoder-only transformers for Keras 3, from raw text to answers.

Every public name is imported when it is first used, so that `import encoder_zoo` loads neither
Keras nor TensorFlow.

Example:
    >>> import encoder_zoo as ez
    >>> ez.Classifier is ez.SequenceClassifier
    True
"""

import importlib

from encoder_zoo.encoders import FAMILIES, family_module

__version__ = "0.1.0"

_MODULES = {
    "encoders.backbone": ["Backbone"],
    "encoders.tokenizers.wordpiece": ["BertTokenizer"],
    "encoders.tokenizers.byte_bpe": ["RobertaTokenizer"],
    "tasks.sequence_classifier": ["SequenceClassifier", "SequenceClassifierPreprocessor"],
    "tasks.token_classification.task": ["TokenClassifier"],
    "tasks.token_classification.preprocessor": ["TokenClassifierPreprocessor"],
    "tasks.token_classification.metrics": ["EntityF1"],
    "tasks.question_answering.task": ["SpanQA"],
    "tasks.question_answering.preprocessor": ["SpanQAPreprocessor"],
    "tasks.question_answering.squad": ["read_squad"],
    "tasks.language_modelling.task": ["MaskedLM"],
    "tasks.language_modelling.preprocessor": ["MaskedLMPreprocessor"],
    "tasks.training.resuming": ["BackupAndRestore"],
    "presets.registry": ["list_presets"],
}
_HOMES = {name: f"encoder_zoo.{module}" for module, names in _MODULES.items() for name in names}
_HOMES |= {backbone: family_module(name) for name, backbone in FAMILIES.items()}
_ALIASES = {"Classifier": "SequenceClassifier"}

__all__ = sorted([*_HOMES, *_ALIASES])


def __getattr__(name: str) -> object:
    public = _ALIASES.get(name, name)
    if public not in _HOMES:
        raise AttributeError(f"module 'encoder_zoo' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[public]), public)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
