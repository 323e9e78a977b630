"""Schedules, parameter groups and losses against the paper's formulas and torch's own pieces."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from vitkit.data import mix
from vitkit.models import create, vit
from vitkit.objectives import Supervised
from vitkit.recipes import Optim
from vitkit.recipes.optim import parameter_groups
from vitkit.system.span import Span, due

ONE_BLOCK = vit("mu/16", classes=4, depth=2)


class TestSchedule:
    def test_cosine(self):
        optim = Optim(lr=0.1, warmup=Span(10), schedule="cosine")
        assert optim.rate(0, 110) == 0
        assert optim.rate(5, 110) == pytest.approx(0.5 * 0.1)  # the decay has not begun
        assert optim.rate(10, 110) == pytest.approx(0.1)
        assert optim.rate(60, 110) == pytest.approx(0.05)
        assert optim.rate(35, 110) == pytest.approx(0.1 * 0.5 * (1 + math.cos(math.pi / 4)))
        assert optim.rate(110, 110) == pytest.approx(0, abs=1e-12)
        assert optim.rate(120, 110) == pytest.approx(0, abs=1e-12)  # and it does not rise again

    def test_linear_ends_at_1e_5(self):
        optim = Optim(lr=8e-4, warmup=Span(10_000), schedule="linear")
        assert optim.rate(0, 100_000) == 0
        assert optim.rate(10_000, 100_000) == pytest.approx(8e-4)
        assert optim.rate(55_000, 100_000) == pytest.approx((8e-4 + 1e-5) / 2)
        assert optim.rate(100_000, 100_000) == pytest.approx(1e-5)

    def test_an_end_of_ones_own(self):
        optim = Optim(lr=1e-3, end_lr=1e-6, schedule="cosine")
        assert optim.rate(0, 100) == pytest.approx(1e-3)
        assert optim.rate(50, 100) == pytest.approx((1e-3 + 1e-6) / 2)
        assert optim.rate(100, 100) == pytest.approx(1e-6)
        assert Optim(lr=0.1, end_lr=0, schedule="linear").rate(75, 100) == pytest.approx(0.025)

    def test_weight_decay_stays_or_grows_as_a_cosine(self):
        assert Optim(weight_decay=0.1).decay(7, 10) == 0.1
        optim = Optim(weight_decay=0.04, weight_decay_end=0.4, warmup=Span(30))
        for step in (0, 25, 50, 99, 100):
            assert optim.decay(step, 100) == pytest.approx(
                0.4 - 0.18 * (1 + math.cos(math.pi * step / 100))
            )

    def test_without_warmup_the_first_update_counts(self):
        assert Optim(lr=0.1).rate(0, 10) == pytest.approx(0.1)
        assert Optim(lr=0.1, schedule="constant").rate(9, 10) == 0.1


class TestSpan:
    @pytest.mark.parametrize(
        ("text", "steps"),
        [
            ("500", 500),
            ("500steps", 500),
            ("1 epoch", 98),
            ("10epochs", 977),
            ("51200images", 100),
            ("1e3", 1000),
            ("0", 0),
            ("0.001epochs", 1),
        ],
    )
    def test_of_cifar(self, text, steps):
        assert Span.parse(text).steps(batch=512, examples=50_000) == steps

    @pytest.mark.parametrize(
        "span", [Span(1.5, "epochs"), Span(20_000, "steps"), Span(3e8, "images")]
    )
    def test_text_and_back(self, span):
        assert Span.parse(str(span)) == span

    @pytest.mark.parametrize("text", ["", "ten", "10 fortnights", "1.2.3", "-4"])
    def test_what_is_none(self, text):
        with pytest.raises(ValueError, match="is not a duration"):
            Span.parse(text)

    def test_due(self):
        assert [step for step in range(12) if due(step, 5, 11)] == [5, 10, 11]
        assert [step for step in range(12) if due(step, 0, 11)] == [11]


class TestGroups:
    def test_decay_of_all_or_of_kernels_only(self):
        model = create(replace(ONE_BLOCK, pool="map", representation=8), seed=0)
        (group,) = parameter_groups(Supervised().learner(model), Optim(weight_decay=0.1))
        assert len(group["params"]) == len(list(model.parameters()))
        # Positions, class token and probe have three axes
        kernels = {id(p) for p in model.parameters() if p.ndim in (2, 4)}
        for group in parameter_groups(
            Supervised().learner(model), Optim(weight_decay=0.1, decay_on="kernels")
        ):
            assert {id(p) in kernels for p in group["params"]} == {group["weight_decay"] > 0}

    def test_decay_of_all_but_vectors(self):
        model = create(replace(ONE_BLOCK, layer_scale=0.1), seed=0)
        groups = parameter_groups(
            Supervised().learner(model), Optim(weight_decay=0.1, decay_on="matrices")
        )
        decayed = {id(p) for group in groups if group["decays"] for p in group["params"]}
        assert {n for n, p in model.named_parameters() if id(p) not in decayed} == {
            n
            for n, _ in model.named_parameters()
            if n.endswith(("bias", "norm.weight", "norm1.weight", "norm2.weight", "gamma"))
        }
        assert id(model.cls) in decayed and id(model.positions.table) in decayed

    def test_layer_decay(self):
        model = create(ONE_BLOCK, seed=0)
        scale = {}
        for group in parameter_groups(Supervised().learner(model), Optim(layer_decay=0.5)):
            for parameter in group["params"]:
                scale[id(parameter)] = group["scale"]
        assert scale[id(model.head.weight)] == scale[id(model.norm.bias)] == 1
        assert scale[id(model.blocks[1].mlp.expand.bias)] == 0.5
        assert scale[id(model.blocks[0].attention.qkv.weight)] == 0.25
        for parameter in (model.cls, model.positions.table, model.stem.project.weight):
            assert scale[id(parameter)] == 0.125

    def test_frozen_parameters_are_left_out(self):
        model = create(ONE_BLOCK, seed=0)
        model.requires_grad_(False).head.requires_grad_(True)
        (group,) = parameter_groups(Supervised().learner(model), Optim())
        assert [id(p) for p in group["params"]] == [id(model.head.weight), id(model.head.bias)]

    def test_kernels_are_known_by_the_layer_that_they_are_of(self):
        """In a new kind of module the matrix of a dense layer decays too, and a vector does not."""
        model = create(ONE_BLOCK, seed=0)
        model.novelty = torch.nn.ModuleDict({"mix": torch.nn.Linear(3, 2)})
        model.novelty.scale = torch.nn.Parameter(torch.zeros(2))
        groups = parameter_groups(
            Supervised().learner(model), Optim(weight_decay=0.1, decay_on="kernels")
        )
        decayed = {id(p) for group in groups if group["decays"] for p in group["params"]}
        assert id(model.novelty["mix"].weight) in decayed
        assert id(model.novelty["mix"].bias) not in decayed
        assert id(model.novelty.scale) not in decayed


class TestUpdates:
    def test_adam_by_hand(self):
        model = create(ONE_BLOCK, seed=0)
        optim = Optim(lr=0.01, weight_decay=0.1)
        optimizer = optim.build(Supervised().learner(model))
        p = model.head.weight
        w = p.detach().double().clone()
        m = torch.zeros_like(w)
        v = torch.zeros_like(w)
        torch.manual_seed(0)
        for step in range(1, 4):
            for q in model.parameters():
                q.grad = torch.randn_like(q)
            g = p.grad.double().clone()
            optimizer.step()
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g**2
            first = m / (1 - 0.9**step)
            second = v / (1 - 0.999**step)
            w = w - 0.01 * 0.1 * w - 0.01 * first / (second.sqrt() + 1e-8)
        torch.testing.assert_close(p.detach().double(), w, atol=1e-6, rtol=1e-5)

    def test_sgd_is_plain_momentum(self):
        model = create(ONE_BLOCK, seed=0)
        optimizer = Optim(name="sgd", lr=0.1, momentum=0.9).build(Supervised().learner(model))
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        before = model.head.bias.detach().clone()
        optimizer.step()
        optimizer.step()
        torch.testing.assert_close(model.head.bias.detach(), before - 0.1 * (1 + 1.9))

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_without_a_gradient_a_parameter_has_its_momentum_too(self, momentum):
        learner = Supervised().learner(create(ONE_BLOCK, seed=0))
        optimizer = Optim(name="sgd", lr=0.1, momentum=momentum).build(learner)
        buffers = [state["momentum_buffer"] for state in optimizer.state.values()]
        assert len(buffers) == (len(list(learner.parameters())) if momentum else 0)
        assert not any(buffer.any() for buffer in buffers)

    @pytest.mark.parametrize(
        "bad",
        [{"lr": 0}, {"lr": math.inf}, {"lr": math.nan}, {"weight_decay": -0.1}, {"beta1": 1.0}],
    )
    def test_values_that_cannot_be(self, bad):
        name = next(iter(bad))
        with pytest.raises(ValueError, match=f"{name} is {bad[name]}"):
            Optim(**bad)


class Fixed(torch.nn.Module):
    """A model whose logits are known."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits
        self.config = SimpleNamespace(classes=logits.shape[1])

    def forward(self, images):
        return self.logits


