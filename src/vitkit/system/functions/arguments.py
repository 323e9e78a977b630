"""Arguments that several functions share, and their checks."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.system import machine
from vitkit.system.console.messages import say_detail
from vitkit.system.console.text import printable
from vitkit.system.errors import BadSettings, WrongArgument
from vitkit.system.functions.words import TABLES
from vitkit.system.machine import PrecisionChoice
from vitkit.system.storage.files import check_can_be_made, check_replaceable, impossible
from vitkit.system.values import given

if TYPE_CHECKING:
    import torch

UNREADABLE = 3


def status_of(unreadable: int, ok: bool) -> int:
    """The exit status of a command that succeeded except for images that it could not read, for which 1 would
    be wrong. ok: the value of --ok-if-unreadable."""
    if unreadable and not ok:
        return UNREADABLE
    return 0


def pick_precision(choice: PrecisionChoice, device: "torch.device") -> machine.Precision:
    """Choose the precision of computations, the same on all ranks. If the user did not set it, a message
    gives the choice and the reason."""
    from vitkit.system.processes.ranks import from_rank_0

    picked = from_rank_0(lambda: machine.pick_precision(choice, device))
    if picked.why:
        say_detail(picked.why)
    return picked.precision


def check_limit(limit: int) -> None:
    """Raise BadSettings for a negative largest number of images."""
    if limit < 0:
        raise BadSettings(f"`limit` is {limit}; it is a number of images, or 0 for all")


def name_of(model: object) -> str:
    """The name of a model in sentences, titles and records: its path or its name as given, or "the model" for
    one in memory."""
    if isinstance(model, str | Path):
        return printable(str(model))
    return "the model"


def name_on_disk(model: object, function: str) -> str:
    """The name of a model that a function needs as a file or a directory. Raises WrongArgument for a model in
    memory."""
    if isinstance(model, str | Path):
        return str(model)
    if not hasattr(model, "preprocessing"):  # neither a Classifier nor a network
        raise WrongArgument(f"the model is {given(model)}; {function} takes its path or its name")
    raise WrongArgument(
        f"{function} needs a model on disk, and this one is of type {type(model).__name__}; write it there "
        "first: vitkit.save(classifier, 'weights')"
    )


def short_name(name: str) -> str:
    """The short name of a model for a page: the end of its path, without the suffix of a file of weights."""
    name = name.rstrip("/").rsplit("/", 1)[-1]
    for suffix in (".safetensors", ".npz", ".pth", ".bin"):
        name = name.removesuffix(suffix)
    return printable(name)


# Work shared by several processes: `--shard 1/4` to `--shard 4/4`

SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


def read_shard(text: str) -> tuple[int, int]:
    """(i, n) from the text "1/n" to "n/n": the number of this process, from 0, and the number of processes;
    (0, 1) for an empty text. Raises VitkitError for a text of another form."""
    if not text:
        return 0, 1
    match = SHARD.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise BadSettings(f"`shard` is {text!r}; it is 1/4 to 4/4, for four processes")
    return int(match[1]) - 1, int(match[2])


# Files and folders that a function writes


def check_folder(flag: str, folder: Path, images: tuple[Any, ...]) -> None:
    """Raise VitkitError if a folder to write to is a file, or contains the images."""
    if folder.exists() and not folder.is_dir():
        raise BadSettings(f"{flag} is {folder}, which is a file; give a folder")
    if folder.suffix.lower() in TABLES and not folder.exists():
        raise BadSettings(
            f"{flag} is {folder}, and it names a folder, such as {folder.stem}; vitkit predict and vitkit sort "
            f"write one table of all answers: `to={folder}`"
        )
    names = [image for image in images if isinstance(image, str)]  # others are in memory
    for image in names:
        if impossible(image):  # reading it will report that
            continue
        if Path(image).is_dir() and Path(image).resolve().is_relative_to(folder.resolve()):
            raise BadSettings(
                f"{flag} is {folder}, and the images are in {image}: what is written there would be "
                "taken for images; give another folder, such as sorted"
            )
    check_can_be_made(folder / "photograph")


def check_sheet(file: Path) -> None:
    """Raise VitkitError if a contact sheet cannot be written to this path."""
    if file.suffix.lower() != ".png":
        raise BadSettings(f"`sheet` is {file}; give the name of a PNG file, such as {file}.png")
    check_replaceable(file)
