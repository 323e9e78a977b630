"""The ends of a command that are no bugs: each has one sentence for people, and no traceback.

They stand by themselves so that the command line can name them without importing what raises them.
"""


class Interrupted(Exception):
    """The run was asked to stop, saved itself and can be continued by the same command."""


class WorkerDied(RuntimeError):
    """A process that prepares batches was killed; the message says what to do."""


class RankLost(RuntimeError):
    """A rank died, or does not answer; the message says what is known about it."""


class PeerFailed(RuntimeError):
    """Another rank was the first to fail and says why; this one ends in silence."""
