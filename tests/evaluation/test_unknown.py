"""Limits for unknown images: against fits without each image, their shares on new images, and in a
saved model."""

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from margins import at_least, at_most
from tables import saved

from vitkit.cli.entry import main
from vitkit.data import Preprocessing, open_parts, subset
from vitkit.evaluation import compute_features, fit_probe, fit_unknown, last_token
from vitkit.evaluation.probes.unknown import fit_limits, left_out_distances, whitened_classes
from vitkit.models import create, vit
from vitkit.prediction import Prediction
from vitkit.prediction.functions.terminal import AnswerTable
from vitkit.weights import Classifier, Unknown, adopt, fitted_to, load, save, with_temperature
from vitkit.weights.files.directory import UNKNOWN


def clusters(count, seed, width=12, classes=4):
    """Images of some classes, and of one more that is far from all."""
    random = np.random.default_rng(seed)
    y = np.arange(count) % classes
    centres = 1.5 * np.random.default_rng(0).normal(size=(classes + 1, width))
    noise = random.normal(size=(count, width)) * np.linspace(0.5, 2, width)
    other = 4 * centres[-1] + random.normal(size=(count, width))
    return (centres[y] + noise).astype(np.float32), y, other.astype(np.float32)


def limits(x, y):
    fitted = fit_probe("linear", x, y, 4)
    return fit_unknown(torch.tensor(x), torch.tensor(y), fitted.left_out), fitted


