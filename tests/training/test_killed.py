"""Real processes that are killed at random moments, until one comes through: it ends with the same
bits as one that was never disturbed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import Forked

from vitkit.cli.entry import main

SETTINGS = """--device cpu --length 60 --batch 64 --save-every 7 --evaluate-every 20 --log-every 5
--optim.warmup 5 --average 0.95 --model.dropout 0.1 --model.width 48 --model.depth 2
--model.mlp 96""".split()


def words(run_dir: Path, workers: int, *settings: str) -> list[str]:
    """Those of the command that trains into a directory, or continues there."""
    command = ["train", "digits", "--workdir", str(run_dir)]
    return [*command, *SETTINGS, "--data.workers", str(workers), *settings]


def start(run_dir: Path, workers: int, *settings: str, **options) -> subprocess.Popen:
    """A process of this command, which need not import everything again."""
    command = [sys.executable, "-m", "vitkit", *words(run_dir, workers, *settings)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return Forked(command, env=environment, text=True, **options)


def weights(run_dir: Path) -> bytes:
    return (run_dir / "model" / "model.safetensors").read_bytes()


def logged_bytes(run_dir: Path) -> int:
    """How much the run has logged; -1 before it has a log."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return -1
    return path.stat().st_size


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("undisturbed")
    assert main(words(run_dir, 0)) == 0
    return weights(run_dir)


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_with_the_same_bits(undisturbed, tmp_path):
    """With processes that prepare images, and are ahead of the steps."""
    moments = random.Random(0)
    run_dir = tmp_path / "run"
    workers = 2
    kills = 2
    while kills > 0:
        # Wait until the process has imported everything and is at work, then a little longer
        before = logged_bytes(run_dir)
        process = start(run_dir, workers, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and logged_bytes(run_dir) == before:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.4))

        # If it has come to its end already, begin another run
        if process.poll() is not None:
            assert weights(run_dir) == undisturbed
            shutil.rmtree(run_dir)
            continue
        process.kill()
        process.wait()
        kills -= 1
    assert main(words(run_dir, workers)) == 0
    assert weights(run_dir) == undisturbed


@pytest.mark.slow  # the loader waits for five seconds
@pytest.mark.skipif(sys.platform != "linux", reason="children are listed in /proc")
def test_a_killed_worker_is_one_sentence(tmp_path):
    """Also while the main process is in the middle of a step, where PyTorch would raise."""
    settings = ["--length", "100000", "--data.keep-decoded", "0"]
    process = start(tmp_path, 2, *settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while logged_bytes(tmp_path) < 1000:
        time.sleep(0.02)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(workers[0]), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    (sentence,) = errors.splitlines()
    assert "a process that prepares images was killed" in sentence
    assert "fewer --workers (of a run: --data.workers) than 2" in sentence


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_schedulers_signal_saves_and_has_its_own_exit_status(tmp_path, number):
    """SLURM sends two in a moment, to every process; a small run has saved itself before the second."""
    options = {"stdout": subprocess.PIPE, "start_new_session": True}
    process = start(tmp_path, 1, "--length", "100000", **options)
    while logged_bytes(tmp_path) < 100:
        time.sleep(0.02)
    while process.poll() is None:
        os.killpg(process.pid, number)
        time.sleep(0.01)
    assert process.returncode == 75
    output = process.stdout.read()
    assert "interrupted at step" in output and "the same command continues" in output
    assert list((tmp_path / "checkpoints").glob("step-*"))
    process.stdout.close()
