"""What an example's answer may be: Lists keep several classes an image."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pictures import encoded, photograph
from stored import shard

from vitkit.data import (
    Columns,
    Lists,
    Preprocessing,
    Source,
    Table,
    eval_batches,
    merge_parts,
    open_source,
    open_splits,
    split_off,
    subset,
)
from vitkit.data.sources.stores import Arrays
from vitkit.data.sources.tables import numbered
from vitkit.data.sources.targets import as_row_labels

SEVERAL = [[0, 2], [], [1], [2, 1, 2]]


def source(targets, target, labels=()):
    images = np.zeros((len(targets), 4, 4), np.uint8)
    return Source(Arrays("x", images), np.arange(len(targets)), targets, labels, target)


def test_lists_are_taken_joined_and_made_rows_of_ones():
    lists = Lists.of(SEVERAL)
    assert [lists.row(i).tolist() for i in range(4)] == [[0, 2], [], [1], [2, 1]]
    picked = lists[np.array([3, 1, 0, 0])]
    assert [picked.row(i).tolist() for i in range(4)] == [[2, 1], [], [0, 2], [0, 2]]
    assert picked.multi_hot(3).tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 1], [1, 0, 1]]
    assert lists[np.array([], int)].multi_hot(3).shape == (0, 3)
    first = source(lists, "classes", ("a", "b", "c"))
    both = merge_parts(first, subset(first, [2, 0]))
    assert [both.targets.row(i).tolist() for i in range(6)] == [
        [0, 2],
        [],
        [1],
        [2, 1],
        [1],
        [0, 2],
    ]


def test_a_batch_holds_what_each_kind_of_target_is():
    kinds = {
        "class": (np.array([1, 0, 1]), torch.tensor([1, 0, 1]), "b"),
        "classes": (Lists.of([[0, 1], [], [1]]), torch.tensor([[1.0, 1], [0, 0], [0, 1]]), "a, b"),
        "number": (np.array([2.5, -1, 0], np.float32), torch.tensor([2.5, -1, 0]), "2.5"),
        "none": (np.full(3, -1), torch.tensor([-1, -1, -1]), None),
    }
    for kind, (targets, expected, answer) in kinds.items():
        part = source(targets, kind, ("a", "b") if kind in ("class", "classes") else ())
        first, second = eval_batches(part, Preprocessing(size=(4, 4)), 2, 0)
        assert torch.equal(torch.cat([first.targets, second.targets])[:3], expected), kind
        assert first.targets.dtype == expected.dtype and part.answer(0) == answer
        assert not second.targets[1].any()  # padding is zeros
        train, test = split_off(part, 0.4, 0)
        assert sorted([*train, *test]) == [0, 1, 2] and len(test) == 1


# What becomes of labels


@pytest.mark.parametrize(("values", "asked", "kind", "expected"), [
    ([3, 0, 1.0], "auto", "class", [3, 0, 1]),
    (["3", "0"], "auto", "class", [3, 0]),
    (["0.5", "12", "-1e3"], "auto", "number", [0.5, 12, -1000]),
    (["1.0", "2.0"], "auto", "class", [0, 1]),  # names: they may be versions
    (["0.5", "cat"], "auto", "class", [0, 1]),
    (["0.5", "1.5"], "class", "class", [0, 1]),
    ([0.5, 2], "auto", "number", [0.5, 2]),
    ([3, 40, 5], "number", "number", [3, 40, 5]),
    (["3", " 40"], "number", "number", [3, 40]),
    ([["a", "c"], [], "b"], "auto", "classes", [[0, 2], [], [1]]),
    ([[2, 0], [1], []], "auto", "classes", [[2, 0], [1], []]),
    (["cat|dog", "", "dog", " cat "], "classes", "classes", [[0, 1], [], [1], [0]]),
    (["cat|dog", "cow"], "auto", "class", [0, 1]),  # nothing says that these are several
    (["cat;dog", "", "dog", " cat "], "classes", "classes", [[0, 1], [], [1], [0]]),
    (["cat;dog", "dog", "cat"], "auto", "classes", [[0, 1], [1], [0]]),
    (["cat|dog", "dog|cow", "cat|cow", "cow"], "auto", "classes", [[0, 2], [2, 1], [0, 1], [1]]),
    (["a;b", "a;c"], "auto", "class", [0, 1]),
    (["a;b|c", "c"], "classes", "classes", [[0, 1], [1]]),  # one separator in all cells
    (['["cat", "dog"]', "[]"], "classes", "classes", [[0, 1], []]),
    (["1|0", "2"], "classes", "classes", [[1, 0], [2]]),
    ([5, 0], "classes", "classes", [[5], [0]]),
    (np.array([1.5, 2]), "auto", "number", [1.5, 2]),
    (np.array([2, 0]), "number", "number", [2, 0]),
    (["x", None, 3], "none", "none", [-1, -1, -1]),
])  # fmt: skip
def test_what_labels_are(values, asked, kind, expected):
    parts = np.full(len(values), "", dtype=object)
    store = Arrays("x", np.zeros((len(values), 4, 4), np.uint8))
    table = Table(store, as_row_labels(values, "list.csv", asked), parts, None, ())
    numbers = numbered(table)
    assert numbers.target_kind == kind
    if kind == "classes":
        assert [numbers.targets.row(i).tolist() for i in range(len(values))] == expected
    else:
        assert numbers.targets.tolist() == expected
    assert bool(numbers.labels) == (kind in ("class", "classes"))


@pytest.mark.parametrize(("values", "note"), [
    (["0.31", "0.5", "n/a"], "classes are called 0.31, 0.5: if these are numbers to predict, set"),
    (["1,5", "2,0", "n/a"], "numbers to predict, write them with a decimal point, as 1.5"),
    (["a;b", "c"], "classes are called a;b: if these are several classes each, set"),
    ([20, 35], "(if they are numbers to predict: `data.columns.target='number'`)"),
    (["1.0", "cat"], None),
])  # fmt: skip
def test_classes_that_may_be_meant_otherwise_are_said(values, note):
    store = Arrays("x", np.zeros((len(values), 4, 4), np.uint8))
    parts = np.full(len(values), "", dtype=object)
    found = numbered(Table(store, as_row_labels(values, "list.csv"), parts, None, ()))
    assert found.target_kind == "class"
    if note is None:
        assert not found.notes
    else:
        assert sum(note in each for each in found.notes) == 1


@pytest.mark.parametrize(("values", "asked", "message"), [
    (["a", "", "b"], "auto", "list.csv row 1 has no label"),
    ([0.5, None], "auto", "row 1 has no label"),
    ([["a"], None], "auto", "row 1 has no label"),
    ([["a"], [None]], "auto", "row 1 has no label"),
    ([["a"], [2]], "auto", "numbers and names as labels"),
    ([[0, 1, 0]], "auto", r"row 0 has the label \[0, 1, 0\], which names a class twice"),
    ([[0.5]], "auto", "row 0 has the label 0.5; a class is a whole number or a name"),
    ([["a"], ["b"]], "class", r"row 0 has the label \['a'\]; a class is"),
    ([0.5, 1], "class", "row 0 has the label 0.5; a class is a whole number"),
    (["1", "cat"], "number", "row 1 has the label 'cat'; expected a finite number"),
    ([1, float("inf")], "auto", "row 1 has the label inf; expected a finite number"),
    ([1, 1e300], "number", r"row 1 has the label 1e\+300; expected a finite number"),
    ([[1]], "number", r"row 0 has the label \[1\]"),
    ([[], []], "auto", "have no class"),
    ([[-1]], "auto", "has the label -1; labels go from 0 .*`data.columns.target='number'`"),
])  # fmt: skip
def test_labels_that_cannot_be_understood(values, asked, message):
    store = Arrays("x", np.zeros((len(values), 4, 4), np.uint8))
    parts = np.full(len(values), "", dtype=object)
    with pytest.raises(ValueError, match=message):
        numbered(Table(store, as_row_labels(values, "list.csv", asked), parts, None, ()))


def test_classes_that_only_the_test_part_has_come_last():
    store, parts = Arrays("x", np.zeros((2, 4, 4), np.uint8)), np.array(["train", "test"], object)
    labels = as_row_labels([["b", "d"], ["b", "c", "a"]], "x")
    found = numbered(Table(store, labels, parts, None, ()))
    assert found.labels == ("b", "d", "a", "c")
    assert found.unlearned == (
        "x image 1 is of the class 'a', which the training part does not have (b, d), nor c"
    )


# Every format


SEVERAL_NAMES = [["cat", "dog"], ["cat"], [], ["dog"], ["cow"]] * 2


@pytest.fixture
def packed(tmp_path):
    """packed(kind, labels): ten images and their labels, or None, in a file of one kind."""
    pictures = [encoded(photograph(8, 8, i), "PNG") for i in range(10)]

    def make(kind: str, labels: list | None) -> str:
        path = tmp_path / f"x.{kind}"
        if kind == "parquet":
            columns = {"image": pictures} | ({"label": labels} if labels else {"note": [1] * 10})
            pq.write_table(pa.table(columns), path)
        elif kind == "tar":
            members = {}
            for i, picture in enumerate(pictures):
                members[f"{i:02}.png"] = picture
                if labels:
                    members[f"{i:02}.json"] = json.dumps({"label": labels[i]}).encode()
            shard(members, path)
        elif kind == "jsonl":
            for i, picture in enumerate(pictures):
                (tmp_path / f"{i}.png").write_bytes(picture)
            lines = [{"image": f"{i}.png"} | ({"label": labels[i]} if labels else {"note": 1})
                     for i in range(10)]  # fmt: skip
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        else:
            import datasets

            features = datasets.Features({"image": datasets.Image()})
            if labels and isinstance(labels[0], list):
                names = datasets.ClassLabel(names=["cat", "cow", "dog"])
                features["label"] = datasets.List(names)
            elif labels:
                features["label"] = datasets.Value("float32")
            columns = {"image": [{"bytes": picture, "path": None} for picture in pictures]}
            if labels:
                columns["label"] = labels
            datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(path))
        return str(path)

    return make


FORMATS = ["parquet", "tar", "jsonl", "saved"]


@pytest.mark.parametrize("kind", FORMATS)
def test_several_classes_an_image_in_every_format(packed, kind):
    splits = open_splits(packed(kind, SEVERAL_NAMES))
    assert splits.target_kind == "classes" and splits.labels == ("cat", "cow", "dog")
    assert (len(splits.train), len(splits.test)) == (8, 2) and splits.made_test["share"] == 0.2
    source = open_source(packed(kind, SEVERAL_NAMES))
    assert [source.answer(i) for i in range(5)] == ["cat, dog", "cat", "", "dog", "cow"]
    assert source.targets_of(np.array([0, 2]))[0].tolist() == [1, 0, 1]
    assert "every image has 0 to 2 of 3 classes (cat, cow, dog)" in splits.notes


@pytest.mark.parametrize("kind", FORMATS)
def test_numbers_in_every_format(packed, kind):
    splits = open_splits(packed(kind, [i + 0.5 for i in range(10)]))
    assert splits.target_kind == "number" and splits.labels == () and len(splits.test) == 2
    assert splits.train.targets.dtype == np.float32
    assert "labels are numbers to predict, from 0.5 to 9.5" in splits.notes
    whole = packed(kind, [float(i) for i in range(10)])
    assert open_splits(whole).target_kind == "class"  # whole numbers that mean numbers need asking
    asked = open_source(whole, Columns(target="number"))
    assert asked.target_kind == "number" and asked.targets.tolist() == list(range(10))


@pytest.mark.parametrize("kind", FORMATS)
def test_unlabelled_images_in_every_format(packed, kind):
    splits = open_splits(packed(kind, None))
    assert splits.target_kind == "none" and (len(splits.train), len(splits.test)) == (8, 2)
    assert "is unlabelled: no" in splits.notes[0] and "`data.columns.label`" in splits.notes[0]
    with pytest.raises(ValueError, match="`data.columns.label`"):
        open_splits(packed(kind, None), Columns(target="class"))
    unread = open_splits(packed(kind, SEVERAL_NAMES), Columns(target="none"))
    assert unread.target_kind == "none" and not any(
        "is unlabelled" in note for note in unread.notes
    )


# Folders


def test_folders_without_classes_are_unlabelled(folder):
    flat = open_splits(str(folder({f"{i}.jpg": 8 for i in range(10)})))
    assert flat.target_kind == "none" and (len(flat.train), len(flat.test)) == (8, 2)
    assert "no class folders" in flat.notes[0] and flat.train[0][1] is None
    parts = {"train/1.jpg": 8, "train/2.jpg": 8, "test/3.jpg": 8, "4.jpg": 8}
    divided = open_splits(str(folder(parts, "divided")))
    assert divided.target_kind == "none" and (len(divided.train), len(divided.test)) == (2, 1)
    assert divided.notes[0] == "left out: 1 image outside every part"
    with pytest.raises(ValueError, match="no class folders; expected divided/test/CLASS/IMAGE"):
        open_splits(str(folder(parts, "divided")), Columns(target="class"))


def test_labels_of_a_folder_may_be_left_unread(folder):
    deep = folder({"cat/1.jpg": 8, "cat/a/b/2.jpg": 8, "3.jpg": 8}, "deep")
    source = open_source(str(deep), Columns(target="none"))
    assert source.target_kind == "none" and len(source) == 3
    ages = folder({f"{age}/{i}.jpg": 8 for age in (20, 35) for i in range(5)}, "ages")
    assert open_source(str(ages)).labels == ("20", "35")
    assert set(open_source(str(ages), Columns(target="number")).targets) == {20, 35}
