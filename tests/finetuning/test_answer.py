"""From a folder of photographs to a model: which of the candidates is kept, that a first model is
there at once, and that a call that was killed is continued."""

import json
import shutil
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from margins import at_least, at_most
from pictures import encoded
from PIL import Image

import vitkit
from vitkit.data import Augmentation, Columns, Preprocessing, open_splits, subset
from vitkit.evaluation import SHARE, Features, Metric, compute_features, read_memory, rounded
from vitkit.finetuning import CLOSED_FORM, question, solved
from vitkit.finetuning.candidates import AVERAGE, FINE_TUNED, Candidate, average, best, candidate
from vitkit.finetuning.folder import Photographs, look, look_alikes, open_photographs
from vitkit.finetuning.from_folder import FolderResult, answer
from vitkit.finetuning.functions.result import _candidates, short
from vitkit.models import create, vit
from vitkit.recipes import Data, finetune
from vitkit.system.errors import Interrupted
from vitkit.system.span import Span
from vitkit.training import Occupied
from vitkit.weights import Classifier, save

CPU = torch.device("cpu")


@pytest.fixture
def pretrained(tmp_path):
    """A model of random weights, whose features of digits tell them apart well enough."""
    config = vit("mu/16", image=(8, 8), patch=2, classes=2)
    classifier = Classifier(create(config, seed=0), Preprocessing(size=(8, 8)), ("a", "b"))
    return str(save(classifier, tmp_path / "pretrained"))


@pytest.fixture
def recipe(pretrained):
    """The quick recipe on a third of the digits, with the batches of larger data sets, and so short
    that it is fine-tuned in a second."""
    quick = finetune(pretrained, "digits", "quick")
    data = replace(quick.data, augmentation=Augmentation(crop="none"), workers=0, subset=0.3)
    return replace(quick, data=data, batch=32, length=Span(12, "steps"), precision="float32")


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_without_images_is_refused_before_anything_is_made(recipe, tmp_path, batch):
    with pytest.raises(vitkit.BadSettings, match=f"`batch` is {batch} "):
        answer(replace(recipe, batch=batch), tmp_path / "run", 1, CPU, print)
    assert not (tmp_path / "run").exists()


def test_a_first_model_then_the_better_one(recipe, tmp_path):
    said = []
    reached = answer(recipe, tmp_path / "run", 1, CPU, said.append)
    assert [each.name for each in reached.candidates] == [CLOSED_FORM, FINE_TUNED]

    # A head on random features beats twelve steps, and is what was said to be there at first
    assert reached.chosen == CLOSED_FORM and reached.left_out.value > 0.4
    assert "a first model is in" in " ".join(said) and reached.left_out.text() in " ".join(said)
    written = json.loads((tmp_path / "run" / "answer.json").read_text())
    assert written["chosen"] == CLOSED_FORM and list(written["test"]) == [CLOSED_FORM]

    # The saved model reaches what was said, measured by hand
    classifier = vitkit.load(tmp_path / "run", quiet=True)
    test = open_splits("digits").test
    right = [
        prediction.labels[0] == test.labels[target]
        for prediction, target in zip(
            vitkit.predict(classifier, list(tmp_images(test)), workers=0, device="cpu"),
            test.targets,
            strict=True,
        )
    ]
    assert np.mean(right) == pytest.approx(reached.test[CLOSED_FORM].value)


def tmp_images(source):
    from vitkit.prediction import Item

    for i in range(len(source)):
        yield Item(source.name(i), lambda i=i: source[i][0])


