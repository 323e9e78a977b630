"""Images kept decoded, or on the device, make the same batches to the bit."""

import multiprocessing
from contextlib import closing
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from pictures import encoded, photograph

from vitkit.data import (
    Augmentation,
    Pixels,
    Preprocessing,
    Source,
    decoded,
    eval_batches,
    open_source,
    train_batches,
)
from vitkit.data.loading import resident
from vitkit.data.loading.resident import can_augment_on_device
from vitkit.data.sources.stores import Arrays
from vitkit.system.errors import BadImage

TO = Preprocessing(size=(16, 20))
WAYS = [
    Augmentation(),
    Augmentation(crop="pad_crop", pad=3),
    Augmentation(crop="none", flip=False),
    Augmentation(crop="pad_crop", rand_augment=(1, 5)),
    Augmentation(crop="resize_crop", resize=24),
]


def take(source, how, workers: int, **settings) -> list:
    with closing(train_batches(source, how, TO, 7, 3, 11, workers, **settings)) as batches:
        return list(islice(batches, 6))


def same(first: list, second: list) -> bool:
    return all(
        torch.equal(ours.cpu(), theirs.cpu())
        for one, other in zip(first, second, strict=True)
        for ours, theirs in zip(one, other, strict=True)
    )


@pytest.fixture(params=["same", "any"])
def photos(request, tmp_path):
    """23 photographs, JPEG and PNG, all of the model's size or of any."""
    for i in range(23):
        grow = i if request.param == "any" else 0
        suffix, kind = ("jpg", "JPEG") if i % 3 else ("png", "PNG")
        path = tmp_path / "photos" / "ab"[i % 2] / f"{i:02}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photograph(16 + grow, 20 + 2 * grow, i), kind))
    return open_source(str(tmp_path / "photos"))


def test_decoded_images_make_the_same_batches(photos):
    in_memory = decoded(photos, 1 << 20, 0)
    assert isinstance(in_memory.store, Pixels)
    assert [in_memory.name(i) for i in range(23)] == [photos.name(i) for i in range(23)]
    for number, how in enumerate(WAYS):
        plain = take(photos, how, 0)
        assert same(plain, take(in_memory, how, 0)), how
        if number < 2:  # a crop by workers, and one that needs none
            assert same(plain, take(in_memory, how, 2)), how
    assert same(list(eval_batches(photos, TO, 5, 0)), list(eval_batches(in_memory, TO, 5, 0)))


def test_images_of_the_models_size_are_gathered_without_workers(photos):
    in_memory = decoded(photos, 1 << 20, 0)
    fits = bool((in_memory.store.sizes == (16, 20)).all())
    assert [can_augment_on_device(in_memory, how, TO) for how in WAYS] == [
        False,
        fits,
        fits,
        False,
        False,
    ]
    with closing(train_batches(in_memory, WAYS[1], TO, 7, 3, 0, workers=2)) as batches:
        next(batches)
        assert len(multiprocessing.active_children()) == (0 if fits else 2)


@pytest.mark.parametrize(
    ("shape", "kind", "channels"),
    [
        ((16, 20), np.uint8, 3),  # grey for a model of colours
        ((16, 20), np.uint8, 1),
        ((16, 20), np.uint8, 4),  # of colours and opacity
        ((16, 20, 3), np.uint8, 3),
        ((16, 20, 3), np.uint8, 1),  # colours for a model of grey
        ((16, 20), np.uint16, 3),  # which is scaled to bytes
        ((20, 16), np.uint8, 3),  # of another size
    ],
)
def test_images_in_an_array_are_measured_as_if_they_were_taken_one_by_one(shape, kind, channels):
    array = np.random.default_rng(0).integers(0, 256, (7, *shape)).astype(kind)
    source = Source(Arrays("x", array), np.array([5, 2, 0, 6, 1]), np.arange(5), tuple("abcde"))
    preprocessing = Preprocessing((16, 20), mean=(0.5,) * channels, std=(0.5,) * channels)
    batches = list(eval_batches(source, preprocessing, 2, 0))
    for batch in batches:
        for image, index, real in zip(batch.images, batch.indices, batch.real, strict=True):
            expected = preprocessing(source.picture(int(index))) if real else torch.zeros(())
            assert (image == expected).all()
    assert [batch.real.tolist() for batch in batches] == [[True] * 2, [True] * 2, [True, False]]
    *_, last = eval_batches(source, preprocessing, 4, 0, share=(1, 2))  # all of it is padding
    assert not last.real.any() and not last.images.any()


@pytest.mark.parametrize("how", [{"rule": "shorter"}, {"resize": 24}])
def test_a_rule_that_enlarges_images_of_the_models_size_is_kept(photos, how):
    """The shorter side goes to the longer one of the model, or the image to more than is cut out."""
    enlarged = replace(TO, **how)
    in_memory = decoded(photos, 1 << 20, 0)
    assert not can_augment_on_device(in_memory, WAYS[1], enlarged)
    expected = list(eval_batches(photos, enlarged, 5, 0))
    assert same(expected, list(eval_batches(in_memory, enlarged, 5, 0)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gathers_the_same_images(photos):
    in_memory = decoded(photos, 1 << 20, 0)
    for how in WAYS:
        on_gpu = take(in_memory, how, 2, device=torch.device("cuda"))
        assert same(take(photos, how, 0), on_gpu)


def test_what_is_too_large_stays_encoded(photos, monkeypatch):
    assert decoded(photos, 10_000, 0) is photos
    assert decoded(photos, 0, 0) is photos
    monkeypatch.setattr(resident, "forked", lambda: False)
    assert decoded(photos, 1 << 20, 0) is photos


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named(photos, tmp_path, monkeypatch, workers):
    (tmp_path / "photos/b/07.jpg").write_bytes(encoded(photograph(16, 20))[:300])
    monkeypatch.setattr(resident, "CHUNK", 2)
    with pytest.raises(BadImage, match=r"07\.jpg cannot be decoded"):
        decoded(photos, 1 << 20, workers)
