"""Labelling a folder of photographs that nobody has sorted, in conversation with a model."""

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.data import Source, find_images, heading_of_list, note_left_out, splits_at
from vitkit.evaluation import Finding
from vitkit.labelling import (
    Check,
    Checking,
    FeatureThread,
    Sitting,
    SittingProgress,
    Table,
    application,
    folder_of_sitting,
    open_for_one,
    record_sitting,
    save_model,
    sentences,
    sort_into,
)
from vitkit.recipes import choose_pretrained
from vitkit.serving import Guard
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, printable, printable_name, some
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.machine import pick_device
from vitkit.system.storage.files import check_can_be_made, remove_unfinished
from vitkit.training import LABELS, RUNS, tidied
from vitkit.verbs.arguments import Device, ModelHints, OpenPage, PagePort, Precision, pick_precision
from vitkit.verbs.computing import classifier_of
from vitkit.verbs.data.review import look_through
from vitkit.verbs.definition import result, verb
from vitkit.verbs.made_model import MadeModel
from vitkit.verbs.serving import address_of, announce_page
from vitkit.verbs.words import MODEL
from vitkit.webapp import listening_socket, run_until_ended
from vitkit.weights import Classifier, Hints, adopt

MINUTES = 2.0  # the time in mind when a model is chosen, as `vitkit finetune` does


@dataclass(frozen=True)
class Label:
    """Sort a folder of photographs into classes, on a page of this machine. A model looks at all
    photographs, asks you about those that teach it most, and shows you groups that it believes to
    be of one class, which you confirm together. The photographs stay where they are. vitkit saves
    every answer at once, and the same command continues."""

    photographs: Annotated[
        Positional[str], arg(metavar="PHOTOS", help="A folder of photographs, at any depth.")
    ]
    classes: tuple[str, ...] = ()
    """Classes to begin with, such as cat,dog or cat dog. On the page, you add others by typing
    their names."""
    model: Annotated[
        str, arg(metavar="MODEL", help=f"{MODEL} Default: as vitkit finetune chooses.")
    ] = ""
    workdir: Path | None = None
    """Directory of the labels and the model. Default: one in runs/, named after the folder."""
    check: bool = False
    """PHOTOS already has a folder for each class: go through the findings of `vitkit data review`
    (wrong labels, duplicates and odd images), photograph by photograph."""
    sort_into: Path | None = None
    """When you press Finish, make links to the photographs in this directory, with a folder for
    each class."""
    host: str = "127.0.0.1"
    """Address to serve at. 127.0.0.1 is only for this machine; 0.0.0.0 lets others label too, if
    you give them the page's address with its secret."""
    port: PagePort = 7870
    open: OpenPage = False
    precision: Precision = "auto"
    device: Device = "auto"
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class Labelled(MadeModel):
    """The photographs that were labelled on the page."""

    settings: Label
    path: Path
    """The table of the labels: path, label, how it was given, by whom."""
    model: Path | None
    """The directory of the model, if one was written."""
    progress: SittingProgress
    unreadable: tuple[str, ...]

    @property
    def made(self) -> str:
        """The model's directory. Raises ValueError if none was written."""
        if self.model is None:
            raise BadSettings("no model was made: two classes or more need labels")
        return str(self.model)

    def rows(self) -> list[dict]:
        """A row for each class: its name, and how many photographs have it."""
        return [{"class": label, "photographs": count} for label, count in self.progress.classes]

    def shown(self) -> Iterator[str]:
        """How far it is, and what is next."""
        progress = self.progress
        yield f"{progress.labelled:,} of {counted(progress.photographs, 'photograph')} labelled"
        for label, count in progress.classes:
            yield f"  {printable_name(label)}: {count:,}"
        if progress.set_aside:
            yield f"{progress.set_aside:,} left out, or nobody was sure"
        if self.unreadable:
            names = some([printable_name(name) for name in self.unreadable], 3)
            yield f"{counted(len(self.unreadable), 'photograph')} cannot be read: {names}"
        yield from sentences(progress)
        if not progress.labelled:
            return
        yield f"labels: {self.path}"
        if self.model is not None:
            yield f"model: {self.model}; next: vitkit predict {as_word(self.model)} IMAGE..."
        if sum(count > 0 for _, count in progress.classes) > 1:
            yield f"a better model of the same labels: vitkit finetune {as_word(self.path)}"
        yield f"to go on labelling: {_again(self.settings)}"


