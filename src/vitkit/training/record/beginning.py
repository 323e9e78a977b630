"""begun.json, in a run's directory: when the run began, with which versions of what, and what an
image costs. Nothing that is computed depends on it; the report shows it."""

import json
import platform
import time
from pathlib import Path

from vitkit.system.storage.files import write_json
from vitkit.training.planning.cost import operations
from vitkit.training.recipe import Recipe

FILE = "begun.json"


def record_beginning(run_dir: Path, recipe: Recipe) -> None:
    """Write it for a resolved recipe, unless it is there: then the run continues."""
    if (run_dir / FILE).exists():
        return
    from vitkit import __version__

    values = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "vitkit": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "exaflops_of_an_image": _exaflops_of_an_image(recipe),
    }
    write_json(run_dir / FILE, values)


def _exaflops_of_an_image(recipe: Recipe) -> float | None:
    """None if it cannot be counted."""
    try:
        return operations(recipe, 1)
    except Exception:  # somebody's own objective may fail on fake tensors in any way, and yet train
        return None


def read_begun(run_dir: Path) -> dict:
    """What begun.json holds; nothing, if earlier code began the run or the file is damaged."""
    try:
        values = json.loads((run_dir / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
