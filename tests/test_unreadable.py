"""A folder with images that cannot be read: every command names them, does its work with the others,
and says so by its exit status."""

import csv
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import Forked
from served import make_classifier, running
from tiffs import make_damaged

from vitkit.cli.entry import main
from vitkit.system.functions.arguments import UNREADABLE
from vitkit.weights import save

pytest.importorskip("imagecodecs", reason="the extra tiff is not installed")
QUICK = ["--device", "cpu"]


@pytest.fixture
def model(tmp_path):
    return save(make_classifier(), tmp_path / "model")


@pytest.fixture
def damaged(photographs) -> list[Path]:
    """TIFF files that no decoder reads, among 40 photographs."""
    return make_damaged(photographs / "red")


COMMANDS = {
    "predict": "predict MODEL PHOTOS --device cpu --workers 0",
    "predict, by a worker": "predict MODEL PHOTOS --device cpu --workers 1",
    "predict --to": "predict MODEL PHOTOS --device cpu --workers 1 --to answers.csv",
    "sort": "sort MODEL PHOTOS --device cpu --workers 0 --into sorted",
    "batch": "batch MODEL PHOTOS --device cpu --workers 0 --into parts",
    "stats": "data stats PHOTOS --workers 0",
    "pack": "data pack PHOTOS packed --workers 0",
    "inspect": "inspect MODEL PHOTOS --device cpu --figures filters --no-page",
    "compare": "compare MODEL MODEL PHOTOS",
}


SOONEST = ("predict", "stats", "inspect")
"""One that goes on, one that counts, and one that ends; all others are slow tests."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SOONEST else pytest.mark.slow) for name in COMMANDS],
)
def test_what_cannot_be_read_stops_nothing_and_has_a_status_of_its_own(
    name, model, photographs, damaged, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = COMMANDS[name].replace("MODEL", str(model)).replace("PHOTOS", str(photographs)).split()
    assert main(words) == UNREADABLE
    said = "".join(capsys.readouterr()).replace("\n", " ")
    assert "Traceback" not in said
    if name == "predict --to":
        with Path("answers.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 49 and sum(bool(row["error"]) for row in rows) == len(damaged)
    if name == "batch":
        assert f"49 rows for 49 images, {len(damaged)} of them not classified" in said
    elif name not in ("stats", "pack"):  # which list the first ten, in another order
        assert all(str(path) in said for path in damaged)
    assert main([*words, "--ok-if-unreadable"]) == 0
    for path in damaged:
        path.unlink()
    if name not in ("batch", "pack"):  # which go on, and not with other images
        assert main(words) == 0


def test_a_run_leaves_them_out(photographs, damaged, tmp_path, capsys):
    words = f"train scratch --data.source {photographs} --workdir {tmp_path / 'run'} --length 2"
    words += " --model.image 32 32 --data.preprocessing.size 32 32 --model.patch 16 --batch 8"
    words += " --model.width 24 --model.depth 1 --model.mlp 24 --model.heads 2 --device cpu"
    words += " --data.workers 0"
    assert main(words.split()) == 1
    assert "--data.on-bad-image skip" in capsys.readouterr().err
    assert main([*words.split(), "--data.on-bad-image", "skip"]) == 0
    assert "left out: " in capsys.readouterr().out


def test_a_server_says_which_it_cannot_read(damaged):
    with running() as server:
        for path in damaged:
            answer = server.post(path.read_bytes(), "image/tiff")
            assert answer.status == 422 and answer.error.startswith("image 0 "), path


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_what_was_answered_is_kept(number, suffix, model, photographs, tmp_path, request):
    file = tmp_path / f"answers.{suffix}"
    partial = Path(f"{file}.partial")
    names = [str(photographs / "red" / "1.jpg")] * 5000
    words = ["predict", str(model), *names, "--to", str(file), "--workers", "0", *QUICK]
    # A shell lets what it starts in the background ignore Ctrl-C, these tests too
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    process = Forked([sys.executable, "-m", "vitkit", *words], stderr=subprocess.PIPE, text=True)
    while not (partial.exists() and partial.stat().st_size > 4000):
        assert process.poll() is None
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 130
    assert f"{partial} keeps what was answered" in err.replace("\n", " ")
    if suffix == "parquet":
        import pyarrow.parquet as pq

        assert 0 < pq.read_table(partial).num_rows < 5000
    else:
        assert 0 < len(partial.read_text().splitlines()) < 5000
