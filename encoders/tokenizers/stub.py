"""What stands in for a tokenizer where TensorFlow, which tokenizers are made of, is missing."""

from __future__ import annotations

from collections.abc import Mapping

from encoder_zoo.common.lazy import NO_TENSORFLOW
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles, as_json


class TokenizerStub:
    """Lets a task load, train on prepared ids and be saved without TensorFlow.

    Args:
        files: the tokenizer's, which are saved along as they are.
        known: {attribute of a tokenizer: value} as far as config.json says.

    Raises:
        ImportError: "Raw text is preprocessed by TensorFlow, which is not installed: ...", as soon
            as a text comes.

    Example:
        >>> tokenizer = TokenizerStub(TokenizerFiles("preset", {}), {"vocabulary_size": 9})
        >>> tokenizer.vocabulary_size
        9
        >>> tokenizer.tokenize("hello")
        Traceback (most recent call last):
        ImportError: Raw text is preprocessed by TensorFlow, which is not installed: ...
    """

    def __init__(self, files: TokenizerFiles, known: Mapping[str, object]):
        self._files = files
        vars(self).update(known)

    def to_files(self) -> dict[str, str]:
        """{file name: text}, as they were read."""
        return {
            name: as_json(content) if name.endswith(".json") else content
            for name, content in self._files.contents.items()
        }

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # what Python itself asks for
            raise AttributeError(name)
        raise ImportError(NO_TENSORFLOW)
