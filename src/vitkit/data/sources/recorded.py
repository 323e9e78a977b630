"""Names of data sets that stand in files which people pass on: the recipe.json of a run, a suite, a
selection.

A person who types a name decides what is opened. A name in such a file may be a stranger's: code that it
names would run here. A request to an address tells its owner that the file was read, and may reach servers
that only this machine can reach. So a file names paths of this machine alone. Their images
are read; nothing is executed, sent or written by their names.
"""

from vitkit.system.errors import BadSettings
from vitkit.system.scripts import names_function
from vitkit.system.storage.remote import expand_braces, is_address

HUB = "hf:"  # what the name of a data set of the Hugging Face hub begins with


class NotTyped(BadSettings):
    """A file names code or another machine, and no person typed that name."""


def refuse_recorded(name: str, file: str, remedy: str) -> None:
    """Raises NotTyped if the name of a data set, which stands in a file, is that of code or leads to
    another machine; the sentence has the file and the remedy."""
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
    """Whether the name of a data set leads to another machine: an address (https://, s3://), hf:NAME,
    or a share (//SERVER/NAME): Windows sends a digest of the user's password to the server of a share
    that is merely looked for. Raises VitkitError for a pattern that stands for too many names."""
    if name.startswith(HUB):
        return True
    names = expand_braces(name)  # {http,x}://host is an address as well
    return any(is_address(each) or _is_share(each) for each in names)


def _is_share(name: str) -> bool:
    return name.replace("\\", "/").startswith("//")
