"""Preprocessing equals what the published weights were made for."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import encoded, photograph
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms.v2 import Compose

from vitkit.data import Augmentation, Preprocessing, open_image, open_source
from vitkit.data.images.resizing import resize
from vitkit.system.errors import BadImage, BadSettings

TIMM = Preprocessing(rule="shorter", resize=248, interpolation="bicubic")  # of the real ViT-Ti/16


def by_pillow(data: bytes, shorter: int, size: int, kernel) -> np.ndarray:
    """Resize the shorter side, keep the aspect, cut out the centre: as the reference pipelines do
    it with Pillow."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = image.size
    if width <= height:
        scaled = (shorter, int(shorter * height / width))
    else:
        scaled = (int(shorter * width / height), shorter)
    image = image.resize(scaled, kernel)
    left = round((image.width - size) / 2)
    top = round((image.height - size) / 2)
    return np.asarray(image.crop((left, top, left + size, top + size)))


# enlarged, and made smaller
@pytest.mark.parametrize("name", ["imagenet_val500.parquet", "ants_bees-test.parquet"])
def test_photographs_are_preprocessed_as_by_pillow(shared, name):
    source = open_source(str(shared(f"data/{name}")))
    for i in range(0, len(source), len(source) // 25):
        data, _ = source[i]
        ours = TIMM(open_image(data, "x")).permute(1, 2, 0).numpy()
        assert np.array_equal(ours, by_pillow(data, 248, 224, Image.Resampling.BICUBIC))


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)],
)
@pytest.mark.parametrize("size", [(224, 224), (32, 48), (500, 300), (1, 1)])
def test_a_square_resize_equals_pillows(name, kernel, size):
    data = encoded(photograph(150, 211), "PNG")
    ours = Preprocessing(size=size, interpolation=name)(open_image(data, "x"))
    pillows = np.asarray(Image.open(io.BytesIO(data)).resize(size[::-1], kernel))
    assert np.array_equal(ours.permute(1, 2, 0), pillows)
    # In training both round after each of two passes, with weights of other precision.
    quick = resize(photograph(150, 211), size, name, antialias=True).permute(1, 2, 0).numpy()
    difference = np.abs(quick.astype(int) - pillows)
    assert difference.max() <= 2 and (difference > 1).mean() < 1e-3


def test_without_antialiasing_a_resize_is_google_s_bilinear_within_one_level():
    """Half-pixel centres, two neighbours a side, however much smaller the result: tf.image.resize's
    default."""
    pixels = photograph(90, 131)
    h, w = 24, 40
    y = np.clip((np.arange(h) + 0.5) * 90 / h - 0.5, 0, 89)
    x = np.clip((np.arange(w) + 0.5) * 131 / w - 0.5, 0, 130)
    low_y = np.minimum(y.astype(int), 88)
    low_x = np.minimum(x.astype(int), 129)
    fy = (y - low_y)[:, None, None]
    fx = (x - low_x)[None, :, None]
    rows = pixels[low_y] * (1 - fy) + pixels[low_y + 1] * fy
    expected = rows[:, low_x] * (1 - fx) + rows[:, low_x + 1] * fx
    ours = resize(pixels, (h, w), "bilinear", antialias=False).permute(1, 2, 0).numpy()
    assert np.abs(ours - expected).max() <= 1.01


def test_normalise_is_the_definition():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(2, 3, 1, 1)
    how = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    normalised = how.normalise(images)
    mean = torch.tensor(how.mean).view(3, 1, 1)
    std = torch.tensor(how.std).view(3, 1, 1)
    assert normalised.dtype == torch.float32
    assert torch.equal(normalised, (images.float() / 255 - mean) / std)
    ends = Preprocessing().normalise(images)[0, 0].flatten()
    assert ends[0] == -1 and ends[-1] == 1
    assert torch.equal(how.normalise(images[0]), normalised[0])
    for bad in (images.float(), images[0, 0], images[:, :1]):
        with pytest.raises(ValueError, match=r"expected uint8 \(B, 3, h, w\)"):
            how.normalise(bad)


def test_an_image_too_narrow_to_keep_its_aspect_is_refused():
    with pytest.raises(BadImage, match="strip is 3000 x 1 pixels: too narrow for a side of 248"):
        TIMM(open_image(np.zeros((1, 3000), np.uint8), "strip"))


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


@pytest.mark.parametrize(("change", "message"), [
    ({"size": 224}, r"size is 224; it is a height and a width, such as \(224, 224\)"),
    ({"std": 0.5}, "std is 0.5; it is a number for each channel"),
])  # fmt: skip
def test_one_number_for_several(change, message):
    with pytest.raises(BadSettings, match=message):
        Preprocessing(**change)
    with pytest.raises(BadSettings, match="area is .*; it is 2 values, each a finite number"):
        Augmentation(area=0.5)


@pytest.mark.parametrize("garbage", [None, [], "x", {}, {"size": [224, 224]}])
def test_other_json_is_no_preprocessing(garbage):
    with pytest.raises(ValueError, match="a preprocessing has the settings size, rule"):
        Preprocessing.from_json(garbage)


def test_a_square_may_be_cut_too():
    """DeiT's processor, and few-shot evaluation: both sides to 256, whatever the shape, then the
    centre."""
    picture = open_image(encoded(photograph(40, 60), "PNG"), "x")
    cut = Preprocessing(size=(24, 24), resize=32)(picture)
    whole = Preprocessing(size=(32, 32))(picture)
    assert torch.equal(cut, whole[:, 4:28, 4:28])


def test_it_is_a_transform_of_one_image(tmp_path):
    """Of a Pillow image, an array, a tensor, a path or the bytes of a file: the same pixels."""
    pixels = photograph(60, 80)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "one.png")
    expected = TIMM(open_image(pixels, "one"))
    for same in (
        image,
        pixels,
        torch.from_numpy(pixels).permute(2, 0, 1),
        tmp_path / "one.png",
        (tmp_path / "one.png").read_bytes(),
    ):
        assert torch.equal(TIMM(same), expected)
    with pytest.raises(ValueError, match="there are 2 images, and a transform takes one"):
        TIMM([image, image])
    with pytest.raises(BadImage, match="image 0 is not an image of a format"):
        TIMM(b"no image")


@pytest.mark.parametrize("workers", [0, 1])
def test_torchvision_s_folders_and_pytorch_s_loader_take_it(workers, photographs):
    """ImageFolder opens each file with Pillow, and a loader's processes get a copy of the transform."""
    how = Preprocessing(size=(24, 32), mean=(0.4, 0.5, 0.6))
    of_folder = ImageFolder(photographs, transform=how)
    images, _ = next(iter(DataLoader(of_folder, batch_size=len(of_folder), num_workers=workers)))
    assert images.dtype == torch.uint8 and images.shape == (len(of_folder), 3, 24, 32)
    expected = [how(open_image(Path(file).read_bytes(), file)) for file, _ in of_folder.samples]
    assert torch.equal(images, torch.stack(expected))

    # Beside other transforms, as floats that a network takes
    floats = ImageFolder(photographs, transform=Compose([how, how.normalise]))
    assert torch.equal(floats[0][0], how.normalise(images)[0])
