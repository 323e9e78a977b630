"""Preprocessing equals what the published weights were made for; augmentation stays inside the image and is repeatable."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photograph
from PIL import Image
from torchvision.transforms import v2

from vitkit.data import (
    Augmentation,
    BadImage,
    Preprocessing,
    augment,
    images,
    open_image,
    open_source,
    transforms,
)
from vitkit.data.transforms import resize, suit

TIMM = Preprocessing(rule="shorter", resize=248, interpolation="bicubic")  # of the real ViT-Ti/16


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def by_pillow(data: bytes, shorter: int, size: int, kernel) -> np.ndarray:
    """Resize the shorter side, keep the aspect, cut out the centre: as the reference pipelines do it with Pillow."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = image.size
    scaled = (
        (shorter, int(shorter * height / width))
        if width <= height
        else (int(shorter * width / height), shorter)
    )
    image = image.resize(scaled, kernel)
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return np.asarray(image.crop((left, top, left + size, top + size)))


@pytest.mark.parametrize(
    "name", ["imagenet_val500.parquet", "ants_bees-test.parquet"]
)  # enlarged, and made smaller
def test_photographs_are_preprocessed_as_by_pillow(shared, name):
    source = open_source(str(shared(f"data/{name}")))
    for i in range(0, len(source), len(source) // 25):
        data = source[i][0]
        found = TIMM(open_image(data, "x")).permute(1, 2, 0).numpy()
        assert np.array_equal(found, by_pillow(data, 248, 224, Image.Resampling.BICUBIC))


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)],
)
@pytest.mark.parametrize("size", [(224, 224), (32, 48), (500, 300), (1, 1)])
def test_a_square_resize_equals_pillows(name, kernel, size):
    data = encoded(photograph(150, 211), "PNG")
    found = (
        Preprocessing(size=size, interpolation=name)(open_image(data, "x")).permute(1, 2, 0).numpy()
    )
    want = np.asarray(Image.open(io.BytesIO(data)).resize(size[::-1], kernel))
    assert np.array_equal(found, want)
    # in training both round after each of two passes, with weights of other precision: that can make two levels
    quick = resize(photograph(150, 211), size, name, antialias=True).permute(1, 2, 0).numpy()
    off = np.abs(quick.astype(int) - want)
    assert off.max() <= 2 and (off > 1).mean() < 1e-3


def test_without_antialiasing_a_resize_is_google_s_bilinear_within_one_level():
    """Half-pixel centres, two neighbours a side, however much smaller the result: tf.image.resize's default."""
    pixels, (h, w) = photograph(90, 131), (24, 40)
    y = np.clip((np.arange(h) + 0.5) * 90 / h - 0.5, 0, 89)
    x = np.clip((np.arange(w) + 0.5) * 131 / w - 0.5, 0, 130)
    low_y, low_x = np.minimum(y.astype(int), 88), np.minimum(x.astype(int), 129)
    fy, fx = (y - low_y)[:, None, None], (x - low_x)[None, :, None]
    rows = pixels[low_y] * (1 - fy) + pixels[low_y + 1] * fy
    want = rows[:, low_x] * (1 - fx) + rows[:, low_x + 1] * fx
    found = resize(pixels, (h, w), "bilinear", antialias=False).permute(1, 2, 0).numpy()
    assert np.abs(found - want).max() <= 1.01


def test_an_image_of_the_right_size_is_left_alone():
    pixels = photograph(32, 32)
    assert np.array_equal(
        Preprocessing(size=(32, 32))(open_image(pixels, "x")).permute(1, 2, 0), pixels
    )


def test_normalise_is_the_definition():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(2, 3, 1, 1)
    how = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    found = how.normalise(images)
    mean, std = torch.tensor(how.mean).view(3, 1, 1), torch.tensor(how.std).view(3, 1, 1)
    assert found.dtype == torch.float32
    assert torch.equal(found, (images.float() / 255 - mean) / std)
    ends = Preprocessing().normalise(images)[0, 0].flatten()
    assert ends[0] == -1 and ends[-1] == 1
    for bad in (images.float(), images[0], images[:, :1]):
        with pytest.raises(ValueError, match=r"expected uint8 \(B, 3, h, w\)"):
            how.normalise(bad)


def test_an_image_too_narrow_to_keep_its_aspect_is_refused(monkeypatch):
    monkeypatch.setattr(transforms, "MAX_PIXELS", 100_000)
    with pytest.raises(BadImage, match="strip is 1000 x 1 pixels: too narrow for a side of 248"):
        TIMM(open_image(np.zeros((1, 1000), np.uint8), "strip"))


def test_preprocessing_survives_json():
    how = replace(TIMM, size=(160, 224), antialias=False, mean=(0.1, 0.2, 0.3))
    assert Preprocessing.from_json(json.loads(json.dumps(how.to_json()))) == how


