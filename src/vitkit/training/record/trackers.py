"""Trackers, which receive the log of a run besides its directory: TensorBoard, Weights & Biases, MLflow, and a
function of the calling program.

Each gets the scalars of metrics.jsonl, the settings of recipe.json, and at the end pictures of mistakes.
Nothing is read back, so a run does not depend on its trackers.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image, ImageOps

from vitkit.data import Source, open_image, picture_for_people
from vitkit.evaluation import read_answers
from vitkit.evaluation.reports.page import MISTAKES
from vitkit.evaluation.reports.report import mistakes
from vitkit.system.console.messages import current_callback
from vitkit.system.console.text import as_word
from vitkit.system.errors import BadSettings
from vitkit.training.record.values import as_typed

PROJECT = "vitkit"  # default name of the project or experiment
SIDE = 256  # side, in pixels, of the square pictures


class Mistaken(NamedTuple):
    """A picture of a mistake."""

    pixels: np.ndarray
    """The image, uint8 (SIDE, SIDE, 3)."""
    caption: str
    """The image's name, true class and prediction."""


class Tracker(Protocol):
    """Receives the numbers and pictures of a run."""

    sentence: str
    """A message about how to view the tracked run; empty for none."""

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Receive the numbers of a step, by name, such as "loss" and "val/top1"."""

    def pictures(self, step: int, mistaken: Sequence[Mistaken]) -> None:
        """Receive the most confident mistakes, at the end of the run."""

    def close(self) -> None:
        """Close the tracker; a later call may continue the run."""


def open_trackers(
    track: str, run_dir: Path, begun: Path, step: int, settings: dict[str, Any]
) -> list[Tracker]:
    """Open the tracker `track`, and that of the calling program's function if it has one, for a run that
    begins or continues at a step.

    track: name of a tracker, or a directory for TensorBoard.
    begun: the run's begun.json, which identifies the run.
    settings: the settings of recipe.json, by their full names.

    Raises VitkitError if a library fails to start.
    """
    trackers: list[Tracker] = []
    try:
        if track == "wandb":
            trackers.append(WeightsAndBiases(run_dir, identity(run_dir, begun), settings))
        elif track == "mlflow":
            trackers.append(MLflow(run_dir, identity(run_dir, begun), settings))
        elif track == "tensorboard":
            trackers.append(TensorBoard(run_dir / "tensorboard", step, settings))
        elif track:
            trackers.append(TensorBoard(Path(track), step, settings))
    except Exception as error:  # libraries raise errors of many classes
        raise BadSettings(f"`track={track!r}` cannot be opened: {first_line(error)}") from error
    if callback := current_callback():
        trackers.append(FunctionTracker(callback))
    return trackers


class TensorBoard:
    """Writes event files to a directory, for `tensorboard --logdir`. Events of steps after the first one are
    dropped, because the run repeats these steps."""

    def __init__(self, directory: Path, step: int, settings: dict[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(directory, purge_step=step + 1)
        self.sentence = f"to watch the run: tensorboard --logdir {as_word(directory)}"
        rows = [f"| {name} | {as_typed(value)} |" for name, value in settings.items()]
        text = "\n".join(["| setting | value |", "|---|---|", *rows])
        self.writer.add_text("recipe", text, step)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def pictures(self, step: int, mistaken: Sequence[Mistaken]) -> None:
        for number, each in enumerate(mistaken, 1):
            name = f"mistakes/{number:02} {each.caption}"
            self.writer.add_image(name, each.pixels, step, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """Sends to a run of the project "vitkit" of wandb.ai, or of WANDB_PROJECT. Without an account, or with
    WANDB_MODE=offline, it writes a folder wandb/ in the run's directory, for `wandb sync`."""

    def __init__(self, run_dir: Path, identity: str, settings: dict[str, Any]):
        import wandb

        self.wandb = wandb
        mode = os.environ.get("WANDB_MODE")
        if mode is None and not wandb.login(prompt=False):
            mode = "offline"
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run_dir.name,
            id=identity,
            resume="allow",
            dir=run_dir,
            mode=mode,
            config=settings,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.run.define_metric("*", step_metric="step")  # a run may repeat earlier steps
        if self.run.offline:
            folder = as_word(Path(self.run.dir).parent)
            self.sentence = (
                "Weights & Biases has no account here, or is set to offline: the run stays on this "
                f"machine, and wandb sync {folder} sends it"
            )
        else:
            self.sentence = f"to watch the run: {self.run.url}"

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.run.log({"step": step, **values})

    def pictures(self, step: int, mistaken: Sequence[Mistaken]) -> None:
        images = [self.wandb.Image(each.pixels, caption=each.caption) for each in mistaken]
        self.run.log({"step": step, "mistakes": images})

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """Writes to a run of the experiment "vitkit", or of MLFLOW_EXPERIMENT_NAME, at MLFLOW_TRACKING_URI, by
    default MLflow's own, so that `mlflow ui` in the same folder shows it."""

    def __init__(self, run_dir: Path, identity: str, settings: dict[str, Any]):
        from mlflow import MlflowClient

        self.client = MlflowClient()
        where = as_word(self.client.tracking_uri)
        self.sentence = f"to watch the run: mlflow ui --backend-store-uri {where}"
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None:
            experiment_id = experiment.experiment_id
        else:
            experiment_id = self.client.create_experiment(name)

        # The run that this directory already has, or a new one
        earlier = self.client.search_runs([experiment_id], f"tags.`vitkit.run` = '{identity}'")
        if earlier:
            self.run_id = earlier[0].info.run_id
            self.client.set_terminated(self.run_id, "RUNNING")
            return
        tags = {"vitkit.run": identity}
        run = self.client.create_run(experiment_id, run_name=run_dir.name, tags=tags)
        self.run_id = run.info.run_id
        for setting, value in settings.items():
            self.client.log_param(self.run_id, setting, as_typed(value)[:500])

    def scalars(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            allowed = re.sub(r"[^\w\-. /:]", "_", name)
            self.client.log_metric(self.run_id, allowed, value, step=step)

    def pictures(self, step: int, mistaken: Sequence[Mistaken]) -> None:
        for number, each in enumerate(mistaken, 1):
            words = re.sub(r"[^\w\-. ]", "_", each.caption)
            file = f"mistakes/{number:02} {words[:80]}.png"
            self.client.log_image(self.run_id, each.pixels, artifact_file=file)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


class FunctionTracker:
    """Calls a function of the calling program with each step and its numbers."""

    def __init__(self, function: Any):
        self.function = function
        self.sentence = ""

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.function(step, dict(values))

    def pictures(self, step: int, mistaken: Sequence[Mistaken]) -> None:
        """Does nothing: a function gets only numbers."""

    def close(self) -> None:
        """There is nothing to close."""


def identity(run_dir: Path, begun: Path) -> str:
    """An identifier of a run, which stays the same when the run continues, and changes when its directory is
    used for a new run."""
    digest = hashlib.sha256(os.fsencode(run_dir.resolve()))
    digest.update(begun.read_bytes())
    return digest.hexdigest()[:12]


def pictures_of_mistakes(answers: Path, step: int, parts: dict[str, Source]) -> list[Mistaken]:
    """The most confident mistakes of a run's last evaluation, if that was at this step and on one of these
    parts."""
    kept = read_answers(answers)
    if kept is None or kept.step != step or kept.part not in parts:
        return []
    source = parts[kept.part]
    mistaken = []
    for mistake in mistakes(kept.answers, source)[:MISTAKES]:
        data, _ = source[mistake.index]
        whole = picture_for_people(open_image(data, mistake.image))
        pixels = np.asarray(ImageOps.pad(Image.fromarray(whole), (SIDE, SIDE)))
        name = Path(mistake.image).name
        caption = f"{name}, {mistake.true}, predicted as {mistake.predicted}"
        mistaken.append(Mistaken(pixels, caption))
    return mistaken


def first_line(error: Exception) -> str:
    """The first line of an error's message; its type if the message is empty."""
    lines = str(error).strip().splitlines()
    return next(iter(lines), type(error).__name__)
