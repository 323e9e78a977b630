"""`vitkit predict` on the command line: where images come from, where answers go, and what is said of
the rest."""

import csv
import io
import json
import os
import signal
import threading
import time

import pytest
import torch
from pictures import encoded, photograph

from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.prediction import ImageCounter, Prediction
from vitkit.prediction.functions import terminal as answer_table
from vitkit.prediction.functions.terminal import AnswerTable
from vitkit.weights import Classifier, save

LABELS = ("cat", "dog", "a name of a class that is much longer than those of the others")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    network = create(vit("mu/8", image=16, classes=3), seed=0)
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    classifier = Classifier(network, Preprocessing(size=(16, 16)), LABELS)
    return save(classifier, tmp_path_factory.mktemp("model"))


@pytest.fixture
def photos(folder):
    return folder({"1.jpg": 20, "2.png": 24, "inner/3.jpg": 28, "bad.jpg": 0, "notes.txt": 0})


@pytest.fixture
def run(model, capsys):
    """run("photos", "--top", 2): the exit status, standard output and standard error."""

    def run(*words):
        status = main(["predict", str(model), *map(str, words), "--device", "cpu"])
        return status, *capsys.readouterr()

    return run


def test_a_table_when_piped_has_all_text_and_one_heading(run, photos):
    status, out, err = run(photos)
    heading, ruler, *rows, after = out.splitlines()
    assert status == 3 and heading.split() == ["class", "probability", "image", "other", "classes"]
    assert set(ruler) == set("- ") and len(rows) == 3 and after.startswith("next: ")
    assert {row.index(f"{photos}/") for row in rows} == {heading.index("image")}
    assert any(LABELS[2] in row for row in rows) and "\x1b" not in out
    assert f"not classified: {photos}/bad.jpg is empty: 0 bytes" in err
    assert "4 images in " in err and "1 not classified" in err


def test_rows_go_into_a_file_instead(run, photos, tmp_path):
    for suffix in ("csv", "jsonl", "parquet"):
        status, out, _ = run(photos, "--to", tmp_path / f"a.{suffix}", "--top", 2)
        assert status == 3 and f"a.{suffix}: 4 rows" in out and "probability" not in out
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["name"] for row in rows] == [line["name"] for line in lines]
    assert [row["label_2"] for row in rows if row["label"]] == [
        line["labels"][1] for line in lines if "error" not in line or not line["error"]
    ]
    _, out, _ = run(photos, "--json", "--top", 2)
    assert out == (tmp_path / "a.jsonl").read_text()


def test_photographs_are_sorted_beside_the_images_and_again(run, photos):
    for already in ("", "; 3 of them were there already"):
        status, out, err = run(photos, "--sort-into", photos / "sorted", "--sure", 0)
        assert status == 3 and out.count(str(photos)) >= 3
        (summary,) = [line for line in out.splitlines() if line.startswith("sorted 3 into")]
        assert summary.endswith(already) and "4 images in" in err  # those that were sorted are none
    filed = [path.name for path in (photos / "sorted").rglob("*") if path.is_file()]
    assert sorted(filed) == ["1.jpg", "2.png", "3.jpg"]
    _, out, _ = run(photos / "1.jpg", "--sort-into", photos / "other", "--sure", 1, "--json")
    assert json.loads(out)["sorted_to"] == str(photos / "other" / "unsure" / "1.jpg")


def test_patterns_are_expanded(run, photos, monkeypatch):
    monkeypatch.chdir(photos)
    _, out, _ = run("**/*.jpg", "--json")
    names = [json.loads(line)["name"] for line in out.splitlines()]
    assert names == ["1.jpg", "bad.jpg", "inner/3.jpg"]
    status, _, err = run("*.txt")
    assert status == 1 and "matches no image, only notes.txt" in " ".join(err.split())