class TestLosses:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3, 4, 0])

    def loss(self, name, smoothing=0.0):
        return Supervised(name, smoothing).learner(Fixed(self.logits))(None, self.labels, None)

    def test_softmax(self):
        expected = -self.logits.log_softmax(-1)[torch.arange(6), self.labels].mean()
        torch.testing.assert_close(self.loss("softmax"), expected)

    def test_sigmoid_sums_over_classes(self):
        y = F.one_hot(self.labels, 5).float()
        p = self.logits.sigmoid()
        expected = -(y * p.log() + (1 - y) * (1 - p).log()).sum(-1).mean()
        torch.testing.assert_close(self.loss("sigmoid"), expected)

    @pytest.mark.parametrize("name", ["softmax", "sigmoid"])
    def test_smoothing_spreads_a_share_of_the_target(self, name):
        y = F.one_hot(self.labels, 5) * 0.8 + 0.2 / 5
        if name == "softmax":
            expected = -(y * self.logits.log_softmax(-1)).sum(-1).mean()
        else:
            expected = (
                F.binary_cross_entropy_with_logits(self.logits, y, reduction="none").sum(-1).mean()
            )
        torch.testing.assert_close(self.loss(name, 0.2), expected)

    def test_off_targets_are_those_of_a_no(self):
        y = F.one_hot(self.labels, 5) * 0.98 + 0.01
        expected = (
            F.binary_cross_entropy_with_logits(self.logits, y, reduction="none").sum(-1).mean()
        )
        learner = Supervised("sigmoid", off_target=0.01).learner(Fixed(self.logits))
        torch.testing.assert_close(learner(None, self.labels, None), expected)
        for bad in (
            {"loss": "softmax", "off_target": 1e-4},
            {"loss": "sigmoid", "off_target": 0.5},
        ):
            with pytest.raises(ValueError, match="off_target is"):
                Supervised(**bad)

    @pytest.mark.parametrize("name", ["softmax", "sigmoid"])
    def test_a_mixed_loss_is_that_of_the_two_labels_in_the_shares_of_the_images(self, name):
        images, keys = torch.arange(6.0).view(6, 1, 1, 1), torch.arange(1, 7) << 40
        learner = Supervised(name, 0.1, mixup=0.5).learner(Fixed(self.logits))
        mixed, _ = mix(images, torch.eye(6), keys, mixup=0.5)
        partner = torch.arange(6) ^ 1
        share = ((mixed - images[partner]) / (images - images[partner])).flatten()
        losses = []
        for labels in (self.labels, self.labels[partner]):
            rows = [(Fixed(self.logits[i : i + 1]), labels[i : i + 1]) for i in range(6)]
            losses.append(
                torch.stack(
                    [Supervised(name, 0.1).learner(m)(None, label, None) for m, label in rows]
                )
            )
        expected = (share * losses[0] + (1 - share) * losses[1]).mean()
        torch.testing.assert_close(learner(images, self.labels, keys), expected)

    @pytest.mark.parametrize(("off", "yes"), [(0.0, 1), (1e-4, 0.9999 + 21_842 * 0.0001)])
    def test_first_loss_of_the_official_pretraining(self, off, yes):
        """Zero head, bias -10, 21,843 classes: K ln(1 + e^-10), and 10 for each yes."""
        model = create("mu/16", classes=21_843, head_bias=-10.0, seed=0).eval()
        learner = Supervised("sigmoid", off_target=off).learner(model)
        loss = learner(torch.randn(2, 3, 224, 224), torch.tensor([3, 21_842]), None)
        assert loss.item() == pytest.approx(21_843 * math.log1p(math.exp(-10)) + 10 * yes, rel=1e-5)


def test_the_staircase_is_bits():
    """BiT-HyperRule for 10,000 steps: warm-up to 500, divided by ten at 3,000, 6,000 and 9,000."""
    optim = Optim(lr=0.003, warmup=Span(500), schedule="staircase")
    rates = [
        optim.rate(step, 10_000)
        for step in (0, 250, 500, 2_999, 3_000, 5_999, 6_000, 8_999, 9_000, 9_999)
    ]
    assert rates == pytest.approx([0, 0.0015, 0.003, 0.003, 3e-4, 3e-4, 3e-5, 3e-5, 3e-6, 3e-6])
