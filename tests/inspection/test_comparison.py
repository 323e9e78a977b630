"""Comparing two models: where they first differ, on which layers they meet, how often they agree."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from vitkit.data import Preprocessing, open_image
from vitkit.inspection import compare_models
from vitkit.models import Backbone, LeNetConfig, ResNetConfig, create, vit
from vitkit.weights import Classifier

VIT = vit("mu/8", image=32, classes=4, depth=3)
FAMILY = {
    "vit": VIT,
    "axial": vit("Axial-mu/8", image=32, classes=4),
    "hybrid": vit("R+mu/16", image=64, classes=4),
    "BiT": ResNetConfig(Backbone((1, 2), 0.5, "pre"), 64, classes=4),
    "LeNet": LeNetConfig(channels=3, classes=4),
}
every_family = pytest.mark.parametrize("config", FAMILY.values(), ids=FAMILY)


def classifier(config, seed=0):
    model = create(config, seed=seed).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("head"):
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    labels = tuple(f"class {i}" for i in range(config.classes))
    return Classifier(model, Preprocessing(size=config.image), labels)


@pytest.fixture
def pictures():
    random = np.random.default_rng(0)
    return [
        open_image(random.integers(0, 256, (40, 50, 3), dtype=np.uint8), str(i)) for i in range(5)
    ]


@every_family
def test_a_model_is_the_same_as_itself_in_every_layer(config, pictures):
    first = classifier(config)
    comparison = compare_models(first, first, pictures, batch=2)
    names = [layer.name for layer in comparison.layers]
    blocks = [f"block {i + 1}" for i in range(len(first.model.blocks))]
    assert names == ["embedding", *blocks, "features", "logits"]
    assert all(layer.largest == 0 and layer.scale > 0 for layer in comparison.layers)
    assert (comparison.images, comparison.same_top) == (5, 5)


def test_the_first_layer_that_differs_is_seen(pictures):
    first = classifier(VIT)
    second = classifier(VIT)
    with torch.no_grad():
        second.model.blocks[1].mlp.contract.bias += 1
    comparison = compare_models(first, second, iter(pictures))
    differ = {layer.name: layer.largest for layer in comparison.layers}
    assert differ["embedding"] == differ["block 1"] == 0
    assert differ["block 2"] == pytest.approx(1, abs=1e-5)  # of every token, not of the class token
    assert differ["logits"] > 0


def test_numbers_do_not_depend_on_the_batch(pictures):
    first = classifier(VIT)
    second = classifier(VIT, seed=1)
    together = compare_models(first, second, pictures).layers
    alone = compare_models(first, second, pictures, batch=1).layers
    for layer, other in zip(together, alone, strict=True):
        assert layer.name == other.name
        assert other.largest == pytest.approx(layer.largest, abs=1e-5)


def test_classes_are_compared_by_name(pictures):
    """A head with its classes in another order is the same one: the logits too, class by class."""
    first = classifier(VIT)
    second = classifier(VIT)
    order = [2, 0, 3, 1]
    with torch.no_grad():
        second.model.head.weight.copy_(first.model.head.weight[order])
        second.model.head.bias.copy_(first.model.head.bias[order])
    second = replace(second, labels=tuple(first.labels[i] for i in order))
    comparison = compare_models(first, second, pictures)
    assert comparison.same_top == 5
    assert comparison.layers[-1].name == "logits"
    assert comparison.layers[-1].largest == pytest.approx(0, abs=1e-5)


def test_classes_of_other_names_are_compared_by_position(pictures):
    first = classifier(VIT)
    second = replace(first, labels=("ant", "bee", "cat", "dog"))
    comparison = compare_models(first, second, pictures)
    assert comparison.same_top == 0
    assert comparison.layers[-1].largest == 0


def test_a_tie_counts_as_the_same_class(pictures):
    """The first class and the second have the same logit, but for rounding."""
    first = classifier(VIT)
    with torch.no_grad():
        first.model.head.weight[:2] = 0
        first.model.head.bias.copy_(torch.tensor([100, 100 - 1e-5, 0, 0]))
    second = classifier(VIT)
    with torch.no_grad():
        second.model.head.weight[:2] = 0
        second.model.head.bias.copy_(torch.tensor([100 - 1e-5, 100, 0, 0]))
    comparison = compare_models(first, second, pictures)
    assert (comparison.same_top, comparison.ties) == (5, 5)
    comparison = compare_models(first, second, pictures, tolerance=1e-6)
    assert (comparison.same_top, comparison.ties) == (0, 0)
    names = tuple(reversed(first.labels))
    comparison = compare_models(first, replace(first, labels=names), pictures)  # compared by name
    assert comparison.same_top == 0


def test_layers_of_other_shapes_are_left_out(pictures):
    comparison = compare_models(classifier(VIT), classifier(replace(VIT, classes=3)), pictures)
    assert "logits" not in [layer.name for layer in comparison.layers]
    assert comparison.layers[-1].name == "features"


def test_each_model_sees_the_images_through_its_own_preprocessing(pictures):
    first = classifier(VIT)
    other = replace(first, preprocessing=replace(first.preprocessing, mean=(0.2, 0.3, 0.4)))
    assert compare_models(first, other, pictures).layers[0].largest > 0


def test_without_pictures_nothing_is_compared():
    with pytest.raises(ValueError, match="no image to compare"):
        compare_models(classifier(VIT), classifier(VIT), [])
