"""Near copies found by `vitkit data stats` and `vitkit data review`, and pairs reported without any.

Of each data set, copies of some images are made in each of several ways, and looked for among all of
its training images: `found` is the share whose original is named. `pairs` are those reported among
the training images as they are, and `seconds` what looking for them takes, after the survey's
`survey_seconds`, both of one CPU.

    python benchmarks/near_copies.py --data SET ... --output FILE
"""

import io
import tempfile
import time
from pathlib import Path

import numpy as np
import record
from PIL import Image

from vitkit.curation import near_duplicates, repeats, survey
from vitkit.data import open_image, open_source, open_splits, picture_to_look_at

PACKAGES = ("numpy", "scipy", "pillow", "vitkit")


def cropped(image: Image.Image, side: float, random: np.random.Generator) -> Image.Image:
    """A part of the image, of this share of its sides, anywhere."""
    width = round(side * image.width)
    height = round(side * image.height)
    left = random.integers(0, image.width - width + 1)
    top = random.integers(0, image.height - height + 1)
    return image.crop((left, top, left + width, top + height))


def encoded(image: Image.Image, quality: int) -> Image.Image:
    """The image after JPEG."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def smaller(image: Image.Image, share: float) -> Image.Image:
    """The image with sides of this share."""
    size = (max(1, round(share * image.width)), max(1, round(share * image.height)))
    return image.resize(size, Image.Resampling.BICUBIC)


WAYS = {
    "cropped to 95 %": lambda image, random: cropped(image, 0.95, random),
    "cropped to 90 %": lambda image, random: cropped(image, 0.9, random),
    "cropped to 80 %": lambda image, random: cropped(image, 0.8, random),
    "cropped to 70 %": lambda image, random: cropped(image, 0.7, random),
    "grey": lambda image, random: image.convert("L").convert("RGB"),
    "mirrored": lambda image, random: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "JPEG, quality 30": lambda image, random: encoded(image, 30),
    "a quarter of the sides": lambda image, random: smaller(image, 0.25),
    "brighter by 30 %": lambda image, random: image.point(lambda level: min(255, 1.3 * level)),
    "turned by 2 degrees": lambda image, random: image.rotate(2, Image.Resampling.BICUBIC),
    "turned by 90 degrees": lambda image, random: image.transpose(Image.Transpose.ROTATE_90),
    "mirrored, cropped to 90 %": lambda image, random: cropped(
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 0.9, random
    ),
}


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--copies", type=int, default=40, help="images of a set that are copied")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)

    results = {}
    for data in options.data:
        results[Path(data).name] = measured(_images(data), options.copies)
        print(Path(data).name, results[Path(data).name], flush=True)
    content = {
        **about,
        "copies": options.copies,
        "results": results,
    }
    record.write(content, options.output)
    return content


def _images(data: str):
    """The training images of a data set, or the images of a file."""
    if data.endswith(".parquet"):
        return open_source(data)
    return open_splits(data).train


def measured(source, copies: int) -> dict:
    """What is found in a data set, and among copies of it."""
    began = time.process_time()
    seen = survey(source, 0)
    surveyed = time.process_time()
    pairs = repeats([seen])
    ended = time.process_time()

    random = np.random.default_rng(0)
    chosen = random.choice(len(source), copies, replace=False).tolist()
    found = {}
    for way, change in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            for number, index in enumerate(chosen):
                pixels = picture_to_look_at(open_image(source[index][0], "image"))
                copy = change(Image.fromarray(pixels), random)
                copy.save(Path(folder) / f"{number:03}.png")
            named = near_duplicates(survey(open_source(folder), 0), seen)
        found[way] = sum(pair.second == chosen[pair.first] for pair in named) / copies
    return {
        "images": len(source),
        "pairs": len(pairs),
        "survey_seconds": surveyed - began,
        "seconds": ended - surveyed,
        "found": found,
    }


if __name__ == "__main__":
    main()
