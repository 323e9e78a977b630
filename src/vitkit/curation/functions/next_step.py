"""The command to suggest after work on a data set."""

from pathlib import Path

from vitkit.system.functions.steps import step


def training_step(source: Path | str, target: str) -> str:
    """The command that trains on a data set. target: kind of its targets."""
    if target == "none":
        return step("train", "mae.B16", data__source=source)
    if target == "number":
        return step("train", "scratch", data__source=source, data__columns__target="number")
    return step("train", "scratch", data__source=source)
