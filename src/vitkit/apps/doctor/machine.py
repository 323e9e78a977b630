"""`vitkit doctor`: the hardware and the installed software, as far as they affect speed and features."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from urllib.request import getproxies

from vitkit.apps.doctor.finding import Fact


def examine_machine() -> Iterator[Fact]:
    """All facts about the machine and the installation."""
    yield from _software()
    yield from _processor()
    yield from _devices()
    yield from _memory()
    yield from _images()
    yield from _packages()
    yield from _places()
    yield from _settings()


def _software() -> Iterator[Fact]:
    """Versions of the software that computes."""
    import torch

    from vitkit import __version__

    yield Fact("vitkit", __version__)
    yield Fact("Python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    yield Fact("PyTorch", torch.__version__)
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    advice = ""
    if compiler is None and sys.platform.startswith("linux"):
        advice = "install a C++ compiler (g++) if you want `compile`, which cannot work without one"
    yield Fact("compile", "can work" if compiler else "has no C++ compiler", advice)


def _processor() -> Iterator[Fact]:
    """The CPU, its threads, and the precisions that are fast on it."""
    import torch

    from vitkit.system import matmul
    from vitkit.system.machine import NO_AVX2, cpus, has_avx2, has_bfloat16, processor, slow

    advice = ""
    if not has_avx2():
        advice = NO_AVX2
    yield Fact("processor", processor(), advice)
    threads = torch.get_num_threads()
    usable = cpus()
    advice = ""
    if threads < usable:
        advice = f"OMP_NUM_THREADS={usable} would let PyTorch use all CPUs that this process has"
    if threads > usable:
        advice = (
            f"OMP_NUM_THREADS={usable} would stop PyTorch's threads from waiting for each other"
        )
    yield Fact("CPUs", f"{usable} for this process; PyTorch computes on {threads}", advice)
    bfloat16 = "imitated: no faster than float32"
    if has_bfloat16(torch.device("cpu")):
        bfloat16 = "about twice as fast as float32: predict, finetune and others use it"
    elif slow(torch.device("cpu"), "bfloat16"):
        bfloat16 = "many times slower than float32"
    yield Fact("bfloat16 on the CPU", bfloat16)
    choice = matmul.choose(again=True)
    reason = "measured just now, and kept"
    if matmul.chosen_by_user():
        reason = f"as {matmul.VARIABLE} says"
    if not matmul.available():
        reason = "this PyTorch has no oneDNN"
    yield Fact("dense layers on the CPU", f"{choice} ({reason})")


def _devices() -> Iterator[Fact]:
    """The GPUs that PyTorch can use, and a GPU that it cannot use."""
    import torch

    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(i)
            size = facts.total_memory / 2**30
            yield Fact(f"cuda:{i}", f"{facts.name}, {size:.0f} GiB")
        return
    if torch.backends.mps.is_available():
        yield Fact("GPU", "mps, Apple's")
        return
    advice = ""
    if shutil.which("nvidia-smi"):
        advice = (
            "this machine has an NVIDIA driver, and PyTorch finds no GPU: nvidia-smi says whether "
            "the driver works, and pytorch.org which build of PyTorch suits it"
        )
    yield Fact("GPU", "none that PyTorch can use", advice)


def _memory() -> Iterator[Fact]:
    """Main memory, and shared memory for processes."""
    facts = {}
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            facts[name] = int(value.split()[0]) * 1024
    if "MemAvailable" in facts:
        free, total = facts["MemAvailable"] / 2**30, facts["MemTotal"] / 2**30
        yield Fact("memory", f"{free:.1f} GiB free of {total:.1f}")
    with suppress(OSError):
        shared = shutil.disk_usage("/dev/shm").free
        advice = ""
        if shared < 2**30:
            advice = (
                "batches travel from data workers through /dev/shm, which is small here; in Docker, "
                "give --shm-size 8g"
            )
        yield Fact("shared memory", f"{shared / 2**30:.1f} GiB free", advice)


def _images() -> Iterator[Fact]:
    """The JPEG decoder."""
    from vitkit.data.images.jpeg import available

    if available():
        yield Fact("JPEG", "decoded in part, by libjpeg-turbo")
        return
    advice = "TurboJPEG 3 (libjpeg-turbo) reads JPEG photographs up to 1.6 times as fast"
    if not _is_installed("vitkit") or _requirements("fast"):  # wheels exist for this machine
        advice = "pip install 'vitkit[fast]' reads JPEG photographs up to 1.6 times as fast"
    yield Fact("JPEG", "decoded whole, by torchvision", advice)


def _packages() -> Iterator[Fact]:
    """Each extra of vitkit, and which of its packages are not installed."""
    if not _is_installed("vitkit"):
        return  # vitkit runs from its source and is not installed, so its extras are unknown
    for extra in metadata.metadata("vitkit").get_all("Provides-Extra") or []:
        if extra in ("dev", "docs"):
            continue
        packages = _requirements(extra)
        missing = [name for name in packages if not _is_installed(name)]
        value = "installed"
        if not packages:
            value = "has nothing for this machine"
        if missing:
            value = f"pip install 'vitkit[{extra}]' adds {', '.join(missing)}"
        yield Fact(f"extra {extra}", value)


def _requirements(extra: str, package: str = "vitkit") -> list[str]:
    """The packages of an extra that exist for this machine, by name, with those of their extras."""
    from packaging.requirements import Requirement

    names = []
    for line in metadata.requires(package) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or "extra ==" not in str(marker):
            continue
        if marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            names.append(requirement.name)
            if _is_installed(requirement.name):
                for other in requirement.extras:
                    names += _requirements(other, requirement.name)
    return names


def _is_installed(package: str) -> bool:
    """Whether a package of this name is installed."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _places() -> Iterator[Fact]:
    """The cache directory, and the sources of downloads."""
    from vitkit.system.storage.files import cache_dir

    folder = cache_dir()
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free / 2**30
    advice = ""
    if not _takes_files(existing):
        advice = f"{folder} cannot be written to; VITKIT_CACHE=DIR keeps downloads in DIR instead"
    elif free < 2:
        advice = f"{folder} has little room; VITKIT_CACHE=DIR keeps downloads in DIR instead"
    yield Fact("cache", f"{folder}, {free:.1f} GiB free", advice)

    yield _hub()


def _takes_files(folder: Path) -> bool:
    """Whether a file can be created in a folder. Tested by creating one: permissions are no
    evidence, since root has all of them even on a read-only disk."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _hub() -> Fact:
    """Whether the Hugging Face hub is reachable."""
    from vitkit.weights import hub_answers
    from vitkit.weights.files.hub import hub_host

    title = "Hugging Face hub"
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return Fact(title, "HF_HUB_OFFLINE is set: only what is in the cache")
    if "https" in getproxies():
        return Fact(title, "through a proxy, which was not tried")
    if not hub_answers():
        advice = (
            "published models and data sets cannot be downloaded here: give files and folders of "
            "this machine, or what the cache has"
        )
        return Fact(title, f"{hub_host()} cannot be reached", advice)
    return Fact(title, f"{hub_host()} answers")


def _settings() -> Iterator[Fact]:
    """The environment variables that change what vitkit does, and unknown ones with
    vitkit's prefix."""
    from vitkit.system.environment import unknown_variables, variables_set

    for name, value in variables_set().items():
        yield Fact(name, value)
    for name, sentence in unknown_variables().items():
        yield Fact(name, "vitkit does not know it", sentence)
