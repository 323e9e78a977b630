"""Parallel execution of a study's shards: as processes of this machine, or as SLURM jobs, with submitit.

submitit needs nothing but SLURM, or nothing at all on one machine; it starts an ordinary command,
and restarts a job that SLURM has preempted. The alternative, Ray, needs a server that has to be
started on every machine; its strength, the scheduling of many small tasks with their data, is
irrelevant for runs of minutes that keep all their state in a directory.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitkit.system.console.messages import say
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings, Unsupported

DAY = 24 * 60  # default time limit of a job, minutes
LOOKED = 2.0  # seconds between two checks of the jobs
STOPPED = 75  # exit status of a process that saved its work after a signal


@dataclass(frozen=True)
class Shard:
    """One shard of a study, as the callable of a job."""

    words: tuple[str, ...]
    """Arguments of the `vitkit` command."""
    number: int
    """Index of the shard, from 0."""
    count: int
    """Number of shards."""
    spread: bool
    """Whether each shard gets one of the machine's GPUs, in turn."""

    def __call__(self) -> int:
        """Run the shard; returns its exit status. Raises RuntimeError with its last output if it
        fails."""
        environment = dict(os.environ)
        if self.spread:
            import torch

            gpus = torch.cuda.device_count()
            if gpus > 1:
                environment["CUDA_VISIBLE_DEVICES"] = str(self.number % gpus)
        shard = self.name()
        command = [sys.executable, "-m", "vitkit", *self.words, "--shard", shard]
        run = subprocess.run(command, env=environment)
        if run.returncode not in (0, STOPPED):
            raise RuntimeError(f"shard {shard} ended with status {run.returncode}")
        return run.returncode

    def name(self) -> str:
        """The name of the shard on the command line: 1/4 to 4/4."""
        return f"{self.number + 1}/{self.count}"

    def checkpoint(self) -> Any:
        """The job that submitit starts after a preemption: this shard again, which continues."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def check_submitit() -> None:
    """Raises VitkitError if submitit is not installed."""
    if find_spec("submitit") is None:
        raise Unsupported("`jobs` needs submitit: pip install 'vitkit[cluster]'")


def run_jobs(
    words: Sequence[str], count: int, on: str, options: Sequence[str], study_dir: Path
) -> None:
    """Run a study in `count` shards, and wait until all have ended. Their output goes to
    `study_dir`/jobs. A shard that fails is reported, and the others continue. Raises VitkitError without
    submitit, for options that submitit does not know, and without SLURM."""
    check_submitit()
    import submitit

    folder = study_dir / "jobs"
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=on)
        executor.update_parameters(**{"timeout_min": DAY, **_parameters(options)})
    except (RuntimeError, NameError, TypeError) as error:
        raise BadSettings(f"submitit cannot run jobs on {on} so: {error}") from error
    waiting = {}
    for number in range(count):
        shard = Shard(tuple(words), number, count, spread=on == "local")
        waiting[shard.name()] = executor.submit(shard)
    say(f"{counted(count, 'job')} on {on}; what they say is in {folder}")

    # Wait until the last one has ended
    while waiting:
        time.sleep(LOOKED)
        for name, job in list(waiting.items()):
            if not job.done():
                continue
            del waiting[name]
            failure = job.exception()
            if failure is None:
                say(f"shard {name} has ended; {len(waiting)} go on")
            else:
                last = str(failure).strip().splitlines()[-1:]
                say(f"shard {name} failed: {''.join(last)}; the same command tries it again")


def _parameters(options: Sequence[str]) -> dict[str, str | int]:
    """Names and values from NAME=VALUE. Raises VitkitError for other texts."""
    parameters: dict[str, str | int] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not (name and equals and value):
            raise BadSettings(f"`job_options` has {option!r}; write each like timeout_min=240")
        parameters[name] = value
        if value.isdigit():
            parameters[name] = int(value)
    return parameters
