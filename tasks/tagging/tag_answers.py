"""Extract entities and tags from token logits.

Comments use these letters for shapes: C tags, P tokens of all texts, W windows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, overload

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import (
    PositiveInt,
    Probability,
    Rule,
    Temperature,
    validate_arguments,
)
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.tokenizers.text.text_input import make_word_tensor
from encoder_zoo.tasks.base.answers import Answers, prepares_in_numpy
from encoder_zoo.tasks.base.classes import compute_softmax
from encoder_zoo.tasks.base.confidence import Thresholds, expand_thresholds
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.base.records import make_records, pad_columns
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain, is_doc, list_doc_words
from encoder_zoo.tasks.preprocessing.preprocessor import replace_invalid_text
from encoder_zoo.tasks.preprocessing.tokenized_texts import TokenizedTexts, has_word_lists
from encoder_zoo.tasks.preprocessing.windows import merge
from encoder_zoo.tasks.tagging import entities
from encoder_zoo.tasks.tagging.alignment import compute_word_tags
from encoder_zoo.tasks.tagging.entities import Entity, Strategy
from encoder_zoo.tasks.tagging.tags import TagSet, parse_tags
from encoder_zoo.tasks.tagging.token_classifier_preprocessor import TokenClassifierPreprocessor


def _is_tag_scores(value: object) -> bool:
    try:
        first, between, last = (np.asarray(scores, "float32").shape for scores in value)
    except (TypeError, ValueError):
        return False
    return len(first) == 1 and between == 2 * first and last == first


TagNames = Annotated[
    list[str],
    Rule(lambda v: len(v) > 0 and all(isinstance(name, str) for name in v), "a list of tags"),
]
TagScores = Annotated[
    Sequence[np.ndarray],
    Rule(_is_tag_scores, "the scores of first tags, of pairs of tags and of last tags"),
]


@dataclasses.dataclass(frozen=True)
class TagAnswers(Answers):
    """The `Answers` of `TokenClassifier`. See `TokenClassifier` for the settings.

    Attributes:
        tag_names: List of C strings.
        strategy: Optional string. If None, "simple" will be used.
        valid_tags: Boolean. Whether to only return valid tag sequences.
        split_symbols: Boolean or "outer". How to split words at symbols.
        temperature: Float. Value by which the logits are divided.
        thresholds: Optional dict mapping entity types to floats.
        tag_scores: Optional tuple of arrays of shape (C,), (C, C) and (C,). CRF scores of first
            tags, of pairs of tags and of last tags.
    """

    preprocessor_class = TokenClassifierPreprocessor
    methods = ("extract_entities", "predict_tags")
    returns_lists = True
    tag_names: TagNames
    strategy: entities.Strategy | None = None
    valid_tags: bool | None = None
    split_symbols: bool | Literal["outer"] = False
    temperature: Temperature = 1.0
    thresholds: Thresholds | None = None
    tag_scores: TagScores | None = None

    @prepares_in_numpy
    def predict_texts(self, x: Any, batch_size: int | None = None) -> list[np.ndarray]:
        tokens, logits = self.compute_logits(x, batch_size)
        splits = tokens.ids.row_splits.numpy()
        return np.split(logits, splits[1:-1]) if len(splits) > 1 else []

    @overload
    def extract_entities(
        self: Any,
        texts: str,
        strategy: Strategy | None = None,
        batch_size: int | None = None,
        threshold: float | Mapping[str, float] | None = None,
    ) -> list[Entity]: ...
    @overload
    def extract_entities(
        self: Any,
        texts: Iterable[Any],
        strategy: Strategy | None = None,
        batch_size: int | None = None,
        threshold: float | Mapping[str, float] | None = None,
    ) -> list[list[Entity]]: ...
    @overload
    def extract_entities(
        self: Any, texts: object, *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validate_arguments
    @prepares_in_numpy
    @skips_missing("texts")
    def extract_entities(
        self,
        texts,
        strategy: Strategy | None = None,
        batch_size: PositiveInt | None = None,
        threshold: Probability | Thresholds | None = None,
        missing: Missing = "error",
    ):
        """Extract entities from texts.

        Args:
            texts: The texts to extract entities from. This can be a single text, a list of texts,
                lists of words, or spaCy `Doc` objects (to be read as texts).
            strategy: Optional string. How to combine tokens into entities. Use "simple" to tag each
                token and join adjacent tokens of an entity. Use "first", "average" or "max" to tag
                each word based on the first token, the mean over tokens, or the token with the
                highest score. Use "none" to return all tagged tokens with visible characters. Words
                are defined by the tokenizer, and split at symbols based on `split_symbols`. If
                None, the task's strategy will be used, which is "simple" until set by `fit`.
            batch_size: Optional positive integer. Batch size, in texts. If None, 32 will be used.
            threshold: Optional float between 0 and 1, or dict mapping entity types to floats.
                Minimum score to return an entity. If None, the thresholds of `tune_thresholds` are
                used, if there are any.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return None for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".

        Returns:
            List of `{"label", "text", "start", "end", "score"}` per text. "start" and "end" are
            character offsets into the string, or into the words joined with single spaces. If a
            single text is passed, a single list will be returned.

        Raises:
            ValueError: If `strategy` is unknown.

        Source: The strategies of transformers' `TokenClassificationPipeline`.
        """
        if isinstance(texts, str) or is_doc(texts):
            return self.extract_entities([texts], strategy, batch_size, threshold)[0]
        tokens, logits = self.compute_logits(texts, batch_size)
        scores = xp.constant(compute_softmax(logits / np.float32(self.temperature)))
        return make_records(self._find(scores, tokens, strategy or self.best_strategy, threshold))

    def make_entities_function(
        self, run: Callable, strategy: str | None, threshold: float | Mapping[str, float] | None
    ) -> Callable:
        """Create the function to export. See `TokenClassifier.signatures`.

        Args:
            run: Function that computes ragged logits (W, None, C) of examples.
            strategy, threshold: See `extract_entities`.
        """
        strategy = strategy or self.best_strategy

        def find(text):
            tokens = self.preprocessor.tokenize(replace_invalid_text(text), self.split_symbols)
            scores = xp.nn.softmax(self._merge(tokens, run) / self.temperature)
            return pad_columns(self._find(scores, tokens, strategy, threshold))

        return find

    def _find(self, scores, tokens: TokenizedTexts, strategy: str, threshold) -> dict:
        """Find entities from scores (P, C), and convert them to columns."""
        transitions = self.get_transitions()
        found = entities.find_entities(scores, tokens, self.tags, strategy, transitions)
        found = entities.select_above_threshold(found, self.get_min_scores(threshold, strategy))
        names = xp.constant(self.get_entity_names(strategy), xp.string)
        return entities.make_entity_columns(found, tokens.texts, names)

    @validate_arguments
    @prepares_in_numpy
    @skips_missing("words")
    def predict_tags(
        self: Any, words: object, batch_size: PositiveInt | None = None, missing: Missing = "error"
    ) -> list[list[str]]:
        """Predict a tag per word, in the format used by `seqeval.metrics`.

        A word's tag is the tag of its first token. If training labelled all tokens, the tags of the
        first and the last token are combined into the tag of the word.

        Args:
            words: Lists of words, or spaCy's `Doc` objects.
            batch_size: Optional positive integer. Batch size, in texts. If None, 32 will be used.
            missing: String. How to handle rows without words, e.g. None. Use "none" to return None
                for these rows, or "error" to raise an error for the first such row. Defaults to
                "error".

        Returns:
            List of tags for each list of words, with a tag per word. Words without tokens, such as
            invisible characters, are inside an entity if it goes on after them. Otherwise, their
            tag is O.

        Raises:
            ValueError: If `words` contains texts instead of lists of words.
        """
        words = convert_to_plain(
            [*map(list_doc_words, words)] if isinstance(words, list) else words
        )
        if not has_word_lists(words) and len(words):
            raise invalid("words[0]", next(iter(words)), "a list of words")
        tokens, logits = self.compute_logits(words, batch_size)
        counts = make_word_tensor(words).row_lengths().numpy() if has_word_lists(words) else []
        by_all = self.preprocessor.label_all_tokens
        return compute_word_tags(
            tokens, logits, counts, self.tag_names, by_all, self.get_transitions()
        )

    def compute_logits(self, x, batch_size: int | None) -> tuple[TokenizedTexts, np.ndarray]:
        """Tokenize texts, and compute the logits (P, C) of their tokens."""
        tokens = self.preprocessor.tokenize(x, self.split_symbols)
        if not int(tokens.ids.nrows()):
            return tokens, np.zeros((0, len(self.tag_names)), "float32")

        def run(examples):
            outputs = self.compute_unpadded_outputs(examples, batch_size)
            lengths = examples["token_ids"].row_lengths()
            return xp.RaggedTensor.from_row_lengths(np.concatenate(outputs), lengths)

        return tokens, self._merge(tokens, run).numpy()

    def _merge(self, tokens: TokenizedTexts, run: Callable) -> xp.Tensor:
        """Run the model on windows, and merge the outputs into logits (P, C) for all tokens."""
        windows = self.preprocessor.split_into_windows(tokens)
        outputs = run(self.preprocessor.make_examples(tokens, windows))  # ragged (W, None, C)
        column = self.preprocessor.tokenizer.first_column
        behind = self.preprocessor.count_specials() - column
        return merge(outputs[:, column:-behind] if behind else outputs[:, column:], windows)

    @functools.cached_property
    def tags(self) -> TagSet:
        """The parsed tag names."""
        return parse_tags(self.tag_names)

    @property
    def best_strategy(self) -> str:
        """The strategy in the settings, or "simple"."""
        return self.strategy or "simple"

    @property
    def counting_strategy(self) -> str:
        """The strategy for counting entities: `best_strategy`, or "simple" instead of "none"."""
        return "simple" if self.best_strategy == "none" else self.best_strategy

    def get_entity_names(self, strategy: str) -> list[str]:
        """Return the label names. The labels from `find_entities` are indices into this list."""
        return list(self.tag_names if strategy == "none" else self.tags.type_names)

    def get_min_scores(self, given, strategy: str) -> np.ndarray | None:
        """Return the minimum score of each entity name, or None without thresholds."""
        given = self.thresholds if given is None else given
        if given is None:
            return None
        least = expand_thresholds(given, self.tags.type_names, 0.0)
        # With the strategy "none", labels are tags, and a tag has the threshold of its type.
        return np.append(least, np.float32(0))[self.tags.types] if strategy == "none" else least

    def get_transitions(self) -> entities.Transitions | None:
        """Return valid tag transitions or transition scores, or None to allow all transitions."""
        rules = entities.make_transitions(self.tags) if self.valid_tags else None
        if self.tag_scores is None:
            return rules
        scores = [np.asarray(s, "float32") / self.temperature for s in self.tag_scores]
        return entities.add_scores(rules, scores)
