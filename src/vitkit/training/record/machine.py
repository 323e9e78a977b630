"""The machine of a run, in machine.json, and its start, in begun.json.

The last bits of the weights depend on the machine, so a run that continues uses the numerical settings that it
began with, as far as possible. begun.json is for the report only.
"""

import platform
import time
from pathlib import Path

import torch

from vitkit.recipes import Recipe, Say
from vitkit.system import matmul
from vitkit.system.machine import Precision, processor
from vitkit.system.processes.ranks import from_rank_0, world
from vitkit.system.storage.files import NUMBER, Types, write_json
from vitkit.training.planning import operations
from vitkit.training.record.log import Work
from vitkit.training.record.values import read_object

MACHINE = "machine.json"  # in the run's directory
BEGUN = "begun.json"  # in the run's directory

OF_BEGUN: Types = {"date": str, "seconds": NUMBER, "device": str, "exaflops_of_an_image": NUMBER}
"""Types of the values that are read from BEGUN."""

# Displayed name of each fact of machine.json
WORDS = {
    "device": "device",
    "torch": "PyTorch",
    "threads": "threads a process",
    "ranks": "processes",
    "matmul": "dense layers by",
}


# Number of steps, of at least 0.05 s, from which compiling saves more than its minute
COMPILING_PAYS = 2000

# Peak of a GPU in 10^12 operations per second, by NVIDIA's data sheets: in bfloat16 without sparsity, and in
# float32 without TF32
PEAKS = {
    "NVIDIA A100-PCIE-40GB": (312, 19.5),
    "NVIDIA A100-SXM4-40GB": (312, 19.5),
    "NVIDIA A100 80GB PCIe": (312, 19.5),
    "NVIDIA A100-SXM4-80GB": (312, 19.5),
    "NVIDIA H100 PCIe": (756, 51),
    "NVIDIA H100 80GB HBM3": (989, 67),
    "NVIDIA H200": (989, 67),
    "NVIDIA L4": (121, 30.3),
    "NVIDIA L40S": (362, 91.6),
}


def recorded_work(run_dir: Path, device: torch.device, precision: Precision) -> Work:
    """The operations of a step per image, recorded when the run began, and the peak of all its devices, as far
    as they are known."""
    begun = from_rank_0(lambda: read_object(run_dir / BEGUN, OF_BEGUN))
    exaflops = begun.get("exaflops_of_an_image")
    if not isinstance(exaflops, float):
        return Work()
    if device.type != "cuda":
        return Work(1e6 * exaflops)
    peaks = dict(zip(("bfloat16", "float32"), PEAKS.get(_name(device), (0, 0)), strict=True))
    return Work(1e6 * exaflops, peaks[precision] * world().world_size)


def about_tf32(device: torch.device) -> str:
    """A sentence about the precision of float32 matrix products on a GPU; empty for other devices."""
    if device.type != "cuda":
        return ""
    # Not `allow_tf32`, which raises if the calling program has set `fp32_precision`
    of_products = torch.backends.cuda.matmul.fp32_precision
    of_convolutions = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    if "tf32" in (of_products, of_convolutions):
        return "TF32 is on: products of float32 matrices have 10 bits of the 23"
    return "TF32 is off: products of float32 matrices are float32"


def about_compiling(device: torch.device, recipe: Recipe) -> str:
    """A sentence that recommends compiling for a long run on a GPU; empty otherwise."""
    if device.type != "cuda" or recipe.compile or recipe.length.n < COMPILING_PAYS:
        return ""
    return (
        "not compiled: after a minute, `compile` makes steps on a GPU faster, those of B/16 by a third "
        "(docs/speed.md)"
    )


def _name(device: torch.device) -> str:
    """The name of a device's hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor()


def restore_numerics(
    run_dir: Path, device: torch.device, precision: Precision, continues: bool, say: Say
) -> None:
    """Select the libraries with which the run began, as far as this machine has them; a new run records its
    choice. Prints the differences from the machine on which the run began: the weights then differ in their
    last bits from those of an uninterrupted run."""
    begun = {}
    if continues:
        begun = from_rank_0(lambda: read_object(run_dir / MACHINE))

    # Facts on which the last bits of the result depend, besides the recipe and the images
    facts = {
        "device": _name(device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "ranks": world().world_size,
    }
    if device.type == "cpu" and precision == "float32":
        matmul.use(from_rank_0(lambda: _library(begun)))
        facts["matmul"] = list(matmul.in_use())

    # Record them, or compare them with those that the run began with
    if not begun:
        from_rank_0(lambda: write_json(run_dir / MACHINE, facts))
    if continues and not begun:
        say(
            f"{MACHINE} is missing or damaged, so the machine on which this run began is unknown; it "
            "continues, and on another machine its weights differ in their last bits from those of "
            "an uninterrupted run"
        )
    changed = [
        f"{word} {_in_words(begun[name])} -> {_in_words(facts.get(name))}"
        for name, word in WORDS.items()
        if name in begun and begun[name] != facts.get(name)
    ]
    if changed:
        say(
            "this run began on another machine or with other settings of it "
            f"({'; '.join(changed)}): it continues, and its weights will differ in the last bits from "
            "those of an uninterrupted run"
        )


def _library(begun: dict) -> matmul.OneDnn:
    """The library for the matrix products of dense layers: the user's choice; else the one with which the
    run began; else the faster one, which is measured."""
    begun_with = _as_library(begun.get("matmul"))
    if begun_with is not None and not matmul.chosen_by_user():
        return begun_with
    return matmul.choose()


def _as_library(value: object) -> matmul.OneDnn | None:
    """The value of "matmul" in machine.json; None if it is missing or damaged."""
    if (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(each, bool) for each in value)
    ):
        return matmul.OneDnn(*value)
    return None


def _in_words(value: object) -> str:
    """A fact of machine.json as text."""
    return str(_as_library(value) or value)


def record_beginning(run_dir: Path, recipe: Recipe) -> None:
    """Record when the run of a resolved recipe began, the versions of its software, and the operations of an
    image. A run that continues keeps its record."""
    if (run_dir / BEGUN).exists():
        return
    from vitkit import __version__

    try:
        exaflops = operations(recipe, 1)
    except Exception:  # a user's objective may fail on fake tensors in any way, and still train
        exaflops = None
    values = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "vitkit": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "exaflops_of_an_image": exaflops,
    }
    write_json(run_dir / BEGUN, values)


def environment(run_dir: Path, precision: str) -> dict[str, str]:
    """The machine and the software versions with which a run of this precision began, as text, for its
    report."""
    machine = read_object(run_dir / MACHINE)
    facts = {WORDS[name]: _in_words(machine[name]) for name in WORDS if name in machine}
    facts["precision"] = precision
    begun = read_object(run_dir / BEGUN, OF_BEGUN)
    return facts | {
        name: str(begun[name]) for name in ("vitkit", "python", "system") if name in begun
    }
