"""Convert texts to examples for embeddings. Each text is a separate example.

Comment letters: B batch, N examples, K further texts of each, L sequence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from encoder_zoo.common.escaping import check_writable
from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import SequenceLength, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer, texts_in_memory
from encoder_zoo.tasks.embedding.pair_columns import COLUMNS, SeparateTexts
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed
from encoder_zoo.tasks.preprocessing.preprocessor import count_truncated
from encoder_zoo.tasks.preprocessing.windows import make_windows, take

if TYPE_CHECKING:
    from encoder_zoo.presets.formats.preset_task import FolderFormat
    from encoder_zoo.tasks.retrieval.documents import Contexts

# Equivalent names of the prompt for documents. The first name is the default.
DOCUMENT_NAMES = ("document", "passage", "corpus")
# Like the names above, these names mean no prompt if the model has no prompt with this name.
ROLES = ("query", "document")


def checked_prompts(prompts: Mapping[str, str] | None, default_prompt: str | None) -> dict:
    """Check the prompts and return a copy.

    Raises:
        ValueError: If a prompt is not a text, or if `default_prompt` is not among `prompts`.
    """
    if not isinstance(prompts, Mapping | None):
        raise invalid("prompts", prompts, "a dict of names and texts")
    prompts = dict(prompts or {})
    for name, text in prompts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise invalid(f"prompts[{name!r}]", text, "names and texts")
        check_writable(name, "A name of prompts")
        check_writable(text, f"prompts[{name!r}]")
    if default_prompt is not None and default_prompt not in prompts:
        raise invalid(
            "default_prompt",
            default_prompt,
            f"one of {', '.join(prompts)}" if prompts else "None, because there are no prompts",
        )
    return prompts


def prompt_text(prompts: Mapping[str, str], prompt: str | None, default: str | None) -> str:
    """Return the text of a prompt, which is prepended to each text.

    Args:
        prompts: Dict that maps names to the prompts of the model.
        prompt: String. Name of a prompt, or its text, such as "query: ". A name is a single word.
            "document", "passage" and "corpus" are equivalent. "query" and these three names mean no
            prompt if the model has none. None means the default prompt.
        default: Name of the model's default prompt, or None for no prompt.

    Raises:
        ValueError: If `prompt` is not a string, or if it is a single word and unknown.

    Example:
        >>> prompts = {"query": "query: ", "passage": "passage: "}
        >>> [prompt_text(prompts, p, None) for p in ("query", "document", "search: ", None)]
        ['query: ', 'passage: ', 'search: ', '']
    """
    name = default if prompt is None else prompt
    if name is None:
        return ""
    if not isinstance(name, str):
        raise invalid("prompt", name, "the name or the text of a prompt")
    check_writable(name, "prompt")
    for known in (name, *(DOCUMENT_NAMES if name in DOCUMENT_NAMES else ())):
        if known in prompts:
            return prompts[known]
    if name in (*ROLES, *DOCUMENT_NAMES) or not name:
        return ""
    if re.fullmatch(r"\w+", name):
        names = ", ".join(dict.fromkeys([*prompts, *ROLES]))
        raise invalid("prompt", name, f"{names}, or the text itself, such as 'query: '")
    return name


class Part(NamedTuple):
    """The tokens of a chunk in a window of its text.

    Attributes:
        window: Index of the window.
        chunk: Index of the chunk.
        first: Position of the first token of the chunk in the window.
        last: Position after the last token of the chunk.
    """

    window: int
    chunk: int
    first: int
    last: int


@serializable
class TextEmbedderPreprocessor(SeparateTexts):
    """Convert texts to `[CLS] text [SEP]`. Each text of a pair or triplet is a separate input.

    Args:
        tokenizer: A tokenizer of this package.
        sequence_length: See `Preprocessor`.
        max_length: Integer. Maximum number of tokens, including special tokens. Longer texts are
            truncated. Unlike `sequence_length`, it does not pad. Defaults to None, which uses the
            maximum length of the model.
        prompts: Dict that maps names to prompts. Defaults to None.
        default_prompt: Name of the default prompt. Defaults to None, which means no prompt.
        include_prompt: Boolean. Whether to pool the tokens of the prompt. Defaults to True.

    Returns:
        See `Preprocessor`. If the input has several texts per row, "token_ids" (B, L) contains the
        first texts, and "candidate_token_ids" (B, K, L) the other texts. Without scores, the labels
        are integers (B, 1 + K), which are equal for equal texts.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "you"]
        >>> preprocessor = TextEmbedderPreprocessor(BertTokenizer(tokens))
        >>> x, y = preprocessor((["hello"], ["hello you"]))
        >>> x["token_ids"].numpy().tolist(), x["candidate_token_ids"].numpy().tolist()
        ([[2, 5, 3]], [[[2, 5, 6, 3]]])
        >>> y.numpy().tolist()
        [[0, 1]]
    """

    task_name = "text_embedder"
    values_per_text = ("pooled_from",)  # number of tokens to skip if `include_prompt` is False
    truncation_advice = 'embed(texts, windows="mean") reads all of a text.'

    @validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: SequenceLength | None = None,
        max_length: SequenceLength | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str | None = None,
        include_prompt: bool = True,
    ):
        super().__init__(tokenizer, sequence_length)
        self.max_length = max_length
        self.max_sequence_length = sequence_length or max_length or self.max_sequence_length
        self.prompts = checked_prompts(prompts, default_prompt)
        self.default_prompt = default_prompt
        self.include_prompt = include_prompt

    @staticmethod
    def folder_format() -> FolderFormat:
        """Return the files of its presets."""
        from encoder_zoo.presets.formats.embedding_folder import EmbeddingFolder

        return EmbeddingFolder()

    @property
    def document_room(self) -> int:
        """Return the maximum number of tokens of a document, after its prompt."""
        [prompt] = self.tokenizer.tokenize([self.prompt_text("document")]).row_lengths()
        return self.max_sequence_length - 2 - int(prompt)

    def prompt_text(self, prompt: str | None) -> str:
        """Return the text of a prompt by its name. See also `TextEmbedder.embed`."""
        return prompt_text(self.prompts, prompt, self.default_prompt)

    def encoded_texts(self, texts: array_ops.Tensor, prompt: str | None) -> dict:
        if isinstance(self.tokenizer, FileTokenizer):
            if array_ops.is_symbolic_tensor(texts):
                ids = self._tokens(texts, prompt, self.max_sequence_length)
                empty = array_ops.cast(ids.row_lengths() == 0, "int64")
                none = array_ops.fill([array_ops.reduce_sum(empty)], self.tokenizer.vocabulary_size)
                none = array_ops.RaggedTensor.from_row_lengths(none, empty)
                return {"token_ids": array_ops.concat([ids, none], 1)}
            ids, lengths = self.ids_of(texts, prompt)
            starts, empty = np.cumsum(lengths) - lengths, lengths == 0
            ids = np.insert(ids, starts[empty], self.tokenizer.vocabulary_size)
            ids, lengths = array_ops.constant(ids, "int32"), np.maximum(lengths, 1)
            return {"token_ids": array_ops.RaggedTensor.from_row_lengths(ids, lengths)}
        # Tokenize one token more than the model reads, to count truncated texts.
        tokens = self._tokens(texts, prompt, self.max_sequence_length - 1)
        examples = {"token_ids": self.pack([tokens])["token_ids"]}
        if not self.include_prompt:
            count = self._prompt_length(prompt)
            examples["pooled_from"] = array_ops.fill([array_ops.shape(texts)[0]], count)
        return examples

    @validate_arguments
    def ids_of(
        self, texts: array_ops.Tensor, prompt: str | None, whole: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize texts with a `FileTokenizer`, without special tokens.

        Args:
            texts: Texts in memory, shape (N,).
            prompt: Prompt of the texts, see `encode`.
            whole: Boolean. Whether to return all tokens of texts that are too long. Defaults to
                False.

        Returns:
            The ids of all texts in one array, and the number of ids per text (N,).
        """
        before, given = self.prompt_text(prompt), texts_in_memory(texts)
        given, most = [before + text for text in given], self.max_sequence_length
        ids, lengths, longer = self.tokenizer.ids_of(given, None if whole else most)
        count_truncated(longer, self, f"texts are longer than {most} tokens; the rest is not read.")
        return ids, lengths

    def _tokens(
        self, texts: array_ops.Tensor, prompt: str | None, first: int | None
    ) -> array_ops.RaggedTensor:
        text = self.prompt_text(prompt)
        return self.tokenizer.tokenize(
            array_ops.strings.join([text, texts]) if text else texts, first
        )

    def _prompt_length(self, prompt: str | None) -> int:
        """Return the number of tokens that are not pooled: the prompt and [CLS]."""
        text = self.prompt_text(prompt)
        return len(self.tokenizer.tokenize(text)) + self.tokenizer.first_column if text else 0

    def encode_windows(self, texts, prompt: str | None = None) -> dict:
        """Convert texts to examples. Long texts are split into windows.

        Args:
            texts: Texts of shape (N,), see `encode`.
            prompt: Prompt of the texts, see `encode`. Only the first window contains it.

        Returns:
            Examples as from `encode`, one per window, and "text_index" (W,) int64, the index of the
            text of each window.
        """
        [texts] = COLUMNS.read(texts)
        tokens = self._tokens(texts, prompt, None)
        windows = make_windows(tokens.row_lengths(), self.max_sequence_length - 2, 0)
        examples = {"token_ids": self.pack([take(tokens, windows)])["token_ids"]}
        if not self.include_prompt:
            first = windows.begin == 0
            examples["pooled_from"] = array_ops.where(first, self._prompt_length(prompt), 0)
        return {**examples, "text_index": windows.example}

    def encode_contexts(self, contexts: Contexts, prompt: str | None) -> tuple[dict, list[Part]]:
        """Convert whole texts to examples, and find the tokens of their chunks in the examples.

        If a text is too long, it is split into windows, and neighbouring windows share a quarter of
        their tokens. Of the shared tokens, each window keeps the half that is farther from its
        edge. The prompt is prepended to each window. Prompts and special tokens belong to no chunk.

        Args:
            contexts: The contexts of N chunks.
            prompt: Prompt of the texts, see `encode`.
        """
        before = self.prompt_text(prompt)
        given = [before + text for text in contexts.texts]
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(given)
        splits = np.asarray(ids.row_splits)[1:-1]
        columns = [np.asarray(ids.flat_values)]
        columns += [np.asarray(part.flat_values) - len(before) for part in (starts, ends)]
        tokens = list(zip(*(np.split(column, splits) for column in columns), strict=True))
        prompts = [int((ends <= 0).sum()) for _, _, ends in tokens]
        lengths = np.array([len(ids) for ids, *_ in tokens]) - prompts
        room = np.maximum(self.max_sequence_length - 2 - np.array(prompts), 1)
        windows = make_windows(array_ops.constant(lengths, "int64"), room, room // 4)
        chunks = np.searchsorted(contexts.index, np.arange(len(given) + 1))
        rows, parts = [], []
        for window in zip(*map(np.asarray, windows), strict=True):
            i, begin, length, owned_from, owned_to = (int(value) for value in window)
            (all_ids, begins, stops), prefix = tokens[i], prompts[i]
            rows.append(np.r_[all_ids[:prefix], all_ids[prefix + begin : prefix + begin + length]])
            for chunk in range(chunks[i], chunks[i + 1]):
                start, end = contexts.spans[chunk]
                first = np.searchsorted(stops[prefix:], start, "right")
                last = np.searchsorted(begins[prefix:], end, "left")
                first = max(first - begin, owned_from)
                last = min(last - begin, owned_to)
                if first < last:
                    shift = self.tokenizer.first_column + prefix
                    parts.append(Part(len(rows) - 1, chunk, shift + first, shift + last))
        ids = array_ops.RaggedTensor.from_row_splits(
            array_ops.constant(np.concatenate(rows), "int32"),
            array_ops.constant(np.cumsum([0, *map(len, rows)]), "int64"),
        )
        return {"token_ids": self.pack([ids])["token_ids"]}, parts

    @validate_arguments
    def pad(self, examples: dict, bucketed: Bucketed = False) -> dict[str, array_ops.Tensor]:
        """Return the model's inputs (B, L) for the first texts."""
        # All tokens belong to segment 0.
        first_length = {
            "first_length": array_ops.fill([array_ops.shape(examples["token_ids"])[0]], 2**30)
        }
        inputs = super().pad({**examples, **first_length}, bucketed)
        if "pooled_from" in examples:
            columns = array_ops.range(array_ops.shape(inputs["token_ids"])[1])
            pooled = columns >= examples["pooled_from"][:, None]
            inputs["pooling_mask"] = inputs["padding_mask"] & pooled
        return inputs
