"""What runs write of themselves, and what is read of it when they are asked again."""

import contextlib
import io
import shutil
from pathlib import Path

import numpy as np
from pictures import encoded

import vitkit
from fuzzing.subject import Subject
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.weights import Classifier, save


def _photographs(folder: Path) -> None:
    """Of two colours, eight of each."""
    for number, colour in enumerate(("blue", "red")):
        (folder / "photos" / colour).mkdir(parents=True)
        for i in range(16):
            pixels = np.full((16, 16, 3), 40, np.uint8)
            pixels[..., 2 * number] = 255
            pixels[i, 3] = 200
            (folder / "photos" / colour / f"{i:02}.png").write_bytes(encoded(pixels, "PNG"))


def _model(folder: Path) -> None:
    network = create(vit("mu/8", image=(16, 16), depth=1, classes=2), seed=0)
    save(Classifier(network, Preprocessing(size=(16, 16)), ("a", "b")), folder / "start")


def _finetune(folder: Path) -> None:
    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
        run = vitkit.finetune("start", "photos", minutes=0.001, device="cpu")
    assert run is not None


def _quick_run(folder: Path) -> None:
    _photographs(folder)
    _model(folder)
    _finetune(folder)


def _report(folder: Path) -> None:
    """Its page."""
    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
        vitkit.report("runs/photos")


def _two_runs(folder: Path) -> None:
    """A run, and the same elsewhere."""
    _quick_run(folder)
    shutil.copytree(folder / "runs" / "photos", folder / "runs" / "other")


def _compare(folder: Path) -> None:
    """Both on one page: from what they wrote down, without their models."""
    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
        vitkit.report("runs/photos", "runs/other")


def _taught(folder: Path) -> None:
    _photographs(folder)
    _model(folder)
    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
        vitkit.teach("start", "taught", add=("photos",), device="cpu")


def _teach(folder: Path) -> None:
    """What it knows."""
    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
        vitkit.teach("taught", device="cpu")


RUN = ("runs/photos/*", "runs/photos/model/*")
RECORDS = (
    Subject("quick run continued", _quick_run, _finetune, RUN),
    Subject("quick run's report", _quick_run, _report, RUN),
    Subject("runs compared", _two_runs, _compare, ("runs/photos/*",)),
    Subject("taught model", _taught, _teach, ("taught/*",)),
)
