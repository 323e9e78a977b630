"""A model of every pixel in closed form: equal to slow computations, better than a guess, and measured on images
that had no part in it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import encoded

import vitkit
from vitkit import cli
from vitkit.data import IGNORED, Columns, Preprocessing
from vitkit.finetuning.segmentation.closed_form import (
    DECAY,
    FINER,
    Example,
    Reading,
    Sums,
    Tried,
    blocks_to_try,
    calibrated,
    columns_of,
    counts_of,
    cross_validated,
    folds_of,
    logistic,
    predicted,
    sample,
    shares_of,
    solved,
    with_one,
)
from vitkit.finetuning.segmentation.request import MaskRequest, plan, read_parts
from vitkit.models import create, vit
from vitkit.system.errors import BadData, BadSettings
from vitkit.weights import Classifier, save

WIDTH = 6
CLASSES = 3


@pytest.fixture(scope="module")
def fitted():
    """Features of eight images that tell the class of a patch with some noise, their sums and folds."""
    random = np.random.default_rng(0)
    mean = torch.from_numpy(random.normal(size=(CLASSES, 2 * WIDTH))).float()
    examples = []
    folds = np.arange(8) % 4
    sums = Sums(2 * WIDTH, CLASSES, 4)
    weighted = []
    for fold in folds.tolist():
        coarse = random.integers(0, CLASSES, (3, 5)).astype(np.uint8)
        mask = coarse.repeat(2 * FINER, 0).repeat(2 * FINER, 1)[: FINER * 5, : FINER * 9]
        mask = np.where(random.random(mask.shape) < 0.1, IGNORED, mask).astype(np.uint8)
        grid = (5, 9)
        shares, known = shares_of(mask, grid, CLASSES)
        noise = torch.from_numpy(random.normal(size=(45, 2 * WIDTH))).float()
        features = (shares @ mean + 0.5 * noise).half()
        sums.add(fold, features, shares, known)
        examples.append(Example(features, grid, mask))
        weighted.append((fold, features, shares, known))
    return examples, sums, folds, weighted


def test_shares_are_those_of_a_slow_count():
    random = np.random.default_rng(0)
    mask = random.choice([0, 1, 2, IGNORED], (8, 12)).astype(np.uint8)
    mask[:4, :4] = IGNORED
    shares, known = shares_of(mask, (2, 3), CLASSES)
    for row in range(2):
        for column in range(3):
            part = mask[4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            counted = part[part != IGNORED]
            number = 3 * row + column
            assert known[number].item() == pytest.approx(len(counted) / 16)
            for k in range(CLASSES):
                expected = (counted == k).sum() / max(len(counted), 1)
                assert shares[number, k].item() == pytest.approx(expected)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("without", [(), (2,), (0, 2)])
def test_a_head_is_ridge_regression_on_the_images_of_the_other_folds(fitted, blocks, without):
    _, sums, _, weighted = fitted
    kept = [each[1:] for each in weighted if each[0] not in without]
    x = torch.cat(
        [with_one(features)[:, -1 - blocks * WIDTH :] for features, _, _ in kept]
    ).double()
    y = torch.cat([shares for _, shares, _ in kept]).double()
    w = torch.cat([known for _, _, known in kept]).double()[:, None]
    l2 = 0.03 * ((w * x).mT @ x).diagonal()[:-1].mean() * torch.eye(x.shape[1], dtype=torch.float64)
    l2[-1, -1] = 1e-9
    expected = torch.linalg.solve((w * x).mT @ x + l2, (w * x).mT @ y)
    found = solved(*sums.without(without, columns_of(blocks, WIDTH)), 0.03)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_cross_validated_predictions_do_not_depend_on_the_image(fitted):
    """Other masks of a fold's images leave the predictions for these images as they are."""
    examples, sums, folds, weighted = fitted
    tried = cross_validated(sums, examples, folds, WIDTH, 2)
    best = max(tried, key=lambda each: each.miou)
    others = Sums(2 * WIDTH, CLASSES, 4)
    for fold, features, shares, known in weighted:
        own = shares.roll(1, 1) if fold == 1 else shares
        others.add(fold, features, own, known)
    again = solved(*others.without([1], columns_of(best.reading.blocks, WIDTH)), best.reading.l2)
    for number in np.flatnonzero(folds == 1).tolist():
        expected = predicted(examples[number], again).half()
        torch.testing.assert_close(best.maps[number], expected, rtol=1e-2, atol=1e-3)
    assert [bool(each.maps) for each in tried].count(True) == 1
    assert best.miou > 0.5 and {each.reading.blocks for each in tried} == {1, 2}


