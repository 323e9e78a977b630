"""Trees of folders as people have them: what the classes and the parts are, or what is asked."""

from pathlib import Path

import pytest

from vitkit.data import Columns, find_images, open_parts

ANIMALS = ("cat", "dog")
PARTS = ("train", "test")


def tree(pattern: str, **choices: tuple[str, ...]) -> list[str]:
    """Every file of a pattern such as "{part}/{label}", two of each folder."""
    folders = [pattern]
    for name, values in choices.items():
        folders = [folder.replace(f"{{{name}}}", value) for folder in folders for value in values]
    return [f"{folder}/{i}.jpg" for folder in folders for i in range(2)]


@pytest.fixture
def plant(tmp_path):
    """plant(files): a folder "photos" with these files, which are not decoded here."""

    def make(files: list[str]) -> Path:
        for file in files:
            path = tmp_path / "photos" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        return tmp_path / "photos"

    return make


def found(root: Path, level: int | None = None) -> tuple[tuple[str, ...], dict[str, int]]:
    """The classes of a tree, and how many images each part has."""
    parts = open_parts(str(root), Columns(level=level)).sources
    labels = next(iter(parts.values())).labels
    for source in parts.values():
        for i in range(len(source)):
            assert not labels or source.answer(i) in source.name(i)
    return labels, {name: len(source) for name, source in parts.items()}


@pytest.mark.parametrize("files", [
    tree("{a}", a=ANIMALS),
    tree("{a}", a=ANIMALS) + tree("@eaDir/{a}", a=ANIMALS) + ["cat/@eaDir/0.jpg/SYNOPHOTO_THUMB_M.jpg"],
    tree("images/{a}", a=ANIMALS),
    tree("data/JPEGImages/{a}", a=ANIMALS),
    tree("photos/{a}", a=ANIMALS),
    ["cover.jpg", *tree("images/{a}", a=ANIMALS)],
    tree("{a}/images", a=ANIMALS),
])  # fmt: skip
def test_classes_without_parts(plant, files):
    assert found(plant(files)) == (ANIMALS, {"": 4})


@pytest.mark.parametrize("files", [
    tree("{p}/{a}", p=PARTS, a=ANIMALS),
    tree("chest_xray/{p}/{a}", p=PARTS, a=ANIMALS),
    tree("images/{p}/{a}", p=PARTS, a=ANIMALS),
    tree("archive/dataset/{p}/{a}", p=PARTS, a=ANIMALS),
    tree("{p}/images/{a}", p=PARTS, a=ANIMALS),
    tree("{p}/{a}/images", p=PARTS, a=ANIMALS),
    tree("{p}_set/{p}_set/{a}", p=PARTS, a=ANIMALS)[:4] + tree("test_set/test_set/{a}", a=ANIMALS),
    tree("seg_{p}/{a}", p=PARTS, a=ANIMALS),
    tree("{p}2017/{a}", p=PARTS, a=ANIMALS),
    tree("{p} images/{a}", p=("Training", "Testing"), a=ANIMALS),
    tree("{a}/{p}", a=ANIMALS, p=PARTS),
    tree("data/{a}/{p}", a=ANIMALS, p=("Train", "Test")),
])  # fmt: skip
def test_classes_in_parts(plant, files):
    files = [file for file in files if not file.startswith("train_set/test")]
    files = [file for file in files if not file.startswith("test_set/train")]
    assert found(plant(files)) == (ANIMALS, {"train": 4, "test": 4})


@pytest.mark.parametrize(("files", "parts"), [
    (tree("images"), {"": 2}),
    (tree("{p}/images", p=PARTS), {"train": 2, "test": 2}),
    (tree("images/{p}", p=PARTS), {"train": 2, "test": 2}),
    (tree("{p}2017", p=("train", "val")), {"train": 2, "val": 2}),
])  # fmt: skip
def test_detection_exports_have_no_class_called_images(plant, files, parts):
    assert found(plant(files)) == ((), parts)


YEARS = ("2022", "2023")


@pytest.mark.parametrize(("files", "message", "inner", "outer"), [
    (tree("{y}/{a}", y=YEARS, a=ANIMALS), r"holds 2022, 2023, with folders of the same names below \(cat, dog\)", 2, 1),
    (["2022/stray.jpg", *tree("{y}/{a}", y=YEARS * 3, a=(*ANIMALS, "emu"))], r"holds 2022, 2023, with folders", 2, 1),
    (tree("fold{f}/{a}", f=("1", "2", "3"), a=ANIMALS), r"holds fold1, fold2, fold3, with folders", 2, 1),
    (["cam1/cat/0.jpg", "cam1/dog/0.jpg", "cam2/Cat/0.jpg"], r"holds cam1, cam2, .*\(Cat\)", 2, 1),
    (tree("images/{y}/{a}", y=YEARS, a=ANIMALS), r"holds 2022, 2023, with folders", 3, 2),
    (tree("{p}/{y}/{a}", p=PARTS, y=YEARS, a=ANIMALS), r"holds 2022, 2023, with folders", 3, 2),
    (tree("{p}/animals/{a}", p=PARTS, a=ANIMALS), r"one folder, animals, and below it cat, dog: .*level=3`; if", 3, 2),
    (["2022/cover.jpg", *tree("{y}/{a}", y=YEARS, a=ANIMALS)], r"holds 2022, 2023, with folders", 2, 1),
    (tree("{y}/images/{a}", y=YEARS, a=ANIMALS), r"holds 2022, 2023, with .*\(cat, dog\)", 3, 1),
    (tree("{p}/mine/images/{a}", p=PARTS, a=ANIMALS), r"one folder, mine, and below it cat, dog", 4, 2),
    (tree("{p}/{k}", p=PARTS, k=("images", "masks")), r"images and beside it masks.* move masks elsewhere", 2, 2),
    (tree("{a}/{k}", a=ANIMALS, k=("images", "masks")), r"same names below \(masks\)", 2, 1),
])  # fmt: skip
def test_what_may_be_the_class_is_asked(plant, files, message, inner, outer):
    root = plant(files)
    with pytest.raises(ValueError, match=message) as caught:
        found(root)
    assert f"`data.columns.level={inner}`" in str(caught.value)
    assert f"`data.columns.level={outer}`" in str(caught.value)
    below = {file.split("/")[inner - 1] for file in files if file.count("/") >= inner}
    above = {file.split("/")[outer - 1] for file in files if file.count("/") >= outer}
    assert set(found(root, inner)[0]) == below
    assert set(found(root, outer)[0]) == above
    has_parts = files[0].startswith("train")
    assert set(found(root, inner)[1]) == ({"train", "test"} if has_parts else {""})


