"""Names of methods in other libraries."""

from typing import NoReturn


class ForeignMethod:
    """Names the method that is meant where another library has another name for it.

    As an attribute of a class, it raises an AttributeError: `hasattr` is False.

    Args:
        meant: the method here, with its arguments.

    Example:
        >>> class Model:
        ...     from_pretrained = ForeignMethod("from_preset(source)")
        >>> hasattr(Model, "from_pretrained")
        False
        >>> Model.from_pretrained
        Traceback (most recent call last):
        AttributeError: Model has no 'from_pretrained'. Use Model.from_preset(source).
        >>> Model().from_pretrained
        Traceback (most recent call last):
        AttributeError: Model has no 'from_pretrained'. Use from_preset(source).
    """

    def __init__(self, meant: str):
        self._meant = meant

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        called = self._meant if instance is not None else f"{owner.__name__}.{self._meant}"
        # With its name and without the object, Python adds no suggestion of its own.
        raise AttributeError(
            f"{owner.__name__} has no {self._name!r}. Use {called}.", name=self._name
        )
