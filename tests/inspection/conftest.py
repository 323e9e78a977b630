"""What every test of inspection may use."""

import numpy as np
import pytest
import torch

from vitkit.weights import load


@pytest.fixture
def real(shared):
    """The published Ti/16, eight photographs, and what another implementation makes of them in
    float64."""
    weights = shared("weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors")
    photographs = np.load(shared("weights/golden_8images.npz"))["input_uint8"]
    expected = np.load(shared("reference/inspection_vit_ti16.npz"))
    return load(weights, quiet=True), torch.from_numpy(photographs).permute(0, 3, 1, 2), expected
