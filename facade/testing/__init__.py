"""Checks registered families and tasks, as scikit-learn's `check_estimator` does estimators.

They check the classes that `encoder_zoo.register_family` and `encoder_zoo.register_task` register:
training on raw text, saving and loading, and outputs that do not depend on the batching. A failure
is an AssertionError that names the check.

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
    """Check a registered family: its record and its backbone.

    Args:
        family: the record, such as `MyBackbone.family`.

    Raises:
        AssertionError: If a test fails. The message names the family, the test and the difference.
    """
    _run(family_checks(family))


def check_task(task: type[Task], families: Iterable[Family] | None = None) -> None:
    """Check a registered task.

    Args:
        task: the class.
        families: of the backbones; None for the first registered family that the task supports.

    Raises:
        AssertionError: If a test fails. The message names the task, the family, the test and the
            difference.
    """
    _run(task_checks(task, families))


def family_checks(family: Family) -> Checks:
    """Yield (name, function) of every check of a family."""
    for check in family_conformance.CHECKS:
        yield _named(f"{family.name}: {_words(check)}", check, family)


def task_checks(task: type[Task], families: Iterable[Family] | None = None) -> Checks:
    """Yield (name, function) of every check of a task."""
    if families is None:
        families = [next(family for family in all_families() if task.supports(family))]
    for family in families:
        for check in task_conformance.CHECKS:
            yield _named(f"{task.__name__} of {family.name}: {_words(check)}", check, task, family)


def _words(check: Callable) -> str:
    return check.__name__.replace("_", " ")


def _named(name: str, check: Callable, *arguments: object) -> tuple[str, Callable[[], None]]:
    """Return (name, check with its arguments), whose errors are AssertionErrors with the name."""

    def run() -> None:
        try:
            check(*arguments)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error

    return name, run


def _run(checks: Checks) -> None:
    for _, check in checks:
        check()
