"""What a run chooses before its first step: a preprocessing for grey images or 12 channels, and an
augmentation that the classes survive."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from margins import at_least
from PIL import Image
from rich.console import Console
from runs import read_json, same, weights

from vitkit.cli.entry import main
from vitkit.data import Augmentation, Preprocessing
from vitkit.models import LeNetConfig, ViTConfig, create, named, vit
from vitkit.prediction import predict_items
from vitkit.recipes import Data, Optim, Recipe, finetune, recipe, with_model
from vitkit.system.span import Span
from vitkit.training import choices, run_recipe
from vitkit.training.record.metrics import last_metrics
from vitkit.weights import Classifier, load, save


@pytest.fixture
def fields(tmp_path):
    """Two classes of 12-channel images of 16 bits, .npy, whose third channel differs."""
    random = np.random.default_rng(4)
    for number in range(40):
        bands = random.integers(0, 4000, (16, 16, 12), dtype=np.uint16)
        bands[..., 2] += 8000 * (number % 2)
        folder = tmp_path / "fields" / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{number}.npy", bands)
    return tmp_path / "fields"


def test_twelve_channels_are_measured_trained_and_predicted(fields, tmp_path):
    model = ViTConfig(24, 1, 48, 2, 8, (16, 16), channels=12, classes=0)
    data = Data(str(fields), workers=0, preprocessing=Preprocessing((16, 16)))
    run = Recipe(
        model, data, optim=Optim(lr=3e-3, warmup=Span(2)), length=Span(30), batch=16,
        evaluate_every=Span(30), save_every=Span(30),
    )  # fmt: skip
    trained = run_recipe(run, tmp_path / "run", "cpu")

    preprocessing = read_json(tmp_path / "run" / "recipe.json")["data"]["preprocessing"]
    assert preprocessing["values"] == "float32" and len(preprocessing["mean"]) == 12
    assert preprocessing["mean"][2] > 2 * preprocessing["mean"][1]
    for classifier in (trained, load(tmp_path / "run", quiet=True)):
        paths = sorted(fields.glob("*/*.npy"))
        answers = classifier.logits(classifier.batch(paths)).argmax(1)
        right = [
            classifier.labels[k] == path.parent.name for k, path in zip(answers, paths, strict=True)
        ]
        assert np.mean(right) > 0.9

    # The same call continues by the same numbers
    assert torch.equal(
        run_recipe(run, tmp_path / "run", "cpu").model.head.weight, trained.model.head.weight
    )


def test_bands_go_the_way_of_photographs(fields, tmp_path, capsys):
    """Weights for colours, a folder of bands, and no setting that says how many there are."""
    model = create(vit("mu/8", image=16, classes=3), seed=0)
    pretrained = save(Classifier(model, Preprocessing((16, 16)), tuple("abc")), tmp_path / "model")
    words = ["finetune", str(pretrained), str(fields), "--workdir", str(tmp_path / "run")]
    short = "--length 4steps --batch 20 --precision float32 --device cpu --data.workers 0".split()
    assert main([*words, *short]) == 0
    said = capsys.readouterr()
    assert "repeated: the kernels of red, green and blue" in said.err
    assert "12 channels: float32, mean and deviation measured" in said.err
    classifier = load(tmp_path / "run", quiet=True)
    assert classifier.model.config.channels == 12 and classifier.preprocessing.values == "float32"
    path = str(next(fields.glob("*/*.npy")))
    assert main(["predict", str(tmp_path / "run"), path, "--device", "cpu"]) == 0

    # From Python, as an array or a tensor, the same
    array = np.load(path)
    floats = torch.from_numpy(array.astype(np.float32) / 65535).permute(2, 0, 1)
    (expected,) = predict_items(classifier, path, device="cpu")
    for images in (array, floats):
        (given,) = predict_items(classifier, images, device="cpu")
        assert given.labels == expected.labels
        assert given.probabilities == pytest.approx(expected.probabilities, abs=1e-5)


@pytest.mark.slow
def test_lenet_trains_on_grey_digits(tmp_path):
    digits = with_model(recipe("digits"), "LeNet-5")
    assert isinstance(digits.model, LeNetConfig) and digits.model.channels == 1
    short = replace(digits, length=Span(60), evaluate_every=Span(60), optim=Optim(lr=3e-3))
    short = replace(short, save_every=Span(60), data=replace(digits.data, workers=0))
    trained = run_recipe(short, tmp_path / "run", "cpu")
    assert trained.preprocessing.mean == (0.5,) and trained.model.config.channels == 1
    at_least(last_metrics(tmp_path / "run")["test/top1"].value, 0.5)


SIDE = 48  # in patches of 4 too many for the question, which is asked at 32


@pytest.fixture
def discs(tmp_path):
    """A fine-tuning of four steps on 100 discs, whose class is the half that they are in."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for i in range(100):
        right = i % 2
        x = random.uniform(9, 18) + 21 * right
        inside = (columns - x) ** 2 + (rows - random.uniform(15, 33)) ** 2 < 50
        pixels = random.integers(0, 40, (SIDE, SIDE, 3)) + 180 * inside[..., None]
        path = tmp_path / "discs" / ("left", "right")[right] / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    config = vit("mu/4", image=(SIDE, SIDE), classes=2, depth=2, width=48)
    published = Classifier(create(config), Preprocessing((SIDE, SIDE)), ("a", "b"))
    save(published, tmp_path / "weights")
    whole = finetune(str(tmp_path / "weights"), str(tmp_path / "discs"))
    return replace(
        whole,
        data=replace(whole.data, workers=0),
        optim=replace(whole.optim, warmup=Span(1)),
        length=Span(4),
        save_every=Span(2),
        evaluate_every=Span(4),
        precision="float32",
    )


