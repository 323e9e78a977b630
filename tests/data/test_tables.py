"""Tables as people have them: several classes an image, partly unknown labels, paths of other systems."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import encoded, photograph

from vitkit.data import (
    Columns,
    fingerprint,
    from_dataset,
    merge_parts,
    open_parts,
    open_source,
    open_splits,
    subset,
)
from vitkit.recipes import Data
from vitkit.system.errors import BadData, BadImage, BadSettings

NAN = float("nan")
IMAGES = {f"{i}.jpg": 8 for i in range(6)}


@pytest.fixture
def listed(folder):
    """listed(text): a manifest of this text beside six images."""

    def make(text: str, name: str = "list.csv") -> str:
        path = folder(IMAGES) / name
        path.write_text(text)
        return str(path)

    return make


def rows_of(header: str, cells: list[str]) -> str:
    lines = [f'{i}.jpg\t"{cell}"' for i, cell in enumerate(cells)]
    return "\n".join([f"image\t{header}", *lines])


def notes_of(where: str, columns: Columns | None = None) -> str:
    return " / ".join(open_parts(where, columns).notes)


def answers(where: str, columns: Columns | None = None) -> list[str]:
    source = open_source(where, columns)
    return [source.answer(i) for i in range(len(source))]


# Cells with several classes


@pytest.mark.parametrize(("cells", "columns"), [
    (["cat|dog", "dog", "cat"], Columns(target="classes")),
    (["cat, dog", "dog", "cat"], Columns(target="classes")),
    (["cat,dog", "dog", "cat"], Columns(target="classes")),
    (["cat dog", "dog", "cat"], Columns(separator=" ")),
    (["cat/dog", "dog", "cat"], Columns(separator="/")),
    (["cat / dog", "dog", "cat"], Columns(target="classes", separator="/")),
    (["['cat', 'dog']", "['dog']", "['cat']"], Columns()),
    (["['cat' 'dog']", "['dog']", "['cat']"], Columns()),
    (['[""cat"", ""dog""]', '[""dog""]', '[""cat""]'], Columns()),
    (["['cat', 'dog']", "dog", "cat"], Columns(target="classes")),
    (["['cat', 'dog']", "dog", "cat"], Columns()),
    (["('cat', 'dog')", "('dog',)", "cat"], Columns()),
    (["{'cat', 'dog'}", "{'dog'}", "('cat',)"], Columns()),
    (["[cat, dog]", "[dog]", "[cat]"], Columns()),
])  # fmt: skip
def test_cells_with_several_classes(listed, cells, columns):
    where = listed(rows_of("label", cells), "list.tsv")
    source = open_source(where, columns)
    assert source.target_kind == "classes" and source.labels == ("cat", "dog")
    assert answers(where, columns) == ["cat, dog", "dog", "cat"]


def test_lists_of_numbers_as_numpy_writes_them(listed):
    where = listed(rows_of("label", ["[0 2]", "[1]", "[0. 1.]"]), "list.tsv")
    assert answers(where) == ["0, 2", "1", "0, 1"]


@pytest.mark.parametrize(("cells", "message"), [
    (["['cat', None]", "['dog']"], r"line 2 has the label \['cat', None\], where a class is missing"),
    (["[0, 1]", "[1, 0]"], "line 2 .* zeros and ones too; give the number of the class"),
    (["[0 1]", "[0 1]"], "zeros and ones too"),
])  # fmt: skip
def test_lists_that_are_none_of_classes(listed, cells, message):
    with pytest.raises(ValueError, match=message):
        open_source(listed(rows_of("label", cells), "list.tsv"))


def test_names_in_brackets_are_said(listed):
    where = listed(rows_of("label", ["[cat]", "(1)", "dog"]), "list.tsv")
    assert open_source(where).labels == ("(1)", "[cat]", "dog")
    assert "classes are called [cat]: if these are several classes" in notes_of(where)


def test_two_separators_are_asked_about(listed):
    where = listed(rows_of("label", ["cat|dog", "cat;bird"]), "list.tsv")
    with pytest.raises(ValueError, match=r"with '\|' and with ';' \(cat\|dog, cat;bird\)"):
        open_source(where, Columns(target="classes"))
    columns = Columns(separator="|")
    assert answers(where, columns) == ["cat, dog", "cat;bird"]
    assert "called" not in notes_of(where, columns)


@pytest.mark.parametrize("name", ["list.jsonl", "list.parquet"])
def test_vectors_for_two_classes_are_refused(listed, name):
    rows = [{"image": f"{i}.jpg", "label": label} for i, label in enumerate([[0, 1], [1, 0]])]
    where = listed("\n".join(map(json.dumps, rows)), name)
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), where)
    with pytest.raises(
        ValueError, match=r"(line 1|row 0) has the label \[0, 1\], .* zeros and ones too"
    ):
        open_source(where)
    items = [(photograph(8, 8), np.float32(row)) for row in ([1, 1], [1, 1])]
    assert from_dataset(items).targets_of(np.arange(2)).tolist() == [[1, 1], [1, 1]]


def test_python_lists_keep_what_is_in_quotes(listed):
    cells = ['[\'sea, calm\', ""men\'s""]', "[]", "['it\\'s']"]
    where = listed(rows_of("label", cells), "list.tsv")
    assert open_source(where).labels == ("it\\'s", "men's", "sea, calm")
    assert answers(where)[1] == ""


@pytest.mark.parametrize(("cells", "said"), [
    (["cat, dog", "dog", "cat"], "parts are classes too: if they are several classes each, set `data.columns.target='classes'`"),
    (["cat dog", "dog", "cat"], "`data.columns.separator=' '`"),
    (["cat/dog", "dog", "cat"], "`data.columns.separator='/'`"),
    (["cat+dog", "dog", "cat"], "`data.columns.separator='+'`"),
])  # fmt: skip
def test_one_class_whose_parts_are_classes_is_said(listed, cells, said):
    where = listed(rows_of("label", cells), "list.tsv")
    assert open_source(where).target_kind == "class" and said in notes_of(where)
    usual = listed(rows_of("label", ["tench, Tinca", "great white shark", "ray/skate"]), "list.tsv")
    assert "parts" not in notes_of(usual)


def test_an_image_with_a_row_for_each_label(listed):
    text = "image,label,split\n0.jpg,cat,train\n1.jpg,dog,train\n0.jpg,dog,train\n2.jpg,cat|dog,test\n0.jpg,cat,train\n"
    where = listed(text)
    assert "1 image in several rows with different labels, such as 0.jpg (cat, dog)" in notes_of(
        where
    )
    parts = open_parts(where, Columns(target="classes")).sources
    train = parts["train"]
    assert [train.answer(i) for i in range(len(train))] == ["cat, dog", "dog"]
    assert len(parts["test"]) == 1 and parts["test"].answer(0) == "cat, dog"
    with pytest.raises(ValueError, match="line 2 and line 3 are of the same image, .* split"):
        open_parts(
            listed("image,label,split\n0.jpg,a,train\n0.jpg,b,test\n"), Columns(target="classes")
        )


@pytest.mark.parametrize("columns", [{"label": list("aba")}, {"a": [1, 0, 0], "b": [0, 1, 1]}])
@pytest.mark.parametrize("name", ["list.csv", "list.parquet"])
def test_rows_of_one_image_are_joined(listed, columns, name):
    table = {"path": ["0.jpg", "1.jpg", "./0.jpg"], **columns}
    if "label" in columns:
        table["label"] = ["a", "b", "b"]
    lines = [",".join(map(str, row)) for row in [list(table), *zip(*table.values(), strict=True)]]
    where = listed("\n".join(lines), name)
    if name.endswith("parquet"):
        pq.write_table(pa.table(table), where)
    source = open_source(where, Columns(target="classes"))
    assert source.labels == ("a", "b")
    assert source.targets_of(np.arange(len(source))).tolist() == [[1, 1], [0, 1]]
    assert "1 image in several rows with different labels" in notes_of(where)
    assert "(a, b)" in notes_of(where) and len(open_source(where)) == 3


# Columns of zeros and ones


@pytest.mark.parametrize(("rows", "expected"), [
    ([(-1, 1), (1, 1), (-1, -1)], [[0, 1], [1, 1], [0, 0]]),  # CelebA
    ([(-1, 1), (0, 1), (1, -1)], [[NAN, 1], [0, 1], [1, NAN]]),  # CheXpert
    ([("yes", "No"), ("no", "no"), ("", "yes")], [[1, 0], [0, 0], [NAN, 1]]),
    ([("x", ""), ("", "X"), ("x", "x")], [[1, 0], [0, 1], [1, 1]]),
    ([("1", "0"), ("0", "0"), ("", "1")], [[1, 0], [0, 0], [NAN, 1]]),
])  # fmt: skip
def test_other_words_for_yes_and_no(listed, tmp_path, rows, expected):
    lines = [f"{i}.jpg,{first},{second}" for i, (first, second) in enumerate(rows)]
    where = listed("\n".join(["image,cat,dog", *lines]))
    np.testing.assert_equal(open_source(where).targets_of(np.arange(3)), np.float32(expected))
    cat, dog = zip(*rows, strict=True)
    path = tmp_path / "photos" / "x.parquet"
    images = [f"{i}.jpg" for i in range(3)]
    pq.write_table(pa.table({"image": images, "cat": cat, "dog": dog, "text": [*"abc"]}), path)
    np.testing.assert_equal(open_source(str(path)).targets_of(np.arange(3)), np.float32(expected))
    assert open_source(str(path)).labels == ("cat", "dog")


def test_what_minus_one_is_taken_for_is_said(listed):
    where = listed("image,cat,dog\n0.jpg,-1,1\n1.jpg,1,1\n2.jpg,-1,1\n")
    assert "-1 is read as no: beside it there is 1 and no 0, in cat" in notes_of(where)
    where = listed("image,cat,dog\n0.jpg,1,0\n1.jpg,,1\n")
    assert "no image is known not to be of cat" in notes_of(where)


def test_columns_that_are_no_classes(listed):
    text = (
        "image,is_valid,checked,cat,dog,0,__index_level_0__\n0.jpg,0,1,1,0,0,0\n1.jpg,1,1,0,1,0,1\n"
    )
    parts, notes, _ = open_parts(listed(text))
    assert parts["train"].labels == ("cat", "dog", "0") and len(parts["val"]) == 1
    assert "parts are those of the column is_valid" in notes[0]
    assert any("not read as classes" in note and "checked" in note for note in notes)
    assert set(open_parts(listed(text), Columns(label="is_valid")).sources) == {""}


def test_an_unknown_cell_is_not_one_class(listed):
    where = listed("image,cat,dog\n0.jpg,1,0\n1.jpg,0,1\n2.jpg,1,?\n")
    with pytest.raises(ValueError, match="line 4 does not say whether it is of the class 'dog'"):
        open_source(where, Columns(target="class"))


def test_json_lines_that_leave_out_columns(listed):
    rows = [{"cat": 1}, {"dog": 1, "cat": 0}, {"dog": 0, "bird": 1}]
    lines = [json.dumps({"image": f"{i}.jpg", **row}) for i, row in enumerate(rows)]
    source = open_source(listed("\n".join(lines), "list.jsonl"))
    assert source.labels == ("cat", "dog", "bird")
    expected = [[1, NAN, NAN], [0, 1, NAN], [NAN, 0, 1]]
    np.testing.assert_equal(source.targets_of(np.arange(3)), np.float32(expected))


def test_a_column_for_each_class(listed):
    text = "image,patient,cat,dog,emu\n0.jpg,7,1,0,1\n1.jpg,8,0,0,0\n2.jpg,9,1,1,0\n"
    where = listed(text)
    source = open_source(where)
    assert source.labels == ("cat", "dog", "emu") and source.target_kind == "classes"
    assert source.targets_of(np.arange(3)).tolist() == [[1, 0, 1], [0, 0, 0], [1, 1, 0]]
    assert "classes are the columns of zeros and ones: cat, dog, emu" in notes_of(where)
    named = open_source(where, Columns(label="emu,cat"))
    assert named.labels == ("emu", "cat")
    assert named.targets_of(np.arange(3)).tolist() == [[1, 1], [0, 0], [0, 1]]


def test_columns_of_which_one_is_chosen_in_each_row(listed):
    where = listed("image,healthy,rust\n0.jpg,1,0\n1.jpg,0.0,1.0\n2.jpg,True,False\n")
    source = open_source(where)
    assert source.target_kind == "class" and source.targets.tolist() == [0, 1, 0]
    assert source.labels == ("healthy", "rust")
    assert open_source(where, Columns(target="classes")).target_kind == "classes"
    several = listed("image,healthy,rust\n0.jpg,1,0\n1.jpg,1,1\n")
    with pytest.raises(ValueError, match="line 3 has not exactly one class among healthy, rust"):
        open_source(several, Columns(target="class"))


UNKNOWN = "image,cat,dog\n0.jpg,1,\n1.jpg,0,1\n2.jpg,?,0\n3.jpg,-1,1\n4.jpg,NaN,N/A\n"
PARTLY = [[1, NAN], [0, 1], [NAN, 0], [NAN, 1], [NAN, NAN]]


def test_labels_that_are_partly_unknown(listed):
    where = listed(UNKNOWN)
    source = open_source(where)
    np.testing.assert_equal(source.targets_of(np.arange(5)), np.float32(PARTLY))
    assert "5 of 10 labels, one for each image and class, are unknown" in notes_of(where)
    assert source.answer(0) == "cat" and source.answer(4) == ""

    # Of parts and of subsets
    some = subset(source, [3, 0])
    np.testing.assert_equal(some.targets_of(np.arange(2)), np.float32(PARTLY)[[3, 0]])
    joined = merge_parts(some, subset(source, [1]))
    np.testing.assert_equal(joined.targets_of(np.arange(3)), np.float32(PARTLY)[[3, 0, 1]])
    known = subset(open_source(listed(UNKNOWN.replace("?", "0"))), np.arange(5))
    assert fingerprint(known) != fingerprint(source)


def test_a_table_of_a_multi_label_export(listed):
    """Spaces after the commas of the header, a row for each image of a part."""
    where = listed("filename, cat, dog\n0.jpg, 1, 0\n1.jpg, 1, 1\n", "_classes.csv")
    assert answers(where) == ["cat", "cat, dog"]


def test_classes_that_may_stand_for_no_label_are_said(listed):
    where = listed("image,label\n0.jpg,cat\n1.jpg,?\n2.jpg,NaN\n3.jpg,dog\n")
    assert "classes are called '?', 'NaN': if that means that the label is unknown" in notes_of(
        where
    )


@pytest.mark.parametrize(("text", "message"), [
    ("image,cat,dog\n0.jpg,1,0\n1.jpg,2,0\n", "line 3 has '2' in column 'cat'; a column of a class holds 0 and 1"),
    ("image,cat,emu\n0.jpg,1,0\n", "there is no column 'dog'; the columns are image, cat, emu"),
])  # fmt: skip
def test_columns_that_are_named_and_are_none(listed, text, message):
    with pytest.raises(ValueError, match=message):
        open_source(listed(text), Columns(label="cat,dog"))


def test_a_single_column_of_zeros_and_ones_is_not_taken_for_a_class(listed):
    where = listed("image,fold,checked\n0.jpg,0,1\n1.jpg,1,0\n")
    assert open_source(where).target_kind == "none" and "is unlabelled" in notes_of(where)


def test_columns_in_json_lines_and_parquet(listed, tmp_path):
    rows = [
        {"image": f"{i}.jpg", "cat": cat, "dog": dog, "age": 30 + i}
        for i, (cat, dog) in enumerate([(True, False), (None, True), (False, False)])
    ]
    where = listed("\n".join(map(json.dumps, rows)), "list.jsonl")
    expected = np.float32([[1, 0], [NAN, 1], [0, 0]])
    np.testing.assert_equal(open_source(where).targets_of(np.arange(3)), expected)
    path = tmp_path / "photos" / "x.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    source = open_source(str(path))
    np.testing.assert_equal(source.targets_of(np.arange(3)), expected)
    assert source.labels == ("cat", "dog")
    assert source[2][0] == (tmp_path / "photos" / "2.jpg").read_bytes()


def test_vectors_with_nan_in_a_data_set_of_ones_own():
    image = photograph(8, 8)
    items = [(image, np.array(row, float)) for row in PARTLY]
    source = from_dataset(items, ("cat", "dog"))
    np.testing.assert_equal(source.targets_of(np.arange(5)), np.float32(PARTLY))


# Booleans


def test_booleans_are_named(listed, tmp_path):
    rows = [{"image": f"{i}.jpg", "label": i % 2 == 0} for i in range(3)]
    where = listed("\n".join(map(json.dumps, rows)), "list.jsonl")
    assert answers(where) == ["True", "False", "True"]
    path = tmp_path / "photos" / "x.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert answers(str(path)) == ["True", "False", "True"]
    vectors = json.dumps({"image": "0.jpg", "label": [True, False]})
    with pytest.raises(ValueError, match="line 1 has the label .*, not of true and false"):
        open_source(listed(vectors, "list.jsonl"))


# Paths


@pytest.mark.parametrize(("written", "name"), [
    ("sub\\000.png", "sub/000.png"),
    (".\\sub\\000.png", "sub/000.png"),
    ("SUB/000.PNG", "sub/000.png"),
    ("sub/000", "sub/000.png"),
    ("Sub\\000.Png", "sub/000.png"),
    ("two/a.jpg", "two/a.jpg"),
    ("two/a.Jpg", "two/a.Jpg"),  # a.jpg or a.JPG: it is not resolved
    ("odd\\name.png", "odd\\name.png"),
])  # fmt: skip
def test_paths_of_other_systems(folder, written, name):
    root = folder({"sub/000.png": 8, "two/a.jpg": 8, "two/a.JPG": 8, "odd\\name.png": 8})
    (root / "list.csv").write_text(f"image,label\nsub/000.png,x\n{written},y\n")
    assert open_source(str(root / "list.csv")).name(1) == f"{root}/{name}"


def test_windows_separators_lead_out_of_no_folder(folder):
    root = folder({"sub/000.png": 8})
    (root / "list.csv").write_text("image,label\n..\\..\\x.png,y\n")
    with pytest.raises(ValueError, match="which leads out of"):
        open_source(str(root / "list.csv"))


def test_parquet_rows_with_a_path(folder, tmp_path):
    root = folder({"sub/1.png": 8, "secret.png": 8})
    images = [
        {"bytes": None, "path": "1.png"},
        {"bytes": encoded(photograph(8, 8)), "path": "1.png"},
    ]
    images += [{"bytes": None, "path": "../secret.png"}, {"bytes": None, "path": "2.png"}]
    pq.write_table(pa.table({"image": images, "label": [0, 1, 0, 1]}), root / "sub" / "x.parquet")
    source = open_source(str(root / "sub" / "x.parquet"))
    assert source[0][0] == (root / "sub" / "1.png").read_bytes() != source[1][0]
    with pytest.raises(BadImage, match=r"names '\.\./secret\.png', which leads out of"):
        source[2]
    with pytest.raises(BadImage, match=r"x.parquet row 3 has no image: .* path '2.png'"):
        source[3]


def test_parquet_rows_with_a_path_and_no_bytes_at_all(folder):
    root = folder({"1.png": 8})
    table = pa.table({"image": [{"bytes": None, "path": "1.png"}], "label": [0]})
    pq.write_table(table, root / "x.parquet")
    assert open_source(str(root / "x.parquet"))[0][0] == (root / "1.png").read_bytes()


# Tar members


def shard(tmp_path, *names: str) -> str:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as file:
        for name in names:
            info = tarfile.TarInfo(name)
            data = b"1" if name.endswith(".cls") else name.encode()
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return str(path)


@pytest.mark.parametrize(("names", "images"), [
    (["IMG.2022.01.jpg", "IMG.2022.01.cls", "IMG.2022.02.jpg", "IMG.2022.02.cls"], ["IMG.2022.01.jpg", "IMG.2022.02.jpg"]),
    (["a/v1.5/x.y.JPG", "a/v1.5/x.y.cls"], ["a/v1.5/x.y.JPG"]),
    (["1.jpg", "1.seg.png", "1.cls"], ["1.jpg"]),
    (["__MACOSX/1.jpg", "@eaDir/1.jpg", "1.jpg", "1.cls"], ["1.jpg"]),
    (["a.png", "a.cls", "a.0.png", "a.0.cls", "a.1.png", "a.1.cls"], ["a.png", "a.0.png", "a.1.png"]),
    (["1.left.jpg", "1.right.jpg", "1.cls", "2.jpg", "2.cls"], ["2.jpg"]),
])  # fmt: skip
def test_tar_members_with_dots_in_their_names(tmp_path, names, images):
    source = open_source(shard(tmp_path, *names))
    assert [source[i][0].decode() for i in range(len(source))] == images
    assert set(source.targets.tolist()) == {1}


def test_tar_members_that_are_not_read_are_said(tmp_path):
    beside = shard(tmp_path, "1.jpg", "1.seg.png", "1.cls")
    assert "left out: 1 image beside that of their example" in notes_of(beside)
    with pytest.raises(ValueError, match=r"a\.png has no label, but others"):
        open_source(shard(tmp_path, "a.png", "a.0.png", "a.0.cls", "a.1.png", "a.1.cls"))


# Names that people take for one


@pytest.mark.parametrize("names", [("Glas", "glas"), ("traffic light", "traffic_light")])
def test_classes_that_differ_hardly(folder, names):
    root = folder({f"{name}/{i}.jpg": 8 for name in (*names, "wood") for i in range(3)})
    said = f"{names[0]} and {names[1]} are different classes, although their names hardly differ: if they"
    assert said in notes_of(str(root))
    assert "hardly differ" not in notes_of(str(folder({"a/1.jpg": 8, "b/1.jpg": 8}, "other")))


def test_numbers_have_no_spellings(listed):
    assert "hardly differ" not in notes_of(listed("image,label\n0.jpg,1\n1.jpg,-1\n"))


# Settings


@pytest.mark.parametrize(("setting", "message"), [
    ({"target": "clases"}, "`data.columns.target` is 'clases'; it is one of auto, class, classes"),
    ({"label": 1}, "`data.columns.label` is 1; it is text"),
    ({"separator": ""}, "`data.columns.separator` is empty"),
])  # fmt: skip
def test_columns_that_cannot_be(setting, message):
    with pytest.raises(BadSettings, match=message):
        Columns(**setting)


def test_a_data_set_is_given_as_a_path(folder):
    root = folder({f"{name}/{i}.jpg": 8 for name in "ab" for i in range(5)})
    assert open_splits(root).notes == open_splits(str(root)).notes
    assert open_source(root).labels == open_parts(root).sources[""].labels == ("a", "b")
    assert Data(root).source == str(root)


def test_a_row_is_called_by_its_line_in_the_file(listed):
    """Also below a line that is empty; and of several rows without a label their number is said."""
    rows = ["path,label", "0.jpg,cat", "", "1.jpg,", "2.jpg,dog", "0.jpg,", ""]
    with pytest.raises(BadData, match="has 2 rows without a label, the first in line 4; fill"):
        open_source(listed("\n".join(rows)))
    with pytest.raises(BadData, match="line 5 has 1 field, the first line 2$"):
        open_source(listed("\n".join([*rows[:4], "2.jpg"])))


@pytest.mark.parametrize("columns", [Columns(), Columns(image="0.jpg"), Columns("0.jpg", "cat")])
@pytest.mark.parametrize(("suffix", "mark"), [("csv", ","), ("csv", ";"), ("tsv", "\t")])
def test_a_table_without_a_heading(listed, columns, suffix, mark):
    where = listed(f"0.jpg{mark}cat\n1.jpg{mark}dog\n", f"list.{suffix}")
    with pytest.raises(BadData, match="the first line looks like a row of data") as caught:
        open_source(where, columns)
    assert f"put a heading above it, such as path{mark}label" in str(caught.value)


def test_a_column_may_be_called_like_an_image(listed):
    source = open_source(listed("path,label,0.jpg\n0.jpg,cat,1\n1.jpg,dog,2\n", "list.csv"))
    assert source.labels == ("cat", "dog")


def test_a_path_that_no_file_can_have(listed):
    where = listed('{"image": "\\ud800.jpg", "label": "cat"}\n', "list.jsonl")
    with pytest.raises(BadData, match=r"line 1 has a path that no file can have: '\\ud800.jpg'"):
        open_source(where)
