"""Probes of several classes an image, and of numbers: against scikit-learn, against fits without each
example, and through the command."""

import csv
import json

import numpy as np
import pytest
import torch
from margins import at_least, at_most
from pictures import encoded
from sklearn.linear_model import LogisticRegression, Ridge
from tables import saved

from vitkit import cli
from vitkit.data import Lists, Source
from vitkit.data.sources.stores import Arrays
from vitkit.evaluation import Features, Probing, several_probe
from vitkit.evaluation.metrics.platt import fit_platt
from vitkit.evaluation.probes.probe import number_probe
from vitkit.finetuning import solved
from vitkit.weights import load


def some(count=80, width=10, seed=0):
    random = np.random.default_rng(seed)
    x = (3 + random.normal(size=(count, width))).astype(np.float32)
    hidden = x @ random.normal(size=(width, 4)) + random.normal(size=(count, 4))
    return x, hidden - hidden.mean(0)


def predicted(x, y, learned, i, fitted):
    """What scikit-learn predicts of an example by each l2 that it may be answered by: the others chose
    it."""
    predictions = []
    for factor in 2.0 ** np.arange(-24, 26, 2):
        model = Ridge(fitted.strength * factor, solver="svd")
        model.fit(x[learned].astype(float), y[learned])
        predictions.append(model.predict(x[i : i + 1].astype(float))[0])
    return np.array(predictions)


@pytest.mark.parametrize("shape", [(60, 8), (20, 30)])
def test_left_out_numbers_are_those_of_a_fit_without_the_example(shape):
    x, hidden = some(*shape)
    y = 1000 + 20 * hidden[:, 0]
    fitted = number_probe(x, y)
    whole = Ridge(fitted.strength, solver="svd").fit(x.astype(float), y)
    np.testing.assert_allclose(fitted.logits(torch.tensor(x))[:, 0], whole.predict(x.astype(float)))
    for i in (0, 7, 19):
        others = np.arange(len(x)) != i
        expected = predicted(x, y, others, i, fitted)
        assert np.abs(expected / fitted.left_out[i, 0].item() - 1).min() < 1e-6


def test_several_classes_are_questions_of_their_own():
    x, hidden = some()
    y = (hidden > 0.5).astype(np.float32)
    fitted = several_probe(x, y)
    for i in (0, 33):  # left-out logits are a line of the scores
        others = np.arange(len(x)) != i
        errors = []
        for scores in predicted(x, 2 * y - 1, others, i, fitted):
            rows = np.stack([scores, np.ones(4)], 1)
            line = np.linalg.lstsq(rows, fitted.left_out[i].numpy(), rcond=None)[0]
            errors.append(np.abs(rows @ line - fitted.left_out[i].numpy()).max())
        assert min(errors) < 1e-8
    yes = fitted.logits(torch.tensor(x)) > 0
    assert (yes.numpy() == (y > 0)).mean() > 0.85


@pytest.mark.parametrize("shape", [(60, 8), (24, 30)])
def test_unknown_labels_are_left_out_of_the_fit_of_their_class(shape):
    """Each output is Ridge's on the examples of which its class is known, whatever the others are."""
    x, hidden = some(*shape)
    y = (hidden > 0.2).astype(np.float32)
    y[::3, 0] = np.nan
    y[1::4, 1] = np.nan
    y[4] = np.nan
    fitted = several_probe(x, y)
    lines = []
    for k in range(4):
        known = ~np.isnan(y[:, k])
        ridge = Ridge(fitted.strength, solver="svd").fit(
            x[known].astype(float), 2 * y[known, k] - 1
        )
        scores = ridge.predict(x.astype(float))
        logits = fitted.logits(torch.tensor(x))[:, k].numpy()
        slope, offset = np.polyfit(scores, logits, 1)
        np.testing.assert_allclose(slope * scores + offset, logits, atol=1e-6)
        lines.append((slope, offset))
    np.testing.assert_allclose(lines, lines[:1] * 4, rtol=1e-5)  # one line for all
    assert fitted.left_out.isfinite().all()

    # Left-out answers: an example alone, by fits to the others that are known
    for i in (0, 4):
        errors = []
        for factor in 2.0 ** np.arange(-24, 26, 2):
            scores = []
            for k in range(4):
                learned = ~np.isnan(y[:, k]) & (np.arange(len(x)) != i)
                ridge = Ridge(fitted.strength * factor, solver="svd")
                ridge.fit(x[learned].astype(float), 2 * y[learned, k] - 1)
                scores.append(ridge.predict(x[i : i + 1].astype(float))[0])
            rows = np.stack([scores, np.ones(4)], 1)
            line = np.linalg.lstsq(rows, fitted.left_out[i].numpy(), rcond=None)[0]
            errors.append(np.abs(rows @ line - fitted.left_out[i].numpy()).max())
        assert min(errors) < 1e-6


