"""Data sets from strangers: whatever is in a file, one sentence, in little time and memory."""

import os
import tarfile
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import encoded, photograph

from vitkit.data import BadImage, open_parts, open_source
from vitkit.data.formats import parquet
from vitkit.data.loading.workers import Crashed, in_child
from vitkit.data.sources.tables import Columns
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
    with pytest.raises(ValueError, match="a row group would take 18,.* bytes of memory, out of"):
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
    assert any("look alike" in note and composed in note for note in parts.notes)

    manifest.write_text("\n".join(["image,label", *names[1:]]), "utf-8")
    parts = open_parts(str(manifest))
    assert parts.sources[""].labels == (composed, "tea")
    assert not any("look alike" in note for note in parts.notes)


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
