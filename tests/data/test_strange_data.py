"""Data sets from strangers: whatever is in a file, one sentence, in little time and memory."""

import contextlib
import json
import os
import tarfile
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from canaries import Canaries
from pictures import encoded, make_photographs, photograph

from vitkit.data import (
    Columns,
    open_parts,
    open_source,
    parts_at,
    source_at,
    splits_at,
    write_selection,
)
from vitkit.data.formats import parquet
from vitkit.data.loading.workers import Crashed, in_child
from vitkit.system.errors import BadImage
from vitkit.training.state.checkpoints import earlier_call

# Parquet


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "data.parquet"
    image = {"bytes": encoded(photograph(8, 8)), "path": "0.jpg"}
    pq.write_table(pa.table({"image": [image] * 4, "label": ["ant", "bee"] * 2}), path)
    return path


def with_bit_flipped(data, bit):
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def read_metadata(data, bit):
    try:
        with pq.ParquetFile(pa.BufferReader(with_bit_flipped(data, bit))) as file:
            group = file.metadata.row_group(0)
            for i in range(group.num_columns):
                group.column(i)
    except (pa.ArrowException, OSError):
        return


def fatal_bit(data):
    """A bit of the metadata at which pyarrow ends the process: it makes the list of sizes of levels
    longer, for one."""
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    bits = range(8 * start, 8 * (start + 100))
    with pytest.raises(Crashed) as crash:
        list(in_child(partial(read_metadata, data), bits))
    return crash.value.args[0]


def own_number(item):
    return os.getpid()


def test_a_child_leaves_no_process_behind():
    [child] = in_child(own_number, [0])
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_metadata_that_crash_pyarrow_are_a_sentence(table):
    data = table.read_bytes()
    table.write_bytes(with_bit_flipped(data, fatal_bit(data)))
    with pytest.raises(ValueError, match="metadata is damaged, so that pyarrow crashes on it"):
        open_source(str(table))


def test_a_parquet_file_is_opened_in_a_child_once(table, monkeypatch):
    calls = []

    def counted(task, items):
        calls.append(items)
        return in_child(task, items)

    monkeypatch.setattr(parquet, "in_child", counted)
    first = open_source(str(table))
    second = open_source(str(table))
    assert len(calls) == 1
    assert first.targets.tolist() == second.targets.tolist() == [0, 1, 0, 1]
    open_source(str(table), Columns(label="label"))  # other columns are another look
    os.utime(table, ns=(0, 0))
    open_source(str(table))
    assert len(calls) == 3


def test_a_row_group_that_inflates_is_refused(tmp_path):
    path = tmp_path / "bomb.parquet"
    images = [bytes(1 << 20)] * 18
    pq.write_table(pa.table({"image": images}), path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match="a row group would take 18,.* bytes of memory"):
        open_source(str(path))


# Names


def test_class_names_that_differ_in_composition_are_one_class(tmp_path):
    composed = "caf\u00e9"
    decomposed = "cafe\u0301"
    names = []
    for i, name in enumerate([composed, decomposed, "tea"]):
        (tmp_path / f"{i}.jpg").write_bytes(encoded(photograph(8, 8)))
        names.append(f"{i}.jpg,{name}")
    manifest = tmp_path / "list.csv"
    manifest.write_text("\n".join(["image,label", *names]), "utf-8")
    parts = open_parts(str(manifest))
    source = parts.sources[""]
    assert source.labels == (composed, "tea")
    assert source.targets.tolist() == [0, 0, 1]
    assert any(
        "composed and decomposed Unicode" in note and composed in note for note in parts.notes
    )

    manifest.write_text("\n".join(["image,label", *names[1:]]), "utf-8")
    parts = open_parts(str(manifest))
    assert parts.sources[""].labels == (composed, "tea")
    assert not any("composed and decomposed Unicode" in note for note in parts.notes)


# Manifests


def test_a_path_lies_in_the_manifests_folder_however_it_is_written(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(encoded(photograph(8, 8)))
    manifest = folder / "list.csv"
    for path in ("a.jpg", "./a.jpg", "b/../a.jpg", "../photos/a.jpg", str(folder / "a.jpg")):
        manifest.write_text(f"image,label\n{path},cat\n")
        assert open_source(str(manifest)).name(0) == str(folder / "a.jpg")
    for path in ("../a.jpg", str(tmp_path / "a.jpg"), "b/../../a.jpg", str(folder / "../a.jpg")):
        manifest.write_text(f"image,label\n{path},cat\n")
        with pytest.raises(ValueError, match="which leads out of"):
            open_source(str(manifest))


# What is no file


def test_pipes_are_refused_at_once(tmp_path):
    (tmp_path / "ant").mkdir()
    os.mkfifo(tmp_path / "ant" / "0.jpg")
    source = open_source(str(tmp_path))
    with pytest.raises(BadImage, match=r"0.jpg is not a file"):
        source[0]
    for name in ("data.parquet", "data.tar", "list.csv"):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / name)
        with pytest.raises(ValueError, match="is a pipe, a device or a socket"):
            open_source(str(tmp_path / name / name))
    with pytest.raises(ValueError, match="data.tar is a pipe, a device or a socket"):
        open_source(str(tmp_path / "data.tar"))


