"""Pages and pictures: what is on them, and that text from outside cannot become markup."""

import json

import numpy as np
import pytest
from PIL import Image

from vitkit.inspection import contact_sheet, report
from vitkit.inspection.sheet import Tile


def test_contact_sheet_shows_every_tile_in_its_colour(tmp_path):
    tiles = [Tile(np.full((9, 7, 3), 20 * i, np.uint8), f"${i}$ & <b>", (None, True, False)[i % 3]) for i in range(11)]
    with Image.open(contact_sheet(tiles, tmp_path / "deep" / "sheet.png", columns=4)) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.shape == (630, 720, 3)
    for colour in ((0x1A, 0x7F, 0x37), (0xC6, 0x28, 0x28)):
        assert (np.abs(pixels.astype(int) - colour).sum(-1) < 12).any()
    with pytest.raises(ValueError, match="no pictures"):
        contact_sheet([], tmp_path / "none.png")


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
        {"event": "skipped", "step": 7, "loss": "nan", "norm": "nan", "indices": [3, 1]},
        {"event": "evaluation", "step": 10, "test/top1": 0.875, "test/loss": 0.5, "test/seen": 1200},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "recipe.json").write_text(json.dumps({"name": "<script>alert(1)</script>", "batch": 4}))
    data = {"source": "photos", "labels": ["a", "b"], "counts": {"train": 5000}, "notes": ["a < b"]}
    (tmp_path / "data.json").write_text(json.dumps(data | {"skipped": {"train": [[3, "x.jpg is cut <short>"]]}}))
    page = report(tmp_path).read_text()
    for text in (
        "87.50%",
        "1,200",
        "5,000 images",
        "x.jpg is cut &lt;short&gt;",
        "a &lt; b",
        "&quot;nan&quot;",
        "image/png",
    ):
        assert text in page, text
    assert "<script>" not in page
