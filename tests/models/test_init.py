"""Every parameter starts as the official code starts it, by its statistics."""

import math

import pytest
import torch
from torch import nn

from vitkit.models import VisionTransformer, create, vit

CONFIG = vit("S/16", depth=2, representation=384, head_bias=-10.0, classes=100, image=384)


@pytest.fixture(scope="module")
def model():
    return create(CONFIG, seed=0)


def is_uniform(t, limit):
    assert t.abs().max() <= limit
    assert t.abs().max() > 0.99 * limit
    assert t.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.02)
    assert abs(t.mean().item()) < 5 * limit / math.sqrt(t.numel())


def is_normal(t, std):
    assert t.std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * t.numel()))
    assert t.abs().max() > 2.2 * std


def is_truncated(t, std):
    assert t.std().item() == pytest.approx(std, rel=0.02)
    assert t.abs().max().item() <= 2 * std / 0.87962566
    assert t.abs().max().item() > 1.9 * std / 0.87962566


def test_every_parameter_has_its_distribution(model):
    for name, p in model.named_parameters():
        t = p.detach()
        if name == "stem.project.weight":
            is_truncated(t, (3 * 16 * 16) ** -0.5)
        elif name == "representation.weight":
            is_truncated(t, 384**-0.5)
        elif name == "positions.table":
            is_normal(t, 0.02)
        elif name.endswith("qkv.weight"):
            for part in t.chunk(3):
                is_uniform(part, math.sqrt(6 / (384 + 384)))
        elif name.endswith("attention.out.weight"):
            is_uniform(t, math.sqrt(6 / (384 + 384)))
        elif name.endswith(("expand.weight", "contract.weight")):
            is_uniform(t, math.sqrt(6 / (384 + 1536)))
        elif name.endswith(("expand.bias", "contract.bias")):
            is_normal(t, 1e-6)
        elif "norm" in name and name.endswith("weight"):
            assert (t == 1).all()
        elif name == "head.bias":
            assert (t == -10).all()
        else:
            assert name in ("cls", "head.weight") or name.endswith("bias"), name
            assert (t == 0).all(), name


def test_the_probe_of_map_is_glorot_uniform():
    model = create("L/16", depth=1, pool="map", seed=0)
    is_uniform(model.pool.probe.detach(), math.sqrt(6 / (1 + 1024)))


def test_logits_start_at_the_bias_of_the_head(model):
    assert (model.eval()(torch.randn(2, 3, 384, 384)) == -10).all()


def test_a_seed_repeats_and_leaves_torch_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    model = create("mu/16", seed=3)
    assert torch.equal(torch.rand(3), expected)
    again = create("mu/16", seed=3)
    for parameter, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(parameter, other)
    another_seed = create("mu/16", seed=4)
    assert not torch.equal(model.stem.project.weight, another_seed.stem.project.weight)


def test_a_seed_leaves_the_generators_of_gpus_alone(monkeypatch):
    """They go on with their own numbers: only the CPU's are taken back."""
    seeded = []
    for name in ("cuda", "mps", "xpu"):
        monkeypatch.setattr(getattr(torch, name), "manual_seed", seeded.append)
    for name in ("cuda", "xpu"):
        monkeypatch.setattr(getattr(torch, name), "manual_seed_all", seeded.append)
    create("mu/16", seed=3)
    assert not seeded


def test_a_forgotten_parameter_is_an_error(monkeypatch):
    build = VisionTransformer.__init__

    def with_one_more(self, config):
        build(self, config)
        self.forgotten = nn.Parameter(torch.empty(3))

    monkeypatch.setattr(VisionTransformer, "__init__", with_one_more)
    with pytest.raises(RuntimeError, match="never touched forgotten"):
        create("mu/16")
