"""Weights and settings that are not numbers, and sizes that no weights bear out."""

import json
import tracemalloc
from dataclasses import replace

import pytest
import torch

from vitkit.models import vit
from vitkit.weights import load, save

CONFIG = vit("mu/8", image=(16, 16), classes=3, depth=1, width=16, mlp=16, heads=2)


@pytest.fixture
def saved(random_classifier, tmp_path):
    return save(random_classifier(CONFIG), tmp_path / "model")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(number, random_classifier, tmp_path):
    classifier = random_classifier(CONFIG)
    with torch.no_grad():
        classifier.model.blocks[0].mlp.expand.weight[3, 4] = number
        classifier.model.head.bias[1] = number
    path = save(classifier, tmp_path / "model")
    with pytest.raises(ValueError, match=r"NaN or infinity: blocks.0.mlp.expand.weight, head.bias"):
        load(path, quiet=True)


def test_weights_whose_sum_overflows_are_finite(random_classifier, tmp_path):
    classifier = random_classifier(CONFIG)
    with torch.no_grad():
        classifier.model.head.weight.fill_(3e38)
    load(save(classifier, tmp_path / "model"), quiet=True)


@pytest.mark.parametrize("described", [True, False], ids=["by vitkit", "by Transformers"])
@pytest.mark.parametrize("eps", [float("nan"), -1.0, 0, "a", None, [1e-6], float("inf")])
def test_eps_is_a_number_above_0(eps, described, saved):
    path = saved / "config.json"
    config = json.loads(path.read_text())
    config["layer_norm_eps"] = eps
    config["vitkit"]["model"]["eps"] = eps
    if not described:
        del config["vitkit"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="eps"):
        load(saved, quiet=True)


def test_a_billion_classes_that_no_weight_has_take_no_memory(random_classifier, tmp_path):
    # Under native names, so that nothing but vitkit's own description says what it is
    config = replace(CONFIG, pool="gap", positions="rotary")
    saved = save(random_classifier(config), tmp_path / "model")
    path = saved / "config.json"
    values = json.loads(path.read_text())
    values["vitkit"]["model"]["classes"] = 10**9
    values["vitkit"]["labels"] = []
    path.write_text(json.dumps(values))

    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="head.weight"):
            load(saved, quiet=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6
