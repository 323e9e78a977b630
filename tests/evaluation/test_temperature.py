"""The temperature against a search by scipy; and where none is best."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar

from vitkit.evaluation.metrics.calibration import fit_temperature


def some(count=300, classes=5, seed=0, noise=1.0):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, classes, (count,), generator=generator)
    logits = F.one_hot(truth, classes) + noise * torch.randn(count, classes, generator=generator)
    return logits.double(), truth


@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_it_minimises_the_loss_with_platt_s_targets(scale, noise):
    logits, truth = some(noise=noise)
    others = logits.scatter(1, truth[:, None], -torch.inf)
    targets = F.one_hot(others.argmax(1), 5).double() / 302
    targets.scatter_(1, truth[:, None], 301 / 302)

    def loss(t):
        return F.cross_entropy(scale * logits / (scale * math.exp(t)), targets).item()

    best = scale * math.exp(minimize_scalar(loss, bounds=(-8, 8), method="bounded").x)
    assert fit_temperature(scale * logits, truth) == pytest.approx(best, rel=1e-4)
    assert fit_temperature(scale * logits, truth, start=7.0) == pytest.approx(best, rel=1e-4)


def test_the_probabilities_of_drawn_classes_are_found_again():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 4, generator=generator, dtype=torch.float64)
    truth = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    assert fit_temperature(3.5 * logits, truth) == pytest.approx(3.5, rel=0.05)


def test_a_small_set_of_many_classes_is_not_made_worse():
    """The model is calibrated already; a thousand classes that are never answered change nothing."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(100, 1000, generator=generator, dtype=torch.float64) - 8
    logits[:, :10] += 10
    truth = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    t = fit_temperature(logits, truth)
    assert t == pytest.approx(1, abs=0.1)
    assert F.cross_entropy(logits / t, truth) < F.cross_entropy(logits, truth) + 0.002


def test_answers_that_are_all_right_are_not_certain():
    truth = torch.arange(60) % 3
    logits = F.one_hot(truth, 3).double()
    probabilities = (logits / fit_temperature(logits, truth)).softmax(1)
    assert probabilities.amax(1)[0].item() == pytest.approx(61 / 62, rel=1e-6)


def test_answers_no_better_than_chance_make_all_classes_alike():
    truth = torch.arange(60) % 3
    logits = -F.one_hot(truth, 3).double()
    probabilities = (logits / fit_temperature(logits, truth)).softmax(1)
    assert torch.allclose(probabilities, torch.full_like(probabilities, 1 / 3), atol=1e-5)
    same = torch.zeros(60, 3)
    assert math.isfinite(fit_temperature(same, truth))


def test_what_has_no_temperature_is_a_sentence():
    with pytest.raises(ValueError, match="two classes or more"):
        fit_temperature(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="NaN or infinity"):
        fit_temperature(torch.tensor([[0.0, math.nan]]), torch.zeros(1, dtype=torch.int64))