@pytest.mark.slow
def test_fine_tuning_wins_where_features_must_move(recipe, tmp_path):
    """The class token of random weights is a poor feature, and Adam trains it in a second. Its norm
    after the pooling keeps the head from reading more than that."""
    optim = replace(recipe.optim, name="adam", lr=0.003)
    whole = replace(recipe.data, subset=1.0)
    longer = replace(recipe, data=whole, length=Span(200, "steps"), optim=optim)
    config = vit("mu/16", image=(8, 8), patch=2, classes=2, norm="pooled")
    classifier = Classifier(create(config, seed=0), Preprocessing(size=(8, 8)), ("a", "b"))
    pretrained = str(save(classifier, tmp_path / "pooled"))
    longer = replace(longer, init=pretrained, model=replace(config, classes=0))
    reached = answer(longer, tmp_path / "run", 1, CPU, lambda text: None)
    by_name = {each.name: each.held_out.value for each in reached.candidates}
    assert list(by_name) == [CLOSED_FORM, FINE_TUNED, AVERAGE]
    assert reached.chosen == max(by_name, key=by_name.get)
    assert reached.chosen != CLOSED_FORM
    saved = vitkit.load(tmp_path / "run", quiet=True).model.state_dict()
    chosen = {each.name: each for each in reached.candidates}[reached.chosen].classifier
    for name, weight in chosen.model.state_dict().items():
        assert torch.equal(weight, saved[name]), name


@pytest.mark.slow
def test_the_solved_head_is_compared_as_it_is_saved(recipe, tmp_path):
    """It has learned from the held-out images too, so each is answered by a fit without it alone."""
    reached = answer(recipe, tmp_path / "run", 1, CPU, lambda text: None)
    held_out = reached.photographs.held_out
    found = compute_features(reached.classifier.for_inference(), reached.photographs.learned)
    found = Features(rounded(found.x), found.y)
    whole = solved(question("class", reached.photographs.labels), found)
    right = whole.left_out.argmax(1).numpy() == found.y
    assert (reached.candidates[0].scores == right[-len(held_out) :]).all()


@pytest.mark.slow
def test_images_of_few_pixels_are_fine_tuned_at_a_smaller_size(recipe, tmp_path, monkeypatch):
    # The smaller size is then 4, for patches of 2; the digits have 8 x 8
    monkeypatch.setattr("vitkit.finetuning.fine_tuning.SMALL", 5)
    said = []
    reached = answer(recipe, tmp_path / "run", 1, CPU, said.append)
    sizes = [each.classifier.model.config.image for each in reached.candidates]
    assert sizes == [(8, 8), (4, 4)]
    assert reached.candidates[1].classifier.preprocessing.size == (4, 4)
    assert "fine-tuning at 4 x 4 pixels" in " ".join(said)

    # Unless the size was asked for
    kept = answer(recipe, tmp_path / "kept", 1, CPU, said.append, keep_size=True)
    assert {each.classifier.model.config.image for each in kept.candidates} == {(8, 8)}


@pytest.fixture
def places(tmp_path):
    """Noise with a bright spot somewhere in the upper or in the lower half, which is the class."""
    random = np.random.default_rng(0)
    for number in range(80):
        pixels = random.integers(0, 60, (8, 8, 3), dtype=np.uint8)
        row, column = random.integers(0, 3), random.integers(0, 7)
        row += 4 * (number % 2)
        pixels[row : row + 2, column : column + 2] += 180
        folder = tmp_path / "places" / ("upper", "lower")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return str(tmp_path / "places")


