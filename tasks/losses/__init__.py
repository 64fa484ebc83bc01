"""Losses for embeddings and reranking. They can be passed to `compile` of a task or a Keras model.

Most losses for embeddings expect `y_pred` with shape (B, 1 + K, D). The MaxSim losses expect token
vectors of shape (B, 1 + K, L, D). Each of the B rows contains the vectors of 1 + K texts, and the
first text is compared with the K other texts. Depending on the loss, `y_true` contains text ids,
pair scores, teacher scores or teacher vectors.
"""

from encoder_zoo.tasks.losses.contrastive import Contrastive as Contrastive
from encoder_zoo.tasks.losses.contrastive import OnlineContrastive as OnlineContrastive
from encoder_zoo.tasks.losses.cosent import AnglE as AnglE
from encoder_zoo.tasks.losses.cosent import CoSENT as CoSENT
from encoder_zoo.tasks.losses.cosine_similarity import CosineSimilarity as CosineSimilarity
from encoder_zoo.tasks.losses.guided_info_nce import GuidedInfoNCE as GuidedInfoNCE
from encoder_zoo.tasks.losses.info_nce import InfoNCE as InfoNCE
from encoder_zoo.tasks.losses.matryoshka import Matryoshka as Matryoshka
from encoder_zoo.tasks.losses.max_sim import MaxSimDistillation as MaxSimDistillation
from encoder_zoo.tasks.losses.max_sim import MaxSimInfoNCE as MaxSimInfoNCE
from encoder_zoo.tasks.losses.ranking import ListMarginMSE as ListMarginMSE
from encoder_zoo.tasks.losses.ranking import ListNet as ListNet
from encoder_zoo.tasks.losses.ranking import MultipleNegatives as MultipleNegatives
from encoder_zoo.tasks.losses.ranking import PListMLE as PListMLE
from encoder_zoo.tasks.losses.ranking_pairs import LambdaLoss as LambdaLoss
from encoder_zoo.tasks.losses.ranking_pairs import RankNet as RankNet
from encoder_zoo.tasks.losses.score_distillation import MarginMSE as MarginMSE
from encoder_zoo.tasks.losses.score_distillation import ScoreDistillation as ScoreDistillation
from encoder_zoo.tasks.losses.splade import SPLADE as SPLADE
from encoder_zoo.tasks.losses.triplet import Triplet as Triplet
from encoder_zoo.tasks.losses.vector_distillation import VectorDistillation as VectorDistillation

# Maps loss names in sentence-transformers to names in this module, if they differ by more than the
# suffix "Loss".
RENAMED_LOSSES = {
    "MultipleNegativesRankingLoss": "InfoNCE",
    "CachedMultipleNegativesRankingLoss": "InfoNCE and compile(chunk_size=32)",
    "GISTEmbedLoss": "GuidedInfoNCE",
    "SpladeLoss": "SPLADE",
    "DistillKLDivLoss": "ScoreDistillation",
    "MSELoss": "VectorDistillation",
}


def __getattr__(name: str) -> object:
    here = name.removesuffix("Loss")
    meant = RENAMED_LOSSES.get(name) or (here if here != name and here in globals() else None)
    hint = f" Use losses.{meant}." if meant else ""
    # Python adds its own suggestion if the error has a module and a name.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}", name=name)
