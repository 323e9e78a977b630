"""How far measured values are from their bounds: the functions that assert and record it, and the table."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import margins
import numpy as np
import pytest
from margins import PROPERTY, at_least, at_most, rows_of


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """What the functions record, in a list of its own."""
    rows = []
    monkeypatch.setattr(margins, "_measured", rows)
    return rows


def test_a_value_within_its_bound_is_recorded(measured):
    at_most(3, 4)
    at_most(np.array([1.0, 2.0]), 4, why="seeded")
    at_least(0.95, 0.9)
    at_least([48, 50], 40, best=50)
    assert [row[:2] for row in measured] == [(3, 4), (2, 4), (0.95, 0.9), (48, 40)]
    assert [row[2] for row in measured] == pytest.approx([0.75, 0.5, 0.5, 0.2])
    assert [row[3] for row in measured] == ["", "seeded", "", ""]


def test_a_bound_itself_is_allowed(measured):
    at_most(4, 4)
    at_least(0.9, 0.9)
    assert [row[2] for row in measured] == [1, 1]


def test_a_value_beyond_its_bound_fails():
    with pytest.raises(AssertionError, match="^4.5 is larger than 4"):
        at_most([1, 4.5], 4)
    with pytest.raises(AssertionError, match="^0.85 is smaller than 0.9"):
        at_least([0.85, 1], 0.9)
    for function in (at_most, at_least):
        with pytest.raises(AssertionError, match="^nan is "):
            function([0.95, np.nan], 0.9)


def test_arrays_are_measured_where_they_use_most(measured):
    margins._measure([1.0, 2.02, 30.0], [1.0, 2.0, 30.2], rtol=0.01, atol=0.01)
    ((value, bound, used, why),) = measured
    assert (value, bound, used) == pytest.approx((0.02, 0.03, 2 / 3))
    assert why == ""


def test_what_has_no_tolerance_is_not_measured(measured):
    margins._measure([1.0, 2.0], [1.0, 2.0], rtol=0, atol=0)
    margins._measure([1.0, 2.0], [1.0], rtol=0.1, atol=0.1)
    margins._measure([np.nan], [np.nan], rtol=0, atol=0.1)
    assert not measured


def report(test, *rows):
    """As pytest hands it on: the rows of a test, among other properties."""
    properties = [("another", "property"), *((PROPERTY, list(row)) for row in rows)]
    return SimpleNamespace(nodeid=test, user_properties=properties)


def test_of_a_test_the_closest_row_is_kept_and_the_closest_with_a_reason():
    first = report(
        "a", (1, 2, 0.5, ""), (9, 10, 0.9, ""), (99, 100, 0.99, "seeded"), (3, 10, 0.3, "exact")
    )
    rows = rows_of([report("nothing"), first, report("b", (95, 100, 0.95, ""))])
    assert rows == [
        (0.99, 99, 100, "a", "seeded"),
        (0.95, 95, 100, "b", ""),
        (0.9, 9, 10, "a", ""),
    ]


FLAG = "CLOSE: give a reason, or a wider bound"
CONFTEST = "from margins import pytest_runtest_makereport, pytest_terminal_summary\n"
TESTS = """
import pytest
from margins import at_least, at_most

pytestmark = pytest.mark.slow

def test_close():
    at_most(95, 100)
    at_most(10, 100)

def test_close_for_a_reason():
    at_least(46, 45, best=100, why="seeded")

def test_far():
    at_most(1, 4)

def test_failing():
    at_most(5, 4)
"""


def test_a_run_of_slow_tests_ends_with_the_table(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    words = ["-m", "slow", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "test_some.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take longer than the tests
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    table = ended.stdout.partition("the closest first")[2].splitlines()[1:5]
    assert [line.split(maxsplit=3) for line in table] == [
        ["used", "value", "bound", "test"],
        ["98%", "46", "45", "test_some.py::test_close_for_a_reason  (seeded)"],
        ["95%", "95", "100", f"test_some.py::test_close  ({FLAG})"],
        ["25%", "1", "4", "test_some.py::test_far"],
    ]
    assert ended.stdout.count("test_some.py::test_failing") == 1  # as a failure, without a row


def test_a_run_of_other_tests_has_no_table():
    option = SimpleNamespace(markexpr="not slow")
    margins.pytest_terminal_summary(None, SimpleNamespace(option=option))
