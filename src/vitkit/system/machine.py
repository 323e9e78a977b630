"""The machine of this process: its CPUs, its devices, and their arithmetic."""

import ctypes
import gc
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from vitkit.system.console.messages import say
from vitkit.system.errors import BadSettings, Unsupported

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "bfloat16"]
PrecisionChoice = Literal["auto", "float32", "bfloat16"]
"""The values of the setting; auto is decided by `pick_precision`."""

NO_AVX2 = (
    "this CPU has no AVX2 instructions, which PyTorch is written for: everything works, and "
    "computing takes two to three times as long"
)
CONTROL_GROUP = Path("/sys/fs/cgroup")  # where Linux has the limits of a container


def cpus(control_group: Path = CONTROL_GROUP) -> int:
    """CPUs that this process may use, at least 1.

    This is the smaller one of the affinity mask and the container's quota, divided among the ranks on this
    machine. A container on a 64-core host often has two CPUs, which 64 workers would overload.
    """
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    quota = _quota(control_group)
    if quota is not None:
        count = min(count, quota)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # set by torchrun
    return max(1, count // processes)


def processor() -> str:
    """The processor's name with its family and model on Linux; elsewhere Python's name for it."""
    facts = _cpu_facts()
    if "model name" in facts:
        family = facts.get("cpu family", "?")
        model = facts.get("model", "?")
        return f"{facts['model name']} (family {family}, model {model})"
    return platform.processor() or platform.machine()


def give_back_memory() -> None:
    """Return unused memory to the system, for example that of a large object which was replaced: objects in
    reference cycles, which Python rarely collects, and memory that the C library keeps, if it supports
    that."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _quota(control_group: Path) -> int | None:
    """CPUs that the control group grants, rounded down; None without a limit.

    The kernel has them as microseconds of CPU time per period.
    """
    version_1 = control_group / "cpu"
    try:  # version 2, one file: "200000 100000", or "max 100000" without a limit
        quota, period = (control_group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:  # version 1, two files: "200000", or "-1" without a limit
            quota = (version_1 / "cpu.cfs_quota_us").read_text().strip()
            period = (version_1 / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdecimal() or not period.isdecimal():
        return None  # "max" and "-1" are not decimal
    return max(1, int(quota) // int(period))


def _devices() -> list[str]:
    """The kinds of devices of this machine, the best first."""
    import torch

    devices = ["cpu"]
    if torch.backends.mps.is_available():
        devices.insert(0, "mps")
    if torch.cuda.is_available():
        devices.insert(0, "cuda")
    return devices


def check_device(name: "str | torch.device") -> None:
    """Raise VitkitError, with the available devices, for one to which a model cannot be moved on this machine.
    Other kinds that PyTorch knows, such as "meta" or "xpu", are left to it."""
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    # Not for the CPU: asking for CUDA would affect the processes that this one forks
    if kind in ("", "cuda", "mps"):
        _check_available(name)


def _check_available(name: "str | torch.device") -> None:
    """Raise VitkitError, with the available devices, for one that this machine does not have."""
    import torch

    # "cuda:1" is kind "cuda", index "1"
    name = str(name)
    kind, _, index = name.partition(":")
    count = 1
    if kind == "cuda":
        count = torch.cuda.device_count()
    index = index or "0"
    devices = _devices()
    if kind not in devices or not index.isdecimal() or int(index) >= count:
        known = ", ".join(devices)
        if count > 1:
            known += f" (0 to {count - 1})"
        raise BadSettings(f"no device {name!r} on this machine; there is {known}")


def pick_device(name: "str | torch.device" = "auto") -> "torch.device":
    """The named device, or for "auto" the best available one: CUDA, then Apple's MPS, then the CPU.

    Under torchrun each rank on a machine gets its own GPU. For an old CPU, a message says once that
    computations are slow. On a GPU, convolutions use float32 too (PyTorch's default is TF32), and cuDNN
    computes no attention: its backward pass gives NaN for some numbers of tokens, for example 64 and 192.

    Raises VitkitError for a device that this machine does not have, with the available ones.
    """
    import torch

    # The device that the name means
    name = str(name)
    devices = _devices()
    if name == "auto":
        name = devices[0]
    if name == "cuda" and "cuda" in devices and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"

    _check_available(name)
    kind = name.partition(":")[0]
    if kind == "cuda":
        torch.backends.cudnn.allow_tf32 = False
        # pytorch/pytorch#196678: NaN for queries with logits far below zero. Occurred in a run with 64
        # tokens after 200 steps
        torch.backends.cuda.enable_cudnn_sdp(False)
    if kind == "cpu" and not has_avx2():
        _say_once(NO_AVX2)
    return torch.device(name)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """A context in which PyTorch computes the same bits every time, if `wanted`.

    Raises VitkitError with the name of an operation that cannot.
    """
    import torch

    if not wanted:
        yield
        return
    # NVIDIA guarantees this for cuBLAS with several streams too if the variable has one of two values
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    was_wanted = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        operation = re.search(r"(\w+) does not have a deterministic implementation", str(error))
        if operation is None:
            raise
        raise Unsupported(
            f"PyTorch cannot compute {operation[1]} with the same bits every time on this device; "
            "leave out `deterministic`"
        ) from error
    finally:
        torch.use_deterministic_algorithms(was_wanted, warn_only=only_warned)


def has_avx2() -> bool:
    """Whether the CPU has AVX2, for which PyTorch and its libraries are optimised. True for processors other
    than x86, which have other instructions."""
    import torch

    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    return torch.backends.cpu.get_cpu_capability() != "DEFAULT"


@cache
def _say_once(sentence: str) -> None:
    """Send a message once per process."""
    say(sentence)


def autocast(device: "torch.device", precision: Precision) -> AbstractContextManager:
    """A context in which matrix products run in bfloat16, on float32 weights; for float32 one without
    effect.

    Raises:
        VitkitError: For any other precision; `pick_precision` resolves "auto".
    """
    if precision not in get_args(Precision):
        raise BadSettings(f"precision is {precision!r}; give float32 or bfloat16")
    if precision == "float32":
        return nullcontext()
    import torch

    return torch.autocast(device.type, torch.bfloat16)


def slow(device: "torch.device", precision: Precision) -> bool:
    """Whether this precision is many times slower than float32: bfloat16 on a CPU without instructions for
    it."""
    import torch

    if precision == "float32" or device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Picked(NamedTuple):
    """A precision, and a sentence with the reason, which is empty if the user chose it."""

    precision: Precision
    why: str = ""


def pick_precision(choice: PrecisionChoice, device: "torch.device") -> Picked:
    """The chosen precision. "auto" is bfloat16 on devices with instructions for it, which make it about twice as
    fast, and float32 on others."""
    if choice != "auto":
        return Picked(choice)
    name = "this CPU"
    if device.type == "cuda":
        name = "this GPU"
    if device.type == "mps":
        return Picked("float32", "computing in float32: bfloat16 was not measured on MPS")
    if has_bfloat16(device):
        return Picked(
            "bfloat16",
            f"computing in bfloat16: {name} has instructions for it (`precision='float32'` for exact "
            "comparisons)",
        )
    return Picked("float32", f"computing in float32: {name} has no bfloat16 instructions")


def has_vnni() -> bool | None:
    """Whether the CPU adds int8 products in 32 bits; x86 CPUs without VNNI add pairs of them in 16 bits, which
    saturate. None if unknown, as outside of Linux."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    flags = cpu_flags()
    if not flags:
        return None
    return bool({"avx512_vnni", "avx_vnni"} & flags)


def cpu_flags() -> set[str]:
    """The instruction sets of an x86 CPU, by Linux's names; empty if unknown."""
    return set(_cpu_facts().get("flags", "").split())


def _cpu_facts() -> dict[str, str]:
    """Linux's description of the first CPU; empty if there is none."""
    facts = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            facts[name.strip()] = value.strip()
    return facts


# Properties known without PyTorch, whose import takes seconds


def auto_is_float32() -> bool:
    """Whether the precision "auto" is float32 on this CPU. False if only PyTorch can tell, as on ARM and
    outside of Linux."""
    flags = cpu_flags()
    return bool(flags) and "avx512_bf16" not in flags


# Files of the drivers of PyTorch's devices: NVIDIA's, also in Linux on Windows, and AMD's
GPUS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


def is_cpu(device: str) -> bool:
    """Whether the named device is the CPU. False for "auto" if there may be a GPU."""
    if device == "auto":
        return sys.platform == "linux" and not any(Path(gpu).exists() for gpu in GPUS)
    return device == "cpu"


def has_bfloat16(device: "torch.device") -> bool:
    """Whether the device has instructions for bfloat16, which then is faster than float32.

    On CPUs these are AVX-512's or ARM's. PyTorch's own function returns True for every CPU with AVX-512,
    where oneDNN emulates missing instructions.
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if platform.machine().lower() in ("aarch64", "arm64"):
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.cpu._is_avx512_bf16_supported()
