"""What README and docs say: links lead somewhere, commands are commands, and those that need nothing
from outside are run."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from vitkit import cli
from vitkit.commands import COMMANDS, Command
from vitkit.models import create, vit

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def commands_in(page: Path) -> list[str]:
    """The lines of code blocks that begin with `vitkit`, continued ones joined, without comments and
    what is explained beside them."""
    lines = page.read_text().replace("\\\n", " ").splitlines()
    found = []
    for line in lines:
        code = line.strip().removeprefix("$ ")
        if code.startswith("vitkit ") and (line.startswith("    ") or _fenced(page, code)):
            code = re.split(r"\s+#\s|\s{3,}", code)[0]
            found.append(code)
    return list(dict.fromkeys(found))


def _fenced(page: Path, code: str) -> bool:
    blocks = re.findall(r"```\w*\n(.*?)```", page.read_text().replace("\\\n", " "), re.DOTALL)
    return any(code in block for block in blocks)


DOCUMENTED = [(page.name, command) for page in PAGES for command in commands_in(page)]


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """Stand-ins for what the pages only name: photographs, a model, a folder to write to."""
    from pictures import make_photographs

    from vitkit.data import Preprocessing
    from vitkit.weights import Classifier, save

    folder = tmp_path_factory.mktemp("docs")
    config = vit("mu/16", image=(32, 32), classes=2)
    classifier = Classifier(create(config, seed=0), Preprocessing(size=(32, 32)), ("red", "blue"))
    save(classifier, folder / "model")
    make_photographs(folder)
    return folder


def made_concrete(command: str, outside: Path) -> list[str]:
    """The words of a documented command with something real for its placeholders."""
    model, photos = str(outside / "model"), str(outside / "photos")
    picture = str(next((outside / "photos" / "red").iterdir()))
    words = []
    for word in shlex.split(command)[1:]:
        if word in ("MODEL", "ONE", "TWO", "OTHER", "DIRECTORY") or re.match(
            r"(runs/|google/|imagenet21k|you/|timm/)", word
        ):
            word = model
        elif word in ("DATA", "PATH", "imagenet-val/", "photos/", "more-photos/"):
            word = photos
        elif word in ("IMAGE...", "IMAGE", "holiday.jpg"):
            word = picture
        elif word == "RECIPE":
            word = "cifar10"
        elif word == "FORMAT":
            word = "native"
        words.append(word)
    return words


@pytest.mark.parametrize(("page", "command"), DOCUMENTED, ids=lambda text: text)
def test_every_command_is_one_with_these_settings(page, command, outside, monkeypatch, capsys):
    """Read by the real command line, up to the point where it would begin to work."""
    kinds = {command.name: command.load_settings() for command in COMMANDS}
    monkeypatch.setattr(Command, "load_settings", lambda self: kinds[self.name])
    monkeypatch.setattr(Command, "load_action", lambda self: lambda settings: 0)
    try:
        status = cli.main(made_concrete(command, outside))
    except SystemExit as leaving:  # --help, or what tyro refuses
        status = leaving.code
    assert status == 0 or command == "vitkit train", capsys.readouterr().err


def test_the_readme_s_python_runs(outside, tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits").symlink_to(outside / "model")
    (tmp_path / "holiday.jpg").write_bytes((outside / "photos" / "red" / "0.jpg").read_bytes())
    monkeypatch.chdir(tmp_path)
    names = {"images": torch.randn(1, 3, 256, 192)}
    exec(blocks[0], names)
    assert capsys.readouterr().out.split()[0] in ("red", "blue")
    assert names["record"].attention[3].shape == (1, 12, 193, 193)