@result
@dataclass(frozen=True)
class Checked:
    """The decisions on photographs that have classes."""

    settings: Label
    path: Path
    """The list of the photographs to change."""
    progress: SittingProgress

    def rows(self) -> list[dict]:
        """A row for each class that photographs belong to instead of their own."""
        return [{"class": label, "photographs": count} for label, count in self.progress.classes]

    def shown(self) -> Iterator[str]:
        """How far it is, and what is next."""
        progress = self.progress
        moved = sum(count for _, count in progress.classes)
        yield (
            f"{progress.labelled:,} of {counted(progress.photographs, 'photograph')} decided: {moved:,} "
            f"of another class, {progress.set_aside:,} left out"
        )
        if moved or progress.set_aside:
            yield f"list: {self.path}"
            yield _what_the_list_is_for(self.settings, self.path)
        if progress.labelled < progress.photographs:
            yield f"to go on: {_again(self.settings)} --check"


def _again(settings: Label) -> str:
    """The command that goes on with a sitting."""
    command = f"vitkit label {as_word(settings.photographs)}"
    if settings.workdir is not None:
        command += f" --workdir {as_word(settings.workdir)}"
    if settings.model:
        command += f" --model {as_word(settings.model)}"
    return command


@verb
def label(settings: Label) -> Labelled | Checked:
    """Serve a page on which people say what photographs show, until it is ended by Ctrl-C. With `check`,
    they decide on what a review of photographs with classes has found.

    Raises ValueError for a folder without photographs, for one that is being labelled already, and for a
    number that is not a port.
    """
    # What can be wrong, before anything is loaded
    _check(settings)
    root = Path(tidied(settings.photographs))
    folder = settings.workdir or folder_of_sitting(root, "check" if settings.check else "labels")
    names, left_out = find_images(root)
    if not names:
        raise BadSettings(f"{root} holds no photographs")
    for note in note_left_out(left_out):
        say(f"{root}: {note}")

    def find() -> list[str]:
        return _photographs(root, (folder, RUNS, settings.sort_into))

    with (
        closing(listening_socket(settings.host, settings.port)) as listener,
        open_for_one(folder, root),
    ):
        record_sitting(folder, root, settings.check)
        if settings.check:
            return _checked(settings, folder, root, listener)
        remove_unfinished(folder)
        sitting = Sitting(find(), folder, settings.classes)
        return _labelled(settings, sitting, root, find, listener)


