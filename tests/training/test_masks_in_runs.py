"""Runs on images with masks: the loop, its checkpoints and several ranks are those of every other run."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import encoded
from processes import together
from runs import assert_nearly_same_weights, assert_same_run

import vitkit
from vitkit.data import Augmentation, Preprocessing
from vitkit.models import create, vit
from vitkit.objectives import Segmentation, Supervised
from vitkit.recipes import Data, Facts, Optim, Recipe, recipe, resolve, with_model
from vitkit.system.errors import BadSettings
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.data import open_to_divide
from vitkit.training.footprint import count, relative_flops
from vitkit.training.record.metrics import last_metrics
from vitkit.weights import Classifier, load, over_patches, save

CONFIG = over_patches(vit("mu/16", image=(16, 16), patch=4, depth=2, classes=0, gelu="erf"))
NATIVE = Preprocessing(size=(16, 16), rule="native", patch=(4, 4))
FACTS = Facts(12, ("ground", "thing"), "mask")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    random = np.random.default_rng(0)
    for number in range(16):
        mask = np.zeros((20, 28), np.uint8)
        top, left = random.integers(0, 10, 2)
        mask[top : top + 10, left : left + 12] = 1
        pixels = np.where(mask[..., None] == 1, 200, 40) + random.normal(0, 9, (20, 28, 3))
        part = "train" if number < 12 else "test"
        for kind, content in (("photos", pixels.clip(0, 255).astype(np.uint8)), ("masks", mask)):
            file = folder / kind / part / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(content, "PNG"))
    return folder


def a_recipe(scenes, **changes) -> Recipe:
    data = Data(
        source=str(scenes / "photos"),
        masks=str(scenes / "masks"),
        preprocessing=NATIVE,
        augmentation=Augmentation(crop="scale_crop", resize=20, scales=(0.8, 1.2)),
        workers=0,
    )
    return replace(
        Recipe(
            model=CONFIG,
            data=data,
            optim=Optim(lr=3e-3),
            objective=Segmentation(rare=0.5),
            length=Span(8),
            batch=4,
            micro_batch=1,
            save_every=Span(4),
            evaluate_every=Span(8),
        ),
        **changes,
    )


@pytest.mark.slow
def test_a_run_learns_masks_and_is_saved_as_a_model_of_whole_images(scenes, tmp_path):
    classifier = run_recipe(a_recipe(scenes, length=Span(60)), tmp_path / "run", "cpu")
    assert classifier.preprocessing.is_native and classifier.labels == ("background", "object")
    measured = vitkit.evaluate(
        tmp_path / "run", scenes / "photos", masks=scenes / "masks", device="cpu"
    )
    assert measured["miou"] > 0.6
    logged = last_metrics(tmp_path / "run")["test/miou"]
    assert logged.value == pytest.approx(measured["miou"], abs=0.002)  # bfloat16 or not
    assert classifier.origin["legend"]["labels"] == ["background", "object"]
    learned = vitkit.evaluate(
        classifier, scenes / "photos", masks=scenes / "masks", split="train", device="cpu"
    )
    assert "images that the model learned from" in learned.images
    assert vitkit.report(tmp_path / "run").path.is_file()

    # Another run may begin with its head
    begun = a_recipe(scenes, init=str(tmp_path / "run"), init_head=True, length=Span(1))
    begun = replace(begun, optim=Optim(lr=1e-30))
    again = run_recipe(begun, tmp_path / "again", "cpu")
    assert torch.equal(again.model.head.weight, classifier.model.head.weight)


@pytest.mark.slow
def test_a_continued_run_is_the_same_and_ranks_share_its_work(scenes, tmp_path):
    # Adam would enlarge the rounding of gradients that are nearly 0
    asked = a_recipe(scenes, optim=Optim("sgd", lr=0.1))
    run_recipe(asked, tmp_path / "whole", "cpu")
    run_recipe(asked, tmp_path / "parts", "cpu")
    for name in ("finished.json", "model"):
        path = tmp_path / "parts" / name
        if path.is_dir():
            path.rename(tmp_path / "removed")
        else:
            path.unlink()
    last = sorted((tmp_path / "parts/checkpoints").iterdir())[-1]
    last.rename(tmp_path / "newest")
    run_recipe(asked, tmp_path / "parts", "cpu")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")

    def act():
        run_recipe(asked, tmp_path / "two", "cpu")

    assert together(2, act) == [0, 0]
    assert_nearly_same_weights(tmp_path / "whole", tmp_path / "two")


def test_a_recipe_says_what_does_not_go_together(scenes):
    whole = a_recipe(scenes)
    ready = resolve(whole, FACTS)
    assert ready.model.classes == 2 and ready.training_preprocessing.size == (16, 16)
    assert [type(each.evaluator).__name__ for each in ready.evals] == ["MeanIoU"]

    def refused(because, facts=FACTS, **changes):
        with pytest.raises(vitkit.VitkitError, match=because):
            resolve(replace(whole, **changes), facts)

    refused("`model.pool='patches'`", model=vit("mu/16", image=(16, 16), patch=4, classes=0))
    plain = replace(
        whole.data, preprocessing=Preprocessing(size=(16, 16)), augmentation=Augmentation()
    )
    classes = Facts(12, ("a", "b"))
    refused("an output for every patch", classes, objective=Supervised(), data=plain)
    refused(r"`data\.masks` names", classes, data=plain)
    refused("training needs images of one size", classes)
    refused("use the objective `Segmentation`", objective=Supervised())
    data = whole.data
    refused(
        "changes the proportions",
        data=replace(data, augmentation=Augmentation(crop="none")),
    )
    crop = replace(data.augmentation, size=(18, 16))
    refused(r"`data\.augmentation\.size=\(16, 16\)`", data=replace(data, augmentation=crop))
    square = replace(data, preprocessing=Preprocessing(size=(16, 16)), augmentation=crop)
    refused("reads images with their own proportions; this one", data=square)
    with pytest.raises(BadSettings, match=r"set `data\.masks` too"):
        Data(ignore=3)


def test_the_resources_of_a_step_are_counted():
    whole = resolve(a_recipe(Path("nowhere"), batch=2), FACTS)
    assert count(whole).image > 0 and relative_flops(whole) == pytest.approx(1, rel=0.1)


def test_segmenter_is_the_paper_s(tmp_path):
    """Strudel et al. 2021, Section 4.2."""
    base, large = recipe("segmenter.B16"), recipe("segmenter.L16")
    assert large.model.width == 1024
    optim = base.optim
    assert (optim.name, optim.lr, optim.schedule, optim.weight_decay) == (
        "sgd",
        1e-3,
        "polynomial",
        0,
    )
    assert optim.rate(0, 160_000) == 1e-3 and optim.rate(160_000, 160_000) == 1e-5
    halfway = 1e-5 + (1e-3 - 1e-5) * 0.5**0.9
    assert optim.rate(80_000, 160_000) == pytest.approx(halfway)
    assert (base.length.n, base.batch, base.model.stochastic_depth) == (160_000, 8, 0.1)
    augmentation = base.data.augmentation
    assert augmentation.scales == (0.5, 2.0) and augmentation.flip
    assert base.training_preprocessing.size == (512, 512) and base.data.preprocessing.is_native

    # With another model it still classifies pixels
    tiny = with_model(base, "Ti/16")
    assert tiny.model.segments and tiny.model.gelu == "erf" and tiny.model.width == 192
    resolve(tiny, FACTS)
    with pytest.raises(BadSettings, match="cannot classify pixels"):
        with_model(base, "BiT-R50x1")


@pytest.mark.slow  # counts the operations of a model of a hundred million parameters
def test_segmenter_can_be_planned():
    planned = vitkit.plan("segmenter.B16", quiet=True)
    assert "20,210" not in str(planned) and planned.recipe.model.classes == 150


def test_a_name_that_a_file_holds_is_not_run():
    data = Data(source="mine.py:photos", masks="masks")
    with pytest.raises(BadSettings, match="runs no code that a file names"):
        open_to_divide(data)


@pytest.mark.slow
def test_a_run_does_not_continue_on_other_masks(scenes, tmp_path):
    shutil.copytree(scenes, tmp_path / "scenes")
    asked = a_recipe(tmp_path / "scenes", length=Span(2))
    run_recipe(asked, tmp_path / "run", "cpu")
    (tmp_path / "run/finished.json").unlink()
    mask = tmp_path / "scenes/masks/train/0.png"
    mask.write_bytes(encoded(np.random.default_rng(0).integers(0, 2, (20, 28), np.uint8), "PNG"))
    with pytest.raises(vitkit.BadRun, match="the masks of .* have changed"):
        run_recipe(asked, tmp_path / "run", "cpu")


def test_the_head_of_other_classes_is_refused(scenes, tmp_path):
    model = create(replace(CONFIG, classes=2), seed=0)
    save(Classifier(model, NATIVE, ("x", "y")), tmp_path / "other")
    assert load(tmp_path / "other", quiet=True).labels == ("x", "y")
    begun = a_recipe(scenes, init=str(tmp_path / "other"), init_head=True)
    with pytest.raises(BadSettings, match="leave out `init_head`"):
        run_recipe(begun, tmp_path / "run", "cpu")
