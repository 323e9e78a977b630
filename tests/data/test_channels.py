"""Images of 1, 3, 4 and 12 channels, of 8 and 16 bits, from files to what a model gets."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.data import (
    Augmentation,
    Preprocessing,
    as_pictures,
    eval_batches,
    look_at,
    measured,
    open_image,
    open_source,
    open_splits,
    picture_for_people,
    prepared_for_people,
    train_batches,
)
from vitkit.data.images.pixels import grey
from vitkit.system.errors import BadImage

tifffile = pytest.importorskip("tifffile", reason="the extra tiff is not installed")
BANDS = np.random.default_rng(0).integers(0, 10_000, (20, 24, 12), dtype=np.uint16)


def tiff(array, **settings) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, array, **settings)
    return file.getvalue()


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def png(array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def preparing(channels, values="float32", size=(20, 24)) -> Preprocessing:
    return Preprocessing(size, mean=(0.5,) * channels, std=(0.5,) * channels, values=values)


FIRST = np.ascontiguousarray(BANDS.transpose(2, 0, 1))
GREY = {"photometric": "minisblack"}
FILES = {
    "samples": lambda: tiff(BANDS, planarconfig="contig", **GREY),
    "planes": lambda: tiff(FIRST, planarconfig="separate", **GREY),
    "an array": lambda: tiff(BANDS),
    "pages": lambda: tiff(FIRST, metadata=None, **GREY),
    "compressed": lambda: tiff(BANDS, planarconfig="contig", compression="lzw", **GREY),
    "tiles": lambda: tiff(BANDS, planarconfig="contig", compression="zlib", tile=(16, 16), **GREY),
    "npy": lambda: npy(BANDS),
    "npy, channels first": lambda: npy(FIRST),
}


@pytest.mark.parametrize("kind", FILES)
def test_twelve_bands_of_sixteen_bits_arrive_uncut(kind):
    if kind in ("compressed", "tiles"):
        pytest.importorskip("imagecodecs", reason="the extra tiff is not installed")
    picture = open_image(FILES[kind](), "bands")
    prepared = preparing(12)(picture)
    assert prepared.dtype == torch.float32 and prepared.shape == (12, 20, 24)
    expected = torch.from_numpy(BANDS.astype(np.float64) / 65535).permute(2, 0, 1)
    assert (prepared - expected).abs().max() < 1e-7


@pytest.mark.parametrize("channels", [1, 3, 4, 12])
def test_numbers_in_memory_are_cut_to_eight_bits_only_for_a_model_that_sees_those(channels):
    ramp = np.linspace(0, 1, 480 * channels).reshape(20, 24, channels)
    expected = torch.from_numpy(ramp).permute(2, 0, 1)
    levels = (ramp * 65535).round().astype(np.uint16)
    for image in (ramp.astype(np.float32), expected.float(), levels):
        (picture,) = as_pictures(image)
        prepared = preparing(channels)(picture)
        assert prepared.dtype == torch.float32 and (prepared - expected).abs().max() < 1e-5
        cut = preparing(channels, "uint8")(picture)
        assert cut.dtype == torch.uint8 and (cut / 255 - expected).abs().max() < 0.51 / 255
    if channels == 4:  # opacity, for a model of colours
        (picture,) = as_pictures(ramp)
        opaque = ramp[..., :3] * ramp[..., 3:] + 1 - ramp[..., 3:]
        prepared = preparing(3)(picture)
        assert (prepared - torch.from_numpy(opaque).permute(2, 0, 1)).abs().max() < 1e-5


def test_grey_of_sixteen_bits_is_not_cut_to_eight():
    ramp = np.arange(480, dtype=np.uint16).reshape(20, 24) * 130
    prepared = preparing(1)(open_image(png(ramp), "ramp"))
    assert len(prepared.unique()) == 480
    assert prepared[0, 3, 5].item() == pytest.approx(ramp[3, 5] / 65535, abs=1e-7)


def test_colours_of_sixteen_bits_are_not_cut_to_eight():
    cv2 = pytest.importorskip("cv2", reason="it writes PNG files of 16 bits a colour")
    _, written = cv2.imencode(".png", BANDS[..., 2::-1])
    prepared = preparing(3)(open_image(written.tobytes(), "colours"))
    expected = torch.from_numpy(BANDS[..., :3].astype(np.float64) / 65535).permute(2, 0, 1)
    assert (prepared - expected).abs().max() < 1e-7


def test_grey_repeated_is_the_same_to_the_bit_in_both_resizes():
    levels = np.random.default_rng(1).integers(0, 256, (50, 40), dtype=np.uint8)
    three = open_image(np.repeat(levels[..., None], 3, 2), "colours")
    one = open_image(png(levels), "grey")
    for antialias in (True, False):
        rgb = Preprocessing((32, 32), antialias=antialias)(three)
        single = Preprocessing((32, 32), antialias=antialias, mean=(0.5,), std=(0.5,))(one)
        assert single.shape == (1, 32, 32) and torch.equal(single.expand(3, -1, -1), rgb)


def test_colours_become_grey_by_pillows_luma():
    colours = np.random.default_rng(2).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert np.array_equal(grey(colours)[..., 0], np.asarray(Image.fromarray(colours).convert("L")))


def test_opacity_is_a_channel_where_it_is_asked_for():
    rgba = np.random.default_rng(3).integers(0, 256, (20, 24, 4), dtype=np.uint8)
    kept = preparing(4, "uint8")(open_image(png(rgba), "rgba"))
    assert np.array_equal(kept.permute(1, 2, 0).numpy(), rgba)
    opaque = preparing(4, "uint8")(open_image(png(rgba[..., :3]), "rgb"))
    assert (opaque[3] == 255).all() and np.array_equal(opaque[:3].permute(1, 2, 0), rgba[..., :3])


def test_bands_for_a_model_of_colours_are_refused_in_one_sentence():
    picture = open_image(FILES["samples"](), "field.tif")
    with pytest.raises(BadImage, match=r"field.tif has 12 channels.*`model.channels=12`"):
        Preprocessing()(picture)
    with pytest.raises(BadImage, match="field.tif has 12 channels, .* 5; .*`model.channels=12`"):
        preparing(5)(picture)
    with pytest.raises(BadImage, match="two is an array of uint8"):
        Preprocessing()(open_image(BANDS[..., :2].astype(np.uint8), "two"))
    assert picture_for_people(picture).shape == (20, 24, 3)


def test_beyond_the_limits_before_anything_is_allocated(monkeypatch):
    monkeypatch.setenv("VITKIT_MAX_PIXELS", "400")
    for data in (FILES["samples"](), FILES["npy"]()):
        with pytest.raises(BadImage, match="24 x 20 pixels and 12 channels.*`max_pixels=N`"):
            open_image(data, "bands")


def test_what_is_no_image_is_refused():
    with pytest.raises(BadImage, match="array of object|integers or floats"):
        open_image(npy_of_objects(), "pickled.npy")
    with pytest.raises(BadImage, match="not finite"):
        preparing(12)(open_image(npy(np.full((20, 24, 12), np.nan, np.float32)), "empty.npy"))
    with pytest.raises(BadImage, match="bytes of numbers"):
        open_image(FILES["npy"]()[:-100], "cut.npy")
    with pytest.raises(BadImage, match="cut.tif"):
        preparing(12)(open_image(FILES["samples"]()[:-3000], "cut.tif"))


def npy_of_objects() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([[{}]], dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.fixture
def fields(tmp_path):
    """Two classes of 12-band images, whose third band differs."""
    random = np.random.default_rng(4)
    for number in range(12):
        bands = random.integers(0, 4000, (16, 16, 12), dtype=np.uint16)
        label = number % 2
        bands[..., 2] += 5000 * label
        folder = tmp_path / f"class {label}"
        folder.mkdir(exist_ok=True)
        tifffile.imwrite(folder / f"{number}.tif", bands, planarconfig="contig", **GREY)
    return tmp_path


def test_batches_hold_them_whatever_the_workers(fields):
    source = open_source(str(fields))
    preprocessing = preparing(12, size=(16, 16))
    (batch,) = eval_batches(source, preprocessing, 12, workers=0)
    (by_workers,) = eval_batches(source, preprocessing, 12, workers=2)
    assert torch.equal(batch.images, by_workers.images)
    assert batch.images.dtype == torch.float32 and batch.images.shape == (12, 12, 16, 16)
    third = batch.images[:, 2].mean((1, 2))
    assert third[batch.targets == 1].min() > third[batch.targets == 0].max() + 0.05

    batches = train_batches(source, Augmentation(), preprocessing, 4, 0, 0, workers=0)
    assert next(batches).images.shape == (4, 12, 16, 16)
    batches.close()


def test_what_images_hold_is_seen_and_measured(fields):
    train = open_splits(str(fields)).train
    seen = look_at(train)
    assert seen == (12, False, True)
    preprocessing = measured(train, preparing(12))
    stored = np.stack([open_image(train[i][0], "x").stored(12) for i in range(len(train))])
    assert preprocessing.mean == pytest.approx(stored.mean((0, 1, 2)).tolist(), rel=1e-4)
    assert preprocessing.std == pytest.approx(stored.std((0, 1, 2)).tolist(), rel=1e-4)


def test_prepared_images_of_any_sort_are_pictures_for_people():
    colours = torch.randint(0, 256, (2, 3, 4, 6), dtype=torch.uint8)
    assert prepared_for_people(colours) is colours
    grey_levels = colours[:, :1]
    assert torch.equal(prepared_for_people(grey_levels), grey_levels.expand(-1, 3, -1, -1))

    # From the darkest hundredth to the brightest; many bands as their mean
    ramp = torch.linspace(0.2, 0.4, 24).reshape(1, 1, 4, 6)
    shown = prepared_for_people(ramp.expand(2, 12, -1, -1))
    assert shown.shape == (2, 3, 4, 6) and shown.dtype == torch.uint8
    assert shown.flatten().min() == 0 and shown.flatten().max() == 255
    assert (shown[0, 0].flatten().int().diff() >= 0).all()
    assert torch.equal(shown[:, 0], shown[:, 2])


def test_colour_policies_say_that_they_are_for_colours():
    augmentation = Augmentation(colour_jitter=(0.1, 0, 0, 0))
    with pytest.raises(ValueError, match="red, green and blue, of 8 bits.*12 channels in float32"):
        train_batches(open_source("digits"), augmentation, preparing(12), 4, 0, 0, 0)
