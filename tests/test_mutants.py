"""Which tests a change is shown to: those that execute it, or else those that are nearest to it."""

import ast

import pytest
from mutants import noticing
from mutants.changes import mutant, places
from mutants.noticing import covering

TEXT = """LIMIT = 5

def check(value, most=3):
    if value > most:
        return LIMIT
    return value

def other():
    return 1
"""


def changed(before, how):
    """The change of this kind in the line that reads so."""
    for number in range(len(places(ast.parse(TEXT)))):
        found = mutant("data/file.py", TEXT, number, seed=0)
        if (found.before, found.how) == (before, how):
            return found
    raise LookupError(before)


@pytest.fixture
def tests(monkeypatch):
    """Tests, by what they execute; another file reads LIMIT in its line 7."""
    users = {"data/file.py": {1, 5}, "cli.py": {7}}
    monkeypatch.setattr(noticing, "lines_with", lambda names: users if names else {})
    return {
        "tests/data/test_file.py::reads": noticing.Test(lines={"data/file.py": [4, 5]}),
        "tests/data/test_file.py::checks": noticing.Test(lines={"data/file.py": [4, 6]}),
        "tests/data/test_more.py::nothing": noticing.Test(),
        "tests/cli/test_cli.py::uses": noticing.Test(lines={"cli.py": [7]}),
        "tests/cli/test_cli.py::others": noticing.Test(lines={"data/file.py": [9]}),
        "tests/test_defaults.py::contract": noticing.Test(),
        "tests/test_contracts.py::other": noticing.Test(),
        "tests/models/test_models.py::far": noticing.Test(lines={"models/vit.py": [1]}),
    }


def names(groups):
    return [[name.partition("::")[2] for name in group] for group in groups]


def test_who_executes_the_line_is_asked_alone(tests):
    compared = changed("if value > most:", "comparison")
    assert names(covering(tests, compared)) == [["reads", "checks"]]
    assert len(names(covering(tests, compared, by_file=True))) > 1
    removed = changed("if value > most:", "statement")  # who was let in notices first
    assert names(covering(tests, removed)) == [["reads"]]


def test_a_constant_is_shown_to_who_reads_it_then_to_ever_more(tests):
    limit = changed("LIMIT = 5", "constant")
    assert limit.defines == ("LIMIT",)
    assert names(covering(tests, limit)) == [
        ["contract"],  # which reads all definitions
        ["reads"],  # in its own file
        ["uses"],  # in another
        ["checks", "others"],  # of its file
        ["nothing"],  # of its folder
        ["other"],  # of all packages
    ]


def test_a_default_is_shown_to_who_calls_the_function_first(tests):
    most = changed("def check(value, most=3):", "constant")
    assert most.defines == ()
    assert names(covering(tests, most))[:3] == [
        ["contract"],
        ["reads", "checks"],
        ["others"],
    ]
