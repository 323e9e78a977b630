"""Folders of images beside folders of their masks, as published data sets and other programs lay them out."""

import numpy as np
import pytest
from pictures import encoded, photograph
from PIL import Image

from vitkit.data import IGNORED, Columns, masked, open_splits, splits_with_masks
from vitkit.data.masks.published import CITYSCAPES, VOC
from vitkit.data.masks.trees import key_of
from vitkit.system.errors import BadData

NAMES = ("2007_000032", "2007_000039", "2007_000063", "2007_000068")


def put(path, pixels=None, seed=0):
    """A photograph, or a mask with these values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if pixels is None:
        kind = "JPEG" if path.suffix == ".jpg" else "PNG"
        path.write_bytes(encoded(photograph(8, 12, seed), kind))
    else:
        Image.fromarray(np.resize(np.array(pixels, np.uint8), (8, 12))).save(path)


def opened(where, masks, **given):
    """The names of the images of each part, the masked parts, and all notes."""
    splits = splits_with_masks(str(where), str(masks), Columns(), always_grouped=True)
    parts, notes = masked(splits.sources, str(where), str(masks), **given)
    names = {}
    for name, part in parts.items():
        stems = [part.images.name(i).rpartition("/")[2].partition(".")[0] for i in range(len(part))]
        names[name] = stems
        for i in range(len(part)):
            part.pair(i)  # reads both
    return names, parts, (*splits.notes, *notes)


@pytest.fixture
def voc(tmp_path):
    """Pascal VOC's folders; its last image has no mask, as most have none."""
    root = tmp_path / "VOC2012"
    for i, name in enumerate(NAMES):
        put(root / f"JPEGImages/{name}.jpg", seed=i)
        if name != NAMES[-1]:
            put(root / f"SegmentationClass/{name}.png", [0, 15, 255, 12])
            put(root / f"SegmentationObject/{name}.png", [0, 1, 255, 2])
    lists = root / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text(f"{NAMES[0]}\n{NAMES[1]}\n")
    (lists / "val.txt").write_text(f"{NAMES[2]}\n")
    (lists / "trainval.txt").write_text("\n".join(NAMES[:3]))
    return root


@pytest.mark.parametrize(
    ("where", "masks"),
    [
        (".", "SegmentationClass"),
        (".", "{root}/SegmentationClass"),
        ("JPEGImages", "SegmentationClass"),
        ("JPEGImages", "{root}/SegmentationClass"),
    ],
)
def test_pascal_voc_has_its_own_lists_and_names(voc, where, masks):
    names, parts, notes = opened(voc / where, masks.format(root=voc))
    assert names == {"train": [NAMES[0], NAMES[1]], "val": [NAMES[2]]}
    assert parts["train"].labels == VOC and len(VOC) == 21
    mask = parts["train"].mask(0)
    assert VOC[mask[0, 1]] == "person" and mask[0, 2] == IGNORED and VOC[mask[0, 3]] == "dog"
    assert any("name 3 images: 2 train, 1 val" in note for note in notes)
    assert any("Pascal VOC's" in note for note in notes)


def test_lists_of_images_that_are_not_there_or_in_two_parts(voc):
    lists = voc / "ImageSets/Segmentation"
    (lists / "train.txt").write_text(f"{NAMES[0]}\n../../{NAMES[1]}\n2007_999999\n")
    names, _, notes = opened(voc, "SegmentationClass")
    assert names["train"] == [NAMES[0]] and any(
        "without 2 images that they name: ../../2007_000039, 2007_999999" in n for n in notes
    )
    (lists / "train.txt").write_text(f"{NAMES[2]}\n")
    with pytest.raises(BadData, match=f"'{NAMES[2]}' in train and in val"):
        opened(voc, "SegmentationClass")
    for name in ("train.txt", "val.txt"):
        (lists / name).unlink()
    names, _, _ = opened(voc, "SegmentationClass")
    assert sorted(name for own in names.values() for name in own) == list(NAMES[:3])
    (lists / "trainval.txt").write_text("2007_999999\n")
    with pytest.raises(BadData, match="no image below .* such as '2007_999999'"):
        opened(voc, "SegmentationClass")


