"""`vitkit faster`: bodies whose features are those of the models that are written, a search that goes on, a
file that answers as its candidate did, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from margins import at_least, at_most
from PIL import Image

import vitkit
from vitkit.apps.faster.bodies import (
    Arithmetic,
    Body,
    Shape,
    model_of,
    operations,
    own_reading,
    reading_of,
    shapes,
)
from vitkit.apps.faster.function import duration
from vitkit.apps.faster.heads import head_of, keeps_head
from vitkit.apps.faster.races import Race, Round, SearchGoal
from vitkit.apps.faster.searching import search
from vitkit.apps.faster.subjects import of_data, of_run
from vitkit.cli.entry import main
from vitkit.cli.spelling import as_command
from vitkit.data import Preprocessing, open_source, subset
from vitkit.data.sources.bursts import Bursts
from vitkit.evaluation import compute_features, distilled, rounded
from vitkit.exporting import measure
from vitkit.finetuning import head_on
from vitkit.models import OF_THE_PAPER, create, vit
from vitkit.system.functions.steps import steps_as
from vitkit.weights import Classifier, load, save

TORCH = Arithmetic("torch", "float32")
COLOURS = ("blue", "green", "red")


@pytest.fixture(scope="module", autouse=True)
def no_bursts():
    """Photographs of noise are no bursts, and looking for them takes longer than most of these tests. A run's
    model is the solved one, whichever answers more of so few images rightly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.finetuning.from_folder.best", lambda tried, weights: tried[0])
        patch.setattr(
            "vitkit.data.sources.bursts.find_bursts",
            lambda source: Bursts(np.arange(len(source)), 0),
        )
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with photographs of noise in three colours, a run on them, and a model of them."""
    folder = tmp_path_factory.mktemp("faster")
    generator = np.random.default_rng(0)
    for channel, colour in enumerate(("red", "green", "blue")):
        (folder / "photos" / colour).mkdir(parents=True)
        for number in range(40):
            pixels = generator.integers(0, 130, (36, 36, 3), dtype=np.uint8)
            pixels[..., channel] += np.uint8(generator.integers(0, 60))
            Image.fromarray(pixels).save(folder / "photos" / colour / f"{number:02}.png")
    make_run(folder, "mu", "run", depth=6)
    return folder


@pytest.fixture(scope="module")
def shallow(place):
    """The same with a run of two blocks, which every library writes in a second or two."""
    make_run(place, "mu2", "run2", depth=2)
    return place


def make_run(folder, model, run, depth):
    """A model of so many blocks, and a run that began with it, in the precision of the search, whatever
    this processor computes in by default."""
    network = create(vit("mu/8", image=(32, 32), depth=depth, classes=2), seed=0)
    save(Classifier(network, Preprocessing((32, 32)), ("a", "b")), folder / model)
    words = [str(folder / model), str(folder / "photos"), "--workdir", str(folder / run)]
    words += ["--minutes", "0.001", "--device", "cpu", "--precision", "float32"]
    assert main(["finetune", *words]) == 0


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Speeds are measured in no time: these tests do not look at them."""
    shortest = Round(1, 1e-6, 1.2)
    monkeypatch.setattr("vitkit.apps.faster.races.RACE", shortest)
    monkeypatch.setattr("vitkit.apps.faster.races.ROUNDS", (shortest, shortest))


@pytest.fixture
def few_shapes(monkeypatch):
    """One shorter body is enough where every library writes its files."""
    for name, shares in (("SHORTER", (8 / 12,)), ("SMALLER", ()), ("MERGED", ())):
        monkeypatch.setattr(f"vitkit.apps.faster.bodies.{name}", shares)


def subject(place):
    return of_run(load(place / "run", quiet=True), place / "run")


def searched(place, seconds=600.0):
    return search(subject(place), SearchGoal("latency", seconds, ("torch",)))


@pytest.mark.slow
def test_a_pass_has_the_features_of_every_number_of_blocks(place):
    own = subject(place)
    few = subset(own.evaluated, [0, 50, 90])
    for shape in (Shape((32, 32), 6), Shape((32, 32), 3), Shape((24, 24), 2)):
        body = Body(own, TORCH, shape.image)
        reads = reading_of(own.classifier, shape, len(own.fitted))
        x = body.read(body.states(few), shape, reads)
        model = model_of(own.classifier, shape, reads)
        expected = compute_features(model.for_inference(), few, cached=False).x
        assert model.model.config.depth == shape.blocks
        np.testing.assert_allclose(x, rounded(expected), atol=2e-3)


