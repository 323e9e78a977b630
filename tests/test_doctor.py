"""`vitkit doctor` says what is here, and advises where something is missing."""

import json
import socket

import pytest
import torch

from vitkit.cli import main
from vitkit.data.engine import turbojpeg


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def unreachable(*where, timeout):
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", unreachable)


def findings(capsys):
    assert main(["doctor", "--json"]) == 0
    return {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}


def test_it_says_what_is_here(capsys):
    found = findings(capsys)
    assert found["PyTorch"]["value"] == torch.__version__
    assert found["dense layers on the CPU"]["value"] == "torch (as VITKIT_MATMUL says)"
    assert found["extra hf"]["value"] == "installed"


def test_it_advises_where_something_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(turbojpeg, "library", lambda: None)
    monkeypatch.setattr("vitkit.system.machine.cpus", lambda: 64)
    monkeypatch.setattr("vitkit.commands.doctor._is_installed", lambda name: name != "peft")
    found = findings(capsys)
    assert "vitkit[fast]" in found["JPEG"]["advice"]
    assert "OMP_NUM_THREADS=64" in found["CPUs"]["advice"]
    assert "files and folders" in found["Hugging Face hub"]["advice"]
    assert found["extra lora"]["value"] == "pip install 'vitkit[lora]' adds peft"

    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert "- OMP_NUM_THREADS=64 would let" in output and "next: vitkit" in output
