"""Which process of a run speaks, asked without importing PyTorch."""

import sys


def is_first() -> bool:
    """Whether this is the process that prints and writes: rank 0 of its run, or of the one that has just
    ended, or a process that runs alone. One that never joined others need not import what joins them."""
    ranks = sys.modules.get("vitkit.system.processes.ranks")
    return ranks is None or ranks.was_rank_0()
