"""Draws the pictures of docs/inspection.md, with the command that the page shows, and makes them
small enough to be sent:

python docs/draw_inspected.py MODEL FOLDER
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from vitkit.cli.entry import main

# What has many colours as JPEG, lines and dots as PNG
COLOURFUL = ("filters", "positions", "rollout", "relevance", "colours", "similarity")
LINES = ("distance", "norms")
WIDEST = 1100  # pixels


def draw(model: str, photographs: str) -> None:
    docs = Path(__file__).parent
    with TemporaryDirectory() as folder:
        names = (*COLOURFUL, *LINES)
        words = ["inspect", model, photographs, "--output", folder, "--no-page"]
        assert main([*words, "--figures", *names]) == 0
        for name in names:
            picture = Image.open(Path(folder) / f"{name}.png").convert("RGB")
            picture.thumbnail((WIDEST, 10 * WIDEST))
            if name in COLOURFUL:
                picture.save(docs / f"inspected-{name}.jpg", quality=80)
            else:
                few = picture.quantize(64, dither=Image.Dither.NONE)
                few.save(docs / f"inspected-{name}.png", optimize=True)


if __name__ == "__main__":
    draw(sys.argv[1], sys.argv[2])
