"""`.ci/constraints.txt`: it has the packages of the extra `test`, in versions that are allowed."""

import importlib.metadata
import importlib.util
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from paths import ROOT

FILE = ROOT / ".ci" / "constraints.txt"
LINE = re.compile(r"([a-z0-9-]+)==([\w.]+)")
LINES = FILE.read_text("utf-8").splitlines()[1:]
VERSIONS = dict(LINE.fullmatch(line).groups() for line in LINES)


@pytest.fixture(scope="module")
def constraints():
    spec = importlib.util.spec_from_file_location("constraints", FILE.with_suffix(".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_requirements(project: dict, extra: str) -> list[Requirement]:
    """Return the requirements of an extra in pyproject.toml and of the extras that it names."""
    found = []
    for text in project["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            for inner in requirement.extras:
                found += read_requirements(project, inner)
        else:
            found.append(requirement)
    return found


def test_every_requirement_of_the_tests_has_a_version_that_is_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    requirements = [*map(Requirement, project["dependencies"])]
    requirements += read_requirements(project, "test")
    assert len(requirements) > 30
    for requirement in requirements:
        assert Version(VERSIONS[canonicalize_name(requirement.name)]) in requirement.specifier


def test_what_the_packages_require_has_a_line_too(constraints):
    """As far as this environment has the versions of the file."""
    same = [name for name, version in VERSIONS.items() if is_installed(name, version)]
    names = {canonicalize_name(r.name) for n in same for r in constraints.find_requirements(n)}
    assert names <= {*VERSIONS}


def is_installed(name: str, version: str) -> bool:
    try:
        return Version(importlib.metadata.version(name)).public == version
    except importlib.metadata.PackageNotFoundError:
        return False


def test_lines_are_sorted_and_name_no_place():
    assert [*VERSIONS] == sorted(VERSIONS) and len(VERSIONS) == len(LINES)
