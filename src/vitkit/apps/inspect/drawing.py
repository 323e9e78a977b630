"""Prepares the models and images of `vitkit inspect`, and draws its figures."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Picture, of_one_size, open_image
from vitkit.inspection import InspectedModel, layer_names, write_explorer, write_figure
from vitkit.inspection.catalogue import FigureKind, Plate, figure_section, missing_section
from vitkit.inspection.figures.passes import check_transformer
from vitkit.inspection.plots import THEMES
from vitkit.prediction import pictures, spread
from vitkit.system.console.messages import log_bug, reason, say
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted, printable, printable_name
from vitkit.system.errors import BadImage, BadSettings, VitkitError
from vitkit.system.storage.files import MARK, as_text, save_npz, write_where_said
from vitkit.weights import Classifier, no_answer


@dataclass(frozen=True, eq=False)
class Given:
    """The prepared images."""

    prepared: tuple[Tensor | None, ...]
    """For each model uint8 (n, 3, H, W), with the shown images first; None without images."""
    shown: tuple[Picture, ...]
    """The photographs that figures show."""
    broken: int
    """Number of unreadable images; each was logged."""


def images_of(
    names: Sequence[str],
    models: Sequence[Classifier],
    limit: int,
    most_shown: int,
    folder: Path,
) -> Given:
    """Read images by their names, at most `limit` of them, and prepare them for each model. The first
    `most_shown` are shown; images in the output folder `folder` are left out. Raises BadSettings if none
    can be read, or if a name matches nothing."""
    if not names:
        return Given((None,) * len(models), (), 0)

    # The shown images come first: evenly spaced, because folders are sorted by class
    items = list(spread(pictures(names, leave_out=[folder]), limit))
    count = min(most_shown, len(items))
    places = {i * len(items) // count for i in range(count)}
    ordered = [item for i, item in enumerate(items) if i in places]
    ordered += [item for i, item in enumerate(items) if i not in places]

    # Read and prepare
    rows = []
    shown: list[Picture] = []
    for item in bar("reading images")(ordered, len(ordered)):
        try:
            picture = open_image(item.read(), item.name)
            rows.append([model.preprocessing(picture) for model in models])
        except (BadImage, OSError) as error:
            say(f"left out: {printable(str(error))}")
            continue
        if len(shown) < count:
            shown.append(picture)
    if not rows:
        raise BadSettings("none of the images could be read; the sentences above say why")
    broken = len(ordered) - len(rows)

    # A figure has a single grid; images at their own proportions may have several
    alike = of_one_size([tuple(image.shape for image in row) for row in rows])
    if len(alike) < len(rows):
        height, width = rows[alike[0]][0].shape[1:]
        others = len(rows) - len(alike)
        say(
            f"left out: {counted(others, 'image')} of other proportions than the {len(alike):,} that the "
            f"model reads as {height} x {width} pixels; inspect those alone"
        )
        shown = [shown[number] for number in alike if number < len(shown)]
        rows = [rows[number] for number in alike]
    prepared = tuple(torch.stack(of_model) for of_model in zip(*rows, strict=True))
    return Given(prepared, tuple(shown), broken)


def subject_of(
    models: Sequence[Classifier],
    given: Given,
    class_name: str,
    layer: int,
    patch: tuple[int, int] | None,
) -> InspectedModel:
    """The subject of the figures: the models, the images, a class, a layer and a patch. Raises
    BadSettings for a class, a layer or a patch that does not exist."""
    classifier = models[0]
    target = _target(class_name, classifier.labels)
    names: tuple[str, ...] = ()
    prepared = given.prepared[0]
    if prepared is not None and given.shown:
        shown = prepared[: len(given.shown)]
        names = _captions(classifier, shown, given.shown, target)
    subject = InspectedModel(
        classifier,
        prepared,
        names,
        target,
        _layer(layer, classifier),
        _patch(patch, classifier, prepared),
    )
    if len(models) == 1:
        return subject
    return replace(subject, other=models[1], other_images=given.prepared[1])


def _target(name: str, labels: Sequence[str]) -> int | None:
    """The number of a class, by its exact name; else ignoring case; else by the first of its
    synonyms. Raises VitkitError for an unknown name, and for a name of several classes."""
    if not name:
        return None
    wanted = name.casefold()
    ways = (
        [i for i, label in enumerate(labels) if label == name],
        [i for i, label in enumerate(labels) if label.casefold() == wanted],
        [i for i, label in enumerate(labels) if label.split(",")[0].casefold() == wanted],
    )
    for found in ways:
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(f"{printable_name(labels[i])} (number {i})" for i in found)
            raise BadSettings(
                f"`class_name` is {printable_name(name)}, and several classes are called so: {several}; "
                "write one as it is here"
            )
    near = [printable_name(label) for label in labels if wanted in label.casefold()][:5]
    sentence = f"`class_name` is {printable_name(name)}, and the model has no class of that name"
    if near:
        sentence += f"; did you mean {' or '.join(near)}?"
    raise BadSettings(sentence)


def _layer(number: int, classifier: Classifier) -> int | None:
    """The index of an attention layer, from 0, for its number from 1; None for 0, the last. Raises
    VitkitError."""
    if number == 0:
        return None
    names = layer_names(check_transformer(classifier).config)
    if number > len(names):
        raise BadSettings(
            f"`layer` is {number}; the model's {len(names)} layers of attention are 1 to {len(names)}"
        )
    return number - 1


def _patch(
    patch: tuple[int, int] | None, classifier: Classifier, images: Tensor | None
) -> tuple[int, int] | None:
    """The position of a patch, from 0, for its row and column from 1. Raises VitkitError."""
    if patch is None:
        return None
    config = check_transformer(classifier).config
    size = classifier.preprocessing.size
    if images is not None:
        size = (images.shape[2], images.shape[3])
    rows, columns = config.tiling.grid(size)
    if not (1 <= patch[0] <= rows and 1 <= patch[1] <= columns):
        raise BadSettings(
            f"`patch` is {patch[0]} {patch[1]}; rows are 1 to {rows}, columns 1 to {columns}"
        )
    return patch[0] - 1, patch[1] - 1


def _captions(
    classifier: Classifier, images: Tensor, pictures: Sequence[Picture], target: int | None
) -> tuple[str, ...]:
    """A caption for each photograph: the class that is shown and its probability, or the file's
    name if the model makes no prediction per image."""
    if no_answer(classifier) or not classifier.model.config.pools:
        return tuple(printable_name(Path(picture.name).name) for picture in pictures)
    captions = []
    for image in images:
        values = classifier.probabilities(classifier.logits(image[None]))[0]
        chosen = target
        if chosen is None:
            chosen = int(values.argmax())
        value = f"{float(values[chosen]):.0%}"
        if classifier.activation == "none":
            value = f"{float(values[chosen]):.3g}"
        captions.append(f"{printable_name(classifier.labels[chosen].split(',')[0])} {value}")
    return tuple(captions)


ON_THE_PAGE_ALREADY = ("rollout", "attention")  # the page shows them layer by layer


@dataclass(frozen=True, eq=False)
class DrawnFigure:
    """A figure, or the reason why there is none."""

    kind: FigureKind
    plate: Plate | None
    why_not: str = ""
    """Why the figure was left out; "" if it was not."""
    files: list[Path] = field(default_factory=list)
    """The written files of the figure."""


@dataclass(frozen=True)
class FigureFiles:
    """The output folder and format of the figures."""

    folder: Path
    format: Literal["png", "svg"]
    theme: Literal["light", "dark"]
    arrays: bool
    """Whether the numbers of each figure are written too."""

    def figure(self, kind: FigureKind) -> Path:
        """The file of a figure."""
        return self.folder / f"{kind.name}.{self.format}"

    def numbers(self, kind: FigureKind) -> Path:
        """The file of a figure's numbers."""
        return self.folder / f"{kind.name}.npz"


