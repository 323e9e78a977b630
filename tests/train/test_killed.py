"""Real processes, killed with SIGKILL at random moments, until one comes through: the same bits as undisturbed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = 6  # for each way of loading data
SETTINGS = [
    "--length",
    "60",
    "--batch",
    "64",
    "--save-every",
    "7",
    "--evaluate-every",
    "20",
    "--log-every",
    "5",
    "--optim.warmup",
    "5",
    "--average",
    "0.95",
    "--model.dropout",
    "0.1",
    "--model.width",
    "48",
    "--model.depth",
    "2",
    "--model.mlp",
    "96",
]


def command(workdir: Path, workers: int) -> list[str]:
    return [sys.executable, "-m", "vitkit", "train", "digits", "--workdir", str(workdir), "--device", "cpu",
            "--data.workers", str(workers), *SETTINGS]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed")
    subprocess.run(command(workdir, 0), check=True, capture_output=True)
    return (workdir / "model" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_any_moment_it_ends_with_the_same_bits(undisturbed, tmp_path, workers):
    moments, kills = random.Random(workers), 0
    while kills < KILLS:
        process = subprocess.Popen(
            command(tmp_path, workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        size = (
            (tmp_path / "metrics.jsonl").stat().st_size
            if (tmp_path / "metrics.jsonl").exists()
            else -1
        )
        while (
            process.poll() is None and _size(tmp_path) == size
        ):  # until it is past the imports and at work
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.4))
        if process.poll() is not None:  # finished before its moment came: begin another run
            assert (tmp_path / "model" / "model.safetensors").read_bytes() == undisturbed
            subprocess.run(["rm", "-rf", *map(str, tmp_path.iterdir())], check=True)
            continue
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    subprocess.run(command(tmp_path, workers), check=True, capture_output=True)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == undisturbed


def _size(workdir: Path) -> int:
    path = workdir / "metrics.jsonl"
    return path.stat().st_size if path.exists() else -1


def test_sigterm_saves_and_has_its_own_exit_status(tmp_path):
    settings = [*command(tmp_path, 1), "--length", "100000"]
    process = subprocess.Popen(settings, stdout=subprocess.PIPE, text=True, start_new_session=True)
    while _size(tmp_path) < 100:
        time.sleep(0.02)
    for _ in range(2):  # to everyone and twice, which is SLURM's way
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.05)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "interrupted at step" in said and "the same command continues" in said
    assert list((tmp_path / "checkpoints").glob("step-*"))
