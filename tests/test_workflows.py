"""Workflows of a forge: they run what pyproject.toml and the Makefile have."""

import errno
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement

from vitkit.system.machine import pick_device, pick_precision
from vitkit.training import Occupied, locked

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github/workflows"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def jobs_of(name: str) -> dict:
    """The jobs of a workflow."""
    return yaml.safe_load((WORKFLOWS / name).read_text())["jobs"]


def commands_in(job: dict) -> list[str]:
    """The lines that a job runs."""
    steps = [step["run"] for step in job["steps"] if "run" in step]
    return [line for step in steps for line in step.splitlines()]


def test_the_oldest_versions_are_those_that_the_project_allows():
    """uv takes the lower bound of each requirement, or the first version ever of one without."""
    job = jobs_of("tests.yml")["oldest"]
    [uv] = [step["with"] for step in job["steps"] if "setup-uv" in step.get("uses", "")]
    assert PROJECT["requires-python"] == f">={uv['python-version']}"
    commands = commands_in(job)
    assert "uv pip install --resolution lowest-direct --editable '.[dev]'" in commands
    assert any(line.startswith("python -m pytest ") for line in commands)

    extras = PROJECT["optional-dependencies"].values()
    for line in chain(PROJECT["dependencies"], *extras):
        requirement = Requirement(line)
        bounds = {specifier.operator for specifier in requirement.specifier}
        assert ">=" in bounds or requirement.name == PROJECT["name"], requirement


def test_every_system_runs_the_suite():
    cells = jobs_of("tests.yml")["suite"]["strategy"]["matrix"]["include"]
    assert {cell["system"].split("-")[0] for cell in cells} == {"ubuntu", "macos", "windows"}


def test_the_tests_that_run_without_vnni_are_there():
    text = "\n".join(commands_in(jobs_of("tests.yml")["without-vnni"]))
    file = re.search(r"tests/[\w/]+\.py", text).group()
    assert "qemu-x86_64 -cpu Haswell" in text and '"-k", "int8"' in text
    assert len(re.findall(r"def test_\w*int8", (ROOT / file).read_text())) >= 3


@pytest.mark.parametrize("workflow", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_make_has_what_workflows_make_and_actions_are_pinned(workflow):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in jobs_of(workflow.name).values():
        for line in commands_in(job):
            if line.startswith("make "):
                assert line.removeprefix("make ") in targets
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])


# What the systems there differ in


def test_a_mac_computes_on_its_gpu_in_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device = pick_device("auto")
    assert device.type == "mps"
    assert pick_device("cpu").type == "cpu"
    assert pick_precision("auto", device).precision == "float32"
    assert pick_precision("bfloat16", device).precision == "bfloat16"
    with pytest.raises(ValueError, match=r"no device 'cuda' on this machine; there is mps, cpu"):
        pick_device("cuda")


def test_windows_locks_a_run_too(monkeypatch, tmp_path):
    """Windows has no fcntl; its msvcrt is imitated here, as two processes see it."""
    held = set()

    class Msvcrt:
        LK_NBLCK = 2

        @staticmethod
        def locking(handle: int, mode: int, size: int) -> None:
            if held:
                raise PermissionError(errno.EACCES, "Permission denied")
            held.add(handle)

    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setitem(sys.modules, "msvcrt", Msvcrt)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path / "run"):
        assert (tmp_path / "run" / "LOCK").exists() and len(held) == 1
        with (
            pytest.raises(Occupied, match="another process is training in"),
            locked(tmp_path / "run"),
        ):
            pass


# The site


def test_every_page_is_in_the_site():
    """Zensical refuses a page that is not there, and says nothing of one that is not named."""

    def pages(entries: list) -> list[str]:
        found = []
        for entry in entries:
            if isinstance(entry, dict):
                for value in entry.values():
                    found += [value] if isinstance(value, str) else pages(value)
            else:
                found.append(entry)
        return found

    named = pages(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    assert len(named) == len(set(named))
    written = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert written <= set(named)
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "docs").glob("*.ipynb")}
    assert notebooks <= set(named)
