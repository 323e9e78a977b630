"""`vitkit data review --masks`: damaged masks come first, regions say what the prediction is, and no mask is judged
by a model that has seen it."""

import json
import re

import numpy as np
import pytest
import torch
from pictures import encoded
from PIL import Image
from served import make_model_of_masks

import vitkit
from vitkit.apps.review.doubts import FINER, Kept, compared, judge, order_of
from vitkit.cli.entry import main
from vitkit.data import IGNORED
from vitkit.system.errors import BadData, BadSettings
from vitkit.weights import save

GRID = (4, 6)
CLASSES = 3
COUNT = 12


@pytest.fixture(scope="module")
def scenes():
    """Features of images whose patches show a class each, with noise, and their masks of 8 pixels a patch."""
    random = np.random.default_rng(0)
    means = random.normal(size=(CLASSES, 8))
    features = []
    masks = []
    for _ in range(COUNT):
        classes = random.integers(0, CLASSES, (2, 3)).repeat(2, 0).repeat(2, 1)  # (4, 6)
        noise = random.normal(size=(classes.size, 8)) / 8
        features.append(torch.from_numpy(means[classes.reshape(-1)] + noise).half())
        masks.append(classes.repeat(8, 0).repeat(8, 1).astype(np.uint8))
    return features, masks


def judged(features, masks, groups=None):
    return judge(
        Kept(lambda i: (features[i], GRID)), lambda i: masks[i], len(masks), groups, CLASSES, (4, 2),
        (8, 8),
    )  # fmt: skip


@pytest.mark.slow
def test_damaged_masks_come_first_and_their_regions_say_what_is_predicted(scenes):
    features, masks = scenes
    damaged = list(masks)
    damaged[3] = np.roll(masks[3], 16, 1)
    right = masks[7][0, 0]
    wrong = (right + 1) % CLASSES
    damaged[7] = masks[7].copy()
    damaged[7][:16, :16] = wrong
    found = judged(features, damaged)
    assert set(order_of(found)[:2]) == {3, 7}
    first = found[7].regions[0]
    assert (first.own, first.guess) == (wrong, right) and first.probability > 0.5
    left, top, width, height = first.box
    assert left < 0.1 and top < 0.1 and width <= 0.4 and height <= 0.6
    assert not found[0].regions and found[0].iou > 0.9 and not found[0].disagrees.any()
    assert found[7].disagrees[:FINER, :FINER].all()


def test_a_mask_has_no_part_in_its_own_judgement(scenes):
    """What is predicted for the images of a group stays the same with other masks in this group."""
    features, masks = scenes
    groups = np.arange(COUNT) // 3
    before = judged(features, masks, groups)
    others = [(mask + 1) % CLASSES if i < 3 else mask for i, mask in enumerate(masks)]
    after = judged(features, [mask.astype(np.uint8) for mask in others], groups)
    same = [(a.predicted == b.predicted).mean() for a, b in zip(before[:3], after[:3], strict=True)]
    assert min(same) > 0.9 and order_of(after)[:3] != order_of(before)[:3]
    assert set(order_of(after)[:3]) == {0, 1, 2}


def test_ignored_pixels_and_single_cells_are_not_doubted():
    probabilities = np.full((2, 8, 8), 0.01, np.float32)
    probabilities[0] = 0.99
    mask = np.zeros((8, 8), np.uint8)
    mask[:4] = IGNORED
    mask[6, 6] = 1  # smaller than half a patch
    found = compared(probabilities, mask)
    assert found.regions == () and not found.disagrees.any()
    assert found.doubt == pytest.approx((31 * 0.01 + 0.99) / 32, abs=1e-6)
    mask[4:7, 2:6] = 1
    (region,) = compared(probabilities, mask).regions
    assert (region.own, region.guess) == (1, 0) and region.share == 13 / 64
    assert region.evidence == pytest.approx(13 * np.log(99) / FINER**2, rel=1e-4)
    nothing = compared(probabilities, np.full((8, 8), IGNORED, np.uint8))
    assert (nothing.doubt, nothing.iou, nothing.regions) == (0, 1, ())


def test_one_image_or_one_class_cannot_be_judged(scenes):
    features, masks = scenes
    with pytest.raises(BadData, match="one group of images"):
        judged(features, masks, np.zeros(COUNT, int))
    with pytest.raises(BadData, match="one class"):
        judged(features, [np.zeros_like(mask) for mask in masks])


@pytest.fixture
def photos(tmp_path):
    """Bright discs on dark ground with their masks; one mask is upside down, and one is of another size."""
    y, x = np.mgrid[:32, :32]
    for i in range(8):
        random = np.random.default_rng(i)
        inside = (y - 8) ** 2 + (x - random.integers(8, 24)) ** 2 < 36
        pixels = np.where(inside[..., None], 200, 40) + random.integers(0, 30, (32, 32, 3))
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "masks").mkdir(exist_ok=True)
        (tmp_path / f"images/{i}.png").write_bytes(encoded(pixels.astype(np.uint8), "PNG"))
        mask = inside[::-1] if i == 5 else inside
        mask = mask[:-1] if i == 6 else mask
        Image.fromarray(mask.astype(np.uint8) * 255).save(tmp_path / f"masks/{i}.png")
    return tmp_path


def test_the_command_writes_a_page_and_lists_images(photos, tmp_path, capsys, monkeypatch):
    save(make_model_of_masks(), tmp_path / "model")
    model = vitkit.load(tmp_path / "model", quiet=True)
    model.origin["head"] = "closed form"
    found = vitkit.review(
        str(photos),
        model,
        masks="masks",
        output=tmp_path / "review.html",
        device="cpu",
        groups="none",
        quiet=True,
    )
    assert len(found.findings) == 7 and len(found.unreadable) == 1
    assert "6.png is 32 x 31 pixels" in found.unreadable[0]
    assert found.findings[0].image.endswith("5.png") and found.rows()[0]["regions"] >= 1
    page = (tmp_path / "review.html").read_text()
    assert (
        page.count("<figure ") == 7
        and page.count("<img") == 4 * 7
        and "amber where the two surely differ" in page
    )
    assert "http://" not in re.sub(r"http://www.w3.org\S*", "", page)
    words = ["data", "review", str(photos), str(tmp_path / "model"), "--masks", "masks"]
    assert main([*words, "--output", str(tmp_path / "again.html")]) == 1
    assert "was fine-tuned on masks, which it may remember" in capsys.readouterr().err
    model.origin["backbone_learned_masks"] = True  # by a closed form of a fine-tuned backbone
    with pytest.raises(BadSettings, match="was fine-tuned on masks"):
        vitkit.review(str(photos), model, masks="masks", output=tmp_path / "again.html")
    for line in found.__class__(**{**vars(found), "json": True}).shown():
        values = json.loads(line)
        assert {"image", "mask", "doubt", "iou", "regions", "part"} == set(values)


def test_settings_that_do_not_go_together(photos, tmp_path):
    model = make_model_of_masks()
    with pytest.raises(BadSettings, match="give these with `masks`"):
        vitkit.review(str(photos), model, ignore=3)
    for given in ({"masks": "masks"}, {"legend": tmp_path / "x.txt"}, {"ignore": 3}):
        with pytest.raises(BadSettings, match="leave out `masks`, `legend` and `ignore`"):
            vitkit.review(str(photos), apply=tmp_path / "list.csv", **given)
    with pytest.raises(
        BadSettings, match="`exclude` cannot list masks: they are reviewed in an order"
    ):
        vitkit.review(str(photos), model, masks="masks", exclude=tmp_path / "x.txt")