def test_names_with_spaces_and_second_columns(voc):
    for i, name in enumerate(("my photo 0", "my photo 1")):
        put(voc / f"JPEGImages/{name}.jpg", seed=i)
        put(voc / f"SegmentationClass/{name}.png", [0, 15, 255, 12])
    lists = voc / "ImageSets/Segmentation"
    (lists / "train.txt").write_text(f'my photo 0\n"my photo 1"\n{NAMES[0]}  1\n{NAMES[1]} -1\n')
    names, _, notes = opened(voc, "SegmentationClass")
    assert sorted(names["train"]) == [NAMES[0], NAMES[1], "my photo 0", "my photo 1"]
    assert any("name 5 images: 4 train, 1 val" in note for note in notes)


@pytest.mark.parametrize("other", ("val", "test"))
def test_one_list_of_train_and_val_beside_others(voc, other):
    lists = voc / "ImageSets/Segmentation"
    for name in ("train.txt", "val.txt"):
        (lists / name).unlink()
    (lists / f"{other}.txt").write_text(f"{NAMES[2]}\n")
    if other == "test":  # whose images are in no other list
        with pytest.raises(BadData, match=f"'{NAMES[2]}' in train and in test"):
            opened(voc, "SegmentationClass")
        (lists / "trainval.txt").write_text("\n".join(NAMES[:2]))
    names, _, _ = opened(voc, "SegmentationClass")
    assert names == {"train": list(NAMES[:2]), other: [NAMES[2]]}


def test_a_test_list_without_masks_is_left_out(voc):
    (voc / "ImageSets/Segmentation/test.txt").write_text(f"{NAMES[3]}\n")
    names, _, notes = opened(voc, "SegmentationClass")
    assert set(names) == {"train", "val"} and any("left out: the test part" in n for n in notes)


def test_folders_like_pascal_voc_have_the_classes_of_the_program_that_wrote_them(voc):
    (voc / "class_names.txt").write_text("__ignore__\n_background_\nscratch\ndent\n")
    for name in NAMES[:3]:
        put(voc / f"SegmentationClass/{name}.png", [0, 1, 255, 2])
    _, parts, _ = opened(voc, "SegmentationClass")
    assert parts["train"].labels == ("background", "scratch", "dent")
    assert parts["train"].mask(0)[0, :4].tolist() == [0, 1, IGNORED, 2]
    (voc / "labelmap.txt").write_text("# label:color_rgb\nbackground:0,0,0::\nscratch:128,0,0::\n")
    for name in NAMES[:3]:
        colours = np.zeros((8, 12, 3), np.uint8)
        colours[:, 6:, 0] = 128
        Image.fromarray(colours).save(voc / f"SegmentationClass/{name}.png")
    _, parts, _ = opened(voc, "SegmentationClass")
    assert parts["train"].labels == ("background", "scratch")
    assert parts["train"].mask(0)[0].tolist() == [0] * 6 + [1] * 6


def test_other_names_of_images_are_no_pascal_voc(voc):
    for i, name in enumerate(NAMES):
        for folder, ending in (("JPEGImages", "jpg"), ("SegmentationClass", "png")):
            path = voc / folder / f"{name}.{ending}"
            if path.exists():
                path.rename(path.with_name(f"part{i}.{ending}"))
    (voc / "ImageSets/Segmentation/train.txt").write_text("part0\npart1\n")
    (voc / "ImageSets/Segmentation/val.txt").write_text("part2\n")
    names, parts, _ = opened(voc, "SegmentationClass")
    assert names == {"train": ["part0", "part1"], "val": ["part2"]}
    assert parts["train"].labels == ("0", "12", "15")


@pytest.mark.parametrize("ids", ["labelIds", "labelTrainIds"])
@pytest.mark.parametrize(
    ("where", "masks"), [(".", "gtFine"), ("leftImg8bit", "gtFine"), (".", "{root}/gtFine")]
)
def test_cityscapes_has_the_classes_that_it_evaluates(tmp_path, where, masks, ids):
    root = tmp_path / "cityscapes"
    values = [7, 8, 26, 0, 33, 255] if ids == "labelIds" else [0, 1, 13, 255, 18, 255]
    for part in ("train", "val", "test"):
        for i, city in enumerate(("aachen", "bonn")):
            stem = f"{city}_000000_000019"
            put(root / f"leftImg8bit/{part}/{city}/{stem}_leftImg8bit.png", seed=i)
            own = [0] if part == "test" and ids == "labelIds" else values
            put(root / f"gtFine/{part}/{city}/{stem}_gtFine_{ids}.png", own)
            put(root / f"gtFine/{part}/{city}/{stem}_gtFine_instanceIds.png", [1])
            put(root / f"gtFine/{part}/{city}/{stem}_gtFine_color.png", [1])
    names, parts, _ = opened(root / where, masks.format(root=root))
    assert {"train", "val"} <= set(names) and len(names["train"]) == 2
    assert ("test" in names) == (ids == "labelTrainIds")  # the published ones have no class
    labels = parts["train"].labels
    assert labels == tuple(CITYSCAPES) and len(labels) == 19
    mask = parts["train"].mask(0)[0, :6].tolist()
    assert [labels[k] for k in mask if k != IGNORED] == ["road", "sidewalk", "car", "bicycle"]
    assert [mask[3], mask[5]] == [IGNORED, IGNORED]