@pytest.mark.slow
def test_what_can_be_left_out_of_a_model(place):
    own = subject(place).classifier
    found = shapes(own, can_merge=False)
    assert found[0] == Shape((32, 32), 6) and Shape((24, 24), 3) in found
    assert all(shape.image[0] % 8 == 0 and shape.merge == 0 for shape in found)
    work = [operations(own, shape) for shape in found]
    assert work[0] == max(work) and min(work) > 0
    merged = [shape for shape in shapes(own, can_merge=True) if shape.merge]
    assert merged and all(shape.blocks == 6 for shape in merged)
    assert operations(own, merged[0]) < work[0]
    assert Shape((24, 24), 3, 1).text(found[0]) == "3 blocks, 24 x 24, 1 merged"


@pytest.mark.slow
def test_the_images_of_a_run_are_answered_by_fits_without_them(place):
    own = subject(place)
    assert own.is_left_out and len(own.evaluated) == 96  # and not the 24 of the test part
    whole = Shape((32, 32), 6)
    body = Body(own, TORCH, (32, 32))
    head = head_of(own, body, whole, TORCH)
    assert head.reads == own_reading(own.classifier)

    # It is the head of the run: the last digits of features move its logits by a few hundredths of their
    # spread, and the run's training part alone, say, by a fifth and more
    x = body.read(body.states(own.evaluated), whole, head.reads)
    in_sample = head.logits(own.classifier, x)
    own_logits = head_on(own.classifier, x)
    at_most((in_sample - own_logits).abs().max().item(), 0.1 * own_logits.std().item())

    # And what answers an image without having learned from it is not better than what has
    right = (head.answers.argmax(1).numpy() == own.evaluated.targets).mean()
    assert right <= (in_sample.argmax(1).numpy() == own.evaluated.targets).mean()


def test_a_distilled_head_has_the_models_answers():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 8, generator=generator)
    logits = x @ torch.randn(8, 3, generator=generator) + 2.0
    weight, bias = distilled(x, logits)
    found = x.double() @ weight.mT + bias
    assert (found - logits).abs().max() < 0.02


@pytest.mark.slow
def test_a_model_that_is_no_run_is_judged_on_images_that_are_named(place):
    classifier = load(place / "run" / "model", quiet=True)
    own = of_data(classifier, str(place / "photos"))
    assert not own.is_left_out
    assert not set(own.evaluated.rows) & set(own.fitted.rows)
    whole = Shape((32, 32), 6)
    head = head_of(own, Body(own, TORCH, (32, 32)), whole, TORCH)
    assert keeps_head(classifier, whole, head.reads) and head.weight is None
    few = subset(own.evaluated, [0, 1])
    expected = classifier.logits(classifier.batch([few.picture(0), few.picture(1)]))
    np.testing.assert_allclose(head.answers[:2], expected, atol=0.05)
    shorter = head_of(own, Body(own, TORCH, (32, 32)), Shape((32, 32), 4), TORCH)
    assert shorter.weight.shape[0] == 3 and len(shorter.answers) == len(own.evaluated)


@pytest.mark.slow
def test_images_of_a_group_stay_on_one_side(place, monkeypatch):
    """Photographs of one animal, say, as `--data` without parts is divided."""
    source = open_source(str(place / "photos"))
    groups = np.arange(len(source)) // 5
    monkeypatch.setattr(
        "vitkit.apps.faster.subjects.source_at", lambda data, typed: replace(source, groups=groups)
    )
    own = of_data(load(place / "run" / "model", quiet=True), str(place / "photos"))
    fitted, evaluated = set(own.fitted.groups), set(own.evaluated.groups)
    assert fitted | evaluated == set(groups) and not fitted & evaluated


@pytest.mark.slow
def test_images_of_other_classes_are_left_out(place, tmp_path, capsys):
    photos = shutil.copytree(place / "photos", tmp_path / "photos")
    (photos / "blue").rename(photos / "violet")
    own = of_data(load(place / "run" / "model", quiet=True), str(photos))
    known = COLOURS.index("green"), COLOURS.index("red")
    assert set(own.evaluated.targets.tolist()) == set(known) and own.evaluated.labels == COLOURS
    said = " ".join(capsys.readouterr().err.split())
    assert f"images of {photos}, of classes that the model does not have" in said


