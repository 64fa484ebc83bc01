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
from encoder_zoo.encoders.families.esm import EsmBackbone as EsmBackbone
from encoder_zoo.encoders.families.eurobert import EuroBertBackbone as EuroBertBackbone
from encoder_zoo.encoders.families.gemma3_text import Gemma3TextBackbone as Gemma3TextBackbone
from encoder_zoo.encoders.families.gte import GteBackbone as GteBackbone
from encoder_zoo.encoders.families.longformer import LongformerBackbone as LongformerBackbone
from encoder_zoo.encoders.families.modernbert import ModernBertBackbone as ModernBertBackbone
from encoder_zoo.encoders.families.mpnet import MPNetBackbone as MPNetBackbone
from encoder_zoo.encoders.families.nomic_bert import NomicBertBackbone as NomicBertBackbone
from encoder_zoo.encoders.families.roberta import RobertaBackbone as RobertaBackbone
from encoder_zoo.encoders.families.xlm_roberta import XLMRobertaBackbone as XLMRobertaBackbone
from encoder_zoo.encoders.families.xlnet import XLNetBackbone as XLNetBackbone
from encoder_zoo.encoders.tokenizers.bertweet import BertweetTokenizer as BertweetTokenizer
from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer as RobertaTokenizer
from encoder_zoo.encoders.tokenizers.esm import EsmTokenizer as EsmTokenizer
from encoder_zoo.encoders.tokenizers.gemma import GemmaTokenizer as GemmaTokenizer
from encoder_zoo.encoders.tokenizers.generic import GenericTokenizer as GenericTokenizer
from encoder_zoo.encoders.tokenizers.byte_bpe import EuroBertTokenizer as EuroBertTokenizer
from encoder_zoo.encoders.tokenizers.byte_bpe import ModernBertTokenizer as ModernBertTokenizer
from encoder_zoo.encoders.tokenizers.wordpiece import MPNetTokenizer as MPNetTokenizer
from encoder_zoo.encoders.tokenizers.sentencepiece import (
    AlbertTokenizer as AlbertTokenizer,
    CamembertTokenizer as CamembertTokenizer,
    DebertaV2Tokenizer as DebertaV2Tokenizer,
    XLMRobertaTokenizer as XLMRobertaTokenizer,
)
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer as Tokenizer
from encoder_zoo.encoders.tokenizers.sentencepiece import XLNetTokenizer as XLNetTokenizer
from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer as BertTokenizer
from encoder_zoo.presets.registry import list_presets as list_presets
from encoder_zoo.presets.train_vocabulary import train_vocabulary as train_vocabulary
from encoder_zoo.extras import display as display
from encoder_zoo.tasks import losses as losses
from encoder_zoo.tasks.serving.answers_registry import register_answers as register_answers
from encoder_zoo.tasks import register_task as register_task
from encoder_zoo.extras.annotations.files import read_conll as read_conll
from encoder_zoo.extras.annotations.files import write_conll as write_conll
from encoder_zoo.extras.annotations.files import read_annotations as read_annotations
from encoder_zoo.extras.bulk.files import BatchAnswers as BatchAnswers
from encoder_zoo.extras.bulk.files import answer_files as answer_files
from encoder_zoo.extras.corpora.corpus import PretrainingCorpus as PretrainingCorpus
from encoder_zoo.tasks.training.streams import TokenCache as TokenCache
from encoder_zoo.tasks.distillation.distillation import Distillation as Distillation
from encoder_zoo.tasks.serving.opened_export import OpenedExport as OpenedExport
from encoder_zoo.tasks.serving.opened_export import open_export as open_export
from encoder_zoo.tasks.embedding.text_embedder_preprocessor import (
    TextEmbedderPreprocessor as TextEmbedderPreprocessor,
)
from encoder_zoo.tasks.embedding.text_embedder import TextEmbedder as TextEmbedder
from encoder_zoo.tasks.embedding.few_shot import FewShotClassifier as FewShotClassifier
from encoder_zoo.tasks.embedding.late_interaction_preprocessor import (
    LateInteractionPreprocessor as LateInteractionPreprocessor,
)
from encoder_zoo.tasks.embedding.late_interaction import LateInteraction as LateInteraction
from encoder_zoo.tasks.ranking.multiple_choice_preprocessor import (
    MultipleChoicePreprocessor as MultipleChoicePreprocessor,
)
from encoder_zoo.tasks.ranking.multiple_choice import MultipleChoice as MultipleChoice
from encoder_zoo.tasks.pretraining.masked_lm import MaskedLM as MaskedLM
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import (
    MaskedLMPreprocessor as MaskedLMPreprocessor,
)
from encoder_zoo.tasks.pretraining.pretraining import Pretraining as Pretraining
from encoder_zoo.tasks.pretraining.pretraining import (
    PretrainingPreprocessor as PretrainingPreprocessor,
)
from encoder_zoo.tasks.pretraining.replaced_tokens import (
    ReplacedTokenDetection as ReplacedTokenDetection,
)
from encoder_zoo.tasks.pretraining.replaced_tokens_preprocessor import (
    ReplacedTokenDetectionPreprocessor as ReplacedTokenDetectionPreprocessor,
)
from encoder_zoo.tasks.pretraining.pretraining import sentence_order_pairs as sentence_order_pairs
from encoder_zoo.tasks.question_answering.span_qa_preprocessor import (
    SpanQAPreprocessor as SpanQAPreprocessor,
)
from encoder_zoo.extras.annotations.squad_files import read_squad as read_squad
from encoder_zoo.tasks.question_answering.span_qa import SpanQA as SpanQA
from encoder_zoo.tasks.ranking.reranker_preprocessor import (
    RerankerPreprocessor as RerankerPreprocessor,
)
from encoder_zoo.tasks.ranking.reranker import Reranker as Reranker
from encoder_zoo.tasks.retrieval.hybrid_index import HybridIndex as HybridIndex
from encoder_zoo.tasks.retrieval.hybrid_index import load_index as load_index
from encoder_zoo.tasks.retrieval.index_kinds import BM25Index as BM25Index
from encoder_zoo.tasks.retrieval.index_kinds import MultiVectorIndex as MultiVectorIndex
from encoder_zoo.tasks.retrieval.index_kinds import SparseIndex as SparseIndex
from encoder_zoo.tasks.retrieval.index_kinds import VectorIndex as VectorIndex
from encoder_zoo.tasks.classification.sequence_classifier_preprocessor import (
    SequenceClassifierPreprocessor as SequenceClassifierPreprocessor,
)
from encoder_zoo.tasks.classification.sequence_classifier import (
    SequenceClassifier as SequenceClassifier,
)
from encoder_zoo.tasks.embedding.sparse_encoder_preprocessor import (
    SparseEncoderPreprocessor as SparseEncoderPreprocessor,
)
from encoder_zoo.tasks.embedding.sparse_encoder import SparseEncoder as SparseEncoder
from encoder_zoo.extras.hybrid_embedder import HybridEmbedder as HybridEmbedder
from encoder_zoo.tasks.embedding.term_table import TermTable as TermTable
from encoder_zoo.tasks.tagging.entity_extractor_preprocessor import (
    EntityExtractorPreprocessor as EntityExtractorPreprocessor,
)
from encoder_zoo.tasks.tagging.entity_extractor import EntityExtractor as EntityExtractor
from encoder_zoo.tasks.tagging.entity_metrics import EntityF1 as EntityF1
from encoder_zoo.tasks.tagging.span_head import SpanF1 as SpanF1
from encoder_zoo.tasks.tagging.span_head import SpanFocalLoss as SpanFocalLoss
from encoder_zoo.tasks.tagging.token_classifier_preprocessor import (
    TokenClassifierPreprocessor as TokenClassifierPreprocessor,
)
from encoder_zoo.tasks.tagging.token_classifier import TokenClassifier as TokenClassifier
from encoder_zoo.tasks.training.callbacks import BackupAndRestore as BackupAndRestore
from encoder_zoo.tasks.classification.zero_shot import ZeroShotClassifier as ZeroShotClassifier

Classifier = SequenceClassifier
__version__: str
__all__: list[str]
