"""The class of every pixel is the likeliest of all classes, although most are not interpolated."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitkit.runtimes import likeliest, maps


@pytest.mark.parametrize("size", ((40, 52), (5, 7), (3, 90), (1, 1), (10, 13)))
@pytest.mark.parametrize("grid", ((10, 13), (1, 13), (10, 1), (1, 1)))
@pytest.mark.parametrize("spread", (0.1, 1.0, 8.0))
def test_every_pixel_has_the_likeliest_class(size, grid, spread):
    random = np.random.default_rng(3)
    logits = random.normal(0, 1, (30, *grid)) + random.normal(0, spread, (30, 1, 1))
    logits = logits.astype(np.float32)
    every = F.interpolate(torch.from_numpy(logits)[None], size, mode="bilinear")[0]
    assert np.array_equal(likeliest(logits, size), every.argmax(0).numpy())


def test_classes_that_are_nowhere_the_likeliest_are_not_interpolated(monkeypatch):
    random = np.random.default_rng(0)
    logits = random.normal(0, 0.1, (150, 12, 16)).astype(np.float32)
    logits[7, :, :8] += 5
    logits[90, :, 8:] += 5
    interpolated = []

    def interpolate(plane, *rest, **more):
        interpolated.append(plane)
        return F.interpolate(plane, *rest, **more)

    monkeypatch.setattr(maps, "F", type("", (), {**vars(F), "interpolate": interpolate}))
    assert set(np.unique(likeliest(logits, (60, 80)))) == {7, 90}
    assert len(interpolated) == 2
