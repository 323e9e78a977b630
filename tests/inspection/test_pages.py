"""Pages and pictures: what is on them, and that text from outside cannot become markup."""

import base64
import io
import json
import math
import re

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from vitkit.evaluation import COUNT, NATS, SHARE, Metric
from vitkit.inspection import DARK, LIGHT, Tile, contact_sheet, themed, themed_figure
from vitkit.inspection.pages import html
from vitkit.inspection.pages.html import CSS_PIXELS
from vitkit.inspection.plots import panels
from vitkit.training import report, to_line


def test_contact_sheet_shows_every_tile_in_its_colour(tmp_path):
    tiles = [
        Tile(np.full((9, 7, 3), 20 * i, np.uint8), f"${i}$ & <b>", (None, True, False)[i % 3])
        for i in range(11)
    ]
    with Image.open(contact_sheet(tiles, tmp_path / "deep" / "sheet.png", columns=4)) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.shape == (630, 720, 3)
    for colour in ((0x1A, 0x7F, 0x37), (0xC6, 0x28, 0x28)):
        assert (np.abs(pixels.astype(int) - colour).sum(-1) < 12).any()
    with pytest.raises(ValueError, match="no pictures"):
        contact_sheet([], tmp_path / "none.png")


def brightness(colour):
    """The relative luminance of WCAG, 0 to 1."""
    shares = np.frombuffer(bytes.fromhex(colour[1:]), np.uint8) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return linear @ (0.2126, 0.7152, 0.0722)


@pytest.mark.parametrize(("theme", "is_dark"), [(LIGHT, False), (DARK, True)])
def test_what_is_drawn_stands_out_from_its_paper(theme, is_dark):
    """By the contrasts of WCAG: 7 for text, 3 for axes, dots and curves."""
    assert (brightness(theme.paper) < 0.05) == is_dark
    for colour, least in ((theme.ink, 7), (theme.faint, 3), (theme.first, 3), (theme.second, 3)):
        dark, bright = sorted(brightness(one) for one in (theme.paper, colour))
        assert (bright + 0.05) / (dark + 0.05) >= least, colour


def test_each_panel_of_a_figure_is_a_picture_of_its_own():
    """Light and dark, with the title as text, as wide as it was drawn, and with nothing of its neighbour;
    what is empty above and below is cut off."""

    colours = {"red": (255, 0, 0), "blue": (0, 0, 255)}

    def draw(theme):
        figure, cells = panels(3, 2, height=4)
        figure.suptitle("Two & more")
        for axes, (name, colour) in zip(cells, colours.items(), strict=True):
            axes.imshow(np.full((2, 4, 3), colour, np.uint8))  # twice as wide as high
            axes.set_title(f"<{name}>")
        return themed(figure, theme)

    text = themed_figure(draw, "Colours")
    assert text.startswith("<p class=faint>Two &amp; more</p><div class=panels><picture>")
    widths, names = zip(*re.findall('<img width=(.*?) alt="(.*?)"', text), strict=True)
    assert names == ("Colours, &lt;red&gt;", "Colours, &lt;blue&gt;")
    assert [int(width) / CSS_PIXELS for width in widths] == pytest.approx([3, 2], abs=0.05)
    addresses = re.findall(r'src(?:set)?="data:image/png;base64,([^"]+)"', text)
    pictures = [Image.open(io.BytesIO(base64.b64decode(address))) for address in addresses]
    papers = [picture.convert("RGB").getpixel((0, 0)) for picture in pictures]
    assert papers == 2 * [tuple(bytes.fromhex(theme.paper[1:])) for theme in (DARK, LIGHT)]
    names = ("red", "red", "blue", "blue")
    for picture, name, other in zip(pictures, names, reversed(names), strict=True):
        there = {pixel for _, pixel in picture.convert("RGB").getcolors(1 << 20)}
        assert colours[name] in there and colours[other] not in there
        assert picture.height < 0.75 * picture.width


def evaluation(step, metrics):
    """A line of metrics.jsonl."""
    by_name = {metric.name: metric for metric in metrics}
    return {"event": "evaluation", "step": step, "evaluator": "Accuracy", "metrics": by_name}


def written(folder, lines):
    """A run directory of these records."""
    (folder / "metrics.jsonl").write_text("".join(map(to_line, lines)))
    recipe = {"name": "masked", "batch": 4, "model": {"class": "ViTConfig"}}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    data = {"source": "photos", "labels": [], "counts": {"train": 5000}, "others": {}, "notes": []}
    data["skipped"] = {}
    (folder / "data.json").write_text(json.dumps(data))


