"""Names of data sets in files that people pass on: the recipe.json of a run, a suite, a selection.

If a person types a name, that person decides what is opened. A name in such a file may come from a
stranger. Code that it names would run on this machine. A request to an address would tell its owner that
the file was read, and might reach servers that only this machine can reach. So a file may name only paths
of this machine, whose images are read. Nothing is executed, sent or written because of such a name.
"""

from vitkit.system.errors import BadSettings
from vitkit.system.scripts import names_function
from vitkit.system.storage.remote import expand_braces, is_address

HUB = "hf:"  # prefix of the names of data sets of the Hugging Face hub


class NotTyped(BadSettings):
    """A file names code or another machine, and no person typed that name."""


def refuse_recorded(name: str, file: str, remedy: str) -> None:
    """Raise NotTyped if the name of a data set in a file is that of code, or leads to another machine.

    file, remedy: the file and the advice in the error message.
    """
    if names_function(name):
        raise NotTyped(
            f"{file} names the Python function {name}, and vitkit runs no code that a file names; "
            f"{remedy}"
        )
    if leads_elsewhere(name):
        raise NotTyped(
            f"{file} names {name}, which is on another machine, and vitkit fetches nothing that a file "
            f"names; {remedy}"
        )


def leads_elsewhere(name: str) -> bool:
    """Whether the name of a data set leads to another machine: an address (https://, s3://), hf:NAME, or a
    share (//SERVER/NAME), because Windows sends a digest of the user's password to the server of a share
    when it looks for it. Raises VitkitError for a pattern of too many names."""
    if name.startswith(HUB):
        return True
    names = expand_braces(name)  # {http,x}://host is an address as well
    return any(is_address(each) or _is_share(each) for each in names)


def _is_share(name: str) -> bool:
    """Whether a name is that of a network share of Windows."""
    return name.replace("\\", "/").startswith("//")
