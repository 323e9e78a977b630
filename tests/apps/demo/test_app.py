"""What happens on the page of `vitkit app`, without a browser: answers, maps, corrections, a port."""

import io
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import encoded, needs_newer_pillow, photograph
from PIL import Image

from vitkit.apps.demo import html as app_html
from vitkit.apps.demo.answers import (
    ALL,
    MEAN,
    ONE,
    Choice,
    Correction,
    answer_file,
    correct,
    corrected,
    file_name,
    look,
    write_zip,
)
from vitkit.apps.demo.viewer import LARGEST_FILE, Viewer, drawn, open_photograph, patch_at, softened
from vitkit.cli.entry import main
from vitkit.data import Preprocessing, open_image
from vitkit.inspection import raw_attention, rollout
from vitkit.models import Backbone, ResNetConfig, create, vit
from vitkit.prediction import LIKELY, predict_items
from vitkit.web import listening_socket
from vitkit.weights import Classifier, Unknown

SMALL = vit("mu/8", image=(32, 48), classes=3, depth=2)
ROLLOUT = Choice(ALL, 1, MEAN, None)


def viewer(config=SMALL, labels=("ant", "bee", "cat"), activation="softmax") -> Viewer:
    """A random model for the page."""
    preprocessing = Preprocessing((32, 48), "shorter", 60)
    model = create(config, seed=0).eval()
    if config.classes:
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return Viewer("mine", Classifier(model, preprocessing, labels, activation))


@pytest.fixture
def payload(tmp_path):
    """payload(data, name): what gradio knows of an uploaded file."""

    def make(data: bytes, name: str = "bee.jpg") -> dict:
        (tmp_path / "upload").write_bytes(data)
        return {"path": str(tmp_path / "upload"), "orig_name": name}

    return make


def asked(given, viewers):
    """The answer to what was uploaded, to the folder in which it is."""
    folder = Path()
    if given is not None and given["path"]:
        folder = Path(given["path"]).parent
    return answer_file(given, viewers, folder)


PHOTOGRAPH = photograph(90, 160)
JPEG = encoded(PHOTOGRAPH, "JPEG")


def test_answers_are_those_of_predict(payload, tmp_path):
    own = viewer()
    current, sentence = asked(payload(JPEG), [own])
    (expected,) = predict_items(own.classifier, [str(tmp_path / "upload")], workers=0)
    names, values = zip(*current.answers[0].classes, strict=True)
    assert sentence == "" and names == expected.labels
    assert values == pytest.approx(expected.probabilities)


@pytest.mark.parametrize("limit", [-1e9, 1e9])
def test_doubts_are_those_of_predict_and_are_said(payload, tmp_path, limit):
    own = viewer()
    width = own.classifier.model.config.width
    limits = Unknown(
        means=torch.zeros(3, width),
        whitening=torch.eye(width),
        centre=torch.zeros(width),
        first=0,
        far=1,
        sure=1,
        limit=torch.full((3,), limit),
        least=torch.zeros(3),
    )
    own = replace(own, classifier=replace(own.classifier, unknown=limits))
    current, _ = asked(payload(JPEG), [own])
    (expected,) = predict_items(own.classifier, [str(tmp_path / "upload")], workers=0)
    doubt = current.answers[0].doubt
    assert (doubt.unknown, doubt.possible) == (expected.unknown, expected.possible)
    shown = app_html.answers(current.answers[0], "softmax")
    if limit < 0:
        assert "Unknown: it is unlike" in shown and "leaves open" not in shown
    else:
        # Without what is hardly likely, as the ant is by the weights that PyTorch draws today
        named = [
            label for label, probability in current.answers[0].classes if probability >= LIKELY
        ]
        assert f"It may also be: {', '.join(named)}." in shown


def test_maps_are_those_of_inspection(payload):
    own = viewer()
    current, _ = asked(payload(JPEG), [own])
    images = own.classifier.batch([open_image(JPEG, "a")])
    pixels = current.photograph.views[0].pixels
    assert pixels.shape == (427, 640, 3)  # the shape of 32 x 48
    (weights,) = rollout(own.classifier, images).numpy()
    picture, caption = look(current, 0, own, ROLLOUT)
    assert np.array_equal(picture, drawn(current.photograph.views[0], weights))
    assert "what reaches the class token through 2 layers" in caption

    (weights,) = raw_attention(own.classifier, images, 1, 0, (3, 5)).numpy()
    picture, caption = look(current, 0, own, Choice(ONE, 2, "1", (3, 5)))
    expected = drawn(current.photograph.views[0], softened(weights), (3, 5))
    assert np.array_equal(picture, expected)
    assert "Layer 2, head 1 of 2: where the framed patch (row 4, column 6) looks." in caption


