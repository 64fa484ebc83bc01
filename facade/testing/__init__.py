"""Conformance checks for custom families and tasks, similar to `check_estimator` in scikit-learn.

The checks can be used for classes registered with `encoder_zoo.register_family` or
`encoder_zoo.register_task`. They include training on raw text, saving and loading, and the effect
of batching on outputs. If a check fails, an AssertionError with the name of the check will be
raised.

Example:
    >>> import encoder_zoo as ez
    >>> name, check = next(ez.testing.family_checks(ez.BertBackbone.family))
    >>> name
    'bert: family is registered'
    >>> check()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from encoder_zoo.encoders import list_families
from encoder_zoo.encoders.family import Family
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.testing import family_conformance, task_conformance

__all__ = ["check_family", "check_task", "family_checks", "task_checks"]
Checks = Iterator[tuple[str, Callable[[], None]]]


def check_family(family: Family) -> None:
    """Run all checks for a registered family.

    Args:
        family: The `Family` to check, for example `MyBackbone.family`.

    Raises:
        AssertionError: If a check fails. The message contains the names of the family and the
            check, and the difference.
    """
    _run_checks(family_checks(family))


def check_task(task: type[Task], families: Iterable[Family] | None = None) -> None:
    """Run all checks for a registered task.

    Args:
        task: The task class to check.
        families: Optional iterable of families to use for backbones. If None, the first registered
            family that the task supports is used.

    Raises:
        AssertionError: If a check fails. The message contains the names of the task, the family and
            the check, and the difference.
    """
    _run_checks(task_checks(task, families))


def family_checks(family: Family) -> Checks:
    """Yield the name and the function of each check for a family.

    Args:
        family: Family, such as `MyBackbone.family`.
    """
    for check in family_conformance.FAMILY_CHECKS:
        yield _make_named_check(f"{family.name}: {_format_words(check)}", check, family)


def task_checks(task: type[Task], families: Iterable[Family] | None = None) -> Checks:
    """Yield the name and the function of each check for a task.

    Args:
        task: Task class.
        families: Optional iterable of families to use for backbones. If None, the first registered
            family that the task supports is used.
    """
    if families is None:
        families = [next(family for family in list_families() if task.supports(family))]
    for family in families:
        for check in task_conformance.TASK_CHECKS:
            yield _make_named_check(
                f"{task.__name__} of {family.name}: {_format_words(check)}", check, task, family
            )


def _format_words(check: Callable) -> str:
    return check.__name__.removeprefix("check_").replace("_", " ")


def _make_named_check(
    name: str, check: Callable, *arguments: object
) -> tuple[str, Callable[[], None]]:
    """Return the name of a check, and a function to run the check.

    All errors are converted to an AssertionError with the name of the check.
    """

    def run() -> None:
        try:
            check(*arguments)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error

    return name, run


def _run_checks(checks: Checks) -> None:
    for _, check in checks:
        check()