@pytest.mark.parametrize("count", [41, 9])
@pytest.mark.parametrize("size", [1, 3])
def test_distances_are_those_of_a_fit_without_the_image_s_group(count, size):
    x, y, _ = clusters(count, 1)
    x, classes = torch.tensor(x).double(), torch.tensor(y)
    groups = np.arange(count) // (4 * size)  # of each class
    means, whitening, centre = whitened_classes(x, classes, 4)
    found = left_out_distances((x - centre) @ whitening, means, classes, groups)
    inverse = whitening @ whitening.mT
    centred = x - torch.stack([x[classes == k].mean(0) for k in range(4)])[classes]
    regularisation = torch.linalg.inv(inverse) - centred.mT @ centred
    for i in range(0, count, 3):
        gone = (classes == classes[i]) & torch.from_numpy(groups == groups[i])
        others = [k for k in range(4) if (classes[~gone] == k).any()]
        of_class = {k: x[~gone & (classes == k)].mean(0) for k in others}
        rows = torch.stack([x[j] - of_class[int(classes[j])] for j in torch.where(~gone)[0]])
        scatter = rows.mT @ rows + regularisation
        for k in range(4):
            if k not in others:
                assert k == y[i] and found[i, k] == math.inf
                continue
            away = x[i] - of_class[k]
            distance = away @ torch.linalg.solve(scatter, away)
            torch.testing.assert_close(found[i, k], distance, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_of_every_class_new_images_are_covered_and_accepted_as_often_as_said():
    """Over random splits, within three standard errors of the mean over splits; of a rare class too,
    and of one that the model hardly ever answers."""
    covered = []  # the share of each class
    rejected = []
    detected = []
    for seed in range(8):
        x, y, other = clusters(2_000, seed)
        # 120 of two classes, 40 of two
        learned = np.r_[:160, np.flatnonzero(y[160:] < 2)[:160] + 160]
        unknown, fitted = limits(x[learned], y[learned])
        rest = np.setdiff1d(np.arange(2_000), learned)
        new = torch.tensor(x[rest])
        logits = fitted.logits(new)
        probabilities = logits.softmax(1)
        is_open = unknown.is_open(probabilities)
        assert is_open.gather(1, logits.argmax(1, keepdim=True)).all()  # the likeliest always
        is_unknown = unknown.is_unknown(new, logits)
        own = is_open.gather(1, torch.tensor(y[rest])[:, None])[:, 0]
        classes = [torch.tensor(y[rest] == k) for k in range(4)]
        covered.append([own[members].double().mean().item() for members in classes])
        rejected.append([is_unknown[members].double().mean().item() for members in classes])
        strange = torch.tensor(other)
        detected.append(unknown.is_unknown(strange, fitted.logits(strange)).double().mean().item())
    error = np.std(covered, 0, ddof=1) / math.sqrt(len(covered))
    at_least(np.mean(covered, 0) + 3 * error, 0.95)
    error = np.std(rejected, 0, ddof=1) / math.sqrt(len(rejected))
    at_most(np.mean(rejected, 0) - 3 * error, 0.05)
    at_least(np.mean(detected), 0.95)


def strangeness(count, spreads, seed=0):
    """How strange images are to each class, (N, K): of some classes, each with a mean and a spread of
    its own, and their classes."""
    random = np.random.default_rng(seed)
    y = np.arange(count) % len(spreads)
    own = random.normal(size=count) * np.array(spreads)[y]
    matrix = own[:, None] + 3 + random.random((count, len(spreads)))
    matrix[np.arange(count), y] = own
    return torch.tensor(matrix), torch.tensor(y)


@pytest.mark.parametrize("spreads", [(1, 1, 1, 1), (0.2, 0.5, 1, 4), (1, 1, 1, 0.01)])
def test_limits_reject_one_in_twenty_of_all_and_of_each_class_at_most(spreads):
    of_images, classes = strangeness(400, spreads)
    limit = fit_limits(of_images, classes)
    least, nearest = of_images.min(1)
    rejected = least > limit[nearest]
    assert rejected.sum() <= 20
    for k in range(4):  # of 100, the 96th and those before it are known
        assert rejected[classes == k].sum() <= 4
    if spreads == (1, 1, 1, 1):
        assert rejected.sum() >= 10


def test_one_broad_class_does_not_accept_what_is_strange_to_the_others():
    of_images, classes = strangeness(400, (0.2, 0.2, 0.2, 4))
    limit = fit_limits(of_images, classes)
    assert limit[3] > 6 and limit[:3].max() < 5

    # Strange to the first class, and stranger still to the broad one, within whose limit it is
    image = torch.tensor([[5.0, 9.0, 9.0, 5.5]])
    unknown, _ = limits(*clusters(200, 0)[:2])
    for of_nearest in (True, False):
        rule = Given(**vars(replace(unknown, limit=limit, of_nearest=of_nearest)))
        assert rule.is_unknown(image, image).tolist() == [of_nearest]


class Given(Unknown):
    """Limits for images whose strangeness to each class is given."""

    def strangeness(self, features, logits):
        return features


def test_a_high_logit_is_no_proof_that_an_image_is_known():
    x, y, _ = clusters(200, 0)
    unknown, fitted = limits(x, y)
    row = torch.tensor(x[:1])
    logits = fitted.logits(row)
    likeliest = torch.nn.functional.one_hot(logits.argmax(1), 4)
    typical, high = (logits.where(likeliest == 0, unknown.typical + more) for more in (0, 1e6))
    assert torch.equal(unknown.excess(row, typical), unknown.excess(row, high))
    assert unknown.excess(row, typical - 1) > unknown.excess(row, typical)


@pytest.mark.whole_statistics  # more parts than two images of a class can be in
def test_few_images_tell_nothing():
    x, y, _ = clusters(12, 0)
    unknown, fitted = limits(x, y)
    assert unknown.limit.isinf().all() and not unknown.least.any()
    far = 1e3 * torch.ones(1, 12)
    assert not unknown.is_unknown(far, fitted.logits(far)).any()
    assert unknown.is_open(torch.tensor([[1.0, 0, 0, 0]])).all()
    same = torch.ones(30, 12)
    assert fit_unknown(same, torch.arange(30) % 4, torch.zeros(30, 4)).far == 1


def test_a_class_of_few_images_is_left_open_and_its_limit_is_that_of_all():
    x, y, _ = clusters(200, 0)
    few = np.r_[np.flatnonzero(y < 3), np.flatnonzero(y == 3)[:18]]
    unknown, _ = limits(x[few], y[few])
    assert unknown.least[3] == 0 and (unknown.least[:3] > 0).all()
    assert unknown.limit.isfinite().all()
    assert unknown.is_open(torch.tensor([[0.9, 0.1, 0, 0]]))[0, 3]


@pytest.mark.parametrize("spread", [1e-3, 1e-5])
def test_a_model_s_own_images_are_known_however_little_its_features_vary(spread):
    x, y, other = clusters(200, 0)
    x = 30 + spread * x  # as a float32 holds it
    unknown, fitted = limits(x, y)
    own = torch.tensor(x).double()
    assert unknown.is_unknown(own, fitted.logits(own)).double().mean() < 0.1
    other = torch.tensor(30 + spread * other).double()
    assert unknown.is_unknown(other, fitted.logits(other)).double().mean() > 0.9


# Of real images


@pytest.fixture
def published(shared):
    """The real ViT-Ti/16, whose head reads the class token, and the mean of the patches, of all blocks."""
    model = load(
        shared("weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"), quiet=True
    )
    config = replace(model.model.config, pool="token-gap", read_blocks=12)
    return fitted_to(model, config, ("a", "b"))[0].for_inference()


def features_of(published, source, rows):
    """The features of some images of a source, in its order."""
    return torch.from_numpy(np.array(compute_features(published, subset(source, np.sort(rows))).x))


def readings(published):
    """What a head may read, of the features of all blocks, and what is compared of that: the class token
    of the last block, or all."""
    start, width = last_token(published)
    return (slice(start, start + width), None), (slice(None), (start, width))


def at_most_one_in_twenty(rejected):
    """Assert it of the images that a model knows, up to three standard errors."""
    share = rejected.double().mean().item()
    at_most(share - 3 * math.sqrt(0.05 * 0.95 / len(rejected)), 0.05)


@pytest.mark.slow
def test_images_without_a_subject_are_unknown_to_a_model_of_ants_and_bees(published, shared):
    """Before, all of them were called ants or bees."""
    folder = shared("data/ants_bees-train.parquet").parent
    parts = dict(open_parts(str(folder / "ants_bees-*.parquet")).sources)
    parts["test"] = subset(parts["test"], np.arange(0, len(parts["test"]), 2))
    train, test = (
        features_of(published, parts[p], range(len(parts[p]))) for p in ("train", "test")
    )
    images = [np.full((256, 256, 3), colour, np.uint8) for colour in (0, 128, 255, (255, 0, 0))]
    random = np.random.default_rng(0)
    images += list(random.integers(0, 256, (4, 256, 256, 3), dtype=np.uint8))
    strange = published.features(published.batch(images))

    y = parts["train"].targets
    for read, told_by in readings(published):
        fitted = fit_probe("linear", train[:, read].numpy(), y, 2)
        unknown = fit_unknown(train[:, read], torch.tensor(y), fitted.left_out, told_by=told_by)
        assert unknown.is_unknown(strange[:, read], fitted.logits(strange[:, read])).all()
        rejected = unknown.is_unknown(test[:, read], fitted.logits(test[:, read]))
        at_most_one_in_twenty(rejected)
        for k in range(2):
            at_most_one_in_twenty(rejected[torch.tensor(parts["test"].targets == k)])


@pytest.mark.slow
def test_a_model_of_ten_broad_classes_finds_photographs_of_another_kind(published, shared):
    """What is measured is well above the bounds (docs/teach.md)."""
    folder = shared("data/tiny_imagenet100-test.parquet").parent
    (source,) = open_parts(str(folder / "tiny_imagenet100-test.parquet")).sources.values()
    rows = [np.flatnonzero(source.targets == k)[:26] for k in range(90, 100)]
    rows = np.sort(np.concatenate(rows))
    x = features_of(published, source, rows)
    y = source.targets[rows] - 90
    learned = np.arange(len(y)) % 5 < 4  # 20 or 21 of each class
    others = {}
    for name in ("eurosat_1k", "ants_bees", "gtsrb_1k"):
        test = open_parts(str(folder / f"{name}-*.parquet")).sources["test"]
        others[name] = features_of(published, test, range(20))
    for read, told_by in readings(published):
        known = x[learned][:, read]
        fitted = fit_probe("linear", known.numpy(), y[learned], 10)
        unknown = fit_unknown(known, torch.tensor(y[learned]), fitted.left_out, told_by=told_by)
        new = x[~learned][:, read]
        at_most_one_in_twenty(unknown.is_unknown(new, fitted.logits(new)))
        for strange in others.values():
            strange = strange[:, read]
            found = unknown.is_unknown(strange, fitted.logits(strange))
            at_least(found.double().mean().item(), 0.3)


# In a model


@pytest.fixture(scope="module")
def classifier():
    network = create(vit("mu/8", image=(16, 16), depth=1, classes=4), seed=0).eval()
    torch.nn.init.normal_(network.head.weight)
    x, y, _ = clusters(100, 0, width=network.head.weight.shape[1])
    unknown, _ = limits(x, y)
    return Classifier(network, Preprocessing(size=(16, 16)), tuple("abcd"), unknown=unknown)


def test_limits_are_saved_with_the_model(classifier, tmp_path):
    loaded = load(save(classifier, tmp_path / "model"), quiet=True).unknown
    for name, value in vars(classifier.unknown).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(loaded, name), value)
        else:
            assert getattr(loaded, name) == value

    # Another model there has none, and a model keeps none of another's
    file = tmp_path / "model" / UNKNOWN
    limits_of_the_first = file.read_bytes()
    other = replace(classifier, origin={"other": 1}, unknown=None)
    save(other, tmp_path / "model")
    assert not file.exists()
    file.write_bytes(limits_of_the_first)
    assert load(tmp_path / "model", quiet=True).unknown is None


