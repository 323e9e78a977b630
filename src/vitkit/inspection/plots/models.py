"""What the arrays of this room say of a model, as pictures with titles, axes and units: each function
makes a figure of matplotlib's of one array; themes.py writes it. Those of photographs are in
photographs.py.

Legend: B images, C channels, L layers or blocks, H heads, (h, w) the grid of patches or the pixels of
a filter.
"""

from typing import TYPE_CHECKING

import numpy as np

from vitkit.inspection.figures.cka import Alignment
from vitkit.inspection.figures.distance import AttentionDistance
from vitkit.inspection.figures.entropy import AttentionEntropy
from vitkit.inspection.figures.filters import Filters
from vitkit.inspection.figures.positions import PositionSimilarity
from vitkit.inspection.figures.states import TokenNorms
from vitkit.inspection.plots.panels import (
    dots_by_depth,
    draw_numbers,
    mosaic,
    name_layers,
    number_tiles,
    of_images,
    one_panel,
    panels,
)
from vitkit.inspection.plots.themes import LIGHT, Theme, themed
from vitkit.system.console.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    figure, axes = one_panel((0.8 * columns, 0.8 * rows + 0.5))
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
    image = draw_numbers(cells[0], tiles, (-1, 1), theme)
    number_tiles(cells[0], (h, w))
    cells[0].set(title="Position embedding similarity", xlabel="patch column", ylabel="patch row")

    # What has a position, but is nowhere
    if prefix:
        maps = similarity.prefix_maps.numpy()  # (P, h, w)
        column = mosaic(maps[:, None])
        draw_numbers(cells[1], column, (-1, 1), theme)
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
    ways = {"": distance.plain}
    if has_prefix:
        ways = {
            "tokens before the patches count as 0": distance.plain,
            "among the patches alone": distance.renormalised,
        }
    figure, cells = panels(len(ways) + has_prefix)
    positions = np.arange(len(distance.layers))
    highest = 1.05 * max(*distance.uniform, *(float(values.max()) for values in ways.values()))
    for axes, (title, values) in zip(cells, ways.items(), strict=False):
        dots_by_depth(axes, values, distance.layers, theme)
        axes.plot(positions, distance.uniform, "--", color=theme.faint, label="all patches alike")
        axes.set_title(title, fontsize=9)
        axes.set(ylabel="mean attention distance (pixels)", ylim=(0, highest))
        axes.legend(fontsize=8, loc="lower right")
    if has_prefix:
        dots_by_depth(cells[-1], 100 * distance.prefix_share, distance.layers, theme)
        cells[-1].set_title("what patches give to the tokens before them", fontsize=9)
        cells[-1].set(ylabel="share of the attention (%)", ylim=(0, 100))
    figure.suptitle(f"Mean attention distance, {of_images(distance.images)}", fontsize=11)
    return themed(figure, theme)


def draw_entropy(entropy: AttentionEntropy, theme: Theme = LIGHT) -> "Figure":
    """A dot for each head, by depth, and their mean; above, the entropy of uniform attention."""
    figure, (axes,) = panels(1)
    dots_by_depth(axes, entropy.nats, entropy.layers, theme)
    positions = np.arange(len(entropy.layers))
    axes.plot(positions, entropy.highest, "--", color=theme.faint, label="all tokens alike")
    axes.set(ylabel="entropy of the attention (nats)", ylim=(0, 1.08 * max(entropy.highest)))
    axes.set_title(f"Attention entropy, {of_images(entropy.images)}", fontsize=11)
    axes.legend(fontsize=8, loc="lower right")
    return themed(figure, theme)


def draw_norms(norms: TokenNorms, theme: Theme = LIGHT) -> "Figure":
    """How long the patches' states are, by depth: the median, nine of ten, and the longest; and the
    tokens before them. Beside it where the long ones are, in the last layer, image by image."""
    from matplotlib.figure import Figure

    count, depth = norms.patches.shape[:2]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))

    # By depth
    of_layers = norms.patches.transpose(0, 1).flatten(1).numpy()  # (L + 1, B·h·w)
    low, median, high = np.quantile(of_layers, [0.05, 0.5, 0.95], axis=1)
    positions = np.arange(depth)
    left.fill_between(positions, low, high, color=theme.first, alpha=0.25, linewidth=0)
    left.plot(positions, median, "o-", markersize=4, color=theme.first, label="patches: median")
    left.plot(
        positions, of_layers.max(1), "^", markersize=5, color=theme.first, label="the longest patch"
    )
    for i, by_layer in enumerate(norms.prefix.mean(0).T):
        name = None
        if i == 0:
            name = "tokens before the patches"
        left.plot(positions, by_layer, color=theme.second, label=name)
    name_layers(left, ["input", *map(str, range(1, depth))])
    left.tick_params(axis="x", rotation=0)
    left.set(ylabel="norm of a token's state", yscale="log")
    left.set_title("5 to 95 % of the patches in the band", fontsize=9)
    left.legend(fontsize=8, loc="upper left")

    # Where they are
    last = norms.patches[:, -1].numpy()  # (B, h, w)
    columns = min(4, count)
    rows = -(-count // columns)
    tiles = np.full((rows * columns, *last.shape[1:]), np.nan, np.float32)
    tiles[:count] = last
    picture = mosaic(tiles.reshape(rows, columns, *last.shape[1:]))
    image = draw_numbers(right, picture, (0, float(last.max())), theme)
    right.set(xticks=[], yticks=[])
    right.set_title("norms after the last block, a tile for each image", fontsize=9)
    figure.colorbar(image, ax=right, shrink=0.8)
    figure.suptitle(f"Token norms, {counted(count, 'image')}", fontsize=11)
    return themed(figure, theme)


def draw_alignment(alignment: Alignment, theme: Theme = LIGHT) -> "Figure":
    """How much alike every two layers are: a map of CKA, the first model's layers upwards."""
    figure, axes = one_panel((4.6, 4))
    image = draw_numbers(axes, alignment.values.numpy(), (0, 1), theme)
    axes.invert_yaxis()
    name_layers(axes, [str(i) for i in range(len(alignment.second))])
    step = -(-len(alignment.first) // 12)
    axes.set_yticks(np.arange(0, len(alignment.first), step))
    across = "block (0: embedding)"
    if not alignment.of_itself:
        across = "block of the other model (0: embedding)"
    axes.set(xlabel=across, ylabel="block (0: embedding)")
    axes.set_title(f"Alignment of layers, {alignment.images:,} images", fontsize=11)
    figure.colorbar(image, label="CKA", shrink=0.8)
    return themed(figure, theme)
