"""A data set is known again: by its images' names and sizes, and not by the way to them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from pictures import encoded, photograph
from stored import shard, write_parquet

from vitkit.curation.packing import Packing, pack_shards
from vitkit.data import fingerprint, open_parts, open_source, open_splits, without, write_list


def pictures(*seeds: int) -> list[bytes]:
    return [encoded(photograph(24, 24, seed)) for seed in seeds]


def write(path: Path, *seeds: int) -> str:
    """A parquet file or a tar shard of pictures, by its suffix."""
    if path.suffix == ".parquet":
        return write_parquet(path, pictures(*seeds), classes=2)
    members = {}
    for i, data in enumerate(pictures(*seeds)):
        members |= {f"{i}.jpg": data, f"{i}.cls": str(i % 2).encode()}
    return str(shard(members, path))


def test_a_folder_is_the_same_however_it_is_spelled_and_whenever_it_was_copied(
    folder, tmp_path, monkeypatch
):
    root = folder({f"{kind}/{i}.png": 20 for kind in ("ant", "bee") for i in range(4)})
    known = fingerprint(open_source(str(root)))
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    monkeypatch.chdir(tmp_path)
    for where in ("photos", "./photos", str(root / ".." / "photos"), "copy"):
        assert fingerprint(open_source(where)) == known
    (root / "ant/2.png").write_bytes(encoded(photograph(20, 24, 99), "PNG"))
    assert fingerprint(open_source(str(root))) != known
    (tmp_path / "copy/bee").rename(tmp_path / "copy/wasp")
    assert fingerprint(open_source("copy")) != known


def test_other_images_under_the_same_names_are_other_images(tmp_path):
    for name in ("x.parquet", "x.tar"):
        one = open_source(write(tmp_path / "one" / name, *range(8)))
        same = open_source(write(tmp_path / "same" / name, *range(8)))
        other = open_source(write(tmp_path / "other" / name, *range(7), 99))
        assert [one.name(i) for i in range(8)] == [other.name(i) for i in range(8)]
        assert fingerprint(one) == fingerprint(same) != fingerprint(other)


def test_a_saved_data_set_is_known_by_its_bytes(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["ant", "bee"])
    )
    for name, last in (("one", 7), ("same", 7), ("other", 99)):
        images = [{"bytes": data, "path": None} for data in pictures(*range(7), last)]
        rows = datasets.Dataset.from_dict({"image": images, "label": [0, 1] * 4}, features)
        rows.save_to_disk(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    one = fingerprint(open_source(str(tmp_path / "one")))
    assert one == fingerprint(open_source("same"))
    assert one != fingerprint(open_source("other"))


def test_a_list_for_images_that_have_changed_is_refused(tmp_path):
    write(tmp_path / "t-test.parquet", 3, 50)
    write(tmp_path / "t-train.parquet", *range(8))
    where = str(tmp_path / "t")
    drop = tmp_path / "drop.txt"
    train = open_splits(where).train
    write_list(drop, train, {3: "the same as another"})
    assert len(without(train, drop)) == 7
    write(tmp_path / "t-train.parquet", 6, 7, 4, 5, 2, 3, 0, 1)
    with pytest.raises(ValueError, match="drop.txt was written for other images of the same names"):
        without(open_splits(where).train, drop)
    drop.write_text(f"# by hand\n{train.name(3)}\n")
    assert len(without(open_splits(where).train, drop)) == 7


def test_packing_goes_on_from_another_folder_and_notices_other_images(
    folder, tmp_path, monkeypatch
):
    root = folder({f"{kind}/{i}.png": 20 for kind in ("ant", "bee") for i in range(4)})
    out = tmp_path / "out"
    pack_shards(open_parts(str(root))[0], out, Packing(), 0)
    monkeypatch.chdir(tmp_path)
    assert pack_shards(open_parts("photos")[0], out, Packing(), 0).written == 8
    (root / "ant/2.png").write_bytes(encoded(photograph(20, 24, 99), "PNG"))
    with pytest.raises(ValueError, match="holds shards of other images"):
        pack_shards(open_parts("photos")[0], out, Packing(), 0)


@pytest.mark.parametrize("name", ["x.parquet", "x.tar"])
def test_files_of_one_name_in_several_folders_have_names_of_their_own(tmp_path, name):
    write(tmp_path / "set" / "a" / name, *range(4))
    write(tmp_path / "set" / "b/c" / name, *range(4, 8))
    source = open_source(str(tmp_path / "set" / f"{{a,b/c}}/{name}"))
    names = [source.name(i) for i in range(8)]
    assert len(set(names)) == 8
    assert names[0].startswith(f"a/{name} ") and names[7].startswith(f"b/c/{name} ")
    drop = tmp_path / "drop.txt"
    write_list(drop, source, {5: "like another"})
    assert np.array_equal(without(source, drop).rows, [0, 1, 2, 3, 4, 6, 7])
    drop.write_text("\n".join(source.name(i) for i in range(len(source))))
    with pytest.raises(ValueError, match="lists all 8 training images, so none is left"):
        without(source, drop)
