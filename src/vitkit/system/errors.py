"""The errors of vitkit, which callers can correct. All other exceptions are bugs.

The message states the problem, with the value, and the remedy. It names settings and arguments in
backquotes, as `heads=12`; the command line prints those as options.

    VitkitError
        BadSettings      an argument or a setting
        BadImage         a picture
        BadData          a folder, table, archive or list of images and labels
        BadWeights       a file or directory of weights, or an exported model
        BadRun           the directory of a run, a study or a labelling session
        Unsupported      something that this model, format, machine or installation cannot do
        Unavailable      a file or an address that cannot be read or written (an OSError, too)
        Diverged         numbers that are not finite in training (a FloatingPointError, too)
        WorkerDied, RankLost   a process that was killed (RuntimeErrors, too)

This module imports nothing, so that the command line can handle errors without importing other modules.
"""


class VitkitError(ValueError):
    """An error that the caller can correct; the message says how."""


class BadSettings(VitkitError):
    """An argument or a setting has an invalid value, or one that conflicts with others."""


class WrongArgument(BadSettings, TypeError):
    """An argument does not exist, is missing, or has a value of another type."""


class BadImage(VitkitError):
    """An image that cannot be used; the message names the image and the problem."""


class BadData(VitkitError):
    """A folder, a table, an archive or a list of images cannot be read, or lacks required information."""


class BadWeights(VitkitError):
    """A file or a directory of weights, or an exported model, is damaged or has the wrong content."""


class BadRun(VitkitError):
    """The directory of a run, a study or a labelling session is damaged, or belongs to another one."""


class Unsupported(VitkitError):
    """This model, format, machine or installation cannot do what the caller wants."""


class Unavailable(VitkitError, OSError):
    """A file or an address cannot be read or written now: the disk, the network or a permission."""


class NotThere(Unavailable, FileNotFoundError):
    """A file or an address does not exist."""


class Forbidden(Unavailable, PermissionError):
    """A file or an address must not be read."""


class Diverged(VitkitError, FloatingPointError):
    """The numbers of a training run are not finite."""


class WorkerDied(VitkitError, RuntimeError):
    """A process that prepares batches, or computes an exported file, was killed; the message says more."""


class RankLost(VitkitError, RuntimeError):
    """A rank died, or does not respond; the message has the known details."""


class PeerFailed(RuntimeError):
    """Another rank failed first and reports the reason; this one exits without a message."""


class Interrupted(BaseException):
    """The run was stopped, saved itself and can be continued by the same command. Like Ctrl-C it is not an
    Exception: code that continues after failures must not continue after a stop."""
