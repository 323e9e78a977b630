"""Self-distillation: views are functions of keys, the teacher is an exact average, and no gradient
reaches it."""

import math
import shutil
from dataclasses import replace

import pytest
import torch
from margins import at_least
from safetensors.torch import load_file
from torchvision.transforms.v2 import functional as T

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig, create
from vitkit.objectives import SelfDistillation
from vitkit.objectives.views import View, blurred, coloured, cropped, turned, view
from vitkit.system.span import Span
from vitkit.training import read_run, run_recipe
from vitkit.training.state.checkpoints import point_to

CONFIG = ViTConfig(
    width=24, depth=2, mlp=48, heads=2, patch=8, image=(32, 32), classes=0, dropout=0.0
)
PREPARE = Preprocessing(size=(32, 32))
SMALL = SelfDistillation(outputs=40, hidden=32, bottleneck=8, local_views=2, local_size=16)
KEYS = torch.arange(6)


def pictures(n=6, seed=0):
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def levels(n):
    return (pictures(n) * 255).byte()


def learner_of(objective=SMALL):
    torch.manual_seed(0)
    return objective.learner(create(CONFIG, seed=0), PREPARE)


class TestViews:
    whole = View((32, 32), (1.0, 1.0), blur=0.0)
    ones = torch.ones(6)

    def test_they_are_functions_of_an_examples_key(self):
        how = View((16, 24), (0.1, 0.5), blur=0.5, solarise=0.2)
        third = view(pictures(), KEYS, 3, how)
        assert third.shape == (6, 3, 16, 24)
        assert third.min() >= 0 and third.max() <= 1
        torch.testing.assert_close(third[2:4], view(pictures()[2:4], KEYS[2:4], 3, how))
        assert not torch.allclose(third, view(pictures(), KEYS, 4, how), atol=0.1)

    def test_the_whole_image_is_itself_and_half_are_mirrored(self):
        flip = torch.tensor([0.1, 0.9, 0.49, 0.5, 0.0, 0.99])
        area, aspect, y, x = self.ones, self.ones / 2, self.ones / 3, self.ones / 3
        views = cropped(pictures(), self.whole, area, aspect, y, x, flip)
        expected = torch.where(flip[:, None, None, None] < 0.5, pictures().flip(-1), pictures())
        torch.testing.assert_close(views, expected, atol=1e-5, rtol=0)

    def test_a_quarter_is_that_quarter(self):
        """Half of each side, so a view of half the size has the image's own pixels."""
        how = View((16, 16), (0.25, 0.25), blur=0.0)
        y, x, flip = self.ones, self.ones * 0, self.ones
        views = cropped(pictures(), how, self.ones, self.ones / 2, y, x, flip)
        torch.testing.assert_close(views, pictures()[:, :, 16:, :16], atol=1e-5, rtol=0)

    def test_they_are_cut_in_float32_whatever_the_model_computes_in(self):
        images = PREPARE.normalise(levels(6))
        exact = learner_of().make_views(images, KEYS)
        with torch.autocast("cpu", torch.bfloat16):
            views = learner_of().make_views(images, KEYS)
        torch.testing.assert_close(views, exact, atol=0, rtol=0)

    def test_aspect_and_area(self):
        """On a ramp from 0 to 1 a view's values say how much of the image it shows."""
        ramp = (torch.arange(320) + 0.5) / 320
        across = ramp.expand(1, 3, 320, 320)
        down = ramp[:, None].expand(1, 3, 320, 320)
        one = torch.ones(1)

        def side(image, how, aspect):
            shown = cropped(image, how, one, one * aspect, one / 2, one / 2, one)
            return (shown.max() - shown.min()).item() * 64 / 63

        for area, aspect in ((0.1, 0.0), (0.3, 0.5), (0.4, 1.0)):
            how = View((64, 64), (area, area), blur=0.0)
            height = side(down, how, aspect)
            width = side(across, how, aspect)
            assert height * width == pytest.approx(area, rel=0.02)
            assert width / height == pytest.approx((4 / 3) ** (2 * aspect - 1), rel=0.02)

    def test_colours_as_torchvisions(self):
        x = pictures()
        change = self.ones * 0  # below the chance
        half = self.ones / 2  # the factor 1

        same = coloured(x, change, half, half, half, half)
        torch.testing.assert_close(same, x, atol=1e-6, rtol=0)
        brighter = coloured(x, change, self.ones, half, half, half)
        torch.testing.assert_close(brighter, T.adjust_brightness(x, 1.4), atol=2e-3, rtol=0)
        starker = coloured(x, change, half, self.ones, half, half)
        torch.testing.assert_close(starker, T.adjust_contrast(x, 1.4), atol=2e-3, rtol=0)
        more_vivid = coloured(x, change, half, half, self.ones, half)
        torch.testing.assert_close(more_vivid, T.adjust_saturation(x, 1.2), atol=2e-3, rtol=0)

        left_alone = coloured(x, self.ones * 0.85, *[self.ones] * 4)
        assert torch.equal(left_alone, x)

    def test_a_third_of_the_circle_makes_red_green(self):
        red = torch.tensor([0.8, 0.1, 0.2]).view(1, 3, 1, 1).expand(6, 3, 4, 4)
        torch.testing.assert_close(turned(red, self.ones / 3), red.roll(1, 1), atol=1e-6, rtol=0)
        grey = torch.full((6, 3, 4, 4), 0.3)
        torch.testing.assert_close(turned(grey, self.ones * 0.07), grey)

    def test_blur_as_torchvisions(self):
        sigma = torch.tensor([0.1, 0.3, 0.6, 1.0, 1.4, 2.0])
        inside = (slice(None), slice(6, -6), slice(6, -6))  # torchvision mirrors the edges
        for image, result, s in zip(pictures(), blurred(pictures(), sigma), sigma, strict=True):
            expected = T.gaussian_blur(image, [13, 13], [s.item(), s.item()])
            torch.testing.assert_close(result[inside], expected[inside], atol=1e-5, rtol=0)