@pytest.mark.slow
def test_a_head_reads_the_quarters_where_the_class_is_a_place(places, tmp_path):
    """Without positions a class token has no way to know where a spot is; patches have."""
    config = vit("mu/16", image=(8, 8), patch=2, classes=2, positions="none")
    classifier = Classifier(create(config, seed=0), Preprocessing(size=(8, 8)), ("a", "b"))
    pretrained = str(save(classifier, tmp_path / "blind"))
    quick = finetune(pretrained, places, "quick")
    data = replace(quick.data, workers=0)
    quick = replace(quick, data=data, length=Span(4, "steps"), precision="float32")
    said = []
    reached = answer(quick, tmp_path / "run", 1, CPU, said.append, keep_size=True)
    assert "those of the image's four quarters of 1 block: " in " ".join(said)
    at_least(reached.left_out.value, 0.95)
    at_least(reached.test[CLOSED_FORM].value, 0.9)
    pools = [each.classifier.model.config.pool for each in reached.candidates]
    assert pools == ["token-gap-quarters", "token"]  # the fine-tuning reads what the paper has
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["reading"] == ["token-gap-quarters", 1]

    # It is saved as any other, answers as it was measured, and remembers for `vitkit teach`
    saved = vitkit.load(tmp_path / "run", quiet=True)
    assert saved.model.config == reached.classifier.model.config
    memory, fits = read_memory(tmp_path / "run" / "model", saved)
    assert fits and memory.x.shape[1] == 6 * config.width
    again = answer(quick, tmp_path / "run", 1, CPU, said.append, keep_size=True)
    assert again.left_out == reached.left_out and again.chosen == reached.chosen

    # A model for other libraries reads the class token, and says what that costs
    said.clear()
    portable = answer(quick, tmp_path / "other", 1, CPU, said.append, portable=True)
    assert portable.classifier.model.config.pool == "token"
    cost = f"{short(portable.left_out)} instead of "
    assert f"as in other libraries (`portable`): {cost}" in " ".join(said)
    with pytest.raises(Occupied, match="portable: True, now False"):
        answer(quick, tmp_path / "other", 1, CPU, said.append)


@pytest.mark.slow
def test_quarters_are_not_taken_where_they_gain_nothing(folder, pretrained, tmp_path):
    files = {f"{'ab'[i % 2]}/{i}.png": 12 for i in range(24)}  # noise, whatever the class
    quick = finetune(pretrained, str(folder(files)), "quick")
    quick = replace(quick, length=Span(1, "steps"), precision="float32")
    reached = answer(quick, tmp_path / "run", 1, CPU, lambda text: None)
    assert reached.classifier.model.config.pool == "token"
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["reading"] == ["token", 1]


def test_of_one_image_a_class_nothing_can_be_left_out(folder, pretrained, tmp_path):
    # One of two is to test on
    files = {f"{label}/{i}.png": 12 for label in "abc" for i in range(2)}
    quick = finetune(pretrained, str(folder(files)), "quick")
    said = []
    answer(replace(quick, precision="float32"), tmp_path / "run", 1, CPU, said.append)
    text = " ".join(said)
    assert "its accuracy cannot be estimated" in text and "in cross-validation" not in text
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["reading"] == ["token", 1]


@pytest.mark.slow
def test_a_call_that_was_stopped_goes_on(recipe, tmp_path, monkeypatch):
    undisturbed = answer(recipe, tmp_path / "one", 1, CPU, lambda text: None)

    # SIGTERM at the sixth step: the first model is there, and the same call finishes
    stop_at(monkeypatch, 6, signal.SIGTERM)
    with pytest.raises(Interrupted):
        answer(recipe, tmp_path / "two", 1, CPU, lambda text: None)
    assert vitkit.load(tmp_path / "two", quiet=True).labels == tuple(map(str, range(10)))
    monkeypatch.undo()
    monkeypatch.setattr("vitkit.finetuning.fine_tuning.seconds_of_a_step", None)  # the plan is kept
    again = answer(recipe, tmp_path / "two", 1, CPU, lambda text: None)
    for one, other in zip(undisturbed.candidates, again.candidates, strict=True):
        assert (one.name, one.held_out, one.loss) == (other.name, other.held_out, other.loss)

    # Another time is another run
    with pytest.raises(Occupied, match="minutes: 1, now 2"):
        answer(recipe, tmp_path / "two", 2, CPU, lambda text: None)


@pytest.mark.slow
def test_ctrl_c_ends_the_fine_tuning_and_keeps_the_best(recipe, tmp_path, monkeypatch):
    stop_at(monkeypatch, 6, signal.SIGINT)
    reached = answer(recipe, tmp_path / "run", 1, CPU, lambda text: None)
    assert [each.name for each in reached.candidates] == [CLOSED_FORM, FINE_TUNED]
    assert vitkit.load(tmp_path / "run" / "fine-tuned", quiet=True).origin["steps"] == 6


