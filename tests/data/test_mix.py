"""Mixup and CutMix: by their definitions and torchvision's, whatever the micro-batch; a draw is a
function of its key."""

import numpy as np
import pytest
import torch
from scipy import stats

from vitkit.data import mix, uniforms

B, H, W, K = 64, 24, 40, 7
IMAGES = torch.randn(B, 3, H, W, generator=torch.Generator().manual_seed(0))
TARGETS = torch.eye(K)[torch.arange(B) * 3 % K] * 0.9 + 0.1 / K
KEYS = torch.from_numpy(np.random.default_rng(0).integers(0, 1 << 62, B))
PARTNER = torch.arange(B) ^ 1
WAYS = [(0.2, 0.0), (0.0, 1.0), (0.8, 1.0)]


def shares(targets: torch.Tensor) -> torch.Tensor:
    """How much of its own target each example kept, read back from the mixture."""
    own, other = TARGETS, TARGETS[PARTNER]
    return ((targets - other) * (own - other)).sum(1) / (own - other).square().sum(1)


@pytest.mark.parametrize("way", WAYS)
def test_target_weights_sum_to_one_and_any_even_part_of_a_batch_is_mixed_as_in_the_whole(way):
    images, targets = mix(IMAGES, TARGETS, KEYS, *way)
    torch.testing.assert_close(targets.sum(1), torch.ones(B))
    assert not torch.equal(images, IMAGES)
    for size in (2, 6, 32):
        parts = zip(IMAGES.split(size), TARGETS.split(size), KEYS.split(size), strict=True)
        mixed = [mix(*part, *way) for part in parts]
        assert torch.equal(torch.cat([part_images for part_images, _ in mixed]), images)
        assert torch.equal(torch.cat([part_targets for _, part_targets in mixed]), targets)


def test_mixup_is_torchvisions_with_a_share_for_every_example():
    from torchvision.transforms import v2

    images, targets = mix(IMAGES, TARGETS, KEYS, mixup=0.4)
    theirs = v2.MixUp(num_classes=K)
    for i, share in enumerate(shares(targets).tolist()):
        # theirs mixes each with the one before, and the first with the last
        pair = torch.stack([IMAGES[i], IMAGES[PARTNER[i]]])
        expected = theirs.transform(pair, {"lam": share, "labels": None, "batch_size": 2})[0]
        torch.testing.assert_close(images[i], expected, atol=1e-5, rtol=1e-5)


def test_cutmix_puts_a_box_of_the_neighbour_into_the_image_and_its_area_is_what_the_target_lost():
    from torchvision.transforms import v2

    images, targets = mix(IMAGES, TARGETS, KEYS, cutmix=1.0)
    theirs = v2.CutMix(num_classes=K)
    boxes = set()
    for i, share in enumerate(shares(targets).tolist()):
        changed = (images[i] != IMAGES[i]).all(0)
        rows = changed.any(1).nonzero()[:, 0]
        columns = changed.any(0).nonzero()[:, 0]
        if not len(rows):
            assert share == pytest.approx(1, abs=1e-5)
            continue
        box = (columns[0].item(), rows[0].item(), columns[-1].item() + 1, rows[-1].item() + 1)
        area = (box[2] - box[0]) * (box[3] - box[1])
        assert changed.sum() == area and share == pytest.approx(1 - area / (H * W), abs=1e-5)
        pair = torch.stack([IMAGES[i], IMAGES[PARTNER[i]]])
        drawn = {"box": box, "lam_adjusted": share, "labels": None, "batch_size": 2}
        assert torch.equal(images[i], theirs.transform(pair, drawn)[0])
        boxes.add(box)
    assert len(boxes) > B // 2


def test_a_box_has_the_images_shape_until_the_border_clips_it():
    keys = torch.from_numpy(np.random.default_rng(1).integers(0, 1 << 62, 800))
    black_and_white = torch.arange(2.0).repeat(400).view(-1, 1, 1, 1)
    images = black_and_white.expand(-1, 1, 100, 200)
    mixed, _ = mix(images, torch.eye(2).repeat(400, 1), keys, cutmix=1.0)
    changed = (mixed != images)[:, 0]
    height = changed.any(2).sum(1)
    width = changed.any(1).sum(1)
    at_border = changed[:, [0, -1]].any((1, 2)) | changed[:, :, [0, -1]].any((1, 2))
    whole = ~at_border & (height > 20)
    assert whole.sum() > 80
    assert (width[whole] / height[whole]).sub(2).abs().max() < 0.1


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 8.0])
def test_shares_are_drawn_from_the_beta_distribution(alpha):
    keys = torch.from_numpy(np.random.default_rng(2).integers(0, 1 << 62, 20_000))
    images = torch.zeros(20_000, 1, 1, 1)
    _, targets = mix(images, torch.eye(2).repeat(10_000, 1), keys, mixup=alpha)
    own_shares = torch.where(torch.arange(20_000) % 2 == 0, targets[:, 0], targets[:, 1])
    expected = stats.beta(alpha, alpha).ppf((np.arange(20_000) + 0.5) / 20_000)
    difference = np.abs(np.sort(own_shares.numpy()) - expected).mean()
    assert difference < 0.01  # a mean of 20,000 is off by about 0.003


def test_uniform_numbers_are_splitmix64s_and_uniform():
    def splitmix64(key: int, n: int) -> int:
        z = (key + (n + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    numbers = uniforms(KEYS, 5)
    for i, key in enumerate(KEYS.tolist()):
        expected = [((splitmix64(key, n) >> 40) + 0.5) / 2**24 for n in range(5)]
        assert numbers[i].tolist() == torch.tensor(expected).tolist()
    many = uniforms(torch.arange(20_000), 2)  # poor keys, good numbers
    assert stats.kstest(many.flatten().numpy(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(many.T)[0, 1]) < 0.03 and many.min() > 0 and many.max() < 1


def test_another_purpose_has_other_numbers():
    keys = torch.arange(2000)
    numbers = [uniforms(keys, 10, purpose).flatten() for purpose in (0, 1, 2, 1013)]
    assert torch.equal(numbers[0], uniforms(keys, 10).flatten())
    assert (torch.corrcoef(torch.stack(numbers)) - torch.eye(4)).abs().max() < 0.03
    assert torch.equal(uniforms(keys[5:9], 10, 1), numbers[1].view(-1, 10)[5:9])


def test_what_cannot_be_paired_is_refused_and_off_is_off():
    with pytest.raises(ValueError, match="3 images have no pairs; make the batch"):
        mix(IMAGES[:3], TARGETS[:3], KEYS[:3], mixup=0.2)
    images, targets = mix(IMAGES, TARGETS, KEYS)
    assert images is IMAGES and targets is TARGETS
