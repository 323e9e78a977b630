"""Runs on images with several classes, a number, or nothing: what is learned, how it is measured,
what is saved."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import vitkit
from vitkit.cli.entry import main
from vitkit.objectives import MaskedAutoencoder, MaskedPatches, SelfDistillation, Supervised
from vitkit.system.span import Span
from vitkit.training import read_run, run_recipe
from vitkit.training.record.metrics import last_metrics


@pytest.fixture
def images(tmp_path):
    """images(label): 120 patches of colour with a table, whose label column is a function of red,
    green and blue."""
    colours = np.random.default_rng(0).integers(0, 256, (120, 3))

    def make(label):
        lines = []
        for i, colour in enumerate(colours.tolist()):
            Image.new("RGB", (8, 8), tuple(colour)).save(tmp_path / f"{i:03}.png")
            line = {"image": f"{i:03}.png", "split": "test" if i % 4 == 3 else "train"}
            if label is not None:
                line["label"] = label(*colour)
            lines.append(json.dumps(line))
        (tmp_path / "table.jsonl").write_text("\n".join(lines))
        return str(tmp_path / "table.jsonl")

    return make


def names(red, green, blue):
    """Several classes, one, or none."""
    levels = {"red": red, "green": green, "blue": blue}
    return [name for name, level in levels.items() if level > 127]


def on(recipe, source, objective, steps=4):
    return replace(
        recipe,
        data=replace(recipe.data, source=source, check=False),
        objective=objective,
        length=Span(steps),
        evaluate_every=Span(steps),
        batch=24,
        optim=replace(recipe.optim, warmup=Span(1)),
    )


def test_several_classes(tiny, quiet, tmp_path, images):
    source = images(names)
    recipe = on(tiny, source, Supervised("sigmoid", mixup=0.2), steps=30)
    recipe = replace(recipe, optim=replace(recipe.optim, lr=2e-2))
    model = run_recipe(recipe, tmp_path / "run", "cpu", quiet)
    assert model.labels == ("blue", "green", "red") and model.activation == "sigmoid"
    metrics = last_metrics(tmp_path / "run")
    assert read_run(tmp_path / "run").primary() == metrics["test/map"]
    assert metrics["test/map"].value > 0.9 and metrics["test/seen"].value == 30
    with pytest.raises(ValueError, match="softmax loss cannot .* several classes each: use `obj"):
        run_recipe(on(tiny, source, Supervised()), tmp_path / "other", "cpu", quiet)


def test_a_number(tiny, quiet, tmp_path, images, capsys):
    source = images(lambda red, green, blue: 1000.5 + (red - blue) / 100)
    recipe = on(tiny, source, Supervised("squared"), steps=30)
    recipe = replace(recipe, optim=replace(recipe.optim, lr=2e-2))
    model = run_recipe(recipe, tmp_path / "run", "cpu", quiet)
    assert (model.labels, model.activation) == (("value",), "none")
    metrics = last_metrics(tmp_path / "run")
    assert read_run(tmp_path / "run").primary() == metrics["test/mae"]
    assert metrics["test/mae"].value < 0.4 and metrics["test/r2"].value > 0.8
    picture = tmp_path / "000.png"
    (answer,) = vitkit.predict(vitkit.load(tmp_path / "run", quiet=True), [picture], device="cpu")
    assert answer.labels == ("value",) and 997 < answer.probabilities[0] < 1004
    whole = images(lambda red, green, blue: 1000 + round((red - blue) / 100))
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), whole, "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["mae"]["value"] < 1.2

    source = images(lambda red, green, blue: 1000.5 + (red - blue) / 100)
    for loss in ("softmax", "sigmoid"):
        with pytest.raises(ValueError, match=f"{loss} loss cannot .* number each: use `objective"):
            run_recipe(on(tiny, source, Supervised(loss)), tmp_path / "other", "cpu", quiet)


@pytest.mark.parametrize(
    "objective",
    [
        MaskedPatches(),
        MaskedAutoencoder(width=16, depth=1, heads=2),
        SelfDistillation(outputs=32, hidden=16, bottleneck=8, local_size=4, local_views=1),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_nothing(tiny, tmp_path, images, objective, capsys):
    model = run_recipe(on(tiny, images(None), objective), tmp_path / "run", "cpu")
    assert model.labels == () and (tmp_path / "run" / "pictures.safetensors").exists()
    out = capsys.readouterr().err
    distilled = isinstance(objective, SelfDistillation)
    assert ("no evaluator measures this run" in out) == distilled
    assert ("test/loss" in last_metrics(tmp_path / "run")) != distilled
    with pytest.raises(ValueError, match="softmax loss .* no labels: put those of each class"):
        run_recipe(on(tiny, images(None), Supervised()), tmp_path / "other", "cpu")


def test_of_several_classes_each_is_smoothed_alone():
    import torch

    from vitkit.models import ViTConfig, create

    model = create(ViTConfig(24, 1, 48, 2, patch=2, image=(8, 8), classes=4), seed=0)
    learner = Supervised("sigmoid", label_smoothing=0.2, off_target=0.1).learner(model)
    outputs = learner.spread(learner.as_rows(torch.tensor([[1.0, 0, 1, 0], [0, 0, 0, 0]])))
    smooth = 0.05 + 0.8 * np.array([[1, 0, 1, 0], [0, 0, 0, 0]])
    assert outputs.numpy() == pytest.approx(0.1 + 0.8 * smooth)
    assert learner.spread(learner.as_rows(torch.tensor([2]))).numpy() == pytest.approx(
        0.1 + 0.8 * np.array([[0.05, 0.05, 0.85, 0.05]])
    )


def test_balanced_classes_count_alike():
    import torch
    import torch.nn.functional as F

    from vitkit.data import Source
    from vitkit.data.sources.stores import Arrays
    from vitkit.models import ViTConfig, create

    # 6 images of one class, 3 of another, 1 of a third
    classes = np.array([0] * 6 + [1] * 3 + [2])
    store = Arrays("x", np.random.default_rng(0).integers(0, 255, (10, 8, 8), np.uint8))
    source = Source(store, np.arange(10), classes, ("a", "b", "c"))
    model = create(ViTConfig(24, 1, 48, 2, patch=2, image=(8, 8), classes=3), seed=0)
    torch.nn.init.normal_(model.head.weight)
    learner = Supervised(class_weights="balanced").learner(model)
    learner.prepare(source)
    weights = torch.tensor([10 / 18, 10 / 9, 10 / 3])
    torch.testing.assert_close(learner.weights, weights)
    assert learner.weights[torch.from_numpy(classes)].mean().item() == pytest.approx(1)

    # PyTorch's own weighted loss divides by the sum of the weights
    images = torch.randn(10, 3, 8, 8)
    loss = learner(images, torch.from_numpy(classes), None)
    expected = F.cross_entropy(model(images), torch.from_numpy(classes), weights)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("mixing", [{}, {"mixup": 0.4}, {"cutmix": 1.0}])
def test_a_class_weighs_its_own_images_and_not_what_smoothing_spreads(mixing):
    """Else the rare class gets most of what is smoothed away from the frequent one: with 110 images to 6
    a head then answers the rare class."""
    import torch
    import torch.nn.functional as F

    from vitkit.data import mix
    from vitkit.models import ViTConfig, create

    model = create(ViTConfig(24, 1, 48, 2, patch=2, image=(8, 8), classes=2), seed=0)
    torch.nn.init.normal_(model.head.weight)
    objective = Supervised(class_weights="balanced", label_smoothing=0.1, **mixing)
    learner = objective.learner(model)
    weights = torch.tensor([116 / 220, 116 / 12])
    learner.weights.copy_(weights)
    images = torch.randn(6, 3, 8, 8)
    classes = torch.tensor([0, 0, 0, 0, 0, 1])
    keys = torch.arange(6) + 2**40

    # The loss of a mixture is the mixture of the losses, each with its own class's weight
    shown, shares = mix(
        images, F.one_hot(classes, 2).float(), keys, objective.mixup, objective.cutmix
    )
    expected = 0.0
    for number in range(2):
        target = torch.full((6,), number)
        of_class = F.cross_entropy(model(shown), target, label_smoothing=0.1, reduction="none")
        expected = expected + (shares[:, number] * weights[number] * of_class).mean()
    torch.testing.assert_close(learner(images, classes, keys), expected)


def test_what_suits_no_loss_is_refused():
    for wrong, message in (
        ({"loss": "squared", "label_smoothing": 0.1}, "label_smoothing is 0.1; it is for classes"),
        ({"loss": "squared", "off_target": 0.1}, "0 for squared"),
        ({"class_weights": "even"}, "class_weights is 'even'; it is one of equal, balanced"),
        ({"loss": "sigmoid", "class_weights": "balanced"}, "which is for the softmax"),
        ({"loss": "cubed"}, "loss is 'cubed'; it is one of softmax, sigmoid, squared"),
    ):
        with pytest.raises(ValueError, match=message):
            Supervised(**wrong)
    with pytest.raises(ValueError, match="squared loss cannot .* have one class each"):
        Supervised("squared").head("class", 10)
