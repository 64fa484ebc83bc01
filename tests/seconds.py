"""Record which tests take long, of which `conftest.py` leaves most to the slow set.

    pytest -n 2 --dist loadfile -m "not peers and not matrix" --junitxml report.xml
    python tests/seconds.py report.xml

on an idle machine writes `recorded/seconds.json` anew; tests that were not run keep their entry.
"""

import json
import pathlib
import sys
from xml.etree import ElementTree

TESTS = pathlib.Path(__file__).parent
RECORD = TESTS / "recorded" / "seconds.json"
LONG = 0.5  # seconds from which a test is recorded


def node_id(classname: str, name: str) -> str:
    """Return pytest's name of a test from that in its report.

    >>> node_id("tests.seconds.TestX", "test_y[1]")
    'tests/seconds.py::TestX::test_y[1]'
    """
    parts = classname.split(".")
    for count in range(len(parts), 0, -1):
        path = "/".join(parts[:count])
        for file in (f"{path}.py", f"{path}/__init__.py"):
            if (TESTS.parent / file).is_file():
                return "::".join([file, *parts[count:], name])
    raise ValueError(f"There is no file of {classname}.")


def record(reports: list[str]) -> None:
    seconds = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    for report in reports:
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = node_id(case.get("classname"), case.get("name"))
            seconds.pop(name, None)
            if float(case.get("time")) >= LONG:
                seconds[name] = round(float(case.get("time")), 1)
    text = json.dumps(dict(sorted(seconds.items())), indent=0)
    RECORD.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    record(sys.argv[1:])
