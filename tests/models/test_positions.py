"""Position tables on other grids: against the official code, and its promises on any grid."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import zoom

from vitkit.models import RESAMPLE, create, resample, vit

sides = st.integers(1, 64)


GRIDS = [(14, 24), (7, 12), (16, 37), (14, 32), (24, 14), (2, 5), (14, 7)]


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_official_resampling(shared, old, new):
    with np.load(shared("reference/position_resample_google.npz")) as file:
        table, expected = (
            torch.from_numpy(file[f"from_{old}_to_{new}/{name}"]) for name in ("table", "expected")
        )
    torch.testing.assert_close(resample(table, (old, old), (new, new)), expected, atol=1e-6, rtol=0)


@given(old=st.tuples(sides, sides), new=st.tuples(sides, sides), prefix=st.integers(0, 2))
@settings(deadline=None, max_examples=60)
def test_google_is_scipy_zoom_on_any_grid(old, new, prefix):
    table = torch.randn(
        1, prefix + old[0] * old[1], 3, generator=torch.Generator().manual_seed(old[0])
    )
    found = resample(table, old, new, "google")
    image = table[0, prefix:].numpy().reshape(*old, 3)
    # scipy divides by zero where one row becomes many; the answer, that row again, is the same
    expected = np.stack([_zoom(image[..., d], new) for d in range(3)], -1)
    assert torch.equal(found[:, :prefix], table[:, :prefix])
    np.testing.assert_allclose(found[0, prefix:].numpy().reshape(*new, 3), expected, atol=1e-6)


def _zoom(image, new):
    for axis in (0, 1):
        if image.shape[axis] == 1:
            image = np.repeat(image, new[axis], axis)
    image = image.astype(np.float64)
    # "nearest" only where rounding steps over the edge by 1e-16: there the default mode writes a zero (51 -> 45, say)
    return zoom(image, (new[0] / image.shape[0], new[1] / image.shape[1]), order=1, mode="nearest")


@given(
    method=st.sampled_from(list(RESAMPLE)), old=st.tuples(sides, sides), new=st.tuples(sides, sides)
)
@settings(deadline=None, max_examples=60)
def test_every_method_keeps_prefix_constants_and_the_same_grid(method, old, new):
    table = torch.full((1, 1 + old[0] * old[1], 2), 0.5)
    table[:, 0] = 7
    found = resample(table, old, new, method)
    assert found.shape == (1, 1 + new[0] * new[1], 2)
    assert (found[:, 0] == 7).all()
    torch.testing.assert_close(found[:, 1:], torch.full_like(found[:, 1:], 0.5))
    assert resample(table, old, old, method) is table


def test_sentences():
    with pytest.raises(ValueError, match="no resampling method 'lanczos'; there are google"):
        resample(torch.zeros(1, 5, 2), (2, 2), (3, 3), "lanczos")
    with pytest.raises(ValueError, match=r"shape \(1, 5, 2\) cannot hold a grid of 3 x 3"):
        resample(torch.zeros(1, 5, 2), (3, 3), (2, 2))


def test_once_per_grid_and_never_stale(monkeypatch):
    calls = []
    import vitkit.models.positions as room

    real = room.resample
    monkeypatch.setattr(room, "resample", lambda *a: calls.append(a[2]) or real(*a))
    model = create("mu/16", seed=0).eval()
    with torch.inference_mode():
        for side in (224, 160, 160, 320, 160):
            model(torch.zeros(1, 3, side, side))
    assert calls == [(10, 10), (20, 20)]
    with torch.no_grad():
        before = model.positions((10, 10)).clone()
        model.positions.table.mul_(2)
        torch.testing.assert_close(model.positions((10, 10)), 2 * before)
    model.positions((10, 10)).sum().backward()  # training on another grid moves the table itself
    assert model.positions.table.grad.abs().sum() > 0


@pytest.mark.parametrize("fused", [True, False])
def test_an_update_of_the_weights_is_seen_on_every_grid(fused):
    model = create("mu/16", classes=3, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=fused)
    x = torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        model.features(x)
    model.features(x).sum().backward()
    optimizer.step()
    with torch.no_grad():
        expected = resample(model.positions.table, (14, 14), (10, 10))
        torch.testing.assert_close(model.positions((10, 10)), expected)


def test_a_model_on_another_grid_uses_the_resampled_table():
    config = vit("mu/16", classes=3)
    model = create(config, seed=0).eval()
    larger = create(replace(config, image=(160, 256)), seed=0).eval()
    state = model.state_dict()
    state["positions.table"] = resample(model.positions.table, (14, 14), (10, 16))
    larger.load_state_dict(state)
    x = torch.randn(1, 3, 160, 256)
    torch.testing.assert_close(model.features(x), larger.features(x))
