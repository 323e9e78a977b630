"""Predictions as files for other programs: what is in them, and what happens to what was there."""

import contextlib
import csv
import errno
import json
import os
from dataclasses import asdict

import pyarrow.parquet as pq
import pytest

import vitkit
from vitkit.cli.spelling import as_options
from vitkit.prediction import Prediction, rows
from vitkit.prediction.rows import RowsFile
from vitkit.system.console.messages import spelled

GOOD = Prediction("a.jpg", ("cat", "dog"), (0.75, 0.25), "dog")
EVIL = Prediction("=cmd|' /C calc'!A0.jpg", ("+1", "@x"), (0.5, 0.5))
BROKEN = Prediction('b\n",\udcff.jpg', error="b.jpg is missing")
ALL = [GOOD, EVIL, BROKEN]
LIMITS = ("unknown", "possible")  # fields of a prediction that are left out where there are none


def test_a_file_of_answers_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(path.exists()))
    written(path)
    assert synced[0] is False and path.exists()  # then what vitkit remembers of it


def written(path, extra=()):
    more = [dict.fromkeys(extra, "there") for _ in ALL]
    with RowsFile(path, 2, extra) as file:
        file.write(ALL[:1], more[:1])
        file.write(ALL[1:], more[1:])
    assert not path.with_name(f"{path.name}.partial").exists()
    return path


def test_csv_has_a_row_for_each_and_no_formula(tmp_path):
    path = written(tmp_path / "new folder" / "a.csv", ["sorted_to"])
    with path.open(newline="", encoding="utf-8") as file:
        good, evil, broken = csv.DictReader(file)
    expected = {"name": "a.jpg", "label": "cat", "probability": "0.75", "label_2": "dog"}
    expected |= {"probability_2": "0.25", "truth": "dog", "error": "", "sorted_to": "there"}
    assert good == expected
    assert evil["name"] == "'=cmd|' /C calc'!A0.jpg" and evil["label_2"] == "'@x"
    assert evil["label"] == "+1"  # a number, as some classes are called
    assert broken["name"] == 'b\n",\\udcff.jpg' and broken["error"] == BROKEN.error


def test_no_control_character_reaches_the_terminal_of_who_prints_a_file(tmp_path):
    name = "a\x1b[2J\x9b\r\t\x00\u202e.jpg"
    for suffix in ("csv", "jsonl"):
        path = tmp_path / f"a.{suffix}"
        with RowsFile(path, 2) as file:
            file.write([Prediction(name, ("\x1b]0;cat\x07", "dog"), (0.75, 0.25))], [{}])
        text = path.read_bytes().decode()
        assert not any(c.isprintable() is False and c != "\n" for c in text), suffix
        assert "x1b" in text or "u001b" in text


def test_json_lines_and_parquet_have_the_exact_text(tmp_path):
    lines = written(tmp_path / "a.jsonl").read_text().splitlines()
    good, evil, broken = map(json.loads, lines)
    said = {
        name: value
        for name, value in asdict(GOOD).items()
        if name not in (*LIMITS, "label", "probability")
    }
    assert good == said | {"labels": ["cat", "dog"], "probabilities": [0.75, 0.25]}
    assert evil["name"] == EVIL.name
    assert broken == {"name": BROKEN.name, "error": BROKEN.error}

    table = pq.read_table(written(tmp_path / "a.parquet", ["attention"]))
    assert table.column("probability_2").to_pylist() == [0.25, 0.5, None]
    assert table.column("name").to_pylist()[1:] == [EVIL.name, 'b\n",\\udcff.jpg']
    assert table.column("truth").to_pylist() == ["dog", None, None]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_an_error_is_spelt_as_on_the_terminal(tmp_path, suffix):
    error = Prediction("b.tif", error="b.tif is too large; raise the limits with `max_pixels=N`")
    with spelled(as_options), RowsFile(tmp_path / f"a.{suffix}", 2) as file:
        file.write([error], [{}])
    assert "; raise the limits with --max-pixels N" in (tmp_path / f"a.{suffix}").read_text()


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_only_own_files_are_replaced(tmp_path, suffix):
    path = written(tmp_path / f"a.{suffix}")
    first = path.read_bytes()
    written(path)
    assert path.read_bytes() == first
    path.write_bytes(b"somebody's")
    with pytest.raises(ValueError, match="is not as vitkit wrote it"):
        written(path)
    assert path.read_bytes() == b"somebody's"


def test_an_edited_file_is_somebodys(tmp_path):
    path = written(tmp_path / "a.csv")
    path.write_text(path.read_text().replace("cat", "lynx"))
    with pytest.raises(ValueError, match="give another name, or remove it"):
        written(path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_what_there_is_after_an_interruption_can_be_read(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    path.touch()
    with pytest.raises(KeyboardInterrupt), RowsFile(path, 2) as file:
        file.write([GOOD], [{}])
        raise KeyboardInterrupt
    partial = tmp_path / f"a.{suffix}.partial"
    assert path.read_bytes() == b""
    if suffix == "parquet":
        assert pq.read_table(partial).num_rows == 1
    else:
        assert "cat" in partial.read_text()
    written(path)  # the next time it is replaced


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    def full(self, *_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.jsonl"
    with RowsFile(path, 2) as file:
        file.write([GOOD], [{}])
        monkeypatch.setattr(rows.JsonRows, "write", full)
        with pytest.raises(
            OSError, match=r"a\.jsonl could not be written: No space left on device"
        ):
            file.write([GOOD], [{}])


class FullDisk:
    """A file on a disk that becomes full after a number of flushes, and then does not take what is buffered."""

    def __init__(self, file, flushes):
        self.file = file
        self.flushes = flushes

    def flush(self):
        self.flushes -= 1
        if self.flushes < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.file.flush()

    def close(self):
        if self.flushes >= 0:
            self.file.close()
            return
        os.close(self.file.fileno())  # what the buffer holds is lost
        with contextlib.suppress(OSError):
            self.file.close()
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("flushes", [0, 1, 2])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_only_rows_that_are_on_a_full_disk_are_said_to_be_kept(tmp_path, capsys, suffix, flushes):
    path = tmp_path / f"a.{suffix}"
    partial = tmp_path / f"a.{suffix}.partial"
    full = pytest.raises(vitkit.Unavailable, match="No space left on device")
    with full as caught, RowsFile(path, 2) as file:
        file.file = FullDisk(file.file, flushes)
        file.rows.file = file.file
        file.write([GOOD], [{}])
        file.write([GOOD], [{}])
    said = " ".join((str(caught.value) + capsys.readouterr().err).split())
    expected = {0: "", 1: "keeps 1 row", 2: f"the rows are in {partial}"}[flushes]
    assert expected in said and ("keeps" in said) == (flushes == 1)
    assert partial.read_text().count("cat") == flushes
    written(path)  # the next time it is replaced


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "a.csv"
    link.symlink_to(tmp_path / "elsewhere" / "b.csv")
    written(link)
    assert link.is_symlink() and "cat" in (tmp_path / "elsewhere" / "b.csv").read_text()


@pytest.mark.parametrize("name", ["a.xlsx", "a", "a.csv.gz"])
def test_other_kinds_of_files_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"`to` is .*; its ending says what it is: \.csv, \.jsonl"):
        RowsFile(tmp_path / name, 2)
