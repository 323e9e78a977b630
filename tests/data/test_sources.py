"""Folders, manifests, parquet files and the digits become the same thing, and whatever is wrong is
said."""

import json
import pickle
import tracemalloc
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photograph

from vitkit.data import Columns, open_image, open_source, open_splits, split_off, subset
from vitkit.data.formats import manifest as manifests
from vitkit.data.formats import shards
from vitkit.data.sources.source import random_subset, stratified
from vitkit.data.sources.tables import LABEL, pick
from vitkit.system.errors import BadImage

CATS = {f"{kind}/{i}.jpg": 8 for kind in ("cat", "dog") for i in range(10)}


def sizes(splits) -> tuple:
    return tuple(len(part) if part else None for part in (splits.train, splits.val, splits.test))


# Folders


def test_a_folder_of_classes(folder):
    splits = open_splits(str(folder(CATS)))
    assert splits.labels == ("cat", "dog") and sizes(splits) == (16, None, 4)
    source = open_source(str(folder(CATS)))
    assert len(source) == 20 and source.targets.tolist() == [0] * 10 + [1] * 10
    data, label = source[13]
    assert label == 1 and source.name(13).endswith("photos/dog/3.jpg")
    assert open_image(data, "x").size == (8, 12)


@pytest.mark.parametrize(
    "names",
    [("train", "val", "test"), ("training", "valid", "testing"), ("Train", "Validation", "Test")],
)
def test_a_folder_with_parts(folder, names):
    train, val, test = names
    files = {
        f"{train}/cat/deep/down/1.jpg": 8,
        f"{train}/dog/2.png": 8,
        f"{val}/dog/3.png": 8,
        f"{test}/cat/4.webp": 8,
    }
    splits = open_splits(str(folder(files)))
    assert sizes(splits) == (2, 1, 1) and splits.made_test is None and splits.notes == ()
    assert splits.val[0][1] == 1 and splits.test[0][1] == 0
    where = str(folder(files))
    assert open_source(where).name(0).endswith("4.webp")
    assert open_source(where, split="val").name(0).endswith("3.png")


def test_what_lies_elsewhere_is_counted(folder):
    others = ("stray.jpg", ".hidden/cat/1.jpg", "cat/.DS_Store", "cat/notes.txt", "dog/a.DNG")
    root = folder(CATS | dict.fromkeys(others, 8))
    (root / "mouse").mkdir()
    splits = open_splits(str(root))
    assert splits.labels == ("cat", "dog") and len(open_source(str(root))) == 20
    assert splits.notes[:2] == (
        "left out: 1 .dng file, 1 .txt file, 1 hidden file, 1 hidden folder, "
        "1 image outside every class folder",
        "folders without an image: mouse",
    )


@pytest.mark.parametrize(("files", "message"), [
    ({"cat/notes.txt": 8}, "holds no images"),
    ({"train/cat/1.jpg": 8, "extra/dog/2.jpg": 8}, "is divided into parts, but extra is none of train"),
    ({"train/cat/1.jpg": 8, "val/cat/2.jpg": 8, "valid/cat/3.jpg": 8}, r"the same part under two names \(train, val, valid\)"),
])  # fmt: skip
def test_folders_that_cannot_be_understood(folder, files, message):
    with pytest.raises(ValueError, match=message):
        open_splits(str(folder(files)))


def test_links_are_followed_once(folder, tmp_path):
    root = folder(CATS)
    (root / "cat" / "again").symlink_to(root)
    other = folder({"1.jpg": 8}, "elsewhere")
    (root / "bird").symlink_to(other)
    source = open_source(str(root))
    assert len(source) == 21 and source.labels == ("bird", "cat", "dog")


def test_files_that_go_or_cannot_be_read_are_bad_images(folder):
    root = folder(CATS)
    source = open_source(str(root))
    (root / "cat/0.jpg").unlink()
    with pytest.raises(BadImage, match=r"photos/cat/0\.jpg is missing"):
        source[0]
    (root / "cat/0.jpg").mkdir()
    with pytest.raises(BadImage, match=r"photos/cat/0\.jpg is not a file"):
        source[0]


