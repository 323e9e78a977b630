"""The report: what is in its JSON and on its page, and its sentences about unusual data."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tables import answered, classifier_of, part_of, random_answers

from vitkit.evaluation import answers, report, weakest, write_report
from vitkit.evaluation.metrics.calibration import calibrate
from vitkit.evaluation.metrics.classification import ClassScore
from vitkit.evaluation.metrics.paired import paired
from vitkit.evaluation.reports.page import disagreement_tiles, mistake_tiles
from vitkit.inspection import Tile, gallery

NAMES = ("cat", "dog <b>", "eel", "fox", "gnu", "hen")
FACTS = {"date": "today"}


def reported(logits, targets, labels=NAMES, names=None, keep_logits=False):
    """The report, its answers and its source."""
    part = part_of(targets, names or labels)
    given = answers(classifier_of(logits, labels), part, keep_logits)
    return report(given, part.source, "a model", "some images", FACTS), given, part.source


@pytest.fixture(scope="module")
def whole():
    """A report with everything."""
    logits, targets = random_answers(90, 6, scale=3)
    found, given, source = reported(logits, targets, keep_logits=True)
    noise, _ = random_answers(90, 6, seed=9)
    other = answered(logits + noise, targets, NAMES)
    found = replace(found, calibration=calibrate(given), other="other", paired=paired(given, other))
    return found, given, source


def test_the_json_holds_what_was_counted(whole):
    found, given, _ = whole
    values = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert values["metrics"]["top1"]["value"] == given.right.mean()
    assert np.trace(np.array(values["confusion"])) == given.right.sum()
    assert sum(row["images"] for row in values["classes"]) == len(given)
    assert sum(row["images"] for row in values["reliability"]) == len(given)
    assert values["coverage"][0]["coverage"] == 1
    wrong = np.flatnonzero(~given.right)
    assert sorted(row["index"] for row in values["mistakes"]) == wrong.tolist()
    first = values["mistakes"][0]
    assert first["confidence"] == given.confidence[wrong].max()
    assert first["true"] == NAMES[given.truth[first["index"]]]
    unit = values["paired"]["differences"]["top1"]["difference"]["unit"]
    assert unit == "difference of share"
    assert values["calibration"]["temperature"] > 0


@pytest.mark.whole_reports
def test_the_page_shows_all_and_obeys_no_name(whole, tmp_path):
    found, given, source = whole
    page = write_report(tmp_path / "page.html", found, source).read_text()
    texts = [
        found.metrics[0].unit.text(found.metrics[0].value),
        "dog &lt;b&gt;",
        "balanced_accuracy",
    ]
    texts += ["McNemar", "Fitted temperature", "Only the first is right", "prefers-color-scheme"]
    for text in texts:
        assert text in page, text
    assert "dog <b>" not in page
    assert "http:" not in page and "https:" not in page and "src=" in page  # needs no other file
    pictures = min((~given.right).sum(), 24)
    assert len(re.findall("<figcaption", page.split("Most confident mistakes")[1])) == pictures


def test_tiles_say_what_is_true_and_what_was_answered(whole):
    found, _, source = whole
    mistake, tile = found.mistakes[0], mistake_tiles(found, source)[0]
    assert tile.caption == f"{mistake.confidence:.0%} {mistake.predicted}"
    assert tile.note == f"is {mistake.true}"
    for first_right in (True, False):
        tiles = disagreement_tiles(found.paired, source, first_right)
        assert tiles and all(tile.right is False for tile in tiles)


# Unusual data


def test_the_weakest_class_is_the_one_that_is_weak_for_certain():
    rare = ClassScore("rare", 1, 0.0, (0.0, 0.79), 0.0, 0.0, "cat")
    often = ClassScore("trash", 27, 9 / 27, (0.19, 0.52), 0.5, 0.4, "metal")
    good = ClassScore("cat", 30, 1.0, (0.89, 1.0), 1.0, 1.0, "")
    assert weakest([good, rare, often]) == (
        "weakest class: trash, 33 % of 27 right; most often taken for metal"
    )
    assert weakest([good]) is None


def test_a_mistake_is_named_and_leads_to_its_file(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    photograph = tmp_path / "photos" / 'a "b" & #c.png'
    photograph.parent.mkdir()
    Image.fromarray(pixels).save(photograph)
    tile = Tile(pixels, "94% bees", False, "is ants", str(photograph))
    (tmp_path / "runs").mkdir()
    shown = gallery([tile], folder=tmp_path / "runs")
    assert 'href="../photos/a%20%22b%22%20%26%20%23c.png"' in shown
    assert str(tmp_path) not in shown.replace("alt=", "").split("href")[1]
    assert ": 94% bees, is ants" in shown and "<b>" not in shown
    elsewhere = gallery([tile._replace(name="shard.parquet row 3")], folder=tmp_path)
    assert "href" not in elsewhere and "shard.parquet row 3</small>" in elsewhere


def test_a_perfect_model_has_a_report(tmp_path):
    found, _, source = reported(8 * torch.eye(6), range(6))
    page = write_report(tmp_path / "page.html", found, source).read_text()
    assert "None: every answer is right." in page and "Most confident mistakes" not in page


def test_one_class_is_said():
    logits, _ = random_answers(20, 6)
    found, _, _ = reported(logits, [2] * 20)
    assert any("all images are of one class, eel" in note for note in found.notes)


def test_classes_without_an_image_are_said():
    logits, targets = random_answers(30, 6)
    found, _, _ = reported(logits, targets % 4, names=NAMES)
    assert any("2 of the data's 6 classes have no image here (gnu, hen)" in n for n in found.notes)
    assert [score.name for score in found.classes] == list(NAMES[:4])


def test_ties_are_said():
    found, _, _ = reported(torch.zeros(9, 6), [0, 1, 2] * 3)
    assert any("on 9 images several classes have the highest" in note for note in found.notes)


def test_outputs_that_are_not_finite_leave_a_sentence(tmp_path):
    logits, targets = random_answers(20, 6)
    logits[3] = math.nan
    found, _, source = reported(logits, targets)
    assert "for 1 of 20 images are not finite" in found.notes[0]
    page = write_report(tmp_path / "page.html", found, source).read_text()
    assert "nan %" in page and "not finite" in page
    json.dumps(found.to_json(), allow_nan=False)


def test_a_thousand_classes_fit_on_a_page(tmp_path):
    logits, targets = random_answers(300, 60)
    labels = tuple(f"class {k}" for k in range(60))
    found, _, source = reported(logits, targets, labels)
    page = write_report(tmp_path / "page.html", found, source).read_text()
    assert "These are the 30 of" in page and "All other classes" in page
