"""Mask filling based on token logits.

Comments use these letters for shapes: N texts, B batch, M masked positions, V vocabulary.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, overload

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.ragged_array import make_array
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
from encoder_zoo.tasks.base.answers import Answers, prepares_in_numpy
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.base.records import make_records, pad_columns
from encoder_zoo.tasks.preprocessing.inputs import convert_column
from encoder_zoo.tasks.preprocessing.packing import compute_kept_tokens
from encoder_zoo.tasks.preprocessing.preprocessor import replace_invalid_text
from encoder_zoo.tasks.preprocessing.tokenized_texts import mark_row_starts, shift_left
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import MaskedLMPreprocessor


class FilledMask(TypedDict):
    """A token for a mask, with the filled text and the token's probability."""

    token: str
    text: str
    score: float


class Masks(NamedTuple):
    """The masks in a batch of texts.

    Attributes:
        starts: Ragged int32 tensor of shape (N, None). Start offset for each mask.
        ends: Ragged int32 tensor of shape (N, None). End offset for each mask.
        word_follows: Ragged boolean tensor of shape (N, None). Whether the token after the mask
            begins a word.
    """

    starts: xp.RaggedTensor
    ends: xp.RaggedTensor
    word_follows: xp.RaggedTensor


class TokenTexts(NamedTuple):
    """Names and texts of all V tokens, as UTF-8 strings.

    Attributes:
        names: Array of shape (V,). Token names.
        words: Array of shape (V,). Token texts, without a leading space.
        begins: Boolean array of shape (V,). Whether the token begins a word that follows a space.
    """

    names: np.ndarray
    words: np.ndarray
    begins: np.ndarray


# The characters that Python's `str.rstrip` removes.
SPACES = r"[\t-\r\x{1c}-\x{1f}\x{85}\pZ]"
SPACE_AT_END = f"{SPACES}+$"
SPACE_AT_BEGIN = f"(?s)({SPACES}.*)?"  # or no text at all
WORD_CHARACTER = r"[\p{L}\p{M}\p{N}]"
SINGLE_CHARACTER_WORD = (
    r"[\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}]"  # Chinese characters
)


def continues_word(texts: xp.Tensor, at_end: bool) -> xp.Tensor:
    """Return whether a letter that is added to each text (at the end or start) continues a word."""
    of_word, alone = (
        xp.strings.regex_full_match(texts, f"(?s).*{kind}" if at_end else f"(?s){kind}.*")
        for kind in (WORD_CHARACTER, SINGLE_CHARACTER_WORD)
    )
    return of_word & ~alone


