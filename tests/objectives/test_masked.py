"""Masked patch prediction: against the paper's words written out one patch at a time, and what must
hold whatever the weights are."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from margins import at_most
from runs import capture_compiled, random_levels
from safetensors.torch import load_file

from vitkit.data import Batch, Preprocessing
from vitkit.evaluation import Part, Subject
from vitkit.models import ViTConfig, create
from vitkit.objectives import MaskedPatches
from vitkit.objectives.patches import Reconstruction, colour_levels, mean_colours, patchify
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.record.metrics import last_metrics
from vitkit.weights import Classifier

CONFIG = ViTConfig(width=24, depth=2, mlp=48, heads=2, patch=8, image=(32, 24), classes=0)
PREPARE = Preprocessing(size=(32, 24))
TARGETS = ["colour", "colours", "pixels"]


def levels(n, seed=0):
    return random_levels(n, (32, 24), seed)


def learner_of(objective=None, config=CONFIG):
    return (objective or MaskedPatches()).learner(create(config, seed=0), PREPARE)


class TestCorruption:
    keys = torch.arange(3000)

    def test_shares_are_the_papers(self):
        which, masked, swapped, other = learner_of().corruption(self.keys, 196)
        assert which.shape == (3000, 98)
        assert all(len(set(row)) == 98 for row in which[:50].tolist())
        assert masked.float().mean().item() == pytest.approx(0.8, abs=0.005)
        assert swapped.float().mean().item() == pytest.approx(0.1, abs=0.004)
        assert not (masked & swapped).any()

        # Every patch is corrupted as often as the others, and becomes any other one as often
        shares = which.flatten().bincount(minlength=196) / 3000
        assert (shares - 0.5).abs().max() < 0.05
        assert (other != which).all()
        distance = (other - which) % 196
        shares = distance.flatten().bincount(minlength=196) / distance.numel()
        assert (shares[1:] - 1 / 195).abs().max() < 0.001

    def test_embeddings_become_what_they_should(self):
        learner = learner_of()
        x = torch.randn(40, 12, 24)
        mask = torch.randn(24)
        corruption = learner.corruption(self.keys[:40], 12)
        after = corruption.apply(x, mask)
        for b in range(40):
            expected = x[b].clone()
            for m, patch in enumerate(corruption.which[b].tolist()):
                if corruption.masked[b, m]:
                    expected[patch] = mask
                elif corruption.swapped[b, m]:
                    expected[patch] = x[b, corruption.other[b, m]]
            assert torch.equal(after[b], expected)

    @pytest.mark.parametrize(("rate", "count"), [(0.15, 29), (1.0, 196), (0.001, 1)])
    def test_other_rates(self, rate, count):
        learner = learner_of(MaskedPatches(rate=rate))
        assert learner.corruption(self.keys[:2], 196).which.shape == (2, count)


class TestTargets:
    def test_mean_colour_is_three_bits_a_channel(self):
        """Against exact fractions, among them means that lie on the edge of two bins."""
        images = levels(6)
        images[0] = 255
        images[1] = 0
        images[2, 0] = 0
        images[2, 0, :, 1::2] = 255  # a mean of exactly 1/2
        images[3, 1] = 255
        images[3, 1, 3::4] = 0  # a mean of exactly 3/4
        colours = mean_colours(images, 8, 8)
        for b, y, x in np.ndindex(6, 4, 3):
            square = images[b, :, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8].numpy().astype(int)
            bins = [min(7, 8 * int(channel.sum()) // (255 * 64)) for channel in square]
            assert colours[b, y, x] == bins[0] * 64 + bins[1] * 8 + bins[2]
        assert (colours[0] == 511).all()
        assert (colours[1] == 0).all()
        assert (colours[2] // 64 == 4).all()
        assert (colours[3] // 8 % 8 == 6).all()

    def test_what_normalising_did_is_undone_exactly(self):
        for prepare in (
            PREPARE,
            Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ):
            every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, -1, -1)
            assert torch.equal(prepare.levels(prepare.normalise(every)), every)

    def test_a_colour_is_the_middle_of_its_bin(self):
        classes = torch.arange(512).view(1, -1, 1)
        middle = colour_levels(classes, 3, 8)[:, :, 0].mT[..., None].round().byte()
        assert torch.equal(mean_colours(middle, 1, 8).flatten(), torch.arange(512))


class TestLearner:
    @pytest.mark.parametrize(
        ("target", "loss"),
        [("colour", math.log(512)), ("colours", math.log(512)), ("pixels", None)],
    )
    def test_the_first_loss_is_that_of_no_idea(self, target, loss):
        images = PREPARE.normalise(levels(4))
        learner = learner_of(MaskedPatches(target))
        keys = torch.arange(4)
        if loss is None:  # of predicting zeros
            which = learner.corruption(keys, 12).which
            pixels = patchify(images, 8)[torch.arange(4)[:, None], which]
            loss = (pixels**2).mean().item()
        assert learner(images, None, keys).item() == pytest.approx(loss, rel=1e-6)

    @pytest.mark.parametrize(
        "changes", [{}, {"pool": "gap"}, {"registers": 2}, {"positions": "rotary", "width": 32}]
    )
    @pytest.mark.parametrize("target", TARGETS)
    def test_loss_one_patch_at_a_time(self, target, changes):
        config = replace(CONFIG, **changes)
        learner = learner_of(MaskedPatches(target), config)
        for parameter in (learner.mask, learner.predict.weight):
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(2))
        images = PREPARE.normalise(levels(3))
        keys = torch.arange(3)
        model = learner.model
        corruption = learner.corruption(keys, 12)
        patches = corruption.apply(model.patch_embed(images), learner.mask)
        states = model.encoder(model.add_positions(patches, (4, 3)), (4, 3))
        outputs = learner.predict(states[:, config.prefix :])
        targets = learner.targets(images)
        losses = []
        for b, m in np.ndindex(corruption.which.shape):
            patch = corruption.which[b, m]
            if target == "colour":
                losses.append(-outputs[b, patch].log_softmax(-1)[targets[b, patch]])
            elif target == "colours":
                for part in range(16):
                    logits = outputs[b, patch, 512 * part : 512 * part + 512]
                    losses.append(-logits.log_softmax(-1)[targets[b, patch, part]])
            else:
                losses.append(((outputs[b, patch] - targets[b, patch]) ** 2).mean())
        torch.testing.assert_close(learner(images, None, keys), torch.stack(losses).mean())

    def test_a_hidden_patch_is_not_seen(self):
        """With everything hidden and no class token the answer does not depend on the image."""
        learner = learner_of(
            MaskedPatches(rate=1.0, masked=1.0, swapped=0.0), replace(CONFIG, pool="gap")
        )
        torch.nn.init.normal_(learner.predict.weight, generator=torch.Generator().manual_seed(2))
        keys = torch.arange(1)
        predicted, _ = learner.predictions(PREPARE.normalise(levels(1, seed=0)), keys)
        of_another, _ = learner.predictions(PREPARE.normalise(levels(1, seed=1)), keys)
        assert torch.equal(predicted, of_another)
        assert predicted.std(1).min() > 1e-4  # but on the patch's position it does

    @pytest.mark.parametrize("target", TARGETS)
    def test_pictures_show_the_target_in_place(self, target):
        learner = learner_of(MaskedPatches(target))
        images = levels(5)
        keys = torch.arange(5)
        shown = learner.pictures(PREPARE.normalise(images), keys)
        assert list(shown) == ["image", "seen", "predicted", "target"]
        assert all(x.dtype == torch.uint8 and x.shape == images.shape for x in shown.values())
        assert torch.equal(shown["image"], images)
        which, masked, _, _ = learner.corruption(keys, 12)
        intact = torch.ones(5, 12, dtype=torch.bool).scatter_(1, which, False)
        for x in shown.values():
            assert torch.equal(patchify(x, 8)[intact], patchify(images, 8)[intact])
        hidden = torch.zeros(5, 12, dtype=torch.bool).scatter_(1, which, masked)
        assert (patchify(shown["seen"], 8)[hidden] == 128).all()
        if target == "pixels":
            assert torch.equal(shown["target"], images)
        else:
            side = 8 if target == "colour" else 2
            assert torch.equal(
                mean_colours(shown["target"], side, 8), mean_colours(images, side, 8)
            )

    def test_sentences(self):
        with pytest.raises(ValueError, match="a patch of 6 x 6 pixels has no 4 x 4 parts"):
            learner_of(MaskedPatches("colours"), replace(CONFIG, patch=6, image=(12, 12)))
        with pytest.raises(ValueError, match="a LeNet has no patch embeddings"):
            MaskedPatches().learner(create("LeNet-5"), PREPARE)
        with pytest.raises(ValueError, match="one patch"):
            learner_of(config=replace(CONFIG, image=(8, 8)))
        for wrong, sentence in (
            ({"target": "x"}, "'x'"),
            ({"rate": 0}, "rate is 0"),
            ({"masked": 0.95}, "at most 1"),
        ):
            with pytest.raises(ValueError, match=sentence):
                MaskedPatches(**wrong)


def measured(learner, batches):
    """The evaluator's metrics by name."""
    subject = Subject(Classifier(learner.model, PREPARE, ()), learner)
    return {m.name: m.value for m in Reconstruction().measure(subject, Part(None, batches))}


