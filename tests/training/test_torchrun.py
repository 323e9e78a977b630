"""Runs under the real torchrun: ranks that are killed, stopped or hang in the middle of a step, and
two agents as two machines.

Agents and ranks are forked, so that none of them imports PyTorch again; those of tests/test_device.py are new
processes, as a user's are.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from margins import at_most
from processes import Forked
from runs import assert_nearly_same_weights, capture_compiled, losses

from vitkit.cli.entry import main
from vitkit.training import locked
from vitkit.training.record.metrics import read_metrics
from vitkit.training.state.checkpoints import checkpoints

pytestmark = pytest.mark.slow
SETTINGS = """--device cpu --length 40 --batch 48 --micro-batch 24 --save-every 5
--evaluate-every 40 --log-every 1 --optim.name sgd --optim.lr 0.3 --optim.warmup 5
--optim.weight-decay 0.001 --average 0.9 --model.dropout 0.1 --model.width 24 --model.depth 2
--model.mlp 48 --model.heads 2 --data.workers 1""".split()


def words(run_dir, *settings):
    """Those of the command that trains into a directory, or continues there."""
    return ["train", "digits", "--workdir", str(run_dir), *SETTINGS, *settings]


def agent(run_dir, *settings, ranks=2, options=("--standalone",)):
    """A torchrun of so many ranks, in a process group of its own."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command = [*torchrun, *options, "-m", "vitkit", *words(run_dir, *settings)]
    return Forked(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def finish(process):
    """Its exit code and all that it said; nothing of it stays behind."""
    try:
        output, _ = process.communicate(timeout=180)
        return process.returncode, output
    finally:
        for pid in [process.pid, *workers(process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def workers(pid):
    """Ranks that an agent has started, in order."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return sorted(map(int, children.read_text().split())) if children.exists() else []


def until(process, run_dir, step):
    """Wait for a training step."""
    while process.poll() is None:
        if any(
            line["step"] >= step and "loss" in line
            for line in read_metrics(run_dir / "metrics.jsonl")
        ):
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate()[0])


@pytest.fixture(scope="module", autouse=True)
def imported():
    """What agents and ranks import, once for all."""
    import torch.distributed.elastic.agent.server.local_elastic_agent
    import torch.distributed.fsdp
    import torch.distributed.launcher.api
    import torch.distributed.tensor  # noqa: F401


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """By one process, without torchrun."""
    run_dir = tmp_path_factory.mktemp("undisturbed")
    assert main(words(run_dir)) == 0
    return run_dir


def test_ranks_that_are_killed_or_hang_are_started_again_and_nothing_is_lost(undisturbed, tmp_path):
    process = agent(tmp_path, "--patience", "6", options=("--standalone", "--max-restarts", "3"))
    until(process, tmp_path, 7)
    os.kill(workers(process.pid)[-1], signal.SIGKILL)

    # One that hangs is named by another, which ends, and so does the agent's patience with both
    until(process, tmp_path, 12)
    waiting, stopped = workers(process.pid)
    os.kill(stopped, signal.SIGSTOP)
    latest = time.monotonic() + 60
    while waiting in workers(process.pid) and time.monotonic() < latest:
        time.sleep(0.02)
    os.kill(stopped, signal.SIGKILL)  # the agent would wait for it for half a minute
    code, output = finish(process)
    assert code == 0, output
    assert output.count("continuing at step") == 2 and "lost contact with another one" in output
    assert "vitkit: rank 1 did not answer for 6 s while the others waited" in output, output
    assert_nearly_same_weights(tmp_path, undisturbed)


USR1_TOO = ("--standalone", "--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1")


def test_preemption_saves_on_all_ranks_and_two_machines_continue(undisturbed, tmp_path):
    for step, whom in ((5, "everyone twice"), (10, "the agent, by SIGUSR1"), (15, "one rank")):
        process = agent(tmp_path, options=USR1_TOO)
        until(process, tmp_path, step)
        ranks = workers(process.pid)
        if whom == "everyone twice":
            for pid in (*ranks, process.pid, *ranks):
                os.kill(pid, signal.SIGTERM)
        elif whom == "the agent, by SIGUSR1":
            process.send_signal(signal.SIGUSR1)
        else:
            os.kill(ranks[1], signal.SIGTERM)
        code, output = finish(process)
        assert code != 0 and output.count("the same command continues") == 1, output
        assert "Traceback" not in output.partition("torch/distributed/elastic")[0]
        assert ("continuing at step" in output) == (step > 5)
        if whom == "one rank":  # the agent reports its workers' own status
            assert "exitcode  : 75" in output
        assert len(list(checkpoints(tmp_path)[0].glob("*.safetensors"))) == 2

    # Two agents on the loopback, which meet by the c10d rendezvous, as two hosts do
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    meet += ["--rdzv-id", "vitkit", "--local-addr", "127.0.0.1"]
    here, there = (agent(tmp_path, ranks=1, options=meet) for _ in range(2))
    code, output = finish(here)
    code2, output2 = finish(there)
    assert (code, code2) == (0, 0), output + output2
    assert len(list(checkpoints(tmp_path)[0].glob("*.safetensors"))) == 2
    for said in ("continuing at step", "test/top1"):
        assert (said in output) != (said in output2)  # one speaks
    assert_nearly_same_weights(tmp_path, undisturbed)


def test_a_second_run_in_the_same_directory_is_refused_once(tmp_path):
    with locked(tmp_path):
        code, output = finish(agent(tmp_path))
    assert code != 0
    assert output.count(f"vitkit: another process is training in {tmp_path}") == 1, output


def test_compiled_blocks_in_bfloat16(tmp_path, monkeypatch):
    capture_compiled(monkeypatch)  # here, and so in the ranks that are forked
    settings = "--length 6 --evaluate-every 6 --compile --precision bfloat16 --recompute"
    code, output = finish(agent(tmp_path, "--model.depth", "1", *settings.split()))
    assert code == 0, output
    assert len(losses(tmp_path)) == 6
    at_most(losses(tmp_path).numpy(), 3)