def test_a_map_to_logits_is_logistic_regression():
    """At its weights, the loss of the weighted pixels has no slope."""
    random = np.random.default_rng(0)
    y = torch.from_numpy(random.integers(0, CLASSES, 600))
    x = (
        torch.eye(CLASSES)[y] * 0.4
        + torch.from_numpy(random.normal(0, 0.3, (600, CLASSES))).float()
    )
    class_weights = torch.tensor([1.0, 2.0, 0.5])
    found = logistic(x, y, class_weights)
    weight = found.weight.clone().requires_grad_()
    bias = found.bias.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x @ weight + bias, y, weight=class_weights)
    (loss + DECAY * weight.square().mean()).backward()
    assert weight.grad.abs().max() < 1e-3 and bias.grad.abs().max() < 1e-3
    assert loss < 0.8 * np.log(CLASSES)


def test_a_rare_class_is_found_again():
    """Its share is predicted low everywhere, below that of the frequent class; the map to logits mends it."""
    random = np.random.default_rng(0)
    examples = []
    maps = []
    for _ in range(4):
        mask = (random.random((FINER * 4, FINER * 4)) < 0.1).astype(np.uint8)
        low = torch.from_numpy(np.where(mask == 1, 0.4, 0.05)).float()
        low = low + 0.02 * torch.from_numpy(random.normal(size=mask.shape)).float()
        examples.append(Example(torch.zeros(16, 1).half(), (4, 4), mask))
        maps.append(torch.stack([1 - low, low]).half())
    counts = [
        counts_of(e.mask, m.argmax(0).byte().numpy(), 2)
        for e, m in zip(examples, maps, strict=True)
    ]
    raw = Tried(Reading(1, 0.1), np.stack(counts), maps)
    to_logits, mended = calibrated(raw, examples, 2)
    assert raw.miou < 0.5 < 0.95 < mended.miou
    again = to_logits.maps(maps[0]).argmax(0).numpy()
    assert (again == examples[0].mask).mean() > 0.95


def test_groups_are_never_on_both_sides():
    groups = np.array([3, 3, 7, 8, 9, 9, 9, 11, 12, 13])
    folds = folds_of(10, groups)
    for group in np.unique(groups):
        assert len(np.unique(folds[groups == group])) == 1
    assert set(folds_of(12, None)) == set(range(5)) and set(folds_of(2, None)) == {0, 1}


def test_wide_models_have_heads_on_fewer_blocks():
    assert blocks_to_try(192, 12) == [4, 12]
    assert blocks_to_try(768, 12) == [1, 4]
    assert blocks_to_try(1024, 24) == [1, 3]
    assert blocks_to_try(4096, 40) == [1]


def test_patches_are_drawn_once_each():
    drawn = sample(100, 30, 7)
    assert len(drawn) == 30 == len(drawn.unique()) and torch.equal(drawn, drawn.sort().values)
    assert torch.equal(sample(10, 30, 7), torch.arange(10)) and not torch.equal(
        drawn, sample(100, 30, 8)
    )


# The command


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    config = vit("mu/16", image=(16, 16), patch=4, depth=3, classes=2)
    classifier = Classifier(create(config, seed=0), Preprocessing(size=(16, 16)), ("a", "b"))
    return str(save(classifier, tmp_path_factory.mktemp("weights") / "pretrained"))


