"""`vitkit label`: label a folder of unsorted images on a page, with a model that learns meanwhile."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Unpack

from vitkit.apps.label.answers import LABELS
from vitkit.apps.label.checking import Check, Checking
from vitkit.apps.label.directory import open_for_one, record_session, session_directory
from vitkit.apps.label.feature_thread import FeatureThread
from vitkit.apps.label.http import Operations, application, sentences
from vitkit.apps.label.saving import save_model, sort_into
from vitkit.apps.label.session import LabelProgress, LabelSession
from vitkit.data import Source, find_images, heading_of_list, note_left_out, splits_at
from vitkit.evaluation import Finding, look_through
from vitkit.recipes import choose_pretrained
from vitkit.runtimes import check_answer
from vitkit.system.console.messages import as_spelled, say
from vitkit.system.console.text import counted, printable, printable_name, some
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.functions.arguments import name_of, pick_precision
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import IMAGES, MODEL, step
from vitkit.system.functions.types import DataLike, DeviceLike, PathLike, Several
from vitkit.system.machine import PrecisionChoice, pick_device
from vitkit.system.storage.files import check_can_be_made, remove_unfinished
from vitkit.training import RUNS, tidied
from vitkit.web import announce_page, check_installed, page_socket, serve_page
from vitkit.weights import (
    Classifier,
    Hints,
    MadeModel,
    ModelLike,
    Overrides,
    adopt,
    classifier_of,
    hints_of,
)

MINUTES = 2.0  # fine-tuning time assumed when a model is chosen, as in `vitkit.finetune`


class LabelCall(NamedTuple):
    """The arguments of a labelling session, for naming the call that continues it."""

    photographs: str
    workdir: Path | None
    model: str | Classifier

    def again(self, **more: Any) -> str:
        """The call that continues the session."""
        return step(
            "label", self.photographs, workdir=self.workdir, model=self.model or None, **more
        )


@dataclass(frozen=True, repr=False)
class Labelled(Rows, MadeModel):
    """The images that were labelled on the page."""

    call: LabelCall
    path: Path
    """The table of labels, with the columns path, label, kind of question and person."""
    model: Path | None
    """The directory of the model, if one was written."""
    progress: LabelProgress
    unreadable: tuple[str, ...]

    @property
    def made(self) -> str:
        """The model's directory. Raises VitkitError if none was written."""
        if self.model is None:
            raise BadSettings("no model was made: two classes or more need labels")
        return str(self.model)

    def rows(self) -> list[dict]:
        """A row for each class: its name, and how many photographs have it."""
        return [{"class": label, "photographs": count} for label, count in self.progress.classes]

    def shown(self) -> Iterator[str]:
        """The progress, and the next commands."""
        progress = self.progress
        yield f"{progress.labelled:,} of {counted(progress.photographs, 'photograph')} labelled"
        for label, count in progress.classes:
            yield f"  {printable_name(label)}: {count:,}"
        if progress.set_aside:
            yield f"{progress.set_aside:,} left out, or marked as not sure"
        if self.unreadable:
            names = some([printable_name(name) for name in self.unreadable], 3)
            yield f"{counted(len(self.unreadable), 'photograph')} cannot be read: {names}"
        yield from sentences(progress)
        if not progress.labelled:
            return
        yield f"labels: {self.path}"
        if self.model is not None:
            yield f"model: {self.model}; next: {step('predict', self.model, IMAGES)}"
        if sum(count > 0 for _, count in progress.classes) > 1:
            yield f"a better model of the same labels: {step('finetune', self.path)}"
        yield f"to go on labelling: {self.call.again()}"


@dataclass(frozen=True, repr=False)
class Checked(Rows):
    """The decisions about images that already had classes."""

    call: LabelCall
    path: Path
    """The list of the images to change."""
    progress: LabelProgress

    def rows(self) -> list[dict]:
        """One row per new class of images that were moved from another class."""
        return [{"class": label, "photographs": count} for label, count in self.progress.classes]

    def shown(self) -> Iterator[str]:
        """The progress, and the next commands."""
        progress = self.progress
        moved = sum(count for _, count in progress.classes)
        yield (
            f"{progress.labelled:,} of {counted(progress.photographs, 'photograph')} decided: {moved:,} "
            f"of another class, {progress.set_aside:,} left out"
        )
        if moved or progress.set_aside:
            yield f"list: {self.path}"
            yield _how_to_use_the_list(self.call.photographs, self.path)
        if progress.labelled < progress.photographs:
            yield f"to go on: {self.call.again(check=True)}"


