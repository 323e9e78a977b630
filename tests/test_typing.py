"""What a type checker and an editor see of vitkit: stubs as the code is, and a user's file that passes."""

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from stubs import ROOT, stubs

import vitkit

TYPED = Path(__file__).parent / "typed"


def test_stubs_are_as_the_code():
    written = stubs()
    for path, text in written.items():
        assert path.read_text() == text, "write them again: cd tests && python -m stubs"
    assert set(ROOT.rglob("*.pyi")) == set(written)
    assert (ROOT / "py.typed").exists()


def test_the_users_file_has_every_public_name():
    tree = ast.parse((TYPED / "user.py").read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert set(vitkit.__all__) <= used


@pytest.mark.parametrize("room", vitkit._ROOMS)
def test_a_room_shows_its_public_names_alone(room):
    door = getattr(vitkit, room)
    assert dir(door) == sorted(door.__all__)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="needs mypy")
def test_mypy_passes_a_users_file_and_finds_mistakes(tmp_path):
    """Strictly: half a minute of CPU seconds, as it reads PyTorch's types too."""
    options = ["--strict", "--follow-imports=silent", "--cache-dir", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "user.py", "wrong.py"],
        cwd=TYPED,
        env=os.environ | {"MYPYPATH": str(ROOT.parent)},
        capture_output=True,
        text=True,
    )
    found = {int(line) for line in re.findall(r"^wrong\.py:(\d+): error", done.stdout, re.M)}
    lines = (TYPED / "wrong.py").read_text().splitlines()
    mistakes = {number for number, line in enumerate(lines, 1) if "vitkit." in line}
    assert found == mistakes, done.stdout
    others = [
        line for line in done.stdout.splitlines() if not line.startswith(("wrong.py", "Found"))
    ]
    assert others == []