def stop_at(monkeypatch, step: int, number: int) -> None:
    """The signal comes while the rates of this step are set."""
    from vitkit.training import loop

    set_rates = loop.set_rates

    def interrupted(recipe, state, position):
        if state.step == step:
            signal.raise_signal(number)
        return set_rates(recipe, state, position)

    monkeypatch.setattr(loop, "set_rates", interrupted)


@pytest.fixture
def steps_of_a_second(monkeypatch):
    monkeypatch.setattr("vitkit.finetuning.fine_tuning.seconds_of_a_step", lambda *_: 1.0)
    monkeypatch.setattr("vitkit.finetuning.plan.RunInputs.spent", lambda self: 0.0)


@pytest.mark.slow
def test_where_the_time_is_too_short_nothing_is_fine_tuned(recipe, tmp_path, steps_of_a_second):
    by_time = replace(recipe, length=Span(0, "steps"))
    said = []
    answer(by_time, tmp_path / "short", 0.3, CPU, said.append)
    assert "too long for 18 seconds: `minutes=4` would do" in " ".join(said)
    assert not (tmp_path / "short" / "fine-tuned").exists()


def test_the_time_decides_the_steps(recipe, tmp_path, monkeypatch, steps_of_a_second):
    by_time = replace(recipe, length=Span(0, "steps"))
    monkeypatch.setattr("vitkit.finetuning.fine_tuning.run_recipe", stopped)
    with pytest.raises(Interrupted):
        answer(by_time, tmp_path / "long", 2, CPU, lambda text: None)
    plan = json.loads((tmp_path / "long" / "plan.json").read_text())
    assert 90 < plan["steps"] < 120  # of a second each, and the evaluations take some


@pytest.mark.slow
def test_minutes_are_those_of_the_whole_command(recipe, tmp_path, monkeypatch):
    """Features that took a minute leave the other one for the fine-tuning and its last answers."""
    monkeypatch.setattr("vitkit.finetuning.fine_tuning.seconds_of_a_step", lambda *_: 1.0)
    monkeypatch.setattr("vitkit.finetuning.plan.RunInputs.spent", lambda self: 61.0)
    deadlines = []

    def train(recipe, run_dir, device, ends):
        deadlines.append(ends.deadline.at - time.monotonic())
        raise Interrupted

    monkeypatch.setattr("vitkit.finetuning.fine_tuning.run_recipe", train)
    by_time = replace(recipe, length=Span(0, "steps"))
    with pytest.raises(Interrupted):
        answer(by_time, tmp_path / "run", 2, CPU, lambda text: None)
    (left,) = deadlines
    assert 90 < left < 119  # the answers of the models afterwards are left out

    said = []
    monkeypatch.setattr("vitkit.finetuning.plan.RunInputs.spent", lambda self: 17.0)
    answer(by_time, tmp_path / "short", 0.3, CPU, said.append)
    assert "too long for 18 seconds, of which 17 s are over" in " ".join(said)


def stopped(*_, **__):
    raise Interrupted


def tried(name: str, right: list[int], loss: float) -> Candidate:
    """A candidate that answers these of ten images rightly."""
    answered = np.isin(np.arange(10), right).astype(float)
    metric = Metric("held_out/top1", answered.mean(), SHARE)
    return Candidate(name, None, metric, loss, np.full(10, loss), answered)


def test_the_best_is_right_more_often_than_the_first_by_more_than_chance():
    first = tried("first", [0, 1, 2, 3, 4], 0.7)
    surer = tried("surer", [0, 1, 2, 3, 4], 0.1)
    one_more = tried("one more", [0, 1, 2, 3, 4, 5], 0.1)
    two_more = tried("two more", [0, 1, 2, 3, 4, 5, 6], 0.9)
    other = tried("two more, five less", [0, 5, 6, 7, 8, 9, 1], 0.1)
    assert best([first, surer]).name == "first"
    assert best([first, one_more]).name == "first"  # 1 is not above the root of 1
    assert best([first, one_more, two_more]).name == "two more"
    assert best([first, other]).name == "first"  # 2 is not above the root of 8

    # Two shots of one thing are one
    shots = np.array([0, 1, 2, 3, 4, 5, 5, 6, 7, 8])
    assert best([first, two_more], groups=shots).name == "first"
    three_more = tried("three more", [0, 1, 2, 3, 4, 5, 6, 7], 0.9)
    assert best([first, three_more], groups=shots).name == "three more"


