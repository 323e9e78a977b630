"""Draw a Vision Transformer like Figure 1 of the paper, from the image at the bottom to the classes at the
top, with one block of its encoder in detail beside it. All numbers are those of the model.
"""

from textwrap import wrap

from vitkit.inspection.architecture.scene import LARGE, LINE, Box, Scene, Text, box_height
from vitkit.models import ResNetConfig, ViTConfig
from vitkit.models.zoo import backbone_name

# The left column contains the model, the right one text and the block in detail
LEFT = 8.0
COLUMN = 176.0
CENTRE = LEFT + COLUMN / 2
RIGHT = 206.0
OPENED = 166.0
GAP = 22.0  # between boxes, with an arrow in it
IMAGE = 90.0  # longer side of the drawn image
LINES = 28  # most patches that are drawn along its side

POSITIONS = {
    "none": "no positions",
    "learned": "learned positions",
    "learned2d": "learned positions, x and y",
    "relative": "relative positions",
    "sincos": "sines and cosines",
    "sincos-1d": "sines and cosines, 1-D",
    "sincos-moco": "sines and cosines (MoCo)",
    "sincos-mae": "sines and cosines (MAE)",
    "rotary": "rotary positions",
    "rotary-axial": "rotary (RoPE-ViT)",
    "rotary-timm": "rotary (timm)",
    "rotary-dinov3": "rotary (DINOv3)",
}
WHERE = {
    "stem": "added to the tokens once",
    "every": "a table for every block",
    "shared": "one table for all blocks",
}
ACTIVATIONS = {
    "tanh": "GELU (tanh)",
    "erf": "GELU",
    "quick": "quick GELU",
    "relu": "ReLU",
    "silu": "SiLU",
}
LONGEST = 25  # characters of a line in a box of the left column


def draw_transformer(scene: Scene, config: ViTConfig) -> None:
    """Draw a Vision Transformer upwards from y = 0."""
    # Eq. 1: the image, patches, and tokens
    top = _image(scene, config, 0.0)
    top = _projection(scene, config, top)
    top = _tokens(scene, config, top)

    # Eq. 2 and 3: the blocks, and one of them in detail
    opened = _opened_block(scene, config, top - GAP)
    top = _encoder(scene, config, top, opened)

    # Eq. 4: pooling and head
    _head(scene, config, top)


