"""`vitkit push`: upload a model directory to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Unpack

from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import name_on_disk
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Result
from vitkit.system.functions.steps import DIRECTORY, IMAGES, MODEL, step
from vitkit.system.functions.types import Messages, PathLike
from vitkit.weights.destination import state_license
from vitkit.weights.files.directory import model_directory
from vitkit.weights.files.hub import paths_in
from vitkit.weights.files.hub import upload as uploaded
from vitkit.weights.licenses import License, check_may_be_shared, chosen, read_license
from vitkit.weights.store import load


@dataclass(frozen=True, repr=False)
class Pushed(Result):
    """A model on the hub."""

    name: str
    """Name of the repository."""
    folder: Path
    """The directory that was uploaded."""
    address: str
    license: License

    def shown(self) -> Iterator[str]:
        """The address of the model, and its licence."""
        yield f"uploaded {self.folder} to {self.address}, under the licence {self.license.called}"
        yield f"next: {step('predict', self.name, IMAGES)}"


@public
def push(
    folder: Annotated[PathLike, "DIRECTORY"],
    name: str,
    *,
    private: bool = False,
    license: str = "",
    **messages: Unpack[Messages],
) -> Pushed:
    """Upload a model directory to the Hugging Face hub, with its model card.

    Args:
        folder: A run, or a model directory.
        name: The repository, such as you/your-model; it is created if it does not exist.
        private: Create a private repository.
        license: The hub's identifier of the licence, such as apache-2.0, mit or cc-by-nc-4.0, for the
            model card. other refers to the file LICENSE in the directory. Default: the licence of the
            weights that the model began with.
        **messages: Where messages go.

    Raises:
        BadSettings: If the folder is not a model directory, its licence does not allow the upload, or a
            file contains a path of this machine.
        BadWeights: If the model cannot be read.
        Unavailable: If the hub cannot be reached, or refuses the upload.
    """
    given = folder
    folder = model_directory(Path(name_on_disk(given, "push")))
    if not (folder / "config.json").is_file():
        writing = step("convert", MODEL, DIRECTORY, to="huggingface")
        raise BadSettings(f"{given} is not a model directory; write one with {writing}")
    classifier = load(folder)  # raises if it cannot be opened, before anything is uploaded
    # The licence under which it may be uploaded; the user's is written into the card
    stated = classifier.license
    if license:
        stated = chosen(stated, license.lower(), read_license(folder))
    shared = check_may_be_shared(stated, "recipe" in classifier.origin)
    if paths := paths_in(folder):
        raise BadSettings(
            f"{paths[0]}, which is a path of this machine and would be uploaded; remove it from the "
            "file"
        )
    if license:
        state_license(folder, classifier, shared)
    address = uploaded(folder, name, private)
    return Pushed(name, folder, address, shared)