def test_a_class_without_an_image_to_learn_from_is_unlikely_everywhere():
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 6)).astype(np.float32)
    y = np.stack([x[:, 0] > 0, np.zeros(40), x[:, 1] > 0], 1).astype(np.float32)
    asked = question("classes", ("a", "b", "c"))
    logits = solved(asked, Features(x, y)).logits(torch.tensor(x))
    torch.testing.assert_close(logits[:, 1].sigmoid(), torch.full((40,), 1 / 42).double())
    assert ((logits[:, [0, 2]] > 0).numpy() == (y[:, [0, 2]] > 0)).mean() > 0.9


def test_numbers_are_judged_by_their_errors():
    asked = question("number", ())
    y = np.array([1.0, 2.0, 3.0, 4.0])
    near = candidate("near", None, asked, torch.tensor([[1.1], [2.1], [3.1], [4.1]]), y)
    far = candidate("far", None, asked, torch.tensor([[2.0], [3.0], [4.0], [5.0]]), y)
    assert near.held_out.value == pytest.approx(0.1) and far.loss == pytest.approx(1)
    assert best([far, near]).name == "near" and best([near, far]).name == "near"
    lucky = candidate("lucky", None, asked, torch.tensor([[1.1], [2.1], [3.1], [4.0]]), y)
    assert best([near, lucky]).name == "near"  # one image alone is chance


def test_classes_are_judged_by_right_answers_and_several_by_their_losses():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 4.0]])
    one = candidate("one", None, question("class", ("a", "b")), logits, np.array([0, 1, 1, 1]))
    assert one.scores.tolist() == [1, 1, 0, 1] and one.held_out.value == 0.75
    expected = np.log1p(np.exp([-2.0, -1.0, 3.0, -4.0]))
    np.testing.assert_allclose(one.losses, expected, rtol=1e-6)
    assert one.loss == pytest.approx(expected.mean())

    y = np.array([[1, 0], [0, 1], [0, 1], [1, 1]], np.float32)
    several = candidate("several", None, question("classes", ("a", "b")), logits, y)
    signs = np.where(y == 1, -1, 1)
    expected = np.log1p(np.exp(signs * logits.numpy())).sum(1)
    np.testing.assert_allclose(several.losses, expected, rtol=1e-6)
    np.testing.assert_allclose(several.scores, -expected, rtol=1e-6)


def reached_of(candidates, chosen, **changes):
    """The answer of a quick run whose candidates answered ten digits."""
    splits = open_splits("digits")
    ten = subset(splits.train, np.arange(10))
    photographs = Photographs(ten, ten, None, "test", splits.labels, "class", None, (), {}, {}, {})
    held_out = {each.name: each.held_out for each in candidates}[chosen]
    left_out = Metric("left_out/top1", 0.5, SHARE)
    reached = FolderResult(chosen, None, tuple(candidates), left_out, held_out, photographs, 2.0)
    return replace(reached, **changes)


def rows_of(table):
    heads = [column.header for column in table.columns]
    return [tuple(heads), *zip(*(column.cells for column in table.columns), strict=True)]


