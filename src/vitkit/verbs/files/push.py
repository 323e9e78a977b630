"""A model directory on the Hugging Face hub."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.system.console.text import as_word
from vitkit.system.errors import BadSettings
from vitkit.verbs.arguments import name_on_disk
from vitkit.verbs.definition import result, verb
from vitkit.weights import (
    License,
    check_may_be_shared,
    chosen,
    load,
    paths_in,
    read_license,
    state_license,
)
from vitkit.weights import push as uploaded


@dataclass(frozen=True)
class Push:
    """Upload a model directory to the Hugging Face hub, with its model card."""

    folder: Annotated[Positional[Path], arg(metavar="DIRECTORY")]
    """A run, or a model directory."""
    name: Annotated[Positional[str], arg(metavar="NAME")]
    """The repository, such as you/your-model; it is created if it does not exist."""
    private: bool = False
    """Create a private repository."""
    license: str = ""
    """The hub's identifier of the licence, such as apache-2.0, mit or cc-by-nc-4.0, for the model
    card. other refers to the file LICENSE in the directory. Default: the licence of the weights
    that the model began with."""


@result
@dataclass(frozen=True)
class Pushed:
    """A model on the hub."""

    settings: Push
    folder: Path
    """What was uploaded."""
    address: str
    license: License

    def shown(self) -> Iterator[str]:
        """The address of the model, and its licence."""
        yield f"uploaded {self.folder} to {self.address}, under the licence {self.license.called}"
        yield f"next: vitkit predict {as_word(self.settings.name)} IMAGE..."


@verb
def push(settings: Push) -> Pushed:
    """Upload a model directory, or the one in a run. Raises ValueError for another folder, for a
    licence that does not allow it, and for paths of this machine in what would be sent."""
    folder = Path(name_on_disk(settings.folder, "push"))
    if (folder / "model" / "config.json").is_file():  # a run
        folder = folder / "model"
    if not (folder / "config.json").is_file():
        raise BadSettings(
            f"{settings.folder} is not a model directory; "
            "write one with vitkit convert MODEL DIR --to huggingface"
        )
    classifier = load(folder)  # raises if it cannot be opened, before anything is sent
    # The licence under which it may be uploaded; one that was given is written into its card
    license = classifier.license
    if settings.license:
        license = chosen(license, settings.license.lower(), read_license(folder))
    check_may_be_shared(license, "recipe" in classifier.origin)
    if paths := paths_in(folder):
        raise BadSettings(
            f"{paths[0]}, which is a path of this machine and would be uploaded; take it out of the "
            "file"
        )
    if settings.license:
        state_license(folder, classifier, license)
    address = uploaded(folder, settings.name, settings.private)
    return Pushed(settings, folder, address, license)
