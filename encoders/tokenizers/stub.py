"""A stub for tokenizers without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping

from encoder_zoo.common.lazy import NO_TENSORFLOW
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.writing import as_json


class TokenizerStub:
    """Replaces a tokenizer, so that tasks load, train on prepared ids and save without TensorFlow.

    Args:
        files: of the tokenizer, which are saved unchanged.
        known: {attribute of a tokenizer: value} from config.json.

    Raises:
        ImportError: "Raw text is preprocessed by TensorFlow, which is not installed: ...", for
            every other attribute.

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
        """Return {file name: text} as they were read."""
        return {
            name: as_json(content) if name.endswith(".json") else content
            for name, content in self._files.contents.items()
        }

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # looked up by Python itself
            raise AttributeError(name)
        raise ImportError(NO_TENSORFLOW)
