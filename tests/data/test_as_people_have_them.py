"""Folders and tables as people really have them: each kind of tree and of table, small, with what it means."""

import io
import json
import re
import tarfile

import pandas as pd
import pytest
from pictures import encoded, photograph

from vitkit.data import Columns, find_images, open_splits
from vitkit.prediction.items import files_of

PICTURE = encoded(photograph(8, 8, 0), "PNG")


# Folders


@pytest.fixture
def tree(tmp_path):
    """Makes photos/ with three images in each of these folders."""

    def make(*folders):
        root = tmp_path / "photos"
        for folder in folders:
            (root / folder).mkdir(parents=True, exist_ok=True)
            for i in range(3):
                (root / folder / f"{i}.png").write_bytes(PICTURE)
        return root

    return make


def parts_of(splits):
    return [name for name in ("train", "val", "test") if getattr(splits, name) is not None]


CATS = ("cat", "dog")


@pytest.mark.parametrize(
    ("folders", "labels", "said"),
    [
        (("2022/cat", "2022/dog", "2023/cat", "2023/dog"), CATS, "folders in 2022, 2023"),
        (("fold1/cat", "fold1/dog", "fold2/cat", "fold2/dog"), CATS, "folders in fold1, fold2"),
        (("camera 1/cat", "camera 1/dog", "camera 2/cat"), CATS, "folders in camera 1, camera 2"),
        (("images/cat", "images/dog"), CATS, "all images lie in images"),
        (("photos/cat", "photos/dog"), CATS, "all images lie in photos"),
        (("flowers/train/cat", "flowers/train/dog", "flowers/test/cat"), CATS, "lie in flowers"),
        (("train/images/cat", "train/images/dog", "test/images/cat"), CATS, "folders in images"),
        (("train/2022/cat", "train/2023/cat", "train/2023/dog", "test/2022/cat"), CATS,
         r"\(if 2022, 2023 are the classes, say .*level.2"),
        # What may be either is read as before, and said
        (("cat/left", "cat/right", "dog/left", "dog/right"), CATS, "of the same names, left, right"),
        (("cats/siamese", "cats/persian"), ("cats",), "if the classes are persian, siamese"),
        # Nothing is said of the usual ones
        (("cat", "dog"), CATS, None),
        (("cat/a/b", "dog/c"), CATS, None),
        (("cat", "cat/more", "dog"), CATS, None),
        (("train/cat", "train/dog", "test/cat"), CATS, None),
    ],
)  # fmt: skip
def test_which_folders_are_the_classes(folders, labels, said, tree):
    splits = open_splits(str(tree(*folders)))
    assert splits.labels == labels
    notes = [note for note in splits.notes if "has no test part" not in note]
    if said is None:
        assert notes == []
    else:
        (note,) = notes
        assert re.search(said, note)


@pytest.mark.parametrize(
    ("folders", "level", "labels", "parts"),
    [
        (("2022/cat", "2022/dog", "2023/cat"), 1, ("2022", "2023"), ["train", "test"]),
        (("cat/left", "cat/right", "dog/left"), 2, ("left", "right"), ["train", "test"]),
        (("images/cat", "images/dog"), 1, ("images",), ["train", "test"]),
        (("train/steam", "car", "bus"), 1, ("bus", "car", "train"), ["train", "test"]),
        (("train/cat/a", "train/dog/a", "test/dog/a"), 2, CATS, ["train", "test"]),
        (("train/2022/cat", "train/2022/dog", "val/2022/cat"), 3, CATS, ["train", "val"]),
    ],
)
def test_the_level_can_be_said(folders, level, labels, parts, tree):
    splits = open_splits(str(tree(*folders)), Columns(level=level))
    assert splits.labels == labels
    assert parts_of(splits) == parts


def test_a_class_called_train_is_a_sentence_with_the_remedy(tree):
    root = tree("train/steam", "train/diesel", "car", "bus")
    with pytest.raises(ValueError, match=r"but bus, car is none of .*if train is a class too, say"):
        open_splits(str(root))
    with pytest.raises(ValueError, match="has no images in folders 4 deep"):
        open_splits(str(root / "train"), Columns(level=4))
    with pytest.raises(ValueError, match="level is -1"):
        Columns(level=-1)


