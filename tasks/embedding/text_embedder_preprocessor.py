"""Convert texts to examples for embeddings. Each text is a separate example.

Comments use these letters for shapes: B batch, N examples, K additional texts of an example, L
sequence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from encoder_zoo.common.escaping import check_encodable
from encoder_zoo.common.lazy import use_numpy, xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import SequenceLength, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer, list_texts
from encoder_zoo.tasks.embedding.pair_columns import PAIR_COLUMNS, SeparateTextsPreprocessor
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed
from encoder_zoo.tasks.preprocessing.preprocessor import report_truncated
from encoder_zoo.tasks.preprocessing.windows import make_windows, take

if TYPE_CHECKING:
    from encoder_zoo.presets.formats.preset_task import FolderFormat
    from encoder_zoo.tasks.retrieval.documents import Contexts

# Equivalent names for the document prompt. By default, the first name is used.
DOCUMENT_NAMES = ("document", "passage", "corpus")
# These names can also be used without a matching prompt. No prompt is added in this case.
ROLES = ("query", "document")


def check_prompts(prompts: Mapping[str, str] | None, default_prompt: str | None) -> dict:
    """Check the prompts and copy them to a new dict.

    Raises:
        ValueError: If a prompt is not a string, or if `default_prompt` is not in `prompts`.
    """
    if not isinstance(prompts, Mapping | None):
        raise invalid("prompts", prompts, "a dict that maps names to texts")
    prompts = dict(prompts or {})
    for name, text in prompts.items():
        if not isinstance(name, str):
            raise invalid("A name of prompts", name, "a string")
        if not isinstance(text, str):
            raise invalid(f"prompts[{name!r}]", text, "a string")
        check_encodable(name, "A name of prompts")
        check_encodable(text, f"prompts[{name!r}]")
    if default_prompt is not None and default_prompt not in prompts:
        raise invalid(
            "default_prompt",
            default_prompt,
            f"one of {', '.join(prompts)}" if prompts else "None for a model without prompts",
        )
    return prompts


def find_prompt_text(prompts: Mapping[str, str], prompt: str | None, default: str | None) -> str:
    """Return the text that is prepended to the inputs.

    Args:
        prompts: Dict mapping prompt names to prompt texts.
        prompt: String. Prompt name or prompt text (e.g. "query: "). Single words are treated as
            names. The names "document", "passage" and "corpus" are equivalent. If the model has no
            prompt with this name, these names and "query" mean that no prompt will be used. If
            None, the default prompt will be used.
        default: Optional string. Name of the model's default prompt. If None, no prompt will be
            used by default.

    Raises:
        ValueError: If `prompt` is not a string, or is a single word that is unknown.

    Example:
        >>> prompts = {"query": "query: ", "passage": "passage: "}
        >>> [find_prompt_text(prompts, p, None) for p in ("query", "document", "search: ", None)]
        ['query: ', 'passage: ', 'search: ', '']
    """
    name = default if prompt is None else prompt
    if name is None:
        return ""
    if not isinstance(name, str):
        raise invalid("prompt", name, "the name or the text of a prompt")
    check_encodable(name, "prompt")
    for known in (name, *(DOCUMENT_NAMES if name in DOCUMENT_NAMES else ())):
        if known in prompts:
            return prompts[known]
    if name in (*ROLES, *DOCUMENT_NAMES) or not name:
        return ""
    if re.fullmatch(r"\w+", name):
        names = ", ".join(dict.fromkeys([*prompts, *ROLES]))
        raise invalid("prompt", name, f"{names}, or the text itself, such as 'query: '")
    return name


class ChunkPart(NamedTuple):
    """Position of the tokens of a chunk in a window of a text.

    Attributes:
        window: Integer. Index of the window.
        chunk: Integer. Index of the chunk.
        first: Integer. Position of the first token of the chunk in the window.
        last: Integer. Position after the last token of the chunk in the window.
    """

    window: int
    chunk: int
    first: int
    last: int


@serializable
class TextEmbedderPreprocessor(SeparateTextsPreprocessor):
    """Convert texts to `[CLS] text [SEP]`. Pairs and triplets are split into separate inputs.

    Args:
        tokenizer: A tokenizer of this package.
        sequence_length: See `Preprocessor`.
        max_length: Integer. Maximum number of tokens, including special tokens. Longer texts will
            be truncated to this length. Unlike `sequence_length`, this argument does not add
            padding. If None, the model's maximum length will be used.
        prompts: Optional dict mapping prompt names to prompt texts.
        default_prompt: Optional string. Name of the prompt to use by default. If None, no prompt
            will be used.
        include_prompt: Boolean. Whether to include the prompt tokens in the pooling. Defaults to
            True.

    Returns:
        See `Preprocessor`. For inputs with several texts per row, "token_ids" (B, L) contains the
        first texts, and "candidate_token_ids" (B, K, L) contains the other texts. If scores are not
        provided, the labels will be integers (B, 1 + K), with equal values for equal texts.

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
        self.prompts = check_prompts(prompts, default_prompt)
        self.default_prompt = default_prompt
        self.include_prompt = include_prompt

    @property
    def truncation_advice(self) -> str:
        if isinstance(self.tokenizer, FileTokenizer):  # static embeddings have no windows
            return super().truncation_advice
        return 'Use embed(texts, windows="mean") to read the whole text.'

    @staticmethod
    def get_folder_format() -> FolderFormat:
        """Return the folder format in which presets are saved and loaded."""
        from encoder_zoo.presets.formats.embedding_folder import EmbeddingFolderFormat

        return EmbeddingFolderFormat()

    @property
    def max_document_tokens(self) -> int:
        """Return the maximum number of tokens per document, excluding special tokens and prompt."""
        [prompt] = self.tokenizer.tokenize([self.get_prompt_text("document")]).row_lengths()
        return self.max_sequence_length - self.count_specials() - int(prompt)

    def get_prompt_text(self, prompt: str | None) -> str:
        """Look up the prompt text for a name. See also `TextEmbedder.embed`."""
        return find_prompt_text(self.prompts, prompt, self.default_prompt)

    def encode_texts(self, texts: xp.Tensor, prompt: str | None) -> dict:
        if isinstance(self.tokenizer, FileTokenizer):
            if xp.is_symbolic_tensor(texts):
                ids = self._tokenize_texts(texts, prompt, self.max_sequence_length)
                empty = xp.cast(ids.row_lengths() == 0, "int64")
                none = xp.fill([xp.reduce_sum(empty)], self.tokenizer.vocabulary_size)
                none = xp.RaggedTensor.from_row_lengths(none, empty)
                return {"token_ids": xp.concat([ids, none], 1)}
            ids, lengths = self.compute_ids(texts, prompt)
            starts, empty = np.cumsum(lengths) - lengths, lengths == 0
            ids = np.insert(ids, starts[empty], self.tokenizer.vocabulary_size)
            ids, lengths = xp.constant(ids, "int32"), np.maximum(lengths, 1)
            return {"token_ids": xp.RaggedTensor.from_row_lengths(ids, lengths)}
        # Keep an extra token to be able to count truncated texts.
        longest = self.max_sequence_length - self.count_specials()
        tokens = self._tokenize_texts(texts, prompt, longest + 1)
        examples = {"token_ids": self.pack([tokens])["token_ids"]}
        if not self.include_prompt:
            count = self._count_prompt_tokens(prompt)
            examples["pooled_from"] = xp.fill([xp.shape(texts)[0]], count)
        return examples

    @validate_arguments
    def compute_ids(
        self, texts: xp.Tensor, prompt: str | None, whole: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize texts with a `FileTokenizer`, without special tokens.

        Args:
            texts: String tensor of shape (N,), in memory.
            prompt: Optional string. Prompt to use for the texts. See `encode` for details.
            whole: Boolean. Whether to keep all tokens of long texts instead of truncating them.
                Defaults to False.

        Returns:
            Tuple with the token ids for all texts in a single array, and the number of token ids
            per text (N,).
        """
        before, given = self.get_prompt_text(prompt), list_texts(texts)
        given, most = [before + text for text in given], self.max_sequence_length
        ids, lengths, longer = self.tokenizer.compute_ids(given, None if whole else most)
        report_truncated(
            longer, self, f"texts are longer than {most} tokens, so the end is truncated."
        )
        return ids, lengths

    def _tokenize_texts(
        self, texts: xp.Tensor, prompt: str | None, first: int | None
    ) -> xp.RaggedTensor:
        text = self.get_prompt_text(prompt)
        return self.tokenizer.tokenize(xp.strings.join([text, texts]) if text else texts, first)

    def _count_prompt_tokens(self, prompt: str | None) -> int:
        """Return the number of tokens to exclude from pooling (the prompt and [CLS])."""
        text = self.get_prompt_text(prompt)
        with use_numpy():  # in a TensorFlow graph, the number would be unknown
            return len(self.tokenizer.tokenize(text)) + self.tokenizer.first_column if text else 0

    def encode_windows(self, texts, prompt: str | None = None) -> dict:
        """Convert texts to examples, with several windows for long texts.

        Args:
            texts: Texts with shape (N,), as in `encode`.
            prompt: Optional string. Prompt to use for the texts. See `encode` for details. The
                prompt will only be added to the first window.

        Returns:
            Examples in the same format as `encode`, with one example per window. The additional
            "text_index" (W,) int64 maps each window to the index of the corresponding text.
        """
        [texts] = PAIR_COLUMNS.convert(texts)
        tokens = self._tokenize_texts(texts, prompt, None)
        longest = self.max_sequence_length - self.count_specials()
        windows = make_windows(tokens.row_lengths(), longest, 0)
        examples = {"token_ids": self.pack([take(tokens, windows)])["token_ids"]}
        if not self.include_prompt:
            first = windows.begin == 0
            examples["pooled_from"] = xp.where(first, self._count_prompt_tokens(prompt), 0)
        return {**examples, "text_index": windows.example}

    def encode_contexts(
        self, contexts: Contexts, prompt: str | None
    ) -> tuple[dict, list[ChunkPart]]:
        """Convert whole texts to examples, and locate the chunk tokens in the examples.

        Texts that are too long are split into windows that overlap by a quarter. In the overlap,
        each window only keeps the half that is further from the edge. The prompt is prepended to
        each window. Prompts and special tokens are not assigned to any chunk.

        Args:
            contexts: `Contexts` of N chunks.
            prompt: Optional string. Prompt to use for the texts. See `encode` for details.
        """
        before = self.get_prompt_text(prompt)
        given = [before + text for text in contexts.texts]
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(given)
        splits = np.asarray(ids.row_splits)[1:-1]
        columns = [np.asarray(ids.flat_values)]
        columns += [np.asarray(part.flat_values) - len(before) for part in (starts, ends)]
        tokens = list(zip(*(np.split(column, splits) for column in columns), strict=True))
        prompts = [int((ends <= 0).sum()) for _, _, ends in tokens]
        lengths = np.array([len(ids) for ids, *_ in tokens]) - prompts
        longest = self.max_sequence_length - self.count_specials()
        room = np.maximum(longest - np.array(prompts), 1)
        windows = make_windows(xp.constant(lengths, "int64"), room, room // 4)
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
                    parts.append(ChunkPart(len(rows) - 1, chunk, shift + first, shift + last))
        ids = xp.RaggedTensor.from_row_splits(
            xp.constant(np.concatenate(rows), "int32"),
            xp.constant(np.cumsum([0, *map(len, rows)]), "int64"),
        )
        return {"token_ids": self.pack([ids])["token_ids"]}, parts

    @validate_arguments
    def pad(self, examples: dict, bucketed: Bucketed = False) -> dict[str, xp.Tensor]:
        """Pad the first texts and convert them to model inputs (B, L)."""
        inputs = super().pad(examples, bucketed)
        if "pooled_from" in examples:
            columns = xp.range(xp.shape(inputs["token_ids"])[1])
            pooled = columns >= examples["pooled_from"][:, None]
            inputs["pooling_mask"] = inputs["padding_mask"] & pooled
        return inputs
