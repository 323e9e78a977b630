"""The formula for what a forward pass keeps, held to what autograd holds: to the byte."""

import pytest
import torch
import torch.nn.functional as F

from vitkit.models import Backbone, attention, create, vit
from vitkit.models.memory import activations


def held(config, images, precision, recompute=False):
    """Bytes of every tensor that is saved for the backward pass, each memory once, parameters not counted."""
    model = create(config, seed=0).train()
    model.recompute = recompute
    parameters, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(tensor):
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in parameters:
            kept[memory.data_ptr()] = tensor  # alive, so that its place is not taken by another
        return tensor

    batch, labels = (
        torch.randn(images, config.channels, *config.image),
        torch.zeros(images, dtype=torch.long),
    )
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(batch).float()
        if logits.ndim == 3:  # an answer for every token
            logits, labels = logits.flatten(0, 1), labels.repeat_interleave(logits.shape[1])
        loss = F.cross_entropy(logits, labels)
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del loss
    return found


CHANGES = [
    {},
    {"pool": "gap"},
    {"pool": "gap", "norm": "pooled"},
    {"pool": "none"},
    {"pool": "map"},
    {"registers": 4},
    {"layer_scale": 0.1},
    {"representation": 64},
    {"pool": "distilled", "registers": 1},
]


@pytest.fixture(autouse=True)
def fused_attention(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(attention, "two_products_are_faster", lambda *_: False)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_to_the_byte(changes, precision):
    """Three images less two: what every image needs, without the weights that autocast has cast."""
    config = vit("Ti/16", image=(48, 64), width=96, mlp=384, depth=3, classes=10, **changes)
    assert activations(config, precision) == held(config, 3, precision) - held(config, 2, precision)


def test_dropout_keeps_its_masks():
    """A byte each on a GPU, a float32 number each on a CPU."""
    config = vit("Ti/16", image=(48, 64), width=96, mlp=384, depth=3, classes=10)
    dropping = vit("Ti/16", image=(48, 64), width=96, mlp=384, depth=3, classes=10, dropout=0.1)
    measured = [held(one, 2, "float32") - held(one, 1, "float32") for one in (config, dropping)]
    assert 4 * (activations(dropping) - activations(config)) == measured[1] - measured[0]


def test_recomputing_keeps_the_inputs_of_blocks():
    """Before the backward pass; then one block after the other computes all that it keeps."""
    config = vit("Ti/16", image=(48, 64), width=96, mlp=384, depth=3, classes=10)
    measured = held(config, 2, "float32", recompute=True) - held(
        config, 1, "float32", recompute=True
    )
    deeper = vit("Ti/16", image=(48, 64), width=96, mlp=384, depth=4, classes=10)
    block = activations(deeper) - activations(config)
    assert activations(config, recompute=True) == measured + block
    assert activations(config, recompute=True) < activations(config)


def test_models_without_a_formula_are_refused():
    for config in (
        vit("B/1", image=224, stem=Backbone()),
        vit("B/16", positions="rotary", pool="gap"),
    ):
        with pytest.raises(
            ValueError, match="a formula for the memory of plain Vision Transformers"
        ):
            activations(config)
