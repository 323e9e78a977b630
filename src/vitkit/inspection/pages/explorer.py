"""The page of `vitkit inspect`: photographs, and the attention of each of their patches in every layer and
head, in one file that needs no network.

attention_tables.py computes the tables, explorer.js displays them.
"""

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vitkit.data import Picture, picture_for_people
from vitkit.inspection.figures.passes import check_transformer, layer_names
from vitkit.inspection.pages.attention_tables import DETAILS, Detail, Explored, explored, most_bytes
from vitkit.inspection.pages.html import Active, Markup, embedded, paragraph, part, write_page
from vitkit.inspection.photographs import whole_pixels
from vitkit.models import Grid, ViTConfig
from vitkit.system.console.text import counted, printable_name
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.weights import Classifier, no_answer

MEGABYTE = 10**6
SHOWN = 480  # pixels of the longer side of a photograph
PHOTOGRAPH_BYTES = 150_000  # upper estimate for a photograph, its name and its predictions
TOP = 5  # number of predictions


def write_explorer(
    path: Path,
    title: str,
    classifier: Classifier,
    pictures: Sequence[Picture],
    sections: Iterable[Markup] = (),
    megabytes: float = 32,
) -> Path:
    """Write a page on which the attention of a model can be explored, completely or not at all; returns its
    path.

    pictures: pictures from `vitkit.data.open_image`.
    sections: blocks of html.py that follow below the photographs.
    megabytes: limit of the size of the photographs and their attention. If all of it would be larger,
        layers are left out, heads averaged, or squares of patches used, and the page says so.

    A model without attention among patches gets a sentence instead. Raises BadImage for a picture that
    cannot be decoded; VitkitError for more photographs than fit, and for an existing file that vitkit did
    not write; OSError.
    """
    try:
        model = check_transformer(classifier)
    except VitkitError as error:
        return write_page(path, title, [paragraph(f"No map: {error}."), *sections])
    if not pictures:
        return write_page(path, title, sections)

    # The detail that fits, and the data
    config = model.config
    grid = model.grid(classifier.batch([pictures[0]]))
    detail = chosen_detail(config, grid, len(pictures), megabytes)
    data = _data(classifier, config, pictures, grid, detail)

    # The page
    blocks = [
        paragraph(_facts(classifier, config, grid), "faint"),
        part("explorer.html"),
        *(paragraph(sentence, "faint") for sentence in _notes(config)),
    ]
    coarser = _note_on_detail(config, detail, megabytes)
    if coarser:
        blocks.append(paragraph(coarser, "faint"))
    active = Active(part("explorer.js"), part("explorer.css"), data)
    return write_page(path, title, [*blocks, *sections], active)


def _data(
    classifier: Classifier,
    config: ViTConfig,
    pictures: Sequence[Picture],
    grid: Grid,
    detail: Detail,
) -> dict[str, Any]:
    """The data of the page's script."""
    photographs = []
    for picture in pictures:
        looked = explored(classifier, classifier.batch([picture]), detail)
        photographs.append(_photograph(classifier, picture, looked))
    layers = []
    for layer in looked.layers:  # equal for all photographs
        facts = {"name": layer.name, "heads": layer.heads, "reach": layer.reach}
        layers.append({**facts, "patches": bool(layer.patches)})
    cell = "patch"
    if detail.block > 1:
        cell = f"square of {detail.block} × {detail.block} patches"
    reader = None
    if config.pools:
        reader = config.pooling.words
    return {
        "grid": grid,
        "patch": config.tiling.size,
        "stride": config.tiling.stride,
        "pixels": config.tiling.image(grid),
        "block": detail.block,
        "cells": detail.cells(grid),
        "cell": cell,
        "prefix": prefix_names(config),
        "reader": reader,
        "layers": layers,
        "photographs": photographs,
    }


