"""The run directory of a model that classifies every pixel: what an earlier call left there, whether this call
continues it, and what may be removed and replaced.

It holds masks.json (RECORD), model/, report.html, and of a fine-tuning also closed-form/ (START), the model that it
begins with, and fine-tuned/ (RUN), the directory of an ordinary run.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from vitkit.finetuning.segmentation.fine_tuning import NAME, RUN, START, Tuning
from vitkit.system.console.messages import say
from vitkit.system.storage.files import NUMBER, Types, check_replaceable, check_types, parse_json
from vitkit.training import Occupied, remove_run
from vitkit.weights import check_model_replaceable

RECORD = "masks.json"  # in the run directory
PAGE = "report.html"
MODEL = "model"  # directory of the model, in the run directory
GRID: Types = {"patches": int}
TUNING: Types = {"steps": int, "seconds_of_a_step": NUMBER, "afterwards": NUMBER, "compiled": bool}


def check_own(run_dir: Path) -> None:
    """Raises VitkitError if a run would remove or replace files in a directory that no run of masks has written
    there."""
    record = run_dir / RECORD
    has_record = record.exists()
    if has_record and not _is_record(record):
        raise _not_ours(record)
    folders = [run_dir / name for name in (START, RUN)]
    for folder in folders:
        if folder.exists() and (not has_record or not folder.is_dir()):
            raise _not_ours(folder)
    start, run = folders
    recipe = _read(run / "recipe.json")
    begins_with = Path(
        str(recipe.get("init", ""))
    )  # from another working directory by another path
    if recipe and (recipe.get("name"), begins_with.name) != (NAME, START):
        raise _not_ours(run)
    check_model_replaceable(start)
    check_replaceable(run_dir / PAGE)


def _not_ours(path: Path) -> Occupied:
    return Occupied(
        f"{path} is not from this run, which would replace it; choose another `workdir`, or move it"
    )


def _read(file: Path) -> dict[str, Any]:
    """The values in a JSON file; empty if there are none."""
    try:
        values = parse_json(file.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict):
        return {}
    return values


def _is_record(file: Path) -> bool:
    """Whether a file is the record of a run of masks, and not, say, masks in a COCO file of the same name."""
    return {"init", "data", "masks"} <= _read(file).keys()


class Decided(NamedTuple):
    """What an earlier call decided by the clock."""

    patches: int | None = None
    """Patches of the larger grid that was tried; 0 for none, None if this call decides."""
    tuning: Tuning | None = None
    """The length of the fine-tuning; None if this call decides."""

    def to_json(self) -> dict[str, Any]:
        """As the record of the run has it."""
        found: dict[str, Any] = {}
        if self.patches is not None:
            found["grid"] = {"patches": self.patches}
        if self.tuning is not None:
            found["tuning"] = self.tuning._asdict()
        return found


def continued(run_dir: Path, plan: dict[str, Any]) -> Decided:
    """What an earlier call decided.

    A call with another plan begins again: what the earlier one wrote is removed, except its model, which
    is kept until the new one replaces it. Files of the user are kept.
    """
    earlier = _read(run_dir / RECORD)
    # Records of earlier versions have no list of images that are left out
    changed = [name for name in plan if ({"exclude": ""} | earlier).get(name) != plan[name]]
    if changed:
        if earlier:
            say(f"{run_dir} begins again: other than in the earlier call are {', '.join(changed)}")
        remove_run(run_dir / RUN)
        (run_dir / PAGE).unlink(missing_ok=True)  # about the earlier model
        return Decided()
    tuning = None
    with suppress(KeyError, ValueError, TypeError):
        check_types(earlier["tuning"], TUNING)
        tuning = Tuning(**earlier["tuning"])
    patches = None
    if tuning is not None:
        patches = 0  # unless it says otherwise: the grid was decided before
    with suppress(KeyError, ValueError, TypeError):
        check_types(earlier["grid"], GRID)
        patches = max(earlier["grid"]["patches"], 0)
    return Decided(patches, tuning)
