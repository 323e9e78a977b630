"""What every model promises: how it starts, learns, takes other sizes, and where it can be used."""

import json
import warnings
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from margins import at_least
from networks import FAMILY, batch_for, random_images, random_model
from torch import nn

from vitkit.models import (
    NAMES,
    LeNetConfig,
    ViTConfig,
    build,
    config_from,
    config_to_dict,
    create,
    for_inference,
    named,
    resized,
)
from vitkit.objectives import Supervised
from vitkit.recipes import Optim
from vitkit.recipes.optim import parameter_groups
from vitkit.system.errors import BadSettings

every_model = pytest.mark.parametrize("config", FAMILY.values(), ids=FAMILY.keys())


def at_once(*names):
    """Each model, but these alone in the quick suite: other tools take a second or more."""
    return pytest.mark.parametrize(
        "config",
        [
            pytest.param(config, id=name, marks=() if name in names else pytest.mark.slow)
            for name, config in FAMILY.items()
        ],
    )


# Of the named models, one of each kind
SMALLEST = (
    "mu/16", "So400m/14", "R+Ti/16", "R26+S/32", "R50x1", "BiT-R50x1", "BN-R50", "Axial-B/32",
    "Axial-R50", "Local-R50", "Augmented-R50", "LeNet-5",
)  # fmt: skip
# What another model has too: some tests do without them, but for the slow ones
ALIKE = (
    "token and quarters", "no biases of q, k, v", "rectangles", "CLIP", "learned2d, shared",
    "relative, shared", "sincos", "sincos-1d", "sincos-mae", "sincos, shared",
)  # fmt: skip
every_kind = at_once(*(name for name in FAMILY if name not in ALIKE))
ANY_SIZE = {
    name: config
    for name, config in FAMILY.items()
    if not isinstance(config, LeNetConfig) and "relative" not in name and name != "sincos-1d"
}


def another_size(config):
    """A size that a model can be fed and is not made for; its own if there is no other."""
    height, width = config.image
    if config not in ANY_SIZE.values():
        return config.image
    if height == width:
        return (height, 2 * width)
    return (width, height)


class TestMade:
    @every_model
    def test_logits_start_at_zero(self, config):
        model = create(config, seed=0).eval()
        assert (model(batch_for(config)) == 0).all()

    @every_model
    def test_an_image_has_the_same_answer_in_every_batch(self, config):
        model = random_model(config)
        x = batch_for(config)
        alone = torch.cat([model(x[:1]), model(x[1:])])
        torch.testing.assert_close(model(x), alone, atol=1e-4, rtol=1e-4)

    @every_model
    def test_weights_may_be_bfloat16(self, config):
        model = random_model(config).bfloat16()
        assert model(batch_for(config).bfloat16()).isfinite().all()

    @every_model
    def test_a_configuration_survives_json(self, config):
        again = config_from(json.loads(json.dumps(config_to_dict(config))))
        assert again == config
        assert hash(again) == hash(config)


