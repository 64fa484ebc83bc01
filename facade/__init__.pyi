"""The public names: read by editors, and by `encoder_zoo.names` at run time."""

# ruff: noqa: I001
from encoder_zoo import sklearn as sklearn
from encoder_zoo import testing as testing
from encoder_zoo import typing as typing
from encoder_zoo.encoders import register_family as register_family
from encoder_zoo.encoders.backbone import Backbone as Backbone
from encoder_zoo.encoders.families.albert import AlbertBackbone as AlbertBackbone
from encoder_zoo.encoders.families.bart import BartBackbone as BartBackbone
from encoder_zoo.encoders.families.bert import BertBackbone as BertBackbone
from encoder_zoo.encoders.families.camembert import CamembertBackbone as CamembertBackbone
from encoder_zoo.encoders.families.deberta_v2 import DebertaV2Backbone as DebertaV2Backbone
from encoder_zoo.encoders.families.distilbert import DistilBertBackbone as DistilBertBackbone
from encoder_zoo.encoders.families.electra import ElectraBackbone as ElectraBackbone
from encoder_zoo.encoders.families.eurobert import EuroBertBackbone as EuroBertBackbone
from encoder_zoo.encoders.families.gte import GteBackbone as GteBackbone
from encoder_zoo.encoders.families.modernbert import ModernBertBackbone as ModernBertBackbone
from encoder_zoo.encoders.families.mpnet import MPNetBackbone as MPNetBackbone
from encoder_zoo.encoders.families.nomic_bert import NomicBertBackbone as NomicBertBackbone
from encoder_zoo.encoders.families.roberta import RobertaBackbone as RobertaBackbone
from encoder_zoo.encoders.families.xlm_roberta import XLMRobertaBackbone as XLMRobertaBackbone
from encoder_zoo.encoders.families.xlnet import XLNetBackbone as XLNetBackbone
from encoder_zoo.encoders.tokenizers.bertweet import BertweetTokenizer as BertweetTokenizer
from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer as RobertaTokenizer
from encoder_zoo.encoders.tokenizers.gemma import GemmaTokenizer as GemmaTokenizer
from encoder_zoo.encoders.tokenizers.llama_bpe import EuroBertTokenizer as EuroBertTokenizer
from encoder_zoo.encoders.tokenizers.modern_bpe import ModernBertTokenizer as ModernBertTokenizer
from encoder_zoo.encoders.tokenizers.mpnet import MPNetTokenizer as MPNetTokenizer
from encoder_zoo.encoders.tokenizers.sentencepiece import (
    AlbertTokenizer as AlbertTokenizer,
    CamembertTokenizer as CamembertTokenizer,
    DebertaV2Tokenizer as DebertaV2Tokenizer,
    XLMRobertaTokenizer as XLMRobertaTokenizer,
)
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer as Tokenizer
from encoder_zoo.encoders.tokenizers.xlnet import XLNetTokenizer as XLNetTokenizer
from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer as BertTokenizer
from encoder_zoo.presets.registry import list_presets as list_presets
from encoder_zoo.presets.train_vocabulary import train_vocabulary as train_vocabulary
from encoder_zoo.tasks import (
    display as display,
    losses as losses,
    register_task as register_task,
)
from encoder_zoo.tasks.annotations.conll import read_conll as read_conll
from encoder_zoo.tasks.annotations.files import read_annotations as read_annotations
from encoder_zoo.tasks.bulk.batches import BatchAnswers as BatchAnswers
from encoder_zoo.tasks.bulk.files import answer_files as answer_files
from encoder_zoo.tasks.corpora.corpus import PretrainingCorpus as PretrainingCorpus
from encoder_zoo.tasks.distillation.task import Distillation as Distillation
from encoder_zoo.tasks.embedding.preprocessor import (
    TextEmbedderPreprocessor as TextEmbedderPreprocessor,
)
from encoder_zoo.tasks.embedding.task import TextEmbedder as TextEmbedder
from encoder_zoo.tasks.few_shot.classifier import FewShotClassifier as FewShotClassifier
from encoder_zoo.tasks.late_interaction.preprocessor import (
    LateInteractionPreprocessor as LateInteractionPreprocessor,
)
from encoder_zoo.tasks.late_interaction.task import LateInteraction as LateInteraction
from encoder_zoo.tasks.multiple_choice.preprocessor import (
    MultipleChoicePreprocessor as MultipleChoicePreprocessor,
)
from encoder_zoo.tasks.multiple_choice.task import MultipleChoice as MultipleChoice
from encoder_zoo.tasks.pretraining.masked_lm import MaskedLM as MaskedLM
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import (
    MaskedLMPreprocessor as MaskedLMPreprocessor,
)
from encoder_zoo.tasks.pretraining.pretraining import Pretraining as Pretraining
from encoder_zoo.tasks.pretraining.pretraining_preprocessor import (
    PretrainingPreprocessor as PretrainingPreprocessor,
)
from encoder_zoo.tasks.pretraining.replaced_tokens import (
    ReplacedTokenDetection as ReplacedTokenDetection,
)
from encoder_zoo.tasks.pretraining.replaced_tokens_preprocessor import (
    ReplacedTokenDetectionPreprocessor as ReplacedTokenDetectionPreprocessor,
)
from encoder_zoo.tasks.pretraining.sentence_order import (
    sentence_order_pairs as sentence_order_pairs,
)
from encoder_zoo.tasks.question_answering.preprocessor import (
    SpanQAPreprocessor as SpanQAPreprocessor,
)
from encoder_zoo.tasks.question_answering.squad import read_squad as read_squad
from encoder_zoo.tasks.question_answering.task import SpanQA as SpanQA
from encoder_zoo.tasks.reranking.preprocessor import (
    RerankerPreprocessor as RerankerPreprocessor,
)
from encoder_zoo.tasks.reranking.task import Reranker as Reranker
from encoder_zoo.tasks.retrieval.hybrid_index import HybridIndex as HybridIndex
from encoder_zoo.tasks.retrieval.hybrid_index import load_index as load_index
from encoder_zoo.tasks.retrieval.index_kinds import BM25Index as BM25Index
from encoder_zoo.tasks.retrieval.index_kinds import MultiVectorIndex as MultiVectorIndex
from encoder_zoo.tasks.retrieval.index_kinds import SparseIndex as SparseIndex
from encoder_zoo.tasks.retrieval.index_kinds import VectorIndex as VectorIndex
from encoder_zoo.tasks.sequence_classification.preprocessor import (
    SequenceClassifierPreprocessor as SequenceClassifierPreprocessor,
)
from encoder_zoo.tasks.sequence_classification.task import SequenceClassifier as SequenceClassifier
from encoder_zoo.tasks.sparse_retrieval.preprocessor import (
    SparseEncoderPreprocessor as SparseEncoderPreprocessor,
)
from encoder_zoo.tasks.sparse_retrieval.task import SparseEncoder as SparseEncoder
from encoder_zoo.tasks.token_classification.metrics import EntityF1 as EntityF1
from encoder_zoo.tasks.token_classification.preprocessor import (
    TokenClassifierPreprocessor as TokenClassifierPreprocessor,
)
from encoder_zoo.tasks.token_classification.task import TokenClassifier as TokenClassifier
from encoder_zoo.tasks.training.backup import BackupAndRestore as BackupAndRestore
from encoder_zoo.tasks.zero_shot.classifier import ZeroShotClassifier as ZeroShotClassifier

Classifier = SequenceClassifier
__version__: str
__all__: list[str]
