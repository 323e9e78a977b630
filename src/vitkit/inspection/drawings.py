"""The arrays of this room as pictures, with titles, axes and units: each function makes a figure of
matplotlib's of one array; themes.py writes it.

Legend: B images, C channels, L layers, H heads, (h, w) the grid of patches or the pixels of a filter,
H W pixels of an image.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from vitkit.inspection.distance import AttentionDistance
from vitkit.inspection.entropy import AttentionEntropy
from vitkit.inspection.figures import darkened, show_image
from vitkit.inspection.filters import Filters
from vitkit.inspection.positions import PositionSimilarity
from vitkit.inspection.themes import LIGHT, Theme, themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

FILTERS_IN_A_ROW = 7  # as in Fig. 7


def draw_filters(filters: Filters, theme: Theme = LIGHT) -> "Figure":
    """Fig. 7 (left): the principal components of the first filters, in rows of seven, the strongest
    first. Zero is grey; each is as strong in colour as can be.

    Raises ValueError for filters whose channels are no colours.
    """
    count, channels = filters.components.shape[:2]
    if channels not in (1, 3):
        raise ValueError(
            f"filters of {channels} channels have no colours to be drawn in; take their array"
        )

    # From -peak to peak becomes from black to white
    components = filters.components
    peaks = components.abs().amax((1, 2, 3), keepdim=True).clamp(min=1e-12)
    colours = (components / peaks / 2 + 0.5).expand(-1, 3, -1, -1)  # grey as three channels
    tiles = colours.permute(0, 2, 3, 1).numpy()  # (count, h, w, 3)

    # In rows; the last may have empty cells
    columns = min(FILTERS_IN_A_ROW, count)
    rows = -(-count // columns)
    cells = np.full((rows * columns, *tiles.shape[1:]), np.nan, np.float32)
    cells[:count] = tiles
    picture = mosaic(cells.reshape(rows, columns, *tiles.shape[1:]))
    visible = ~np.isnan(picture[..., :1])
    picture = np.concatenate([np.nan_to_num(picture), visible], -1)  # with alpha

    share = float(filters.shares[:count].sum())
    figure, axes = _one_panel((0.8 * columns, 0.8 * rows + 0.5))
    axes.imshow(picture, interpolation="nearest")
    axes.axis("off")
    axes.set_title(
        f"First {count} principal components of the filters\n{share:.0%} of their variance",
        fontsize=10,
    )
    return themed(figure, theme)


def draw_positions(similarity: PositionSimilarity, theme: Theme = LIGHT) -> "Figure":
    """Fig. 7 (centre) and Fig. 10: a tile for each patch, where it lies in the image, with the
    cosines between its position and those of all patches; beside it those of the tokens before the
    patches, if these have positions."""
    from matplotlib.figure import Figure

    h, w = similarity.grid
    prefix = similarity.prefix
    tiles = mosaic(similarity.tiles.numpy())
    side = 5.2
    widths = [side]
    if prefix:
        widths.append(side / 4)
    figure = Figure(figsize=(sum(widths) + 1, side * max(h / w, 0.4) + 0.9), layout="constrained")
    cells = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]

    # The tiles
    image = _draw_cosines(cells[0], tiles, theme)
    _number_tiles(cells[0], (h, w))
    cells[0].set(title="Position embedding similarity", xlabel="patch column", ylabel="patch row")

    # What has a position, but is nowhere
    if prefix:
        maps = similarity.prefix_maps.numpy()  # (P, h, w)
        column = mosaic(maps[:, None])
        _draw_cosines(cells[1], column, theme)
        cells[1].set(xticks=[], yticks=[])
        title = "class token"
        if prefix > 1:
            title = f"the {prefix} tokens\nbefore the patches"
        cells[1].set_title(title, fontsize=9)
    figure.colorbar(image, ax=list(cells), label="cosine similarity", shrink=0.8)
    return themed(figure, theme)


def draw_distance(distance: AttentionDistance, theme: Theme = LIGHT) -> "Figure":
    """Fig. 7 (right) and Fig. 11: a dot for each head, by depth, and their mean; the class token's
    share counted as 0, left out, and, in a panel of its own, drawn."""
    has_prefix = bool(distance.prefix_share.max() > 1e-6)
    panels = {"": distance.plain}
    if has_prefix:
        panels = {
            "tokens before the patches count as 0": distance.plain,
            "among the patches alone": distance.renormalised,
        }
    figure, cells = _panels(len(panels) + has_prefix)
    highest = 1.05 * max(distance.uniform, *(float(values.max()) for values in panels.values()))
    for axes, (title, values) in zip(cells, panels.items(), strict=False):
        _dots_by_depth(axes, values, distance.layers, theme)
        _compare_with(axes, distance.uniform, "all patches alike", theme)
        axes.set_title(title, fontsize=9)
        axes.set(ylabel="mean attention distance (pixels)", ylim=(0, highest))
        axes.legend(fontsize=8)
    if has_prefix:
        _dots_by_depth(cells[-1], 100 * distance.prefix_share, distance.layers, theme)
        cells[-1].set_title("what patches give to the tokens before them", fontsize=9)
        cells[-1].set(ylabel="share of the attention (%)", ylim=(0, 100))
    figure.suptitle(f"Mean attention distance, {_of_images(distance.images)}", fontsize=11)
    return themed(figure, theme)


def draw_entropy(entropy: AttentionEntropy, theme: Theme = LIGHT) -> "Figure":
    """A dot for each head, by depth, and their mean; above, the entropy of uniform attention."""
    figure, (axes,) = _panels(1)
    _dots_by_depth(axes, entropy.nats, entropy.layers, theme)
    positions = np.arange(len(entropy.layers))
    axes.plot(positions, entropy.highest, "--", color=theme.faint, label="all tokens alike")
    axes.set(ylabel="entropy of the attention (nats)", ylim=(0, 1.08 * max(entropy.highest)))
    axes.set_title(f"Attention entropy, {_of_images(entropy.images)}", fontsize=11)
    axes.legend(fontsize=8)
    return themed(figure, theme)


def draw_looked(
    images: np.ndarray, maps: Mapping[str, Tensor], theme: Theme = LIGHT, names: Sequence[str] = ()
) -> "Figure":
    """Fig. 6 and 14: photographs, uint8 (B, H, W, 3), each beside itself darkened by maps (B, h, w)
    that are not negative, a column for each, by its title. names: a line for each photograph."""
    from matplotlib.figure import Figure

    count = len(images)
    height = 1.9 * images.shape[1] / images.shape[2] + 0.25
    size = (1.9 * (1 + len(maps)), height * count + 0.2)
    figure = Figure(figsize=size, layout="constrained")
    cells = figure.subplots(count, 1 + len(maps), squeeze=False)
    cells[0, 0].set_title("input", fontsize=9)
    box = (0, 0, *images.shape[1:3])
    for row, image in enumerate(images):
        show_image(cells[row, 0], image)
        for axes, weights in zip(cells[row, 1:], maps.values(), strict=True):
            show_image(axes, darkened(image, weights[row].numpy(), box))
        if names:
            cells[row, 0].text(
                0.5, -0.02, names[row], fontsize=7, ha="center", va="top",
                transform=cells[row, 0].transAxes,
            )  # fmt: skip
    for axes, title in zip(cells[0, 1:], maps, strict=True):
        axes.set_title(title, fontsize=9)
    return themed(figure, theme)


# Parts of figures


def mosaic(tiles: np.ndarray) -> np.ndarray:
    """Tiles in rows and columns, (rows, columns, h, w) or (rows, columns, h, w, C), as one picture
    with gaps of NaN a tenth of a tile wide: float32."""
    rows, columns, h, w = tiles.shape[:4]
    gap = max(1, round(max(h, w) / 10))
    size = (rows * (h + gap) - gap, columns * (w + gap) - gap)
    picture = np.full((*size, *tiles.shape[4:]), np.nan, np.float32)
    for row in range(rows):
        for column in range(columns):
            top = row * (h + gap)
            left = column * (w + gap)
            picture[top : top + h, left : left + w] = tiles[row, column]
    return picture


def _draw_cosines(axes: "Axes", picture: np.ndarray, theme: Theme) -> "AxesImage":
    """A picture of cosines, from -1 to 1, whose NaN are not drawn."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes.imshow(picture, cmap=theme.maps, vmin=-1, vmax=1, interpolation="nearest")