class TestTraining:
    @every_kind
    def test_every_parameter_gets_a_finite_gradient_in_bfloat16(self, config):
        model = random_model(config).train()
        x = batch_for(config)
        optim = Optim(lr=1e-3, decay_on="kernels", weight_decay=0.1, layer_decay=0.9)
        optimizer = optim.build(Supervised().learner(model))
        for recompute in (False, True):
            model.recompute = recompute
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), torch.arange(2))
            loss.backward()
            for name, parameter in model.named_parameters():
                assert parameter.grad.isfinite().all(), name
                # the keys' bias moves all logits of a query alike, and has no gradient
                assert parameter.grad.any() or name.endswith("qkv.bias"), name
            optimizer.step()
            optimizer.zero_grad()

    @every_kind
    def test_gradients_are_those_of_finite_differences(self, config):
        if isinstance(config, ViTConfig):
            config = replace(config, stochastic_depth=0.0)
        model = random_model(config).double()
        x = batch_for(config, 1).double().requires_grad_()
        ends = ("table", "conv2.weight", "across", "row.qkv.weight")
        parameters = [
            parameter for name, parameter in model.named_parameters() if name.endswith(ends)
        ]

        def total(x, *_):
            return model(x).sum()

        assert torch.autograd.gradcheck(total, (x, *parameters[:3]), fast_mode=True, atol=1e-4)

    @pytest.mark.parametrize(
        "name", [n if n in SMALLEST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
    )
    def test_the_optimiser_has_every_parameter_and_decays_the_kernels(self, name):
        with torch.device("meta"):
            model = build(named(name))
        optim = Optim(weight_decay=0.1, decay_on="kernels", layer_decay=0.9)
        groups = parameter_groups(Supervised().learner(model), optim)
        decayed = set()
        count = 0
        for group in groups:
            count += len(group["params"])
            if group["weight_decay"]:
                decayed |= {id(parameter) for parameter in group["params"]}
        assert count == len(list(model.parameters()))
        assert decayed == {id(p) for p in model.parameters() if p.ndim in (2, 4)}

    def test_positions_of_a_block_learn_as_fast_as_the_block(self):
        config = named("Ti/16", depth=2, positions="learned2d", inject="every")
        with torch.device("meta"):
            model = build(config)
        scale = {}
        for group in parameter_groups(Supervised().learner(model), Optim(layer_decay=0.5)):
            for parameter in group["params"]:
                scale[id(parameter)] = group["scale"]
        assert scale[id(model.positions[1].across)] == 0.5
        assert scale[id(model.blocks[1].norm1.bias)] == 0.5
        assert scale[id(model.positions[0].prefix)] == 0.25


class TestOtherSizes:
    @pytest.mark.parametrize("config", ANY_SIZE.values(), ids=ANY_SIZE.keys())
    def test_any_legal_size_is_taken(self, config):
        model = random_model(config)
        for size in ((64, 64), (128, 64)):
            assert model(random_images(1, 3, *size)).isfinite().all()
        if isinstance(config, ViTConfig):
            with pytest.raises(ValueError, match="72 x 64 pixels cannot be cut into patches"):
                model(random_images(1, 3, 72, 64))
        else:
            assert model(random_images(1, 3, 37, 41)).shape == (1, 5)

    @every_model
    def test_other_channels_are_refused(self, config):
        with pytest.raises(ValueError, match=r"of shape \(1, 1, 64, 64\)"):
            create(config)(torch.zeros(1, 1, 64, 64))

    def test_a_resized_model_keeps_what_is_frozen(self):
        model = random_model(FAMILY["ViT"]).requires_grad_(False)
        model.head.requires_grad_(True)
        model.recompute = True
        larger = resized(model, (48, 48))
        trained = [name for name, parameter in larger.named_parameters() if parameter.requires_grad]
        assert trained == ["head.weight", "head.bias"]
        assert larger.recompute


class TestForInference:
    @every_model
    def test_it_computes_the_same_at_its_own_size_and_another(self, config):
        model = random_model(config)
        size = another_size(config)
        own = batch_for(config)
        other = random_images(2, config.channels, *size)
        deployed = for_inference(model)
        with torch.inference_mode():
            for again in (deployed, for_inference(deployed, config.image)):
                torch.testing.assert_close(again(own), model(own), atol=1e-5, rtol=1e-5)
            moved = for_inference(model, size)
            torch.testing.assert_close(moved(other), model(other), atol=1e-5, rtol=1e-5)
        memory = {tensor.data_ptr() for tensor in deployed.state_dict().values()}
        assert all(weight.data_ptr() in memory for weight in model.head.parameters())

    @every_model
    def test_the_model_itself_is_left_alone(self, config):
        model = random_model(config).train()
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        deployed = for_inference(model)
        deployed.double()
        assert deployed.inference_only and not deployed.training
        assert not any(parameter.requires_grad for parameter in deployed.parameters())
        assert not model.inference_only and model.training
        assert all(parameter.requires_grad for parameter in model.parameters())
        for name, tensor in model.state_dict().items():
            assert tensor.dtype == weights[name].dtype
            assert torch.equal(tensor, weights[name]), name
        with pytest.raises(ValueError, match="this model was made for inference"):
            resized(deployed, config.image)

    @every_kind
    def test_models_may_be_made_and_used_inside_inference_mode(self, config):
        """As a server does: every weight is an inference tensor."""
        own = random_images(1, config.channels, *config.image)
        other = random_images(1, config.channels, *another_size(config))
        outside = random_model(config)

        def check(model, x, expected):
            torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)

        with torch.inference_mode():
            model = random_model(config)
            for x in (own, other):
                expected = outside(x)
                check(model, x, expected)
                check(for_inference(model, x.shape[-2:]), x, expected)
                check(resized(model, x.shape[-2:]), x, expected)
            check(model, own, outside(own))  # again, after another size