def test_the_patch_at_a_pixel_is_the_one_that_is_framed(payload):
    own = viewer()
    current, _ = asked(payload(JPEG), [own])
    view = current.photograph.views[0]
    picture = drawn(view, np.ones(own.grid(view)), (3, 5))
    framed = np.argwhere((picture == [255, 196, 0]).all(-1))
    for y, x in (framed.min(0), framed.max(0)):
        assert patch_at(x, y, picture.shape[:2], own.grid(view)) == (3, 5)
    assert abs(len(np.unique(framed[:, 0])) - picture.shape[0] / 4) < 1
    assert patch_at(-5, 10_000, (80, 120), (4, 6)) == (3, 0)


@pytest.mark.parametrize("rule", ["native", "naflex"])
def test_a_model_of_whole_photographs_shows_all_of_a_panorama(payload, rule):
    config = vit("mu/8", image=(32, 32), classes=3, depth=2)
    preprocessing = Preprocessing((32, 32), rule, patch=(8, 8))
    classifier = Classifier(create(config, seed=0).eval(), preprocessing, ("a", "b", "c"))
    own = Viewer("mine", classifier)
    own.warm_up()
    assert "whole photographs on up to 16 patches" in own.facts
    current, _ = asked(payload(encoded(photograph(30, 300), "PNG"), "wide.png"), [own])
    view = current.photograph.views[0]
    rows, columns = own.grid(view)
    assert rows == 1 and columns > 9
    height, width = view.pixels.shape[:2]
    assert width / height == pytest.approx(10, rel=0.1)
    query = patch_at(width - 1, height - 1, (height, width), (rows, columns), view.tiling)
    assert query == (0, columns - 1)
    picture, caption = look(current, 0, own, Choice(ONE, 1, MEAN, query))
    assert picture.shape[:2] == (height, width) and f"column {columns}" in caption


def test_a_model_without_attention_shows_the_photograph_and_says_why(payload):
    config = ResNetConfig(Backbone((1, 1)), (32, 48), classes=3)
    own = viewer(config)
    current, _ = asked(payload(JPEG), [own])
    assert len(current.answers[0].classes) == 3
    picture, caption = look(current, 0, own, ROLLOUT)
    assert picture.ndim == 3 and "a ResNet has no attention among patches" in caption


def test_a_model_without_a_head_shows_what_it_looks_at(payload):
    own = viewer(replace(SMALL, classes=0), ())
    current, _ = asked(payload(JPEG), [own])
    assert "names no classes" in app_html.answers(current.answers[0], "softmax")
    assert "class token" in look(current, 0, own, ROLLOUT)[1]
    known, _ = correct(current, (), "a thing")
    assert known[0].predicted == ""


def test_a_head_of_zeros_names_no_classes(payload):
    untrained = Classifier(create("mu/16", classes=2), Preprocessing(), ("x", "y"))
    current, _ = asked(payload(JPEG), [Viewer("untrained", untrained)])
    assert current.answers[0].classes == ()
    sentence = "<p class=faint>The model has no trained head, so it names no classes.</p>"
    assert sentence in app_html.answers(current.answers[0], "softmax")
    assert "a head of zeros, so it names no classes" in Viewer("untrained", untrained).facts


def test_two_models_of_other_sizes_and_classes_answer_one_photograph(payload):
    first = viewer()
    network = create("mu/16", classes=2)
    torch.nn.init.normal_(network.head.weight)
    second = Viewer("other", Classifier(network, Preprocessing(), ("x", "y"), "sigmoid"))
    current, _ = asked(payload(JPEG), [first, second])
    assert [view.images.shape[2:] for view in current.photograph.views] == [(32, 48), (224, 224)]
    assert {name for name, _ in current.answers[1].classes} == {"x", "y"}
    assert "2 classes, 224 × 224 pixels" in second.facts


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "bee.jpg is empty"),
        (b"Dear photograph", "not an image of a format that is read here"),
        (JPEG[:2000], "bee.jpg cannot be decoded"),
        (encoded(photograph(2, 2), "PNG").replace(b"\0\0\0\2\0\0\0\2", b"\0\1\0\0\0\1\0\0"), "bee"),
    ],
    ids=["empty", "text", "truncated", "a bomb"],
)
def test_a_broken_file_is_a_sentence(payload, data, words):
    current, sentence = asked(payload(data), [viewer()])
    assert current is None and words in sentence