def test_the_candidates_are_shown_with_the_reason_for_the_choice():
    first = tried(CLOSED_FORM, [0, 1, 2, 3, 4], 0.7)
    better = tried(FINE_TUNED, [1, 2, 3, 4, 5, 6, 7, 8, 9], 0.3)
    table, why, too_good = _candidates(reached_of([first, better], FINE_TUNED))
    assert rows_of(table) == [
        ("", "10 held out", ""),
        (CLOSED_FORM, "50.00 %", ""),
        (FINE_TUNED, "90.00 %", "kept"),
    ]
    assert why == (
        "fine-tuned is kept: it is better on the held-out images by more than a standard error. Only "
        "fine-tuned is right on 5 of them, only closed form on 1 (McNemar's exact test, p = 0.22)"
    )
    assert too_good.startswith(
        "the held-out images chose it, so that is a little too good: 90.00 %"
    )

    table, why = _candidates(reached_of([first, better], CLOSED_FORM))
    assert rows_of(table)[1] == (CLOSED_FORM, "50.00 %", "kept")
    assert why.startswith(
        "closed form is kept: no other model is better on the held-out images by "
    )

    # Images to test on tell what the held-out ones cannot
    tested = {FINE_TUNED: Metric("test/top1", 0.7, SHARE)}
    reached = reached_of([first, better], FINE_TUNED, test=tested)
    reached = replace(
        reached, photographs=replace(reached.photographs, test=reached.photographs.train)
    )
    table, _ = _candidates(reached)
    assert rows_of(table)[0] == ("", "10 held out", "10 of test", "")
    assert rows_of(table)[1:] == [
        (CLOSED_FORM, "50.00 %", "", ""),
        (FINE_TUNED, "90.00 %", "70.00 %", "kept"),
    ]
    (alone,) = _candidates(reached_of([first], CLOSED_FORM))
    assert rows_of(alone) == [("", "10 held out"), (CLOSED_FORM, "50.00 %")]


def test_what_an_image_counts_decides_which_is_best():
    first = tried("first", [0, 1, 2, 3, 4, 5, 6], 0.7)
    other = tried("right on the rare class", [0, 1, 2, 3, 4, 5, 8, 9], 0.9)
    weights = np.array([0.6] * 8 + [2.6] * 2)
    assert best([first, other]).name == "first"
    assert best([first, other], weights).name == "right on the rare class"


def test_the_average_is_the_mean_of_the_weights(pretrained):
    one = vitkit.load(pretrained, quiet=True)
    other = replace(one, model=create(one.model.config, seed=1))
    mean = average(one, other).model.state_dict()
    for name, weight in one.model.state_dict().items():
        expected = (weight + other.model.state_dict()[name]) / 2
        torch.testing.assert_close(mean[name], expected)


def test_what_a_folder_holds_is_said(folder):
    files = {f"cat/{i}.png": 40 + i for i in range(12)} | {f"dog/{i}.png": 30 for i in range(2)}
    photos = folder(files | {"cat/broken.png": 0})
    data = Data(source=str(photos), parts="select", hold_out=0.2)
    said = look(open_photographs(data))
    assert "to learn from" in said[0] and "held out" in said[0]
    text = " ".join(said)
    assert "2 classes: cat" in text and "unbalanced: cat has" in text
    assert "left out:" in text and "broken.png" in text


@pytest.mark.parametrize("settings", [{}, {"masks": "photos"}])
def test_a_run_is_not_written_among_its_images(pretrained, folder, settings):
    photos = folder({f"{label}/{i}.png": 20 for label in ("cat", "dog") for i in range(2)})
    for data in (photos, f"{photos}/"):
        with pytest.raises(Occupied, match="the folder of the images; choose another"):
            vitkit.finetune(pretrained, data, workdir=photos, **settings)
    with pytest.raises(Occupied, match="the folder of the images; choose another"):
        vitkit.train("scratch", photos, workdir=photos)
    assert {path.name for path in photos.iterdir()} == {"cat", "dog"}


def test_a_class_that_is_not_measured_is_named(pretrained, folder, tmp_path, capsys):
    """One of two images of a class is set aside to test on, and the other one cannot be left out."""
    photos = folder({f"cat/{i}.png": 40 + i for i in range(30)} | {"dog/0.png": 9, "dog/1.png": 8})
    settings = {"minutes": 1e-4, "workdir": tmp_path / "run", "device": "cpu"}
    made = vitkit.finetune(pretrained, photos, **settings)
    assert ", without dog, of which nothing would be left to learn from" in capsys.readouterr().err
    assert "none of the held-out images is of dog, so their figures are of the other" in str(made)