@pytest.mark.slow
def test_what_the_classes_do_not_survive_is_off_and_stays_off(discs, tmp_path, monkeypatch):
    assert discs.data.augmentation == Augmentation(auto=True)
    console = Console(record=True, width=1000, file=io.StringIO())
    run_recipe(discs, tmp_path / "run", "cpu", console)
    said = console.export_text()
    assert "switched off, because it does not preserve the classes: mirrored images" in said
    ran = read_json(tmp_path / "run" / "recipe.json")["data"]["augmentation"]
    assert (ran["flip"], ran["auto"]) == (False, False)
    assert (ran["crop"], ran["resize"]) in (("resize_crop", 60), ("none", 0))

    # What ran is a recipe that gives the same weights
    kept = Augmentation(**ran)
    decided = replace(discs, data=replace(discs.data, augmentation=kept))
    run_recipe(decided, tmp_path / "same", "cpu", Console(quiet=True))
    assert same(weights(tmp_path / "run"), weights(tmp_path / "same"))

    # The same command again does not ask again
    monkeypatch.setattr("vitkit.training.choices.surviving", None)
    assert run_recipe(discs, tmp_path / "run", "cpu", Console(quiet=True)).origin["steps"] == 4


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("S/16", (224, 224), (128, 128)),
        ("S/16", (448, 112), (256, 64)),
        ("S/16", (96, 96), (96, 96)),  # fewer already
        ("R50x1", (224, 224), (224, 224)),  # no tokens
    ],
)
def test_a_pretrained_model_is_asked_at_64_tokens(name, image, expected):
    assert choices._small(named(name, image=image)) == expected


def test_from_scratch_the_pixels_are_asked(discs, tmp_path, monkeypatch):
    scratch = replace(discs, init="")
    console = Console(record=True, width=1000, file=io.StringIO())
    run_recipe(scratch, tmp_path / "run", "cpu", console)
    said = console.export_text()
    assert "switched off, because it does not preserve the classes: mirrored images" in said
    ran = read_json(tmp_path / "run" / "recipe.json")["data"]["augmentation"]
    assert (ran["flip"], ran["auto"]) == (False, False)
    monkeypatch.setattr("vitkit.training.choices.surviving_in_pixels", None)
    assert run_recipe(scratch, tmp_path / "run", "cpu", Console(quiet=True)).origin["steps"] == 4