class TestOtherTools:
    @pytest.mark.slow  # a ViT is compiled and trained by test_settings.py
    @every_model
    def test_it_compiles_as_one_graph(self, config, request):
        # The limit of recompilations counts those of all models, which share their functions.
        request.addfinalizer(torch.compiler.reset)
        model = random_model(config)
        x = batch_for(config)
        compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)

    @pytest.mark.slow
    @every_model
    def test_its_dense_layers_may_be_quantised(self, config):
        """Dynamic int8, by torchao: whatever takes a dense layer's weights is called as one."""
        model = random_model(config)
        x = batch_for(config)
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # PyTorch's, of what torchao uses
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

            expected = model(x).flatten()
            quantize_(model, Int8DynamicActivationInt8WeightConfig())
            logits = model(x).flatten()
        for layer in model.modules():
            assert not isinstance(layer, nn.Linear) or type(layer.weight) is not nn.Parameter
        at_least(torch.cosine_similarity(logits, expected, 0).item(), 0.98)

    def test_a_hook_on_a_dense_layer_is_called_once_with_all_tokens(self):
        """What adapters, quantisers and tensor parallelism rely on."""
        model = random_model(FAMILY["ViT"])
        shapes = []
        for block in model.blocks:
            block.attention.qkv.register_forward_hook(lambda *call: shapes.append(call[2].shape))
        model(batch_for(model.config))
        assert shapes == [(2, 25, 96)] * 2


@torch.no_grad()
def test_models_whose_first_layer_has_no_parameters_or_no_device_compute():
    """Replicas of nn.DataParallel have plain tensors; a model on "meta" has no autocast."""
    model = random_model(FAMILY["ViT"])
    images = batch_for(model.config)
    expected = model(images)
    replica = deepcopy(model)
    for module in replica.modules():
        tensors = dict(module._parameters)
        module._parameters.clear()
        for name, tensor in tensors.items():
            setattr(module, name, None if tensor is None else tensor.detach())
    torch.testing.assert_close(replica(images), expected)
    half = model.to("meta", torch.bfloat16)
    assert half(images.to("meta", torch.bfloat16)).shape == expected.shape


@every_model
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_a_converted_model_computes_in_its_type(config, dtype):
    """Images are float32 as their preprocessing makes them."""
    model = random_model(config)
    images = batch_for(config)
    expected = model(images)
    converted = model.to(dtype)
    logits = converted(images)
    assert logits.dtype == dtype
    scale = float(expected.abs().max())
    tolerance = 1e-4 if dtype == torch.float64 else 0.1
    assert float((logits - expected).abs().max()) < tolerance * max(scale, 1)
    with torch.autocast("cpu", torch.bfloat16):
        if dtype == torch.bfloat16:
            assert converted(images).dtype == torch.bfloat16
        else:
            with pytest.raises(BadSettings, match=f"weights are {str(dtype)[6:]}, .*model.float"):
                converted(images)
