"""The machine that this process has: CPUs, devices, arithmetic, and where files are kept."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

import torch

Precision = Literal["float32", "bfloat16"]


def cpus() -> int:
    """CPUs that this process may use, at least 1.

    That is the affinity mask or the container's quota, whichever is less, shared with the other ranks
    of the machine. A container on a 64-core host often owns two; as many workers as cores would fight
    over those.
    """
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    quota = _quota()
    if quota is not None:
        count = min(count, quota)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, count // processes)


def _quota() -> int | None:
    """CPUs that the control group grants, rounded down; None if nothing limits them."""
    try:  # version 2: "max 100000" or "200000 100000"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:  # version 1: -1 is no limit
            quota = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text().strip()
            period = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdecimal() or not period.isdecimal():
        return None
    return max(1, int(quota) // int(period))


def pick_device(name: str = "auto") -> torch.device:
    """The named device, or for "auto" the best there is: CUDA, then Apple's MPS, then the CPU.

    Each rank of a machine has a GPU of its own. Raises ValueError, with what there is, for a device
    that this machine does not have.
    """
    devices = ["cpu"]
    if torch.backends.mps.is_available():
        devices.insert(0, "mps")
    if torch.cuda.is_available():
        devices.insert(0, "cuda")
    best = devices[0]
    if name in ("auto", "cuda") and best == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    if name == "auto":
        return torch.device(best)

    kind, _, index = name.partition(":")
    count = 1
    if kind == "cuda":
        count = torch.cuda.device_count()
    index = index or "0"
    if kind not in devices or not index.isdecimal() or int(index) >= count:
        known = ", ".join(devices)
        if count > 1:
            known += f" (0 to {count - 1})"
        raise ValueError(f"no device {name!r} on this machine; there is {known}")
    if kind == "cuda":
        # float32 is float32 in convolutions too, as it is in matrix products
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager:
    """Where matrix products run in bfloat16, with float32 weights, or everything in float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def slow(device: torch.device, precision: Precision) -> bool:
    """Whether the processor has no bfloat16 instructions, so that it is many times slower there
    than float32."""
    if precision == "float32" or device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
