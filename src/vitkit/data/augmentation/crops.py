"""Where a training crop lies.

Boxes are (top, left, height, width) in pixels, always inside the image.
"""

import numpy as np

from vitkit.data.images.files import Box

ASPECT = (0.75, 1.33)  # width / height; TensorFlow's default, which is not 4/3
ATTEMPTS = 100


def inception_box(
    height: int, width: int, area: tuple[float, float], random: np.random.Generator
) -> Box:
    """The crop of TensorFlow's sample_distorted_bounding_box, with which the paper's models were
    trained.

    An aspect ratio is drawn uniformly, then a height: uniformly among those for which the area lies
    within its bounds, as shares of the image, and the width within the image. So it is the side
    that is uniform, not the area. After 100 attempts without a fit it is the whole image.
    """
    low = area[0] * height * width
    high = area[1] * height * width
    for _ in range(ATTEMPTS):
        # A shape, and the heights that it may have.
        aspect = random.uniform(*ASPECT)
        tallest = round((high / aspect) ** 0.5)
        if round(tallest * aspect) > width:  # then the width limits it
            tallest = int((width + 0.5 - 1e-7) / aspect)
            if round(tallest * aspect) > width:
                tallest -= 1
        tallest = min(tallest, height)
        shortest = min(round((low / aspect) ** 0.5), tallest)

        # A height. If rounding put the area just outside, a pixel more or less may mend that.
        h = shortest + int(random.integers(tallest - shortest + 1))
        if h * round(h * aspect) < low:
            h += 1
        if h * round(h * aspect) > high:
            h -= 1
        w = round(h * aspect)

        # A position, if it fits. As in the original, a crop smaller than the image never touches
        # its last row or column.
        fits = low <= h * w <= high and 0 < h <= height and 0 < w <= width
        if not fits:
            continue
        top = 0
        left = 0
        if h < height:
            top = int(random.integers(height - h))
        if w < width:
            left = int(random.integers(width - w))
        return top, left, h, w
    return 0, 0, height, width


def random_box(height: int, width: int, size: tuple[int, int], random: np.random.Generator) -> Box:
    """A box of the given size, anywhere with equal chance."""
    top = int(random.integers(height - size[0] + 1))
    left = int(random.integers(width - size[1] + 1))
    return top, left, *size
