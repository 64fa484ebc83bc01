"""encoder_zoo: encoder-only transformers for Keras 3, from raw text to answers.

Every public name is imported when it is first used, so that `import encoder_zoo` loads neither
Keras nor TensorFlow. Keras opens files that hold this package's classes after that import alone.

Example:
    >>> import encoder_zoo as ez
    >>> ez.Classifier is ez.SequenceClassifier
    True
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AlbertBackbone",
    "AlbertTokenizer",
    "Backbone",
    "BackupAndRestore",
    "BertBackbone",
    "BertTokenizer",
    "BertweetTokenizer",
    "CamembertBackbone",
    "CamembertTokenizer",
    "Classifier",
    "DebertaV2Backbone",
    "DebertaV2Tokenizer",
    "DistilBertBackbone",
    "Distillation",
    "ElectraBackbone",
    "EntityF1",
    "GemmaTokenizer",
    "MaskedLM",
    "MaskedLMPreprocessor",
    "ModernBertBackbone",
    "ModernBertTokenizer",
    "Pretraining",
    "PretrainingCorpus",
    "PretrainingPreprocessor",
    "ReplacedTokenDetection",
    "ReplacedTokenDetectionPreprocessor",
    "RobertaBackbone",
    "RobertaTokenizer",
    "SequenceClassifier",
    "SequenceClassifierPreprocessor",
    "SpanQA",
    "SpanQAPreprocessor",
    "TokenClassifier",
    "TokenClassifierPreprocessor",
    "Tokenizer",
    "XLMRobertaBackbone",
    "XLMRobertaTokenizer",
    "display",
    "list_presets",
    "read_conll",
    "read_squad",
    "sentence_order_pairs",
    "train_vocabulary",
]

if TYPE_CHECKING:  # what editors and type checkers see
    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.encoders.families.albert import AlbertBackbone
    from encoder_zoo.encoders.families.bert import BertBackbone
    from encoder_zoo.encoders.families.camembert import CamembertBackbone
    from encoder_zoo.encoders.families.deberta_v2 import DebertaV2Backbone
    from encoder_zoo.encoders.families.distilbert import DistilBertBackbone
    from encoder_zoo.encoders.families.electra import ElectraBackbone
    from encoder_zoo.encoders.families.modernbert import ModernBertBackbone
    from encoder_zoo.encoders.families.roberta import RobertaBackbone
    from encoder_zoo.encoders.families.xlm_roberta import XLMRobertaBackbone
    from encoder_zoo.encoders.tokenizers.bertweet import BertweetTokenizer
    from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
    from encoder_zoo.encoders.tokenizers.gemma import GemmaTokenizer
    from encoder_zoo.encoders.tokenizers.modern_bpe import ModernBertTokenizer
    from encoder_zoo.encoders.tokenizers.sentencepiece import (
        AlbertTokenizer,
        CamembertTokenizer,
        DebertaV2Tokenizer,
        XLMRobertaTokenizer,
    )
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer
    from encoder_zoo.presets.registry import list_presets
    from encoder_zoo.presets.train_vocabulary import train_vocabulary
    from encoder_zoo.tasks import display
    from encoder_zoo.tasks.corpora.corpus import PretrainingCorpus
    from encoder_zoo.tasks.distillation.task import Distillation
    from encoder_zoo.tasks.pretraining.masked_lm import MaskedLM
    from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import MaskedLMPreprocessor
    from encoder_zoo.tasks.pretraining.pretraining import Pretraining
    from encoder_zoo.tasks.pretraining.pretraining_preprocessor import PretrainingPreprocessor
    from encoder_zoo.tasks.pretraining.replaced_tokens import ReplacedTokenDetection
    from encoder_zoo.tasks.pretraining.replaced_tokens_preprocessor import (
        ReplacedTokenDetectionPreprocessor,
    )
    from encoder_zoo.tasks.pretraining.sentence_order import sentence_order_pairs
    from encoder_zoo.tasks.question_answering.preprocessor import SpanQAPreprocessor
    from encoder_zoo.tasks.question_answering.squad import read_squad
    from encoder_zoo.tasks.question_answering.task import SpanQA
    from encoder_zoo.tasks.sequence_classification.preprocessor import (
        SequenceClassifierPreprocessor,
    )
    from encoder_zoo.tasks.sequence_classification.task import SequenceClassifier
    from encoder_zoo.tasks.token_classification.conll import read_conll
    from encoder_zoo.tasks.token_classification.metrics import EntityF1
    from encoder_zoo.tasks.token_classification.preprocessor import TokenClassifierPreprocessor
    from encoder_zoo.tasks.token_classification.task import TokenClassifier
    from encoder_zoo.tasks.training.backup import BackupAndRestore

    Classifier = SequenceClassifier
else:
    import importlib

    from encoder_zoo.keras_files import register_with_keras
    from encoder_zoo.names import ALIASES, MODULES, NOT_SAVED, SAVED, SAVED_PARTS, homes

    register_with_keras(homes(SAVED, SAVED_PARTS))
    _HOMES = homes(SAVED, NOT_SAVED)

    def __getattr__(name: str) -> object:
        public = ALIASES.get(name, name)
        if public in MODULES:
            value = importlib.import_module(f"encoder_zoo.{MODULES[public]}")
        elif public in _HOMES:
            value = getattr(importlib.import_module(_HOMES[public]), public)
        else:
            raise AttributeError(f"module 'encoder_zoo' has no attribute '{name}'")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return __all__