@pytest.mark.parametrize("name", ["recipe.json", "LAST", "model/config.json"])
def test_a_pipe_in_a_run_is_refused_at_once(tmp_path, name):
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match="is a pipe, a device or a socket"):
        earlier_call(tmp_path)


def test_a_tar_whose_header_claims_exabytes_is_a_sentence(tmp_path):
    member = tarfile.TarInfo("0.jpg")
    member.type = tarfile.XHDTYPE  # a header of more words about the next member: read whole
    member.size = 1 << 62
    path = tmp_path / "data.tar"
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(2 * tarfile.BLOCKSIZE))
    with pytest.raises(ValueError, match=r"data\.tar is not a readable tar file: [^\n]+$"):
        open_source(str(path))


@pytest.mark.parametrize("name", ["list.jsonl", "classes.json"])
def test_json_that_is_nested_too_deeply_is_a_sentence(name, tmp_path):
    (tmp_path / name).write_bytes(b'{"image": ' + b"[" * 100_000)
    with pytest.raises(ValueError):
        open_source(str(tmp_path / name))


# Names in files: of code, of other machines, and of what lies outside


@pytest.fixture
def canaries(tmp_path):
    with contextlib.closing(Canaries(tmp_path / "canaries")) as planted:
        yield planted


def test_code_is_run_only_for_who_says_that_a_person_typed_its_name(canaries):
    for open_at in (parts_at, source_at, splits_at):
        with pytest.raises(ValueError, match="vitkit runs no code that a file names"):
            open_at(canaries.code)
        assert canaries.sang() == []
    for open_at in (open_source, partial(source_at, typed=True)):
        with pytest.raises(ValueError, match="this function was run"):
            open_at(canaries.code)
        assert canaries.sang() == ["its code was run"]


def selection(folder, images):
    """A file that selects the first two images of a data set."""
    parts = {"train": {"rows": [0, 1], "classes": [0, 1]}}
    path = folder / "some.selection.json"
    path.write_text(json.dumps({"images": images, "labels": ["a", "b"], "parts": parts}))
    return str(path)


def test_a_selection_leads_nowhere_but_below_its_folder(tmp_path, canaries, monkeypatch):
    folder = tmp_path / "theirs"
    folder.mkdir()
    make_photographs(folder)
    for images in ("photos", "./photos", "x/../photos", str(folder / "photos")):
        chosen = open_parts(selection(folder, images)).sources["train"]
        assert chosen.name(0).startswith(str(folder / "photos"))

    # From its own folder, and not from where the command is typed
    monkeypatch.chdir(canaries.outside)
    assert open_parts(selection(folder, "photos")).sources["train"].name(0).startswith(str(folder))
    outside = f"{folder}/{{..,..}}/canaries/outside/photos"
    more = (
        "hf:you/birds",
        "s3://bucket/x.parquet",
        "//server/share",
        "/",
        outside,
        "../canaries/*/photos",
    )
    for images in (*canaries.names(folder), *more):
        with pytest.raises(ValueError, match="leads out of|a file names|names the pattern"):
            open_parts(selection(folder, images))
        assert canaries.sang() == []


def test_a_selection_that_a_suite_of_this_user_wrote_leads_where_it_says(tmp_path, monkeypatch):
    """The images of an original data set are wherever they are; a copy of the file is the same file."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    photos = str(make_photographs(tmp_path / "originals"))
    path = tmp_path / "runs/suite/task.selection.json"
    rows = {"train": np.array([0, 39])}
    write_selection(path, photos, ("a", "b"), rows, {"train": np.array([0, 1])})
    assert open_parts(str(path)).sources["train"].name(0).startswith(photos)
    path.write_text(path.read_text() + " ")
    with pytest.raises(ValueError, match="leads out of"):
        open_parts(str(path))


def test_a_directory_that_datasets_saved_leads_nowhere_else(tmp_path):
    """Its state.json names files, and its dataset_dict.json folders."""
    datasets = pytest.importorskip("datasets")
    images = [{"bytes": encoded(photograph(8, 8)), "path": None}] * 4
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(2))
    rows = datasets.Dataset.from_dict({"image": images, "label": [0, 1] * 2}, features)
    rows.save_to_disk(tmp_path / "secret")
    rows.save_to_disk(tmp_path / "theirs")
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path / "several")

    state = tmp_path / "theirs/state.json"
    values = json.loads(state.read_text())
    (file,) = (tmp_path / "secret").glob("*.arrow")
    assert len(open_source(str(tmp_path / "theirs"))) == 4
    for name in (f"../secret/{file.name}", str(file), 3, ""):
        state.write_text(json.dumps(values | {"_data_files": [{"filename": name}]}))
        with pytest.raises(ValueError, match="leads out of|no usable path"):
            open_source(str(tmp_path / "theirs"))
    # `datasets` reads it although a file of all parts is beside it
    state.write_text(json.dumps(values | {"_data_files": [{"filename": f"../secret/{file.name}"}]}))
    (tmp_path / "theirs/dataset_dict.json").write_text(json.dumps({"splits": []}))
    with pytest.raises(ValueError, match="leads out of"):
        open_source(str(tmp_path / "theirs"))
    of_all = tmp_path / "several/dataset_dict.json"
    for name in ("../secret", str(tmp_path / "secret")):
        of_all.write_text(json.dumps({"splits": [name]}))
        with pytest.raises(ValueError, match="leads out of"):
            open_source(str(tmp_path / "several"))
