"""Position tables on other grids: against the official code, and its promises on any grid."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import random_images, random_model
from scipy.ndimage import zoom

from vitkit.models import RESAMPLE, create, for_inference, resample, resized, vit
from vitkit.models.config_checks import POSITION_KINDS

sides = st.integers(1, 64)
GRIDS = [(14, 24), (7, 12), (16, 37), (14, 32), (24, 14), (2, 5), (14, 7)]


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_google_is_the_official_resampling(shared, old, new):
    with np.load(shared("reference/position_resample_google.npz")) as file:
        table = torch.from_numpy(file[f"from_{old}_to_{new}/table"])
        expected = torch.from_numpy(file[f"from_{old}_to_{new}/expected"])
    torch.testing.assert_close(resample(table, (old, old), (new, new)), expected, atol=1e-6, rtol=0)


@given(old=st.tuples(sides, sides), new=st.tuples(sides, sides), prefix=st.integers(0, 2))
@settings(deadline=None, max_examples=60)
def test_google_is_scipy_zoom_on_any_grid(old, new, prefix):
    table = random_images(1, prefix + old[0] * old[1], 3, seed=old[0])
    resampled = resample(table, old, new, "google")
    image = table[0, prefix:].numpy().reshape(*old, 3)
    expected = np.stack([scipy_zoom(image[..., channel], new) for channel in range(3)], -1)
    assert torch.equal(resampled[:, :prefix], table[:, :prefix])
    patches = resampled[0, prefix:].numpy().reshape(*new, 3)
    np.testing.assert_allclose(patches, expected, atol=1e-6)


def scipy_zoom(image, new):
    """What scipy makes of an image (h, w) on another grid."""
    # It divides by zero when one row becomes many; the answer is that row again.
    for axis in (0, 1):
        if image.shape[axis] == 1:
            image = np.repeat(image, new[axis], axis)
    factors = (new[0] / image.shape[0], new[1] / image.shape[1])
    # The mode matters only if rounding steps over the edge by 1e-16 (51 -> 45, say), where the
    # default one writes a zero.
    return zoom(image.astype(np.float64), factors, order=1, mode="nearest")


@given(
    method=st.sampled_from(list(RESAMPLE)), old=st.tuples(sides, sides), new=st.tuples(sides, sides)
)
@settings(deadline=None, max_examples=60)
def test_every_method_keeps_prefix_constants_and_the_same_grid(method, old, new):
    table = torch.full((1, 1 + old[0] * old[1], 2), 0.5)
    table[:, 0] = 7
    resampled = resample(table, old, new, method)
    assert resampled.shape == (1, 1 + new[0] * new[1], 2)
    assert (resampled[:, 0] == 7).all()
    patches = resampled[:, 1:]
    torch.testing.assert_close(patches, torch.full_like(patches, 0.5))
    assert resample(table, old, old, method) is table


def test_what_cannot_be_resampled_is_refused():
    with pytest.raises(ValueError, match="no resampling method 'lanczos'; there are google"):
        resample(torch.zeros(1, 5, 2), (2, 2), (3, 3), "lanczos")
    with pytest.raises(ValueError, match=r"shape \(1, 5, 2\) cannot hold a grid of 3 x 3"):
        resample(torch.zeros(1, 5, 2), (3, 3), (2, 2))


@pytest.mark.parametrize("fused", [True, False])
def test_an_update_of_the_weights_is_seen_on_every_grid(fused):
    model = random_model(vit("mu/16", classes=3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=fused)
    x = torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        model.features(x)
    model.features(x).square().sum().backward()
    assert model.positions.table.grad.abs().sum() > 0  # another grid moves the table itself
    optimizer.step()
    with torch.no_grad():
        expected = resample(model.positions.table, (14, 14), (10, 10))
        tokens = torch.zeros(1, 101, 32)
        torch.testing.assert_close(model.positions.add(tokens, (10, 10)), expected)


ANY_GRID = [kind for kind in POSITION_KINDS if POSITION_KINDS[kind].any_grid]
small_grids = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(
    kind=st.sampled_from(ANY_GRID),
    inject=st.sampled_from([None, "every", "shared"]),
    old=small_grids,
    new=small_grids,
    method=st.sampled_from(list(RESAMPLE)),
)
@settings(deadline=None, max_examples=60)
def test_a_model_computes_the_same_at_a_size_however_it_got_there(kind, inject, old, new, method):
    """Fed images of that size, resized to it, or made for inference at it."""
    if inject == "every" and not POSITION_KINDS[kind].has_tables:
        inject = None
    config = vit("mu/4", image=(4 * old[0], 4 * old[1]), positions=kind, inject=inject, classes=3)
    model = random_model(replace(config, resample=method, registers=1))
    size = (4 * new[0], 4 * new[1])
    x = random_images(1, 3, *size)
    with torch.no_grad():
        expected = model(x)
        for other in (resized(model, size), for_inference(model, size)):
            torch.testing.assert_close(other(x), expected, atol=1e-6, rtol=1e-6)
        if kind == "rotary":
            # Their extent is that of the training, whatever size comes in between.
            twice = resized(resized(model, (20, 8)), size)
            torch.testing.assert_close(twice(x), expected, atol=1e-6, rtol=1e-6)


def test_positions_without_a_meaning_elsewhere_refuse_both_ways():
    model = random_model(vit("mu/4", image=(16, 16), positions="relative", classes=3))
    with pytest.raises(ValueError, match="4 x 4 patches have no meaning on 3 x 4"):
        model(random_images(1, 3, 12, 16))
    with pytest.raises(ValueError, match="4 x 4 patches have no meaning on 3 x 4"):
        resized(model, (12, 16))


def test_a_model_on_another_grid_uses_the_resampled_table():
    config = vit("mu/16", classes=3)
    model = create(config, seed=0).eval()
    larger = create(replace(config, image=(160, 256)), seed=0).eval()
    state = model.state_dict()
    state["positions.table"] = resample(model.positions.table, (14, 14), (10, 16))
    larger.load_state_dict(state)
    x = torch.randn(1, 3, 160, 256)
    torch.testing.assert_close(model.features(x), larger.features(x))