# Manifests


def manifest(folder, text: str, name: str = "list.csv", encoding: str = "utf-8"):
    root = folder(CATS)
    (root / name).write_bytes(text.encode(encoding))
    return str(root / name)


@pytest.mark.parametrize(("name", "text"), [
    ("list.csv", "image,label\ncat/1.jpg,tabby\ndog/2.jpg,collie\ncat/2.jpg,tabby\n"),
    ("list.csv", "\ufefffilename;Class\r\ncat/1.jpg;tabby\r\n\r\ndog/2.jpg;collie\r\ncat/2.jpg;tabby\r\n"),
    ("list.csv", 'note,label,path\n"a, b",tabby,cat/1.jpg\nx,"collie",dog/2.jpg\n"two\nlines",tabby,cat/2.jpg'),
    ("list.csv", "image, label\ncat/1.jpg, tabby\ndog/2.jpg,collie\ncat/2.jpg ,tabby \n"),
    ("list.tsv", "target\tfile\ntabby\tcat/1.jpg\ncollie\tdog/2.jpg\ntabby\tcat/2.jpg\n"),
    ("list.jsonl", '{"img": "cat/1.jpg", "y": "tabby"}\n\n{"y": "collie", "img": "dog/2.jpg"}\n'
                   '{"img": "cat/2.jpg", "y": "tabby"}'),
])  # fmt: skip
def test_manifests_in_their_many_forms(folder, name, text):
    source = open_source(manifest(folder, text, name))
    assert source.labels == ("collie", "tabby") and source.targets.tolist() == [1, 0, 1]
    assert source.name(1).endswith("photos/dog/2.jpg")
    assert open_image(source[1][0], "x").size == (8, 12)


def test_a_manifest_may_divide_itself(folder):
    rows = ["cat/1.jpg,a,train", "cat/2.jpg,b,train", "cat/3.jpg,b,Validation", "cat/4.jpg,a,test"]
    where = manifest(folder, "\n".join(["image,label,split", *rows]))
    assert sizes(open_splits(where)) == (2, 1, 1)
    assert open_source(where).targets.tolist() == [0]


def test_numbers_stay_what_they_are(folder):
    lines = "image,label\ncat/1.jpg,3\ncat/2.jpg,0\n"
    splits = open_splits(manifest(folder, lines))
    assert splits.labels == ("0", "1", "2", "3")
    assert splits.notes[0].startswith("labels go from 0 to 3; 2 of these 4 classes occur")
    zeros = open_source(manifest(folder, lines.replace(",3", ",03")))
    assert zeros.labels == ("0", "03")  # text: what is written with zeros in front is a name
    rows = [{"image": "cat/1.jpg", "label": value} for value in (2, 1.0, True)]
    where = manifest(folder, "\n".join(map(json.dumps, rows)), "list.jsonl")
    assert open_source(where).targets.tolist() == [2, 1, 1]


@settings(max_examples=80, deadline=None)
@given(st.text(st.sampled_from("ab./\\:\0 "), min_size=1, max_size=8))
def test_the_quick_way_for_plain_paths_is_the_careful_one(text):
    if manifests.PLAIN_PATH.fullmatch(text):
        assert text == PurePosixPath(text).as_posix() == PureWindowsPath(text).as_posix()
        assert not PureWindowsPath(text).anchor and ".." not in PurePosixPath(text).parts


def test_of_a_manifest_only_paths_and_labels_are_kept(folder):
    folder(CATS)
    rows = "".join(f"cat/1.jpg,{'ab'[i % 2]},{i:0200}{i:0200}\n" for i in range(8_000))
    where = manifest(folder, f"image,label,note\n./cat/2.jpg,a,\n{rows}")
    tracemalloc.start()
    source = manifests.read_manifest(where, Columns()).store
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e6 and Path(source.name(0)).name == "2.jpg" and source.names[0] == "cat/2.jpg"