SYSTEM = ("@eaDir/cat", "#recycle", "#snapshot/cat", "$RECYCLE.BIN", "System Volume Information",
          "lost+found", "@Recycle", "cat/@eaDir", "__MACOSX/cat")  # fmt: skip


def test_folders_of_the_system_are_left_out_and_counted(tree):
    root = tree("cat", "dog", *SYSTEM)
    splits = open_splits(str(root))
    assert splits.labels == CATS and len(splits.train) + len(splits.test) == 6
    assert "left out: 9 folders of the system" in splits.notes
    assert len(find_images(root)[0]) == 6
    assert len(files_of(str(root))) == 6
    assert len(files_of(f"{root}/**/*.png")) == 6


def test_a_link_to_a_part_leaves_the_part_where_it_is(tree):
    root = tree("train/cat", "train/dog", "test/cat", "test/dog")
    (root / "val").symlink_to("test")
    splits = open_splits(str(root))
    assert parts_of(splits) == ["train", "test"]
    assert "val is a link to a folder that is read already, so it is left out" in splits.notes
    assert not any("without an image" in note for note in splits.notes)
    (root / "cat").symlink_to(root.parent)  # upwards
    assert len(find_images(root)[0]) == 12


# Tables


@pytest.fixture
def table(tmp_path):
    """Writes a table of images in sub/, and opens it."""
    (tmp_path / "sub").mkdir()
    for i in range(6):
        (tmp_path / "sub" / f"{i}.png").write_bytes(encoded(photograph(8, 8, i), "PNG"))

    def write(name="list.csv", settings=None, **columns):
        count = len(next(iter(columns.values())))
        columns = {"image": [f"sub/{i}.png" for i in range(count)]} | columns
        frame = pd.DataFrame(columns)
        path = tmp_path / name
        if path.suffix == ".csv":
            frame.to_csv(path, index=False)
        elif path.suffix == ".parquet":
            frame.to_parquet(path)
        else:
            path.write_text("\n".join(json.dumps(row) for row in frame.to_dict("records")))
        return open_splits(str(path), settings or Columns())

    return write


def said(splits):
    return " ".join(splits.notes)


@pytest.mark.parametrize(
    "cells",
    [
        ["cat, dog", "cat", "dog", "cat"],
        ["['cat', 'dog']", "['cat']", "['dog']", "[]"],
        ['["cat", "dog"]', '["cat"]', "", '["dog"]'],
        ["cat|dog", "cat", "dog", "cat"],
    ],
)
def test_several_classes_in_a_cell(cells, table):
    splits = table(label=cells)
    assert splits.target_kind == "classes" and splits.labels == CATS
    assert table(label=cells, settings=Columns(target="classes")).labels == CATS


@pytest.mark.parametrize("separator", ["/", " ", "+"])
def test_other_separators_are_asked_about_and_can_be_said(separator, table):
    cells = [f"cat{separator}dog", "cat", "dog", "cat"]
    splits = table(label=cells)
    assert splits.target_kind == "class"
    assert f"separator {separator!r}" in said(splits) or f"separator={separator!r}" in said(splits)
    splits = table(label=cells, settings=Columns(separator=separator))
    assert splits.target_kind == "classes" and splits.labels == CATS


def test_names_with_separators_that_are_no_lists_stay_names(table):
    labels = ["golden retriever", "sea lion/walrus", "Paris, France", "Lyon, France"]
    splits = table(label=labels)
    assert splits.target_kind == "class" and set(splits.labels) == set(labels)
    with pytest.raises(ValueError, match="separator is empty"):
        Columns(separator="")


@pytest.mark.parametrize("name", ["list.csv", "list.jsonl", "list.parquet"])
def test_booleans_are_called_as_in_python(name, table):
    assert table(name, label=[True, False, True, False]).labels == ("False", "True")


