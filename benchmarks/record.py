"""What a results file says beside its numbers: the command, the date, the commit, the machine and the versions.

This is no benchmark of its own: the scripts import it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from contextlib import AbstractContextManager
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from vitkit import __version__
from vitkit.system.machine import autocast, pick_precision

ROOT = Path(__file__).parents[1]
CODE = ("src", "benchmarks/*.py")  # what a results file depends on


def parser(doc: str) -> argparse.ArgumentParser:
    """The command line of a script, whose --help begins with the script's docstring."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def model_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of a script that measures a model on photographs."""
    parser.add_argument("--model", required=True, help="a model that vitkit opens")
    parser.add_argument("--images", required=True, help="parquet of photographs")
    parser.add_argument("--precision", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="file for the results, JSON")


def about(measures: str, packages: tuple[str, ...], device: str = "cpu") -> dict:
    """The beginning of a result: what is measured, how, when, where, and with which versions.

    Ask before measuring: files may be changed while a benchmark runs.
    """
    return {
        "measures": measures,
        "command": command(),
        "date": today(),
        "commit": commit(),
        "machine": machine(device),
        "versions": versions(packages) | {"vitkit": __version__},
    }


def command() -> str:
    """The command that is running, without the folders of whoever runs it."""
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    words = [_without_folder(word) for word in sys.argv[1:]]
    return " ".join(["python", script, *words])


def _without_folder(word: str) -> str:
    """A path outside of the working directory by its last part; any other word as it is."""
    if Path(word).is_absolute() or word.startswith(".."):
        return Path(word).name
    return word


def today() -> str:
    """The date, as 2026-11-20."""
    return date.today().isoformat()


def commit() -> str | None:
    """The commit of the code that runs, as "3b18599f", and "3b18599f+changes" if files of it differ;
    None without git, or outside of a repository."""
    try:
        number = git("rev-parse", "--short=8", "HEAD")
        changes = git("status", "--porcelain", "--", *CODE)
    except (OSError, subprocess.CalledProcessError):
        return None
    if changes:
        return f"{number}+changes"
    return number


def git(*words: str) -> str:
    """What git prints in this repository.

    Raises:
        OSError: If there is no git.
        subprocess.CalledProcessError: If git fails, as outside of a repository.
    """
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def computing(precision: str = "auto", device: str = "cpu") -> AbstractContextManager:
    """A context that computes as vitkit's commands do, whose --precision is "auto"."""
    where = torch.device(device)
    return autocast(where, pick_precision(precision, where).precision)


def machine(device: str = "cpu") -> dict:
    """What the benchmark runs on: CPU, cores, system, Python, the precision that vitkit's commands pick
    there, and the GPU if it uses one."""
    facts = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "precision": pick_precision("auto", torch.device(device)).precision,
    }
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _cpu() -> str:
    """The name of the processor; on Linux, /proc/cpuinfo says more than Python does."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """The version of each package, "absent" for one that is not installed."""
    installed = {}
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "absent"
    return installed


def load() -> float:
    """How many processes want a core, over the last minute: more than a few tell of other work."""
    return round(os.getloadavg()[0], 2)


def read(file: Path) -> dict:
    """A results file."""
    return json.loads(file.read_text())


def write(result: dict, output: Path | None) -> None:
    """Write a result as JSON, if a file is given."""
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=1) + "\n")
