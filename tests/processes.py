"""Several processes that are one run, as torchrun's are; forked, and so started at once."""

import multiprocessing
import os
import socket

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