COLOURS = np.array([[200, 60, 60], [60, 60, 200], [60, 200, 60]])


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Photographs of rectangles in three colours, with noise, and masks that say which."""
    folder = tmp_path_factory.mktemp("scenes")
    random = np.random.default_rng(0)
    for number in range(16):
        height, width = 40 + 4 * (number % 3), 60
        mask = np.zeros((height, width), np.uint8)
        for k in (1, 2):
            top, left = random.integers(0, height - 20), random.integers(0, width - 24)
            mask[top : top + 18, left : left + 22] = k
        pixels = np.clip(COLOURS[mask] + random.normal(0, 20, (height, width, 3)), 0, 255)
        part = "train" if number < 11 else "test"
        for kind, content in (("photos", pixels.astype(np.uint8)), ("masks", mask)):
            file = folder / kind / part / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(content, "PNG"))
    (folder / "legend.txt").write_text("ground\nred\nblue\n")
    return folder


@pytest.mark.slow
def test_a_model_of_masks_is_made_saved_and_measured(pretrained, scenes, tmp_path):
    made = vitkit.finetune(
        pretrained, scenes / "photos", masks=scenes / "masks", legend=scenes / "legend.txt",
        workdir=tmp_path / "run", tokens=300, device="cpu", minutes=0,
    )  # fmt: skip
    assert made.metric.name == "miou" and made.accuracy > 0.75
    assert made.classifier.labels == ("ground", "red", "blue")
    written = json.loads((tmp_path / "run/masks.json").read_text())
    assert written["metrics"]["miou"]["value"] == made.accuracy and written["measured_on"] == "test"
    assert "things smaller than a patch are lost" in str(made)
    page = made.path.read_text()
    assert page.count("<figure") == 5 and "Images with the lowest IoU" in page
    assert made.metric.unit.text(made.accuracy) in page

    # Measured again, it is the same, without the legend, which the model has
    again = vitkit.evaluate(
        tmp_path / "run", scenes / "photos", masks=scenes / "masks", device="cpu"
    )
    assert again["miou"] == pytest.approx(made.accuracy, abs=0.002)  # bfloat16 or not
    alone = vitkit.evaluate(made, scenes / "photos/test", masks=scenes / "masks/test", device="cpu")
    assert alone["miou"] == again["miou"]
    learned = vitkit.evaluate(made, scenes / "photos", masks=scenes / "masks", split="train")
    assert "learned from" in learned.images

    # Cross-validated predictions promise what it has on new images
    left_out = written["left_out"]["value"]
    assert abs(left_out - made.accuracy) < 0.1
    second = vitkit.finetune(
        pretrained, scenes / "photos", masks=scenes / "masks", legend=scenes / "legend.txt",
        workdir=tmp_path / "run", tokens=300, device="cpu", minutes=0,
    )  # fmt: skip
    assert second.accuracy == made.accuracy  # the same images, the same model
    with pytest.raises(vitkit.BadRun, match="another run"):
        vitkit.finetune(
            pretrained,
            scenes / "photos/train",
            masks=scenes / "masks/train",
            workdir=tmp_path / "run",
        )


def test_settings_of_other_models_are_refused(pretrained, scenes):
    for settings in (
        {"portable": True},
        {"preset": "cifar10"},
        {"optim__lr": 0.1},
        {"crop": "centre"},
    ):
        name = next(iter(settings))
        with pytest.raises(BadSettings, match=f"`{name}` cannot be given with `masks`"):
            vitkit.finetune(pretrained, scenes / "photos", masks=scenes / "masks", **settings)
    with pytest.raises(BadSettings, match="give these with `masks`"):
        vitkit.finetune(pretrained, scenes / "photos", ignore=3)


def test_the_command_line_has_the_settings_of_masks_and_not_those_of_recipes(
    pretrained, scenes, capsys
):
    words = ["finetune", pretrained, str(scenes / "photos"), "--masks", str(scenes / "masks")]
    assert cli.main([*words, "--portable"]) == 1
    assert "--portable cannot be given with --masks" in capsys.readouterr().err
    assert cli.main([*words, "--legend", str(scenes / "nothing.txt")]) == 1
    assert "nothing.txt cannot be read" in capsys.readouterr().err
    assert cli.main([*words, "--optim.lr", "0.1"]) == 2
    assert "has no --optim.lr" in capsys.readouterr().err


def test_images_of_a_list_are_left_out(scenes, tmp_path):
    request = MaskRequest(
        "", str(scenes / "photos"), str(scenes / "masks"), None, None, Columns(), 300
    )
    every = read_parts(request).parts
    names = [every["train"].images.name(i) for i in range(len(every["train"]))]
    listed = tmp_path / "list.txt"
    listed.write_text(f"{names[2]}\twrong\n{names[7]}\n")
    found = read_parts(replace(request, exclude=str(listed)))
    train = found.parts["train"]
    left = [i for i in range(len(names)) if i not in (2, 7)]
    assert [train.images.name(i) for i in range(len(train))] == [names[i] for i in left]
    for number, i in enumerate(left):
        assert np.array_equal(train.mask(number), every["train"].mask(i))
    assert len(found.parts["test"]) == len(every["test"])
    assert f"2 training images that {listed} lists are left out" in found.notes
    assert plan(request, every) != plan(replace(request, exclude=str(listed)), found.parts)
    listed.write_text("nothing.png\n")
    with pytest.raises(BadData, match=r"lists 1 images that are not in the training part"):
        read_parts(replace(request, exclude=str(listed)))


def test_the_command_has_a_list_of_images_to_leave_out(pretrained, scenes, tmp_path, capsys):
    listed = tmp_path / "list.txt"
    listed.write_text("nothing.png\n")
    words = ["finetune", pretrained, str(scenes / "photos"), "--masks", str(scenes / "masks")]
    words += ["--data.exclude", str(listed), "--workdir", str(tmp_path / "run")]
    assert cli.main(words) == 1
    assert "list.txt lists 1 images that are not in the training part" in capsys.readouterr().err


def test_images_that_nothing_can_be_learned_from_are_refused(pretrained, scenes, tmp_path):
    for kind in ("photos", "masks"):
        (tmp_path / kind).mkdir()
        for number in range(3):
            content = (scenes / f"{kind}/train/{number}.png").read_bytes()
            (tmp_path / kind / f"{number}.png").write_bytes(content)

    def make(**settings):
        vitkit.finetune(
            pretrained, tmp_path / "photos", masks=tmp_path / "masks", workdir=tmp_path / "run",
            tokens=100, **settings,
        )  # fmt: skip

    (tmp_path / "legend.txt").write_text("ground\nred\n")
    with pytest.raises(BadData, match=r"masks/\d\.png has the value 2 in .*`ignore=2`"):
        make(legend=tmp_path / "legend.txt")
    (tmp_path / "legend.txt").write_text("thing, 0-2\nother, 3\n")
    with pytest.raises(BadData, match="have 1 class"):
        make(legend=tmp_path / "legend.txt")
    for number in range(3):
        mask = 255 * (np.arange(40 + 4 * number) % 2)[:, None].repeat(60, 1).astype(np.uint8)
        (tmp_path / f"masks/{number}.png").write_bytes(encoded(mask, "PNG"))
    (tmp_path / "legend.txt").write_text("ground\nred\n")
    with pytest.raises(BadData, match=r"have 1 class \(ground\).*255 are ignored unless `legend`"):
        make(legend=tmp_path / "legend.txt")
    for number in range(3):
        (tmp_path / f"masks/{number}.png").write_bytes(encoded(np.zeros((9, 9), np.uint8), "PNG"))
    with pytest.raises(BadData, match="all masks have one value, 0"):
        make()
    (tmp_path / "legend.txt").write_text("ground\nred\n")
    with pytest.raises(BadData, match="is 9 x 9 pixels, and its image"):
        make(legend=tmp_path / "legend.txt")
    assert not (tmp_path / "run/model").exists()


class Killed(BaseException):
    """Ends a command as a signal does."""


@pytest.mark.slow
def test_a_killed_command_begins_again_and_a_broken_test_image_is_left_out(
    pretrained, scenes, tmp_path, monkeypatch, capsys
):
    for kind in ("photos", "masks"):
        shutil.copytree(scenes / kind, tmp_path / kind)
    broken = tmp_path / "photos/test/12.png"
    broken.write_bytes(broken.read_bytes()[:200])

    def make(**settings):
        return vitkit.finetune(
            pretrained, tmp_path / "photos", masks=tmp_path / "masks", workdir=tmp_path / "run",
            tokens=60, device="cpu", **settings,
        )  # fmt: skip

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("vitkit.finetuning.segmentation.run._measured", killed)
        with pytest.raises(Killed):
            make(minutes=0)
    assert (tmp_path / "run/model").is_dir()
    made = make(minutes=0)
    assert len(made.masks.scores) == 4 and made.path.is_file()
    said = capsys.readouterr().err
    assert "left out: " in said and "test/12.png" in said
    assert made.masks.chosen == "closed form" and not made.masks.held_out
