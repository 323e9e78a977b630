"""Grids, and the sizes and distances of patches in an image (Eq. 1).

Legend: (h, w) the grid of patches; every pair is (height, width).
"""

from typing import Any, NamedTuple, overload

from vitkit.system.errors import BadSettings

Grid = tuple[int, int]
"""(height, width), of an image in pixels, or of a grid in patches or positions."""


class Tiling(NamedTuple):
    """Patches of one size at equal distances. In the paper the stride is the size, so patches do not
    overlap; with a smaller stride they do."""

    size: Grid
    """Height and width of a patch."""
    stride: Grid
    """Distance from the top of a patch to that of the patch below, and from its left to that of the next."""

    @property
    def overlaps(self) -> bool:
        """Whether a pixel may be in several patches."""
        return self.stride != self.size

    def scaled(self, factor: int) -> "Tiling":
        """The tiling in finer units: from positions of a feature map to pixels of the image."""
        size = (self.size[0] * factor, self.size[1] * factor)
        stride = (self.stride[0] * factor, self.stride[1] * factor)
        return Tiling(size, stride)

    def grid(self, image: Grid) -> Grid:
        """(h, w), the number of patches of an image of (height, width)."""
        rows = (image[0] - self.size[0]) // self.stride[0] + 1
        columns = (image[1] - self.size[1]) // self.stride[1] + 1
        return rows, columns

    def image(self, grid: Grid) -> Grid:
        """(height, width) of an image with this many rows and columns of patches."""
        height = self.size[0] + (grid[0] - 1) * self.stride[0]
        width = self.size[1] + (grid[1] - 1) * self.stride[1]
        return height, width

    def fits(self, image: Grid) -> bool:
        """Whether whole patches cover an image of (height, width) completely."""
        grid = self.grid(image)
        return min(grid) >= 1 and self.image(grid) == tuple(image)

    def fitting(self, image: Grid) -> Grid:
        """The largest (height, width) that fits and is not above `image`; at least one patch."""
        rows, columns = self.grid(image)
        return self.image((max(rows, 1), max(columns, 1)))

    def check(self, image: Grid) -> None:
        """Raise VitkitError for an image of (height, width) that whole patches do not cover."""
        if not self.fits(image):
            raise BadSettings(
                f"{self.misfit(image)}; resize it to {self.sizes(image)} (its Preprocessing does)"
            )

    def misfit(self, image: Grid) -> str:
        """Why an image of (height, width) does not fit, as the first half of a sentence."""
        height, width = self.size
        patches = f"patches of {height} x {width}"
        if self.overlaps:
            patches += f" every {self.stride[0]} x {self.stride[1]} pixels"
        return f"an image of {image[0]} x {image[1]} pixels cannot be cut into {patches}"

    def sizes(self, image: Grid) -> str:
        """The sizes that fit, such as "multiples of 16", for an error message."""
        height, width = self.size
        if self.overlaps:
            fitting = " x ".join(map(str, self.fitting(image)))
            return (
                f"{height} x {width} and a multiple of {self.stride[0]} x {self.stride[1]} more, "
                f"such as {fitting}"
            )
        if height == width:
            return f"multiples of {height}"
        return f"a height that is a multiple of {height} and a width that is a multiple of {width}"


@overload
def as_pair(value: int | Grid) -> Grid: ...
@overload
def as_pair(value: object) -> object: ...
def as_pair(value: object) -> object:
    """A height and a width, from one number for a square or a JSON list. Anything else is unchanged, and
    `check_settings` refuses it."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, list):
        return tuple(value)
    return value


def as_side(value: Any) -> Any:
    """One number if both sides are equal, as configurations store a square; otherwise as `as_pair`."""
    pair = as_pair(value)
    if isinstance(pair, tuple) and len(pair) == 2 and pair[0] == pair[1]:
        return pair[0]
    return pair
