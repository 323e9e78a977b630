"""The command to suggest after work on a data set."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitkit.data import Columns
from vitkit.system.functions.steps import step

ENOUGH = 100_000  # images from which on training without published weights may be worthwhile


def training_step(
    source: Path | str,
    target: str,
    images: int,
    columns: Columns = Columns(),
    **of_data: Any,
) -> str:
    """The command that learns from a data set: few images need published weights.

    Args:
        source: The data set.
        target: Kind of its targets.
        images: Number of its training images.
        columns: Columns of a table that hold the image and its label.
        **of_data: Other settings of the data, such as `exclude`.
    """
    settings = {f"data__{name}": value for name, value in of_data.items()}
    if target == "number":
        columns = replace(columns, target="number")
    if target == "none":
        return step("train", "mae.B16", data__source=source, data__columns=columns, **settings)
    if images < ENOUGH:
        return step("finetune", source, columns=columns, **settings)
    return step("train", "scratch", data__source=source, data__columns=columns, **settings)
