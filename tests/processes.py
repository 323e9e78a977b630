"""Several processes that are one run, as torchrun's are; forked, and so started at once."""

import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

from vitkit.system.errors import Interrupted
from vitkit.system.storage.locks import try_lock

INTERRUPTED = 75  # exit code of a process that was asked to stop
TORCHRUNS = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"


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


@contextmanager
def locked_elsewhere(file: Path):
    """A block during which a child of this process holds the lock of a file."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        told = b"!" if try_lock(file) is not None else b"?"
        os.write(write, told)
        signal.pause()
        os._exit(0)
    try:
        assert os.read(read, 1) == b"!"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


class Forked(subprocess.Popen):
    """`python ...` as subprocess.Popen starts it, but forked from this process: what is imported here is
    not imported again, which takes five seconds where a run of a test takes one. Its own processes are
    forked in the same way; other programs are started as ever.
    """

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others):
        words = list(map(str, args))
        if words[0] != sys.executable:
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others
            )
            return
        *_, stdin, write, read, stdout, read_errors, stderr = others[:9]
        session = others[14]
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, which the child does not have
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid:
            self._child_created = True
            self._close_pipe_fds(stdin, write, read, stdout, read_errors, stderr)
            return

        # As a new process: its own streams, directory, environment, and nobody's handlers
        for ours in (write, read, read_errors):
            if ours != -1:
                os.close(ours)
        for number, handle in ((0, stdin), (1, stdout), (2, stderr)):
            if handle != -1:
                os.dup2(handle, number)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        if cwd is not None:
            os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        if session:
            os.setsid()
        if preexec_fn is not None:
            preexec_fn()
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        warnings.resetwarnings()  # they are errors of the tests alone
        subprocess.Popen = Forked
        if TORCHRUNS in sys.modules:  # it keeps the class that was there when it was imported
            sys.modules[TORCHRUNS].Popen = Forked
        process = multiprocessing.get_context("fork").Process(target=python, args=(words[1:],))
        os._exit(process._bootstrap())


def python(words):
    """What the program `python` does with these words."""
    while words[0] == "-u":  # a stream that is not held back
        words = words[1:]
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
