"""Records from a stranger: a canary is planted in every field, by and by, of every record that commands
read, and must not sing (canaries.py): no code is run, no address asked, and nothing outside is changed."""

import contextlib
import io
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from canaries import Canaries, plant
from pictures import make_photographs
from rich.console import Console

import vitkit
from fuzzing.records import _two_runs
from fuzzing.subject import Subject
from vitkit.apps.doctor.run import examine_run
from vitkit.apps.faster.subjects import of_run
from vitkit.apps.label.answers import JOURNAL
from vitkit.apps.label.directory import RECORD, record_session
from vitkit.apps.label.saving import sort_into
from vitkit.apps.label.session import LabelSession
from vitkit.apps.suites.images import find_all
from vitkit.apps.suites.task import read_suite
from vitkit.data import Augmentation, Preprocessing, open_source
from vitkit.exporting.function import _own_trial
from vitkit.models import ViTConfig, create, vit
from vitkit.recipes import Data, Recipe
from vitkit.system.errors import VitkitError
from vitkit.system.span import Span
from vitkit.training import read_rows, read_run, run_recipe
from vitkit.weights import Classifier, load, save

RECIPE = Recipe(
    model=ViTConfig(width=16, depth=1, mlp=16, heads=2, patch=4, image=(8, 8), classes=0),
    data=Data(
        source="photos",
        preprocessing=Preprocessing(size=(8, 8)),
        augmentation=Augmentation(crop="none", flip=False),
        workers=0,
    ),
    length=Span(4),
    batch=8,
    evaluate_every=Span(4),
    save_every=Span(2),
)


@cache
def _canaries(folder: Path, process: int) -> Canaries:
    """The canaries of a process, beside the folder that is used."""
    return Canaries(folder.parent / "canaries")


def _planted(file: Path, random: Random) -> None:
    """Plant one in a file."""
    folder = next(path for path in file.parents if path.name == "damaged")
    plant(file, random, _canaries(folder, os.getpid()))


def _silent(*uses: Callable[[Path], None]) -> Callable[[Path], None]:
    """Each use, whether the one before it was refused or not; then the canaries must have been silent."""

    def use(folder: Path) -> None:
        canaries = _canaries(folder, os.getpid())
        sentences = []
        for one in uses:
            try:
                with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
                    one(folder)
            except (VitkitError, OSError) as error:
                sentences.append(str(error).split("\n")[0])
            heard = canaries.sang()
            assert not heard, (one, heard)
        if sentences:
            raise VitkitError(sentences[0])

    return use


def _trained(folder: Path) -> None:
    """A run of `train`, and another one."""
    make_photographs(folder)
    with contextlib.chdir(folder):
        for name in ("run", "other"):
            run_recipe(RECIPE, Path(name), "cpu", Console(quiet=True))


def _report(name: str) -> Callable[[Path], None]:
    return lambda folder: vitkit.report(name)


def _compare(one: str, two: str) -> Callable[[Path], None]:
    return lambda folder: vitkit.compare(one, two)


def _search(name: str) -> Callable[[Path], None]:
    """What `faster` and `export` read before they compute."""

    def use(folder: Path) -> None:
        classifier = load(name, quiet=True)
        _own_trial(read_run(Path(name)), classifier, 4)
        try:
            of_run(classifier, Path(name))
        except VitkitError as error:  # so few photographs were held out
            if "at least 20 are needed" not in str(error):
                raise

    return use


def _examine(name: str) -> Callable[[Path], None]:
    return lambda folder: (
        vitkit.doctor(run=Path(name), model=name) and list(examine_run(Path(name)))
    )


def _continue(folder: Path) -> None:
    run_recipe(RECIPE, Path("run"), "cpu", Console(quiet=True))


def _finetune(folder: Path) -> None:
    vitkit.finetune("start", "photos", minutes=0.001, device="cpu")


def _model(folder: Path) -> None:
    network = create(vit("mu/8", image=(16, 16), classes=2, depth=1, width=16, mlp=16, heads=2))
    save(Classifier(network, Preprocessing(size=(16, 16)), ("a", "b")), folder / "model")


def _load(folder: Path) -> None:
    save(load("model", heads=2, quiet=True), Path("again"))


def _selection(folder: Path) -> None:
    make_photographs(folder)
    parts = {"train": {"rows": [0, 30], "classes": [0, 1]}, "test": {"rows": [1], "classes": [0]}}
    values = {"images": "photos", "labels": ["a", "b"], "parts": parts}
    (folder / "some.selection.json").write_text(json.dumps(values))


def _select(folder: Path) -> None:
    source = open_source("some.selection.json")
    assert Path(source.name(0)).resolve().is_relative_to(folder.resolve()), source.name(0)


def _suite(folder: Path) -> None:
    make_photographs(folder)
    (folder / "own.toml").write_text(
        'name = "own"\n[tasks.a]\ndata = "photos"\ngroup = "g"\ntitle = "A"\nsource = "there"\n'
        '[tasks.b]\ndata = "photos/red"\ncolumns = {label = "x"}\n'
    )


def _measure(folder: Path) -> None:
    suite = read_suite("own.toml")
    find_all(suite.tasks, ".", Path("results"), False)


def _session(folder: Path) -> None:
    """A folder with answers about photographs."""
    root = make_photographs(folder)
    session = folder / "session"
    session.mkdir()
    used = root.parent.with_name("damaged") / root.name  # where the copy that is used lies
    about = {"photographs": str(used), "check": False, "process": 1, "machine": "theirs"}
    (session / RECORD).write_text(json.dumps(about))
    lines = []
    for number, name in enumerate(("red/0.jpg", "blue/1.jpg"), 1):
        said = {"number": number, "by": "me", "how": "typed", "decision": "class", "label": "cat"}
        lines.append(json.dumps(said | {"photographs": [name]}))
    (session / JOURNAL).write_text("\n".join(lines) + "\n")


def _go_on(folder: Path) -> None:
    record_session(Path("session"), Path("photos"), False)
    session = LabelSession(["red/0.jpg", "blue/1.jpg"], Path("session"))
    sort_into(session, Path("photos"), Path("sorted"))
    for path in Path("sorted").rglob("*"):
        assert path.resolve().is_relative_to(folder.resolve()), path
        assert path.name in ("0.jpg", "1.jpg") or path.is_dir(), path


def _rows(folder: Path) -> None:
    read_rows(Path())


STRANGERS = (
    Subject(
        "stranger's run",
        _trained,
        _silent(
            _report("run"),
            _compare("run", "other"),
            _search("run"),
            _examine("run"),
            _rows,
            _continue,
        ),
        ("run/*.json", "run/*.jsonl", "run/model/*.json", "run/checkpoints/*/state.json"),
        change=_planted,
    ),
    Subject(
        "stranger's quick run",
        _two_runs,
        _silent(
            _report("runs/photos"),
            _compare("runs/photos", "runs/other"),
            _search("runs/photos"),
            _finetune,
        ),
        ("runs/photos/*.json", "runs/photos/*.jsonl", "runs/photos/model/*.json"),
        change=_planted,
    ),
    Subject("stranger's model", _model, _silent(_load), ("model/*.json",), change=_planted),
    Subject("stranger's selection", _selection, _silent(_select), ("*.json",), change=_planted),
    Subject("stranger's suite", _suite, _silent(_measure), ("*.toml",), change=_planted),
    Subject(
        "stranger's session",
        _session,
        _silent(_go_on),
        ("session/*.json", f"session/{JOURNAL}"),
        change=_planted,
    ),
)
