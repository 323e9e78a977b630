"""What a type checker and an editor see of vitkit: its public names, and a user's file that passes."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import vitkit

ROOT = Path(vitkit.__file__).parent
TYPED = Path(__file__).parent / "typed"


PACKAGES = [path.parent for path in sorted(ROOT.rglob("__init__.pyi"))]
LINE = re.compile(r"from \.[\w.]* import (\w+) as \1")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_public_names_are_those_of_the_stub(package):
    """A name a line, in order, each of which is there."""
    text = (package / "__init__.pyi").read_text()
    lines = [line for line in text.splitlines() if line.startswith("from")]
    assert lines == sorted(lines) and all(map(LINE.fullmatch, lines))
    name = ".".join(("vitkit", *package.relative_to(ROOT).parts))
    module = import_module(name)
    assert sorted(module.__all__) == sorted(LINE.fullmatch(line)[1] for line in lines)
    assert all(hasattr(module, public) for public in module.__all__)


def test_the_users_file_has_every_public_name():
    tree = ast.parse((TYPED / "user.py").read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = {name for name in vitkit.__all__ if not inspect.ismodule(getattr(vitkit, name))}
    assert names <= used


@pytest.mark.skipif(find_spec("mypy") is None, reason="needs mypy")
def test_mypy_finds_nothing_in_the_code():
    """As pyproject.toml configures it. The first run in a checkout takes half a minute, as it reads PyTorch's
    types too; later ones begin from what it keeps in .mypy_cache."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=ROOT.parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="needs mypy")
def test_mypy_passes_a_users_file_and_finds_mistakes(tmp_path):
    """Strictly, and as in a user's project: of the options of vitkit's own code only those that leave out
    PyTorch's inside, which would take half of the time."""
    settings = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["tool"]["mypy"]
    [left_out] = settings["overrides"]
    assert left_out.pop("follow_imports") == "skip"
    sections = [f"[mypy-{module}]\nfollow_imports = skip\n" for module in left_out["module"]]
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n" + "".join(sections))
    cache = ROOT.parents[1] / ".mypy_cache" / "user"
    options = ["--config-file", config, "--strict", "--follow-imports=silent", "--cache-dir", cache]
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
