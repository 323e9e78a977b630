"""A ReLU or a SiLU in place of the GELU, as timm and Transformers have it."""

import pytest
import torch

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig, create
from vitkit.weights import Classifier, load
from vitkit.weights.proof import convert


@pytest.mark.parametrize("to", ["huggingface", "timm"])
@pytest.mark.parametrize("act", ["relu", "silu"])
def test_another_activation_is_carried_and_computes_the_same(act, to, tmp_path):
    pytest.importorskip({"huggingface": "transformers", "timm": "timm"}[to])
    model = create(ViTConfig(64, 2, 128, 2, 8, (16, 16), classes=3, gelu=act), seed=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.manual_seed(2)))
    classifier = Classifier(model, Preprocessing((16, 16)), ("a", "b", "c"))
    proof = convert(classifier, tmp_path / "model", to)
    assert proof.largest < 1e-5 < proof.scale
    assert load(tmp_path / "model", quiet=True).model.config.gelu == act


def test_googles_code_has_no_other_activation(tmp_path):
    model = create(ViTConfig(16, 1, 32, 2, 8, (16, 16), classes=3, gelu="relu"), seed=0)
    classifier = Classifier(model, Preprocessing((16, 16)), ("a", "b", "c"))
    with pytest.raises(ValueError, match="activation: relu here, a GELU of the tanh form there"):
        convert(classifier, tmp_path / "model.npz", "google")
