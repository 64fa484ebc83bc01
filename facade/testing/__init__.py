"""Conformance checks for custom families and tasks, similar to scikit-learn's `check_estimator`.

The checks are for classes that are registered with `encoder_zoo.register_family` or
`encoder_zoo.register_task`. They cover training on raw text, saving and loading, and the
independence of outputs from batching. A failed check raises an AssertionError with its name.

Example:
    >>> import encoder_zoo as ez
    >>> name, check = next(ez.testing.family_checks(ez.BertBackbone.family))
    >>> name
    'bert: the family is registered'
    >>> check()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from encoder_zoo.encoders import all_families
from encoder_zoo.encoders.family import Family
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.testing import family_conformance, task_conformance

__all__ = ["check_family", "check_task", "family_checks", "task_checks"]
Checks = Iterator[tuple[str, Callable[[], None]]]


def check_family(family: Family) -> None:
    """Run all checks of a registered family.

    Args:
        family: Family, such as `MyBackbone.family`.

    Raises:
        AssertionError: If a check fails. The message contains the family, the name of the check
            and the difference.
    """
    _run(family_checks(family))


def check_task(task: type[Task], families: Iterable[Family] | None = None) -> None:
    """Run all checks of a registered task.

    Args:
        task: Class of the task.
        families: Iterable of the families whose backbones are used. If None, the first registered
            family that the task supports is used. Defaults to None.

    Raises:
        AssertionError: If a check fails. The message contains the task, the family, the name of
            the check and the difference.
    """
    _run(task_checks(task, families))


def family_checks(family: Family) -> Checks:
    """Yield pairs of a name and a function for every check of a family.

    Args:
        family: Family, such as `MyBackbone.family`.
    """
    for check in family_conformance.CHECKS:
        yield _named(f"{family.name}: {_words(check)}", check, family)


def task_checks(task: type[Task], families: Iterable[Family] | None = None) -> Checks:
    """Yield pairs of a name and a function for every check of a task.

    Args:
        task: Class of the task.
        families: Iterable of the families whose backbones are used. If None, the first registered
            family that the task supports is used. Defaults to None.
    """
    if families is None:
        families = [next(family for family in all_families() if task.supports(family))]
    for family in families:
        for check in task_conformance.CHECKS:
            yield _named(f"{task.__name__} of {family.name}: {_words(check)}", check, task, family)


def _words(check: Callable) -> str:
    return check.__name__.replace("_", " ")


def _named(name: str, check: Callable, *arguments: object) -> tuple[str, Callable[[], None]]:
    """Return the name of a check and a function that runs it.

    The function raises an AssertionError with the name if the check raises any error.
    """

    def run() -> None:
        try:
            check(*arguments)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error

    return name, run


def _run(checks: Checks) -> None:
    for _, check in checks:
        check()