def _number_tiles(axes: "Axes", grid: tuple[int, int]) -> None:
    """Number the rows and columns of a mosaic of h x w tiles of h x w, from 1; about seven of
    them."""
    gap = max(1, round(max(grid) / 10))
    for count, set_ticks in zip(grid, (axes.set_yticks, axes.set_xticks), strict=True):
        step = -(-count // 7)
        shown = np.arange(0, count, step)
        set_ticks(shown * (count + gap) + (count - 1) / 2, [str(i + 1) for i in shown])
    axes.tick_params(length=0)


def _one_panel(size: tuple[float, float]) -> tuple["Figure", "Axes"]:
    """A figure of (width, height) inches with one panel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def _panels(count: int) -> tuple["Figure", Sequence["Axes"]]:
    """A figure of panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * count + 0.4, 3.4), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def _dots_by_depth(axes: "Axes", values: Tensor, layers: Sequence[str], theme: Theme) -> None:
    """A dot for each head of each layer, (L, H), and a line through the layers' means."""
    positions = np.arange(len(layers))
    across = positions.repeat(values.shape[1])
    axes.plot(
        across, values.flatten(), "o", markersize=4, alpha=0.6, color=theme.first, label="one head"
    )
    axes.plot(positions, values.mean(1), color=theme.second, label="mean of the heads")
    axes.spines[["top", "right"]].set_visible(False)

    # About twelve of the layers by their names; whole words stand aslant
    names = [name.removeprefix("layer ") for name in layers]
    step = -(-len(layers) // 12)
    axes.set_xticks(positions[::step], names[::step])
    if not all(name.isdigit() for name in names):
        axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel("layer")


def _compare_with(axes: "Axes", value: float, name: str, theme: Theme) -> None:
    """A dashed line at a value."""
    axes.axhline(value, linestyle="--", linewidth=1, color=theme.faint, label=name)


def _of_images(count: int) -> str:
    """ "mean of 8 images", or "one image"."""
    if count == 1:
        return "one image"
    return f"mean of {count:,} images"
