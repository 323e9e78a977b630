"""The drawing of a model: its parts add up, its words are the model's, and no text lies on another."""

import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from PIL import Image, ImageFont

import vitkit
from vitkit.data import Preprocessing
from vitkit.inspection import draw_architecture, write_architecture
from vitkit.inspection.architecture.drawing import operations
from vitkit.inspection.architecture.scene import COLOURS, Box, Text
from vitkit.models import NAMES, cost, create, named, parameters, parts
from vitkit.weights import Classifier

LATER = {
    "dinov2": named(
        "g/14", swiglu=True, layer_scale=1e-5, registers=4, prefix_positions=1, image=518, classes=0
    ),
    "deit": named("B/16", pool="distilled", registers=1, gelu="erf"),
    "map": named("So400m/14", pool="map"),
    "quarters": named("Ti/16", pool="token-gap-quarters", read_blocks=4, classes=5),
    "pyramid": named("Ti/16", pool="token-pyramid", read_blocks=12, classes=5),
    "many blocks": named("L/16", pool="token-gap", read_blocks=24, image=512),
    "pooled": named("S/16", pool="gap", norm="pooled", positions="sincos-mae", class_token=True),
    "rotary": named("S/16", positions="rotary-dinov3", pool="gap"),
    "relative": named("S/16", positions="relative"),
    "every": named("S/16", positions="learned2d", inject="every", representation=384),
    "tokens": named("S/16", positions="sincos", inject="shared", branch_norm="after", pool="none"),
    "clip": named("B/32", embedding_norm=True, gelu="quick"),
    "overlap": named("Ti/16", patch=(16, 8), stride=(8, 4), image=(128, 256)),
    "bag": named("mu/16", positions="none", pool="gap", image=32),
    "positions": replace(named("BiT-R50x1"), pool="none"),
}
MODELS = {name: named(name) for name in NAMES} | LATER
DRAWN = {name: config for name, config in MODELS.items() if name != "LeNet-5"}


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_parts_add_up_to_the_model(config):
    listed = parts(config)
    assert sum(part.parameters for part in listed) == parameters(config)
    assert sum(part.macs for part in listed) == cost(config).macs
    assert all(part.parameters >= 0 and part.macs >= 0 for part in listed)


def test_parts_of_the_smallest_published_model():
    by_name = {part.name: part for part in parts(named("Ti/16"))}
    assert by_name["linear projection"].output == (196, 192)
    assert by_name["linear projection"].parameters == 16 * 16 * 3 * 192 + 192
    assert by_name["attention"].output == (197, 192) and by_name["attention"].times == 12
    assert by_name["attention"].parameters == 12 * 4 * (192 * 192 + 192)
    assert by_name["MLP"].macs == 12 * 197 * 2 * 192 * 768
    assert by_name["head"].parameters == 192 * 1000 + 1000


# The drawing


@cache
def font(bold: bool) -> ImageFont.FreeTypeFont:
    """The widest of the fonts that show a drawing."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/{name}", 100)


def extent(text: Text) -> tuple[float, float]:
    """Where a line of text begins and ends."""
    width = font(text.bold).getlength(text.text) * text.size / 100
    left = text.x - {"start": 0, "middle": width / 2, "end": width}[text.anchor]
    return left, left + width


@pytest.mark.parametrize("config", DRAWN.values(), ids=DRAWN)
def test_every_text_has_its_place(config):
    scene = draw_architecture(config)
    texts = [shape for shape in scene.shapes if isinstance(shape, Text) and shape.text]
    boxes = [shape for shape in scene.shapes if isinstance(shape, Box)]
    for text in texts:
        left, right = extent(text)
        assert left >= 0 and right <= scene.width, text
        around = [
            box
            for box in boxes
            if box.top < text.y < box.top + box.height and box.left < text.x < box.left + box.width
        ]
        for box in around:
            assert box.left <= left and right <= box.left + box.width, (text, box)
    for i, text in enumerate(texts):
        left, right = extent(text)
        for other in texts[i + 1 :]:
            if abs(text.y - other.y) < 10:
                begin, end = extent(other)
                assert end <= left or right <= begin, (text, other)


def words(config) -> str:
    """All texts of a drawing."""
    return "\n".join(s.text for s in draw_architecture(config).shapes if isinstance(s, Text))


def test_it_says_what_this_model_is():
    said = words(named("Ti/16"))
    for line in ("14 × 14 = 196 patches", "of patches, 768 → 192", "197 tokens", "Block × 12"):
        assert line in said
    for line in ("3 heads of 64", "192 → 768 → 192", "192 → 1,000", "5,717,416"):
        assert line in said
    for line in ("196 × 192", "197 × 192"):
        assert said.splitlines().count(line) >= 2  # beside an arrow, and in the table
    said = words(LATER["quarters"])
    assert "of the last 4 blocks" in said and "4,608 → 5" in said and "Block × 8" in said
    assert "along the columns" in words(named("Axial-B/16"))
    said = words(named("R50+B/16"))
    assert "ResNet R50x1" in said and "1 × 1 of the ResNet's map" in said
    assert "r registers, 4" in words(LATER["dinov2"])
    assert "rotary (DINOv3)" in words(LATER["rotary"])
    assert "no positions" in words(LATER["bag"])
    assert "every 8 × 4 pixels" in words(LATER["overlap"])
    assert "residual unit × 36" in words(named("R152x2"))
    assert {"Linear head", "2,048 → 1,000", "Mean of the map"} <= set(
        words(named("R50x1")).split("\n")
    )


def test_a_position_stands_at_the_tokens_that_have_one():
    """DINOv2's registers have none; with positions within attention no token has."""
    signs = {name: words(LATER[name]).split("\n").count("+") for name in ("dinov2", "rotary")}
    sums = 2  # of the two branches of the opened block
    assert signs == {"dinov2": sums + 4, "rotary": sums}  # the class token, 1, 2 and N


