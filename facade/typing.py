"""Types of the dicts that prediction methods return, for type annotations.

Example:
    >>> import encoder_zoo as ez
    >>> def people(entities: list[ez.typing.Entity]) -> list[str]:
    ...     return [entity["text"] for entity in entities if entity["label"] == "PER"]
    >>> people([{"label": "PER", "text": "Anna", "start": 0, "end": 4, "score": 0.9}])
    ['Anna']
"""

from encoder_zoo.tasks.base.explanation import Attributions as Attributions
from encoder_zoo.tasks.base.explanation import WordAttribution as WordAttribution
from encoder_zoo.tasks.base.trimming import UncoveredText as UncoveredText
from encoder_zoo.tasks.base.trimming import VocabularyReport as VocabularyReport
from encoder_zoo.tasks.classification.class_answers import LabelScore as LabelScore
from encoder_zoo.tasks.classification.class_scores import ClassReport as ClassReport
from encoder_zoo.tasks.classification.class_scores import ClassScores as ClassScores
from encoder_zoo.tasks.classification.class_scores import Coverage as Coverage
from encoder_zoo.tasks.pretraining.detection_answers import ReplacedToken as ReplacedToken
from encoder_zoo.tasks.pretraining.mask_answers import FilledMask as FilledMask
from encoder_zoo.tasks.question_answering.answer_ranking import Answer as Answer
from encoder_zoo.tasks.question_answering.answer_ranking import PassageAnswer as PassageAnswer
from encoder_zoo.tasks.ranking.choice_answers import Choice as Choice
from encoder_zoo.tasks.retrieval.ranking import Hit as Hit
from encoder_zoo.tasks.retrieval.ranking import RankedText as RankedText
from encoder_zoo.tasks.tagging.entities import Entity as Entity
