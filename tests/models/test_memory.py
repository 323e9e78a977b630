"""The pooling "memory": PatchCore's anomaly score, and what it is built of."""

from dataclasses import replace

import pytest
import torch
from margins import at_most

from vitkit.models import create, vit
from vitkit.models.head import distances_to, worst_count

SMALL = vit(
    "mu/16",
    image=(32, 32),
    patch=4,
    classes=2,
    pool="memory",
    memory=50,
    depth=2,
    read_blocks=2,
    class_token=True,
)


def test_the_anomaly_score_is_the_mean_of_the_largest_distances():
    model = create(SMALL, seed=0).eval()
    images = torch.rand(3, 3, 32, 32)
    with torch.inference_mode():
        states = model.patch_states(images)
        distances = model.distances(images)
        score = model.features(images)
    assert distances.shape == (3, 8, 8) and score.shape == (3, 1)

    # Each patch against each in memory, one by one
    for image, row, column in ((0, 0, 0), (2, 7, 3)):
        similarity = []
        for memory in model.pool.memory.unflatten(1, (2, -1)):  # (L, D)
            cosines = [
                torch.nn.functional.cosine_similarity(
                    states[k][image, 1 + 8 * row + column], memory[k], dim=0
                )
                * memory[k].norm()
                * 2**0.5
                for k in range(2)
            ]
            similarity.append(sum(cosines) / 2)
        at_most(abs(distances[image, row, column] - (1 - max(similarity))).item(), 1e-5)
    worst = distances[1].flatten().sort(descending=True).values[: worst_count(64)]
    assert score[1].item() == pytest.approx(worst.mean().item(), abs=1e-6)


def test_an_image_in_memory_has_the_score_0():
    model = create(replace(SMALL, memory=64), seed=0).eval()
    image = torch.rand(1, 3, 32, 32)
    with torch.inference_mode():
        model.pool.memory.copy_(model.pool.directions(model.patch_states(image))[0])
        at_most(model.features(image).abs().item(), 1e-5)


def test_distances_do_not_depend_on_how_many_are_compared_together(monkeypatch):
    patches = torch.nn.functional.normalize(torch.randn(2, 9, 12), dim=-1)
    memory = torch.nn.functional.normalize(torch.randn(31, 12), dim=-1)
    whole = distances_to(patches, memory)
    monkeypatch.setattr("vitkit.models.head.COMPARED", 7)
    torch.testing.assert_close(distances_to(patches, memory), whole)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(distances_to(patches, memory), whole)


@pytest.mark.parametrize("changes", [{"memory": 0}, {"memory": -3}, {"pool": "token"}])
def test_memory_and_pooling_go_together(changes):
    with pytest.raises(ValueError, match=f"memory is {changes.get('memory', 50)} with pool"):
        replace(SMALL, read_blocks=1, **changes)


def test_an_anomaly_score_tells_two_classes():
    with pytest.raises(
        ValueError, match="classes is 3 with pool .memory., whose anomaly score tells two"
    ):
        replace(SMALL, classes=3)


def test_a_new_head_is_one_of_classes_again():
    config = SMALL.with_head(5)
    assert (config.pool, config.memory, config.read_blocks, config.classes) == ("token", 0, 1, 5)
    assert SMALL.headless() == config.with_head(0)