def test_a_class_that_is_hardly_known_is_refused_or_unlikely():
    x, hidden = some()
    y = (hidden > 0.2).astype(np.float32)
    y[1:, 2] = np.nan
    y[0, 2] = 1
    with pytest.raises(ValueError, match="of 4 classes 1 are known for a single example"):
        several_probe(x, y)
    asked = Probing("classes", tuple("abcd"), np.arange(4))
    fitted = solved(asked, Features(x, y))
    assert fitted.left_out.isfinite().all() and (fitted.left_out[:, 2] < -4).all()
    metrics = list(asked.left_out_quality(fitted, y))
    assert metrics and all(np.isfinite(metric.value) for metric in metrics)

    # All parts but one know hardly anything of a class that few images say something of
    y[:, 2] = np.nan
    y[[0, 1, 2], 2] = (1, 0, 1)
    assert several_probe(x, y).left_out.isfinite().all()


def test_platts_line_is_that_of_logistic_regression():
    """Without a penalty, on targets as Platt smooths them: each pair twice, weighted."""
    random = np.random.default_rng(0)
    truth = random.random((200, 3)) < 0.2
    scores = random.normal(-0.5, 1, (200, 3)) + 1.5 * truth
    line = fit_platt(torch.tensor(scores), torch.tensor(truth))
    yes, no = truth.sum(), (~truth).sum()
    target = np.where(truth, (yes + 1) / (yes + 2), 1 / (no + 2)).ravel()
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    rows = np.tile(scores.ravel(), 2)[:, None]
    model.fit(rows, np.repeat([1, 0], truth.size), np.concatenate([target, 1 - target]))
    assert line.slope == pytest.approx(model.coef_[0, 0], rel=1e-4)
    assert line.offset == pytest.approx(model.intercept_[0], rel=1e-4)


def test_answers_that_are_all_right_have_a_line_and_those_that_are_wrong_none():
    truth = torch.tensor([[1.0, 0], [0, 1]] * 10)
    truth = truth.double()
    line = fit_platt(2 * truth - 1, truth)
    assert 1 < line.slope < 100
    assert fit_platt(1 - 2 * truth, truth).slope == pytest.approx(1e-6)


@pytest.mark.parametrize("kind", ["classes", "number"])
def test_degenerate_examples_are_sentences(kind):
    x = np.ones((4, 3), np.float32)
    fit = {"classes": several_probe, "number": number_probe}[kind]
    wrong = {"classes": np.zeros((4, 2)), "number": np.ones(1)}[kind]
    with pytest.raises(ValueError, match="have no example|cannot be fitted to 1 example;"):
        fit(x[: len(wrong)], wrong)
    same = {"classes": np.ones((4, 2)), "number": np.full(4, 1.5)}[kind]
    with pytest.raises(
        ValueError, match="have all 2 classes|have the number 1.5; there is nothing"
    ):
        fit(x, same)
    x[2] = np.nan
    right = {"classes": np.eye(4)[:, :2] + np.eye(4)[:, 2:], "number": np.arange(4.0)}[kind]
    with pytest.raises(ValueError, match="first is example 2"):
        fit(x, right)
    equal = fit(np.ones((4, 3), np.float32), right)  # features that tell nothing: a constant answer
    assert np.ptp(equal.logits(torch.ones(2, 3)).numpy(), 0).max() == 0