class FeatureModel(NamedTuple):
    """The model that computes the features, and its settings."""

    photographs: str
    """The folder, as given by the caller."""
    model: str | Classifier
    """"" for the model that `vitkit.finetune` would choose."""
    hints: Hints
    precision: PrecisionChoice
    device: str

    def load(self) -> tuple[str, Classifier]:
        """The name of the model, and the model."""
        model = self.model
        if not model:
            choice = choose_pretrained(
                MINUTES, pick_device(self.device), step("label", self.photographs, model=MODEL)
            )
            say(printable(f"looking with {choice.why}"))
            model = choice.model
        name = model if isinstance(model, str) else name_of(model)
        classifier = classifier_of(model, self.hints)
        check_answer(classifier)
        return name, classifier


class Page(NamedTuple):
    """The address of the page, which is served until Ctrl-C."""

    listener: socket.socket
    host: str
    port: int
    """The requested port; the next free one is used if it is occupied."""
    open: bool
    """Whether to open the page in the browser."""


@public
def label(
    photographs: Annotated[DataLike, "PHOTOS"],
    *,
    classes: Several[str] = (),
    model: ModelLike = "",
    workdir: PathLike | None = None,
    check: bool = False,
    sort_into: PathLike | None = None,
    host: str = "127.0.0.1",
    port: int = 7870,
    open: bool = False,
    precision: PrecisionChoice = "auto",
    device: DeviceLike = "auto",
    **overrides: Unpack[Overrides],
) -> Labelled | Checked:
    """Sort a folder of photographs into classes, on a page of this machine. A model looks at all
    photographs, asks you about those that teach it most, and shows you groups that it believes to
    be of one class, which you confirm together. The photographs stay where they are. vitkit saves
    every answer immediately, and the same command continues. Ctrl-C ends it.

    Args:
        photographs: A folder of photographs, at any depth.
        classes: Classes to begin with, such as cat,dog or cat dog. On the page, you add others by
            typing their names.
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model. Default: as `vitkit.finetune`
            chooses.
        workdir: Directory of the labels and the model. Default: one in runs/, named after the folder.
        check: PHOTOS already has a folder for each class: go through the findings of `vitkit.review`
            (wrong labels, duplicates and odd images), photograph by photograph.
        sort_into: When you press Finish, make links to the photographs in this directory, with a folder
            for each class.
        host: Address to serve at. 127.0.0.1 is only for this machine; 0.0.0.0 lets others label too, if
            you give them the page's address with its secret.
        port: Port to serve at; if another program uses it, the next free one.
        open: Open the page in the browser.
        precision: Arithmetic of the matrix products. auto is bfloat16 if the CPU or GPU has
            instructions for it.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        **overrides: Settings that the file of the model does not give, or that you want to change:
            `Overrides`.

    Raises:
        BadSettings: If the folder holds no photographs, if `port` is not a port, or if settings do not
            go together.
        BadRun: If the folder is being labelled already.
        BadData: If `check` is given and the folder has no folders of classes.
    """
    # Checks before anything is loaded
    looking = FeatureModel(photographs, model, hints_of(overrides), precision, device)
    _check(photographs, classes, check, sort_into)
    root = Path(tidied(photographs))
    folder = workdir or session_directory(root, "check" if check else "labels")
    names, left_out = find_images(root)
    if not names:
        raise BadSettings(f"{root} holds no photographs")
    for note in note_left_out(left_out):
        say(f"{root}: {note}")

    def find() -> list[str]:
        return _photographs(root, (folder, RUNS, sort_into))

    call = LabelCall(photographs, workdir, model)
    with (
        closing(page_socket(host, port)) as listener,
        open_for_one(folder, root),
    ):
        page = Page(listener, host, port, open)
        record_session(folder, root, check)
        if check:
            return _checked(call, folder, root, looking, page)
        remove_unfinished(folder)
        session = LabelSession(find(), folder, classes)
        return _labelled(call, session, root, find, looking, sort_into, page)


def _check(
    photographs: str, classes: tuple[str, ...], check: bool, sorted_into: Path | None
) -> None:
    """Raises BadSettings if a package or the folder is missing, or if settings contradict each other."""
    check_installed()
    if not Path(photographs).is_dir():
        raise BadSettings(f"there is no folder {photographs}; label a folder of photographs")
    if sorted_into is not None:
        check_can_be_made(sorted_into)
    if check and (sorted_into is not None or classes):
        raise BadSettings(
            "`check` is for photographs that have classes already; `classes` and `sort_into` are for others"
        )