@pytest.mark.parametrize("has_names", [True, False])
@pytest.mark.parametrize(("where", "masks"), [(".", "annotations"), ("images", "annotations")])
def test_ade20k_has_names_and_0_is_no_class(tmp_path, where, masks, has_names):
    root = tmp_path / "ADE"
    for part, short in (("training", "train"), ("validation", "val")):
        for number in (1, 2):
            put(root / f"images/{part}/ADE_{short}_{number:08}.jpg", seed=number)
            put(root / f"annotations/{part}/ADE_{short}_{number:08}.png", [0, 1, 2, 3])
    if has_names:
        (root / "objectInfo150.txt").write_text(
            "Idx\tRatio\tTrain\tVal\tName\n1\t0.1\t1\t1\twall\n2\t0.1\t1\t1\tscreen, crt\n3\t0\t1\t1\tscreen\n"
        )
    names, parts, _ = opened(root / where, masks)
    assert {name: len(own) for name, own in names.items()} == {"train": 2, "val": 2}
    labels = ("1", "2", "3")
    if has_names:
        labels = ("wall", "screen", "screen (3)")
    assert parts["train"].labels == labels
    assert parts["train"].mask(0)[0, :4].tolist() == [IGNORED, 0, 1, 2]


def test_masks_in_a_folder_of_each_part(tmp_path):
    for part in ("train", "val"):
        for number in range(2):
            put(tmp_path / f"{part}/images/{number}.png", seed=number)
            put(tmp_path / f"{part}/masks/{number}.png", [0, 255] if part == "train" else [255, 0])
    names, parts, _ = opened(tmp_path, "masks")
    assert names == {"train": ["0", "1"], "val": ["0", "1"]}
    assert parts["train"].labels == ("background", "object")
    assert parts["val"].mask(0)[0, 0] == 1 and parts["train"].mask(0)[0, 0] == 0


def test_masks_beside_images_count_as_no_images(tmp_path):
    for number in range(10):
        put(tmp_path / f"images/{number}.jpg", seed=number)
        put(tmp_path / f"masks/{number}.png", [0, 255])
    for masks in ("masks", tmp_path / "masks"):
        names, _, notes = opened(tmp_path, masks)
        assert len(names["train"]) == 8 and len(names["test"]) == 2
        assert not any("burst" in note for note in notes)
    with pytest.raises(BadData, match=r"vitkit\.finetune\(.*masks='masks'\) learns masks"):
        open_splits(tmp_path)


def test_a_key_has_no_folders_that_only_say_what_is_in_them():
    assert str(key_of("train/images/a.png")) == "train/a.png"
    assert str(key_of("images/train/bonn/x_leftImg8bit.png")) == "train/bonn/x.png"
    assert str(key_of("cats/a.png")) == "cats/a.png"


def test_folders_of_one_name_here_and_in_the_data_set(tmp_path, monkeypatch):
    data = tmp_path / "photos"
    put(data / "images/a.png")
    put(data / "masks/a.png", [0, 1])
    put(tmp_path / "masks/a.png", [0, 1])
    put(tmp_path / "plain/a.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadData, match=f"may be {tmp_path}/masks or photos/masks: give the whole"):
        opened("photos", "masks")
    names, _, _ = opened("plain", "masks")
    assert names == {"train": ["a"]}
    monkeypatch.chdir(data)
    names, _, _ = opened(".", "masks")
    assert names == {"train": ["a"]}
    (data / "masks").rename(data / "other")
    put(data / "train/images/b.png")
    put(data / "train/masks/b.png", [0, 1])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadData, match=f"{tmp_path}/masks or photos/train/masks"):
        opened("photos", "masks")


def test_a_folder_of_masks_that_is_not_there(tmp_path):
    put(tmp_path / "photos/a.png")
    for masks in ("masks", "../masks", "a/b/masks", str(tmp_path / "masks")):
        with pytest.raises(BadData, match="there is no folder .* with masks"):
            opened(tmp_path / "photos", masks)
