"""Write tokenizers to files that can be loaded by transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from encoder_zoo.common.configuration import argument_defaults
from encoder_zoo.encoders.tokenizers.files.reading import SPECIAL_TOKENS
from encoder_zoo.encoders.tokenizers.files.special_tokens import special_added_token
from encoder_zoo.encoders.tokenizers.steps import Model

if TYPE_CHECKING:
    pass


class WritesFiles:
    """Mixin to write the files that are common to all tokenizers.

    Subclasses must implement `_vocabulary_files`, `_settings`, `_steps` and `_model`.
    """

    special_token_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        argument: names[:1] for argument, names in SPECIAL_TOKENS.items()
    }

    def to_files(self) -> dict[str, str | bytes]:
        """Convert the tokenizer to files that transformers' AutoTokenizer can load with equal ids.

        Returns:
            Dict to map file names to text or bytes. This includes the vocabulary files,
            tokenizer.json, tokenizer_config.json and special_tokens_map.json.
        """
        special = self._special_token_settings()
        settings = {**self._settings(), **self._generic(), **self._limits(), **special}
        if settings["tokenizer_class"] == "PreTrainedTokenizerFast" and self.uses_segments:
            # omitted by default in transformers 5
            inputs = ["input_ids", "token_type_ids", "attention_mask"]
            settings.setdefault("model_input_names", inputs)
        fast = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": sorted(self._added_tokens(), key=lambda token: token["id"]),
            **self._steps(),
            "model": self._model(),
        }
        return {
            **self._vocabulary_files(),
            "tokenizer.json": as_json(fast),
            "tokenizer_config.json": as_json(settings),
            "special_tokens_map.json": as_json(special),
        }

    def _special_token_settings(self) -> dict[str, str]:
        """Return the special tokens to write to tokenizer_config.json."""
        return {
            name: getattr(self, argument)
            for argument, names in self.special_token_names.items()
            for name in names
        }

    def _limits(self) -> dict:
        """Return settings for tokenizer_config.json that differ from the default values."""
        # transformers ignores this field, as it always finds special tokens in texts.
        found = {"special_tokens_in_text": True} if self.special_tokens_in_text else {}
        if self.truncation_side != "right":
            found["truncation_side"] = self.truncation_side
        # Classes with left padding in transformers need an explicit value for right padding.
        if "left" in (self.padding_side, argument_defaults(type(self))["padding_side"]):
            found["padding_side"] = self.padding_side
        if self.model_max_length is not None:
            found["model_max_length"] = self.model_max_length
        return found

    def _generic(self) -> dict:
        """Return generic class settings if transformers' own class would join texts differently."""
        defaults, settings = argument_defaults(type(self)), self._generic_settings()
        adds_segments = self.uses_segments and not defaults["uses_segments"]
        if self.pair_separators != defaults["pair_separators"] or adds_segments:
            return settings
        if self.uses_segments == defaults["uses_segments"]:
            return {}
        return {"model_input_names": settings["model_input_names"]}

    def _generic_settings(self) -> dict:
        """Return the settings for a generic class in transformers."""
        inputs = ["input_ids", *["token_type_ids"] * self.uses_segments, "attention_mask"]
        return {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}

    def _added_tokens(self) -> list[dict]:
        """Return entries for tokenizer.json with all special tokens and added tokens."""
        special = self.special_entries()
        known = {token["content"] for token in special}
        return [*special, *(token for token in self.added_tokens if token["content"] not in known)]

    def special_entries(self) -> list[dict]:
        """Return entries for tokenizer.json with all special tokens."""
        tokens = dict.fromkeys(getattr(self, argument) for argument in SPECIAL_TOKENS)
        lstrip = self.mask_token if self.lstrip_mask else None
        return [special_added_token(self.token_to_id(t), t, t == lstrip) for t in tokens]

    def _model_in_texts(self) -> Model:
        """Return the model to be executed by both engines."""
        return Model(self._model())

    def _template(self) -> dict:
        """Return a post-processor to add special tokens around single texts and pairs."""
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
        """Return the vocabulary files."""
        raise NotImplementedError

    def _settings(self) -> dict:
        """Return the content for tokenizer_config.json, without special tokens."""
        raise NotImplementedError

    def _model(self) -> dict:
        """Return the model for tokenizer.json."""
        raise NotImplementedError


def _special(token: str, segment: int) -> dict:
    return {"SpecialToken": {"id": token, "type_id": segment}}


def _text(name: str, segment: int) -> dict:
    return {"Sequence": {"id": name, "type_id": segment}}


def as_json(content: object) -> str:
    """Return indented JSON with a trailing line break."""
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
