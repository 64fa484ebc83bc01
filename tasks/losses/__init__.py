"""Losses for embeddings and reranking, for `compile` of the tasks or of any Keras model."""

from encoder_zoo.tasks.losses.cosent import CoSENT as CoSENT
from encoder_zoo.tasks.losses.info_nce import InfoNCE as InfoNCE
from encoder_zoo.tasks.losses.ranking import (
    ListNet as ListNet,
)
from encoder_zoo.tasks.losses.ranking import (
    MarginMSE as MarginMSE,
)
from encoder_zoo.tasks.losses.ranking import (
    MultipleNegatives as MultipleNegatives,
)
from encoder_zoo.tasks.losses.ranking import (
    PListMLE as PListMLE,
)
from encoder_zoo.tasks.losses.ranking_pairs import LambdaLoss as LambdaLoss
from encoder_zoo.tasks.losses.ranking_pairs import RankNet as RankNet
from encoder_zoo.tasks.losses.vector_distillation import VectorDistillation as VectorDistillation