def test_a_folder_above_the_classes_is_said(plant):
    root = plant(tree("kaggle/{a}", a=ANIMALS))
    message = "holds one folder, kaggle, and below it cat, dog: if these are the classes, give .*"
    with pytest.raises(
        ValueError, match=message + r"photos/kaggle; if kaggle is the only class"
    ) as caught:
        found(root)
    assert found(root / "kaggle") == found(root, 2) == (ANIMALS, {"": 4})
    assert found(root, 1) == (("kaggle",), {"": 4}) and "level=1" in str(caught.value)


@pytest.mark.parametrize("pattern", ["{k}", "{k}/{p}", "data/{k}/{a}"])
def test_masks_beside_images_are_asked_about(plant, pattern):
    root = plant(tree(pattern, k=("images", "labels"), p=PARTS, a=ANIMALS))
    inner = root / pattern.split("{")[0] / "images"
    with pytest.raises(ValueError, match=rf"if so, give {inner}, or move labels elsewhere"):
        found(root)
    found(inner)
    notes = open_parts(str(root), Columns(target="none")).notes
    assert "images of labels, beside images, are read too" in notes


def test_folders_inside_some_class_folders_are_said(plant):
    files = [*tree("{a}", a=ANIMALS), "cat/new/0.jpg", "dog/old/0.jpg"]
    notes = open_parts(str(plant(files))).notes
    assert "classes are cat, dog; the folders inside (new, old) are not" in notes[0]


def test_folds_with_parts_of_their_own_are_asked(plant):
    root = plant(tree("fold{f}/{p}/{a}", f=("1", "2"), p=PARTS, a=ANIMALS))
    with pytest.raises(ValueError, match=r"each with parts of its own .* such as .*photos/fold1$"):
        found(root)
    assert found(root / "fold1") == (ANIMALS, {"train": 4, "test": 4})


def test_a_class_called_train(plant):
    root = plant(["bus/1.jpg", "car/2.jpg", "train/steam/3.jpg", "train/steam/4.jpg"])
    with pytest.raises(ValueError, match=r"if train is a class as well: `data.columns.level=1`"):
        found(root)
    assert found(root, 1) == (("bus", "car", "train"), {"": 4})


def test_classes_that_end_as_parts_do(plant):
    trains = ("bullet_train", "steam_train")
    assert found(plant(tree("{a}", a=trains))) == (trains, {"": 4})


def test_classes_with_different_folders_inside_are_said(plant):
    root = plant(["animal/cat/1.jpg", "animal/dog/1.jpg", "vehicle/car/1.jpg"])
    _, notes, _ = open_parts(str(root))
    assert notes[0].startswith(
        "classes are animal, vehicle; the folders inside (car, cat, dog) are not"
    )
    assert found(root, 2)[0] == ("car", "cat", "dog")


@pytest.mark.parametrize(
    ("level", "message"), [(0, "it is 1 for photos/CLASS/IMAGE"), (4, "deepest lies 1 down")]
)
def test_a_level_that_cannot_be(plant, level, message):
    with pytest.raises(ValueError, match=message):
        found(plant(tree("{a}", a=ANIMALS)), level)


def test_a_linked_part_is_read_under_its_own_name(plant):
    root = plant(tree("{p}/{a}", p=("train", "val"), a=ANIMALS))
    (root / "test").symlink_to("val")
    assert found(root) == (ANIMALS, {"train": 4, "val": 4})
    notes = open_parts(str(root)).notes
    assert notes == ("left out: 1 link to a folder that is read already (test)",)


def test_system_folders_are_left_out_and_counted(plant):
    systems = (
        "__MACOSX @eaDir #recycle #snapshot $RECYCLE.BIN @Recycle lost+found .Trash-1000".split()
    )
    systems.append("System Volume Information")
    others = ["Thumbs.db", "cat/.DS_Store", "cat/._0.jpg", "dog/desktop.ini"]
    files = tree("{a}", a=ANIMALS) + tree("{s}", s=tuple(systems)) + others
    names, left_out = find_images(plant(files))
    assert names == sorted(tree("{a}", a=ANIMALS))
    assert left_out == {
        "system folders": 8, "hidden folders": 1, "hidden files": 2, ".db files": 1, ".ini files": 1,
    }  # fmt: skip


def test_annotations_beside_the_parts_are_no_part(plant):
    """As in MVTec's data sets."""
    files = tree("train/good") + tree("test/{label}", label=("good", "crack"))
    parts = open_parts(plant([*files, *tree("ground_truth/crack")]))
    assert {name: len(part) for name, part in parts.sources.items()} == {"train": 2, "test": 4}
    assert set(parts.sources["test"].labels) == {"crack", "good"}
    assert any("ground_truth are annotations, not examples" in note for note in parts.notes)
