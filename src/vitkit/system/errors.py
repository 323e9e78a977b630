"""The errors of vitkit: what whoever called it can put right. Anything else that is raised is a bug.

The message says what is wrong, with the value, and what to do. It names settings and arguments in
backquotes, as `heads=12`; the command line prints those as options.

    VitkitError
        BadSettings      an argument or a setting
        BadImage         a picture
        BadData          a folder, table, archive or list of images and labels
        BadWeights       a file or directory of weights, or an exported model
        BadRun           the directory of a run, a study or a labelling session
        Unsupported      what this model, format, machine or installation cannot do
        Unavailable      a file or an address that cannot be read or written (an OSError, too)
        Diverged         numbers that are not finite in training (a FloatingPointError, too)
        WorkerDied, RankLost   a process that somebody ended (RuntimeErrors, too)

They stand by themselves so that the command line can name them without importing what raises them.
"""


class VitkitError(ValueError):
    """Something that whoever called vitkit can put right; the message says how."""


class BadSettings(VitkitError):
    """An argument or a setting has a value that it cannot have, or that does not go with the others."""


class WrongArgument(BadSettings, TypeError):
    """An argument does not exist, is missing, or has a value of another type."""


class BadImage(VitkitError):
    """An image that cannot be used; the message names the image and says what is wrong."""


class BadData(VitkitError):
    """A folder, a table, an archive or a list of images cannot be read, or does not say what is needed."""


class BadWeights(VitkitError):
    """A file or a directory of weights, or an exported model, is damaged or is not what it should be."""


class BadRun(VitkitError):
    """The directory of a run, a study or a labelling session is damaged, or belongs to another one."""


class Unsupported(VitkitError):
    """This model, format, machine or installation cannot do what was asked."""


class Unavailable(VitkitError, OSError):
    """A file or an address cannot be read or written now: the disk, the network or a permission."""


class NotThere(Unavailable, FileNotFoundError):
    """There is no such file or address."""


class Forbidden(Unavailable, PermissionError):
    """A file or an address may not be read."""


class Diverged(VitkitError, FloatingPointError):
    """The numbers of a training run are not finite any more."""


class WorkerDied(VitkitError, RuntimeError):
    """A process that prepares batches, or computes an exported file, was killed; the message says more."""


class RankLost(VitkitError, RuntimeError):
    """A rank died, or does not answer; the message says what is known about it."""


class PeerFailed(RuntimeError):
    """Another rank was the first to fail and says why; this one ends in silence."""


class Interrupted(BaseException):
    """The run was asked to stop, saved itself and can be continued by the same command. Like Ctrl-C it is
    no Exception: what goes on after a failure does not go on after a stop."""
