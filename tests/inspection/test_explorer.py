"""The page on which attention is explored: what is embedded, decoded here by other code, against
raw_attention; and the same page in headless Chromium, with the mouse, taps and keys."""

import base64
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from inspected import FAMILY, GRID, SIZE, classifier, small
from pictures import photograph

from vitkit.data import open_image
from vitkit.inspection import raw_attention, rollout, write_explorer
from vitkit.inspection.pages.attention_tables import DETAILS, Detail, most_bytes
from vitkit.inspection.pages.explorer import chosen_detail, prefix_names
from vitkit.models import Backbone, ResNetConfig, vit

EXACT = 2e-7  # of float32
WITH_READER = [name for name in FAMILY if name != "no pooling"]


def pictures(count=1):
    return [
        open_image(photograph(128, 192, seed), f"photos/p<{seed}>.png") for seed in range(count)
    ]


def embedded(file: Path) -> dict:
    """What the page's script reads."""
    (text,) = re.findall(r"<script type=application/json id=data>(.*?)</script>", file.read_text())
    return json.loads(text)


def unpacked(text: str, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(R, columns) numbers, and by how much each may be off."""
    data = zlib.decompress(base64.b64decode(text))
    rows = len(data) // (columns + 4)
    scales = np.frombuffer(data, "<f4", rows).astype(np.float64)
    integers = np.frombuffer(data, np.uint8, offset=4 * rows).reshape(rows, columns)
    roots = integers / 255 * np.sqrt(scales[:, None])
    half = np.sqrt(scales[:, None]) / 510  # of a step, of the root
    return roots**2, 2 * roots * half + half**2 + EXACT


def blocks(array: np.ndarray, block: int) -> np.ndarray:
    """Sums over squares of the last two axes."""
    for axis in (-2, -1):
        array = np.add.reduceat(array, range(0, array.shape[axis], block), axis=axis)
    return array


def check(shown: np.ndarray, bound: np.ndarray, expected: np.ndarray) -> None:
    assert shown.shape == expected.shape
    assert (np.abs(shown - expected) <= bound).all(), np.abs(shown - expected).max()


@pytest.mark.parametrize("name", WITH_READER)
def test_what_is_embedded_is_the_raw_attention(name, tmp_path):
    own = classifier(FAMILY[name])
    (picture,) = pictures()
    file = write_explorer(tmp_path / "page.html", name, own, [picture])
    data = embedded(file)
    images = own.batch([picture])
    height, width = own.model.grid(images)
    cells, prefix = height * width, len(data["prefix"])
    assert data["cells"] == [height, width] and prefix == own.model.config.prefix

    *layers, last = zip(data["layers"], data["photographs"][0]["tables"], strict=True)
    for number, (layer, tables) in enumerate(layers):
        reader, bound = unpacked(tables["reader"], prefix + cells)
        for head in range(layer["heads"]):
            expected = raw_attention(own, images, number, head)[0].flatten()
            check(reader[head, prefix:], bound[head, prefix:], expected.numpy())
            np.testing.assert_allclose(reader[head].sum(), 1, atol=(prefix + cells) * bound.max())
        if layer["name"] == "pooling":
            assert tables["patches"] == "" and not layer["patches"]
            continue
        columns = {"all": prefix + cells, "row": width, "column": height}[layer["reach"]]
        patches, bound = unpacked(tables["patches"], columns)
        for head, query in ((0, (0, 0)), (1, (height - 1, width - 1)), (1, (0, width - 1))):
            expected = raw_attention(own, images, number, head, query)[0].numpy()
            seen = {"all": expected.flatten(), "row": expected[query[0]]}
            seen["column"] = expected[:, query[1]]
            row = head * cells + query[0] * width + query[1]
            first = prefix if layer["reach"] == "all" else 0
            check(patches[row, first:], bound[row, first:], seen[layer["reach"]])

    # The last place of the slider
    layer, tables = last
    assert layer["heads"] == 1
    reader, bound = unpacked(tables["reader"], prefix + cells)
    check(reader[:, prefix:], bound[:, prefix:], rollout(own, images)[0].flatten()[None].numpy())
    patches, _ = unpacked(tables["patches"], prefix + cells)
    np.testing.assert_allclose(patches.sum(1), 1, atol=0.1)


def test_larger_cells_add_up_what_they_get_and_average_who_looks(tmp_path, monkeypatch):
    """3 x 3 patches a cell on a grid of 4 x 6: those at the bottom are of one row."""
    own = classifier(FAMILY["registers"])
    (picture,) = pictures()
    monkeypatch.setattr("vitkit.inspection.pages.explorer.DETAILS", (Detail(3, True, 2),))
    file = write_explorer(tmp_path / "page.html", "coarse", own, [picture])
    data = embedded(file)
    assert "squares of 3 × 3 patches instead of each" in file.read_text()
    assert data["cells"] == [2, 2] and [x["name"] for x in data["layers"]] == [
        "layer 2",
        "all layers",
    ]
    assert data["prefix"] == ["class token", *(f"register {i}" for i in (1, 2, 3, 4))]
    images = own.batch([picture])
    tables = data["photographs"][0]["tables"][0]
    reader, bound = unpacked(tables["reader"], 5 + 4)
    expected = blocks(raw_attention(own, images, 1, 1)[0].numpy(), 3)
    check(reader[1, 5:], bound[1, 5:], expected.flatten())
    patches, bound = unpacked(tables["patches"], 5 + 4)
    lookers = [(3, column) for column in range(3)]  # the cell at the bottom left
    maps = [raw_attention(own, images, 1, 1, query)[0].numpy() for query in lookers]
    check(patches[4 + 2, 5:], bound[4 + 2, 5:], blocks(np.mean(maps, 0), 3).flatten())


def test_axial_attention_in_larger_cells_stays_in_its_row_or_column(tmp_path, monkeypatch):
    own = classifier(FAMILY["axial"])
    (picture,) = pictures()
    monkeypatch.setattr("vitkit.inspection.pages.explorer.DETAILS", (Detail(2, False, 1),))
    data = embedded(write_explorer(tmp_path / "page.html", "axial", own, [picture]))
    images = own.batch([picture])
    for number, (axis, cell) in enumerate((("row", (1, 2)), ("column", (0, 1)))):
        assert data["layers"][number]["reach"] == axis
        assert data["layers"][number]["heads"] == 1  # the mean
        columns = {"row": 3, "column": 2}[axis]
        table = data["photographs"][0]["tables"][number]["patches"]
        patches, bound = unpacked(table, columns)
        lookers = [(2 * cell[0] + i, 2 * cell[1] + j) for i in (0, 1) for j in (0, 1)]
        maps = [raw_attention(own, images, number, None, query)[0].numpy() for query in lookers]
        whole = blocks(np.mean(maps, 0), 2)
        expected = {"row": whole[cell[0]], "column": whole[:, cell[1]]}[axis]
        row = cell[0] * 3 + cell[1]
        check(patches[row], bound[row], expected)


def test_the_page_stays_below_its_limit(tmp_path):
    """The bound that decides is one, and the finest detail below it is taken."""
    own = classifier(FAMILY["token"])
    for megabytes in (0.5, 0.16):
        file = write_explorer(tmp_path / "page.html", "x", own, pictures(1), megabytes=megabytes)
        assert file.stat().st_size < megabytes * 1e6
    large = vit("L/16", image=(384, 384), classes=1000)
    sizes = [most_bytes(large, (24, 24), detail) for detail in DETAILS]
    chosen = chosen_detail(large, (24, 24), 8, 32)
    assert chosen == Detail(2, True, 3)
    assert 8 * sizes[DETAILS.index(chosen)] < 32e6 < 8 * sizes[DETAILS.index(chosen) - 1]
    assert chosen.layers(large) == [2, 5, 8, 11, 14, 17, 20, 23]
    base = vit("B/16", classes=1000)
    assert chosen_detail(base, (14, 14), 4, 32) == Detail()
    with pytest.raises(ValueError, match="900 photographs with their attention do not fit"):
        chosen_detail(base, (14, 14), 900, 32)


def test_the_parts_of_the_bound_are_exact(tmp_path):
    """Noise does not compress: the page is nearly as large as the bound says."""
    own = classifier(FAMILY["axial"])
    data = embedded(write_explorer(tmp_path / "page.html", "x", own, pictures()))
    size = sum(len(text) for x in data["photographs"][0]["tables"] for text in x.values())
    bound = most_bytes(own.model.config, GRID, Detail())
    assert 0.6 * bound < size <= bound


def test_models_without_attention_or_without_one_answer(tmp_path):
    resnet = classifier(ResNetConfig(Backbone((1, 1)), SIZE, classes=5))
    text = write_explorer(tmp_path / "a.html", "R", resnet, pictures()).read_text()
    assert "has no attention among patches" in text and "<script" not in text
    dense = classifier(FAMILY["no pooling"])
    file = write_explorer(tmp_path / "b.html", "dense", dense, pictures())
    data = embedded(file)
    assert data["reader"] is None and data["photographs"][0]["answers"] == []
    assert "no single token whose attention represents the answer" in file.read_text()
    assert all(x["reader"] == "" for x in data["photographs"][0]["tables"])
    assert prefix_names(FAMILY["distilled"]) == ["class token", "distillation token"]
    assert prefix_names(small(registers=1)) == ["class token", "register"]


def test_names_cannot_become_markup_and_no_other_script_may_run(tmp_path):
    own = classifier(FAMILY["token"])
    own = replace(own, labels=("</script><script>alert(1)</script>", *"bcde"))
    picture = open_image(photograph(128, 192), "<img src=x onerror=alert(2)>")
    text = write_explorer(tmp_path / "page.html", "<b>", own, [picture]).read_text()
    assert text.count("<script") == 2 and text.count("</script>") == 2
    assert "<img src=x" not in text and "<b>" not in text
    (policy,) = re.findall(r'Content-Security-Policy content="(.*?)"', text)
    assert (
        policy.startswith("default-src 'none'; img-src data:;") and "script-src 'sha256-" in policy
    )


# In a browser


@pytest.fixture(scope="module")
def browser(chromium):
    """Chromium; tests are skipped without it."""
    with chromium() as running:
        yield running


def expect(locator):
    """Playwright's assertions, which wait."""
    from playwright.sync_api import expect as waiting

    return waiting(locator)


def opened(browser, file: Path, width: int = 1400, touch: bool = False):
    """The page in a tab that remembers what was asked of others, and what failed."""
    context = browser.new_context(viewport={"width": width, "height": 900}, has_touch=touch)
    context.set_default_timeout(5000)
    tab = context.new_page()
    tab.wrong = []
    tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
    tab.on("console", lambda each: each.type != "error" or tab.wrong.append(each.text))
    own = ("file:", "data:", "blob:")
    tab.on("request", lambda each: each.url.startswith(own) or tab.wrong.append(each.url))
    tab.goto(file.as_uri())
    # Polling by a function would evaluate text, which the page's own policy forbids
    expect(tab.locator("#said")).not_to_be_empty(timeout=20_000)
    return tab


def says(tab, *texts: str) -> None:
    """Waits until the page says all of this."""
    for text in texts:
        expect(tab.locator("#said")).to_contain_text(text)


def place(weights: torch.Tensor) -> str:
    """How the page says where a map (h, w) is largest."""
    row, column = divmod(int(weights.argmax()), weights.shape[1])
    return f"row {row + 1}, column {column + 1}, with"


def sentence(weights: torch.Tensor) -> str:
    """The same with how large it is; of a head the page knows that exactly, of a mean it does
    not."""
    return f"{place(weights)} {percent(float(weights.max()))}"


def percent(share: float) -> str:
    digits = 2 if share < 0.01 else 1
    return f"{100 * share:.{digits}f}\u00a0%"


def brightness(tab, grid) -> np.ndarray:
    """The mean of each cell of the picture that is drawn, (h, w)."""
    cells = tab.evaluate(
        """([height, width]) => {
            const canvas = document.getElementById('picture');
            const context = canvas.getContext('2d');
            const rows = canvas.height / height, columns = canvas.width / width;
            return Array.from({ length: height * width }, (_, cell) => {
                const [y, x] = [Math.floor(cell / width) * rows, (cell % width) * columns];
                const { data } = context.getImageData(x + 2, y + 2, columns - 4, rows - 4);
                return data.reduce((sum, value, i) => i % 4 === 3 ? sum : sum + value, 0)
                    / (0.75 * data.length);
            });
        }""",
        grid,
    )
    return np.array(cells).reshape(grid)


def brightness_of(picture) -> np.ndarray:
    """The mean of each patch of a photograph of `pictures`, (h, w)."""
    return picture.pixels().reshape(4, 32, 6, 32, 3).mean((1, 3, 4))


def middle(tab, cell, grid):
    box = tab.locator("#picture").bounding_box()
    x = box["x"] + box["width"] * (cell[1] + 0.5) / grid[1]
    return x, box["y"] + box["height"] * (cell[0] + 0.5) / grid[0]


def choose_layer(tab, number: int) -> None:
    tab.locator("#layer").evaluate(
        "(slider, n) => { slider.value = n; slider.dispatchEvent(new Event('input')) }", number
    )


@pytest.fixture(scope="module")
def explored_page(tmp_path_factory):
    """A model, two photographs and their page."""
    own = classifier(FAMILY["token"])
    file = tmp_path_factory.mktemp("page") / "page.html"
    write_explorer(file, "a model", own, pictures(2))
    return own, [own.batch([picture]) for picture in pictures(2)], file


@pytest.mark.slow
def test_hovering_clicking_and_keys_show_the_numbers_of_raw_attention(explored_page, browser):
    own, (first, second), file = explored_page
    tab = opened(browser, file)

    # First the rollout of the class token, as the photograph's brightness has it
    says(tab, "Of what reaches the class token")
    largest = int(rollout(own, first)[0].argmax())
    says(tab, f"comes from row {largest // 6 + 1}, column {largest % 6 + 1}.")
    assert tab.locator("#head-choice").is_hidden()

    # A layer, then a head
    choose_layer(tab, 0)
    says(tab, "Layer 1, mean of its heads: the class token", place(raw_attention(own, first, 0)[0]))
    tab.get_by_role("button", name="Head 2").click()
    expected = raw_attention(own, first, 0, 1)[0]
    says(tab, "Layer 1, head 2: the class token", sentence(expected))
    drawn = brightness(tab, GRID)
    limit = np.sort(expected.flatten().numpy())[int(0.98 * 23)]
    light = 0.15 + 0.85 * np.minimum(expected.numpy() / limit, 1)
    np.testing.assert_allclose(drawn, brightness_of(pictures()[0]) * light, atol=4)

    # Hovering over a patch, and away from it
    tab.mouse.move(*middle(tab, (2, 4), GRID))
    expected = raw_attention(own, first, 0, 1, (2, 4))[0]
    says(tab, "Layer 1, head 2: the patch in row 3, column 5", sentence(expected))
    tab.mouse.move(5, 5)
    says(tab, "the class token looks")

    # A click keeps it: then the mouse reads numbers of others
    tab.mouse.click(*middle(tab, (0, 1), GRID))
    expected = raw_attention(own, first, 0, 1, (0, 1))[0]
    tab.mouse.move(*middle(tab, (3, 3), GRID))
    says(tab, "the patch in row 1, column 2", sentence(expected))
    says(tab, f"Here, row 4, column 4: {percent(float(expected[3, 3]))}")

    # Keys: the patch below, the layer before the last, the other photograph, back to the class token
    tab.mouse.move(5, 5)
    tab.locator("#picture").focus()
    tab.keyboard.press("ArrowDown")
    says(tab, "the patch in row 2, column 2", sentence(raw_attention(own, first, 0, 1, (1, 1))[0]))
    tab.locator("#layer").focus()
    tab.keyboard.press("ArrowRight")
    says(tab, "Layer 2, head 2: the patch in row 2, column 2")
    tab.get_by_role("button", name="p<1>.png").focus()
    tab.keyboard.press("Enter")
    says(tab, sentence(raw_attention(own, second, 1, 1, (1, 1))[0]))
    tab.locator("#picture").focus()
    tab.keyboard.press("Escape")
    says(tab, "the class token looks", sentence(raw_attention(own, second, 1, 1)[0]))

    # What the page says of its controls; and it asked nobody, and nothing failed
    assert tab.locator("#layer").get_attribute("aria-valuetext") == "layer 2"
    assert "the class token looks" in tab.locator("#picture").get_attribute("aria-label")
    assert tab.get_by_role("button", name="p<1>.png").get_attribute("aria-pressed") == "true"
    assert tab.wrong == []


@pytest.mark.slow
def test_a_telephone_has_room_for_it_and_taps_count(explored_page, browser):
    own, (first, _), file = explored_page
    tab = opened(browser, file, width=390, touch=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    choose_layer(tab, 1)
    x, y = middle(tab, (3, 0), GRID)
    tab.touchscreen.tap(x, y)
    says(tab, "the patch in row 4, column 1", place(raw_attention(own, first, 1, None, (3, 0))[0]))
    tab.get_by_role("button", name="Back to the class token").tap()
    says(tab, "the class token looks")
    assert tab.wrong == []


@pytest.mark.parametrize("name", ["axial", "MAP"])
@pytest.mark.slow
def test_other_attention_in_the_browser(name, browser, tmp_path):
    own = classifier(FAMILY[name])
    (picture,) = pictures()
    images = own.batch([picture])
    tab = opened(browser, write_explorer(tmp_path / "page.html", name, own, [picture]))
    for number in range(2):
        choose_layer(tab, number)
        tab.mouse.move(*middle(tab, (1, 5), GRID))
        says(tab, place(raw_attention(own, images, number, None, (1, 5))[0]))
        tab.mouse.move(5, 5)
        says(tab, place(raw_attention(own, images, number)[0]))
    if name == "MAP":
        choose_layer(tab, 2)
        tab.mouse.move(*middle(tab, (1, 5), GRID))
        expected = place(raw_attention(own, images, 2)[0])
        says(tab, "Pooling, mean of its heads: the learned query", expected)
    assert tab.wrong == []


@pytest.mark.slow
def test_larger_cells_lie_where_their_patches_are(browser, tmp_path, monkeypatch):
    """Of 4 x 6 patches in cells of 4 x 4, the second cell is the last third of the photograph."""
    own = classifier(FAMILY["token"])
    (picture,) = pictures()
    monkeypatch.setattr("vitkit.inspection.pages.explorer.DETAILS", (Detail(4),))
    tab = opened(browser, write_explorer(tmp_path / "page.html", "coarse", own, [picture]))
    assert tab.locator("#picture").get_attribute("aria-label").startswith("Photograph 1, 1 by 2")
    choose_layer(tab, 0)
    tab.mouse.move(*middle(tab, (3, 3), GRID))
    says(tab, "the square of 4 × 4 patches in row 1, column 1 looks")
    tab.mouse.move(*middle(tab, (0, 4), GRID))
    says(tab, "the square of 4 × 4 patches in row 1, column 2 looks")
    weights = blocks(raw_attention(own, own.batch([picture]), 0)[0].numpy(), 4)[0]
    tab.mouse.move(5, 5)
    says(tab, "the class token looks")
    seen = brightness(tab, GRID) / brightness_of(picture)
    light = 0.15 + 0.85 * np.minimum(weights / weights.min(), 1)  # both as bright as the lesser
    np.testing.assert_allclose(seen[1:3, :4], light[0], atol=0.05)
    np.testing.assert_allclose(seen[1:3, 4:], light[1], atol=0.05)
    assert tab.wrong == []


def test_the_real_model(real, tmp_path):
    own, images, expected = real
    picture = open_image(images[0].permute(1, 2, 0).numpy(), "first")
    own = replace(own, preprocessing=replace(own.preprocessing, resize=224))
    file = write_explorer(tmp_path / "page.html", "Ti/16", own, [picture])
    assert file.stat().st_size < 2e6
    table = embedded(file)["photographs"][0]["tables"][11]["patches"]
    patches, bound = unpacked(table, 197)
    matrix = expected["attention_first_image_layers_0_5_11"][2, 2, 1:]
    check(patches[2 * 196 :], bound[2 * 196 :] + 1e-6, matrix)


@pytest.mark.slow
def test_of_overlapping_patches_the_nearest_is_shown_where_it_is(tmp_path, browser):
    """Patches of 16 x 8 pixels every 8 x 4, so the picture is not divided among them evenly."""
    config = small(patch=(16, 8), stride=(8, 4))
    own = classifier(config)
    (picture,) = pictures()
    file = write_explorer(tmp_path / "page.html", "overlap", own, [picture])
    rows, columns = own.model.grid(own.batch([picture]))
    height, width = config.image
    tab = opened(browser, file)
    choose_layer(tab, 0)
    for row, column in ((0, 0), (1, 2), (rows - 1, columns - 1)):
        middle_of_patch = (8 * row + 8, 4 * column + 4)
        tab.mouse.move(*middle(tab, [side - 0.5 for side in middle_of_patch], (height, width)))
        expected = raw_attention(own, own.batch([picture]), 0, None, (row, column))[0]
        says(tab, f"the patch in row {row + 1}, column {column + 1}", place(expected))

    # The frame is around the patch: its amber line is half a line from each side
    amber = tab.evaluate(
        """() => {
            const { width, height } = document.getElementById('picture');
            const { data } = document.getElementById('picture').getContext('2d')
                .getImageData(0, 0, width, height);
            const at = [];
            for (let i = 0; i < width * height; i++) {
                if (data[4 * i] > 240 && Math.abs(data[4 * i + 1] - 196) < 12 && data[4 * i + 2] < 20) {
                    at.push([Math.floor(i / width) / height, (i % width) / width]);
                }
            }
            return at;
        }"""
    )
    top, left = np.array(amber).min(0)
    assert top == pytest.approx((height - 16) / height, abs=0.02)
    assert left == pytest.approx((width - 8) / width, abs=0.02)
    assert tab.wrong == []
