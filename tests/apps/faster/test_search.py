"""A search among small models in PyTorch: what it tries, what it finds, and what is written."""

import json

import numpy as np
import pytest
from described import figure_in_words
from PIL import Image

import vitkit
from vitkit.apps.faster.bodies import Shape, operations, shapes
from vitkit.apps.faster.figures import cells, line_figure
from vitkit.apps.faster.losses import SAME, Loss
from vitkit.apps.faster.pareto import ParetoLine, Point
from vitkit.apps.faster.races import Round, SearchGoal
from vitkit.apps.faster.searching import search
from vitkit.apps.faster.subjects import of_data
from vitkit.apps.faster.writing import write
from vitkit.data import Preprocessing, open_source
from vitkit.data.sources.bursts import Bursts
from vitkit.evaluation import compute_features, fit_probe, with_probe
from vitkit.models import create, vit
from vitkit.weights import Classifier, load, save

COLOURS = ("blue", "green", "red")
WHOLE = Shape((32, 32), 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of three blocks that tells three colours apart, and photographs of noise in these."""
    folder = tmp_path_factory.mktemp("searched")
    random = np.random.default_rng(0)
    for channel, colour in enumerate(("red", "green", "blue")):
        (folder / "photos" / colour).mkdir(parents=True)
        for number in range(28):
            pixels = random.integers(0, 130, (32, 32, 3), dtype=np.uint8)
            pixels[..., channel] += np.uint8(random.integers(0, 60))
            Image.fromarray(pixels).save(folder / "photos" / colour / f"{number:02}.png")
    photos = str(folder / "photos")
    config = vit("mu/8", image=(32, 32), width=16, mlp=32, depth=3, classes=3)
    classifier = Classifier(create(config, seed=0), Preprocessing((32, 32)), COLOURS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "vitkit.data.sources.bursts.find_bursts",
            lambda source: Bursts(np.arange(len(source)), 0),
        )
        learned = compute_features(classifier.for_inference(), open_source(photos), cached=False)
        fitted = fit_probe("linear", learned.x, learned.y, 3)
        save(with_probe(classifier, fitted, COLOURS, "softmax"), folder / "model")
        yield folder


@pytest.fixture(scope="module")
def subject(folder):
    """The model, evaluated on every second photograph."""
    return of_data(load(folder / "model", quiet=True), str(folder / "photos"))


@pytest.fixture(scope="module")
def of_blocks(tmp_path_factory):
    """A model takes a millisecond for each block."""
    shortest = Round(1, 1e-6, 1.2)
    changes = {
        "races.RACE": shortest,
        "races.ROUNDS": (shortest, shortest),
        "races.is_worth_measuring": lambda *_: False,
        "races.Race.milliseconds": lambda race, candidate: candidate.shape.blocks,
        "bodies.SMALLER": (2 / 3,),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name, value in changes.items():
            patch.setattr(f"vitkit.apps.faster.{name}", value)
        yield


@pytest.fixture(scope="module")
def found(subject, of_blocks):
    """What the search finds."""
    return search(subject, SearchGoal("latency", 600.0, ("torch",)))


def test_shapes_have_fewer_blocks_smaller_images_or_merged_tokens(subject):
    """Of 16 patches and the class token; the work of a block is that of its layers."""
    tried = shapes(subject.classifier, can_merge=False)
    sizes = [(shape.image, shape.blocks, shape.merge) for shape in tried]
    assert sizes[0] == ((32, 32), 3, 0) and ((32, 32), 2, 0) in sizes
    assert {image for image, *_ in sizes} == {(32, 32), (24, 24), (16, 16)}
    merged = shapes(subject.classifier, can_merge=True)[len(tried) :]
    assert [(shape.image, shape.blocks, shape.merge) for shape in merged] == [((32, 32), 3, 1)]
    shares = {
        WHOLE: 1.0,
        WHOLE._replace(blocks=2): 0.757,
        WHOLE._replace(image=(16, 16)): 0.2506,
        merged[0]: 16 / 17,  # blocks of 17, 16 and 15 tokens
    }
    whole = operations(subject.classifier, WHOLE)
    for shape, share in shares.items():
        assert operations(subject.classifier, shape) / whole == pytest.approx(share, rel=1e-3)


def test_a_line_has_the_whole_model_and_those_that_are_faster(subject, found):
    line = found.line
    assert line.reference.name == "PyTorch float32" and line.reference.milliseconds == 3
    assert (line.images, line.batch, line.left_out) == (42, 1, ())
    assert line.tested == 33  # the other fifth puts the candidates in order
    by_name = {point.name: point for point in line.points}
    assert list(by_name)[:2] == ["PyTorch float32", "PyTorch float32, 2 blocks"]
    assert [point.name for point in line.best] == list(by_name)[:2]
    for name, point in by_name.items():
        shape = found.candidates[name].shape
        assert (point.image, point.blocks) == (shape.image, shape.blocks)
        assert point.milliseconds == shape.blocks and point.library == "torch"
        assert (point.loss == SAME) == (shape == WHOLE)
    assert by_name["PyTorch float32, 2 blocks"].loss.at_most > 0.05
    assert found.needed(by_name["PyTorch float32"], 0.01) is None


def test_what_is_written_answers_as_the_candidate(subject, found, tmp_path):
    point = found.line.points[1]
    written = write(subject, found, point, tmp_path / "fast")
    again = load(tmp_path / "fast", quiet=True)
    assert again.model.config.depth == 2 and again.labels == COLOURS
    assert again.origin["faster"] == written.origin["faster"] == point.name
    few = [subject.evaluated.picture(i) for i in range(len(subject.evaluated))]
    right = again.logits(again.batch(few)).argmax(1).numpy() == subject.evaluated.targets
    assert right.mean() > 0.8
    with pytest.raises(ValueError, match="written under a name that ends in nothing"):
        write(subject, found, point, tmp_path / "fast.onnx")


def test_the_command_says_what_it_chose_and_what_to_do_next(folder, found, tmp_path):
    model, photos = str(folder / "model"), str(folder / "photos")
    numbers = tmp_path / "line.json"
    asked = {"data": photos, "report": numbers, "quiet": True}
    made = vitkit.faster(model, lose=40, output=tmp_path / "fast", **asked)
    two = "PyTorch float32, 2 blocks"
    assert made.chosen.name == two
    best = [(row["name"], row["chosen"]) for row in made.rows() if row["best"]]
    assert best == [("PyTorch float32", False), (two, True)]
    loss = made.chosen.loss
    first, promise, by_chance, *others = made.sentences
    assert first.startswith(f"chosen: {two}, ") and not others
    assert promise == (
        f"it loses less than 40 points, as asked, at 95 % confidence, by 33 of 42 images of {photos}: "
        f"there it is right 0.0 points less often (a loss of {100 * loss.low:.1f} to {100 * loss.high:.1f})"
    )
    assert "on 33 others, it may lose up to " in by_chance
    shown = str(made).splitlines()
    assert shown[-4:-2] == [f"wrote {made.path}", f"wrote {numbers}"]
    assert shown[-2].startswith(f"next: vitkit.predict('{made.path}', images), or vitkit.serve(")
    assert shown[-1].startswith("another model of the line: vitkit.faster(")
    assert shown[-1].endswith("at_most='3.03ms') (PyTorch float32)")
    written = json.loads(numbers.read_text())
    assert written["chosen"] == two and written["lose"] == 40 and len(written["points"]) >= 2

    # Of a time, the most accurate
    exact = vitkit.faster(model, at_most="3ms", output=tmp_path / "exact", **asked)
    assert exact.chosen.name == "PyTorch float32"
    assert exact.sentences[1:] == (
        "it computes the same numbers up to rounding, so it loses nothing",
    )
    assert exact.other().endswith(f"at_most='2.02ms') ({two})")
    with pytest.raises(ValueError, match="no model takes 1 ms or less: the fastest is .*2 blocks"):
        vitkit.faster(model, at_most="1ms", output=tmp_path / "none", **asked)


def test_a_line_is_drawn_from_the_whole_model_to_the_fastest():
    def point(name, milliseconds, *loss):
        return Point(
            name,
            "torch",
            "float32",
            (32, 32),
            3,
            0,
            milliseconds,
            8 / milliseconds,
            1.5,
            Loss(*loss),
        )

    whole = point("whole", 8.0, 0, 0, 0, 0, 0, 0)
    half = point("half", 4.0, 0.02, 0.03, 0.01, 0.05, 0.06, 0.1)
    worse = point("worse", 5.0, 0.2, 0.3, 0.25, 0.35, 0.4, 0.5)
    line = ParetoLine(whole, (whole, worse, half), 500, "photos", 400, 32)
    assert figure_in_words(line_figure(line, half)) == [
        "axes |  | milliseconds of an image, 32 at a time "
        "| points of accuracy lost, on 400 images | log | linear",
        "  the whole model in PyTorch: 1 points, 8 to 8, 0 to 0; s None #8c959f",
        "  others: 1 points, 5 to 5, 30 to 30; o None #8c959f",
        "  _nolegend_: 2 points, 4 to 8, 0 to 3; o - #0072b2",
        "  _nolegend_: 2 points, 4 to 8, 0 to 1; _ None #0072b2",
        "  _nolegend_: 2 points, 4 to 8, 0 to 5; _ None #0072b2",
        "  at most: 2 points, 4 to 8, 0 to 6; _ None #d55e00",
        "  chosen: half: 1 points, 4 to 4, 3 to 3; * None #d55e00",
        "  : 2 points, 0 to 1, 0 to 0; None - #8c959f",
        "  the whole model in PyTorch | others | at most | chosen: half | the line, at 95 %",
    ]
    assert cells(whole) == ("whole", "8.0", "1.00", "1.5", "the same numbers", "0")
    assert cells(half) == ("half", "4.0", "2.00", "1.5", "3.0 (1.0 to 5.0)", "6.00")
