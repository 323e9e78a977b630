"""Leave-one-out neighbours against a slow writing of them."""

import pytest
import torch
from torch import nn

from vitkit.data import Batch
from vitkit.evaluate import leave_one_out


class Flat(nn.Module):
    def features(self, images):
        return images.flatten(1).float()


def batches(images, labels, size):
    for start in range(0, len(images), size):
        rows = [min(i, len(images) - 1) for i in range(start, start + size)]
        real = torch.tensor([i < len(images) for i in range(start, start + size)])
        yield Batch(images[rows], labels[rows], real, torch.tensor(rows))


@pytest.mark.parametrize("count", [7, 60])
def test_by_hand(count, monkeypatch):
    monkeypatch.setattr(
        "vitkit.evaluate.neighbours.ROWS", 25
    )  # so that some are compared with earlier ones
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (count,), generator=generator)
    images = torch.randint(0, 200, (count, 3, 2, 2), generator=generator, dtype=torch.uint8)
    images[:, 0] += (labels * 20).byte()[:, None, None]
    found = dict(leave_one_out(batches(images, labels, 16), lambda x: x / 255)(Flat()))
    x = nn.functional.normalize((images / 255).flatten(1), dim=-1)
    alike, right = x @ x.T, 0
    for i in range(count):
        near = sorted((j for j in range(count) if j != i), key=lambda j: -alike[i, j])[:20]
        votes = [sum(alike[i, j].item() + 1 for j in near if labels[j] == k) for k in range(3)]
        right += votes.index(max(votes)) == labels[i]
    assert found["seen"] == count
    assert found["neighbours/top1"] == pytest.approx(float(right) / count)
    assert found["neighbours/top1"] > 0.36 or count == 7


def test_in_a_bfloat16_run_too():
    """Neighbours are 0.001 apart in their cosines, which bfloat16 cannot tell."""
    angles = torch.arange(1, 33) ** 2 * 1e-3
    x = torch.stack([angles.cos(), angles.sin()], 1)
    found = []
    for on in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            found.append(
                dict(
                    leave_one_out(batches(x, torch.arange(32) // 4, 8), lambda images: images)(
                        Flat()
                    )
                )
            )
    assert found[0] == found[1] and found[0]["seen"] == 32


def test_alone_there_is_no_neighbour():
    with pytest.raises(ValueError, match="fewer than two"):
        dict(
            leave_one_out(batches(torch.zeros(1, 3, 2, 2), torch.zeros(1), 4), lambda x: x)(Flat())
        )
