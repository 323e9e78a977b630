"""Masks that a model predicts: at the image's size, in files that others read."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from pictures import encoded, photograph
from PIL import Image

import vitkit
from vitkit.data import Preprocessing, masked, open_image, open_source
from vitkit.data.masks.regions import regions
from vitkit.models import create, vit
from vitkit.prediction.segmentation.palette import mask_png, overlay, palette
from vitkit.prediction.segmentation.writing import MaskFolder
from vitkit.runtimes.maps import class_map, likeliest, logit_maps, map_runtime
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.weights import Classifier, dense

LABELS = ("background", "cell", "edge")


@pytest.fixture(scope="module")
def model():
    """A small model with random weights that classifies every pixel."""
    config = vit("mu/16", image=(16, 16), patch=4, depth=2, classes=0)
    plain = Classifier(create(config, seed=0), Preprocessing(size=(16, 16)), ())
    made = dense(plain, LABELS, blocks=2, tokens=64)
    with torch.no_grad():
        made.model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    return made


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, size in (("a.jpg", (40, 60)), ("b.png", (33, 20))):
        kind = "JPEG" if name.endswith("jpg") else "PNG"
        (folder / name).write_bytes(encoded(photograph(*size), kind))
    return folder


def test_the_class_of_a_pixel_is_that_of_the_highest_interpolated_logit(model, files):
    picture = open_image((files / "a.jpg").read_bytes(), "a.jpg")
    runtime = map_runtime(model, "cpu")
    maps = logit_maps(runtime, picture)
    image = torch.from_numpy(model.preprocessing.array(picture)[None])
    assert torch.equal(model.logits(image)[0], torch.from_numpy(maps))
    assert maps.shape[1:] == image.shape[-2:] and maps.shape[0] == len(LABELS)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(maps)[None], (40, 60), mode="bilinear"
    )
    assert np.array_equal(class_map(runtime, picture), expected[0].argmax(0).numpy())
    assert np.array_equal(likeliest(maps, maps.shape[1:]), maps.argmax(0))


def test_logits_of_pixels_are_those_of_patches_between_their_centres(model):
    images = torch.rand(2, 3, 12, 20, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        features = model.model.features(images)
        maps = model.model(images)
        patches = model.model.head(features).mT.unflatten(2, (3, 5))
    assert features.shape == (2, 15, 2 * model.model.config.width) and maps.shape == (2, 3, 12, 20)
    # between the centres of four patches, their mean
    middle = (
        patches[:, :, 0, 0] + patches[:, :, 0, 1] + patches[:, :, 1, 0] + patches[:, :, 1, 1]
    ) / 4
    around = maps[:, :, 3:5, 3:5].mean((2, 3))
    torch.testing.assert_close(around, middle)


def test_a_folder_of_masks_holds_what_others_read(model, files, tmp_path):
    found = vitkit.segment(model, files, to=tmp_path / "out", smallest=3)
    assert [answer.file.name for answer in found] == ["a.png", "b.png"] and found.status == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "a.png", "a.overlay.jpg", "b.png", "b.overlay.jpg", "shares.csv", "regions.json", "legend.csv",
    }  # fmt: skip
    in_memory = vitkit.segment(model, files)
    for answer, alone in zip(found, in_memory, strict=True):
        written = Image.open(answer.file)
        assert written.mode == "P" and np.array_equal(np.asarray(written), alone.mask)
        assert answer.mask is None and alone.mask.shape == answer.size

    # Shares and regions are those of the masks
    with (tmp_path / "out/shares.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, alone in zip(rows, in_memory, strict=True):
        for number, label in enumerate(LABELS):
            assert float(row[label]) == pytest.approx((alone.mask == number).mean(), abs=1e-5)
    coco = json.loads((tmp_path / "out/regions.json").read_text())
    assert [each["name"] for each in coco["categories"]] == list(LABELS)
    whole = {answer.name: np.zeros(answer.size, int) for answer in found}
    names = {image["id"]: image["file_name"] for image in coco["images"]}
    for each in coco["annotations"]:
        flat = np.repeat(
            np.arange(len(each["segmentation"]["counts"])) % 2, each["segmentation"]["counts"]
        )
        mask = flat.reshape(each["segmentation"]["size"][::-1]).T.astype(bool)
        assert mask.sum() == each["area"] >= 3
        left, top, width, height = each["bbox"]
        assert mask[top : top + height, left : left + width].sum() == each["area"]
        whole[names[each["image_id"]]][mask] = each["category_id"] - 1
    for alone in in_memory:
        for number in (1, 2):
            expected = sum(r.area for r in regions(alone.mask, 3, 3) if r.number == number)
            assert (whole[alone.name] == number).sum() == expected
    assert all(
        each["category_id"] != 1 for each in coco["annotations"]
    )  # the background is no object


def test_written_masks_are_masks_to_learn_from(model, files, tmp_path):
    found = vitkit.segment(model, files, to=tmp_path / "out")
    source = open_source(files, vitkit.Columns(target="none"))
    parts, _ = masked({"": source}, str(files), str(tmp_path / "out"), tmp_path / "out/legend.csv")
    assert parts[""].labels == LABELS
    for i, alone in enumerate(vitkit.segment(model, files)):
        assert np.array_equal(parts[""].pair(i)[1], alone.mask)
    again = vitkit.segment(model, files, to=tmp_path / "out", overlays=False)  # replaces its own
    assert len(again) == len(found)


def test_a_folder_of_a_killed_command_is_written_again(model, files, tmp_path):
    folder = MaskFolder(tmp_path / "out", LABELS, overlays=False, smallest=1)
    folder.add("a.jpg", np.zeros((4, 4), np.uint8), None)  # and no tables at the end
    assert len(vitkit.segment(model, files, to=tmp_path / "out")) == 2
    assert json.loads((tmp_path / "out/regions.json").read_text())["images"]


def test_long_names_of_images_are_shortened(tmp_path):
    with MaskFolder(tmp_path / "out", LABELS, overlays=True, smallest=1) as folder:
        mask = np.ones((4, 4), np.uint8)
        for name in ("ü" * 300 + ".jpg", "ü" * 300 + "x.jpg", "a" * 250 + ".jpg", "a\0b.png"):
            file = folder.add(name, mask, np.zeros((4, 4, 3), np.uint8))
            assert np.array_equal(np.asarray(Image.open(file)), mask)
            assert file.with_name(f"{file.stem}.overlay.jpg").is_file()
    with (tmp_path / "out/shares.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert len({row["mask"] for row in rows}) == 4 and rows[0]["image"] == "ü" * 300 + ".jpg"


def test_a_folder_with_other_files_is_refused(model, files, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.png").write_bytes(b"somebody's")
    with pytest.raises(BadSettings, match="holds other files"):
        vitkit.segment(model, files, to=tmp_path / "mine")
    with pytest.raises(BadSettings, match="the images are in"):
        vitkit.segment(model, files, to=files)
    assert (tmp_path / "mine/a.png").read_bytes() == b"somebody's"


def test_a_broken_image_has_an_error_and_the_others_masks(model, files):
    (files / "c.jpg").write_bytes(b"broken")
    found = vitkit.segment(model, files)
    assert [answer.error is None for answer in found] == [True, True, False]
    assert found.unreadable == 1 and found.status == 3 and "c.jpg" in str(found)
    assert vitkit.segment(model, files, ok_if_unreadable=True).status == 0
    assert found.to_frame is not None and found.rows()[0]["error"] is None
    assert sum(found.rows()[0][label] for label in LABELS) == pytest.approx(1)


def test_images_in_memory_are_segmented(model):
    found = vitkit.segment(model, photograph(24, 31), Image.fromarray(photograph(9, 9)))
    assert [answer.mask.shape for answer in found] == [(24, 31), (9, 9)]


def test_models_of_one_answer_and_models_of_pixels_are_told_apart(model, files):
    config = vit("mu/16", image=(16, 16), patch=4, depth=1, classes=2)
    plain = Classifier(create(config, seed=0), Preprocessing(size=(16, 16)), ("a", "b"))
    with torch.no_grad():
        plain.model.head.weight.fill_(0.1)
    with pytest.raises(Unsupported, match=r"one output.*finetune"):
        vitkit.segment(plain, files)
    with pytest.raises(Unsupported, match=r"every pixel.*segment"):
        vitkit.predict(model, files)
    with pytest.raises(BadSettings, match="measured on images with masks"):
        vitkit.evaluate(model, files)
    with pytest.raises(BadSettings, match="`smallest` is 0"):
        vitkit.segment(model, files, smallest=0)


def test_a_model_that_crops_does_not_classify_every_pixel(model, files):
    from dataclasses import replace

    cropping = replace(model, preprocessing=Preprocessing(size=(16, 16), rule="shorter"))
    with pytest.raises(Unsupported, match="cuts off"):
        vitkit.segment(cropping, files)


def test_a_saved_model_gives_the_same_masks(model, files, tmp_path):
    vitkit.save(model, tmp_path / "model")
    opened = vitkit.load(tmp_path / "model", quiet=True)
    assert opened.model.config == model.model.config and opened.preprocessing == model.preprocessing
    for one, other in zip(vitkit.segment(opened, files), vitkit.segment(model, files), strict=True):
        assert np.array_equal(one.mask, other.mask)
    with pytest.raises(vitkit.VitkitError, match="classifies every pixel"):
        vitkit.convert(tmp_path / "model", tmp_path / "hf", to="huggingface", quiet=True)


# Colours and regions


def test_classes_have_colours_of_their_own_and_a_background_none():
    assert palette(LABELS)[0].tolist() == [0, 0, 0] and palette(("sky", "road"))[0].any()
    assert len(np.unique(palette(LABELS), axis=0)) == 256
    assert palette(LABELS)[1:4].tolist() == [
        [128, 0, 0],
        [0, 128, 0],
        [128, 128, 0],
    ]  # as Pascal VOC
    mask = np.array([[0, 1]], np.uint8)
    pixels = np.full((1, 2, 3), 100, np.uint8)
    shown = overlay(pixels, mask, LABELS)
    assert shown[0, 0].tolist() == [100, 100, 100] and shown[0, 1, 0] > 100 > shown[0, 1, 1]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(mask_png(mask, LABELS)))), mask)


def test_regions_touch_by_sides_and_corners():
    mask = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 2]], np.uint8)
    found = [(region.number, region.box, region.area) for region in regions(mask, 3)]
    assert [each for each in found if each[0]] == [
        (1, (0, 0, 2, 2), 2),
        (1, (3, 0, 1, 1), 1),
        (2, (3, 2, 1, 1), 1),
    ]
    [first] = [r for r in regions(mask, 3, smallest=2) if r.number == 1]
    assert first.run_lengths(mask.shape) == {"counts": [0, 1, 3, 1, 7], "size": [3, 4]}
