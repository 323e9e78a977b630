"""Class-specific relevance and gradient rollout: against autograd with all maps at once, and by
hand."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from inspected import FAMILY, IMAGES, classifier
from margins import at_least
from torch.nn.functional import interpolate

from vitkit.data import Preprocessing
from vitkit.inspection import class_relevance, gradient_rollout, rollout
from vitkit.inspection.figures import relevance
from vitkit.inspection.figures.passes import reading
from vitkit.models import ScaledDotProduct, attention_weights

POOLED = [name for name in FAMILY if name != "no pooling"]


def attended(model, images, target):
    """Each layer's A and the gradient of the class's logit by it, from one graph of everything:
    (A, ∇A) as numpy, (B, H, Q, T), in the order of the layers."""
    kept = []

    class Visible(torch.nn.Module):
        def forward(self, q, k, v, bias=None):
            weights = attention_weights(q, k, bias)
            weights.retain_grad()
            kept.append(weights)
            return weights @ v

    parents = [
        module
        for part in (model.blocks, model.pool)
        for module in part.modules()
        if isinstance(getattr(module, "attend", None), ScaledDotProduct)
    ]
    for module in parents:
        module.attend = Visible()
    logits = model(Preprocessing().normalise(images))
    logits.gather(1, target[:, None]).sum().backward()
    for module in parents:
        module.attend = ScaledDotProduct()
    return [(w.detach().double().numpy(), w.grad.double().numpy()) for w in kept]


def spread(weights, layer, grid, axial):
    """An axial layer's (B·h, w, w) or (B·w, h, h) among all patches."""
    if not axial:
        return weights
    h, w = grid
    images = len(weights) // (h if layer % 2 == 0 else w)
    full = np.zeros((images, h, w, h, w))
    for image in range(images):
        for y in range(h):
            for x in range(w):
                if layer % 2 == 0:
                    full[image, y, x, y] = weights[image * h + y, x]
                else:
                    full[image, y, x, :, x] = weights[image * w + x, y]
    return full.reshape(images, h * w, h * w)


def slow(own, target, mean_of_positive):
    """The head's row of the product, all of it at once."""
    model = own.model
    config = model.config
    layers = attended(model, IMAGES, target)
    weighted = [gradient * weights for weights, gradient in layers]
    if mean_of_positive:
        weighted = [values.clip(min=0).mean(1) for values in weighted]
    else:
        weighted = [values.mean(1).clip(min=0) for values in weighted]
    row = None
    if config.pool == "map":
        row = weighted.pop()[:, 0]
    grid = model.grid(IMAGES)
    tokens = config.prefix + grid[0] * grid[1]
    product = np.eye(tokens)[None].repeat(2, 0)
    for layer, matrix in enumerate(weighted):
        matrix = spread(matrix, layer, grid, config.mixer == "axial")
        step = np.eye(tokens)[None].repeat(2, 0)
        step[:, : matrix.shape[1]] += matrix  # the last layer may compute the class token alone
        if not mean_of_positive:
            step = step / step.sum(-1, keepdims=True)
        product = step @ product
    if row is None:
        row = reading(config, tokens, []).double().numpy().repeat(2, 0)
    maps = (row[:, None] @ product)[:, 0, config.prefix :]
    return maps.reshape(2, *grid)


@pytest.mark.parametrize("name", POOLED)
@pytest.mark.parametrize("function", [class_relevance, gradient_rollout])
def test_maps_are_those_of_one_graph_of_everything(name, function):
    own = classifier(FAMILY[name])
    target = torch.tensor([3, 1])
    found = function(own, IMAGES, target)
    expected = slow(own, target, function is class_relevance)
    assert found.dtype == torch.float32 and not found.requires_grad and found.min() >= 0
    assert expected.max() > 0
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * expected.max())


def test_the_class_is_the_likeliest_if_nobody_says():
    own = classifier(FAMILY["token"])
    likeliest = own.logits(IMAGES).argmax(-1)
    torch.testing.assert_close(
        class_relevance(own, IMAGES), class_relevance(own, IMAGES, likeliest)
    )
    other = (int(likeliest[0]) + 1) % 5
    assert not torch.allclose(class_relevance(own, IMAGES), class_relevance(own, IMAGES, other))


def test_by_hand_an_answer_that_no_attention_changes():
    """With values of zero the attention is of no matter: no relevance, and rollout is the
    identity."""
    own = classifier(FAMILY["token"])
    width = own.model.config.width
    with torch.no_grad():
        for block in own.model.blocks:
            block.attention.qkv.weight[2 * width :] = 0
            block.attention.qkv.bias[2 * width :] = 0
    assert class_relevance(own, IMAGES).abs().max() == 0
    assert gradient_rollout(own, IMAGES).abs().max() == 0
    assert rollout(own, IMAGES).min() > 0


def test_the_model_is_left_alone():
    own = classifier(FAMILY["MAP"])
    own.model.train()
    before = own.logits(IMAGES)
    found = class_relevance(own, IMAGES, 2)
    assert own.model.training and torch.equal(own.logits(IMAGES), before)
    assert all(parameter.grad is None for parameter in own.model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in own.model.modules())
    # Frozen parameters, in inference, and under somebody's autocast
    torch.testing.assert_close(class_relevance(own.for_inference(), IMAGES, 2), found)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(class_relevance(own, IMAGES, 2), found)
    with torch.inference_mode():
        torch.testing.assert_close(class_relevance(own, IMAGES.clone(), 2), found)


def test_what_has_no_meaning_is_refused():
    own = classifier(FAMILY["token"])
    for target in (5, -1, torch.tensor([0, 7])):
        with pytest.raises(ValueError, match="5 classes are numbered 0 to 4"):
            class_relevance(own, IMAGES, target)
    headless = classifier(replace(FAMILY["token"], classes=0))
    with pytest.raises(ValueError, match="no classification head.*no class to compute relevance"):
        gradient_rollout(headless, IMAGES)
    with pytest.raises(ValueError, match="an output for every token"):
        class_relevance(classifier(FAMILY["no pooling"]), IMAGES)


@pytest.mark.slow
def test_the_real_model_tells_two_classes_apart(real):
    """The relevance of a class is where that class is: a picture of two photographs side by side,
    each half with a class of its own."""
    own, images, _ = real
    whole = images[[2, 4]]
    golden_retriever, zebra = own.logits(whole).argmax(-1).tolist()
    halves = interpolate(whole.float(), (224, 112), mode="bilinear", antialias=True).byte()
    both = torch.cat([halves[0], halves[1]], -1)[None]
    for function in (class_relevance, gradient_rollout):
        shares = []  # of the left half
        for target in (golden_retriever, zebra):
            relevance = function(own, both, target)[0]
            shares.append(float(relevance[:, :7].sum() / relevance.sum()))
        at_least(shares[0], 0.5)
        at_least(shares[0] - shares[1], 0.2)


def test_one_block_s_graph_is_kept_at_a_time(monkeypatch):
    own = classifier(replace(FAMILY["token"], depth=6))
    kept = []
    make = relevance._AttentionCall

    def counted(*arguments):
        assert sum(weak() is not None for weak in kept) <= 1
        attended = make(*arguments)
        kept.append(weakref.ref(attended))
        return attended

    monkeypatch.setattr(relevance, "_AttentionCall", counted)
    class_relevance(own, IMAGES)
    assert len(kept) == 6
