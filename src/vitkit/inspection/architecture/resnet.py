"""Draw a ResNet as boxes, from the image at the bottom to the classes at the top, with one of its units
in detail beside it."""

from vitkit.inspection.architecture.scene import LARGE, Box, Scene, Text, box_height
from vitkit.inspection.architecture.transformer import (
    CENTRE,
    GAP,
    OPENED,
    RIGHT,
    next_box,
    outcome,
    plus,
)
from vitkit.models import ResNetConfig

MIXERS = {
    "conv": ["3 × 3 convolution"],
    "axial": ["Attention", "along rows, then", "along columns"],
    "local": ["Attention to 7 × 7"],
    "augmented": ["3 × 3 convolution,", "attention beside it"],
}
NORMS = {"group": "GroupNorm", "batch": "BatchNorm"}


def draw_resnet(scene: Scene, config: ResNetConfig) -> None:
    """Draw a ResNet upwards from y = 0."""
    backbone = config.backbone
    height, width = config.image
    scene.shapes.append(Box(CENTRE - 40, -60, 80, 60, "image", 0))
    scene.shapes.append(Text(CENTRE, -30, "Image", LARGE, bold=True))
    scene.lines(RIGHT, -38, [f"{height} × {width} × {config.channels}"])

    # The root and the stages, each with the shape of its output
    rows, columns = backbone.root_grid(config.image)
    top = next_box(scene, -60, "projection", ["Root", "7 × 7 convolution,", "max-pooling"])
    label = f"{rows} × {columns} × {backbone.channels}"
    bottom = top - GAP
    for stage, (_, (rows, columns)) in enumerate(backbone.stage_grids(config.image)):
        units = backbone.units[stage]
        lines = [f"Stage {stage + 1}", f"residual unit × {units}"]
        top = next_box(scene, top, "backbone", lines, label)
        label = f"{rows} × {columns} × {4 * backbone.channels * 2**stage:,}"
    if backbone.units:
        _opened_unit(scene, config, bottom)

    # The head
    if backbone.order == "pre" and backbone.units:
        top = next_box(scene, top, "norm", [f"{NORMS[backbone.norm]}, ReLU"], label)
    if config.pools:
        top = next_box(scene, top, "pool", ["Mean of the map"], label)
        label = f"{backbone.features:,}"
    if config.classes:
        lines = ["Linear head", f"{backbone.features:,} → {config.classes:,}"]
        top = next_box(scene, top, "head", lines, label)
    outcome(scene, config, top, label, "for every position")


def _opened_unit(scene: Scene, config: ResNetConfig, bottom: float) -> None:
    """A residual unit: three layers and the shortcut around them."""
    backbone = config.backbone
    norm = NORMS[backbone.norm]
    layers = [["1 × 1 convolution"], MIXERS[backbone.mixer], ["1 × 1 convolution", "4 × channels"]]
    boxes = []
    for number, lines in enumerate(layers):
        activation = f"{norm}, ReLU"
        if backbone.order == "post" and number == 2:
            activation = norm  # the ReLU comes after the sum
        pair = [("backbone", list(lines)), ("norm", [activation])]
        if backbone.order == "pre":
            pair.reverse()
        boxes += pair

    place = len(scene.shapes)
    centre = RIGHT + OPENED / 2 + 8
    y = bottom - 20
    split = bottom - 13
    scene.arrow((centre, bottom - 6), (centre, y + 1))
    for colour, lines in boxes:
        top = y - box_height(lines)
        scene.box(RIGHT + 22, top, OPENED - 28, colour, lines)
        y = top - 11
        scene.arrow((centre, top), (centre, y + 1))
    top = plus(scene, centre, y - 16)
    side = RIGHT + 9
    scene.arrow((centre, split), (side, split), (side, top + 8), (centre - 9, top + 8))
    if backbone.order == "post":
        scene.shapes.append(Text(centre + 14, top + 8, "ReLU", anchor="start"))
    scene.arrow((centre, top), (centre, top - 16))
    y = top - 36
    scene.shapes.append(Text(centre - 8, y + 12, "One residual unit", bold=True))
    scene.shapes.insert(place, Box(RIGHT, y, OPENED, bottom - y, "panel"))