def test_limits_of_an_earlier_version_mean_what_they_meant(classifier, tmp_path):
    """They compare the features as they are, and an image is known if it is within any class's limit."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(0)
    width = classifier.model.config.width
    old = {
        "means": torch.randn(4, width, generator=random),
        "whitening": torch.eye(width),
        "far": torch.tensor(2.0, dtype=torch.float64),
        "sure": torch.tensor(0.5, dtype=torch.float64),
        "limit": torch.tensor([1.0, 5, 9, 2], dtype=torch.float64),
        "least": torch.zeros(4, dtype=torch.float64),
        "rejected": torch.tensor(0.05, dtype=torch.float64),
        "coverage": torch.tensor(0.95, dtype=torch.float64),
    }
    x = torch.randn(9, width, generator=random)
    logits = 9 * torch.randn(9, 4, generator=random)
    strange = 2 * torch.cdist(x, old["means"]) - 0.5 * logits
    folder = save(classifier, tmp_path / "model")
    with safe_open(folder / UNKNOWN, "pt") as opened:
        metadata = opened.metadata()
    centred = {"centre": torch.zeros(width), "first": torch.tensor(0.0, dtype=torch.float64)}
    for tensors in (old, old | centred):
        save_file(tensors, folder / UNKNOWN, metadata)
        loaded = load(folder, quiet=True).unknown
        assert not loaded.unit and not loaded.of_nearest and loaded.first == 0
        expected = (strange - old["limit"]).amin(1)
        torch.testing.assert_close(loaded.excess(x, logits), expected, rtol=1e-4, atol=1e-4)

    # Before limits were by class: the nearest mean and the highest logit
    save_file(old | {"limit": torch.tensor(3.0).double()}, folder / UNKNOWN, metadata)
    nearest = 2 * torch.cdist(x, old["means"]).amin(1) - 0.5 * logits.amax(1)
    found = load(folder, quiet=True).unknown.excess(x, logits)
    torch.testing.assert_close(found, nearest - 3, rtol=1e-4, atol=1e-4)


def test_another_head_or_other_features_have_no_limits(classifier):
    assert adopt(classifier, labels=("e", "f"))[0].unknown is None
    assert adopt(classifier, image=(32, 32))[0].unknown is None
    assert with_temperature(classifier, 2.0).unknown is None
    assert adopt(classifier, labels=classifier.labels)[0].unknown is not None


def test_damaged_limits_are_a_sentence(classifier, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    save(classifier, tmp_path / "model")
    file = tmp_path / "model" / UNKNOWN
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    for change in (
        {"means": torch.zeros(3, 24)},
        {"whitening": torch.full_like(tensors["whitening"], math.nan)},
        {"limit": torch.zeros(2)},
        {"centre": torch.zeros(tensors["centre"].shape[0] - 1)},
        {"more": torch.zeros(2)},
        {"unit": torch.tensor(2.0)},
        {"of_nearest": torch.tensor(math.nan)},
        {"typical": torch.tensor(math.nan)},
        {"far": torch.tensor(math.nan)},
        {"first": torch.tensor(0.5)},
        {"first": torch.tensor(-1.0)},
        {"first": torch.tensor(math.inf)},
        {"first": torch.zeros(2)},
        {"limit": torch.tensor(1.0)},
    ):
        save_file(tensors | change, file, metadata)
        with pytest.raises(ValueError, match=f"cannot be loaded: .*{UNKNOWN}"):
            load(tmp_path / "model", quiet=True)


def test_the_table_has_the_classes_that_are_left_open(capsys):
    seen = Prediction("a.jpg", ("cat", "dog", "cow"), (0.5, 0.3, 0.2))
    table = AnswerTable(seen.labels, "softmax", sys.stdout)
    possible = [seen.labels[:1], seen.labels[:2], seen.labels]
    table.print([replace(seen, unknown=False, possible=several) for several in possible])
    table.print([replace(seen, unknown=True, possible=())])
    rare = replace(seen, probabilities=(0.99, 0.008, 0.002), unknown=False, possible=seen.labels)
    table.print([rare, replace(rare, labels=("cat",), probabilities=(0.99,))])
    rows = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("cat", "dog 30.0%, cow 20.0%"),
        ("cat", "or dog 30.0%, cow 20.0%"),
        ("cat", "or dog 30.0%, or cow 20.0%"),
        ("unknown (cat?)", "dog 30.0%, cow 20.0%"),
        ("cat", "or dog 0.8%, or cow 0.2%"),  # all are listed, so there are no more
        ("cat", "or 2 more"),
    ]


def test_predict_says_that_an_image_is_unknown(photographs, tmp_path, monkeypatch, capsys):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    saved("model", (), "mu/8", 16, depth=1)
    assert main(["teach", "model", "colours", "--add", str(photographs)]) == 0
    stripes = np.zeros((40, 40, 3), np.uint8)
    stripes[::4] = (0, 255, 0)
    Image.fromarray(stripes).save("stripes.png")
    capsys.readouterr()

    for attention in ([], ["--attention", "looks"]):
        words = ["predict", "colours", "stripes.png", str(photographs / "red"), "--json"]
        assert main([*words, *attention]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines[0]["unknown"] is True and lines[0]["possible"] == []
        known = [line for line in lines[1:] if not line["unknown"]]
        assert len(known) >= 17 and all(line["possible"] == ["red"] for line in known)

    assert main(["predict", "colours", "stripes.png", "--to", "rows.csv"]) == 0
    assert ",yes," in Path("rows.csv").read_text()
    capsys.readouterr()
    assert main(["predict", "colours", "stripes.png", str(photographs / "red")]) == 0
    assert "unknown (" in capsys.readouterr().out
    assert main(["convert", "colours", "colours.npz", "--to", "google"]) == 0
    assert "left out: the limits for unknown images" in capsys.readouterr().out
