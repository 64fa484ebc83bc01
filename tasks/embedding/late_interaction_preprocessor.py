"""Convert queries and documents to examples for late interaction.

Comments use these letters for shapes: B batch, N texts, L sequence.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import SequenceLength, SpecialToken, validate_arguments
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.tasks.embedding.pair_columns import SeparateTextsPreprocessor
from encoder_zoo.tasks.embedding.text_embedder_preprocessor import DOCUMENT_NAMES, check_prompts
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed
from encoder_zoo.tasks.preprocessing.packing import pack, truncate_tokens
from encoder_zoo.tasks.preprocessing.preprocessor import report_truncated

if TYPE_CHECKING:
    from encoder_zoo.presets.formats.preset_task import FolderFormat

QUERY, DOCUMENT = "query", "document"
PUNCTUATION = tuple(string.punctuation)
ROLE_NAMES = {QUERY: "queries", DOCUMENT: "documents"}


@serializable
class LateInteractionPreprocessor(SeparateTextsPreprocessor):
    """Convert documents to `[CLS] [D] text [SEP]` and queries to `[CLS] [Q] text [SEP] [MASK] ...`.

    Args:
        tokenizer: A tokenizer from this package. The markers must be in the vocabulary.
        sequence_length: See `Preprocessor`.
        query_length: Integer. Maximum number of query tokens, including special tokens. Longer
            queries will be truncated to this length. If None, the model's maximum length will be
            used. Defaults to 32.
        document_length: Integer. Maximum number of document tokens, including special tokens. If
            None, the model's maximum length will be used. Defaults to 180.
        query_marker: Optional string. Token to insert before queries. If None, no marker is used.
        document_marker: Optional string. Token to insert before documents. If None, no marker is
            used.
        prompts: Optional dict {"query": text, "document": text} with prompts to insert after the
            markers.
        expand_queries: Boolean. Whether to pad queries with [MASK] tokens, which will also have
            vectors. Defaults to True.
        expansion_length: Integer. Length to which queries are padded with [MASK] tokens, at most
            `query_length`. If None, `query_length` will be used.
        attend_to_expansion: Boolean. Whether the [MASK] tokens of expanded queries are visible to
            the attention. Defaults to False.
        skiplist: Sequence of words to skip in documents. No vectors will be returned for these
            words. A word has no effect if it is not a token of the vocabulary. Defaults to ASCII
            punctuation.
        score_first: Boolean. Whether to include a vector for the first token, [CLS]. Set this to
            False for BGE-M3. Defaults to True.

    Returns:
        See `Preprocessor`. The output also contains "scored_mask", which is True for tokens with
        vectors, and "attended_mask" for expanded queries. For inputs with several texts per row,
        "token_ids" (B, L) contains the queries, and "candidate_token_ids" (B, K, L) contains the
        documents. If scores are not provided, the labels will be integers (B, 1 + K), with equal
        values for equal texts.

    Raises:
        ValueError: If a marker is not in the vocabulary, or if `skiplist` is not a list of strings.

    Source: Khattab and Zaharia 2020, ColBERT, section 3.2.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "[Q]", "[D]", "."]
        >>> preprocessor = LateInteractionPreprocessor(
        ...     BertTokenizer(tokens), query_length=6, query_marker="[Q]", document_marker="[D]")
        >>> x, y = preprocessor((["hello"], ["hello."]))
        >>> x["token_ids"].numpy().tolist(), x["attended_mask"].numpy().astype(int).tolist()
        ([[2, 6, 5, 3, 4, 4]], [[1, 1, 1, 1, 0, 0]])
        >>> [x[f"candidate_{n}"].numpy().astype(int).tolist() for n in ("token_ids", "scored_mask")]
        [[[[2, 7, 5, 8, 3]]], [[[1, 1, 1, 0, 1]]]]
    """

    task_name = "late_interaction"
    # Number of query tokens before expansion.
    values_per_text = ("text_length",)
    truncation_advice = (
        "Use LateInteraction.from_preset(..., query_length=..., document_length=...) to set other "
        "lengths."
    )

    @validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: SequenceLength | None = None,
        query_length: SequenceLength | None = 32,
        document_length: SequenceLength | None = 180,
        query_marker: SpecialToken | None = None,
        document_marker: SpecialToken | None = None,
        prompts: Mapping[str, str] | None = None,
        expand_queries: bool = True,
        expansion_length: SequenceLength | None = None,
        attend_to_expansion: bool = False,
        skiplist: Sequence[str] = PUNCTUATION,
        score_first: bool = True,
    ):
        super().__init__(tokenizer, sequence_length)
        self.query_length = query_length
        self.document_length = document_length
        self.query_marker = query_marker
        self.document_marker = document_marker
        self.prompts = check_prompts(prompts, None)
        self.expand_queries = expand_queries
        self.expansion_length = expansion_length
        self.attend_to_expansion = attend_to_expansion
        self.score_first = score_first
        self.skiplist = [skiplist] if isinstance(skiplist, str) else list(skiplist)
        if not all(isinstance(word, str) for word in self.skiplist):
            raise invalid("skiplist", self.skiplist, "a list of strings")
        known = {token: i for i, token in enumerate(tokenizer.get_vocabulary())}
        self._skipped_ids = [known[word] for word in self.skiplist if word in known]
        self._marker_ids = {
            role: self._find_marker_id(f"{role}_marker", known) for role in (QUERY, DOCUMENT)
        }
        for role in self.prompts:
            _check_role(role, "prompts")

    @staticmethod
    def get_folder_format() -> FolderFormat:
        """Return the folder format in which presets are saved and loaded."""
        from encoder_zoo.presets.formats.late_interaction_folder import LateInteractionFolderFormat

        return LateInteractionFolderFormat()

    def _find_marker_id(self, name: str, known: Mapping[str, int]) -> int | None:
        marker = getattr(self, name)
        if marker is not None and marker not in known:
            raise ValueError(
                f"{name} is {quote(marker)}, which is not a token of the tokenizer. Use "
                "LateInteraction.from_preset, which adds the markers."
            )
        return None if marker is None else known[marker]

    def _make_training_inputs(self, columns: tuple, y) -> tuple:
        if len(columns) < 2:
            raise ValueError("`x` has one column of texts. Expected x=(queries, documents).")
        if y is not None and len(columns) < 3:
            raise ValueError(
                "`y` contains scores, but each query has a single document. Expected x=(queries, "
                "lists of documents) and a list of scores for each query."
            )
        return tuple(columns), y

    def _get_row_prompts(self, prompt: str | None, symmetric: bool) -> tuple[str, str]:
        return QUERY, DOCUMENT

    @property
    def requested_length(self) -> int | None:
        if self.query_length and self.document_length:
            return self.sequence_length or max(self.query_length, self.document_length)
        return self.sequence_length

    def get_max_length(self, kind: str) -> int:
        """Return the maximum number of tokens for a "query" or a "document"."""
        length = self.query_length if kind == QUERY else self.document_length
        return min(length or self.max_sequence_length, self.max_sequence_length)

    @property
    def max_document_tokens(self) -> int:
        """Return the maximum number of tokens per document.

        Special tokens, the marker and the prompt are not counted.
        """
        [prompt] = self.tokenizer.tokenize([self.prompts.get(DOCUMENT, "")]).row_lengths()
        return self._count_max_tokens(DOCUMENT) - int(prompt)

    def _count_max_tokens(self, role: str) -> int:
        """Return the maximum number of tokens per text, excluding special tokens and the marker."""
        marker = self._marker_ids[role] is not None
        return self.get_max_length(role) - self.count_specials() - marker

    @property
    def expanded_length(self) -> int:
        """Return the length to which queries are expanded, or 0 if expansion is disabled."""
        if not self.expand_queries:
            return 0
        longest = self.get_max_length(QUERY)
        return min(self.expansion_length or longest, longest)

    def encode_texts(self, texts: xp.Tensor, prompt: str | None) -> dict:
        role = get_role(prompt)
        text, longest = self.prompts.get(role, ""), self.get_max_length(role)
        room = self._count_max_tokens(role)
        texts = xp.strings.join([text, texts]) if text else texts
        # Keep an extra token to be able to count truncated texts.
        tokens = self.tokenizer.tokenize(texts, room + 1)
        what = (
            f"{ROLE_NAMES[role]} are longer than {longest} tokens, so {self.truncated_part} is "
            "truncated."
        )
        report_truncated(tokens.row_lengths() > room, self, what)
        packed = self._pack_tokens(tokens, role)
        if role == DOCUMENT:
            return {"token_ids": packed}
        return {
            "token_ids": self._expand_queries(packed, self.tokenizer.mask_token_id),
            "text_length": xp.cast(packed.row_lengths(), xp.int32),
        }

    def _pack_tokens(self, tokens: xp.RaggedTensor, role: str, filler: int | None = None):
        """Add special tokens to ragged token ids (N, None).

        Args:
            tokens: Ragged int32 tensor of shape (N, None).
            role: "query" or "document".
            filler: Optional integer to use instead of the special token ids.
        """
        marker, template = self._marker_ids[role], self.tokenizer.template_ids
        side = self.tokenizer.truncation_side
        if marker is not None:
            # Keep the marker when truncating on the left.
            tokens = truncate_tokens(tokens, self._count_max_tokens(role), side)
            marker = marker if filler is None else filler
            column = xp.fill(xp.stack([tokens.nrows(), 1]), marker)
            tokens = xp.concat([xp.RaggedTensor.from_tensor(column), tokens], axis=1)
        if filler is not None:
            template = template.map(lambda token: filler)
        return pack([tokens], template, self.get_max_length(role), side)[0]

    def _expand_queries(self, packed: xp.RaggedTensor, filler: int) -> xp.RaggedTensor:
        """Pad ragged queries (N, None) with `filler` for query expansion."""
        if not self.expanded_length:
            return packed
        missing = xp.maximum(self.expanded_length - packed.row_lengths(), 0)
        added = xp.fill(xp.reshape(xp.reduce_sum(missing), [1]), filler)
        return xp.concat([packed, xp.RaggedTensor.from_row_lengths(added, missing)], axis=1)

    @validate_arguments
    def pad(self, examples: dict, bucketed: Bucketed = False) -> dict[str, xp.Tensor]:
        """Pad queries or documents and convert them to model inputs (B, L)."""
        inputs = super().pad(examples, bucketed)
        real = inputs["padding_mask"]
        columns = xp.range(xp.shape(inputs["token_ids"])[1])
        scored = real if self.score_first else real & (columns > 0)
        if "text_length" not in examples:
            skipped = self.mark_skipped_tokens(inputs["token_ids"])
            return {**inputs, "scored_mask": scored & ~skipped}
        inputs["scored_mask"] = scored
        if self.expand_queries and not self.attend_to_expansion:
            inputs["attended_mask"] = real & (columns < examples["text_length"][:, None])
        return inputs

    def mark_skipped_tokens(self, ids: xp.Tensor) -> xp.Tensor:
        """Return a mask that is True for tokens on the skiplist."""
        if not self._skipped_ids:
            return xp.zeros_like(ids, "bool")
        return xp.reduce_any(ids[..., None] == xp.constant(self._skipped_ids, xp.int32), axis=-1)

    def mark_scored_tokens(self, examples: dict) -> xp.Tensor:
        """Return a flat mask that is True for tokens with vectors, for all encoded examples."""
        ids = examples["token_ids"]
        kept = xp.ones_like(ids.flat_values, "bool")
        if "text_length" not in examples:
            kept = ~self.mark_skipped_tokens(ids.flat_values)
        if not self.score_first:
            firsts = xp.gather(ids.row_splits, ids.value_rowids())
            kept &= xp.range(xp.shape(firsts, firsts.dtype)[0]) > firsts
        return kept

    def find_token_spans(self, texts: xp.Tensor, prompt: str | None) -> list[np.ndarray]:
        """Return the character offsets for each token in the examples.

        Args:
            texts: String tensor of shape (N,), in memory.
            prompt: Optional string. Prompt of the texts. See `encode`.

        Returns:
            List with an int32 array (tokens, 2) per text, containing the start and end offset for
            each token. Offsets are -1 for special tokens, for query padding and for prompts.
        """
        role = get_role(prompt)
        text = self.prompts.get(role, "")
        texts = xp.strings.join([text, texts]) if text else texts
        _, starts, ends = self.tokenizer.tokenize_with_offsets(texts)
        begins, ends = (np.asarray(part.flat_values) - len(text) for part in (starts, ends))
        of_text, columns = ends > 0, []
        for values in (np.maximum(begins, 0), ends):
            values = np.where(of_text, values, -1).astype("int32")
            packed = self._pack_tokens(
                starts.with_flat_values(xp.constant(values)), role, filler=-1
            )
            packed = packed if role == DOCUMENT else self._expand_queries(packed, -1)
            columns.append(np.asarray(packed.flat_values))
        return np.split(np.stack(columns, axis=1), np.asarray(packed.row_splits)[1:-1])


def get_role(prompt: str | None) -> str:
    """Return the role for a prompt: "query" or "document". None is converted to "document".

    Raises:
        ValueError: If `prompt` is not None and not a valid prompt name.

    Example:
        >>> get_role("query"), get_role("passage"), get_role(None)
        ('query', 'document', 'document')
    """
    if prompt is None or prompt in DOCUMENT_NAMES:
        return DOCUMENT
    _check_role(prompt, "prompt")
    return QUERY


def _check_role(prompt: object, name: str) -> None:
    if prompt not in (QUERY, DOCUMENT):
        raise invalid(name, prompt, "'query' or 'document'")
