"""The real ViT-Ti/16's intermediate layers are those of Transformers and timm, to 1e-5."""

import numpy as np
import pytest
import torch

from vitkit.models import hidden_states

LAYERS = range(13)


@pytest.fixture
def x(real, shared):
    """Two photographs, normalised."""
    golden = np.load(shared("weights/golden_8images.npz"))["input_uint8"][:2]
    return real.preprocessing.normalise(torch.from_numpy(golden).permute(0, 3, 1, 2))


def check_same(ours: dict[int, torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for number, state in ours.items():
        torch.testing.assert_close(state, theirs[number], atol=1e-5, rtol=1e-5)


def test_transformers(real, x, written):
    from transformers import ViTForImageClassification

    theirs = ViTForImageClassification.from_pretrained(written("huggingface")).eval()
    with torch.no_grad():
        states = theirs(x, output_hidden_states=True).hidden_states
        check_same(hidden_states(real.model, x), states)
        tokens = [state[:, 0] for state in states]
        check_same(hidden_states(real.model, x, LAYERS, form="class"), tokens)


@pytest.mark.parametrize("norm", [False, True])
def test_timm(norm, real, x, written):
    import timm

    theirs = timm.create_model(f"local-dir:{written('timm')}", pretrained=True).eval()
    blocks = range(1, 13)  # timm's 0 to 11
    with torch.no_grad():
        maps = theirs.forward_intermediates(x, norm=norm, intermediates_only=True)
        ours = hidden_states(real.model, x, blocks, form="map", norm=norm)
        assert ours[1].shape == (2, 192, 14, 14)
        check_same({number - 1: state for number, state in ours.items()}, maps)
        pairs = theirs.forward_intermediates(
            x, norm=norm, intermediates_only=True, return_prefix_tokens=True
        )
        tokens = hidden_states(real.model, x, blocks, form="class", norm=norm)
        prefix = [tokens_before[:, 0] for _, tokens_before in pairs]
        check_same({number - 1: state for number, state in tokens.items()}, prefix)
