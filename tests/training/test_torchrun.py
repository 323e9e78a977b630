"""Runs under the real torchrun: ranks that are killed, stopped or hang in the middle of a step, and
two agents as two machines.

Agents and ranks are forked, so that none of them imports PyTorch again; in the first test they are new
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
from runs import assert_nearly_same_weights, losses

from vitkit.cli.entry import main
from vitkit.training.record.metrics import read_metrics
from vitkit.training.state.checkpoints import checkpoints

pytestmark = pytest.mark.slow
SETTINGS = """--device cpu --length 40 --batch 48 --micro-batch 12 --save-every 5
--evaluate-every 20 --log-every 1 --optim.name sgd --optim.lr 0.3 --optim.warmup 5
--optim.weight-decay 0.001 --average 0.9 --model.dropout 0.1 --model.width 24 --model.depth 2
--model.mlp 48 --model.heads 2 --data.workers 1""".split()


def words(run_dir, *settings):
    """Those of the command that trains into a directory, or continues there."""
    return ["train", "digits", "--workdir", str(run_dir), *SETTINGS, *settings]


def agent(run_dir, *settings, ranks=2, options=("--standalone",), start=Forked):
    """A torchrun of so many ranks, in a process group of its own."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command = [*torchrun, *options, "-m", "vitkit", *words(run_dir, *settings)]
    return start(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def finish(process, limit=180):
    """Its exit code and all that it said; nothing of it stays behind."""
    try:
        output, _ = process.communicate(timeout=limit)
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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """By one process, without torchrun."""
    run_dir = tmp_path_factory.mktemp("undisturbed")
    assert main(words(run_dir)) == 0
    return run_dir


def test_a_killed_rank_is_started_again_and_the_run_ends_as_if_nothing_happened(
    undisturbed, tmp_path
):
    options = ("--standalone", "--max-restarts", "3")
    process = agent(tmp_path, options=options, start=subprocess.Popen)
    until(process, tmp_path, 7)
    os.kill(workers(process.pid)[-1], signal.SIGKILL)
    code, output = finish(process)
    assert code == 0, output
    assert output.count("continuing at step") == 1 and "lost contact with another one" in output
    assert_nearly_same_weights(tmp_path, undisturbed)


USR1_TOO = ("--standalone", "--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1")


@pytest.mark.parametrize(
    ("whom", "ranks"),
    [("the agent", 4), ("the agent, by SIGUSR1", 2), ("one rank", 2), ("everyone twice", 2)],
)
def test_preemption_saves_on_all_ranks_and_any_number_continues(
    undisturbed, tmp_path, whom, ranks, capsys
):
    process = agent(tmp_path, ranks=ranks, options=USR1_TOO)
    until(process, tmp_path, 7)
    if whom == "the agent":
        process.terminate()
    elif whom == "the agent, by SIGUSR1":
        process.send_signal(signal.SIGUSR1)
    elif whom == "one rank":
        os.kill(workers(process.pid)[1], signal.SIGTERM)
    else:
        for pid in (*workers(process.pid), process.pid, *workers(process.pid)):
            os.kill(pid, signal.SIGTERM)
    code, output = finish(process)
    assert code != 0 and output.count("the same command continues") == 1, output
    assert "Traceback" not in output.partition("torch/distributed/elastic")[0]
    if whom == "one rank":  # the agent reports its workers' own status
        assert "exitcode  : 75" in output
    assert len(list(checkpoints(tmp_path)[0].glob("*.safetensors"))) == ranks
    assert main(words(tmp_path)) == 0  # one process, without torchrun
    assert "continuing at step" in "".join(capsys.readouterr())
    assert_nearly_same_weights(tmp_path, undisturbed)


def test_a_rank_that_hangs_is_named(tmp_path):
    process = agent(tmp_path, "--patience", "6")
    until(process, tmp_path, 7)
    waiting, stopped = workers(process.pid)
    os.kill(stopped, signal.SIGSTOP)
    latest = time.monotonic() + 60
    while waiting in workers(process.pid) and time.monotonic() < latest:
        time.sleep(0.02)
    os.kill(stopped, signal.SIGKILL)  # the agent would wait for it for half a minute
    code, output = finish(process)
    assert code != 0
    assert "vitkit: rank 1 did not answer for 6 s while the others waited" in output, output


def test_a_second_run_in_the_same_directory_is_refused_once(tmp_path):
    first = agent(tmp_path, "--length", "100000")
    until(first, tmp_path, 3)
    code, output = finish(agent(tmp_path, "--length", "100000"))
    assert first.poll() is None
    assert code != 0 and output.count(f"vitkit: another process is training in {tmp_path}") == 1, (
        output
    )
    for pid in (*workers(first.pid), first.pid):
        os.kill(pid, signal.SIGKILL)
    first.communicate()


def test_two_machines_are_one_run(undisturbed, tmp_path):
    """Two agents on the loopback, which meet by the c10d rendezvous, as two hosts do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = (
        f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id vitkit".split()
    )
    meet += ["--local-addr", "127.0.0.1"]
    here, there = (agent(tmp_path, ranks=1, options=meet) for _ in range(2))
    code, output = finish(here)
    code2, output2 = finish(there)
    assert (code, code2) == (0, 0), output + output2
    assert len(list(checkpoints(tmp_path)[0].glob("*.safetensors"))) == 2
    assert ("test/top1" in output) != ("test/top1" in output2)  # one speaks
    assert_nearly_same_weights(tmp_path, undisturbed)


def test_compiled_blocks_in_bfloat16(tmp_path):
    settings = (
        "--length 6 --evaluate-every 6 --compile --precision bfloat16 --recompute --model.depth 1"
    )
    code, output = finish(agent(tmp_path, *settings.split()), 400)
    assert code == 0, output
    assert len(losses(tmp_path)) == 6
    at_most(losses(tmp_path).numpy(), 3)
