"""Every family where it goes: prepared for inference, quantised, exported, loaded by a server."""

import warnings
from dataclasses import replace

import pytest
import torch
from test_resnet import SMALL, images, lively
from torch import nn

from vitkit.models import LeNetConfig, ViTConfig, create, for_inference, resized, vit

FAMILY = [
    *SMALL,
    LeNetConfig(3, 5),
    vit("mu/16", image=(64, 96), classes=5, depth=2, pool="map"),
    vit("mu/16", image=(64, 96), classes=5, depth=2, pool="distilled", registers=1),
    vit("mu/16", image=(64, 96), classes=5, depth=2, positions="rotary"),
    vit("mu/16", image=(64, 96), classes=5, depth=2, positions="sincos"),
]
every_family = pytest.mark.parametrize("config", FAMILY, ids=range(len(FAMILY)))


def batch(config, seed=0):
    return images(2, config.channels, *config.image, seed=seed)


def another_size(config):
    """A size that the model can be fed, and is not made for; its own where there is none."""
    if isinstance(config, LeNetConfig) or getattr(config, "positions", "") == "relative":
        return config.image
    return (96, 64)


@every_family
def test_prepared_for_inference_it_computes_the_same(config):
    model = lively(config)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    size = another_size(config)
    with torch.inference_mode():
        for prepared in (for_inference(model), for_inference(for_inference(model), config.image)):
            torch.testing.assert_close(
                prepared(batch(config)), model(batch(config)), atol=1e-5, rtol=1e-5
            )
        x = images(2, config.channels, *size)
        prepared = for_inference(model, size)
        torch.testing.assert_close(prepared(x), model(x), atol=1e-5, rtol=1e-5)
    assert not prepared.training
    for name, tensor in model.state_dict().items():  # the model itself is as it was
        assert torch.equal(tensor, weights[name]), name
    shared = {tensor.data_ptr() for tensor in for_inference(model).state_dict().values()}
    assert all(weight.data_ptr() in shared for weight in model.head.parameters())


@every_family
def test_made_and_used_inside_inference_mode(config):
    """As a server does: every weight is an inference tensor, at the model's own size and another."""
    expected = create(config, seed=0).eval()
    with torch.inference_mode():
        model = create(config, seed=0).eval()
        for size in (config.image, another_size(config), config.image):
            x = images(1, config.channels, *size)
            torch.testing.assert_close(model(x), expected(x))
            torch.testing.assert_close(for_inference(model, size)(x), expected(x))
            torch.testing.assert_close(resized(model, size)(x), expected(x))


@every_family
def test_dense_layers_may_be_quantised(config):
    """Dynamic int8: every dense layer is called as one, whatever takes its place."""
    model = lively(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of a tool that moves to another package
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        with torch.inference_mode():
            ours, theirs = model(batch(config)), quantised(batch(config))
    kinds = {type(module) for module in quantised.modules()}
    assert torch.ao.nn.quantized.dynamic.Linear in kinds and nn.Linear not in kinds
    assert torch.cosine_similarity(ours.flatten(), theirs.flatten(), 0) > 0.98


@every_family
def test_exported_it_computes_the_same_with_any_batch(config):
    model = for_inference(lively(config))
    any_batch = {"images": {0: torch.export.Dim("batch", min=1, max=64)}}
    program = torch.export.export(model, (batch(config),), dynamic_shapes=any_batch)
    with torch.inference_mode():
        for count in (1, 5):
            x = images(count, config.channels, *config.image)
            torch.testing.assert_close(program.module()(x), model(x), atol=1e-5, rtol=1e-5)


@every_family
def test_what_is_done_to_the_prepared_model_leaves_the_model_alone(config):
    model = lively(config).train()
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    prepared = for_inference(model)
    prepared.double()
    assert prepared.inference_only and not model.inference_only
    assert not any(parameter.requires_grad for parameter in prepared.parameters())
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == expected[name].dtype and torch.equal(tensor, expected[name])
    with pytest.raises(ValueError, match="this model was made for inference"):
        resized(prepared, config.image)


def test_resized_keeps_what_is_frozen():
    model = lively(vit("mu/8", image=32, classes=3)).requires_grad_(False)
    model.head.requires_grad_(True)
    model.recompute = True
    larger = resized(model, (48, 48))
    trained = [name for name, parameter in larger.named_parameters() if parameter.requires_grad]
    assert trained == ["head.weight", "head.bias"] and larger.recompute


def test_a_hook_on_a_dense_layer_sees_what_the_block_computes():
    """What adapters, quantisers and tensor parallelism rely on: the layer is called once, whole."""
    model = lively(vit("mu/8", image=32, classes=3, depth=2))
    seen = []
    for block in model.blocks:
        block.attention.qkv.register_forward_hook(lambda _, inputs, out: seen.append(out.shape))
    model(images(2, 3, 32, 32))
    assert seen == [(2, 17, 96)] * 2


def test_sizes_that_cannot_be_prepared_for():
    model = create(vit("mu/8", image=32, positions="relative"), seed=0)
    with pytest.raises(ValueError, match="have no meaning on 8 x 8"):
        for_inference(model, (64, 64))
    with pytest.raises(ValueError, match="cannot be cut into patches of 8 x 8"):
        for_inference(create(vit("mu/8", image=32), seed=0), (30, 30))


def test_a_position_grid_is_for_rotary_positions():
    config = vit("mu/8", image=32, positions="rotary", position_grid=(2, 3))
    assert replace(config, image=64).position_grid == (2, 3)
    with pytest.raises(ValueError, match=r"position_grid is \(2, 3\), which is for rotary"):
        ViTConfig(position_grid=(2, 3))
    with pytest.raises(ValueError, match="a height and a width in patches"):
        replace(config, position_grid=(0, 3))
