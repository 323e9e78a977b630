"""Masks as the targets of a source: moved as their images are, identified, divided and checked."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import encoded

from vitkit.data import (
    IGNORED,
    Augmentation,
    Preprocessing,
    Source,
    check_images,
    fingerprint,
    masked,
    masked_of,
    masks_digest,
    merge_parts,
    open_image,
    splits_with_masks,
    subset,
    train_batches,
    with_masks,
)
from vitkit.data.augmentation.draws import apply, augment_with_mask, draw
from vitkit.data.masks.sources import masked_splits
from vitkit.system.errors import BadData, BadSettings

TO = Preprocessing(size=(32, 32))
SCALED = Augmentation(crop="scale_crop", resize=40)


def generator(seed):
    return np.random.Generator(np.random.PCG64(seed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve photographs that are white where their masks are 1."""
    folder = tmp_path_factory.mktemp("masks")
    for number in range(12):
        mask = np.zeros((40, 56), np.uint8)
        mask[4 + number : 24 + number, 8:40] = 1
        part = "train" if number < 8 else "test"
        pixels = (255 * mask)[..., None].repeat(3, 2)
        for kind, content in (("photos", pixels), ("masks", mask)):
            file = folder / kind / part / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(content, "PNG"))
    return folder


@pytest.fixture(scope="module")
def source(folder):
    splits = splits_with_masks(str(folder / "photos"), str(folder / "masks"))
    splits = masked_splits(splits, str(folder / "photos"), str(folder / "masks"))
    assert splits.target_kind == "mask" and splits.labels == ("background", "object")
    return splits.train


@pytest.mark.parametrize("how", [
    Augmentation(area=(0.2, 0.6)),
    Augmentation(crop="resize_crop", resize=40),
    Augmentation(crop="pad_crop", pad=5),
    Augmentation(crop="none"),
    SCALED,
    replace(SCALED, scales=(0.3, 0.3)),
    replace(SCALED, erase=1.0, colour_jitter=(0.2, 0.2, 0.2, 0.0)),
])  # fmt: skip
def test_an_image_and_its_mask_move_alike(how):
    """White pixels stay those of the class, and those outside of the image or erased count no more."""
    mask = np.zeros((60, 80), np.uint8)
    mask[10:45, 15:60] = 7
    pixels = np.where(mask[..., None] == 7, 255, 0).astype(np.uint8).repeat(3, 2)
    flipped = set()
    for seed in range(12):
        image, moved = augment_with_mask(open_image(pixels, "x"), mask, how, TO, generator(seed))
        assert image.shape == (3, 32, 32) and moved.shape == (32, 32)
        assert moved.dtype == torch.uint8 and set(moved.unique().tolist()) <= {0, 7, IGNORED}
        counts = moved != IGNORED
        assert ((image[0] > 127) == (moved == 7))[counts].float().mean() > 0.9
        drawn = draw((60, 80), how, TO, generator(seed))
        flipped.add(drawn.flip)
        assert torch.equal(image, apply(drawn, open_image(pixels, "x"), how, TO))
    assert flipped == {True, False}


def test_a_small_image_is_filled_up_with_the_mean_and_pixels_that_do_not_count():
    how = replace(SCALED, scales=(0.25, 0.25), flip=False)
    mask = np.full((40, 40), 3, np.uint8)
    image, moved = augment_with_mask(
        open_image(np.full((40, 40, 3), 9, np.uint8), "x"), mask, how, TO, generator(0)
    )
    assert (moved[:10, :10] == 3).all() and (image[:, :10, :10] == 9).all()
    assert (moved == IGNORED).sum() == 32 * 32 - 100
    assert (image[:, 10:] == 128).all()  # 0 to the model


def test_every_class_number_survives():
    mask = np.arange(256, dtype=np.uint8).reshape(16, 16)
    _, moved = augment_with_mask(
        open_image(np.zeros((16, 16, 3), np.uint8), "x"), mask,
        Augmentation(crop="none", flip=False), Preprocessing(size=(16, 16)), generator(0),
    )  # fmt: skip
    assert np.array_equal(moved.numpy(), mask)


def test_factors_and_sizes_of_crops_are_checked():
    with pytest.raises(BadSettings, match="a scale_crop needs a side"):
        Augmentation(crop="scale_crop")
    with pytest.raises(BadSettings, match="scales is"):
        replace(SCALED, scales=(2.0, 0.5))
    with pytest.raises(BadSettings, match="size is"):
        replace(SCALED, size=(0, 32))


def test_batches_have_the_masks_of_their_images_whatever_makes_them(source):
    def first(workers, share=(0, 1), after=0):
        batches = train_batches(source, SCALED, TO, 4, 7, after, workers, share)
        batch = next(batches)
        batches.close()
        return batch

    whole = first(0)
    assert whole.targets.shape == (4, 32, 32) and whole.targets.dtype == torch.uint8
    counts = whole.targets != IGNORED
    assert ((whole.images[:, 0] > 127) == (whole.targets == 1))[counts].float().mean() > 0.9
    shares = [first(0, (rank, 2)) for rank in range(2)]
    assert torch.equal(whole.targets, torch.cat([each.targets for each in shares]))
    with_worker = first(1)
    assert torch.equal(whole.targets, with_worker.targets)
    assert not torch.equal(first(0, after=1).targets, whole.targets)


def test_a_source_of_masks_is_divided_identified_and_read_without_them(source, folder):
    pairs = masked_of(source)
    assert pairs.images.target_kind == "none" and with_masks(pairs).labels == source.labels
    assert fingerprint(source) == fingerprint(pairs.images)
    few = subset(source, [3, 1])
    assert np.array_equal(few.mask(0, (40, 56)), source.mask(3, (40, 56)))
    again = merge_parts(few, subset(source, [0]))
    assert len(again) == len(again.targets) == 3
    assert (source.targets_of(np.arange(2)) == -1).all() and source[0][1] is None
    assert source.answer(0) is None

    # The masks and their legend are part of what identifies them
    digest = masks_digest(source)
    assert digest and digest == masks_digest(source) != masks_digest(few)
    others = {"train": pairs.images}
    where = str(folder / "photos")
    ignoring, _ = masked(others, where, str(folder / "masks"), None, 3)
    assert masks_digest(with_masks(ignoring["train"])) != digest
    assert masks_digest(pairs.images) == ""


def test_a_mask_of_another_size_is_found_before_a_run(source, folder, tmp_path):
    assert not check_images(source, 0, progress=False)
    store = replace(source.targets.store, root=str(tmp_path))
    for file in (folder / "masks").rglob("*.png"):
        copy = tmp_path / file.relative_to(folder / "masks")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    (tmp_path / source.targets.store.names[int(source.targets.rows[2])]).write_bytes(
        encoded(np.zeros((9, 9), np.uint8), "PNG")
    )
    changed: Source = replace(source, targets=replace(source.targets, store=store))
    [(index, sentence)] = check_images(changed, 0, progress=False)
    assert index == 2 and "9 x 9 pixels, and its image is 56 x 40" in sentence
    with pytest.raises(BadData, match="make the mask again"):
        changed.mask(2, (40, 56))
