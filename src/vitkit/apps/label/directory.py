"""The directory of a labelling session: the images that its answers are about, and its lock."""

import os
import platform
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vitkit.apps.label.answers import LABELS
from vitkit.apps.label.session import PHOTOGRAPHS
from vitkit.system.console.messages import say
from vitkit.system.console.text import printable
from vitkit.system.errors import BadRun
from vitkit.system.storage.files import parse_json, write_json
from vitkit.training import RUNS, Occupied, locked, run_name

RECORD = "sitting.json"  # in the directory: the folder of the images, and the process
_OPEN: set[Path] = set()  # the session directories that this process has open
_CHANGING = threading.Lock()


def session_directory(root: Path, kind: str) -> Path:
    """The directory for labelling or checking a folder; another folder with the same name gets
    another directory."""
    name = run_name(str(root), kind)
    folder = RUNS / name
    number = 1
    moved = []
    while folder.exists() and not _is_of(folder, root):
        before = _about(folder).get("photographs")
        if isinstance(before, str) and not Path(before).exists():
            moved.append((folder, before))
        number += 1
        folder = RUNS / f"{name}-{number}"
    if moved and not folder.exists():
        place, before = moved[-1]
        say(
            printable(
                f"{place} has answers about {before}, which does not exist any more; if {root} is what was "
                f"there, `workdir={str(place)!r}` goes on with them"
            )
        )
    return folder


def _about(folder: Path) -> dict:
    """The record of a session in its directory; empty if there is none."""
    try:
        values = parse_json((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _is_of(folder: Path, root: Path) -> bool:
    """Whether a directory has labels of the images of this folder."""
    return _about(folder).get("photographs") == str(root.resolve())


@contextmanager
def _locked_in_process(folder: Path) -> Iterator[None]:
    """Lock a directory against other threads of this process, for which a file lock does not work. Raises
    Occupied."""
    name = folder.resolve()
    with _CHANGING:
        if name in _OPEN:
            raise Occupied(f"{folder} is open in this process")
        _OPEN.add(name)
    try:
        yield
    finally:
        with _CHANGING:
            _OPEN.discard(name)


@contextmanager
def open_for_one(folder: Path, root: Path) -> Iterator[None]:
    """Lock the directory of a session, which is created if it does not exist. Raises Occupied if
    another process uses it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(_locked_in_process(folder))
            # In this order: a thread that fails here must not have released the other thread's file lock
            stack.enter_context(locked(folder))
        except Occupied as error:
            raise Occupied(
                f"{root} is being labelled already{_who_labels(folder)}: open its page, or end it"
            ) from error
        yield


def _who_labels(folder: Path) -> str:
    """The process that has a session open, as text; "" if unknown."""
    about = _about(folder)
    if "process" not in about:
        return ""
    return f" (process {about['process']} on {printable(str(about.get('machine', '')))})"


def record_session(folder: Path, root: Path, check: bool) -> None:
    """Record in the directory which folder its labels belong to, and make a link to that folder. Raises
    VitkitError for a directory with other content."""
    about = _about(folder)
    before = about.get("photographs")
    is_moved = isinstance(before, str) and not Path(before).exists()
    if before is not None and about.get("check", False) != check:
        raise BadRun(
            f"{folder} has answers that were given {'without' if check else 'with'} `check`; give another "
            "`workdir`"
        )
    if is_moved:
        say(
            printable(
                f"{folder} has answers about {before}, which is gone; {root} is assumed to be the same folder, moved"
            )
        )
    elif not _is_of(folder, root):
        others = [path.name for path in folder.iterdir() if path.name != "LOCK"]
        if others:
            raise BadRun(
                f"{folder} holds something else ({', '.join(sorted(others)[:3])}), or labels of other "
                "photographs; give another `workdir`"
            )
    about = {
        "photographs": str(root.resolve()),
        "check": check,
        "process": os.getpid(),
        "machine": platform.node(),
    }
    write_json(folder / RECORD, about)
    link = folder / PHOTOGRAPHS
    if link.is_symlink() and link.resolve() != root.resolve():
        link.unlink()
    if not link.exists():
        try:
            link.symlink_to(root.resolve(), target_is_directory=True)
        except OSError as error:
            say(
                f"{link} could not be made ({error.strerror or error}), so other commands find the "
                f"photographs only if you put {LABELS} into a folder above them"
            )