def _check(settings: Label) -> None:
    """Raises ValueError for settings that cannot be."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise BadSettings(
            f"the page needs {' and '.join(missing)}, which is not installed: pip install 'vitkit[serve]'"
        )
    if not Path(settings.photographs).is_dir():
        raise BadSettings(
            f"there is no folder {settings.photographs}; label a folder of photographs"
        )
    if settings.sort_into is not None:
        check_can_be_made(settings.sort_into)
    if settings.check and (settings.sort_into is not None or settings.classes):
        raise BadSettings(
            "`check` is for photographs that have classes already; `classes` and `sort_into` are for others"
        )


def _photographs(root: Path, ours: tuple[Path | None, ...]) -> list[str]:
    """The names of the photographs of a folder, without what lies in directories that are ours: links and
    plots of earlier runs, for one who labels the folder that he is in. Raises ValueError, OSError."""
    names, _ = find_images(root)
    for folder in ours:
        if folder is None or not folder.resolve().is_relative_to(root.resolve()):
            continue
        below = folder.resolve().relative_to(root.resolve()).as_posix()
        if below != ".":
            names = [name for name in names if not name.startswith(f"{below}/")]
    return names


def _labelled(
    settings: Label,
    sitting: Sitting,
    root: Path,
    find: Callable[[], list[str]],
    listener: socket.socket,
) -> Labelled:
    """Serve the page; when it is ended, say what was labelled."""
    device = pick_device(settings.device)
    name, loaded = _loaded(settings)
    classifier, _ = adopt(loaded, labels=("0", "1"), new_head=True)
    precision = pick_precision(settings.precision, device)
    feature_thread = FeatureThread(
        sitting, classifier.to(device).for_inference(), root, precision, find
    )
    feature_thread.take_up()
    written: list[Path] = []
    one_at_a_time = threading.Lock()  # two people may press Finish

    def finish(links: bool) -> list[str]:
        with one_at_a_time:
            made = save_model(sitting, classifier, root, precision, name)
            written.append(made.path)
            said = [f"{made.path} has learned from {counted(made.photographs, 'photograph')}"]
            if made.unseen:
                said[0] += f"; {made.unseen:,} with a class it has not seen yet, or they are gone"
            for metric in made.metrics[:1]:
                said.append(f"{metric.text()} of them are answered right by fits without them")
            if links or settings.sort_into is not None:
                said.append(
                    sort_into(sitting, root, settings.sort_into or sitting.folder / "sorted")
                )
            labels = as_word(sitting.folder / LABELS)
            said.append(f"Next: vitkit predict {as_word(made.path)} IMAGE...")
            said.append(f"A better model of the same labels: vitkit finetune {labels}")
            return said

    feature_thread.start()
    try:
        _serve(settings, Table(sitting, root, finish, lambda: feature_thread.problem), listener)
    finally:
        with suppress(KeyboardInterrupt):
            feature_thread.end()
    unreadable = tuple(sitting.unreadable())
    model = written[-1] if written else None
    return Labelled(settings, sitting.folder / LABELS, model, sitting.progress(), unreadable)


def _checked(settings: Label, folder: Path, root: Path, listener: socket.socket) -> Checked:
    """Serve the page of what a review found; when it is ended, say what was decided."""
    splits = splits_at(str(root))
    if splits.target_kind != "class":
        raise BadData(f"{root} has no class folders to check; label it without `check`")
    _, loaded = _loaded(settings)
    findings, facts = look_through(splits, loaded.to(pick_device(settings.device)).for_inference())
    for fact in facts:
        say(fact)
    parts = splits.sources
    first = next(iter(parts.values()))
    checking = Checking(_checks(parts, findings), first.labels, folder, heading_of_list(first))

    def finish(links: bool) -> list[str]:
        checking.write()
        if checking.problem:
            raise BadSettings(checking.problem)
        return [f"wrote {checking.file}", _what_the_list_is_for(settings, checking.file)]

    _serve(settings, Table(checking, Path(), finish, lambda: ""), listener)
    return Checked(settings, checking.file, checking.progress())


def _checks(parts: dict[str, Source], findings: list[Finding]) -> list[Check]:
    """A question for each photograph that a review names, with all that it found in it; those that have
    a name to be shown."""
    found: dict[str, Check] = {}
    for finding in findings:
        if not finding.name.isprintable():
            continue
        beside = ""
        if finding.like is not None:
            part, index = finding.like
            beside = parts[part].name(index)
        check = Check(
            finding.name, finding.part, finding.label, finding.reason, finding.guess, beside
        )
        before = found.get(finding.name)
        if before is not None:
            check = before._replace(
                reason=f"{before.reason}; {finding.reason}",
                guess=before.guess or check.guess,
                beside=before.beside or check.beside,
            )
        found[finding.name] = check
    return list(found.values())


def _what_the_list_is_for(settings: Label, path: Path) -> str:
    data = as_word(settings.photographs)
    return (
        f"next: vitkit data review {data} --apply {as_word(path)} says which files it would move, and "
        f"with --yes moves them; or vitkit finetune {data} --data.exclude {as_word(path)}"
    )


def _loaded(settings: Label) -> tuple[str, Classifier]:
    """The name of the model that looks, and the model."""
    name = settings.model
    if not name:
        choice = choose_pretrained(MINUTES, pick_device(settings.device))
        say(printable(f"looking with {choice.why}"))
        name = choice.model
    return name, classifier_of(name, settings.hints)


def _serve(settings: Label, table: Table, listener: socket.socket) -> None:
    """Serve the page until it is ended."""
    port = listener.getsockname()[1]
    secret = secrets.token_urlsafe(12)
    address = f"{address_of(settings.host, port)}/{secret}/"

    def started() -> None:
        how_it_ends = "Ctrl-C ends it; what was answered is kept"
        announce_page(address, settings.port, port, how_it_ends, settings.open)

    guarded = Guard(application(table, secret), settings.host, secret=secret)
    run_until_ended(guarded, listener, started)
