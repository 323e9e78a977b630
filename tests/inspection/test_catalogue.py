"""Every figure of every sort of model, on its own and as a section of a page: nothing breaks, and what has
no meaning is left out with a sentence. And docs/inspection.md: its Python runs, and its table is whole."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from inspected import FAMILY, GRID, IMAGES, classifier, small
from matplotlib.colors import to_hex
from matplotlib.text import Text
from pictures import encoded, photograph

from vitkit.apps.inspect.function import Figure
from vitkit.data import Preprocessing
from vitkit.inspection import (
    DARK,
    FIGURES,
    LIGHT,
    InspectedModel,
    attention_distance,
    class_relevance,
    model_sections,
    raw_attention,
    rollout,
)
from vitkit.inspection.pages.html import page
from vitkit.models import Backbone, LeNetConfig, ResNetConfig, create, vit
from vitkit.weights import Classifier, save

IMAGES_OF_SIZES = torch.cat([IMAGES, IMAGES.flip(2)])
KINDS = {kind.name: kind for kind in FIGURES}
OF_ATTENTION = {"distance", "entropy", "rollout", "relevance", "attention", "norms", "occlusion"}
OF_AN_ANSWER = {"rollout", "relevance", "attention", "occlusion"}
MODELS = FAMILY | {
    "no head": replace(small(), classes=0),
    "ResNet": ResNetConfig(Backbone((1, 1)), (64, 96), classes=5),
    "axial ResNet": ResNetConfig(Backbone((1, 1), mixer="axial"), (64, 96), classes=5),
}
WITHOUT = {
    "corner": {"positions"},
    "no pooling": OF_AN_ANSWER,
    "no head": {"relevance", "occlusion"},
    "ResNet": OF_ATTENTION | {"positions"},
    "axial ResNet": OF_ATTENTION | {"positions"},
}
"""What has no meaning, by model."""
DRAWN = {"registers": DARK, "axial": DARK, "relative": LIGHT, "ResNet": LIGHT}
"""Drawing takes longer than computing."""
SOONEST = "registers"  # the one of these that is not a slow test


def test_the_command_names_them_all():
    assert Figure.__args__ == tuple(KINDS)
    for kind in FIGURES:
        assert kind.title and kind.text.endswith(".")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in {*DRAWN} - {SOONEST} else ())
        for name in MODELS
    ],
)
def test_every_figure_of_every_model(name):
    own = classifier(MODELS[name])
    subject = InspectedModel(own, IMAGES_OF_SIZES, ("one", "two"))
    left_out = set()
    for kind in FIGURES:
        try:
            plate = kind.make(subject)
        except ValueError as error:
            left_out.add(kind.name)
            assert len(str(error).split()) > 10
            continue
        if name in DRAWN:
            figure = plate.draw(DRAWN[name])
            figure.canvas.draw()
            assert to_hex(figure.get_facecolor()) == DRAWN[name].paper
            colours = {to_hex(text.get_color()) for text in figure.findobj(Text)}
            assert colours == {DRAWN[name].ink}
        for array in plate.arrays.values():
            assert array.dtype != object  # no pickle is needed to write it
    assert left_out == WITHOUT.get(name, set())


def test_a_subject_says_what_is_looked_at():
    own = classifier(small())
    subject = InspectedModel(own, IMAGES_OF_SIZES, ("one", "two"), target=2, layer=0, patch=(1, 2))
    relevance = KINDS["relevance"].make(subject).arrays
    np.testing.assert_allclose(relevance["relevance"], class_relevance(own, IMAGES, 2))
    attention = KINDS["attention"].make(subject).arrays
    assert list(attention) == ["mean_of_the_heads", "head_1", "head_2"]
    expected = raw_attention(own, IMAGES, 0, 1, (1, 2))
    np.testing.assert_allclose(attention["head_2"], expected)
    np.testing.assert_allclose(
        KINDS["rollout"].make(subject).arrays["rollout"], rollout(own, IMAGES)
    )
    # What is said of the model is the mean of all images
    distance = KINDS["distance"].make(subject).arrays
    assert distance["images"] == 4
    expected = attention_distance(own, IMAGES_OF_SIZES).plain
    np.testing.assert_allclose(distance["plain"], expected, rtol=1e-6)
    similarity = KINDS["similarity"].make(subject).arrays
    assert similarity["similarity"].shape == (2, *GRID)
    np.testing.assert_allclose(similarity["similarity"][:, 1, 2], 1, rtol=1e-6)


def test_lenet_has_what_a_network_of_convolutions_has():
    own = classifier(LeNetConfig(channels=3, classes=5))
    subject = InspectedModel(
        own, torch.zeros(4, 3, 32, 32, dtype=torch.uint8), ("one",)
    )  # of one position
    made = set()
    for kind in FIGURES:
        try:
            kind.make(subject)
        except ValueError:
            continue
        made.add(kind.name)
    assert made == {"filters", "similarity", "alignment"}


SQUARES = IMAGES[..., :64]


def shown(config, images=SQUARES) -> str:
    """The sections of a model as a page."""
    model = create(config, seed=0).eval()
    return page("a model", model_sections(Classifier(model, Preprocessing((64, 64)), ()), images))


@pytest.mark.slow
def test_a_plain_model_has_all_three_light_and_dark():
    text = shown(vit("mu/16", image=(64, 64), depth=2))
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "Filters", "Position embeddings", "Attention distance",
    ]  # fmt: skip
    assert text.count('prefers-color-scheme: dark)" srcset') == 1 + 2 + 3  # panels
    dark, light = re.findall(r'src(?:set)?="(data:image/png[^"]+)"', text)[:2]
    assert dark != light
    assert "Left out" not in text
    assert "Attention distance" not in shown(vit("mu/16", image=(64, 64), depth=2), None)


@pytest.mark.slow
def test_what_has_no_meaning_is_a_sentence():
    """Few filters are all drawn; a bag of patches has no positions, a ResNet no attention."""
    text = shown(vit("mu/16", image=(64, 64), depth=1, positions="none", pool="gap", patch=2))
    assert "it treats patches as a set" in text and text.count("<picture") == 2
    text = shown(ResNetConfig(Backbone((1, 1)), (64, 64)))
    assert text.count("Left out: a ResNet has no attention among patches") == 1
    assert text.count("Left out: a ResNet has no position embeddings") == 1
    grey = shown(LeNetConfig(channels=1), None)
    assert grey.count("<picture") == 1 and grey.count("Left out") == 1


PAGE = Path(__file__).parents[2] / "docs/inspection.md"


def test_the_python_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(classifier(FAMILY["token"]), tmp_path / "MODEL")
    Path("holiday.jpg").write_bytes(encoded(photograph(300, 400)))
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    exec(block, names)
    assert names["maps"].shape == names["for_a_class"].shape == (1, 4, 6)
    assert Path("distance.svg").read_bytes().startswith(b"<?xml")
    assert "float64" in capsys.readouterr().out


def test_the_page_has_every_figure():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(kind.name for kind in FIGURES)
