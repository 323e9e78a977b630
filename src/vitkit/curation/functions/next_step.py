"""What to do next with a data set."""

from pathlib import Path

from vitkit.system.functions.steps import step


def training_step(source: Path | str, target: str) -> str:
    """The training on a data set whose targets are of this kind, as the next step."""
    if target == "none":
        return step("train", "mae.B16", data__source=source)
    if target == "number":
        return step("train", "scratch", data__source=source, data__columns__target="number")
    return step("train", "scratch", data__source=source)