def test_a_class_that_no_image_has_is_no_output():
    store = Arrays("x", np.zeros((3, 1, 1), np.uint8))
    lists = Lists.of([[0, 2], [2], []])
    source = Source(store, np.arange(3), lists, ("a", "b", "c"), "classes")
    probing = Probing.of(source)
    assert probing.labels == ("a", "c") and probing.activation == "sigmoid"
    own = probing.targets(source, Features(np.zeros((3, 2)), source.targets_of(np.arange(3))))
    assert own.y.tolist() == [[1, 1], [0, 1], [0, 0]]
    other = Source(store, np.arange(3), Lists.of([[1], [0, 1], [2]]), ("a", "b", "c"), "classes")
    assert probing.unknown_in(other) == 2
    with pytest.raises(ValueError, match="prototype is for images of one class each"):
        probing.fit("prototype", own)
    empty = Source(store, np.arange(3), Lists.of([[], [], []]), ("a",), "classes")
    with pytest.raises(ValueError, match="no image to learn from has any class"):
        Probing.of(empty)


@pytest.fixture
def squares(tmp_path, monkeypatch):
    """Pictures whose red and blue tell the classes, and whose green tells a number."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    rows = []
    for i in range(60):
        red, blue = random.integers(0, 2, 2)
        green = random.integers(0, 200)
        pixels = random.integers(0, 30, (32, 32, 3), dtype=np.uint8)
        pixels += np.uint8([200 * red, green, 200 * blue])
        path = tmp_path / f"{i}.png"
        path.write_bytes(encoded(pixels, "PNG"))
        names = [name for name, there in (("red", red), ("blue", blue)) if there]
        rows.append({"image": path.name, "classes": "|".join(names), "green": green + 0.5})
    with (tmp_path / "list.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    saved(tmp_path / "model", "01")
    return tmp_path


@pytest.mark.slow
def test_the_command_fits_and_saves_what_answers_several_classes_and_numbers(squares, capsys):
    words = ["probe", str(squares / "model"), str(squares / "list.csv"), "--device", "cpu"]
    words += ["--precision", "float32", "--json"]
    for kind, column, expected in (
        ("classes", "classes", {"test/map", "test/macro_f1", "test/micro_f1"}),
        ("number", "green", {"test/mae", "test/r2", "test/pearson"}),
    ):
        columns = ["--data.columns.label", column, "--data.columns.target", kind]
        folder = squares / kind
        assert cli.main([*words, *columns, "--to", str(folder)]) == 0
        metrics = json.loads(capsys.readouterr().out)
        assert expected <= metrics.keys()
        first = next(name for name in metrics if name.startswith("test/"))
        if kind == "classes":
            at_least(metrics[first]["value"], 0.95)
        else:
            at_least(metrics["test/r2"]["value"], 0.9)

        # What was saved answers the same, and every command opens it
        saved = load(folder, quiet=True)
        assert saved.activation == {"classes": "sigmoid", "number": "none"}[kind]
        assert saved.labels == {"classes": ("blue", "red"), "number": ("0",)}[kind]
        again = ["evaluate", str(folder), str(squares / "list.csv"), *columns, "--device", "cpu"]
        assert cli.main([*again, "--workers", "0", "--json"]) == 0
        measured = json.loads(capsys.readouterr().out)
        assert measured["seen"]["value"] == 12  # the part that the probe held out
        name = first.removeprefix("test/")
        at_most(abs(measured[name]["value"] - metrics[first]["value"]), 1e-4)

        # Images that it learned from are said to be that
        lines = (squares / "list.csv").read_text().splitlines()
        parts = ["split", *(("test", "val", "train")[min(i, 2)] for i in range(60))]
        divided = [f"{line},{part}" for line, part in zip(lines, parts, strict=True)]
        (squares / "parts.csv").write_text("\n".join(divided))
        of_parts = [words[0], words[1], str(squares / "parts.csv"), *words[3:], *columns]
        assert cli.main([*of_parts, "--to", str(folder)]) == 0
        again = ["evaluate", str(folder), str(squares / "parts.csv"), *columns, "--workers", "0"]
        for part in ("train", "val", "test"):
            assert cli.main([*again, "--device", "cpu", "--split", part]) == 0
            learned = "images that the model learned from" in capsys.readouterr().out
            assert learned == (part != "test")

        assert cli.main([*words, *columns, "--method", "logistic"]) == 1
        assert "--method linear is for them too" in " ".join(capsys.readouterr().err.split())