@pytest.mark.parametrize("change", [
    {"size": [224]}, {"size": "224"}, {"size": [0, 224]}, {"size": [224.5, 224]}, {"size": 224}, {"size": [10**9, 1]},
    {"rule": "round"}, {"resize": 100}, {"resize": "256"}, {"rule": []},
    {"interpolation": "lanczos"}, {"antialias": "yes"}, {"mean": [0.5]}, {"mean": "abc"}, {"mean": None},
    {"std": [0, 1, 1]}, {"std": [1, 1, float("nan")]}, {"colour": 1}, {"mean": [[1], [2], [3]]},
])  # fmt: skip
def test_garbage_is_no_preprocessing(change):
    with pytest.raises(ValueError) as caught:
        Preprocessing.from_json({**Preprocessing().to_json(), **change})
    assert next(iter(change)) in str(caught.value)


@pytest.mark.parametrize("garbage", [None, [], "x", {}, {"size": [224, 224]}])
def test_other_json_is_no_preprocessing(garbage):
    with pytest.raises(ValueError, match="a preprocessing has the settings size, rule"):
        Preprocessing.from_json(garbage)


@pytest.mark.parametrize("change", [
    {"crop": "centre"}, {"area": (0, 1)}, {"area": (0.5, 0.2)}, {"area": (0.5, 1.5)}, {"area": (0.5,)}, {"pad": -1},
    {"rand_augment": (1, 31)}, {"rand_augment": (-1, 3)}, {"rand_augment": (1, 21), "rand_augment_by": "google"},
    {"rand_augment_by": "timm"}, {"interpolation": "area"}, {"resize": -1},
    {"colour_jitter": (0.4, 0.4, 0.4)}, {"colour_jitter": (0, 0, 0, 0.6)}, {"colour_jitter": (-1, 0, 0, 0)}, {"erase": 1.1},
])  # fmt: skip
def test_impossible_augmentations_are_refused(change):
    with pytest.raises(ValueError, match=f"^{next(iter(change))} is "):
        Augmentation(**change)


def test_a_crop_must_fit_the_resize():
    with pytest.raises(ValueError, match=r"resize is 0; a resize_crop needs"):
        Augmentation(crop="resize_crop")
    with pytest.raises(
        ValueError, match=r"resize is 200; a crop of 224 x 224 does not fit: make it 224 or more"
    ):
        suit(Augmentation(crop="resize_crop", resize=200), Preprocessing())


WAYS = [
    Augmentation(),
    Augmentation(antialias=False, flip=False),
    Augmentation(interpolation="bicubic", area=(0.3, 0.5)),
    Augmentation(reduced_decode=True),
    Augmentation(crop="resize_crop", resize=40),
    Augmentation(crop="resize_crop", resize=40, reduced_decode=True),
    Augmentation(crop="pad_crop", pad=3),
    Augmentation(crop="none", flip=False),
    Augmentation(crop="none", rand_augment=(2, 9)),
    Augmentation(crop="none", rand_augment=(2, 20), rand_augment_by="google"),
    Augmentation(colour_jitter=(0.4, 0.4, 0.2, 0.1), erase=0.5),
]


@pytest.mark.parametrize("how", WAYS)
@settings(max_examples=12, deadline=None)
@given(
    height=st.integers(1, 64),
    width=st.integers(1, 64),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(["JPEG", "PNG"]),
)
def test_every_augmentation_takes_every_image(how, height, width, seed, kind):
    data = encoded(photograph(height, width, seed), kind)
    made = [
        augment(open_image(data, "x"), how, Preprocessing(size=(24, 32)), generator(seed))
        for _ in range(2)
    ]
    assert made[0].dtype == torch.uint8 and made[0].shape == (3, 24, 32)
    assert torch.equal(*made)


def test_an_inception_crop_is_a_box_of_the_image_resized():
    pixels = photograph(60, 80)
    how, to = Augmentation(flip=False), Preprocessing(size=(24, 24))
    box = transforms.inception_box(60, 80, how.area, generator(3))
    top, left, height, width = box
    want = resize(
        pixels[top : top + height, left : left + width].copy(), (24, 24), "bilinear", antialias=True
    )
    assert torch.equal(augment(open_image(pixels, "x"), how, to, generator(3)), want)


def test_only_the_box_is_decoded(monkeypatch):
    asked = []
    real = images.Encoded.pixels
    monkeypatch.setattr(
        images.Encoded,
        "pixels",
        lambda self, box=None, reduce=1: asked.append(box) or real(self, box, reduce),
    )
    augment(
        open_image(encoded(photograph(90, 120)), "x"),
        Augmentation(area=(0.1, 0.2)),
        Preprocessing(),
        generator(),
    )
    (box,) = asked
    assert 0.09 * 90 * 120 < box[2] * box[3] < 0.21 * 90 * 120