def _photographs(root: Path, ours: tuple[Path | None, ...]) -> list[str]:
    """The names of the images of a folder, without those in vitkit's own directories, such as links and
    plots of earlier runs below the current folder. Raises VitkitError, OSError."""
    names, _ = find_images(root)
    for folder in ours:
        if folder is None or not folder.resolve().is_relative_to(root.resolve()):
            continue
        below = folder.resolve().relative_to(root.resolve()).as_posix()
        if below != ".":
            names = [name for name in names if not name.startswith(f"{below}/")]
    return names


def _labelled(
    call: LabelCall,
    session: LabelSession,
    root: Path,
    find: Callable[[], list[str]],
    looking: FeatureModel,
    sorted_into: Path | None,
    page: Page,
) -> Labelled:
    """Serve the page until it is ended, and return the labels."""
    device = pick_device(looking.device)
    name, loaded = looking.load()
    classifier, _ = adopt(loaded, labels=("0", "1"), new_head=True)
    precision = pick_precision(looking.precision, device)
    feature_thread = FeatureThread(
        session, classifier.to(device).for_inference(), root, precision, find
    )
    feature_thread.take_up()
    written: list[Path] = []
    one_at_a_time = threading.Lock()  # two people may press Finish simultaneously

    def finish(links: bool) -> list[str]:
        with one_at_a_time:
            made = save_model(session, classifier, root, precision, name)
            written.append(made.path)
            said = [f"{made.path} has learned from {counted(made.photographs, 'photograph')}"]
            if made.unseen:
                said[0] += f"; {made.unseen:,} with a class it has not seen yet, or they are gone"
            for metric in made.metrics[:1]:
                said.append(f"{metric.text()} of them are classified correctly in cross-validation")
            if links or sorted_into is not None:
                said.append(sort_into(session, root, sorted_into or session.folder / "sorted"))
            labels = session.folder / LABELS
            said.append(f"Next: {step('predict', made.path, IMAGES)}")
            said.append(f"A better model of the same labels: {step('finetune', labels)}")
            return said

    feature_thread.start()
    try:
        _serve(page, Operations(session, root, finish, lambda: feature_thread.problem))
    finally:
        with suppress(KeyboardInterrupt):
            feature_thread.end()
    unreadable = tuple(session.unreadable())
    model = written[-1] if written else None
    return Labelled(call, session.folder / LABELS, model, session.progress(), unreadable)


def _checked(
    call: LabelCall, folder: Path, root: Path, looking: FeatureModel, page: Page
) -> Checked:
    """Serve the page with a review's findings until it is ended, and return the decisions."""
    splits = splits_at(str(root))
    if splits.target_kind != "class":
        raise BadData(f"{root} has no class folders to check; label it without `check`")
    _, loaded = looking.load()
    device = pick_device(looking.device)
    findings, facts = look_through(splits, loaded.to(device).for_inference())
    for fact in facts:
        say(fact)
    parts = splits.sources
    first = next(iter(parts.values()))
    checking = Checking(_checks(parts, findings), first.labels, folder, heading_of_list(first))

    def finish(links: bool) -> list[str]:
        checking.write()
        if checking.problem:
            raise BadSettings(checking.problem)
        purpose = _how_to_use_the_list(call.photographs, checking.file)
        return [f"wrote {checking.file}", purpose]

    _serve(page, Operations(checking, Path(), finish, lambda: ""))
    return Checked(call, checking.file, checking.progress())


def _checks(parts: dict[str, Source], findings: list[Finding]) -> list[Check]:
    """One question for each image that a review names, with all findings about it; without images whose
    names cannot be shown."""
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


def _how_to_use_the_list(photographs: str, path: Path) -> str:
    """A sentence with the commands that use the list of images to change."""
    reviewing = step("review", photographs, apply=path)
    finetuning = step("finetune", photographs, data__exclude=path)
    return f"next: {reviewing} says which files it would move, and with `yes` moves them; or {finetuning}"


def _serve(page: Page, table: Operations) -> None:
    """Serve the page until it is ended."""
    port = page.listener.getsockname()[1]

    def started(address: str) -> None:
        how_it_ends = "Ctrl-C ends it; what was answered is kept"
        announce_page(address, page.port, port, how_it_ends, page.open)

    here = (
        copy_context()
    )  # the server's thread has its own context, where calls are spelt as Python

    def finish_here(links: bool) -> list[str]:
        context = here.copy()
        return [context.run(as_spelled, each) for each in context.run(table.finish, links)]

    serve_page(application(replace(table, finish=finish_here)), page.listener, page.host, started)
