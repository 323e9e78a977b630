"""What a run took, and on what it ran, in words."""

import json

from vitkit.training.record.log import clock
from vitkit.training.record.machine import FILE as MACHINE
from vitkit.training.record.machine import WORDS, in_words
from vitkit.training.record.reading import Recorded


def took(run: Recorded) -> dict[str, str]:
    """What a run cost so far, by name: steps, time, images, operations of the model; and when it
    began. What earlier code did not write down is left out."""
    facts = {
        "steps": f"{run.steps():,}",
        "time of the steps": clock(run.seconds()),
        "images seen": f"{run.images():,}",
    }
    exaflops = run.begun.get("exaflops_of_an_image")
    if isinstance(exaflops, float):
        facts["exaFLOPs"] = f"{exaflops * run.images():.3g}"
    if "date" in run.begun:
        facts["begun"] = str(run.begun["date"])
    return facts


def environment(run: Recorded) -> dict[str, str]:
    """On which machine a run began, and with which versions."""
    facts = {}
    try:
        machine = json.loads((run.run_dir / MACHINE).read_text("utf-8"))
    except (OSError, ValueError):
        machine = {}
    for name, word in WORDS.items():
        if isinstance(machine, dict) and name in machine:
            facts[word] = in_words(name, machine[name])
    facts["precision"] = str(run.recipe.get("precision", "float32"))
    for name in ("vitkit", "python", "system"):
        if name in run.begun:
            facts[name] = str(run.begun[name])
    return facts