def test_a_reduced_decode_keeps_at_least_the_pixels_that_are_needed(monkeypatch):
    asked = []
    real = images.Encoded.pixels
    monkeypatch.setattr(
        images.Encoded,
        "pixels",
        lambda self, box, reduce: asked.append((box, reduce)) or real(self, box, reduce),
    )
    picture = open_image(encoded(photograph(400, 500)), "x.jpg")
    for seed in range(60):
        augment(
            picture,
            Augmentation(reduced_decode=True),
            Preprocessing(size=(60, 60)),
            generator(seed),
        )
    assert {reduce for _, reduce in asked} == {1, 2, 4}
    assert all(min(box[2:]) // reduce >= 60 or reduce == 1 for box, reduce in asked)


def test_flips_mirror_half_of_the_images():
    pixels = photograph(8, 8)
    how, to = Augmentation(crop="none"), Preprocessing(size=(8, 8))
    upright, mirrored = (
        torch.from_numpy(pixels).permute(2, 0, 1),
        torch.from_numpy(pixels[:, ::-1].copy()).permute(2, 0, 1),
    )
    found = [augment(open_image(pixels, "x"), how, to, generator(seed)) for seed in range(400)]
    flips = sum(torch.equal(image, mirrored) for image in found)
    assert flips + sum(torch.equal(image, upright) for image in found) == 400 and 160 < flips < 240


def test_a_padded_crop_shifts_by_up_to_the_padding():
    pixels = np.full((8, 8, 3), 255, np.uint8)
    how, to = Augmentation(crop="pad_crop", pad=2, flip=False), Preprocessing(size=(8, 8))
    seen = {
        tuple(int((image[0].amax(axis) == 0).sum()) for axis in (0, 1))
        for image in (
            augment(open_image(pixels, "x"), how, to, generator(seed)) for seed in range(200)
        )
    }
    assert seen == {(x, y) for x in range(3) for y in range(3)}


@pytest.mark.parametrize("whose", ["torchvision", "google"])
def test_rand_augment_is_repeatable_and_leaves_the_global_generator_alone(whose):
    how = Augmentation(crop="none", flip=False, rand_augment=(2, 20), rand_augment_by=whose)
    to = Preprocessing(size=(32, 32))
    picture, before = open_image(photograph(32, 32), "x"), torch.random.get_rng_state()
    made = [augment(picture, how, to, generator(seed)) for seed in (0, 0, 1, 2, 3)]
    assert torch.equal(made[0], made[1]) and len({image.numpy().tobytes() for image in made}) >= 3
    assert torch.equal(before, torch.random.get_rng_state())


def test_colour_jitter_is_torchvisions_functions_in_the_order_drawn():
    picture, to = open_image(photograph(32, 32), "x"), Preprocessing(size=(32, 32))
    strength = (0.4, 0.4, 0.4, 0.1)
    for seed in range(4):
        made = augment(
            picture,
            Augmentation(crop="none", flip=False, colour_jitter=strength),
            to,
            generator(seed),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator(seed).integers(2**63)))
            drawn = v2.ColorJitter(*strength).make_params([])
        want = to(picture).contiguous()
        for i in drawn["fn_idx"].tolist():
            name = ("brightness", "contrast", "saturation", "hue")[i]
            want = getattr(v2.functional, f"adjust_{name}")(want, drawn[f"{name}_factor"])
        assert torch.equal(made, want)


def test_erasing_fills_a_rectangle_of_a_share_of_the_images_with_the_mean():
    picture = open_image(np.full((40, 60, 3), 255, np.uint8), "x")
    to = Preprocessing(size=(40, 60), mean=(0.485, 0.456, 0.406))
    how, erased = Augmentation(crop="none", flip=False, erase=0.4), []
    for seed in range(200):
        image = augment(picture, how, to, generator(seed))
        if (image == 255).all():
            continue
        hole = (image != 255).all(0)
        rows, columns = (hole.any(axis).nonzero()[:, 0] for axis in (1, 0))
        box = image[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert torch.equal(
            box, torch.tensor([124, 116, 104], dtype=torch.uint8).view(3, 1, 1).expand_as(box)
        )
        assert hole.sum() == box[0].numel()
        erased.append(box[0].numel() / (40 * 60))
    assert 55 < len(erased) < 105 and 0.015 < min(erased) < 0.1 and 0.25 < max(erased) < 0.35
    assert (
        to.normalise(box[None])[0].abs().max() < 0.01
    )  # what is filled in is nearly 0 for the model


def test_a_square_may_be_cut_too():
    """DeiT's processor, and few-shot evaluation: both sides to 256, whatever the shape, then the centre."""
    picture = open_image(encoded(photograph(40, 60), "PNG"), "x")
    cut, whole = (
        Preprocessing(size=(24, 24), resize=32)(picture),
        Preprocessing(size=(32, 32))(picture),
    )
    assert torch.equal(cut, whole[:, 4:28, 4:28])