class TestEvaluator:
    @pytest.mark.parametrize("target", TARGETS)
    def test_counts_by_hand_and_padding_counts_nowhere(self, target):
        objective = MaskedPatches(target)
        learner = learner_of(objective)
        torch.nn.init.normal_(
            learner.predict.weight, std=0.1, generator=torch.Generator().manual_seed(2)
        )
        images = (levels(7) // torch.tensor([2, 3, 5])[:, None, None]).byte()
        rows = torch.arange(7)
        whole = [Batch(images, rows, torch.ones(7, dtype=torch.bool), rows)]
        last = torch.tensor([4, 5, 6, 6])
        parts = [
            Batch(images[:4], rows[:4], torch.ones(4, dtype=torch.bool), rows[:4]),
            Batch(images[last], last, torch.tensor([True, True, True, False]), last),
            # A rank's share of a last batch
            Batch(images[last], last, torch.zeros(4, dtype=torch.bool), last),
        ]
        metrics = measured(learner, whole)
        assert metrics == pytest.approx(measured(learner, parts), rel=1e-6)
        assert learner.training
        normal = PREPARE.normalise(images)
        assert metrics["loss"] == pytest.approx(learner(normal, None, rows).item(), rel=1e-5)

        # The best answer that is always the same
        which = learner.corruption(rows, 12).which
        targets = learner.targets(normal)[rows[:, None], which].flatten(0, 1)
        if target == "pixels":
            baseline = targets.double().var(0, correction=0).mean().item()
        else:
            entropies = []
            for colours in targets.view(len(targets), -1).T.tolist():
                shares = [colours.count(colour) / len(colours) for colour in set(colours)]
                entropies.append(-sum(share * math.log(share) for share in shares))
            baseline = np.mean(entropies)
        assert metrics["baseline"] == pytest.approx(baseline)
        assert metrics["seen"] == 7

    def test_nothing_to_evaluate_on(self):
        with pytest.raises(ValueError, match="no image"):
            measured(learner_of(), [])

    def test_a_finished_model_has_nothing_to_predict_with(self):
        subject = Subject(Classifier(create(CONFIG, seed=0), PREPARE, ()))
        with pytest.raises(ValueError, match="only models in pre-training"):
            list(Reconstruction().measure(subject, Part(None, [])))


@pytest.fixture
def masked(tiny):
    return replace(
        tiny, objective=MaskedPatches(), model=replace(tiny.model, dropout=0, stochastic_depth=0)
    )


class TestRun:
    def test_a_run_learns_and_a_label_can_follow(self, masked, tiny, quiet, tmp_path):
        first = run_recipe(masked, tmp_path / "first", "cpu", quiet)
        assert first.model.config.classes == 0 and first.labels == ()
        metrics = {name: metric.value for name, metric in last_metrics(tmp_path / "first").items()}
        assert metrics["test/loss"] < 0.85 * math.log(512) and metrics["test/seen"] == 359
        pictures = load_file(tmp_path / "first" / "pictures.safetensors")
        assert pictures["predicted"].shape == (8, 3, 8, 8)
        labelled = replace(tiny, init=str(tmp_path / "first"), length=Span(6))
        second = run_recipe(labelled, tmp_path / "second", "cpu", quiet)
        assert second.model.config.classes == 10

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's own
    def test_compiled_blocks_are_used_and_change_little(self, masked, quiet, tmp_path, monkeypatch):
        run_recipe(masked, tmp_path / "plain", "cpu", quiet)
        compiled = capture_compiled(monkeypatch)
        run_recipe(replace(masked, compile=True), tmp_path / "fast", "cpu", quiet)
        assert len(compiled) == masked.model.depth
        plain, fast = (last_metrics(tmp_path / name)["test/loss"] for name in ("plain", "fast"))
        at_most(abs(fast.value - plain.value), 1e-3 * plain.value)
