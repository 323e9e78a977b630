"""What a reader has decided on the page of a review: photographs that belong to another class, and those
to be left out. Files are moved, never deleted or replaced, and moved back by the same list.

A line of the list is NAME, DECISION, CLASS, LABEL and PART, with tabs between them: the photograph, "label"
or "leave out", the class that it is said to be (empty for one to leave out), the class that it is in, and
its part of the data set: train, val or test.
"""

from pathlib import Path
from typing import NamedTuple

from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, Unavailable
from vitkit.system.storage.moving import check_moves, move_file

RELABEL = "label"
LEAVE_OUT = "leave out"


class Correction(NamedTuple):
    """A decision about a photograph."""

    path: Path
    """The file, as the data set names it."""
    label: str
    """The class whose folder it is in."""
    other: str
    """The corrected class; empty for an image to leave out."""


class Move(NamedTuple):
    """A file and its destination."""

    before: Path
    after: Path


def read_corrections(path: Path) -> list[Correction]:
    """The decisions of a list. Raises VitkitError if it does not exist, or for a line without a
    decision;
    OSError."""
    if not path.is_file():
        raise BadData(f"there is no file {path}; the page of vitkit data review saves one")
    corrections = []
    for line in path.read_text("utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, decision, other, label = [*line.split("\t"), "", "", ""][:4]
        is_said = (decision == RELABEL and other) or (decision == LEAVE_OUT and not other)
        if not is_said or not label:
            raise BadData(
                f"{path}: no decision in the line {line!r}; lists to apply are saved by the page of "
                "vitkit data review"
            )
        corrections.append(Correction(Path(name), label, other))
    return corrections


def _left_out_folder(root: Path) -> Path:
    """Where photographs go that are left out: beside the folder of the data set, where it is no class."""
    if root.name in ("", ".."):
        root = root.resolve()
    return root.with_name(f"{root.name}-left-out")


def moves(root: Path, corrections: list[Correction]) -> list[Move]:
    """The destination of each file of a folder of classes that has not been moved yet: the same
    place in the folder of its new class, or a folder outside the data set. If a file of the same
    name exists there, the name gets the old class.

    Raises VitkitError for a photograph that lies elsewhere, or for a class without a folder.
    """
    planned = []
    taken = set()
    for each in corrections:
        after = _destination(root, each)
        if not each.path.exists():
            continue
        if after.exists() or after in taken:
            after = _beside(after, each)
        taken.add(after)
        planned.append(Move(each.path, after))
    return planned


def moves_back(root: Path, corrections: list[Correction]) -> list[Move]:
    """The moves back, for files that were moved and whose old place is free."""
    planned = []
    for each in corrections:
        plain = _destination(root, each)
        moved = next((path for path in (_beside(plain, each), plain) if path.exists()), None)
        if moved is not None and not each.path.exists():
            planned.append(Move(moved, each.path))
    return planned


def _destination(root: Path, correction: Correction) -> Path:
    """Where a file goes, whether there is one of its name or not."""
    # Its folders below the data set's
    path = correction.path
    below = path.parent.resolve() / path.name
    if not below.is_relative_to(root.resolve()):
        raise BadData(
            f"{path} does not lie in {root}; what is moved are files of a folder, and no rows of a table"
        )
    parts = below.relative_to(root.resolve()).parts
    if correction.label not in parts[:-1]:
        raise BadData(
            f"{path} lies in no folder {correction.label!r}; labels that a table gives are changed there"
        )
    if not correction.other:
        return _left_out_folder(root).joinpath(*parts)

    # The folder of the other class, beside that of its own
    place = parts.index(correction.label)
    beside = root.joinpath(*parts[:place])
    if correction.other not in _classes(root, beside):
        raise BadData(f"{beside} has no folder of the class {correction.other!r}")
    return beside.joinpath(correction.other, *parts[place + 1 :])


def _classes(root: Path, beside: Path) -> set[str]:
    """The classes that have a folder in a part of the data set, or, as a part need not have them all, in
    another."""
    parts = [beside]
    if beside != root:
        parts = [folder for folder in beside.parent.iterdir() if folder.is_dir()]
    return {folder.name for part in parts for folder in part.iterdir() if folder.is_dir()}


def _beside(path: Path, correction: Correction) -> Path:
    """A name beside that of a file that is there."""
    return path.with_stem(f"{path.stem}-from-{correction.label}")


def move(planned: list[Move]) -> None:
    """Move the files, one after the other, also to another file system.

    Raises OSError before the first move if one of them would certainly fail, FileExistsError rather than
    replace a file, and OSError, with how many were moved, if a move fails; the same list then moves the
    others.
    """
    check_moves(planned)
    for number, (before, after) in enumerate(planned):
        try:
            after.parent.mkdir(parents=True, exist_ok=True)
            move_file(before, after)
        except OSError as error:
            reason = error.strerror or error
            raise Unavailable(
                f"{before} could not be moved to {after}: {reason}; {number:,} of "
                f"{counted(len(planned), 'file')} were moved before it, and the same command moves the others"
            ) from error
