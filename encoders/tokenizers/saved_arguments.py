"""The configuration of a tokenizer: the arguments of its constructor."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from encoder_zoo.common.wording import with_type

if TYPE_CHECKING:
    from typing_extensions import Self


class SavesArguments:
    """Mixin: saves, copies and prints a tokenizer by the arguments of its constructor.

    Each argument must be stored under its own name.
    """

    def __repr__(self) -> str:
        parameters = inspect.signature(type(self).__init__).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        settings = [
            f"{name}={value!r}"
            for name, value in self.get_config().items()
            if defaults[name] not in (inspect.Parameter.empty, value) and (value or defaults[name])
        ]
        parts = [f"{self.vocabulary_size:,} tokens", *settings]
        return f"{type(self).__name__}({', '.join(parts)})"

    def get_config(self) -> dict:
        """Return the arguments of the constructor, as plain data."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple:
        """Pickle and copy the arguments, since TensorFlow's tables cannot be pickled."""
        return type(self).from_config, (self.get_config(),)

    @classmethod
    def from_config(cls, config: dict) -> Self:
        """Build a tokenizer from the arguments of `get_config`; paths are refused.

        Raises:
            ValueError: "vocabulary is '/etc/passwd'. Expected the tokens, not a path ..."
        """
        for name in ("vocabulary", "merges"):
            if isinstance(config.get(name), str | Path):
                raise ValueError(
                    f"{name} is {with_type(config[name])}. Expected the tokens, not a path: a file "
                    "that holds a tokenizer must not say what else is read."
                )
        return cls(**config)
