"""Losses for embeddings and reranking, for `compile` of the tasks or of any Keras model."""

from encoder_zoo.tasks.losses.cosent import CoSENT as CoSENT
from encoder_zoo.tasks.losses.info_nce import InfoNCE as InfoNCE
