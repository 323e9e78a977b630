"""Several processes that are one run, as torchrun's are; forked, and so started at once."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

from vitkit.training import Interrupted

INTERRUPTED = 75  # exit code of a process that was asked to stop


def together(world_size, act, *args):
    """Run act(*args) in several forked processes that know of each other, as torchrun's do; returns
    their exit codes."""
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401 once here, rather than in every child

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def child(rank):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        try:
            act(*args)
        except Interrupted:
            os._exit(INTERRUPTED)
        os._exit(0)

    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=child, args=(rank,)) for rank in range(world_size)]
    for process in children:
        process.start()
    for process in children:
        process.join(120)
        process.kill()
    return [process.exitcode for process in children]


class Forked:
    """A function in a forked process and a session of its own, used as a subprocess.Popen is. What it and
    its children write, to stdout or stderr, is its output."""

    def __init__(self, act, *args):
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed by communicate
        self.returncode = None
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            os.setsid()
            for stream in (1, 2):
                os.dup2(self.output.fileno(), stream)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            warnings.resetwarnings()  # they are errors of the tests' own process
            act(*args)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def poll(self):
        """The exit code; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout=60):
        """Wait for the end, once: what was written, and None, as Popen's standard error is not apart."""
        latest = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > latest:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.02)
        with self.output as output:
            output.seek(0)
            return output.read(), None