@pytest.mark.slow
def test_a_run_whose_images_are_gone_takes_others(place, tmp_path, capsys):
    run_dir = shutil.copytree(place / "run", tmp_path / "run")
    for name in ("data.json", "recipe.json"):
        text = (run_dir / name).read_text()
        (run_dir / name).write_text(text.replace(str(place / "photos"), str(tmp_path / "gone")))
    own = load(run_dir, quiet=True)
    with pytest.raises(ValueError, match=r"no folder.*name images .* with `data`"):
        of_run(own, run_dir)
    capsys.readouterr()
    of_data(own, str(place / "photos"), run_dir)
    said = " ".join(capsys.readouterr().err.split())
    assert f"images that {run_dir} has learned from is not known" in said


@pytest.mark.slow
def test_a_search_that_was_cut_short_goes_on_to_the_same_end(
    place, few_shapes, monkeypatch, tmp_path
):
    monkeypatch.setattr("vitkit.apps.faster.bodies.SMALLER", (8 / 12,))
    cut = searched(place, seconds=1e-6)
    assert cut.line.left_out and cut.line.points
    ended = searched(place)
    assert not ended.line.left_out and len(ended.evaluated) > len(cut.evaluated)

    # It is what an uninterrupted search finds
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "another cache"))
    other = searched(place)
    # bfloat16 is tried where it was the faster
    both = ended.evaluated.keys() & other.evaluated.keys()
    assert "PyTorch float32, 4 blocks" in both
    for name in both:
        evaluated = ended.evaluated[name]
        assert evaluated == other.evaluated[name]

    # And a search that has ended computes nothing again
    def nothing(*_, **__):
        raise AssertionError("it is computed again")

    monkeypatch.setattr("vitkit.apps.faster.races.measure", nothing)
    monkeypatch.setattr("vitkit.evaluation.probes.features._compute", nothing)
    assert searched(place).line == other.line


@pytest.mark.slow
def test_turns_end_with_the_time_and_go_on_where_they_ended(
    place, few_shapes, monkeypatch, tmp_path
):
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    calls = []

    def counted(implementations, images, plan):
        calls.append(plan.seconds)
        return measure(implementations, images, plan)

    monkeypatch.setattr("vitkit.apps.faster.races.measure", counted)
    monkeypatch.setattr("vitkit.apps.faster.races.RACE", Round(3, 1e-6, 1.2))
    rounds = (Round(2, 2e-6, 1e9), Round(3, 3e-6, 1e9))
    monkeypatch.setattr("vitkit.apps.faster.races.ROUNDS", rounds)
    cut = searched(place, seconds=1e-6)
    assert calls == [1e-6, 2e-6] and "measuring for longer" in cut.line.left_out
    calls.clear()
    ended = searched(place)
    assert calls[:2] == [1e-6] * 2 and calls[-3:] == [3e-6] * 3 and not ended.line.left_out

    # What the first race has left for later is no part that there was no time for
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "another cache"))
    monkeypatch.setattr("vitkit.apps.faster.races.FIRST", 0.0)
    calls.clear()
    later = searched(place)
    assert calls.count(1e-6) == 3 and not later.line.left_out


@pytest.mark.slow
def test_the_file_that_is_written_answers_as_the_candidate_did(place, few_shapes, tmp_path):
    made = vitkit.faster(str(place / "run"), lose=60, output=tmp_path / "fast", quiet=True)
    assert made.chosen.library == "torch" and made.path == tmp_path / "fast"
    written = load(made.path, quiet=True)
    assert written.labels == COLOURS and written.unknown is not None
    assert written.origin["faster"] == made.chosen.name

    own = subject(place)
    shape = Shape(made.chosen.image, made.chosen.blocks)
    body = Body(own, Arithmetic("torch", made.chosen.precision), shape.image)
    head = head_of(own, body, shape, TORCH)
    x = body.read(body.states(own.evaluated), shape, head.reads)
    few = [own.evaluated.picture(i) for i in range(8)]
    expected = head.logits(own.classifier, x[:8])
    np.testing.assert_allclose(written.logits(written.batch(few)), expected, atol=0.1)

    # What is returned is the line as values
    rows = made.rows()
    assert {"milliseconds", "at_most", "lost", "best"} <= set(rows[0])
    assert sum(row["chosen"] for row in rows) == 1
    text = str(made)
    assert "chosen: " in text and f"wrote {made.path}" in text and "next: vitkit.predict(" in text
    assert (tmp_path / "fast.html").read_text().count("<img") >= 1

    # Another point is a command that can be pasted
    slow = made.line.reference
    fast = slow._replace(name="fast", milliseconds=slow.milliseconds / 2)
    fast = fast._replace(loss=slow.loss._replace(distance=0.1, at_most=0.1))
    line = replace(made.line, points=(slow, fast))
    with_other = replace(made, line=line, chosen=slow, model="my run", search={})
    assert with_other.other().startswith("vitkit.faster('my run', at_most='")
    with steps_as(as_command):
        command = with_other.other()
    assert command.startswith("vitkit faster 'my run' --at-most ") and command.endswith("(fast)")