@pytest.mark.parametrize(("text", "message"), [
    ("", "has no rows"),
    ("image,label\n", "has no rows"),
    ("photo,label\nx,1\n", "none of the columns photo, label is called image, img, .*`data.columns.image`"),
    ("image,path,label\nx,y,1\n", r"several columns may be meant: image, path \(of image, path, label\)"),
    ("image,label,target\nx,y,1\n", r"several columns may be meant: label, target .*`data.columns.label`"),
    ("image,image\nx,y\n", "names a column twice: image, image"),
    ("image,label\ncat/1.jpg,a,b\n", "line 2 has 3 fields, the first line 2"),
    ('image,label\ncat/1.jpg,"a\n', "line . is malformed: unexpected end of data"),
    ("image,label\ncat/1.jpg,\n", "line 2 has no label"),
    ("image,label\nnowhere.jpg,a\n", "line 2 names 'nowhere.jpg', and there is no such file"),
    ("image,label\n/etc/passwd,a\n", "line 2 names '/etc/passwd', which leads out of"),
    ("image,label\ncat/1.jpg,a\ncat/../../x.jpg,a\n", "line 3 names 'cat/../../x.jpg', which leads out of"),
    ("image,label,split\ncat/1.jpg,a,holdout\n", "line 2 belongs to the part 'holdout'; the parts are train"),
    ("image,label\ncat/1.jpg,999999999\n", r"cat/1.jpg has the label 999999999; labels go from 0 to 999999"),
    ("image,label\n,a\n", "line 2 has no usable path: ''"),
])  # fmt: skip
def test_malformed_csv_is_one_sentence(folder, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_splits(manifest(folder, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [
    ('{"image": "cat/1.jpg", "label": "a"}\n{"image": \n', "line 2 is not JSON"),
    ("[1, 2]", "line 1 is not an object"),
    ("{}", "line 1 is not an object"),
    ('{"image": "cat/1.jpg", "label": "a"}\n{"image": "cat/2.jpg"}', "line 2 lacks 'image' or 'label'"),
    ('{"image": 3, "label": "a"}', "line 1 has no usable path: 3"),
    ('{"image": "cat/1.jpg", "label": null}', "line 1 has no label"),
    ('{"image": "cat/1.jpg", "label": [[1]]}', r"line 1 has the label \[1\]"),
    ('{"image": "cat/1.jpg", "label": {"a": 1}}', "line 1 has the label {'a': 1}"),
    ('{"image": "cat/1.jpg", "label": 1}\n{"image": "cat/1.jpg", "label": "a"}', "has numbers and names as labels"),
    ('{"image": "cat/1.jpg", "label": -1}', "has the label -1; labels go from 0"),
    ('{"image": "cat/1.jpg", "label": 99999999999999999999}', "labels beyond 64 bits"),
    ("[" * 100_000, "line 1 is not JSON"),
])  # fmt: skip
def test_malformed_json_lines_are_one_sentence(folder, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_splits(manifest(folder, text, "list.jsonl"))
    assert "\n" not in str(caught.value)


def test_other_encodings_are_refused(folder):
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        open_splits(manifest(folder, "image,label\ncat/1.jpg,Köter\n", encoding="latin-1"))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([*LABEL, "note", "id", "Split"]), min_size=1, max_size=5, unique=True),
    st.none() | st.text("aé_ L", max_size=5),
)
def test_a_column_is_found_or_the_columns_are_named(present, asked):
    try:
        chosen = pick(asked, LABEL, present, "columns.label")
        assert chosen in present or not {name.lower() for name in present} & {*LABEL}
    except ValueError as error:
        assert all(name in str(error) for name in present) and "`data.columns.label`" in str(error)


# Parquet


def table(
    images, labels, image: str = "image", label: str = "label", names=None, header: bool = True
) -> pa.Table:
    features = {
        image: {"_type": "Image"},
        label: {"_type": "ClassLabel", "names": names} if names else {"_type": "Value"},
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if header else None
    return pa.table({image: images, label: labels}).replace_schema_metadata(metadata)


def pictures(count: int) -> list[dict]:
    return [
        {"bytes": encoded(photograph(8, 9, i), "PNG"), "path": f"{i}.png"} for i in range(count)
    ]


@pytest.fixture
def write(tmp_path):
    def make(name: str, content: pa.Table, group: int = 3):
        pq.write_table(content, tmp_path / name, row_group_size=group)
        return str(tmp_path / name)

    return make


def test_a_parquet_file(write):
    where = write("x.parquet", table(pictures(10), [0, 1] * 5, names=["cat", "dog"]))
    source = open_source(where)
    assert source.labels == ("cat", "dog") and source.targets.tolist() == [0, 1] * 5
    for i in (9, 0, 4, 3):
        assert np.array_equal(open_image(source[i][0], "x").pixels(), photograph(8, 9, i))
    assert source.name(4) == "x.parquet row 4"


def test_shared_parquet_families_open(shared):
    root = shared("data/cifar10_1k-train.parquet").parent
    splits = open_splits(str(root / "cifar10_1k"))
    assert sizes(splits) == (800, 200, 2000) and splits.made_test is None
    assert splits.labels[3] == "cat"
    assert len(open_source(str(root / "cifar10_1k"))) == 2000
    two = open_splits(str(root / "tiny_imagenet100"))
    assert sizes(two) == (49_984, None, 4_999)
    assert two.train.name(24_992) == "tiny_imagenet100-train-00001-of-00002.parquet row 0"
    assert open_image(*two.train[24_992][:1], "x").size == (64, 64)
    alone = open_source(str(root / "imagenet_val500.parquet"))
    assert len(alone) == 500 and len(alone.labels) == alone.targets.max() + 1
    message = r"holds several data sets; name one: .*/ants_bees, .*cifar10_1k"
    with pytest.raises(ValueError, match=message):
        open_splits(str(root))
    with pytest.raises(ValueError, match=r"no folder, file or data set .*there are ants_bees"):
        open_splits(str(root / "cifar1000"))


def test_hugging_face_directories_open(write, tmp_path):
    for name, count in [
        ("train-00000-of-00002", 4),
        ("train-00001-of-00002-0a1b", 3),
        ("validation-00000-of-00001", 2),
    ]:
        write(f"{name}.parquet", table(pictures(count), [0] * count, names=["a", "b"]))
    splits = open_splits(str(tmp_path))
    assert sizes(splits) == (7, 2, None) and splits.labels == ("a", "b")
    of_another_revision = table(pictures(4), [0] * 4, names=["a", "b"])
    write("train-00000-of-00002-ffff.parquet", of_another_revision)
    message = "ffff.parquet and train-00000-of-00002.parquet are the same shard of train; remove"
    with pytest.raises(ValueError, match=message):
        open_splits(str(tmp_path))
    (tmp_path / "train-00000-of-00002-ffff.parquet").unlink()
    (tmp_path / "train-00001-of-00002-0a1b.parquet").unlink()
    with pytest.raises(ValueError, match="has 1 of 2 train files; number 00001 is missing"):
        open_splits(str(tmp_path))


@pytest.mark.parametrize(
    ("folder", "query", "where"),
    [
        ("", "", "."),
        ("photos/", "", "photos"),
        ("https://a.example/b/", "?sig=x/y", "https://a.example/b"),
    ],
)
def test_a_shard_too_few_or_too_many_is_said_with_its_folder(folder, query, where):
    """An address may be signed, by letters with a slash among them."""
    first, again = (f"{folder}x-00000-of-00002{end}.tar{query}" for end in ("", "-ffff"))
    with pytest.raises(ValueError, match=rf"^{where} has 1 of 2 x files; number 00001 is missing"):
        shards._check_complete([first])
    with pytest.raises(ValueError, match=r"and x-00000-of-00002-ffff.tar are the same shard of x"):
        shards._check_complete([first, again])
    shards._check_complete([first, first.replace("00000-", "00001-"), f"elsewhere/{again}"])


def test_a_part_whose_labels_are_kept_secret_is_left_out(write, tmp_path):
    """As the hub has ImageNet."""
    for part, labels in (("train", [0, 1] * 3), ("validation", [1, 0]), ("test", [-1] * 4)):
        content = table(pictures(len(labels)), labels, names=["a", "b"])
        write(f"{part}-00000-of-00001.parquet", content)
    splits = open_splits(str(tmp_path))
    assert sizes(splits) == (6, 2, None)
    assert "left out: the part test, whose labels are all -1" in splits.notes[0]
    assert splits.train.targets.tolist() == [0, 1] * 3 and splits.val.name(1).endswith("row 1")
    write("test-00000-of-00001.parquet", table(pictures(2), [-1, 1], names=["a", "b"]))
    message = "test-00000-of-00001.parquet row 0 has the label -1; labels go from 0 to 1"
    with pytest.raises(ValueError, match=message):
        open_splits(str(tmp_path))


def test_what_lies_beside_the_files_of_a_data_set_is_said(write, folder, tmp_path):
    for name in ("d-train", "d-test", "d-extra"):
        write(f"{name}.parquet", table(pictures(2), [0, 1], names=["a", "b"]))
    splits = open_splits(str(tmp_path))
    assert sizes(splits) == (2, None, 2) and splits.notes == (
        "left out, as their names contain no part: d-extra.parquet",
    )
    root = folder({"cat/1.png": 9, "dog/1.png": 9})
    write("photos/backup.parquet", table(pictures(2), [0, 1]))
    message = r"photos holds backup.parquet and folders of images \(cat\); give the file, or move"
    with pytest.raises(ValueError, match=message):
        open_splits(str(root))
    (root / "backup.parquet").rename(root / "train.parquet")
    with pytest.raises(ValueError, match="photos holds train.parquet and folders of images"):
        open_splits(str(root))


@pytest.mark.parametrize(
    ("image", "label"), [("img", "fine_label"), ("pixels", "Label"), ("jpg", "cls"), ("png", "y")]
)
def test_columns_are_found_by_name(write, image, label):
    content = table(pictures(2), [1, 0], image, label).append_column("other", [["a", "b"]])
    assert open_source(write("x.parquet", content)).targets.tolist() == [1, 0]


def test_columns_are_found_by_the_header_and_by_order(write):
    content = table(pictures(2), [1, 0], "foto", "art", names=["a", "b"])
    assert open_source(write("x.parquet", content)).labels == ("a", "b")
    bare = write("y.parquet", table(pictures(2), [1, 0], "foto", "art", header=False))
    with pytest.raises(ValueError, match=r"y.parquet: .* columns foto, art .*`data.columns.image`"):
        open_source(bare)
    assert len(open_source(bare, Columns(image="foto", label="art"))) == 2
    with pytest.raises(ValueError, match="there is no column 'photo'; the columns are foto, art"):
        open_source(bare, Columns(image="photo"))


def test_image_bytes_may_be_plain_and_labels_names(write):
    plain = [picture["bytes"] for picture in pictures(3)]
    source = open_source(write("x.parquet", table(plain, ["dog", "cat", "dog"])))
    assert source.labels == ("cat", "dog") and source.targets.tolist() == [1, 0, 1]
    assert np.array_equal(open_image(source[2][0], "x").pixels(), photograph(8, 9, 2))
    coded = pa.array(["dog", "cat", "dog"]).dictionary_encode()
    assert open_source(write("y.parquet", table(plain, coded))).targets.tolist() == [1, 0, 1]


def test_a_split_column_of_a_parquet_file_counts(write):
    content = table(pictures(3), [0, 1, 0]).append_column("split", [["train", "test", "train"]])
    assert sizes(open_splits(write("x.parquet", content))) == (2, None, 1)


def test_rows_without_an_image_are_named(write):
    images = [*pictures(2), {"bytes": None, "path": "a.png"}, {"bytes": b"", "path": None}, None]
    source = open_source(write("x.parquet", table(images, [0] * 5)))
    for row in (2, 3, 4):
        with pytest.raises(
            BadImage, match=f"x.parquet row {row} has no image: column 'image' is empty there"
        ):
            source[row]


@pytest.mark.parametrize(("content", "message"), [
    (lambda: table(pa.array([], pa.binary()), pa.array([], pa.int64())), "has no rows"),
    (lambda: table([[1]], [0]), r"column 'image' holds list<\w+: int64>; expected the images' bytes"),
    (lambda: table([[[1, 2]]], [0]), "column 'image' holds list"),
    (lambda: table(pictures(2), [0, None]), "row 1 has no label"),
    (lambda: table(pictures(2), [0.5, float("nan")]), "row 1 has the label nan"),
    (lambda: table(pictures(1), [2], names=["a", "b"]), "row 0 has the label 2; labels go from 0 to 1"),
    (lambda: table(pictures(1), [[0, 1, 0]]), r"row 0 has the label \[0, 1, 0\], which names a class twice"),
    (lambda: table(pictures(1), [[2]], names=["a", "b"]), "row 0 has the label 2; labels go from 0 to 1"),
])  # fmt: skip
def test_parquet_files_that_hold_something_else(write, content, message):
    with pytest.raises(ValueError, match=message):
        open_splits(write("x.parquet", content()))


def test_headers_that_are_malformed_are_ignored(write):
    for header in ("{", "[]", '{"info": 3}', '{"info": {"features": {"label": {"names": 7}}}}'):
        content = table(pictures(2), [0, 1]).replace_schema_metadata({"huggingface": header})
        assert open_source(write("x.parquet", content)).labels == ("0", "1")


def test_files_of_different_data_sets_are_no_family(write, tmp_path):
    write("x-train.parquet", table(pictures(2), [0, 1], names=["a", "b"]))
    write("x-test.parquet", table(pictures(2), [0, 1], names=["b", "a"]))
    with pytest.raises(
        ValueError, match=r"x-train.parquet has other columns .* than x-test.parquet"
    ):
        open_splits(str(tmp_path / "x"))


@pytest.mark.parametrize(
    "damage",
    [lambda d: b"", lambda d: d[:100], lambda d: b"x" * 500, lambda d: d[:-20] + b"\0" * 20],
)
def test_damaged_parquet_files_are_one_sentence(write, tmp_path, damage):
    where = write("x.parquet", table(pictures(3), [0, 1, 2]))
    (tmp_path / "x.parquet").write_bytes(damage((tmp_path / "x.parquet").read_bytes()))
    with pytest.raises(ValueError, match="x.parquet is not a readable parquet file: ") as caught:
        open_splits(where)
    assert "\n" not in str(caught.value)


def test_pages_damaged_below_a_sound_header_are_bad_images(write, tmp_path):
    where = write("x.parquet", table(pictures(30), list(range(30))), group=5)
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    data[4:300] = bytes(296)
    (tmp_path / "x.parquet").write_bytes(data)
    source = open_source(where)
    with pytest.raises(BadImage, match=r"x.parquet is damaged"):
        source[0]


# What all have in common


def test_sources_travel_light(folder, write):
    for where in (str(folder(CATS)), write("x.parquet", table(pictures(9), [0] * 9)), "digits"):
        source = open_source(where)
        source.prepare()
        data = pickle.dumps(source)
        again = pickle.loads(data)
        for i in (0, len(source) - 1):
            assert again.name(i) == source.name(i)
            for ours, theirs in zip(again[i], source[i], strict=True):
                assert np.array_equal(ours, theirs)
        assert where == "digits" or len(data) < 3000


def test_the_digits_have_their_own_test_part():
    one, two = open_splits("digits", seed=0), open_splits("digits", seed=7)
    assert sizes(one) == (1438, None, 359) and one.made_test is None
    assert one.labels == tuple("0123456789")
    assert np.array_equal(one.test.rows, two.test.rows)
    assert len(open_source("digits")) == 359 and not set(one.train.rows) & set(one.test.rows)
    images = np.stack([one.train[i][0] for i in range(len(one.train))])
    assert images.dtype == np.uint8 and images.shape == (1438, 8, 8)
    assert images.min() == 0 and images.max() == 255
    assert one.train.name(0) == "digits image 0"


def test_a_test_part_is_made_stratified_and_written_down(folder):
    files = {
        f"{kind}/{i}.jpg": 8
        for kind, count in (("a", 20), ("b", 10), ("c", 2), ("d", 1))
        for i in range(count)
    }
    where = str(folder(files))
    splits = open_splits(where, seed=3)
    assert np.bincount(splits.test.targets, minlength=4).tolist() == [4, 2, 1, 0]
    assert np.bincount(splits.train.targets, minlength=4).tolist() == [16, 8, 1, 1]
    made = json.loads(json.dumps(splits.made_test))
    assert made["seed"] == 3 and len(splits.train) == 26
    whole = open_source(where)
    apart = [part.name(i) for part in (splits.train, splits.test) for i in range(len(part))]
    assert sorted(apart) == sorted(whole.name(i) for i in range(33))
    assert [splits.test.name(i) for i in range(7)] == [whole.name(i) for i in made["test"]]
    assert "7 of 33 images, 20% of every class, were set aside" in splits.notes[-1]
    assert splits.made_test == open_splits(where, seed=3).made_test
    assert splits.made_test != open_splits(where, seed=4).made_test


def test_a_training_part_alone_is_divided_too(folder):
    splits = open_splits(str(folder({f"train/{name}": side for name, side in CATS.items()})))
    assert sizes(splits) == (16, None, 4) and splits.made_test["seed"] == 0
    other = folder({f"{part}/{name}": 8 for name in CATS for part in ("train", "val")}, "other")
    both = open_splits(str(other))
    assert sizes(both) == (20, 20, None) and both.made_test is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(0, 9))
def test_stratified_parts_are_a_partition(targets, seed):
    targets = np.array(targets)
    first, second = stratified(targets, 0.2, seed)
    assert sorted([*first, *second]) == list(range(len(targets)))
    for number, count in zip(*np.unique(targets, return_counts=True), strict=True):
        assert (targets[second] == number).sum() == min(max(1, round(0.2 * count)), count - 1)


def test_subsets_keep_names_and_targets(folder):
    source = open_source(str(folder(CATS)))
    part = subset(subset(source, [19, 3, 7]), [2, 0])
    assert len(part) == 2 and part.targets.tolist() == [0, 1] and part.labels == source.labels
    assert [part.name(i) for i in range(2)] == [source.name(7), source.name(19)]
    assert part[1][0] == source[19][0]
    assert len(subset(source, [])) == 0


def test_what_is_not_there_is_said(folder, tmp_path):
    image = folder({"cat/a.jpg": 8}) / "cat/a.jpg"
    for where, message in [
        (tmp_path / "nowhere", "there is no folder, file or data set"),
        (tmp_path / "no" / "where", "there is no folder, file or data set"),
        (image, "is not a .csv, .tsv, .jsonl, .ndjson, .parquet or .tar file"),
    ]:
        with pytest.raises(ValueError, match=message):
            open_splits(str(where))
    divided = folder({"train/cat/1.jpg": 8, "test/cat/1.jpg": 8}, "parts")
    with pytest.raises(ValueError, match="has no part 'val'; it has train, test"):
        open_source(str(divided), split="val")
    with pytest.raises(ValueError, match="has no part 'test'; it has no parts"):
        open_source(str(folder(CATS, "flat")), split="test")


def test_a_folder_s_names_are_kept_as_they_are(folder):
    names = [f"cläss {i}/ü b.{i}.jpg" for i in range(3)]
    source = open_source(str(folder(dict.fromkeys(names, 8))))
    assert [source.name(i).split("photos/")[1] for i in range(3)] == names
    assert all(len(source[i][0]) for i in range(3))


def test_a_negative_seed_draws_nothing():
    source = open_source("digits")
    for draw in (lambda: random_subset(source, 5, -1), lambda: split_off(source, 0.2, -1)):
        with pytest.raises(ValueError, match="draws images is -1; it is a whole number from 0 on"):
            draw()