def test_names_come_through_the_standard_input(run, photos, monkeypatch):
    lines = f"{photos}/1.jpg\n\n{photos}/inner\n{photos}/gone.jpg\n{photos}/notes.zip"
    (photos / "notes.zip").write_bytes(b"PK")
    (photos / "names.txt").write_text(lines)
    for limit, count in ((0, 4), (1, 1)):
        with (photos / "names.txt").open() as file:
            monkeypatch.setattr("sys.stdin", file)
            status, out, _ = run("-", "--json", "--limit", limit)
        names = [json.loads(line)["name"].removeprefix(f"{photos}/") for line in out.splitlines()]
        assert names == ["1.jpg", "inner/3.jpg", "gone.jpg", "notes.zip"][:count]
        assert status == 3 * int(count > 1)
    with (photos / "names.txt").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert "is an archive; unpack it" in run("-")[2]


def test_answers_come_as_the_names_do(model, monkeypatch, capsys):
    """Whoever writes a name waits for its answer before the next."""
    reading, writing = os.pipe()
    answered = []

    def write_names():
        for i in range(3):
            os.write(writing, f"gone{i}.jpg\n".encode())
            ends = time.monotonic() + 10
            while f"gone{i}.jpg" not in "".join(answered) and time.monotonic() < ends:
                time.sleep(0.01)
                answered.append(sys_out.getvalue())
        os.close(writing)

    sys_out = io.StringIO()
    monkeypatch.setattr("sys.stdout", sys_out)
    with os.fdopen(reading) as file:
        monkeypatch.setattr("sys.stdin", file)
        writer = threading.Thread(target=write_names)
        writer.start()
        began = time.monotonic()
        # No workers: they would inherit the end of the pipe that is written to
        words = ["predict", str(model), "-", "--json", "--device", "cpu", "--workers", "0"]
        assert main(words) == 3
        writer.join()
    assert sys_out.getvalue().count("is missing") == 3
    assert time.monotonic() - began < 9


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_folder_is_watched_until_it_is_ended(run, photos, tmp_path, number, request):
    """What is sorted into the watched folder does not come again."""
    # A shell lets what it starts in the background ignore Ctrl-C, these tests too
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    (photos / "bad.jpg").unlink()
    rows = tmp_path / "a.jsonl"

    def arrive():
        partial = tmp_path / "a.jsonl.partial"
        for count in (3, 4):
            ends = time.monotonic() + 20
            while time.monotonic() < ends:
                if partial.exists() and partial.read_text().count("\n") == count:
                    break
                time.sleep(0.02)
            if count == 3:
                (photos / "new.jpg").write_bytes(encoded(photograph(30, 30, seed=9)))
        time.sleep(0.7)  # in which nothing else comes
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=arrive)
    thread.start()
    words = (photos, "--watch", "--to", rows, "--sort-into", photos / "sorted", "--sure", 0)
    status, out, err = run(*words)
    thread.join()
    assert status == 0 and "watching" in err and f"wrote {rows}: 4 rows" in out
    names = [json.loads(line)["name"] for line in rows.read_text().splitlines()]
    assert sorted(names[:3]) == names[:3] and names[3] == str(photos / "new.jpg")
    assert len(list((photos / "sorted").rglob("*.*"))) == 4


def test_ctrl_c_keeps_what_there_is(run, photos, tmp_path, monkeypatch, model):
    def interrupted(self, predictions, extra):
        raise KeyboardInterrupt

    monkeypatch.setattr("vitkit.prediction.rows.JsonRows.write", interrupted)
    assert run(photos, "--to", tmp_path / "a.jsonl")[0] == 130
    assert (tmp_path / "a.jsonl.partial").exists() and not (tmp_path / "a.jsonl").exists()