def test_a_block_with_the_norm_at_the_end_has_it_above():
    def heights(config):
        texts = [s for s in draw_architecture(config).shapes if isinstance(s, Text) and s.x > 206]
        attention = min(s.y for s in texts if s.text == "Multi-head attention")
        return attention, [s.y for s in texts if s.text == "Norm"]

    attention, norms = heights(named("S/16"))
    assert max(norms) > attention  # the first one, below it
    attention, norms = heights(LATER["tokens"])
    assert max(norms) < attention


def test_svg_is_text_in_both_colours(tmp_path):
    written = write_architecture(tmp_path / "model.svg", named("Ti/16")).read_text()
    root = ElementTree.fromstring(written)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Transformer encoder" in texts
    assert "prefers-color-scheme: dark" in written
    light, _, dark = written.partition("@media")
    for on_white, on_black in COLOURS.values():
        assert on_white in light and on_black in dark
    sizes = {float(element.get("font-size")) for element in root.iter() if element.get("font-size")}
    assert min(sizes) * 358 / 380 > 10  # pixels, on a telephone of 390 with its margins


@pytest.mark.parametrize(
    ("picture", "model"), [("architecture", "B/16"), ("architecture-hybrid", "R50+B/16")]
)
def test_the_drawings_of_the_documentation_are_todays(picture, model, tmp_path):
    """`python docs/draw_models.py` draws them again: look at them."""
    shown = Path(__file__).parents[2] / "docs" / f"{picture}.svg"
    drawn = write_architecture(tmp_path / "model.svg", named(model))
    assert drawn.read_text("utf-8") == shown.read_text("utf-8")


def test_png_and_page(tmp_path):
    written = write_architecture(tmp_path / "model.png", named("mu/16")).read_bytes()
    with Image.open(io.BytesIO(written)) as image:
        assert image.width == 380 * 3
        assert len(image.convert("RGB").getcolors(1 << 20)) > 10
    page = write_architecture(tmp_path / "model.html", named("mu/16", image=32)).read_text()
    assert "<svg" in page and "<td>98.3 k</td>" in page and "<script" not in page


@pytest.mark.parametrize(
    ("count", "text"),
    [(576, "576"), (999_600, "1.00 M"), (28_901_376, "28.9 M"), (999_000_000_000, "999 G")],
)
def test_operations_have_three_digits(count, text):
    assert operations(count) == text


# The command


def test_show_draws(tmp_path):
    classifier = Classifier(
        create("mu/16", classes=2, image=32), Preprocessing(size=(32, 32)), ("a", "b")
    )
    for ending in ("svg", "png", "html"):
        drawn = vitkit.show(classifier, draw=tmp_path / f"model.{ending}", quiet=True)
        assert drawn.path.exists()
        assert f"wrote {drawn.path}" in list(drawn.shown())
    assert [part["name"] for part in drawn.to_json()["parts"]][-1] == "head"


def test_show_refuses_what_it_cannot_draw(tmp_path):
    classifier = Classifier(create("LeNet-5", classes=2), Preprocessing(size=(32, 32)), ("a", "b"))
    with pytest.raises(ValueError, match=r"draw.* or \.html, a page|\.svg, \.png or"):
        vitkit.show("no-such-model", draw=tmp_path / "model.gif", quiet=True)
    with pytest.raises(ValueError, match="LeNet-5 has no drawing"):
        vitkit.show(classifier, draw=tmp_path / "model.svg", quiet=True)
    mine = tmp_path / "mine.svg"
    mine.write_text("<svg/>")
    with pytest.raises(ValueError, match=r"mine\.svg"):
        vitkit.show("no-such-model", draw=mine, quiet=True)
    assert mine.read_text() == "<svg/>"
