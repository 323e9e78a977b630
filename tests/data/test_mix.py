"""Mixup and CutMix: by their definitions and torchvision's, whatever the micro-batch; a draw is a
function of its key."""

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2

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
    for part in (2, 6, 32):
        found = [
            mix(*some, *way)
            for some in zip(*(of.split(part) for of in (IMAGES, TARGETS, KEYS)), strict=True)
        ]
        assert torch.equal(torch.cat([image for image, _ in found]), images)
        assert torch.equal(torch.cat([target for _, target in found]), targets)


def test_mixup_is_torchvisions_with_a_share_for_every_example():
    images, targets = mix(IMAGES, TARGETS, KEYS, mixup=0.4)
    theirs = v2.MixUp(num_classes=K)
    for i, share in enumerate(shares(targets).tolist()):
        pair = torch.stack(
            [IMAGES[i], IMAGES[PARTNER[i]]]
        )  # it mixes each with the one before, and the first with the last
        want = theirs.transform(pair, {"lam": share, "labels": None, "batch_size": 2})[0]
        torch.testing.assert_close(images[i], want, atol=1e-5, rtol=1e-5)


def test_cutmix_puts_a_box_of_the_neighbour_into_the_image_and_its_area_is_what_the_target_lost():
    images, targets = mix(IMAGES, TARGETS, KEYS, cutmix=1.0)
    theirs, seen = v2.CutMix(num_classes=K), set()
    for i, share in enumerate(shares(targets).tolist()):
        cut = (images[i] != IMAGES[i]).all(0)
        rows, columns = (cut.any(axis).nonzero()[:, 0] for axis in (1, 0))
        if not len(rows):
            assert share == pytest.approx(1, abs=1e-5)
            continue
        box = (columns[0].item(), rows[0].item(), columns[-1].item() + 1, rows[-1].item() + 1)
        area = (box[2] - box[0]) * (box[3] - box[1])
        assert cut.sum() == area and share == pytest.approx(1 - area / (H * W), abs=1e-5)
        pair = torch.stack([IMAGES[i], IMAGES[PARTNER[i]]])
        want = theirs.transform(
            pair, {"box": box, "lam_adjusted": share, "labels": None, "batch_size": 2}
        )[0]
        assert torch.equal(images[i], want)
        seen.add(box)
    assert len(seen) > B // 2


def test_a_box_has_the_images_shape_until_the_border_clips_it():
    keys = torch.from_numpy(np.random.default_rng(1).integers(0, 1 << 62, 2000))
    plain = (
        torch.arange(2.0).repeat(1000).view(-1, 1, 1, 1).expand(-1, 1, 100, 200)
    )  # black and white by turns
    images, _ = mix(plain, torch.eye(2).repeat(1000, 1), keys, cutmix=1.0)
    cut = (images != plain)[:, 0]
    height, width = (cut.any(axis).sum(1) for axis in (2, 1))
    inside = ~(cut[:, [0, -1]].any((1, 2)) | cut[:, :, [0, -1]].any((1, 2))) & (height > 20)
    assert inside.sum() > 200
    assert (width[inside] / height[inside]).sub(2).abs().max() < 0.1


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 8.0])
def test_shares_are_drawn_from_the_beta_distribution(alpha):
    keys = torch.from_numpy(np.random.default_rng(2).integers(0, 1 << 62, 20_000))
    _, targets = mix(
        torch.zeros(20_000, 1, 1, 1), torch.eye(2).repeat(10_000, 1), keys, mixup=alpha
    )
    found = torch.where(torch.arange(20_000) % 2 == 0, targets[:, 0], targets[:, 1])
    want = stats.beta(alpha, alpha).ppf((np.arange(20_000) + 0.5) / 20_000)
    assert (
        np.abs(np.sort(found.numpy()) - want).mean() < 0.01
    )  # a mean of 20,000 is off by about 0.003


def test_uniform_numbers_are_splitmix64s_and_uniform():
    def splitmix64(key: int, n: int) -> int:
        z = (key + (n + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    found = uniforms(KEYS, 5)
    for i, key in enumerate(KEYS.tolist()):
        want = [((splitmix64(key, n) >> 40) + 0.5) / 2**24 for n in range(5)]
        assert found[i].tolist() == torch.tensor(want).tolist()
    many = uniforms(torch.arange(20_000), 2)  # poor keys, good numbers
    assert stats.kstest(many.flatten().numpy(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(many.T)[0, 1]) < 0.03 and many.min() > 0 and many.max() < 1


def test_another_purpose_has_other_numbers():
    keys = torch.arange(2000)
    found = [uniforms(keys, 10, purpose).flatten() for purpose in (0, 1, 2, 1013)]
    assert torch.equal(found[0], uniforms(keys, 10).flatten())
    assert (torch.corrcoef(torch.stack(found)) - torch.eye(4)).abs().max() < 0.03
    assert torch.equal(uniforms(keys[5:9], 10, 1), found[1].view(-1, 10)[5:9])


def test_what_cannot_be_paired_is_refused_and_off_is_off():
    with pytest.raises(
        ValueError, match="mix neighbours in pairs, and 3 images have no pairs; make the batch"
    ):
        mix(IMAGES[:3], TARGETS[:3], KEYS[:3], mixup=0.2)
    images, targets = mix(IMAGES, TARGETS, KEYS)
    assert images is IMAGES and targets is TARGETS
