"""On what a run computes, machine.json. The last bits of its weights depend on it."""

import json
from pathlib import Path

import torch

from vitkit.system import matmul
from vitkit.system.machine import Precision
from vitkit.system.processes.ranks import from_rank_0, world
from vitkit.system.storage.files import write_json
from vitkit.training.data import Say

FILE = "machine.json"  # in the run's directory

# How the sentence about a difference calls each fact
WORDS = {
    "device": "device",
    "torch": "PyTorch",
    "threads": "threads a process",
    "ranks": "processes",
    "matmul": "dense layers by",
}


def compute_as_begun(
    run_dir: Path, device: torch.device, precision: Precision, continues: bool, say: Say
) -> None:
    """Compute by the libraries with which the run began, as far as this machine has them; a run that
    begins writes down which it takes. Says in what the machine differs from the one that the run
    began on: its weights then differ in their last bits from those of an undisturbed run."""
    begun = {}
    if continues:
        begun = from_rank_0(lambda: _read(run_dir))

    # The products of dense layers. Which library is faster was measured, and might come out
    # otherwise today
    multiplies = device.type == "cpu" and precision == "float32"
    if multiplies:
        choice = from_rank_0(lambda: _choice(begun))
        matmul.use(choice)

    # The machine, beside the one that the run began on
    facts = _facts(device)
    if multiplies:
        facts["matmul"] = list(matmul.in_use())
    if not begun:
        from_rank_0(lambda: write_json(run_dir / FILE, facts))
    if continues and not begun:
        say(
            f"{FILE} is missing or damaged, so nobody knows what this run began on; it continues, and "
            "on another machine its weights differ in their last bits from those of an undisturbed run"
        )
    changed = [
        f"{word} {in_words(name, begun[name])} -> {in_words(name, facts.get(name))}"
        for name, word in WORDS.items()
        if name in begun and begun[name] != facts.get(name)
    ]
    if changed:
        say(
            f"this run began on another machine or with other settings of it ({'; '.join(changed)}): it continues, and its "
            "weights will differ in the last bits from those of an undisturbed run"
        )


def _choice(begun: dict) -> matmul.OneDnn:
    """The user's choice; or else that of the run's beginning; or else this machine's."""
    if not matmul.chosen_by_user() and isinstance(begun.get("matmul"), list):
        return matmul.OneDnn(*begun["matmul"])
    return matmul.choose()


def _facts(device: torch.device) -> dict:
    """What the bits of a result depend on, apart from the recipe and the images."""
    name = matmul.processor()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "device": name,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "ranks": world().world_size,
    }


def _read(run_dir: Path) -> dict:
    """What machine.json says; nothing, if earlier code began the run or the file is damaged."""
    try:
        facts = json.loads((run_dir / FILE).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(facts, dict):
        return {}
    choice = facts.get("matmul")
    is_choice = isinstance(choice, list) and len(choice) == 3
    if not is_choice or not all(isinstance(product, bool) for product in choice):
        facts.pop("matmul", None)
    return facts


def in_words(name: str, value: object) -> str:
    """A fact for people."""
    if name == "matmul" and isinstance(value, list):
        return str(matmul.OneDnn(*value))
    return str(value)
