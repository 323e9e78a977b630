"""What is decided by the machine and the clock when a model is made of a folder of photographs. It is
written down before the fine-tuning, which continues by it if it was interrupted."""

import json
from pathlib import Path
from typing import NamedTuple

from vitkit.data import fingerprint
from vitkit.quick.folder import Photographs
from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.files import write_json
from vitkit.training import Occupied, Recipe, differences, to_json

PLAN = "plan.json"  # in the directory of the study


class OtherPlan(Occupied):
    """The directory was begun with other settings, or on other images."""


class Plan(NamedTuple):
    """What must stay when a run is continued, and what it was decided for."""

    steps: int | None
    """Of the fine-tuning; None as long as that is not decided."""
    precision: str
    minutes: float
    recipe: dict
    """The recipe of the call, as plain values."""
    images: str
    """Fingerprint of the images to learn from."""
    seconds_of_a_step: float = 0.0
    """What a step of the fine-tuning took when `steps` was decided."""
    pool: str | None = None
    """What the head reads, as a model's configuration says it; None as long as that is not decided."""


def read_plan(run_dir: Path) -> Plan | None:
    """The plan in a directory; None if there is none, or it is damaged."""
    try:
        return Plan(**json.loads((run_dir / PLAN).read_bytes()))
    except (OSError, TypeError, ValueError):
        return None


def write_plan(run_dir: Path, plan: Plan) -> None:
    """Write the plan into a directory."""
    from_rank_0(lambda: write_json(run_dir / PLAN, plan._asdict()))


def earlier_plan(
    run_dir: Path, recipe: Recipe, photographs: Photographs, minutes: float
) -> Plan | None:
    """The plan of an earlier call; None if there is none. Raises OtherPlan for another one's."""
    plan = from_rank_0(lambda: read_plan(run_dir))
    if plan is None:
        return None
    changed = differences(plan.recipe, to_json(recipe))
    if plan.minutes != minutes:
        changed.append(f"minutes: {plan.minutes:g}, now {minutes:g}")
    if plan.images != fingerprint(photographs.learned):
        changed.append("its images have changed")
    if changed:
        raise OtherPlan(f"{run_dir} was begun otherwise ({'; '.join(changed[:5])})")
    return plan