def _image(scene: Scene, config: ViTConfig, bottom: float) -> float:
    """Draw the image, cut into patches; returns its top."""
    height, width = config.image
    scale = IMAGE / max(height, width)
    shown = (height * scale, width * scale)
    top = bottom - shown[0]
    left = CENTRE - shown[1] / 2
    scene.shapes.append(Box(left, top, shown[1], shown[0], "image", 0))

    # One patch, and lines between the others
    patch = config.tiling.size
    scene.shapes.append(Box(left, top, patch[1] * scale, patch[0] * scale, "projection", 0))
    rows, columns = config.grid
    stride = config.tiling.stride
    for row in range(1, rows, -(-rows // LINES)):
        y = top + row * stride[0] * scale
        scene.arrow((left, y), (left + shown[1], y), head=False)
    for column in range(1, columns, -(-columns // LINES)):
        x = left + column * stride[1] * scale
        scene.arrow((x, top), (x, bottom), head=False)

    # Description
    words = [f"Image, {height} × {width} × {config.channels}"]
    words.append(f"{rows} × {columns} = {rows * columns:,} patches")
    words.append(f"of {patch[0]} × {patch[1]} pixels")
    if config.tiling.overlaps:
        words.append(f"every {_pixels(stride)} pixels")
    if config.stem is not None:
        height, width = config.patches.size
        words.append(f"{height} × {width} of the ResNet's map")
    scene.lines(RIGHT, bottom - LINE * len(words), words)
    return top


def _pixels(sides: tuple[int, int]) -> str:
    """Height and width as text: "8", or "8 × 4"."""
    height, width = sides
    if height == width:
        return str(height)
    return f"{height} × {width}"


def _projection(scene: Scene, config: ViTConfig, top: float) -> float:
    """Draw the ResNet of a hybrid, and the projection of patches; returns their top."""
    channels = config.channels
    if config.stem is not None:
        rows, columns = config.stem.last_grid(config.image)
        channels = config.stem.features
        lines = [f"ResNet {backbone_name(config.stem)}", f"{rows} × {columns} × {channels:,}"]
        top = next_box(scene, top, "backbone", lines)
    height, width = config.patches.size
    numbers = height * width * channels
    lines = ["Linear projection", f"of patches, {numbers:,} → {config.width:,}"]
    return next_box(scene, top, "projection", lines)


def next_box(scene: Scene, below: float, colour: str, lines: list[str], label: str = "") -> float:
    """Draw a box of the left column, and an arrow to it with a label; returns the top of the box."""
    bottom = arrow_up(scene, below, label)
    top = bottom - box_height(lines)
    scene.box(LEFT, top, COLUMN, colour, lines)
    return top


def arrow_up(scene: Scene, below: float, label: str = "") -> float:
    """Draw an arrow in the left column, with a label beside it; returns the y of its end."""
    above = below - GAP
    scene.arrow((CENTRE, below - 1), (CENTRE, above + 1))
    scene.shapes.append(
        Text(CENTRE + 9, (below + above) / 2, label, anchor="start", colour="faint")
    )
    return above


def _tokens(scene: Scene, config: ViTConfig, below: float) -> float:
    """Draw the row of tokens, those before the patches and the patches, with positions; returns its top."""
    patches = config.grid[0] * config.grid[1]
    bottom = arrow_up(scene, below, f"{patches:,} × {config.width:,}")
    top = bottom - 40
    at_stem = config.resolved_inject == "stem" and config.positions != "none"

    # The drawn tokens: a name, and whether the token has a position
    row = []
    if config.has_class_token:
        row.append(("∗", at_stem and config.prefix_rows >= 1))
    for number in range(min(config.registers, 2)):
        has_row = config.prefix_rows > number + int(config.has_class_token)
        row.append(("r", at_stem and has_row))
    if patches <= 4:
        row += [(str(number + 1), at_stem) for number in range(patches)]
    else:
        row += [("1", at_stem), ("2", at_stem), ("…", False), (f"{patches:,}", at_stem)]

    widths = [max(19.0, 7.5 * len(name)) for name, _ in row]
    left = CENTRE - (sum(widths) + 4 * (len(row) - 1)) / 2
    for (name, has_position), width in zip(row, widths, strict=True):
        middle = left + width / 2
        if name == "…":
            scene.shapes.append(Text(middle, top + 20, name))
        else:
            scene.shapes.append(Box(left, top, width, 40, "projection", 2))
            scene.shapes.append(Text(middle, top + 29, name))
        if has_position:
            scene.shapes.append(Box(left + 2, top + 3, width - 4, 15, "position", 7))
            scene.shapes.append(Text(middle, top + 10.5, "+"))
        left += width + 4

    # Description
    words = [f"{patches + config.prefix:,} tokens"]
    if config.has_class_token:
        words.append("∗ class token")
    if config.pool == "distilled" and config.registers == 1:
        words.append("r distillation token")
    elif config.registers:
        words.append(f"r registers, {config.registers}")
    words.append(POSITIONS[config.positions])
    if config.positions.startswith("rotary"):
        words.append("in every block's attention")
    elif config.positions != "none":
        words.append(WHERE[config.resolved_inject])
    scene.lines(RIGHT, top - 8, words)
    return top


def _encoder(scene: Scene, config: ViTConfig, below: float, opened: Box) -> float:
    """Draw the blocks, joined to the block in detail, and the last norm; returns their top."""
    tokens = config.grid[0] * config.grid[1] + config.prefix
    label = f"{tokens:,} × {config.width:,}"
    if config.embedding_norm:
        below = next_box(scene, below, "norm", ["Norm"], label)
    bottom = arrow_up(scene, below, label)

    # The blocks as one stack, or as two if the head reads several, on a panel
    several = config.read_blocks > 1
    earlier = config.depth
    if several:
        earlier -= config.read_blocks
    place = len(scene.shapes)
    y = bottom - 8
    middles = []
    for count, words in ((earlier, []), (config.read_blocks, ["read by the head"])):
        if count and (several or not words):
            top = _stack(scene, config, y, count, words)
            middles.append((y + top) / 2)
            y = top - 17
    scene.shapes.append(Text(CENTRE, y - 2, "Transformer encoder", bold=True))
    panel_top = y - 14
    panel = Box(LEFT, panel_top, COLUMN, bottom - panel_top, "panel")
    scene.shapes.insert(place, panel)

    # Join the block in detail to the first stack
    right = LEFT + COLUMN - 14
    side = opened.left - 6
    low = opened.top + opened.height
    join = ((right, middles[0]), (side, middles[0]))
    bracket = ((opened.left, opened.top), (side, opened.top), (side, low), (opened.left, low))
    scene.arrow(*join, dashed=True, head=False)
    scene.arrow(*bracket, dashed=True, head=False)

    # The states of earlier blocks bypass the last ones, to the next box
    if several:
        beside = LEFT + COLUMN + 6
        into = panel_top - GAP - 10
        corners = ((right, middles[-1]), (beside, middles[-1]), (beside, into))
        scene.arrow(*corners, (LEFT + COLUMN + 1, into))
    if config.norm == "tokens":
        return next_box(scene, panel_top, "norm", ["Norm"])
    return panel_top


def _stack(scene: Scene, config: ViTConfig, bottom: float, count: int, words: list[str]) -> float:
    """Draw a stack of `count` blocks, with text on the uppermost; returns its top."""
    lines = [f"Block × {count}", *words]
    if config.mixer == "axial":
        lines[0] = f"Two blocks × {count}"
    left = LEFT + 14
    width = COLUMN - 36
    top = bottom - box_height(lines)
    if count > 1:
        for behind in (8, 4):
            scene.shapes.append(
                Box(left + behind, top - behind, width, box_height(lines), "attention")
            )
    scene.box(left, top, width, "attention", lines)
    return top


def _head(scene: Scene, config: ViTConfig, below: float) -> None:
    """Draw the pooling and the head, up to the classes."""
    tokens = config.grid[0] * config.grid[1] + config.prefix
    words = config.pooling.words.removeprefix("the ")
    lines = wrap(words[0].upper() + words[1:], LONGEST)
    label = f"{tokens:,} × {config.width:,}"
    if config.read_blocks > 1:
        lines.append(f"of the last {config.read_blocks} blocks")
    top = next_box(scene, below, "pool", lines, label)
    answers = ""
    if not config.pools:
        answers = f"{tokens:,} × "
    label = f"{answers}{config.pooled_width:,}"
    if config.norm == "pooled":
        top = next_box(scene, top, "norm", ["Norm"], label)
    if config.representation:
        lines = ["Hidden layer, tanh", f"{config.pooled_width:,} → {config.representation:,}"]
        top = next_box(scene, top, "head", lines, label)
        label = f"{answers}{config.representation:,}"
    if config.classes:
        features = config.representation or config.pooled_width
        lines = ["Linear head", f"{features:,} → {config.classes:,}"]
        if config.pool == "distilled":
            lines = ["Two heads, averaged", f"{config.width:,} → {config.classes:,} each"]
        top = next_box(scene, top, "head", lines, label)
    outcome(scene, config, top, label, "for every token")


def outcome(
    scene: Scene, config: ViTConfig | ResNetConfig, below: float, label: str, each: str
) -> None:
    """Draw the output: the classes, or the shape of the features. each: text for a model without pooling."""
    end = "features"
    if config.classes:
        label = ""
        end = f"{config.classes:,} classes"
    top = arrow_up(scene, below, label)
    if not config.pools:
        scene.shapes.append(Text(CENTRE, top - 8, each))
        top -= LINE
    scene.shapes.append(Text(CENTRE, top - 8, end, LARGE, bold=True))


# The block in detail


def _opened_block(scene: Scene, config: ViTConfig, bottom: float) -> Box:
    """Draw a block in detail, or two if the layers alternate; returns its panel."""
    attention = ["Multi-head attention"]
    if config.mixer == "axial":
        attention = ["Attention", "along the rows"]
    heads = f"{config.heads} heads of {config.width // config.heads}"
    attention.append(heads)
    if not config.position_kind.adds_to_tokens:
        attention.append(POSITIONS[config.positions])
    mlp = ["MLP", f"{config.width:,} → {config.mlp:,} → {config.width:,}"]
    mlp.append(ACTIVATIONS[config.gelu])
    if config.swiglu:
        mlp = ["SwiGLU", f"{config.width:,} → 2 × {config.mlp:,}", f"→ {config.width:,}"]
    branches = [("attention", attention), ("mlp", mlp)]
    if config.mixer == "axial":
        branches += [("attention", ["Attention", "along the columns", heads]), ("mlp", mlp)]

    # From the bottom; the panel is inserted behind when its height is known
    place = len(scene.shapes)
    centre = RIGHT + OPENED / 2 + 8
    y = bottom - 8
    adds = config.positions != "none" and config.position_kind.adds_to_tokens
    if adds and config.resolved_inject != "stem":
        y = plus(scene, centre, y - 16)
        scene.shapes.append(Box(RIGHT + 6, y, 58, 16, "position", 8))
        scene.shapes.append(Text(RIGHT + 35, y + 8, "positions"))
        scene.arrow((RIGHT + 64, y + 8), (centre - 9, y + 8))
    for colour, lines in branches:
        y = _branch(scene, config, centre, y, colour, lines)
    title = "One block"
    if config.mixer == "axial":
        title = "Two blocks"
    scene.arrow((centre, y), (centre, y - 18))
    y -= 38
    scene.shapes.append(Text(centre - 8, y + 12, f"{title} of the encoder", bold=True))
    panel = Box(RIGHT, y, OPENED, bottom - y, "panel")
    scene.shapes.insert(place, panel)
    return panel


def _branch(
    scene: Scene, config: ViTConfig, centre: float, below: float, colour: str, lines: list[str]
) -> float:
    """Draw a residual branch of a block, Eq. 2 or 3; returns its top."""
    boxes = [("norm", ["Norm"]), (colour, lines)]
    if config.branch_norm == "after":
        boxes.reverse()
    if config.layer_scale is not None:
        boxes.append(("norm", ["× LayerScale"]))
    left = RIGHT + 22
    width = OPENED - 28
    y = below - 12
    split = below - 5
    scene.arrow((centre, below), (centre, y + 1))
    for i, (each, words) in enumerate(boxes):
        top = y - box_height(words)
        scene.box(left, top, width, each, words)
        y = top - 12
        if i == len(boxes) - 1:
            y = top - 10
        scene.arrow((centre, top), (centre, y + 1))
    top = plus(scene, centre, y - 16)
    side = RIGHT + 9
    scene.arrow((centre, split), (side, split), (side, top + 8), (centre - 9, top + 8))
    return top


def plus(scene: Scene, centre: float, top: float) -> float:
    """Draw a sum as a circle with a plus; returns its top."""
    scene.shapes.append(Box(centre - 8, top, 16, 16, "paper", 8))
    scene.shapes.append(Text(centre, top + 8, "+", LARGE, bold=True))
    return top