def test_strange_photographs_are_answered(payload, shared):
    """One of every format and mode: grey, 16-bit, palette, transparent, CMYK, animated."""
    own = viewer()
    manifest = shared("data/awkward_images/manifest.json")
    chosen = {}
    for facts in json.loads(manifest.read_text()):
        if facts["bytes"] < 300_000 and not needs_newer_pillow(facts["file"]):
            chosen[facts.get("format"), facts.get("mode"), facts["expect"] == "ok"] = facts
    for facts in chosen.values():
        file = manifest.parent / facts["file"]
        current, sentence = asked({"path": str(file), "orig_name": file.name}, [own])
        assert (current is None) == (facts["expect"] != "ok") == bool(sentence), file
    assert len(chosen) > 10


def test_a_file_that_is_too_large_is_a_sentence(payload, tmp_path):
    given = payload(JPEG)
    with (tmp_path / "upload").open("ab") as file:
        file.truncate(LARGEST_FILE + 1)
    assert "photographs of up to 50 MiB are accepted" in asked(given, [viewer()])[1]
    assert "no file arrived" in asked({"path": None, "url": "data:..."}, [viewer()])[1]
    assert asked(None, [viewer()]) == (None, "")


def test_no_other_file_of_the_machine_is_opened(payload, tmp_path):
    """Whoever sends a request chooses the path in it. The answer is the same for a photograph, a text and
    nothing at all."""
    own = viewer()
    uploads = tmp_path / "uploads"
    (uploads / "inside").mkdir(parents=True)
    (uploads / "bee.jpg").write_bytes(JPEG)
    (tmp_path / "private.jpg").write_bytes(JPEG)
    (tmp_path / "notes.txt").write_text("private")
    (uploads / "link.jpg").symlink_to(tmp_path / "private.jpg")
    (uploads / "circle").symlink_to(uploads / "circle")
    assert answer_file({"path": str(uploads / "bee.jpg")}, [own], uploads)[0] is not None
    paths = [
        tmp_path / "private.jpg", tmp_path / "notes.txt", tmp_path / "nothing.jpg", "/etc/passwd",
        uploads / ".." / "private.jpg", uploads / "link.jpg", uploads / "inside", uploads / "circle",
        f"{uploads}-beside/x.jpg", "", ".", "private.jpg", "a\0b", "x" * 5000,
    ]  # fmt: skip
    sentences = set()
    for path in paths:
        current, sentence = answer_file({"path": str(path)}, [own], uploads)
        assert current is None, path
        sentences.add(sentence)
    for strange in ("/etc/passwd", ["path"], 7, {}, {"path": 7}, {"path": ["a"]}, {"path": None}):
        current, sentence = answer_file(strange, [own], uploads)
        assert current is None
        sentences.add(sentence)
    assert len(sentences) == 1 and "no file arrived" in sentences.pop()
    named = {"path": str(uploads / "bee.jpg"), "orig_name": ["no", "text"]}
    assert answer_file(named, [own], uploads)[0].photograph.name == "bee.jpg"


def test_a_damaged_model_is_a_sentence(payload):
    own = viewer()
    torch.nn.init.constant_(own.classifier.model.norm.weight, torch.nan)
    current, sentence = asked(payload(JPEG), [own])
    assert current is None and "its weights may be damaged" in sentence


def test_names_from_outside_are_no_markup():
    own = viewer(labels=("<img src=x onerror=alert(1)>", "b\x1b[2J", "c" * 900))
    view = open_photograph_of(JPEG, own).views[0]
    text = app_html.answers(own.answer(view), "softmax")
    assert "<img" not in text and "&lt;img" in text and "\x1b" not in text and len(text) < 3000
    assert "&lt;b&gt;" in app_html.problem("<b>")


def open_photograph_of(data: bytes, own: Viewer):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(data)
        return open_photograph(path, "a", [own])