def test_what_cannot_be_done_is_said_before_it_begins(run, photos, folder, tmp_path):
    (tmp_path / "a.csv").write_text("mine")
    empty = folder({"notes.txt": 0, "more.zip": 0}, "empty")
    sentences = {
        (empty,): "holds no images that are read here, but 1 .txt file, 1 .zip file",
        (photos, "--to", tmp_path / "a.csv"): "is not as vitkit wrote it",
        (photos, "--to", tmp_path / "a.xls"): "its ending says what it is",
        (photos, "--to", tmp_path / "a.csv" / "b.csv"): "could not be written",
        (photos, "--sort-into", photos): "would be taken for images",
        (photos / "inner", "--attention", photos): "would be taken for images",
        (photos, "--sort-into", tmp_path / "a.csv"): "which is a file; give a folder",
        (photos, "--sort-into", tmp_path / "s", "--sure", 2): "a probability from 0 to 1",
        ("digits", "--sort-into", tmp_path / "s"): "image files on this machine",
        ("-", photos): "give it alone",
        (photos / "1.jpg", "--watch"): "watch one folder",
        (photos, "--json", "--to", tmp_path / "b.csv"): "give one of them",
        (photos, "--top", 0): "--top is 0",
        (photos, "--workers", -2): "--workers is -2",
    }
    for words, sentence in sentences.items():
        status, out, err = run(*words)
        assert (status, out) == (1, ""), words
        assert sentence in " ".join(err.split()), err
    assert not (tmp_path / "s").exists() and not (tmp_path / "b.csv").exists()


def test_all_broken_is_said_at_the_end(run, folder):
    broken = folder({f"{i}.jpg": 0 for i in range(53)})
    status, out, err = run(broken)
    assert (status, out) == (3, "")
    assert err.count("not classified: ") == 51 and "3 more; --to FILE lists them all" in err


def test_ten_thousand_classes(folder, tmp_path, capsys):
    network = create(vit("mu/8", image=16, classes=10_000), seed=0)
    torch.nn.init.normal_(network.head.weight)
    labels = tuple(f"class {i}" for i in range(10_000))
    model = save(Classifier(network, Preprocessing(size=(16, 16)), labels), tmp_path / "model")
    photos = folder({"1.jpg": 20})
    assert main(["predict", str(model), str(photos), "--top", "10000", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["labels"]) == 10_000


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_table_on_a_terminal_fits_it_and_has_pages(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    terminal = Terminal()
    table = AnswerTable(LABELS, "softmax", terminal, page=2)
    names = ["a.jpg", "漢字" * 30, "long/" * 20 + "name.jpg"]
    rows = [Prediction(name, LABELS[::-1], (0.5, 0.25, 0.25)) for name in names]
    table.print(rows)
    lines = terminal.getvalue().splitlines()
    assert len(lines) == 8 and sum(line.startswith("class ") for line in lines) == 2
    assert max(answer_table.cell_len(line) for line in lines) <= 70
    assert lines[-1].count("...") >= 2 and "name.jpg" in lines[-1]


def test_a_log_has_a_line_every_half_a_minute(monkeypatch):
    seconds = (0, 29, 31, 60, 62, 70)
    now = iter(seconds)
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    log = io.StringIO()
    progress = ImageCounter(None, log)
    lines = []
    for _ in seconds[1:]:
        progress.count(10, 0)
        lines.append(log.getvalue().count("\n"))
    assert lines == [0, 1, 1, 2, 2]


def test_progress_has_a_rate_and_is_plain_in_a_log(monkeypatch):
    now = iter([0, 3, 3.1, 40, 80, 120])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    terminal = Terminal()
    progress = ImageCounter(1000, terminal)
    progress.count(300, 1)
    progress.count(1, 0)  # too soon for another line
    assert terminal.getvalue() == (
        "\r\x1b[K300 of 1,000 images, 100 a second, 7.0 s left, 1 unreadable"
    )
    progress.wipe()
    assert terminal.getvalue().endswith("\r\x1b[K")

    log = io.StringIO()
    progress = ImageCounter(None, log)
    progress.count(400, 0)
    progress.count(0, 0)  # nothing new to tell
    assert log.getvalue() == "400 images, 10 a second\n"
    assert progress.summary() == "400 images in 40.0 s: 10 a second"