def test_a_report_shows_what_an_objective_predicts(tmp_path):
    """Each picture in its row and column: the colours are where they should be."""
    metrics = [Metric("test/loss", 2.5, NATS), Metric("test/accuracy", 0.3, SHARE)]
    written(tmp_path, [evaluation(10, metrics)])
    colours = {"image": (250, 10, 10), "predicted": (10, 250, 10)}
    tensors = {}
    for name, colour in colours.items():
        pixels = np.array(colour, np.uint8)[None, :, None, None]
        tensors[name] = np.ascontiguousarray(np.broadcast_to(pixels, (3, 3, 16, 16)))
    save_file(tensors, tmp_path / "pictures.safetensors", {"order": "image,predicted"})
    page = report(tmp_path).read_text()
    assert "Inputs and predictions of the objective" in page and "30.00 %" in page
    (shown,) = re.findall(r"class=photographs.*?base64,([^\"]+)", page)
    with Image.open(io.BytesIO(base64.b64decode(shown))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    images, predictions = (
        np.argwhere(np.abs(pixels - colour).sum(-1) < 12) for colour in colours.values()
    )
    assert images[:, 1].max() < predictions[:, 1].min()  # side by side
    for positions in (images, predictions):
        gaps = np.diff(np.unique(positions[:, 0])) > 1
        assert gaps.sum() == 2  # three pictures, one below the other


@pytest.mark.whole_reports
def test_report(tmp_path):
    lines = [
        {
            "event": "training",
            "step": 5,
            "loss": 2.0,
            "norm": 1.0,
            "lr": 0.1,
            "images_per_second": 9.0,
            "data_wait": 0.0,
        },
        {"event": "skipped", "step": 7, "loss": math.nan, "norm": math.nan, "indices": [3, 1]},
        evaluation(
            10,
            [
                Metric("test/top1", 0.875, SHARE, (0.85, 0.9)),
                Metric("test/loss", math.nan, NATS),
                Metric("test/seen", 1200, COUNT),
            ],
        ),
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(map(to_line, lines)))
    (tmp_path / "recipe.json").write_text(
        json.dumps({"name": "<script>alert(1)</script>", "batch": 4, "model": {}})
    )
    data = {"source": "photos", "labels": ["a", "b"], "counts": {"train": 5000}, "notes": ["a < b"]}
    data["others"] = {"sketches": [77, "a fingerprint"]}
    (tmp_path / "data.json").write_text(
        json.dumps(data | {"skipped": {"train": [[3, "x.jpg is cut <short>"]]}})
    )
    page = report(tmp_path).read_text()
    for text in (
        "87.50 %",
        "85.00 to 90.00 %",
        "77 images",
        "1,200",
        "5,000 images",
        "x.jpg is cut &lt;short&gt;",
        "a &lt; b",
        "&quot;nan&quot;",
        "image/png",
    ):
        assert text in page, text
    assert "<script>" not in page


@pytest.mark.parametrize(
    ("block", "markup"),
    [
        (
            html.table([("a", "1"), ("b<", "2")], ("name", "value")),
            "<div class=scrolls><table><tr><th>name</th><th>value</th></tr>"
            "<tr><th>a</th><td>1</td></tr><tr><th>b&lt;</th><td>2</td></tr></table></div>",
        ),
        (
            html.pairs({"steps": 3}),
            "<div class=scrolls><table class=wraps><tr><th>steps</th><td>3</td></tr></table></div>",
        ),
        (html.bullets(["one", "two"]), "<ul><li>one</li><li>two</li></ul>"),
        (
            html.matrix(["a", "b"], ["c", "d"], [[3, 1], [0, 0]]),
            "<div class=scrolls><table class=matrix><tr><th></th><th>c</th><th>d</th></tr>"
            '<tr><th>a</th><td style="background: rgb(var(--accent) / 0.60)">3</td>'
            '<td style="background: rgb(var(--accent) / 0.20)">1</td></tr>'
            '<tr><th>b</th><td style="background: rgb(var(--accent) / 0.00)"></td>'
            '<td style="background: rgb(var(--accent) / 0.00)"></td></tr></table></div>',
        ),
        (html.section("A", html.paragraph("b", "faint")), "<h2>A</h2><p class=faint>b</p>"),
        (html.folded("A", "b"), "<details><summary>A</summary>b</details>"),
        (
            html.columns(html.block("a"), html.block("b")),
            "<div class=columns><div>a</div><div>b</div></div>",
        ),
    ],
)
def test_parts_of_a_page_are_plain_html(block, markup):
    assert block == markup


@pytest.mark.parametrize(("wide", "longest"), [(False, 192), (True, 384)])
def test_a_gallery_has_pictures_of_the_size_that_is_shown(wide, longest):
    small = Tile(np.zeros((40, 60, 3), np.uint8), "bee", False, "ant, 40 %", "a/b/c.png", True)
    large = Tile(np.zeros((300, 500, 3), np.uint8), "ant", True)
    markup = html.gallery([small, large], wide)
    style = '"gallery pairs"' if wide else "gallery"
    assert markup.startswith(f'<div class={style}><figure data-image="a/b/c.png"><img class=small ')
    assert 'alt="a/b/c.png: bee, ant, 40 %"' in markup
    assert "<figcaption class=wrong>bee</figcaption><small>ant, 40 %</small>" in markup
    assert "<small class=name>b/c.png</small></figure>" in markup
    assert "<figcaption class=right>ant</figcaption><small></small></figure></div>" in markup
    sizes = []
    for kind, data in re.findall('src="data:image/(.*?);base64,(.*?)"', markup):
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            sizes.append((kind, image.size))
    assert sizes == [("png", (60, 40)), ("jpeg", (longest, round(longest * 0.6)))]
    default = html.gallery([large])
    assert default.startswith("<div class=gallery>")