def test_outputs_that_are_no_probabilities_have_no_bars(payload):
    own = viewer(activation="none")
    current, _ = asked(payload(JPEG), [own])
    assert "%" not in app_html.answers(current.answers[0], "none")
    shown = app_html.answers(current.answers[0], "sigmoid")
    assert re.search(r"width:\d+\.\d%", shown)


# Corrections


def test_corrections_are_a_manifest_that_the_data_room_reads(payload, tmp_path, capsys):
    own = viewer(labels=("ant", "tench, Tinca tinca", 'a "bee"'))
    known = ()
    labels = ("tench, Tinca tinca", 'a "bee"', "something new")
    for i, label in enumerate(labels):
        current, _ = asked(payload(encoded(photograph(60, 80, i)), f"{i}.jpg"), [own])
        known, sentence = correct(current, known, f" {label} ")
    assert "3 photographs corrected" in sentence
    known, _ = correct(current, known, "something else")  # the same photograph again
    write_zip(known, tmp_path / "c.zip")
    with zipfile.ZipFile(tmp_path / "c.zip") as file:
        file.extractall(tmp_path)
    assert main(["data", "stats", str(tmp_path / "corrections/corrections.csv")]) == 0
    said = capsys.readouterr().out
    for name in (*labels[:2], "something else"):
        assert name in said
    first = Image.open(tmp_path / "corrections/images/0001-0.jpg")
    assert np.array_equal(np.asarray(first), np.asarray(Image.open(io.BytesIO(known[0].data))))


def test_what_cannot_be_corrected_is_a_sentence(payload):
    assert "there is no photograph to correct" in correct(None, (), "ant")[1]
    current, _ = asked(payload(JPEG), [viewer()])
    for label, words in (
        (None, "say what is on"),
        ("  ", "say what is on"),
        ("a\nb", "one line of text"),
        ("a" * 201, "one line of text"),
    ):
        known, sentence = correct(current, (), label)
        assert known == () and words in sentence
    full = tuple(
        Correction(str(i), bytes([i % 256, i // 256]), "PNG", "a", "b") for i in range(500)
    )
    with pytest.raises(ValueError, match="500 corrections already"):
        corrected(full, Correction("x", b"x", "PNG", "a", "b"))
    assert len(corrected(full, Correction("x", bytes([3, 0]), "PNG", "c", "b"))) == 500


def test_names_of_files_lead_nowhere():
    for name in ("../../etc/passwd.jpg", "/etc/passwd", "..", "a/b\\c:d.png", "日本.jpg", ""):
        correction = Correction(name, b"", "TIFF", "a", "b")
        assert re.fullmatch(r"0007-[A-Za-z0-9_-]+\.tif", file_name(7, correction)), name


# Serving


def test_a_port_that_is_taken_is_not_the_end():
    first = listening_socket("127.0.0.1", 17860)
    second = listening_socket("127.0.0.1", first.getsockname()[1])
    try:
        assert second.getsockname()[1] > first.getsockname()[1]
    finally:
        first.close()
        second.close()
    with pytest.raises(ValueError, match="not an address"):
        listening_socket("no such host.", 17860)
    with pytest.raises(ValueError, match="choose others with `host` and `port`"):
        listening_socket("192.0.2.1", 17860)


def test_without_gradio_there_is_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr("vitkit.apps.demo.server.find_spec", lambda name: None)
    assert main(["app", "nothing"]) == 1
    assert "pip install 'vitkit[app]'" in capsys.readouterr().err


@pytest.mark.slow
def test_only_the_page_imports_gradio():
    code = (
        "import sys, vitkit.prediction, vitkit.apps.demo.page, vitkit.apps.demo.server, vitkit.apps.demo.function\n"
        "assert not {'gradio', 'fastapi', 'uvicorn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_corrections_hold_no_formula(tmp_path):
    """Neither one that a stranger's model calls a class, nor one that is typed."""
    formula = "=cmd|' /C calc'!A0"
    write_zip((Correction("a.png", b"data", "PNG", "ant", formula),), tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "x.zip") as file:
        table = file.read("corrections/corrections.csv").decode()
    assert f"ant,'{formula}" in table
    for label in ("=1+1", "+1 ant", "@ant"):
        with pytest.raises(ValueError, match="does not begin as a formula"):
            corrected((), Correction("a.png", b"data", "PNG", label, ""))