class TestLoss:
    def test_with_no_idea_it_is_the_logarithm_of_the_outputs(self):
        learner = learner_of()
        for last in (learner.projection.last, learner.teacher[1].last):
            torch.nn.init.zeros_(last.weight)
        loss = learner(PREPARE.normalise(levels(6)), None, KEYS)
        assert loss.item() == pytest.approx(math.log(40))

    def test_one_pair_of_views_at_a_time(self):
        learner = learner_of()
        images = PREPARE.normalise(levels(6))
        learner.centre.copy_(torch.randn(40, generator=torch.Generator().manual_seed(1)) / 10)
        views = learner.make_views(images, KEYS)
        losses = []
        assert [tuple(v.shape[-2:]) for v in views] == [(32, 32), (32, 32), (16, 16), (16, 16)]
        for b in range(6):
            for t in range(2):
                teacher = learner.teacher[1](learner.teacher[0](views[t][b][None]))[0]
                p = ((teacher - learner.centre) / 0.04).softmax(-1)
                for s in range(4):
                    if s != t:
                        student = learner.projection(learner.model(views[s][b][None]))[0]
                        losses.append(-(p * (student / 0.1).log_softmax(-1)).sum())
        torch.testing.assert_close(learner.eval()(images, None, KEYS), torch.stack(losses).mean())

    def test_the_teacher_is_as_sharp_as_its_warmup_says(self):
        warming = learner_of(replace(SMALL, teacher_temperature=0.07, teacher_warmup=Span(10)))
        images = PREPARE.normalise(levels(6))
        for step, temperature in ((0, 0.04), (5, 0.055), (10, 0.07), (90, 0.07)):
            warming.before(step, 100)
            loss = warming.eval()(images, None, KEYS)
            constant = learner_of(replace(SMALL, teacher_temperature=temperature))
            torch.testing.assert_close(loss, constant.eval()(images, None, KEYS))

    def test_no_gradient_reaches_the_last_layer_while_it_is_still(self):
        learner = learner_of(replace(SMALL, last_layer_still=Span(2)))
        last = learner.projection.last.weight
        for step, moves in ((0, False), (1, False), (2, True)):
            learner.zero_grad()
            learner.before(step, 100)
            learner(PREPARE.normalise(levels(6)), None, KEYS).backward()
            assert (last.grad is not None) == moves

    def test_no_gradient_reaches_the_teacher(self):
        learner = learner_of()
        learner(PREPARE.normalise(levels(6)), None, KEYS).backward()
        assert all(p.grad is None and not p.requires_grad for p in learner.teacher.parameters())
        student = [*learner.model.parameters(), *learner.projection.parameters()]
        assert all(p.grad is not None for p in student)


