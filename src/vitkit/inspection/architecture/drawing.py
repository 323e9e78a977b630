"""Draw the architecture of a model, with a table of its parts, to a file."""

from pathlib import Path

from vitkit.inspection.architecture.resnet import draw_resnet
from vitkit.inspection.architecture.scene import LARGE, Scene, Text, png, svg
from vitkit.inspection.architecture.transformer import draw_transformer
from vitkit.inspection.pages.html import Markup, page, paragraph, section, table
from vitkit.models import ModelConfig, ResNetConfig, ViTConfig, called, cost, parts
from vitkit.models.breakdown import ModelPart
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.system.storage.files import check_replaceable, write_where_said

ENDINGS = (".svg", ".html", ".png")
WIDTH = 380.0
ROW = 16.0
# Right ends of the columns of the table; the first column starts at the left
COLUMNS = (218.0, 318.0, 372.0)
HEADER = ("part", "gives", "parameters", "MACs")


def check_drawing(path: Path) -> None:
    """Raise VitkitError if a drawing cannot be written to a file; call this before a model is loaded."""
    if path.suffix.lower() not in ENDINGS:
        raise BadSettings(
            f"{path} is to be the drawing of a model; its suffix must be .svg, .png or "
            ".html, a page"
        )
    check_replaceable(path)


def write_architecture(path: Path | str, config: ModelConfig) -> Path:
    """Draw a model to a file, see `draw_architecture`: .svg, .png, or .html for a page. Returns its path.

    Raises OSError, and VitkitError for another suffix, for a model that has no drawing, and for an
    existing file that vitkit did not write.
    """
    path = Path(path)
    check_drawing(path)
    if not isinstance(config, ViTConfig | ResNetConfig):
        raise Unsupported(
            f"{called(config)} has no drawing: vitkit draws Vision Transformers and ResNets"
        )
    kind = path.suffix.lower()
    if kind == ".png":
        content = png(draw_architecture(config))
    elif kind == ".svg":
        content = svg(draw_architecture(config)).encode()
    else:
        content = _page(config).encode()
    write_where_said(path, content)
    return path


def draw_architecture(config: ViTConfig | ResNetConfig, alone: bool = True) -> Scene:
    """Draw a model for images of its own size: Figure 1 with this model's shapes.

    alone: add the model's name at the top, and the table of parts at the bottom.
    """
    scene = Scene(WIDTH, f"The architecture of {called(config)}")
    if isinstance(config, ViTConfig):
        draw_transformer(scene, config)
    else:
        draw_resnet(scene, config)
    if alone:
        top, bottom = scene.extent()
        scene.shapes.append(Text(8, top - 38, called(config), LARGE + 2, "start", bold=True))
        scene.shapes.append(Text(8, top - 20, _whole(config), anchor="start", colour="faint"))
        _draw_table(scene, config, bottom + 24)
    return scene


def _whole(config: ModelConfig) -> str:
    """The parameters and operations of the whole model."""
    learned = sum(part.parameters for part in parts(config))
    return f"{learned:,} parameters, {operations(cost(config).macs)} MACs an image"


def operations(count: int) -> str:
    """A count with three digits: "1.26 G", "28.9 M", "576"."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= 0.9995 * size:
            return f"{count / size:#.3g}".rstrip(".") + f" {unit}"
    return str(count)


def table_of_parts(config: ModelConfig) -> list[tuple[str, str, str, str]]:
    """A row for each part: its name, the shape of its output, its parameters and MACs; and the sum."""
    listed = parts(config)
    rows = [(_name(part), _shape(part), _count(part.parameters), _macs(part)) for part in listed]
    learned = sum(part.parameters for part in listed)
    rows.append(("all", "", f"{learned:,}", operations(cost(config).macs)))
    return rows


def _name(part: ModelPart) -> str:
    """The name of a part, and how many times it occurs."""
    if part.times == 1:
        return part.name
    return f"{part.name} × {part.times}"


def _shape(part: ModelPart) -> str:
    """A shape: "197 × 192"."""
    return " × ".join(f"{side:,}" for side in part.output)


def _count(count: int) -> str:
    """A count as text; "" for 0."""
    if count == 0:
        return ""
    return f"{count:,}"


def _macs(part: ModelPart) -> str:
    """The operations of a part as text; "" for 0."""
    if part.macs == 0:
        return ""
    return operations(part.macs)


def _draw_table(scene: Scene, config: ModelConfig, top: float) -> None:
    """The table of parts, below the drawing."""
    rows = [HEADER, *table_of_parts(config)]
    for number, (name, *others) in enumerate(rows):
        y = top + (number + 0.5) * ROW
        bold = number == len(rows) - 1
        colour = "ink"
        if number == 0:
            colour = "faint"
        scene.shapes.append(Text(8, y, name, anchor="start", bold=bold, colour=colour))
        for x, text in zip(COLUMNS, others, strict=True):
            scene.shapes.append(Text(x, y, text, anchor="end", bold=bold, colour=colour))
        if number in (0, len(rows) - 2):
            scene.arrow((8, y + ROW / 2), (WIDTH - 8, y + ROW / 2), head=False)


def _page(config: ViTConfig | ResNetConfig) -> str:
    """The drawing and the table as a page of HTML."""
    scene = draw_architecture(config, alone=False)
    return page(
        called(config),
        [
            paragraph(_whole(config), "faint"),
            Markup(svg(scene)),
            section(
                "What each part gives, learns and costs", table(table_of_parts(config), HEADER)
            ),
            paragraph(
                "Shapes are those of one image. MACs are multiply-accumulates of matrix products and "
                "convolutions; one is two floating-point operations.",
                "faint",
            ),
        ],
    )
