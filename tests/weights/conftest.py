"""Models that hide no mistake: every parameter has random values of its own."""

import pytest
import torch

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig, create
from vitkit.weights import Classifier


@pytest.fixture
def random_classifier():
    """`random_classifier(config)`: random weights everywhere, labels, and a preprocessing for its size."""

    def make(config: ViTConfig, **origin) -> Classifier:
        model = create(config, seed=0).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
                )
        prepare = Preprocessing(size=config.image, interpolation="bicubic", mean=(0.4, 0.5, 0.6))
        return Classifier(
            model,
            prepare,
            tuple(f"class {i}" for i in range(config.classes)),
            origin=dict(origin),
        )

    return make


@pytest.fixture
def same_model():
    """Both compute the same function, to the bit, and carry the same things."""

    def check(one: Classifier, two: Classifier) -> None:
        assert one.model.config == two.model.config
        assert one.preprocessing == two.preprocessing
        assert one.labels == two.labels
        assert one.activation == two.activation
        pairs = zip(one.model.state_dict().items(), two.model.state_dict().items(), strict=True)
        assert all(name == other and torch.equal(a, b) for (name, a), (other, b) in pairs)

    return check
