"""Photographs that are not square: whether the solved head reads them whole."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from margins import at_least
from PIL import Image

import vitkit
from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.finetuning import CLOSED_FORM
from vitkit.finetuning.candidates import FINE_TUNED
from vitkit.finetuning.from_folder import answer
from vitkit.finetuning.plan import RunInputs, read_plan
from vitkit.models import create, vit
from vitkit.recipes import finetune
from vitkit.system.span import Span
from vitkit.weights import Classifier, Hints, save

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Weights that nobody has trained, with a crop."""
    config = vit("mu/16", image=(16, 16), patch=4, classes=2, depth=2)
    preprocessing = Preprocessing(size=(16, 16), rule="shorter")
    classifier = Classifier(create(config, seed=0), preprocessing, ("a", "b"))
    return str(save(classifier, tmp_path_factory.mktemp("weights") / "model"))


def photographs(folder, size, spot):
    """Noise of (height, width) with a bright spot, by its class at a share of the longer side."""
    random = np.random.default_rng(0)
    for number in range(60):
        pixels = random.integers(0, 60, (*size, 3), dtype=np.uint8)
        longest = int(np.argmax(size))
        start = round(spot[number % 2] * size[longest])
        place = [slice(None), slice(None)]
        place[longest] = slice(start, start + 6)
        pixels[tuple(place)] += 180
        into = folder / ("left", "right")[number % 2]
        into.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(into / f"{number}.png")
    return str(folder)


def stripes(folder):
    """Fine stripes, down or across by their class, of which less is left the smaller a photograph is made."""
    random = np.random.default_rng(0)
    for number in range(60):
        pixels = random.integers(0, 120, (20, 60, 3), dtype=np.uint8)
        light = [slice(random.integers(3), None, 3), slice(None)]
        pixels[tuple(light[:: 1 - 2 * (number % 2)])] += 90
        into = folder / ("across", "down")[number % 2]
        into.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(into / f"{number}.png")
    return str(folder)


def made(weights, data, run_dir, hints=None, **settings):
    """The answer, its recipe being quick's with a fine-tuning of four steps; and what was said."""
    recipe = finetune(weights, data, "quick", hints)
    length = Span(4, "steps")
    data = replace(recipe.data, workers=0)
    recipe = replace(recipe, data=data, length=length, precision="float32")
    said = []
    reached = answer(recipe, run_dir, 1, CPU, said.append, keep_size=True, **settings)
    return reached, " ".join(said)


@pytest.mark.slow
def test_they_are_read_whole_where_the_crop_cuts_the_class_off(weights, tmp_path):
    data = photographs(tmp_path / "wide", (20, 60), spot=(0.02, 0.88))
    reached, said = made(weights, data, tmp_path / "run")
    solved = reached.candidates[0]
    assert solved.classifier.preprocessing.is_native
    at_least(reached.left_out.value, 0.9)
    assert (
        "about 48 of 48 images are not square, so they are read whole" in said
        and "`crop='centre'`" in said
    )
    assert not reached.candidates[1].classifier.preprocessing.is_native  # trained on one size
    assert read_plan(tmp_path / "run").native is True

    # It is saved and answers as any other, and the same call goes on as it was decided
    run = vitkit.load(tmp_path / "run", quiet=True)
    assert run.preprocessing == solved.classifier.preprocessing
    file = next((tmp_path / "wide" / "left").iterdir())
    assert vitkit.predict(run, file)[0].labels[0] == "left"
    again, said = made(weights, data, tmp_path / "run")
    assert again.left_out == reached.left_out and "not square" not in said


@pytest.mark.parametrize("name", [CLOSED_FORM, FINE_TUNED])
@pytest.mark.slow
def test_the_record_says_what_the_chosen_model_reads(name, weights, tmp_path, monkeypatch):
    """The solved head whole images, and the fine-tuned model, which reads images of one size, the crop."""
    data = photographs(tmp_path / "wide", (20, 60), spot=(0.02, 0.88))

    def chosen(tried, *_):  # whichever is better
        return next(each for each in tried if each.name == name)

    monkeypatch.setattr("vitkit.finetuning.from_folder.best", chosen)
    reached, _ = made(weights, data, tmp_path / "run")
    assert reached.chosen == name
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    read = vitkit.load(tmp_path / "run", quiet=True).preprocessing
    assert Preprocessing.from_json(recipe["data"]["preprocessing"]) == read
    assert read.is_native == (name == CLOSED_FORM)


