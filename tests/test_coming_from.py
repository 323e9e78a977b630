"""docs/from-*.md: every line of vitkit's column is tried, and every setting exists."""

import re
import shlex

import pytest
from test_docs import ONE_RUN, ROOT, SHORT, folder, shortened, status_of  # noqa: F401

from vitkit.cli import other_tools
from vitkit.cli.table import COMMANDS, Command

PAGES = sorted((ROOT / "docs").glob("from-*.md"))
ROW = re.compile(r"^\| .* \| `([^`]+)`(?: and then `([^`]+)`)? \|$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def lines_of(page) -> list[str]:
    """The right cells of a page's tables below "Commands" and "In Python"."""
    _, _, text = page.read_text().partition("## Commands")
    return ["\n".join(filter(None, cells)) for cells in ROW.findall(text)]


def commands_of(page) -> list[list[str]]:
    """The words of its commands."""
    lines = [line for line in lines_of(page) if line.startswith("vitkit ")]
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.slow
def test_its_settings_exist(page, folder, monkeypatch, capsys):  # noqa: F811
    assert len(lines_of(page)) >= 20
    settings = {command.name: command.load_function() for command in COMMANDS}
    monkeypatch.setattr(Command, "load_function", lambda self: settings[self.name])
    monkeypatch.setattr(Command, "run", lambda self, values: 0)
    for words in commands_of(page):
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


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_commands_work(page, folder, capsys):  # noqa: F811
    for number, words in enumerate(commands_of(page)):
        if words[0] in ("train", "finetune") and "--workdir" not in words:
            words = [*words, "--workdir", f"runs/{number}"]  # each is a run of its own
        short = shortened(words)
        if words[:2] == ["finetune", "photos/"]:  # nothing but the folder
            short = [*words, "--minutes", "0.02"]
        assert status_of(short) == 0, f"{words}: {capsys.readouterr().err}"