@pytest.mark.slow
def test_any_model_is_judged_on_images_that_are_named(
    place, few_shapes, tmp_path, capsys, monkeypatch
):
    # What has fewer blocks is faster, whatever so few and small images take here
    monkeypatch.setattr(Race, "milliseconds", lambda race, candidate: candidate.shape.blocks)
    model, photos = str(place / "run" / "model"), str(place / "photos")
    words = ["faster", model, "--data", photos, "-o", str(tmp_path / "fast"), "--lose", "90"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert f"evaluating on 24 images of {photos}" in " ".join(printed.err.split())
    written = load(tmp_path / "fast", quiet=True)
    assert written.labels == COLOURS
    depth = written.model.config.depth
    assert depth < 6 and written.unknown is None  # another head: its limits are not the model's
    few = open_source(photos)
    images = written.batch([few.picture(i) for i in range(len(few))])
    right = written.logits(images).argmax(1).numpy() == few.targets
    at_least(right.mean(), 0.5)  # distilled from a model that knows the colours


@pytest.mark.slow
def test_as_a_command_with_a_time_instead_of_a_loss(place, few_shapes, tmp_path, capsys):
    numbers = tmp_path / "line.json"
    picture = tmp_path / "line.png"
    words = ["faster", str(place / "run"), "-o", str(tmp_path / "fast"), "--for", "throughput"]
    assert main([*words, "--at-most", "1h", "--report", str(numbers), str(picture)]) == 0
    out = capsys.readouterr().out
    # With that much time, nothing is lost
    assert "chosen: PyTorch" in out and "the same numbers" in out
    written = json.loads(numbers.read_text())
    assert written["batch"] == 32 and written["points"]
    with Image.open(picture) as drawn:
        assert drawn.size[0] > 500
    assert main([*words, "--at-most", "0.000001ms"]) == 1
    assert "no model takes 1e-06 ms or less: the fastest is " in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_not_fast_enough_in_a_short_search_may_be_found_in_a_longer_one(
    place, few_shapes, capsys
):
    photos, model = str(place / "photos"), str(place / "run" / "model")
    words = ["faster", model, "--data", photos, "-o", str(place / "none"), "--budget", "1ms"]
    assert main([*words, "--at-most", "0.000001ms"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "no model takes 1e-06 ms or less" in said and "the same command continues" in said


@pytest.mark.slow
def test_a_reading_follows_what_the_model_reads(place):
    own = subject(place).classifier
    assert reading_of(own, Shape((32, 32), 6), 96) == own_reading(own)
    shorter = reading_of(own, Shape((32, 32), 3), 96)
    assert shorter.pool in ("token-gap", own.model.config.pool) and shorter.blocks <= 3
    assert reading_of(own, Shape((32, 32), 6, 1), 96) == OF_THE_PAPER


@pytest.mark.slow
def test_finetune_ends_with_the_search(shallow, few_shapes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vitkit.apps.faster.bodies.SHORTER", ())
    # One of three libraries: another test has the others' files
    monkeypatch.setattr("vitkit.apps.faster.function.LIBRARIES", ("torch",))
    words = [str(shallow / "mu2"), str(shallow / "photos")]
    words += ["--workdir", str(tmp_path / "run"), "--fast"]
    assert main(["finetune", *words, "--minutes", "0.001", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "weakest class" in out or "closed form" in out
    assert f"wrote {tmp_path / 'run' / 'faster'}" in out
    assert main(["finetune", *words, "--preset", "none"]) == 1
    assert "--fast goes with --preset quick" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        pytest.param(
            KeyboardInterrupt(),
            "interrupted, so no faster model is written; vitkit faster ",
            id="interrupted",
        ),
        pytest.param(
            RuntimeError("NNCF is too new\nand more"),
            "no faster model: NNCF is too new\n",
            id="fails",
        ),
        pytest.param(OSError("no space"), "no faster model: no space", id="full"),
    ],
)
@pytest.mark.slow
def test_a_run_ends_well_whatever_its_search_raises(
    place, tmp_path, capsys, monkeypatch, error, sentence
):
    def fail(*_):
        raise error

    monkeypatch.setattr("vitkit.apps.faster.function.search", fail)
    words = [str(place / "mu"), str(place / "photos"), "--workdir", str(tmp_path / "run")]
    words += ["--minutes", "0.001", "--device", "cpu", "--fast"]
    assert main(["finetune", *words]) == 0
    printed = capsys.readouterr()
    assert sentence in printed.out and "weakest class" in printed.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--lose 0", "--lose is 0; it is in points of accuracy"),
        ("--lose 100", "above 0 and below 100"),
        ("--budget soon", "--budget is 'soon'; it is a time such as 10m"),
        ("--at-most 15", "--at-most is '15'; it is a time such as 15ms"),
        ("-o model.pt2", "give the name of a file that ends in .onnx or .xml"),
        ("--report line.txt", "its name ends in .json, .png, .svg, .html"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_is_a_sentence(place, capsys, words, sentence):
    assert main(["faster", str(place / "run"), *words.split()]) == 1
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_page_of_somebodys_is_found_before_the_search(place, tmp_path, capsys):
    (tmp_path / "mine.html").write_text("my own page")
    assert main(["faster", str(place / "run"), "-o", str(tmp_path / "mine.onnx")]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "mine.html is there, and is not as vitkit wrote it" in said
    assert "evaluating on" not in said


@pytest.mark.slow
def test_without_images_to_judge_by_it_is_a_sentence(place, tmp_path, capsys):
    # A model that answers; the one beside the run has a head of zeros
    classifier = load(place / "mu", quiet=True)
    torch.nn.init.normal_(classifier.model.head.weight)
    save(classifier, tmp_path / "answers")
    assert main(["faster", str(tmp_path / "answers")]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "is not a run, so there are no held-out images" in said
    assert "--data" in said
    assert main(["faster", str(place / "mu")]) == 1
    assert "head is all zeros" in " ".join(capsys.readouterr().err.split())

    for number in range(4):
        image = Image.new("RGB", (32, 32), (number, 0, 0))
        path = tmp_path / "few" / "red" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    assert main(["faster", str(place / "run" / "model"), "--data", str(tmp_path / "few")]) == 1
    assert "are needed" in " ".join(capsys.readouterr().err.split())


def test_a_model_that_is_not_there_is_a_sentence(tmp_path, capsys):
    assert main(["faster", str(tmp_path / "nothing"), "-o", str(tmp_path / "fast")]) == 1
    assert "there is nothing at" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_model_of_several_classes_an_image_is_refused(place, tmp_path, capsys):
    classifier = load(place / "run" / "model", quiet=True)
    several = Classifier(classifier.model, classifier.preprocessing, classifier.labels, "sigmoid")
    save(several, tmp_path / "several")
    assert main(["faster", str(tmp_path / "several"), "--data", str(place / "photos")]) == 1
    assert "its activation is 'sigmoid'" in " ".join(capsys.readouterr().err.split())


def test_a_time_is_read():
    times = [duration(text, "--budget", "10m") for text in ("15ms", "90s", "10m", "1h", "1.5 min")]
    assert times == [0.015, 90.0, 600.0, 3600.0, 90.0]


@pytest.mark.parametrize("ending", [".xml", ".onnx"])
@pytest.mark.slow
def test_an_exported_file_from_the_search_to_an_answer(
    shallow, few_shapes, tmp_path, capsys, monkeypatch, ending
):
    pytest.importorskip("onnxscript")
    pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    if ending == ".xml":  # shorter bodies are graphs as well, and ONNX Runtime's files have them
        monkeypatch.setattr("vitkit.apps.faster.bodies.SHORTER", ())
    output = tmp_path / f"fast{ending}"
    words = ["faster", str(shallow / "run2"), "--lose", "50", "-o", str(output)]
    assert main([*words, "--budget", "1h"]) == 0
    out = capsys.readouterr().out
    assert f"wrote {output}" in out and output.is_file()
    assert json.loads(Path(f"{output}.json").read_text())["made"]
    photograph = str(shallow / "photos" / "red" / "00.png")
    assert main(["predict", str(output), photograph, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"][0] in COLOURS
    if ending == ".onnx":
        assert main([*words, "--budget", "1h", "--at-most", "1h"]) == 0  # its own file is replaced