@pytest.mark.slow
def test_a_head_on_naflex_opens_in_transformers_and_is_said_to(tmp_path, monkeypatch, capsys):
    """The solved one, of whole images."""
    config = vit("mu/16", image=(16, 16), patch=4, classes=2, depth=2, pool="gap")
    preprocessing = Preprocessing((16, 16), "naflex", patch=(4, 4))
    model = create(replace(config, class_token=False, resample="siglip2"), seed=0)
    weights = save(Classifier(model, preprocessing, ("a", "b")), tmp_path / "weights")
    data = photographs(tmp_path / "wide", (20, 60), spot=(0.02, 0.88))
    monkeypatch.setattr("vitkit.finetuning.from_folder.best", lambda tried, *_: tried[0])
    words = ["finetune", str(weights), data, "--portable", "--workdir", str(tmp_path / "run")]
    short = "--length 1steps --precision float32 --device cpu --data.workers 0".split()
    assert main([*words, *short]) == 0
    assert "Transformers opens it too: its README.md says how" in capsys.readouterr().out
    written = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert written["architectures"] == ["Siglip2ForImageClassification"]
    assert vitkit.load(tmp_path / "run", quiet=True).preprocessing == preprocessing


@pytest.mark.slow
def test_they_stay_cropped_where_whole_images_are_no_better(weights, tmp_path):
    reached, said = made(weights, stripes(tmp_path / "wide"), tmp_path / "run")
    assert reached.candidates[0].classifier.preprocessing.rule == "shorter"
    assert "stay with the centre cut out (`crop=" in said
    assert read_plan(tmp_path / "run").native is False


@pytest.mark.parametrize("settings", [{"portable": True}, {"native": False}])
@pytest.mark.slow
def test_nothing_is_tried_that_somebody_has_ruled_out(weights, settings, tmp_path):
    data = photographs(tmp_path / "wide", (20, 60), spot=(0.02, 0.88))
    reached, said = made(weights, data, tmp_path / "run", **settings)
    assert reached.candidates[0].classifier.preprocessing.rule == "shorter"
    assert "not square" not in said


@pytest.mark.slow
def test_square_photographs_cost_no_second_pass(weights, tmp_path):
    data = photographs(tmp_path / "square", (40, 40), spot=(0.02, 0.85))
    _, said = made(weights, data, tmp_path / "run")
    assert "not square" not in said
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["native"] is False


@pytest.mark.slow
def test_whoever_asks_gets_whole_images_and_more_patches(weights, tmp_path):
    data = photographs(tmp_path / "wide", (20, 60), spot=(0.02, 0.88))
    reached, _ = made(weights, data, tmp_path / "run", Hints(tokens=36))
    solved = reached.candidates[0].classifier
    assert solved.preprocessing.patches == 36 and solved.model.config.image == (16, 16)
    at_least(reached.left_out.value, 0.9)
    assert reached.candidates[1].classifier.preprocessing.size == (16, 16)


@pytest.mark.slow
def test_what_there_was_no_time_for_is_not_decided_when_the_run_has_ended(
    weights, tmp_path, monkeypatch
):
    data = photographs(tmp_path / "wide", (20, 60), spot=(0.02, 0.88))
    with monkeypatch.context() as patch:
        patch.setattr(RunInputs, "spent", lambda work: 31.0)  # of a minute, in seconds
        made(weights, data, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["native"] is False
    files = {path: path.read_bytes() for path in (tmp_path / "run" / "model").iterdir()}
    _, said = made(weights, data, tmp_path / "run")
    assert "not square" not in said
    assert files == {path: path.read_bytes() for path in (tmp_path / "run" / "model").iterdir()}
