"""Draws docs/looked.jpg, photographs beside what a model looks at:

python docs/draw_looked.py MODEL IMAGE...
"""

import io
import sys
from pathlib import Path

from PIL import Image

import vitkit
from vitkit.data import open_image
from vitkit.inspection import Tile, contact_sheet, darkened, logits_and_rollout


def main(model: str, files: list[str]) -> None:
    classifier = vitkit.load(model, quiet=True)
    tiles = []
    for file in files:
        picture = open_image(Path(file).read_bytes(), file)
        images = classifier.batch([picture])
        logits, maps = logits_and_rollout(classifier, images)
        probability, answer = classifier.probabilities(logits)[0].max(-1)
        pixels = images[0].permute(1, 2, 0).numpy()
        looked = darkened(pixels, maps[0].numpy(), (0, 0, *pixels.shape[:2]))
        name = classifier.labels[answer].split(",")[0]
        tiles.append(Tile(pixels, f"{name} {probability:.0%}"))
        tiles.append(Tile(looked, ""))

    # A JPEG is a fifth of the PNG
    sheet = contact_sheet(tiles, Path("looked.png"), columns=6)
    picture = Image.open(io.BytesIO(sheet.read_bytes())).convert("RGB")
    picture.save(Path(__file__).parent / "looked.jpg", quality=85)
    sheet.unlink()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
