"""The network that is exported gives the answers of the model that it was made of."""

import pytest
import torch

from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.runtimes.graphs.graph import ApartAttention, reading_levels, with_projections_apart

IMAGE = (16, 24)


def lively(model, seed=0):
    """A model whose head and biases are not zeros."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if name.endswith("bias") or name.startswith("head"):
            torch.nn.init.normal_(weight, std=0.1, generator=generator)
    return model.eval()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"qkv_bias": False},
        {"pool": "map"},
        {"positions": "rotary"},
        {"positions": "rotary-timm", "qk_norm": True, "rms_norm": True},
        {"positions": "relative"},
    ],
)
def test_projections_apart_change_no_answer(settings):
    model = lively(create(vit("mu/8", image=IMAGE, classes=3, **settings), seed=0))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    images = torch.randn(2, 3, *IMAGE, generator=torch.Generator().manual_seed(1))
    apart = with_projections_apart(model)
    assert any(isinstance(module, ApartAttention) for module in apart.modules())
    assert not any(hasattr(module, "qkv") for module in apart.modules())
    with torch.no_grad():
        torch.testing.assert_close(apart(images), model(images), rtol=0, atol=1e-5)
    # The model itself is as it was
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_a_model_of_levels_gives_the_answers_of_normalised_images():
    model = lively(create(vit("mu/8", image=IMAGE, classes=3), seed=0))
    preprocessing = Preprocessing(size=IMAGE, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    levels = torch.randint(256, (2, 3, *IMAGE), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(preprocessing.normalise(levels.to(torch.uint8)))
        got = reading_levels(model, preprocessing)(levels.float())
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