class TestTeacher:
    def test_it_is_the_exact_average(self):
        learner = learner_of()
        students = [*learner.model.parameters(), *learner.projection.parameters()]
        expected = [p.detach().clone() for p in students]
        generator = torch.Generator().manual_seed(3)
        for step in range(1, 21):
            momentum = 1 - 0.004 * (math.cos(math.pi * (step - 1) / 20) + 1) / 2
            with torch.no_grad():
                for i, p in enumerate(students):
                    p.add_(torch.randn(p.shape, generator=generator) / 10)
                    expected[i] = momentum * expected[i] + (1 - momentum) * p
            learner.teacher_sums.append(torch.ones(41))
            learner.updated(step, 20)
        for teacher, mean in zip(learner.teacher.parameters(), expected, strict=True):
            torch.testing.assert_close(teacher, mean)

    def test_the_centre_is_the_average_of_its_outputs(self):
        learner = learner_of()
        images = PREPARE.normalise(levels(6))
        outputs = learner.teacher_outputs(torch.cat(learner.make_views(images, KEYS)[:2]))
        learner(images, None, KEYS)
        learner.updated(1, 10)
        torch.testing.assert_close(learner.centre, 0.1 * outputs.mean(0))

    def test_a_step_that_was_skipped_is_no_part_of_the_centre(self):
        images = PREPARE.normalise(levels(6))
        skipping = learner_of()
        skipping.before(0, 10)
        skipping(images * float("nan"), None, KEYS)  # and no update
        plain = learner_of()
        for learner in (skipping, plain):
            learner.before(1, 10)
            learner(images, None, KEYS)
            learner.updated(2, 10)
        assert plain.centre.abs().max() > 0
        assert torch.equal(skipping.centre, plain.centre)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="20 x 20 .* patches of 8 x 8; choose multiples"):
        learner_of(replace(SMALL, local_size=20))
    with pytest.raises(ValueError, match='pool is "none"'):
        SMALL.learner(create(replace(CONFIG, pool="none"), seed=0), PREPARE)
    for wrong, sentence in (
        ({"local_area": (0.4, 0.1)}, "local_area is 0.4, 0.1"),
        ({"teacher_temperature": 0}, "above 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            SelfDistillation(**wrong)


class TestRun:
    @pytest.fixture
    def recipe(self, tiny):
        objective = replace(
            SMALL,
            local_size=4,
            last_layer_still=Span(4),
            teacher_temperature=0.07,
            teacher_warmup=Span(5),
        )
        optim = replace(tiny.optim, weight_decay_end=0.4, clip=0.01, clip_each=True)
        return replace(
            tiny,
            objective=objective,
            optim=optim,
            length=Span(6),
            save_every=Span(3),
            keep=3,
            evaluate_every=Span(6),
        )

    @pytest.mark.slow
    def test_continued_it_ends_as_if_never_disturbed(self, recipe, quiet, tmp_path):
        """Teacher and centre are in the checkpoints, so what comes after one is the same again."""

        def checkpoint(step):
            return load_file(tmp_path / "checkpoints" / f"step-{step:08}" / "state.safetensors")

        run_recipe(recipe, tmp_path, "cpu", quiet)
        assert set(load_file(tmp_path / "pictures.safetensors")) == {
            "image", "large view 1", "large view 2", "small view 1", "small view 2"
        }  # fmt: skip
        accuracy = read_run(tmp_path).primary().value
        at_least(accuracy, 0.1)
        assert accuracy <= 1

        # The last layer is not trained in the first four steps, and has no moments of Adam's
        first, third, last = checkpoint(0), checkpoint(3), checkpoint(6)
        rows = "learner.projection.last.weight"
        assert torch.equal(first[rows], third[rows])
        assert not torch.equal(third[rows], last[rows])
        moment = "optimizer.exp_avg.projection.last.weight"
        assert moment not in third
        assert moment in last
        assert "optimizer.exp_avg.projection.layers.0.weight" in third

        # As if the run had been killed after the third step
        assert last["learner.centre"].any()
        shutil.rmtree(tmp_path / "model")
        shutil.rmtree(tmp_path / "checkpoints" / "step-00000006")
        point_to(tmp_path, "step-00000003")
        run_recipe(recipe, tmp_path, "cpu", quiet)
        again = checkpoint(6)
        assert all(torch.equal(last[name], again[name]) for name in last)

    def test_the_teacher_begins_where_the_student_does(self, recipe, tiny, quiet, tmp_path):
        first = run_recipe(
            replace(tiny, length=Span(2), optim=replace(tiny.optim, warmup=Span(0))),
            tmp_path / "first",
            "cpu",
            quiet,
        )
        still = replace(
            recipe,
            init=str(tmp_path / "first"),
            length=Span(1),
            optim=replace(tiny.optim, lr=1e-30, warmup=Span(0)),
        )
        run_recipe(replace(still, average=0.0), tmp_path / "run", "cpu", quiet)
        state = load_file(tmp_path / "run" / "checkpoints" / "step-00000001" / "state.safetensors")
        for name, tensor in first.model.state_dict().items():
            if not name.startswith("head"):
                # a bias of exactly 0 moves by the learning rate, 1e-30
                teacher = state[f"learner.teacher.0.{name}"]
                torch.testing.assert_close(teacher, tensor, atol=1e-29, rtol=0)
