"""Runs a command as an older x86 processor would, one with AVX2 and nothing newer.

    python tests/older_processor.py make test-slow

It says why if this machine cannot: older_processor.c traps an instruction, which takes Linux, a
processor whose flags in /proc/cpuinfo include cpuid_fault, and gcc. Programs run at their usual speed.
"""

import os
import subprocess
import sys
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

SOURCE = Path(__file__).with_suffix(".c")


def why_not() -> str:
    """Why this machine cannot imitate an older processor; "" if it can."""
    facts = Path("/proc/cpuinfo")
    if not facts.is_file() or "cpuid_fault" not in facts.read_text().split():
        return "needs Linux on an x86 processor that traps CPUID (cpuid_fault)"
    if which("gcc") is None:
        return "needs gcc"
    return ""


def environment(folder: Path) -> dict[str, str]:
    """The variables of processes that are to take this processor for an older one.

    folder: where the library is compiled to; it has to stay as long as the processes run.
    """
    library = folder.absolute() / "older_processor.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", SOURCE, "-o", library, "-ldl"], check=True)
    # What PyTorch has compiled for this processor would be wrong for the older one, and the other way round
    compiled = str(folder.absolute() / "inductor")
    return os.environ | {"LD_PRELOAD": str(library), "TORCHINDUCTOR_CACHE_DIR": compiled}


def main() -> int:
    if reason := why_not():
        print(f"this machine cannot imitate an older processor: {reason}", file=sys.stderr)
        return 1
    with TemporaryDirectory() as folder:
        return subprocess.run(sys.argv[1:], env=environment(Path(folder))).returncode


if __name__ == "__main__":
    sys.exit(main())