class MaskAnswers(Answers):
    """The `Answers` of `MaskedLM`."""

    preprocessor_class = MaskedLMPreprocessor
    instead_of_predict = "fill_mask(texts)"
    methods = ("fill_mask",)

    @overload
    def fill_mask(
        self: Any, texts: str, top_k: int = 5, batch_size: int | None = None
    ) -> list[FilledMask]: ...
    @overload
    def fill_mask(
        self: Any, texts: object, top_k: int = 5, batch_size: int | None = None
    ) -> list[list[FilledMask]]: ...
    @overload
    def fill_mask(
        self: Any, texts: object, *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validate_arguments
    @prepares_in_numpy
    @skips_missing("texts")
    def fill_mask(
        self,
        texts,
        top_k: PositiveInt = 5,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
        targets: Sequence[str] | None = None,
    ) -> list[FilledMask] | list[list[FilledMask]]:
        """Predict the most probable tokens for each mask token.

        Args:
            texts: A text or a list of texts. Each text must contain at least one mask token (e.g.
                `[MASK]` or `<mask>`, depending on the family).
            top_k: Positive integer. Number of tokens to return per mask. Defaults to 5.
            batch_size: Optional positive integer. Batch size, in texts. If None, 32 will be used.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return None for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".
            targets: Optional list of strings. Candidate words or tokens to choose from. Each
                candidate must be a single token in the vocabulary. Scores will still be
                probabilities over all tokens. If None, all tokens will be used.

        Returns:
            List of the `top_k` best tokens per text, sorted by score. Each result is a dict
            `{"token", "text", "score"}` with the token, the text with the mask replaced, and the
            token's probability. For texts with several masks, a list is returned per mask, with
            only this mask replaced in each text. The type annotation is only for texts with a
            single mask. If a single text is passed, a single list will be returned.

        Raises:
            ValueError: If a text has no mask token, or if a target is not a single token.
        """
        if isinstance(texts, str):
            return self.fill_mask([texts], top_k, batch_size, targets=targets)[0]
        chosen = None if targets is None else self._find_tokens(targets)
        tensor = convert_column(texts)
        if not tensor.shape[0]:
            return []
        tokens = self.tokenizer.tokenize_with_offsets(tensor)
        self._check_masks(tokens[0])
        examples, masks = self._make_examples(*tokens)
        inputs, real = self.mask_inputs(examples)
        inputs = {name: values.numpy() for name, values in inputs.items()}
        logits = self.runner.predict(inputs, batch_size)  # (B, M, V)
        fills = make_records(self._fill_masks(tensor, masks, logits[real.numpy()], top_k, chosen))
        by_text = [fills[i:j] for i, j in itertools.pairwise(masks.starts.row_splits.numpy())]
        return [masks[0] if len(masks) == 1 else masks for masks in by_text]

    def make_fill_mask_function(self, run: Callable, top_k: int) -> Callable:
        """Create the function to export. See `MaskedLM.signatures`.

        Args:
            run: A function that computes logits (masks, V) from examples and the number of masks
                (N,).
            top_k: See `fill_mask`.
        """

        def fill(text):
            text = replace_invalid_text(text)
            tokens = self.tokenizer.tokenize_with_offsets(text)
            examples, masks = self._make_examples(*tokens)
            filled = self._fill_masks(text, masks, run(examples, masks.starts.row_lengths()), top_k)
            return pad_columns({n: masks.starts.with_values(v) for n, v in filled.items()})

        return fill

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Return a tokenizer that recognizes mask tokens in texts."""
        tokenizer = self.preprocessor.tokenizer
        with xp.init_scope():
            return type(tokenizer)(**{**tokenizer.get_config(), "special_tokens_in_text": True})

    def _check_masks(self, ids: xp.RaggedTensor) -> None:
        tokenizer = self.preprocessor.tokenizer
        limit = self.preprocessor.max_sequence_length - self.preprocessor.count_specials()
        from_left = tokenizer.truncation_side == "left"
        for row, tokens in enumerate(ids.numpy()):
            found = np.flatnonzero(tokens == tokenizer.mask_token_id)
            if from_left:
                found = len(tokens) - 1 - found[::-1]  # counted from the end
            if not found.size:
                raise ValueError(
                    f"texts[{row}] does not contain {tokenizer.mask_token}. Expected this token in "
                    "place of the missing word."
                )
            if found[-1] >= limit:
                cut = f"before its last {limit}" if from_left else f"after its first {limit}"
                raise ValueError(
                    f"texts[{row}] contains {tokenizer.mask_token} {cut} tokens, but only these "
                    "tokens are used. Shorten the text, so that all masks are kept."
                )

    def _make_examples(self, ids, starts, ends) -> tuple[dict, Masks]:
        """Return encoded examples with mask positions, and the masks in the texts."""
        tokenizer, longest = self.preprocessor.tokenizer, self.preprocessor.max_sequence_length
        specials, side = self.preprocessor.count_specials(), tokenizer.truncation_side
        [(begin, count)] = compute_kept_tokens([ids], specials, longest, side)
        begin, count = (xp.cast(values, "int64") for values in (begin, count))
        row = ids.value_rowids()
        column = xp.ragged.range(ids.row_lengths()).values - xp.gather(begin, row)
        is_mask = (ids.values == tokenizer.mask_token_id) & (column >= 0)
        is_mask = ids.with_values(is_mask & (column < xp.gather(count, row)))
        begins = xp.gather(xp.constant(self._token_texts.begins), ids.values)
        begins &= (ids.values != tokenizer.mask_token_id) & ~mark_row_starts(ids)
        columns, *found = (
            xp.ragged.boolean_mask(ids.with_values(values), is_mask)
            for values in (column, starts.values, ends.values, shift_left(begins, False))
        )
        positions = xp.cast(columns + tokenizer.first_column, xp.int32)
        return {**self.preprocessor.pack([ids]), "mask_positions": positions}, Masks(*found)

    def mask_inputs(self, examples: dict) -> tuple[dict, xp.Tensor]:
        """Return the model inputs, and a boolean mask (B, M) for valid mask positions."""
        positions = examples["mask_positions"]
        inputs = {**self.preprocessor.pad(examples), "mask_positions": positions.to_tensor()}
        if self.preprocessor.predicts_in_order:
            is_mask = inputs["token_ids"] == self.preprocessor.tokenizer.mask_token_id
            inputs["prediction_order"] = xp.cast(is_mask, xp.int32)
        return inputs, xp.sequence_mask(positions.row_lengths())

    def _find_tokens(self, targets: Sequence[str]) -> list[int]:
        """Return the ids of words or tokens. If texts are equal, words are preferred."""
        if isinstance(targets, str) or not len(targets):
            raise invalid("targets", targets, "a list of words, such as ['good', 'bad']")
        names, words, begins = (column.tolist() for column in self._token_texts)
        known = {word: i for i, word in enumerate(words) if not begins[i]}
        known |= {word: i for i, word in enumerate(words) if begins[i]}
        known = {name: i for i, name in enumerate(names)} | known
        known = {text.decode(): i for text, i in known.items()}
        for i, target in enumerate(targets):
            if not isinstance(target, str) or target.strip() not in known:
                expected = "a word that is a single token of the vocabulary"
                raise invalid(f"targets[{i}]", target, expected)
        return list(dict.fromkeys(known[target.strip()] for target in targets))

    def _fill_masks(
        self, texts, masks: Masks, logits, top_k: int, chosen: Sequence[int] | None = None
    ) -> dict[str, xp.Tensor]:
        """Return "token", "text" and "score" (masks, top_k), sorted by score.

        Spaces are added next to a token if the text would otherwise be tokenized differently.

        Args:
            texts: String tensor of shape (N,).
            masks: `Masks`. The masks in the texts.
            logits: Tensor of shape (masks, V). Logits for all texts.
            top_k: Positive integer. Number of tokens to return per mask.
            chosen: Optional list of integers. Token ids to choose from.
        """
        strings = xp.strings
        names, words, begins = (xp.constant(column) for column in self._token_texts)
        probabilities = xp.nn.softmax(logits)[:, : xp.size(names)]
        if chosen is not None:
            names, words, begins = (xp.gather(c, chosen) for c in (names, words, begins))
            probabilities = xp.gather(probabilities, chosen, axis=1)
        scores, best = xp.math.top_k(probabilities, min(top_k, names.shape[0]))
        texts = xp.gather(texts, masks.starts.value_rowids())
        start, end = masks.starts.values, masks.ends.values
        before = strings.substr(texts, xp.zeros_like(start), start, unit="UTF8_CHAR")
        length = strings.length(texts, unit="UTF8_CHAR")
        after = strings.substr(texts, end, length - end, unit="UTF8_CHAR")
        joined = strings.regex_replace(before, SPACE_AT_END, "")  # to the word before
        words, begins = xp.gather(words, best), xp.gather(begins, best)

        token_format = self.preprocessor.tokenizer.token_format
        # Whether a blank must be between the token and the text around it.
        before_it = (before == joined) & (strings.length(before) > 0)
        behind_it = masks.word_follows.values & ~strings.regex_full_match(after, SPACE_AT_BEGIN)
        before_it, behind_it = before_it[:, None], behind_it[:, None]
        if self._tokens_include_space:
            before, before_it, behind_it = joined, True, False
        elif token_format.starts_word("a"):  # words end without spaces (WordPiece)
            before_it = (
                before_it & continues_word(before, True)[:, None] & continues_word(words, False)
            )
            behind_it = (
                behind_it & continues_word(after, False)[:, None] & continues_word(words, True)
            )
        blank, nothing = (xp.constant(text) for text in (" ", ""))
        words = xp.where(begins & before_it, blank, nothing) + words
        words += xp.where(behind_it, blank, nothing)
        before = xp.where(begins, before[:, None], joined[:, None])
        texts = before + words + after[:, None]
        return {"token": xp.gather(names, best), "text": texts, "score": scores}

    @functools.cached_property
    def _token_texts(self) -> TokenTexts:
        tokenizer = self.preprocessor.tokenizer
        tokens, token_format = tokenizer.get_vocabulary(), tokenizer.token_format
        words = [word.removeprefix(" ").removeprefix("##") for word in self._detokenized_texts]
        spelled = map(token_format.get_text, tokens)
        spelled = [t.encode() if isinstance(t, str) else t for t in spelled]
        begins = [  # residues are words without spaces
            b" " in text and (token_format.starts_word(token) or token_format.ends_word(token))
            for token, text in zip(tokens, spelled, strict=True)
        ]
        return TokenTexts(*map(make_array, (tokens, words, begins)))

    @functools.cached_property
    def _detokenized_texts(self) -> list[str]:
        tokenizer = self.preprocessor.tokenizer
        with xp.init_scope():
            ids = xp.range(len(tokenizer.get_vocabulary()))[:, None]
            words = tokenizer.detokenize(ids).numpy()
        return [word.decode(errors="replace") for word in words]

    @functools.cached_property
    def _tokens_include_space(self) -> bool:
        """Return whether a space is part of the following token, as in byte-level BPE."""
        return any(word.startswith(" ") for word in self._detokenized_texts)
