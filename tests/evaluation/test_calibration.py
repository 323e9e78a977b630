"""The temperature: against a search by scipy, what it does to a model, within the weights of every kind of
head, in every format."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from tables import answered

from vitkit.data import Preprocessing
from vitkit.evaluation import fit_temperature
from vitkit.evaluation.metrics.calibration import calibrate
from vitkit.models import Backbone, LeNetConfig, ResNetConfig, create, vit
from vitkit.weights import Classifier, adopt, load, save, with_temperature
from vitkit.weights.proof import convert_weights


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


def drawn(count=2000, classes=6, scale=3.0):
    """Logits that are `scale` times as large as honest ones."""
    random = np.random.default_rng(0)
    honest = random.normal(0, 1.5, (count, classes))
    probabilities = np.exp(log_softmax(honest, axis=1))
    targets = [random.choice(classes, p=row) for row in probabilities]
    return torch.from_numpy(scale * honest).float(), np.array(targets)


def test_a_temperature_undoes_exaggeration():
    logits, targets = drawn()
    found = calibrate(answered(logits, targets, keep_logits=True))
    assert found.temperature == pytest.approx(3, rel=0.05)
    assert found.error_after < 0.04 < 0.15 < found.error_before
    assert found.loss_after < found.loss_before
    assert sum(each.images for each in found.bins_after) == 2000
    assert {metric.name: metric.value for metric in found.metrics()} == {
        "temperature": found.temperature,
        "calibrated/calibration_error": found.error_after,
        "calibrated/loss": found.loss_after,
    }


def test_answers_no_better_than_chance_have_no_temperature():
    with pytest.raises(ValueError, match="of 4 images 0 are right, which is no better than chance"):
        calibrate(answered(-5 * torch.eye(4), range(4), keep_logits=True))
    with pytest.raises(ValueError, match="not finite"):
        calibrate(answered(math.nan * torch.eye(4), range(4), keep_logits=True))


VIT = vit("mu/16", image=(32, 32), classes=4)
RESNET = ResNetConfig(Backbone((1, 1), 0.5), (32, 32), classes=4)
KINDS = {
    "vit": VIT,
    "distilled": replace(VIT, pool="distilled", registers=1),
    "resnet": RESNET,
    "lenet": LeNetConfig(channels=3, classes=4),
}


def classifier(config):
    model = create(config, seed=0)
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    return Classifier(model, Preprocessing(size=(32, 32)), ("a", "b", "c", "d"))


def images():
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 256, (4, 3, 32, 32), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_every_kind_of_model_are_divided(kind, tmp_path):
    cold = classifier(KINDS[kind])
    warm = with_temperature(cold, 1.7)
    expected = cold.logits(images()) / 1.7
    torch.testing.assert_close(warm.logits(images()), expected, rtol=1e-5, atol=1e-6)
    again = load(save(warm, tmp_path / "model"), quiet=True)
    assert torch.equal(again.logits(images()), warm.logits(images()))
    assert again.origin["temperature"] == 1.7
    assert with_temperature(again, 2).origin["temperature"] == pytest.approx(3.4)


def test_metrics_of_other_probabilities_do_not_stay_on_the_card():
    metrics = {"test/top1": "95 %", "test/calibration_error": "5 %", "loss": "0.1"}
    measured = replace(classifier(VIT), origin={"metrics": metrics})
    assert with_temperature(measured, 1.7).origin["metrics"] == {"test/top1": "95 %"}
    assert measured.origin["metrics"] == metrics


FILES = {"timm": "model.safetensors", "google": "model.npz", "torchvision": "model.pth"}
FORMATS = [pytest.param("huggingface", marks=pytest.mark.slow), *FILES]  # Transformers: an import


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_and_its_library_keep_the_probabilities(to, tmp_path):
    gelu = "tanh" if to == "google" else "erf"
    warm = with_temperature(classifier(replace(VIT, gelu=gelu)), 0.6)
    proof = convert_weights(warm, tmp_path / FILES.get(to, "model"), to)
    if to != "google":  # there is no library to compare with
        assert proof.largest < 1e-5 * max(proof.scale, 1)
    again = load(proof.path, quiet=True)
    assert torch.equal(again.logits(images()), warm.logits(images()))
    assert again.origin["temperature"] == 0.6


@pytest.mark.parametrize("temperature", [0, -1, math.nan, math.inf])
def test_only_positive_numbers_are_temperatures(temperature):
    with pytest.raises(ValueError, match="it is a positive number"):
        with_temperature(classifier(VIT), temperature)


def test_a_model_without_a_head_has_no_temperature():
    headless = Classifier(create(replace(VIT, classes=0), seed=0), Preprocessing((32, 32)), ())
    zeros, _ = adopt(classifier(VIT), labels=("a", "b"))
    for one, why in ((headless, "no classification head"), (zeros, "head is all zeros")):
        with pytest.raises(ValueError, match=f"{why}.*no logits to divide by a temperature"):
            with_temperature(one, 2.0)
