"""Dense layers by oneDNN: what PyTorch computes, and wherever else a dense layer has to work."""

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from networks import FAMILY, batch_for, random_model
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from vitkit.models import Dense
from vitkit.models import layers as dense
from vitkit.models.layers import onednn_linear
from vitkit.system import matmul

pytestmark = pytest.mark.skipif(not matmul.available(), reason="this PyTorch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """oneDNN computes every product, however small."""
    monkeypatch.setattr(dense, "LEAST_WORK", 0)
    matmul.use(matmul.ALL)
    yield
    matmul.use(None)


@pytest.fixture
def calls(monkeypatch, onednn):
    """How often oneDNN was called."""
    shapes = []
    original = matmul.onednn

    def counted(x, weight, bias=None):
        shapes.append(tuple(x.shape))
        return original(x, weight, bias)

    monkeypatch.setattr(matmul, "onednn", counted)
    return shapes


def tensors(*shapes, grad=True):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_(grad) for shape in shapes]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("choice", [matmul.ALL, matmul.OneDnn(True, False, False)])
@pytest.mark.parametrize("shape", [(5, 24), (2, 7, 24), (3, 4, 5, 24)])
def test_outputs_and_gradients_are_pytorch_s(onednn, shape, choice, bias):
    matmul.use(choice)
    x, weight, b, g = tensors(shape, (40, 24), (40,), (*shape[:-1], 40))
    x = x.transpose(0, 1).contiguous().transpose(0, 1)  # no longer contiguous
    inputs = [x, weight, b if bias else None]
    given = inputs if bias else inputs[:2]

    expected = F.linear(*inputs)
    outputs = onednn_linear(*inputs)
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)
    theirs = torch.autograd.grad(expected, given, g)
    ours = torch.autograd.grad(outputs, given, g)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


def test_it_is_differentiable_twice(onednn):
    x, weight, b = tensors((6, 8), (4, 8), (4,))

    def second(linear):
        (first,) = torch.autograd.grad(linear(x, weight, b).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), (x, weight))

    torch.testing.assert_close(second(onednn_linear), second(F.linear), atol=1e-3, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck's own
@pytest.mark.slow
def test_the_operator_keeps_pytorch_s_rules(onednn):
    x, weight, b = tensors((2, 3, 8), (4, 8), (4,))
    torch.library.opcheck(torch.ops.vitkit.linear, (x, weight, b))
    torch.library.opcheck(torch.ops.vitkit.linear, (x, weight, None))


def test_outputs_may_be_changed_in_place(calls):
    layer = Dense(8, 4)
    layer.register_forward_hook(lambda module, inputs, output: output.mul_(2))
    x, g = tensors((2, 3, 8), (2, 3, 4))
    (ours,) = torch.autograd.grad(layer(x), x, g)
    assert calls
    torch.testing.assert_close(ours, 2 * g @ layer.weight)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # of PyTorch's forward differentiation
@pytest.mark.slow
def test_pytorch_counts_and_pretends_and_differentiates_forward(calls):
    layer = Dense(8, 4)
    (x,) = tensors((2, 3, 8))
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 6 * 8 * 4
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        layer(mode.from_tensor(x))
    with forward_ad.dual_level():
        outputs = layer(forward_ad.make_dual(x, x))
        tangent = forward_ad.unpack_dual(outputs).tangent
    torch.testing.assert_close(tangent, x @ layer.weight.T)
    assert not calls


def test_many_gradients_at_once(calls):
    layer = Dense(8, 4)
    (x,) = tensors((2, 3, 8))
    outputs = layer(x).sum((0, 1))
    assert calls
    each = torch.autograd.grad(
        outputs, [x, layer.weight], torch.eye(4), retain_graph=True, is_grads_batched=True
    )
    for number in range(4):
        alone = torch.autograd.grad(outputs[number], [x, layer.weight], retain_graph=True)
        torch.testing.assert_close([gradient[number] for gradient in each], list(alone))


def test_a_width_that_does_not_fit_is_pytorch_s_complaint(onednn):
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        Dense(8, 4)(torch.ones(2, 3, 7))


def test_gradients_of_single_examples(onednn):
    layer = Dense(8, 4)
    weights = dict(layer.named_parameters())
    x, y = tensors((5, 3, 8), (5, 3, 4), grad=False)

    def loss(weights, x, y):
        return (torch.func.functional_call(layer, weights, x) - y).pow(2).sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, y)
    for i in range(5):
        alone = torch.func.grad(loss)(weights, x[i], y[i])
        torch.testing.assert_close({name: g[i] for name, g in each.items()}, alone)


@pytest.mark.parametrize("name", ["ViT", "MAP", "rotary", "axial ViT"])
def test_a_model_computes_and_learns_the_same(calls, name):
    model = random_model(FAMILY[name])
    x = batch_for(FAMILY[name])
    results = []
    for choice in (matmul.NONE, matmul.ALL):
        matmul.use(choice)
        del calls[:]
        logits = model(x)
        model.zero_grad()
        logits.square().sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        results.append((logits, gradient / gradient.norm()))
    assert len(calls) > 10
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)


def test_only_float32_products_of_some_size_are_its_own(calls, monkeypatch):
    layer = Dense(8, 4)
    x, single = tensors((3, 8), (8,), grad=False)
    layer(x)
    assert len(calls) == 1

    monkeypatch.setattr(dense, "LEAST_WORK", 3 * 8 * 4 + 1)
    layer(x)
    monkeypatch.setattr(dense, "LEAST_WORK", 0)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    copy.deepcopy(layer).bfloat16()(x.bfloat16())
    copy.deepcopy(layer).double()(x.double())
    assert len(calls) == 1
    torch.testing.assert_close(layer(single), F.linear(single, layer.weight, layer.bias))


def test_an_exported_graph_holds_the_plain_layer(onednn):
    model = random_model(FAMILY["ViT"])
    program = torch.export.export(model, (batch_for(model.config),))
    names = {str(node.target) for node in program.graph.nodes}
    assert "aten.linear.default" in names
    assert not any("vitkit" in name for name in names)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_compiled_layer_uses_it_in_both_passes(calls, backend, request):
    request.addfinalizer(torch.compiler.reset)
    model = random_model(replace(FAMILY["ViT"], depth=1))
    x = batch_for(model.config)
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)
    loss = compiled(x).square().sum()
    forward = len(calls)
    loss.backward()
    assert 0 < forward < len(calls)
    torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_a_compiler_measures_nothing(monkeypatch, request):
    request.addfinalizer(torch.compiler.reset)
    monkeypatch.setattr(dense, "LEAST_WORK", 0)
    monkeypatch.setattr(matmul, "choose", lambda: pytest.fail("measured"))
    matmul.use(None)
    layer = torch.compile(Dense(8, 4), fullgraph=True, backend="aot_eager")
    layer(torch.ones(2, 8))


def test_recomputed_layers_have_the_same_gradients(onednn):
    layer = nn.Sequential(Dense(8, 16), nn.GELU(), Dense(16, 4))
    (x,) = tensors((3, 8))
    kept = torch.autograd.grad(layer(x).square().sum(), x)
    again = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).square().sum(), x)
    assert torch.equal(kept[0], again[0])


def test_adapters_stand_beside_it(calls):
    peft = pytest.importorskip("peft")
    model = random_model(FAMILY["ViT"])
    x = batch_for(model.config)
    expected = model(x)
    before = len(calls)
    adapted = peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["qkv"]), model)
    torch.testing.assert_close(adapted(x), expected, atol=1e-5, rtol=1e-5)
    assert before and len(calls) == 2 * before


@pytest.mark.slow
def test_the_first_call_imports_no_compiler():
    """That would take seconds, which somebody waits for who wants one answer."""
    code = (
        "import sys, torch; from vitkit.models import Dense; from vitkit.system import matmul; "
        "matmul.use(matmul.ALL); Dense(768, 768)(torch.ones(32, 768)).sum().backward(); "
        "print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "vitkit.models.layers" in run.stdout.split()
    assert "torch._dynamo" not in run.stdout.split()
