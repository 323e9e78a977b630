"""Every broken image is found before a run, by index and by name."""

import threading

import numpy as np
import pytest

from vitkit.data import Preprocessing, Source, check_images, open_source, open_splits
from vitkit.data.loading import examination
from vitkit.data.sources.stores import Arrays
from vitkit.system.console import progress


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_listed(folder, monkeypatch, workers):
    monkeypatch.setattr(examination, "CHUNK", 2)
    root = folder({f"cat/{i:02}.{'png' if i % 2 else 'jpg'}": 20 for i in range(20)})
    (root / "cat/03.png").write_bytes((root / "cat/03.png").read_bytes()[:200])
    (root / "cat/08.jpg").write_bytes(b"")
    (root / "cat/19.png").unlink()
    source = open_source(str(root))
    assert len(source) == 19
    (root / "cat/17.png").unlink()
    broken = check_images(source, workers)
    assert [index for index, _ in broken] == [3, 8, 17]
    reasons = ("truncated", "is empty: 0 bytes", "is missing")
    for (_, sentence), reason in zip(broken, reasons, strict=True):
        assert "photos/cat/" in sentence and reason in sentence and "\n" not in sentence


@pytest.mark.parametrize(
    "array, broken",
    [
        (np.zeros((5, 8, 8), np.uint8), []),
        (np.zeros((5, 8, 8, 3), np.uint8), []),
        (np.zeros((0, 8, 8), np.uint8), []),
        (np.zeros((5, 8, 8, 2), np.uint8), [0, 1, 2, 3, 4]),
        (np.array([0.5, 0.5, 0.5, np.nan, 0.5], np.float32).repeat(64).reshape(5, 8, 8), [3]),
    ],
    ids=["grey", "colours", "none", "two channels", "floats"],
)
def test_arrays_are_judged_by_the_first_only_where_they_are_alike(array, broken):
    targets = np.zeros(len(array), np.int64)
    source = Source(Arrays("x", array), np.arange(len(array)), targets, ("a",))
    found = check_images(source, 0, preprocessing=Preprocessing((8, 8)))
    assert [index for index, _ in found] == broken
    assert all(f"x image {index} " in sentence for index, sentence in found)


def test_progress_of_other_processes_is_shown_when_it_takes_a_while(monkeypatch, capsys):
    with progress.counted("packing", 7, lambda: 3):
        pass
    assert not capsys.readouterr().err
    asked = threading.Event()
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    monkeypatch.setattr(progress, "_is_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress.counted("packing", 7, lambda: asked.set() or 3):
        assert asked.wait(30)
    out, err = capsys.readouterr()
    assert "packing" in err and not out


def test_progress_is_shown_when_it_takes_a_while(folder, monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(examination, "CHUNK", 1)
    source = open_source(str(folder({f"cat/{i}.png": 8 * (i not in (0, 4)) for i in range(5)})))
    assert [index for index, _ in check_images(source, 0, progress=False)] == [0, 4]
    assert capsys.readouterr().err == ""
    assert [index for index, _ in check_images(source, 0)] == [0, 4]  # under a bar


def test_good_data_sets_are_good(shared):
    assert check_images(open_splits("digits").train, 0) == []
    assert check_images(open_source(str(shared("data/ants_bees-test.parquet"))), 1) == []
    assert check_images(open_source(str(shared("data/eurosat_1k-val.parquet"))), 0) == []
