"""What `vitkit data stats --masks` counts, and that it lists everything that training would refuse."""

import json

import numpy as np
import pytest
from pictures import encoded, photograph
from PIL import Image

import vitkit
from vitkit.cli.entry import main
from vitkit.curation.masks import survey_masks
from vitkit.data import IGNORED, Columns, splits_with_masks
from vitkit.finetuning.segmentation.request import MaskRequest, read_parts
from vitkit.recipes import Data
from vitkit.system.errors import BadData, BadSettings
from vitkit.training.data import open_data

MASK = np.zeros((16, 24), np.uint8)
MASK[2:10, 3:12] = 1  # 72 pixels
MASK[12, 20:22] = 1  # 2 pixels, smaller than a patch of 16 x 24 / 96 = 4
MASK[:, 0] = 255


@pytest.fixture
def photos(tmp_path):
    """Three images and masks in each of two parts, and a legend."""
    for part in ("train", "val"):
        for i in range(3):
            put(tmp_path / f"images/{part}/{i}.png", photograph(16, 24, i))
            put(tmp_path / f"masks/{part}/{i}.png", MASK if i else np.zeros_like(MASK))
    (tmp_path / "legend.txt").write_text("background\ncell\nnever\n")
    return tmp_path


def put(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    if pixels.ndim == 3:
        path.write_bytes(encoded(pixels, "PNG"))
    else:
        Image.fromarray(pixels).save(path)


def report_of(photos, legend="legend.txt", workers=0):
    splits = splits_with_masks(str(photos), "masks", always_grouped=True)
    path = photos / legend if legend else None
    return survey_masks(splits.sources, str(photos), "masks", path, None, 96, workers)


def test_shares_images_regions_and_ignored_pixels_are_counted(photos):
    report = report_of(photos)
    train = report.parts["train"]
    assert report.problems == () and train.problems == [] and train.masks == train.images == 3
    assert train.labels == ("background", "cell", "never")
    counted = [int(((k == MASK) & (MASK != IGNORED)).sum()) for k in range(3)]
    assert train.pixels.tolist() == [2 * counted[0] + MASK.size, 2 * counted[1], 0]
    assert train.images_with.tolist() == [3, 2, 0] and train.ignored == 2 * 16
    assert train.regions.tolist() == [3, 4, 0] and train.small.tolist() == [0, 2, 0]
    assert train.one_class == {"background": 1} and train.ignored_masks == []
    values = train.to_json()
    assert values["height"] == [16, 16, 16] and values["ignored"] == pytest.approx(32 / (3 * 384))
    assert sum(of["share"] for of in values["classes"].values()) == pytest.approx(1)


def test_every_problem_is_listed_with_its_file(photos):
    masks = photos / "masks"
    put(masks / "train/0.png", MASK[:-1])
    other = MASK.copy()
    other[0, 1:4] = 9
    put(masks / "train/1.png", other)
    (masks / "train/2.png").write_bytes(b"no")
    (masks / "val/0.png").rename(masks / "val/other.png")
    (masks / "val/1.png").rename(masks / "val/1.jpg")
    put(masks / "val/2.png", np.full_like(MASK, 255))
    report = report_of(photos)
    train, val = report.parts["train"], report.parts["val"]
    assert [len(train.problems), train.masks] == [3, 0] and [len(val.problems), val.masks] == [2, 1]
    for sentence, words in zip(
        sorted(train.problems),
        ("0.png is 24 x 15 pixels", "1.png has the value 9 in 3 pixels", "2.png is not an image"),
        strict=True,
    ):
        assert words in sentence and str(masks) in sentence
    assert any("0.png has no mask" in sentence for sentence in val.problems)
    assert any("1.jpg in" in sentence and "JPEG" in sentence for sentence in val.problems)
    assert [name.rpartition("/")[2] for name in val.ignored_masks] == ["2.png"]
    assert report.problems == ()  # training does not mind masks without images
    assert "2 masks in" in report.notes[0] and "val/other.png" in report.notes[0]
    assert train.to_json()["unusable"] == 3 and val.to_json()["unusable"] == 0
    legend = photos / "legend.txt"
    found = stats(str(photos), masks="masks", legend=legend)
    assert found.status == 3 and "named in 5 warnings" in str(found)
    assert "next: correct what the warnings name, and then vitkit.finetune(" in str(found)
    found = stats(str(photos), masks="masks", legend=legend, ok_if_unreadable=True)
    assert found.status == 0


def test_masks_from_which_no_legend_follows_are_described_all_the_same(photos):
    for path in (photos / "masks").rglob("*.png"):
        put(path, np.full_like(MASK, 5))
    report = report_of(photos, legend="")
    assert "all masks have one value, 5" in report.problems[0]
    assert report.parts["train"].to_json()["classes"] == {}
    (photos / "legend.txt").write_text("a, 1\na, 1, 2\n")
    with pytest.raises(BadData, match="legend"):
        report_of(photos)


def test_the_command_prints_them_and_what_comes_next(photos, capsys):
    legend = str(photos / "legend.txt")
    words = ["data", "stats", str(photos), "--masks", "masks", "--workers", "0"]
    (photos / "masks/val/0.png").unlink()
    assert main([*words, "--legend", legend, "--tokens", "96"]) == 0
    out = capsys.readouterr().out
    assert "never" in out and "no mask in" in out and "named in 1 warning" in out
    assert f"vitkit finetune {photos} --masks masks --legend {legend}" in out
    assert main([*words, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["masks"]["parts"]["train"]["masks"] == 3
    assert values["parts"]["train"]["images"] == 3  # masks count as no images
    for given in ({"legend": legend}, {"ignore": 3}, {"tokens": 5}):
        with pytest.raises(BadSettings, match="give these with `masks`"):
            stats(str(photos), **given)
    with pytest.raises(BadSettings, match="`tokens` is 0"):
        stats(str(photos), masks="masks", tokens=0)
    with pytest.raises(BadSettings, match="`test` is for images without masks"):
        stats(str(photos), masks="masks", test="digits")


def stats(*given, **settings):
    return vitkit.stats(*given, workers=0, quiet=True, **settings)


def test_images_that_are_in_two_parts_are_listed_for_training(photos, tmp_path):
    random = np.random.default_rng(0)
    for number in (0, 2):  # the others of both parts are the same
        put(photos / f"images/train/{number}.png", random.integers(0, 255, (16, 24, 3), np.uint8))
    legend = photos / "legend.txt"
    found = stats(str(photos), masks="masks", legend=legend, exclude=tmp_path / "list.csv")
    assert "wrote 1 training images" in str(found)
    assert "data__exclude=" in found.next_step and "masks='masks'" in found.next_step
    data = Data(
        source=str(photos), masks="masks", legend=str(legend), exclude=str(tmp_path / "list.csv")
    )
    said = []
    train = open_data(data, (), tmp_path / "run", said.append).train
    assert train.target_kind == "mask"
    assert sorted(train.name(i)[-5:] for i in range(len(train))) == ["0.png", "2.png"]
    assert [each for each in said if "are left out" in each] == [
        f"1 training images that {tmp_path / 'list.csv'} lists are left out"
    ]

    # Also if images have no mask, which the list counts
    (photos / "masks/train/2.png").unlink()
    train = open_data(data, (), tmp_path / "other", said.append).train
    assert [train.name(i)[-5:] for i in range(len(train))] == ["0.png"]
    request = MaskRequest(
        "", str(photos), "masks", legend, None, Columns(), None, exclude=str(tmp_path / "list.csv")
    )
    train = read_parts(request).parts["train"]
    assert [train.images.name(i)[-5:] for i in range(len(train))] == ["0.png"]