def chosen_detail(config: ViTConfig, grid: Grid, photographs: int, megabytes: float) -> Detail:
    """The finest detail that keeps this many photographs below a limit. Raises VitkitError if none
    does."""
    for detail in DETAILS:
        total = photographs * (most_bytes(config, grid, detail) + PHOTOGRAPH_BYTES)
        if total <= megabytes * MEGABYTE:
            return detail
    raise BadSettings(
        f"{counted(photographs, 'photograph')} with their attention do not fit on a page of "
        f"{megabytes:g} MB; give fewer photographs, or allow a larger page"
    )


def prefix_names(config: ViTConfig) -> list[str]:
    """The names of the tokens before the patches."""
    names = []
    if config.has_class_token:
        names.append("class token")
    registers = config.registers
    if config.pool == "distilled":
        names.append("distillation token")  # the first of the registers
        registers -= 1
    if registers == 1:
        return [*names, "register"]
    return [*names, *(f"register {i + 1}" for i in range(registers))]


def _photograph(classifier: Classifier, picture: Picture, looked: Explored) -> dict:
    """A photograph for the page: its name, the part of it that the model reads, the predictions, and the
    tables of each layer."""
    rows, columns = whole_pixels(classifier.preprocessing.visible(picture), picture.size)
    tables = []
    for layer in looked.layers:
        tables.append({"reader": _base64(layer.reader), "patches": _base64(layer.patches)})
    return {
        "name": printable_name(picture.name.rstrip("/").rpartition("/")[2]),
        "source": embedded(picture_for_people(picture)[rows, columns], SHOWN),
        "answers": _answers(classifier, looked.logits),
        "tables": tables,
    }


def _base64(data: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(data).decode()


def _answers(classifier: Classifier, logits: Tensor) -> list[tuple[str, str]]:
    """The most likely classes and their probabilities, as text; empty for a model that has no classes for
    an image."""
    if no_answer(classifier) or logits.ndim != 1:
        return []
    values = classifier.probabilities(logits[None])[0]
    best = values.topk(min(TOP, len(values)))
    answers = []
    for k, value in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        text = f"{100 * value:.1f}\u00a0%"
        if classifier.activation == "none":
            text = f"{value:.4g}"
        answers.append((printable_name(classifier.labels[k]), text))
    return answers


def _facts(classifier: Classifier, config: ViTConfig, grid: Grid) -> str:
    """A summary of the model in a line."""
    height, width = config.tiling.image(grid)
    layers = counted(len(layer_names(config)), "layer")
    return (
        f"{height} × {width} pixels, {grid[0]} × {grid[1]} patches, {layers} of attention with "
        f"{counted(config.heads, 'head')}"
    )


def _notes(config: ViTConfig) -> list[str]:
    """Explanations for the reader of the page, a sentence each."""
    notes = [
        "Bright patches get much attention, dark ones little; the brightest 2 % have the same colour, "
        "because a few patches of the background often get most of it. Attention rollout multiplies the "
        "layers, each averaged over its heads and with the residual connection (Fig. 6). Attention "
        "does not explain why a model gives an answer."
    ]
    if not config.pools:
        notes.append(
            "The model has an output for each of its tokens, so there is no single token whose "
            "attention represents the answer: choose a patch."
        )
    if config.pool == "map":
        notes.append(
            "In the pooling a learned query attends to the patches, so no patch has attention there."
        )
    if config.mixer == "axial":
        notes.append("A layer of axial attention looks along rows, then along columns.")
    if config.stem is not None:
        notes.append(
            "A ResNet comes before these layers, so each patch knows more of its surroundings than "
            "its square shows."
        )
    return notes


def _note_on_detail(config: ViTConfig, detail: Detail, megabytes: float) -> str:
    """A sentence on what was left out to limit the size; "" if nothing was."""
    coarser = []
    if detail.step > 1:
        kept = ", ".join(str(i + 1) for i in detail.layers(config))
        coarser.append(f"of the layers only {kept}")
    if not detail.heads:
        coarser.append("the mean of the heads instead of each")
    if detail.block > 1:
        coarser.append(f"squares of {detail.block} × {detail.block} patches instead of each")
    if not coarser:
        return ""
    return (
        f"So that the photographs take less than {megabytes:g} MB, this page has "
        f"{', and '.join(coarser)}; fewer photographs leave room for more."
    )