@pytest.mark.parametrize("name", ["list.csv", "list.jsonl", "list.parquet"])
def test_a_column_for_each_class(name, table):
    splits = table(name, cat=[1, 0, 1, 0], dog=[1, 1, 0, 0], age=[3, 5, 6, 7])
    assert splits.target_kind == "classes" and splits.labels == CATS
    assert "the columns cat, dog hold 0 and 1" in said(splits)
    splits = table(name, cat=[1, 0, 1, 0], dog=[0, 1, 0, 1])
    assert splits.target_kind == "class" and splits.labels == CATS
    listed = Columns(label="cat,dog")
    splits = table(name, listed, cat=[1, 0, 1, 0], dog=[1, 1, 0, 1], fox=[0, 1, 1, 1])
    assert splits.labels == CATS


def test_a_column_for_each_class_that_is_partly_unknown_is_a_sentence(table):
    with pytest.raises(ValueError, match=r"row 3 does not say .* of the class 'cat'"):
        table(cat=[1, 0, 1, None], dog=[0, 1, 1, 1])
    with pytest.raises(
        ValueError, match=r"row 1 has 7 in the column 'dog'|row 1 has '7' in the col"
    ):
        table(settings=Columns(label="cat,dog"), cat=[1, 0], dog=[1, 7])
    with pytest.raises(ValueError, match="row 0 is of 2 classes, and is to be of one"):
        table(settings=Columns(target="class"), cat=[1, 0], dog=[1, 1])
    with pytest.raises(ValueError, match="none of the columns"):
        table(settings=Columns(target="class"), age=[3, 5], height=[1.5, 2])


def test_paths_as_another_system_wrote_them(table):
    label = ["a", "b", "a", "b"]
    windows = [f"sub\\{i}.png" for i in range(4)]
    assert table(image=windows, label=label).train[0][0]
    capitals = [f"SUB/{i}.PNG" for i in range(4)]
    splits = table(image=capitals, label=label)
    assert splits.labels == ("a", "b") and "4 paths found in other capital letters" in said(splits)
    with pytest.raises(ValueError, match=r"row 0 names 'x/0\.png', and there is no such file"):
        table(image=["x/0.png", "sub/1.png"], label=["a", "b"])
    with pytest.raises(ValueError, match="leads out of"):
        table(image=["..\\..\\0.png", "sub/1.png"], label=["a", "b"])


@pytest.mark.parametrize("struct", [False, True])
def test_parquet_rows_with_a_path_and_no_bytes(struct, table):
    paths = [f"sub/{i}.png" for i in range(4)]
    if struct:
        paths = [{"bytes": None, "path": path} for path in paths]
    splits = table("list.parquet", image=paths, label=["a", "b", "a", "b"])
    assert splits.labels == ("a", "b") and splits.train[0][0]


def test_an_image_with_several_rows_is_said(table):
    images = ["sub/0.png", "sub/1.png", "sub/0.png", "sub/1.png"]
    assert "1 image with several rows" in said(table(image=images, label=["a", "b", "a", "c"]))
    assert "several rows" not in said(table(image=images, label=["a", "b", "a", "b"]))


def test_classes_that_differ_in_capital_letters_alone_are_said(table, tree):
    assert "Glas and glas" in said(table(label=["Glas", "glas", "Holz", "Glas"]))
    assert "Cat and cat" in said(open_splits(str(tree("Cat", "cat", "dog"))))


@pytest.mark.parametrize("dotted", [True, False])
def test_members_of_a_tar_with_dots_in_their_names(dotted, tmp_path):
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w") as shard:
        for i in range(4):
            stem = f"IMG.2024.{i}" if dotted else f"{i}"
            files = {f"{stem}.png": PICTURE, f"{stem}.cls": b"ab"[i % 2 : i % 2 + 1]}
            if not dotted:
                files[f"{stem}.seg.png"] = PICTURE  # of the same example, and no image of its own
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                shard.addfile(info, io.BytesIO(content))
    splits = open_splits(str(path))
    assert splits.labels == ("a", "b") and len(splits.train) + len(splits.test) == 4
