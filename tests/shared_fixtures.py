"""What every test may use; a plugin that conftest.py loads."""

import os
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from secrets import token_hex
from shutil import which

import margins
import numpy as np
import pytest
import torch
from pictures import encoded, make_photographs, photograph
from rich.console import Console

from vitkit.data import Augmentation, Preprocessing
from vitkit.data.sources import bursts, outlines
from vitkit.evaluation.metrics import calibration, metric
from vitkit.evaluation.probes import cross_validation
from vitkit.inspection import Markup
from vitkit.models import ViTConfig, exaflops
from vitkit.recipes import Data, Optim, Recipe
from vitkit.runtimes.graphs import writing
from vitkit.system.span import Span

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session", autouse=True)
def runs_keep_no_file():
    """A run exports its model at its end on CPUs without bfloat16, which takes seconds: tests of other things,
    and the processes that they start, do without, so that they are the same on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITKIT_KEEP_ONNX", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def margins_are_measured(pytestconfig):
    """Among the slow tests, for the table at their end."""
    if pytestconfig.option.markexpr != "slow":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        margins.watch(patch)
        yield


@pytest.fixture
def shared():
    """`shared("data/cifar10-test.parquet")`: a file of the developers' folder, or a skip that says which is missing."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"needs {name} of the developers' shared folder")
        return path

    return find


@pytest.fixture(scope="session")
def chromium():
    """Chromium without a window; or a skip that says what is missing. It ends with its `with`: a loop of its
    own runs in this thread as long as it is there."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright for Python")
    path = which("chromium") or which("chromium-browser") or which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")

    @contextmanager
    def started():
        with api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            yield browser
            browser.close()

    return started


@pytest.fixture
def photographs(tmp_path):
    """A folder of two classes of small photographs."""
    return make_photographs(tmp_path)


@pytest.fixture
def folder(tmp_path):
    """folder({"train/cat/1.jpg": 40, ...}): a folder with images of so many pixels a side (0: an empty file)."""

    def make(files: dict[str, int], name: str = "photos") -> Path:
        for number, (file, side) in enumerate(files.items()):
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            kind = {"png": "PNG", "jpg": "JPEG"}.get(path.suffix[1:].lower(), "PNG")
            path.write_bytes(encoded(photograph(side, side + 4, number), kind) if side else b"")
        return tmp_path / name

    return make


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory):
    """What is kept in the cache is this test's own, and not the developer's; also behind a test's
    `monkeypatch.undo()`."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.getbasetemp() / f"cache-{token_hex(4)}"
        patch.setenv("VITKIT_CACHE", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def pytorchs_products():
    """PyTorch computes all products, so that expected numbers hold on every machine;
    test_dense.py tests the other library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITKIT_MATMUL", "torch")
        yield


@pytest.fixture(scope="session", autouse=True)
def written_at_leisure():
    """No file of a test has to survive a loss of power: the system writes it when it likes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def compared_once():
    """Many tests have the same photographs: which of them may be alike, and how alike two of them are, is
    computed in the first test."""
    known = {}
    chosen = {}
    choose = bursts._candidates

    def candidates(thumbnails, classes, readable):
        asked = (thumbnails.tobytes(), classes.tobytes())
        if asked not in chosen:
            chosen[asked] = choose(thumbnails, classes, readable)
        return chosen[asked]

    def correlations(thumbnails, items):
        seen = [each.tobytes() for each in thumbnails]
        new = []
        for first, seconds in items:
            others = [second for second in seconds if (seen[first], seen[second]) not in known]
            if others:
                new.append((first, others))
        found = []
        if new:
            found = outlines.correlations(thumbnails, new)
        for (first, others), values in zip(new, found, strict=True):
            for second, value in zip(others, values, strict=True):
                known[seen[first], seen[second]] = value
        rows = []
        for first, seconds in items:
            rows.append(np.array([known[seen[first], seen[second]] for second in seconds]))
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bursts, "_candidates", candidates)
        patch.setattr(bursts, "correlations", correlations)
        yield


@pytest.fixture(scope="session", autouse=True)
def operators_are_listed_once():
    """PyTorch's exporter looks through the code of ONNX's operators for every file, which takes a quarter of the
    time of a small model: here for the first one of a process."""
    write = writing.write_onnx
    known = {}

    def write_onnx(*args) -> None:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        listed = ONNXRegistry.from_torchlib

        def from_torchlib(**settings):
            key = tuple(settings.items())
            if key not in known:
                known[key] = listed(**settings)
            registry = copy(known[key])
            registry.functions = {name: list(each) for name, each in registry.functions.items()}
            return registry

        patch.setattr(writing, "write_onnx", write)  # from now on
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(from_torchlib))
        write(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "write_onnx", write_onnx)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny matrices gain nothing from a second thread, and wait for it where the machine is shared.

    For the whole session, so that fixtures of modules compute the same bits as their tests.
    """
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def processes_may_be_forked():
    """The first backward pass decides whether autograd starts threads for a GPU, after which forked
    processes cannot train. Made here, it comes before fake tensors, which pretend that there is one.
    """
    torch.ones(1, requires_grad=True).sum().backward()


@pytest.fixture(autouse=True)
def small_reports(request, monkeypatch):
    """A run's report has no curves, and no count of operations but the formula's, unless a test is
    marked `whole_reports`: these take longer than the small runs of most tests."""
    if request.node.get_closest_marker("whole_reports"):
        return

    def empty(figure, alt: str) -> Markup:
        return Markup(f'<img class=drawing alt="{alt}">')

    for module in ("vitkit.training.reports.report", "vitkit.evaluation.reports.page"):
        monkeypatch.setattr(f"{module}.plot", lambda *_: None)
        monkeypatch.setattr(f"{module}.drawing", empty)
    monkeypatch.setattr(
        "vitkit.training.record.machine.operations",
        lambda recipe, images: exaflops(recipe.model, images),
    )


@pytest.fixture(autouse=True)
def quick_statistics(request, monkeypatch):
    """Intervals are of a tenth of the usual resamples, and a nested cross-validation has two parts, but for
    slow tests and those that are marked `whole_statistics`."""
    marks = {mark.name for mark in request.node.iter_markers()}
    if not marks & {"slow", "whole_statistics"}:
        monkeypatch.setattr(metric, "RESAMPLES", 100)
        monkeypatch.setattr(calibration, "RESAMPLES", 100)
        monkeypatch.setattr(cross_validation, "PARTS", 2)


@pytest.fixture(scope="session")
def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture(scope="session")
def tiny() -> Recipe:
    return Recipe(
        model=ViTConfig(
            width=24,
            depth=2,
            mlp=48,
            heads=2,
            patch=4,
            image=(8, 8),
            classes=0,
            dropout=0.1,
            stochastic_depth=0.1,
        ),
        data=Data(
            source="digits",
            preprocessing=Preprocessing(size=(8, 8)),
            augmentation=Augmentation(crop="pad_crop", pad=1, flip=False),
            workers=0,
        ),
        optim=Optim(lr=2e-3, weight_decay=0.05, warmup=Span(5)),
        length=Span(30),
        batch=50,
        average=0.8,
        log_every=5,
        evaluate_every=Span(10),
        save_every=Span(6),
    )
