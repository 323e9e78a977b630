"""docs/from-*.md: every line of vitkit's column is tried, and every setting exists."""

import itertools
import re
import shlex

import pytest
import test_docs
from test_docs import ROOT, folder, shortened, status_of  # noqa: F401

from vitkit.cli import other_tools
from vitkit.cli.table import COMMANDS, Command

PAGES = sorted((ROOT / "docs").glob("from-*.md"))
ROW = re.compile(r"^\| .* \| `([^`]+)`(?: and then `([^`]+)`)? \|$", re.MULTILINE)
FINETUNE = ("finetune", "MODEL", "photos/")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def lines_of(page) -> list[str]:
    """The right cells of a page's tables below "Commands" and "In Python"."""
    _, _, text = page.read_text().partition("## Commands")
    return ["\n".join(filter(None, cells)) for cells in ROW.findall(text)]


def commands_of(page) -> list[list[str]]:
    """The words of its commands."""
    lines = [line for line in lines_of(page) if line.startswith("vitkit ")]
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.slow
def test_their_settings_exist(folder, monkeypatch, capsys):  # noqa: F811
    settings = {command.name: command.load_function() for command in COMMANDS}
    monkeypatch.setattr(Command, "load_function", lambda self: settings[self.name])
    monkeypatch.setattr(Command, "run", lambda self, values: 0)
    assert all(len(lines_of(page)) >= 20 for page in PAGES)
    commands = dict.fromkeys(tuple(words) for page in PAGES for words in commands_of(page))
    for words in map(list, commands):
        assert status_of(words) == 0, f"{words}: {capsys.readouterr().err}"


def test_options_of_other_tools_are_understood_on_the_command_line():
    """Those in the left cells of the tables, but for a few that have no equal by one name."""
    text = "\n".join(page.read_text() for page in PAGES)
    options = set()
    for left in re.findall(r"^\| (.*?) \| .* \|$", text, re.MULTILINE):
        options |= {name.replace("_", "-") for name in re.findall(r"--([a-z][\w.-]*)", left)}
    unknown = options - other_tools.SETTINGS.keys() - other_tools.ANSWERS.keys()
    assert len(options) > 35
    assert unknown == {"aa", "amp-dtype", "bench", "model-ema", "results-format", "seed"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.slow
def test_its_python_runs(page, folder):  # noqa: F811
    names = {}
    for block in BLOCK.findall(page.read_text()):
        exec(block, names)
    lines = [line for line in lines_of(page) if not line.startswith("vitkit ")]
    assert len(lines) >= 5
    for line in lines:
        exec(line, names)


def settings_of(words: list[str]) -> set[str]:
    """The names of the settings that a command gives; those of `tune` count as one, as they exclude each
    other."""
    return {re.sub(r"^--tune\..*", "--tune", word) for word in words if word.startswith("--")}


def runs_of_all() -> tuple[list[list[str]], list[list[str]]]:
    """The commands of all pages, each once: those that fine-tune a model, and the others, without those that
    test_docs.py runs. A run has the settings of several lines, unless two of these give the same one."""
    known = [words for page in test_docs.PAGES for words in test_docs.commands_of(page)]
    runs = []
    others = []
    for words in itertools.chain.from_iterable(map(commands_of, PAGES)):
        if words[:3] != [*FINETUNE] or "--select" in words:
            if words not in (*known, *others):
                others.append(words)
            continue
        open_to_it = [run for run in runs if not settings_of(words) & settings_of(run)]
        if not open_to_it:
            runs.append([*FINETUNE])
            open_to_it = runs[-1:]
        open_to_it[0] += words[3:]
    return runs, others


@pytest.mark.slow
def test_their_commands_work(folder, capsys):  # noqa: F811
    runs, others = runs_of_all()
    assert len(runs) < 10
    for number, words in enumerate((*runs, *others)):
        if words[0] in ("train", "finetune"):
            words = [*words, "--workdir", f"runs/{number}"]  # each is a run of its own
        short = shortened(words)
        if words[:2] == ["finetune", "photos/"]:  # nothing but the folder
            short = [*words, "--minutes", "0.02"]
        assert status_of(short) == 0, f"{words}: {capsys.readouterr().err}"
