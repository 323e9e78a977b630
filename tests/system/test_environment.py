"""Environment variables: one table, which the code, `vitkit doctor` and the docs share."""

import re
from pathlib import Path

import pytest

import vitkit
from vitkit.system.environment import INTERNAL, VARIABLES, unknown_variables, variables_set

SOURCE = sorted(Path(vitkit.__file__).parent.rglob("*.py"))
DOCS = Path(__file__).parents[2] / "docs"
OWN = re.compile(r"\bVITKIT_[A-Z][A-Z_]*[A-Z]\b")
READ = re.compile(r'environ(?:\.get|\.setdefault)?[\[(]"(\w+)"')
NAMES = [variable.name for variable in VARIABLES]


def test_every_variable_that_the_code_reads_is_in_the_table():
    code = "\n".join(file.read_text() for file in SOURCE)
    assert "OMP_NUM_THREADS" in READ.findall(code)
    assert not {*OWN.findall(code), *READ.findall(code)} - {*NAMES, *INTERNAL}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_docs_name_no_variable_that_is_not_there(page):
    assert not set(OWN.findall(page.read_text())) - set(NAMES)


def test_the_docs_have_the_same_table():
    rows = [f"| `{name}` | {meaning} | {default} |" for name, meaning, default, _ in VARIABLES]
    assert "\n".join(rows) in (DOCS / "command-line.md").read_text()


def test_what_is_set_is_said_but_no_secret():
    environment = {"VITKIT_CACHE": "/big", "VITKIT_TOKEN": "abc", "HF_TOKEN": "", "HOME": "/root"}
    assert variables_set(environment) == {
        "VITKIT_CACHE": "/big: folder for downloads, indices and measurements",
        "VITKIT_TOKEN": "set: token that clients of vitkit serve must send",
    }


def test_a_misspelt_variable_is_answered():
    sentences = unknown_variables({"VITKIT_CASHE": "/big", "VITKIT_CACHE": "/big", "OTHER": "1"})
    assert sentences == {"VITKIT_CASHE": "vitkit reads no VITKIT_CASHE; did you mean VITKIT_CACHE?"}
    assert (
        "it reads VITKIT_CACHE, VITKIT_MAX_PIXELS"
        in unknown_variables({"VITKIT_Q": ""})["VITKIT_Q"]
    )