@pytest.mark.slow
def test_what_belongs_together_is_left_out_together(pretrained, tmp_path):
    # Twelve things of each of two classes that mean nothing, each photographed six times
    random = np.random.default_rng(0)
    lines = ["image,label,thing"]
    for number in range(24):
        thing = random.integers(0, 256, (16, 16, 3))
        for shot in range(6):
            pixels = np.clip(thing + random.normal(0, 4, thing.shape), 0, 255).astype(np.uint8)
            name = f"{number}-{shot}.png"
            (tmp_path / name).write_bytes(encoded(pixels, "PNG"))
            lines.append(f"{name},{'ab'[number % 2]},{number}")
    manifest = tmp_path / "photos.csv"
    manifest.write_text("\n".join(lines))

    def printed(groups: str) -> tuple[float, float, float]:
        recipe = finetune(pretrained, str(manifest), "quick")
        data = replace(recipe.data, groups=groups)
        said = []
        run_dir = tmp_path / f"run-{groups}"
        reached = answer(replace(recipe, data=data), run_dir, 1e-4, CPU, said.append)
        assert reached.classifier.origin["groups"] == groups
        assert (groups == "none") == ("groups of 6 images" not in " ".join(said))
        low, high = reached.left_out.interval
        return reached.left_out.value, reached.test[CLOSED_FORM].value, high - low

    left_out, test, width = printed("thing")
    at_most(left_out, 0.75)  # a guess is 0.5
    at_most(test, 0.85)
    at_least(width, 0.25)
    left_out, test, width = printed("none")
    at_least(left_out, 0.9)
    at_least(test, 0.9)
    at_most(width, 0.15)


def test_unequal_classes_count_alike(folder, pretrained):
    files = {f"cat/{i}.png": 12 for i in range(10)} | {f"dog/{i}.png": 12 for i in range(3)}
    recipe = finetune(pretrained, str(folder(files)), "quick")
    assert recipe.objective.class_weights == "balanced"
    files |= {"dog/3.png": 12}
    recipe = finetune(pretrained, str(folder(files, "more")), "quick")
    assert recipe.objective.class_weights == "equal"


def test_look_alikes_are_found_by_their_features():
    random = np.random.default_rng(0)
    learned = random.normal(size=(50, 32)).astype(np.float32)
    others = random.normal(size=(20, 32)).astype(np.float32)
    others[3] = 2 * learned[7]
    others[9] = learned[8] + 0.01 * others[9]
    alike = look_alikes(learned, others)
    assert np.flatnonzero(alike >= 0).tolist() == [3, 9] and alike[[3, 9]].tolist() == [7, 8]


def test_files_that_are_there_twice_are_named(folder):
    root = folder(
        {
            f"{part}/{label}/{i}.jpg": 30
            for part in ("train", "test")
            for label in ("cat", "dog")
            for i in range(4)
        }
    )
    shutil.copy(root / "train/cat/1.jpg", root / "train/dog/9.jpg")
    shutil.copy(root / "train/cat/2.jpg", root / "test/cat/8.jpg")
    notes = open_photographs(Data(str(root))).notes
    one = f"{root}/train/cat/1.jpg (cat) and {root}/train/dog/9.jpg (dog): the files are the same to the byte"
    assert any(note.startswith("1 file with different labels, such as " + one) for note in notes)
    two = f"{root}/train/cat/2.jpg and {root}/test/cat/8.jpg"
    assert (
        f"1 file both to learn from and to test on, such as {two}: what is measured on the test images is too good"
        in notes
    )


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"cat/1.png": 20, "cat/2.png": 20}, "has one class, cat"),
        ({"1.png": 20, "2.png": 20}, "has no classes: put its photographs into a folder a class"),
        ({f"{k}/{i}.png": 0 for k in "ab" for i in range(3)}, "none of the images of"),
    ],
)
def test_images_that_teach_nothing(files, sentence, folder, pretrained, tmp_path):
    photos = str(folder(files))
    quick = finetune(pretrained, photos, "quick", columns=Columns())
    with pytest.raises(ValueError, match=sentence):
        answer(quick, tmp_path / "run", 1, CPU, lambda text: None)
