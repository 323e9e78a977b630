"""Models that hide no mistake: every parameter has random values of its own."""

from pathlib import Path

import pytest
from other_libraries import assert_same_state, randomised

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig, create
from vitkit.weights import Classifier, load
from vitkit.weights.proof import convert_weights

REAL = "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"


@pytest.fixture
def real(shared) -> Classifier:
    """The real ViT-Ti/16."""
    return load(shared(REAL), quiet=True)


@pytest.fixture(scope="session")
def all_written(tmp_path_factory) -> Path:
    """Where the real model lies in the formats that it has been written in."""
    return tmp_path_factory.mktemp("real")


@pytest.fixture
def written(real, all_written):
    """`written(to, name)`: the real model in this format, written once for all tests."""

    def write(to: str, name: str = "") -> Path:
        path = all_written / (name or to)
        if not path.exists():
            convert_weights(real, path, to, approximate=to == "google")
        return path

    return write


@pytest.fixture
def random_classifier():
    """`random_classifier(config)`: random weights, labels, and a preprocessing for its size."""

    def make(config: ViTConfig, **origin) -> Classifier:
        model = randomised(create(config, seed=0))
        preprocessing = Preprocessing(
            size=config.image, interpolation="bicubic", mean=(0.4, 0.5, 0.6)
        )
        labels = tuple(f"class {i}" for i in range(config.classes))
        return Classifier(model, preprocessing, labels, origin=origin)

    return make


@pytest.fixture
def same_model():
    """`same_model(first, second)`: both compute the same function, to the bit, and carry the
    same."""

    def check(first: Classifier, second: Classifier) -> None:
        assert first.model.config == second.model.config
        assert first.preprocessing == second.preprocessing
        assert first.labels == second.labels
        assert first.activation == second.activation
        assert_same_state(first.model, second.model)

    return check
