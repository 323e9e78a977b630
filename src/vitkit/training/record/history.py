"""The records of a run, read for its report and for comparisons of runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from vitkit.evaluation import Metric
from vitkit.system.errors import BadRun
from vitkit.system.functions.steps import DATA, step
from vitkit.system.storage.addresses import remember, shown_address
from vitkit.system.storage.files import NUMBER, Record, Types, check_types, parse_json
from vitkit.training.record.log import clock
from vitkit.training.record.machine import BEGUN, OF_BEGUN
from vitkit.training.record.metrics import primary_of, read_metrics
from vitkit.training.record.values import check_data, read_object

# Types of the values that are read from recipe.json
OF_RECIPE: Types = {
    "name": str, "batch": int, "init": str, "length": str, "best": str, "precision": str,
    "model": dict, "optim": dict, "optim.lr": NUMBER, "optim.clip": NUMBER,
    "data": dict, "data.source": str, "data.columns": dict, "data.parts": str,
    "data.hold_out": NUMBER, "data.split_seed": int, "data.preprocessing": dict,
    "data.workers": int,
}  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """The records of a run."""

    run_dir: Path
    """The run's directory."""
    recipe: dict
    """The content of recipe.json."""
    data: dict
    """The content of data.json."""
    lines: list[dict]
    """The lines of metrics.jsonl."""
    begun: dict
    """The content of begun.json; empty for a run of an older version."""
    typed: tuple[str, ...] = ()
    """Names of data sets that the user typed in the command or call that reads the run. These may be
    opened even if they are code or addresses."""

    def points(self) -> dict[str, list[tuple[int, Metric]]]:
        """The steps and values of every metric, without metrics that have no better direction, such as
        counts; the primary metric comes first."""
        points: dict[str, list[tuple[int, Metric]]] = {}
        for line in self.lines:
            if line.get("primary"):
                points.setdefault(line["primary"], [])
        for line in self.lines:
            for name, metric in line.get("metrics", {}).items():
                if metric.unit.better != "neither":
                    points.setdefault(name, []).append((line["step"], metric))
        return {name: of_name for name, of_name in points.items() if of_name}

    def primary(self) -> Metric | None:
        """The primary metric at the latest evaluation, or at that of the best weights if the run keeps
        those; None if nothing was measured."""
        return primary_of(self.lines, self.recipe.get("best", ""))

    def measured_on(self) -> dict[str, str]:
        """The fingerprints of the images that the run was evaluated on, by part."""
        fingerprints = self.data.get("fingerprint", {})
        return {name: digest for name, digest in fingerprints.items() if name != "train"}

    def steps(self) -> int:
        """The last step that was recorded."""
        return max((line["step"] for line in self.lines), default=0)

    def cost(self) -> dict[str, str]:
        """The cost of the run so far as text: steps, time, images, operations of the model, and its start.
        Values that an older version did not record are left out."""
        # A quick run of `finetune`, which fits a head; its fine-tuning is a run of its own
        seconds = self.begun.get("seconds")
        if seconds is not None:
            begun = str(self.begun.get("date", "at an unknown time"))
            return {"time": clock(max(seconds, 0)), "begun": begun}

        # The time of the steps, without evaluations and checkpoints
        seconds = 0.0
        before = 0
        for line in self.lines:
            if line["event"] == "training" and line.get("images_per_second"):
                images = (line["step"] - before) * self.recipe["batch"]
                seconds += images / line["images_per_second"]
                before = line["step"]

        images = self.steps() * self.recipe["batch"]
        facts = {
            "steps": f"{self.steps():,}",
            "time of the steps": clock(seconds),
            "images seen": f"{images:,}",
        }
        exaflops = self.begun.get("exaflops_of_an_image")
        if isinstance(exaflops, float):
            facts["exaFLOPs"] = f"{exaflops * images:.3g}"
        if "date" in self.begun:
            facts["begun"] = str(self.begun["date"])
        return facts


def is_run(path: str | Path) -> bool:
    """Whether a path is a run's directory."""
    return (Path(path) / "recipe.json").is_file()


_TYPED: ContextVar[tuple[str, ...]] = ContextVar("typed", default=())


@contextmanager
def counting_as_typed(name: str) -> Iterator[None]:
    """Context in which the name of a data set counts as typed by the user for every run that is read, for a
    command that calls another function with a name from its own arguments."""
    before = _TYPED.set((*_TYPED.get(), name))
    try:
        yield
    finally:
        _TYPED.reset(before)


def read_run(run_dir: Path, typed: Sequence[str] = ()) -> Recorded:
    """Read the records of a run.

    typed: names of data sets that the user typed in this command or call. If the run's images are code or an
        address, they are opened only if these names contain them.

    Raises VitkitError if the directory is not a run, or if the run has not started to train.
    """
    try:
        recipe = _record(run_dir / "recipe.json", OF_RECIPE)
        data = _record(run_dir / "data.json", {})
        check_data(data)
    except OSError:
        if (run_dir / "model").is_dir() and not (run_dir / "recipe.json").exists():
            raise BadRun(
                f"{run_dir} has a model and no record of a training: a model of good images or of masks is not "
                f"trained in steps. {step('evaluate', run_dir, DATA)} measures it"
            ) from None
        raise BadRun(
            f"{run_dir} is no run: it lacks a recipe.json or data.json that can be read; give a directory "
            "that vitkit train or finetune wrote, such as runs/digits"
        ) from None
    except ValueError as error:
        raise BadRun(f"{run_dir}: recipe.json or data.json is damaged: {error}") from error
    lines = read_metrics(run_dir / "metrics.jsonl")
    if not lines:
        raise BadRun(f"{run_dir} has no metrics.jsonl with a line in it: it has not trained yet")
    # Records hold addresses without credentials: keep those of the typed names for opening them
    typed = (*typed, *_TYPED.get())
    for name in typed:
        remember(name)
    shown = tuple(map(shown_address, typed))
    return Recorded(run_dir, recipe, data, lines, read_object(run_dir / BEGUN, OF_BEGUN), shown)


def _record(file: Path, types: Types) -> Record:
    """The JSON object in a run's file. Raises OSError, and VitkitError if it is damaged."""
    values = parse_json(file.read_bytes(), Record)
    if not isinstance(values, Record):
        raise BadRun(f"it holds a {type(values).__name__}")
    check_types(values, types)
    return values


def run_names(runs: Sequence[Recorded]) -> list[str]:
    """The names of runs: those of their directories, or their paths if two directories have one name."""
    names = [run.run_dir.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [str(run.run_dir) for run in runs]
