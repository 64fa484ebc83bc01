"""Writes a tokenizer as the files that transformers reads."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from encoder_zoo.common.configuration import argument_defaults
from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.reading import SPECIAL_TOKENS, TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.steps import (
    describe_steps,
    flat_steps,
    model_settings,
    special_added_token,
    template_ids,
)

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger("encoder_zoo")


class WritesFiles:
    """Mixin: writes the files that all tokenizers have.

    Subclasses implement `_from_files`, `_vocabulary_files`, `_settings` and `_steps`.
    """

    special_token_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        argument: names[:1] for argument, names in SPECIAL_TOKENS.items()
    }

    @classmethod
    def from_files(cls, files: TokenizerFiles, **template) -> Self:
        """Build the tokenizer that files describe.

        A tokenizer.json is followed in every step, or refused with the name of the step.

        Args:
            files: of the vocabulary, or tokenizer.json.
            **template: `uses_segments` and `pair_separators`.

        Raises:
            FileNotFoundError: If the folder has no vocabulary.
            ValueError: If a field has a wrong value. See also `compare_steps`.
        """
        try:
            tokenizer = cls._from_files(files, **template)
        except ValueError as error:
            if str(files.folder) in str(error):
                raise
            raise ValueError(f"{files.folder}: {error}") from None
        if "tokenizer.json" in files:
            compare_steps(files, tokenizer)
        return tokenizer

    @classmethod
    def _from_files(cls, files: TokenizerFiles, **template) -> Self:
        """Build the tokenizer; steps of tokenizer.json that it does not read are compared later."""
        raise NotImplementedError

    def same_steps(self, normalizer: list[dict], words: list[dict]) -> tuple[list[dict], ...]:
        """Return steps of tokenizer.json in one of the ways to write what they do here.

        Args:
            normalizer, words: the steps of normalizer and of pre_tokenizer, with all fields.
        """
        return normalizer, words

    def same_model(self, settings: dict) -> dict:
        """Return settings of a model in one of the ways to write what they do here."""
        return settings

    def to_files(self) -> dict[str, str | bytes]:
        """Write the tokenizer as files that transformers' AutoTokenizer reads with the same ids.

        Returns:
            {file name: text or bytes}: the vocabulary files, tokenizer.json,
            tokenizer_config.json and special_tokens_map.json.
        """
        special = self._special_token_settings()
        settings = {**self._settings(), **self._generic(), **self._limits(), **special}
        if settings["tokenizer_class"] == "PreTrainedTokenizerFast" and self.uses_segments:
            # which leaves them out in transformers 5
            inputs = ["input_ids", "token_type_ids", "attention_mask"]
            settings.setdefault("model_input_names", inputs)
        fast = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": sorted(self._added_tokens(), key=lambda token: token["id"]),
            **self._steps(),
        }
        return {
            **self._vocabulary_files(),
            "tokenizer.json": as_json(fast),
            "tokenizer_config.json": as_json(settings),
            "special_tokens_map.json": as_json(special),
        }

    def _special_token_settings(self) -> dict[str, str]:
        """Return {name in tokenizer_config.json: special token}."""
        return {
            name: getattr(self, argument)
            for argument, names in self.special_token_names.items()
            for name in names
        }

    def _limits(self) -> dict:
        """Return the settings in tokenizer_config.json that are not the default."""
        # transformers always finds special tokens in texts, and leaves this field alone.
        found = {"special_tokens_in_text": True} if self.special_tokens_in_text else {}
        if self.truncation_side != "right":
            found["truncation_side"] = self.truncation_side
        # Classes that pad left in transformers need the other side by name.
        if "left" in (self.padding_side, argument_defaults(type(self))["padding_side"]):
            found["padding_side"] = self.padding_side
        if self.model_max_length is not None:
            found["model_max_length"] = self.model_max_length
        return found

    def _generic(self) -> dict:
        """Return the generic class if transformers' own class would join two texts differently."""
        defaults = argument_defaults(type(self))
        adds_segments = self.uses_segments and not defaults["uses_segments"]
        segments = ["token_type_ids"] if self.uses_segments else []
        inputs = {"model_input_names": ["input_ids", *segments, "attention_mask"]}
        if self.pair_separators == defaults["pair_separators"] and not adds_segments:
            return inputs if self.uses_segments != defaults["uses_segments"] else {}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **inputs}

    def _added_tokens(self) -> list[dict]:
        """Return the special tokens and the other added tokens as entries of tokenizer.json."""
        special = self.special_entries()
        known = {token["content"] for token in special}
        return [*special, *(token for token in self.added_tokens if token["content"] not in known)]

    def special_entries(self) -> list[dict]:
        """Return the special tokens as entries of tokenizer.json."""
        tokens = dict.fromkeys(getattr(self, argument) for argument in SPECIAL_TOKENS)
        lstrip = self.mask_token if self.lstrip_mask else None
        return [special_added_token(self.token_to_id(t), t, t == lstrip) for t in tokens]

    def _library_steps(self, as_words: bool = False) -> dict:
        """Return the steps of tokenizer.json as the library `tokenizers` takes them here.

        Args:
            as_words: whether each text is a word that follows a space.
        """
        steps = self._steps()
        model = steps["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = without_gaps(model["vocab"])
        return {name: steps[name] for name in ("normalizer", "pre_tokenizer", "model")}

    def _library_ids(self) -> list[int]:
        """Return the ids of the library's ids, of the first of them."""
        return []

    def _library_word(self, word: str) -> str:
        """Return a word that follows a space as the library takes it."""
        return word

    def _template(self) -> dict:
        """Return the post-processor: the special tokens around one text and around a pair."""
        start, end = self.start_token, self.end_token
        second = int(self.uses_segments)
        first = [_text("A", 0), _special(end, 0)]
        between = [_special(end, second)] * (self.pair_separators - 1)
        both = [*first, *between, _text("B", second), _special(end, second)]

        def with_start(parts: list[dict]) -> list[dict]:
            last = _special(start, 2 * second)
            return [_special(start, 0), *parts] if self.first_column else [*parts, last]

        return {
            "type": "TemplateProcessing",
            "single": with_start(first),
            "pair": with_start(both),
            "special_tokens": {
                token: {"id": token, "ids": [self.token_to_id(token)], "tokens": [token]}
                for token in (start, end)
            },
        }

    def _vocabulary_files(self) -> Mapping[str, str | bytes]:
        """Return the files of the vocabulary."""
        raise NotImplementedError

    def _settings(self) -> dict:
        """Return the contents of tokenizer_config.json, without special tokens."""
        raise NotImplementedError

    def _steps(self) -> dict:
        """Return normalizer, pre_tokenizer, post_processor, decoder and model of tokenizer.json."""
        raise NotImplementedError


def _special(token: str, segment: int) -> dict:
    return {"SpecialToken": {"id": token, "type_id": segment}}


def _text(name: str, segment: int) -> dict:
    return {"Sequence": {"id": name, "type_id": segment}}


def without_gaps(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Return {token: id} with a token for every id; texts do not contain those with a space.

    Example:
        >>> without_gaps({"a": 0, "b": 2})
        {'a': 0, 'b': 2, ' 1': 1}
    """
    missing = set(range(max(vocabulary.values()) + 1)).difference(vocabulary.values())
    return {**vocabulary, **{f" {i}": i for i in sorted(missing)}}


def as_json(content: object) -> str:
    """Return indented JSON with a line break at the end."""
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def compare_steps(files: TokenizerFiles, tokenizer: Tokenizer) -> None:
    """Raise an error if a tokenizer does something else than the tokenizer.json it was read from.

    All steps and all their fields are compared, so that none is ignored. Two are alike where the
    tokenizer's `same_steps` and `same_model` say why. The decoder is not compared: `detokenize`
    spells the tokens, whatever it says.

    Raises:
        ValueError: If a step differs from what this kind of tokenizer does, so that the ids would
            differ.
    """
    ours, parts = tokenizer._steps(), ("normalizer", "pre_tokenizer")
    theirs = [files.steps(part) for part in parts]
    own = [flat_steps(ours[part], part) for part in parts]
    alike = zip(tokenizer.same_steps(*theirs), tokenizer.same_steps(*own), strict=True)
    for i, (found, expected) in enumerate(alike):
        if found != expected:
            raise files.mismatch(
                f"{parts[i]} is {describe_steps(theirs[i])}", describe_steps(own[i])
            )
    kind = ours["model"]["type"]
    found, expected = (
        tokenizer.same_model(model_settings(model, kind))
        for model in (files.part("model"), ours["model"])
    )
    for field, value in found.items():
        if value != expected[field]:
            of_token = f" for unk_token {tokenizer.unknown_token!r}" * (field == "unk_id")
            raise files.mismatch(
                f"model.{field} is {shown(value)}", f"{expected[field]!r}{of_token}"
            )
    _compare_processors(files, tokenizer, flat_steps(ours["post_processor"], "post_processor"))


def _compare_processors(
    files: TokenizerFiles, tokenizer: Tokenizer, expected: Sequence[Mapping]
) -> None:
    """Compare what is put around texts, and how spans are trimmed."""
    found = files.steps("post_processor")
    template = files.template()
    if template is None and not files.names_class:
        raise ValueError(
            f"{files.json_path}: post_processor is {describe_steps(found)}, which puts no special "
            f"tokens around texts. Write one that does, such as {tokenizer.start_token} $A "
            f"{tokenizer.end_token}, or name a tokenizer_class in tokenizer_config.json, such as "
            f"{type(tokenizer).__name__}."
        )
    for token, token_id in template_ids(found):
        if tokenizer.token_to_id(token) != token_id:
            raise files.mismatch(
                f"post_processor puts {shown(token)} as {token_id}",
                f"the id {tokenizer.token_to_id(token)} for it",
            )
    if not found or _trimming(found) == _trimming(expected):
        return
    # Of tokens with spaces at their ends the spans differ, and never the ids.
    differing = set(filter(_has_space, tokenizer.get_vocabulary()))
    added = differing & {token["content"] for token in tokenizer.added_tokens}
    if differing - added:
        raise files.mismatch(f"post_processor is {describe_steps(found)}", describe_steps(expected))
    if added:
        logger.warning(
            "%s: post_processor is %s; this kind of tokenizer has %s. Ids are equal; spans of the "
            "added tokens %s differ by the spaces at their ends.",
            files.json_path,
            describe_steps(found),
            describe_steps(expected),
            shown(sorted(added)),
        )


def _trimming(steps: Sequence[Mapping]) -> list[tuple[int, bool]]:
    """Return position and add_prefix_space of the post-processors that take spaces off spans."""
    return [
        (i, step.get("add_prefix_space") is True)
        for i, step in enumerate(steps)
        if step.get("trim_offsets") is True
    ]


def _has_space(token: str) -> bool:
    """Return whether a token has what trimming takes off: white space, or its byte's letter."""
    return token.strip() != token or token.strip("Ġ") != token
