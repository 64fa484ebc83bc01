"""Answers of a model that tags tokens: entities in texts, tags of words, and their evaluation.

Comment letters: C tags, P tokens of all texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, overload

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, Probability, validate_arguments
from encoder_zoo.common.weights_lock import reads_weights
from encoder_zoo.presets.formats.checkpoint import default_labels
from encoder_zoo.tasks.base.class_names import softmax
from encoder_zoo.tasks.base.labelled_task import LabelledTask
from encoder_zoo.tasks.base.records import padded_columns, records
from encoder_zoo.tasks.explanation.words import Method
from encoder_zoo.tasks.preprocessing.columns import plain
from encoder_zoo.tasks.preprocessing.preprocessor import as_valid_text
from encoder_zoo.tasks.preprocessing.spacy_docs import doc_words, is_doc
from encoder_zoo.tasks.preprocessing.tokenized_texts import TokenizedTexts, as_word_tensor, is_words
from encoder_zoo.tasks.preprocessing.windows import merge
from encoder_zoo.tasks.token_classification import metrics, token_labels
from encoder_zoo.tasks.token_classification.alignment import tags_of_tokens
from encoder_zoo.tasks.token_classification.decoding import Transitions, transitions
from encoder_zoo.tasks.token_classification.entities import (
    Entity,
    Strategy,
    above,
    entity_columns,
    find_entities,
)
from encoder_zoo.tasks.token_classification.explaining import EntityExplanation, explain_entities
from encoder_zoo.tasks.token_classification.tags import parse_tags
from encoder_zoo.tasks.training.inference import token_outputs_in_graph, unpadded_outputs
from encoder_zoo.tasks.training.sources import check_preprocessor


class TokenAnswers(LabelledTask):
    """Base of `TokenClassifier`: its answers.

    Attributes:
        strategy: see `TokenClassifier`.
        valid_tags: see `TokenClassifier`.
    """

    strategy: Strategy | None
    valid_tags: bool | None

    def _predict_texts(self, x, batch_size, predict) -> list[np.ndarray]:
        tokens, logits = self._token_logits(x, batch_size)
        splits = tokens.ids.row_splits.numpy()
        return np.split(logits, splits[1:-1]) if len(splits) > 1 else []

    def _token_logits(self, x, batch_size: int | None) -> tuple[TokenizedTexts, np.ndarray]:
        """Return the tokens of texts and their logits (P, C)."""
        check_preprocessor(self, x)
        tokens = self.preprocessor.tokens(x)
        if not int(tokens.ids.nrows()):
            return tokens, np.zeros((0, self.num_classes), "float32")

        def outputs_of(examples):
            outputs = unpadded_outputs(self, examples, batch_size)
            lengths = examples["token_ids"].row_lengths()
            return tf.RaggedTensor.from_row_lengths(np.concatenate(outputs), lengths)

        return tokens, self._merged(tokens, outputs_of).numpy()

    def _merged(self, tokens: TokenizedTexts, outputs_of: Callable) -> tf.Tensor:
        """Return the logits (P, C) of all tokens, merged from the windows' examples."""
        windows = self.preprocessor.windows(tokens)
        outputs = outputs_of(self.preprocessor.examples(tokens, windows))  # ragged (W, None, C)
        column = self.preprocessor.tokenizer.first_column
        return merge(outputs[:, column : column - 2], windows)

    @overload
    def extract_entities(
        self,
        texts: str,
        strategy: Strategy | None = None,
        batch_size: int | None = None,
        threshold: float | None = None,
    ) -> list[Entity]: ...
    @overload
    def extract_entities(
        self,
        texts: Iterable[Any],
        strategy: Strategy | None = None,
        batch_size: int | None = None,
        threshold: float | None = None,
    ) -> list[list[Entity]]: ...
    @validate_arguments
    def extract_entities(
        self,
        texts,
        strategy: Strategy | None = None,
        batch_size: PositiveInt | None = None,
        threshold: Probability | None = None,
    ):
        """Return the entities in texts.

        Args:
            texts: a text or a list of texts; or lists of words; or spaCy's `Doc`s, as texts.
            strategy: how tokens become entities. "simple": each token has its tag, and neighbours
                of one entity are joined. "first", "average", "max": a word has the tag of its
                first token, of its tokens' mean, or of its most probable token. "none": every
                tagged token by itself. None: the task's, which `fit` sets; "simple" before the
                first `fit`. Words are those of the vocabulary, cut at symbols as they were learned:
                see `TokenClassifierPreprocessor`.
            batch_size: default 32.
            threshold: leaves out the entities with a lower score.

        Returns:
            For every text a list of `{"label", "text", "start", "end", "score"}`; start and end
            count the characters of the caller's string, or of the words with one space between
            them. For a single text its list alone.

        Raises:
            ValueError: "strategy is 'last'. Expected 'simple' or 'first' or ..."

        Source: the strategies are those of transformers' `TokenClassificationPipeline`.
        """
        strategy = self._strategy(strategy)
        if isinstance(texts, str) or is_doc(texts):
            return self.extract_entities([texts], strategy, batch_size, threshold)[0]
        tokens, logits = self._token_logits(texts, batch_size)
        tags, scores = parse_tags(self.tag_names), tf.constant(softmax(logits))
        found = above(find_entities(scores, tokens, tags, strategy, self._allowed()), threshold)
        return records(entity_columns(found, tokens.texts, self._entity_names(strategy)))

    def _allowed(self) -> Transitions | None:
        """Return which tags may follow each other in answers; None: any."""
        return transitions(parse_tags(self.tag_names)) if self.valid_tags else None

    def _strategy(self, given: str | None) -> str:
        """Return the given strategy, or the one of the last training."""
        return given or self.strategy or "simple"

    def _entity_names(self, strategy: str) -> tf.Tensor:
        """Return the names that the labels of `find_entities` index, (T,) strings."""
        names = self.tag_names if strategy == "none" else parse_tags(self.tag_names).type_names
        return tf.constant(names, tf.string)

    @validate_arguments
    def signatures(
        self, strategy: Strategy | None = None, threshold: Probability | None = None
    ) -> dict[str, Callable]:
        """Return `extract_entities` of "text" for exports.

        Args:
            strategy, threshold: as for `extract_entities`.

        Returns:
            A function whose results are "count" (N,), the number of entities of every text, and
            "label", "text", "start", "end" and "score", (N, G) with G the most entities of a
            text; after a text's last entity they are "" and 0.
        """
        strategy, allowed = self._strategy(strategy), self._allowed()
        tags, names = parse_tags(self.tag_names), self._entity_names(strategy)
        token_logits = functools.partial(self, training=False)
        outputs_of = functools.partial(token_outputs_in_graph, self, token_logits)

        def entities(text):
            tokens = self.preprocessor.tokens(as_valid_text(text))
            logits = self._merged(tokens, outputs_of)
            found = find_entities(tf.nn.softmax(logits), tokens, tags, strategy, allowed)
            found = above(found, threshold)
            return padded_columns(entity_columns(found, tokens.texts, names))

        return {"serving_default": entities}

    @validate_arguments
    def predict_tags(self, words: object, batch_size: PositiveInt | None = None) -> list[list[str]]:
        """Return the tag of every word, as `seqeval.metrics` takes them: of its first token, or of
        all its tokens if these were labelled.

        Args:
            words: lists of words, or spaCy's `Doc`s.
            batch_size: default 32.

        Returns:
            For every list of words as many tags; a word without a token has the tag O.

        Raises:
            ValueError: "Expected lists of words. Received texts: ..."
        """
        words = plain([*map(doc_words, words)] if isinstance(words, list) else words)
        if not is_words(words) and len(words):
            raise ValueError(f"Expected lists of words. Received texts: {words[0]!r}, ...")
        tokens, logits = self._token_logits(words, batch_size)
        counts = as_word_tensor(words).row_lengths().numpy() if is_words(words) else []
        by_all, allowed = self.preprocessor.label_all_tokens, self._allowed()
        return tags_of_tokens(tokens, logits, counts, self.tag_names, by_all, allowed)

    @overload
    def explain(
        self,
        texts: str,
        strategy: Strategy | None = None,
        method: Method = "integrated_gradients",
        batch_size: int | None = None,
    ) -> list[EntityExplanation]: ...
    @overload
    def explain(
        self,
        texts: Iterable[Any],
        strategy: Strategy | None = None,
        method: Method = "integrated_gradients",
        batch_size: int | None = None,
    ) -> list[list[EntityExplanation]]: ...
    @validate_arguments
    @reads_weights
    def explain(
        self,
        texts,
        strategy: Strategy | None = None,
        method: Method = "integrated_gradients",
        batch_size: PositiveInt | None = None,
    ):
        """Return the entities in texts, and which words speak for each of them.

        `ez.display.explanation` draws the answer.

        Args:
            texts: as for `extract_entities`.
            strategy: as for `extract_entities`.
            method: as for `SequenceClassifier.explain`.
            batch_size: how many gradients are computed at once; default 32.

        Returns:
            For every text a list of entities, as `extract_entities` gives them, each with "texts",
            "words", "logit" and "baseline" as of `SequenceClassifier.explain`. The logit is the
            mean, over the entity's tokens, of that of the best tag of its label; with the strategy
            "first" over the first token of each word. Of a text in several windows the words are
            those of the entity's window. For a single text its list alone.

        Source: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks, section 3.
        """
        if isinstance(texts, str) or is_doc(texts):
            return self.explain([texts], strategy, method, batch_size)[0]
        return explain_entities(self, texts, self._strategy(strategy), method, batch_size)

    @validate_arguments
    @reads_weights
    def evaluate_entities(
        self, x: object, y: object, scheme: str | None = None, batch_size: PositiveInt | None = None
    ) -> dict[str, Any]:
        """Compute entity precision, recall and F1 over whole texts, however long, and of every
        type.

        The metric of `evaluate` sees one window at a time; this merges the windows first, and
        scores the results of `predict_tags` and `extract_entities`.

        Args:
            x: lists of words, or texts.
            y: tags of the words, or spans of the texts, as for `fit`.
            scheme: for tags: None, or "IOB1", "IOB2", "IOBES" to count well-formed entities only.
            batch_size: default 32.

        Returns:
            `{"precision", "recall", "f1", "per_type": {type: {..., "support"}}}`.
        """
        self._check_labels_known()
        x, y = self._separate(x, y)
        token_labels.check_labels(x, y, self.labels, self.num_classes)
        y = token_labels.label_lists(y)
        if is_words(x):
            names = self.tag_names
            true = [[t if isinstance(t, str) else names[t] for t in tags] for tags in y]
            return metrics.score_tags(true, self.predict_tags(x, batch_size), scheme, tag_set=names)
        spans = [
            [{(e["label"], e["start"], e["end"]) for e in row} for row in examples]
            for examples in (y, self.extract_entities(x, batch_size=batch_size))
        ]
        return metrics.score_entities(*spans)

    @property
    def tag_names(self) -> list[str]:
        """Return the labels; LABEL_0, LABEL_1 and so on if they have no names."""
        return self.labels or default_labels(self.num_classes)
