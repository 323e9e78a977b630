"""`vitkit inspect` as its user types it."""

import numpy as np
import pytest
from inspected import FAMILY, classifier, small
from margins import at_most
from PIL import Image
from test_cli import say

from vitkit.inspection import position_similarity, rollout
from vitkit.models import Backbone, ResNetConfig
from vitkit.weights import load, save


def arrays_of(file) -> dict:
    """The arrays of an .npz file, which is closed again."""
    with np.load(file) as opened:
        return dict(opened)


@pytest.fixture
def model(tmp_path):
    """A saved model of five classes, for images of 64 x 96."""
    save(classifier(FAMILY["token"]), tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.slow
def test_without_images(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = say(capsys, "inspect", model)
    assert status == 0
    assert "wrote 3 files into inspected/mine: inspect.html, filters.png, positions.png" in out
    assert "need images" in err
    assert f"next: vitkit inspect {model} IMAGE..." in out
    page = (tmp_path / "inspected/mine/inspect.html").read_text()
    assert "Inside mine" in page and "Position embeddings" in page and "distance" not in page
    # The same again replaces what vitkit wrote
    assert say(capsys, "inspect", model, "--figures", "filters")[0] == 0
    (tmp_path / "inspected/mine/filters.png").write_bytes(b"somebody's")
    status, _, err = say(capsys, "inspect", model)
    assert status == 1
    assert "filters.png is there, and is not as vitkit wrote it" in err


@pytest.mark.slow
def test_with_images_everything_that_the_model_has(model, photographs, tmp_path, capsys):
    out_dir = tmp_path / "out"
    words = ("inspect", model, photographs, "-o", out_dir, "--limit", 6, "--shown", 2, "--arrays")
    status, out, err = say(capsys, *words)
    assert status == 0, err
    assert "wrote 17 files" in out and f"next: open {out_dir}/inspect.html" in out

    # The numbers are those of the functions
    own = load(model, quiet=True)
    files = sorted(photographs.rglob("*.jpg"), key=lambda path: str(path.relative_to(photographs)))
    arrays = arrays_of(out_dir / "rollout.npz")
    assert arrays["rollout"].shape == (2, 4, 6)
    expected = {tuple(rollout(own, own.batch(file))[0].flatten().tolist()) for file in files}
    for drawn in arrays["rollout"]:
        distances = [abs(drawn.flatten() - np.array(each)).max() for each in expected]
        at_most(min(distances), 1e-6)
    similarity = arrays_of(out_dir / "positions.npz")["cosines"]
    np.testing.assert_allclose(similarity, position_similarity(own).cosines, atol=1e-6)
    assert arrays_of(out_dir / "distance.npz")["images"] == 6

    # The page has the photographs and the figures
    page = (out_dir / "inspect.html").read_text()
    for words in ("Attention distance", "Token norms", "Relevance for a class"):
        assert words in page
    assert page.count('"name": "') + page.count('"name":"') >= 2


@pytest.mark.slow
def test_chosen_figures_in_other_forms(model, photographs, tmp_path, capsys):
    chosen = ("attention", "similarity", "alignment", "occlusion")
    words = ["--format", "svg", "--theme", "dark", "--no-page", "--patch", 4, 6, "--layer", 1]
    words += ["--class", "B", "--limit", 4, "--shown", 1, "--against", model, "--arrays"]
    folder = tmp_path / "out"
    status, _, err = say(
        capsys, "inspect", model, photographs, "-o", folder, *words, "--figures", *chosen
    )
    assert status == 0, err
    names = {path.name for path in folder.iterdir()}
    assert names == {f"{name}.{kind}" for name in chosen for kind in ("svg", "npz")}
    assert "#0d1117" in (folder / "attention.svg").read_text()
    np.testing.assert_array_equal(arrays_of(folder / "similarity.npz")["patch"], [3, 5])
    np.testing.assert_array_equal(arrays_of(folder / "occlusion.npz")["classes"], [1])
    same = arrays_of(folder / "alignment.npz")
    np.testing.assert_allclose(same["values"].diagonal(), 1, rtol=1e-6)
    assert not same["of_itself"]


def test_what_has_no_meaning_is_left_out_with_a_sentence(photographs, tmp_path, capsys):
    config = ResNetConfig(Backbone((1, 1)), (64, 96), classes=5)
    save(classifier(config), tmp_path / "model")
    words = ("inspect", tmp_path / "model", photographs, "--limit", 4, "-o", tmp_path / "out")
    words += ("--shown", 1)
    status, out, err = say(capsys, *words)
    assert status == 0
    assert "left out distance, entropy, rollout, relevance: a ResNet has no" in err
    assert "inspect.html, filters.png" in out
    assert "Left out: " in (tmp_path / "out" / "inspect.html").read_text()
    # Who asks for it by name is told that it cannot be
    status, _, err = say(capsys, *words, "--figures", "distance")
    assert status == 1
    assert "distance cannot be drawn: " in err


def test_broken_images_are_named_and_the_others_shown(model, photographs, tmp_path, capsys):
    (photographs / "blue" / "0.jpg").write_bytes(b"no image")
    words = ("--figures", "rollout", "--no-page", "-o", tmp_path / "out")
    status, out, err = say(capsys, "inspect", model, photographs / "blue", *words)
    assert status == 3
    assert "left out: " in err and "0.jpg" in err
    assert "rollout.png" in out
    status, _, err = say(capsys, "inspect", model, photographs / "blue" / "0.jpg", *words)
    assert status == 1
    assert "none of the images could be read" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--figures", "rollout"], "rollout is drawn of images, and there are none"),
        (["--against", "x"], "--against compares what two models make of images"),
        (["--shown", "0"], "--shown is 0; it is at least 1"),
        (["PHOTOS", "--class", "f"], "the model has no class of that name"),
        (["PHOTOS", "--layer", "3"], "the model's 2 layers of attention are 1 to 2"),
        (["PHOTOS", "--patch", "5", "1"], "rows are 1 to 4, columns 1 to 6"),
        (["--output", "FILE"], "which is a file; give a folder"),
        (["nowhere.jpg"], "nowhere.jpg"),
    ],
)
def test_what_cannot_be_done_is_said(words, sentence, model, photographs, tmp_path, capsys):
    (tmp_path / "file").touch()
    places = {"PHOTOS": photographs, "FILE": tmp_path / "file"}
    words = [places.get(word, word) for word in words]
    if "--output" not in words:
        words += ["--output", tmp_path / "out"]
    status, _, err = say(capsys, "inspect", model, *words)
    assert status == 1
    assert sentence in " ".join(err.split())


def test_another_size_of_images(tmp_path, photographs, capsys):
    save(classifier(small(image=(64, 64))), tmp_path / "square")
    words = ("--image", 128, "--figures", "rollout", "positions", "--no-page", "--arrays")
    folder = tmp_path / "out"
    status, _, err = say(
        capsys, "inspect", tmp_path / "square", photographs / "red" / "3.jpg", *words, "-o", folder
    )
    assert status == 0, err
    assert arrays_of(folder / "rollout.npz")["rollout"].shape == (1, 8, 8)
    assert arrays_of(folder / "positions.npz")["cosines"].shape == (65, 65)
    with Image.open(folder / "positions.png") as image:
        assert min(image.size) > 300