def draw_all(
    kinds: Sequence[FigureKind],
    subject: InspectedModel,
    files: FigureFiles,
    model: str,
    required: Sequence[str] = (),
) -> list[DrawnFigure]:
    """Compute each figure and write it. A figure that does not apply to the model is left out, with a log
    message. model: name of the model, for the files. required: names of figures that must apply, else
    BadSettings is raised. Raises OSError."""
    every = []
    for kind in bar("drawing figures")(kinds, len(kinds)):
        try:
            plate = kind.make(subject)
            figure = plate.draw(THEMES[files.theme])
        except VitkitError as error:
            if kind.name in required:
                raise BadSettings(f"{kind.name} cannot be drawn: {error}") from error
            every.append(DrawnFigure(kind, None, str(error)))
            continue
        except Exception as error:  # a bug in one figure must not affect the others
            log_bug(f"the figure {kind.name} failed (bug)")
            every.append(DrawnFigure(kind, None, f"failed (bug): {reason(error)}"))
            continue
        written = [write_figure(figure, files.figure(kind))]
        if files.arrays:
            written.append(_write_arrays(model, plate, files.numbers(kind)))
        every.append(DrawnFigure(kind, plate, files=written))
    # One message for each reason why figures are left out
    names_by_reason: dict[str, list[str]] = {}
    for each in every:
        if each.plate is None:
            names_by_reason.setdefault(each.why_not, []).append(each.kind.name)
    for why_not, names in names_by_reason.items():
        say(printable(f"left out {', '.join(names)}: {why_not}"))
    return every


def _write_arrays(model: str, plate: Plate, path: Path) -> Path:
    """Write the numbers of a figure, and return their path."""
    about = {"made": np.array(MARK.encode()), "model": np.array(as_text(model))}
    buffer = io.BytesIO()
    save_npz(buffer, about | dict(plate.arrays))  # the mark must come first: see files.MARK
    write_where_said(path, buffer.getvalue())
    return path


def write_page(
    model: str,
    path: Path,
    subject: InspectedModel,
    pictures: Sequence[Picture],
    drawn: Sequence[DrawnFigure],
) -> Path:
    """Write the page about a model: photographs with interactive attention, and the figures."""
    sections = []
    has_maps = any(each.kind.name == "rollout" and each.plate is not None for each in drawn)
    for each in drawn:
        if has_maps and each.kind.name in ON_THE_PAGE_ALREADY:
            continue
        if each.plate is None:
            sections.append(missing_section(each.kind, each.why_not))
        else:
            sections.append(figure_section(each.kind, each.plate))
    title = f"Inside {model}"
    return write_explorer(path, title, subject.classifier, pictures, sections)
