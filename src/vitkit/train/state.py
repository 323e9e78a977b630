"""Everything that a run must remember, and how it survives: checkpoints are complete or absent, never half.

A checkpoint is a folder `checkpoints/step-00000500` with `state.safetensors` (weights, average, optimiser) and `state.json`
(counters and a checksum). It is written under another name, synced and renamed; then the pointer `LAST` moves, by rename.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclass
class State:
    """Learner, optimiser, Polyak average (None when off) and the counters of a run. Only the loop changes it."""

    learner: nn.Module
    """The model under the name `model`, with what its objective adds."""
    optimizer: torch.optim.Optimizer
    average: dict[str, Tensor] | None = None
    step: int = 0
    """Finished steps, the skipped ones among them."""
    skipped: int = 0
    """Steps whose loss or gradient was not finite."""
    bad_in_row: int = 0
    """How many of the latest steps were skipped."""
    rollbacks: int = 0
    """How often the run went back to an earlier checkpoint's weights."""
    kept: int = -1
    """The step whose checkpoint this process wrote or read, so that it is known to be intact."""

    def update_average(self, factor: float) -> None:
        """average <- factor * average + (1 - factor) * weights. The factor grows to its value over the first steps as
        (1 + step) / (10 + step), so that the initial weights do not linger; the paper gives the factor only."""
        factor = min(factor, (1 + self.step) / (10 + self.step))
        weights = trained(self.learner)
        torch._foreach_lerp_(list(self.average.values()), [weights[name] for name in self.average], 1 - factor)

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """The learner with the averaged weights in it, where there is an average; the trained ones come back after."""
        self._swap()
        try:
            yield self.learner
        finally:
            self._swap()

    def _swap(self) -> None:
        parameters = dict(self.learner.named_parameters())
        for name in self.average or ():
            parameters[name].data, self.average[name] = self.average[name], parameters[name].data

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, views of the live ones: weights, average, and the optimiser's by parameter."""
        named = {f"learner.{name}": t for name, t in self.learner.state_dict().items()}
        named |= {f"average.{name}": t for name, t in (self.average or {}).items()}
        for name, parameter in self.learner.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if value is not None:
                    named[f"optimizer.{key}.{name}"] = value
        return named

    def save(self, workdir: Path, keep: int) -> Path:
        """Write a checkpoint and move the pointer to it. On any failure, a full disk too, what was there still is."""
        folder = workdir / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        final, new = folder / f"step-{self.step:08d}", folder / f".step-{self.step:08d}.new"
        if self.kept == self.step:
            return final
        for left in folder.glob(".step-*.new"):  # by a save that was killed
            shutil.rmtree(left, ignore_errors=True)
        try:
            new.mkdir()
            tensors = {name: t.detach().cpu().contiguous() for name, t in self.tensors().items()}
            try:
                save_file(tensors, new / "state.safetensors")
            except SafetensorError as error:  # how it reports what the system refused, a full disk among others
                raise OSError(str(error)) from error
            facts = {name: getattr(self, name) for name in COUNTERS} | {"sha256": _digest(new / "state.safetensors")}
            (new / "state.json").write_text(json.dumps(facts, indent=1), "utf-8")
            for path in (new / "state.safetensors", new / "state.json", new):
                sync(path)
            if (
                final.exists()
            ):  # damaged, or written by an earlier life of this run that was killed before it moved LAST
                shutil.rmtree(final)
            new.rename(final)
            sync(folder)
            point(workdir, final.name)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            raise OSError(
                f"could not write a checkpoint at step {self.step} to {folder} ({error}); the earlier ones are untouched: "
                f"make room and run the same command again"
            ) from error
        self.kept = self.step
        for old in checkpoints(workdir)[keep:]:
            shutil.rmtree(old)
        return final

    def load(self, checkpoint: Path) -> None:
        """Become what the checkpoint holds. Raises ValueError when it is damaged or of another model; the state is then
        as it was."""
        facts, tensors = read(checkpoint)
        expected = {f"learner.{name}": t for name, t in self.learner.state_dict().items()}
        expected |= {f"average.{name}": t for name, t in (self.average or {}).items()}
        found = {name: t for name, t in tensors.items() if not name.startswith("optimizer.")}
        if {n: t.shape for n, t in expected.items()} != {n: t.shape for n, t in found.items()}:
            raise ValueError(f"{checkpoint} holds another model than this recipe's")
        with torch.no_grad():
            for name, tensor in expected.items():
                tensor.copy_(found[name])
        parameters = dict(self.learner.named_parameters())
        self.optimizer.state.clear()
        for name in tensors.keys() - found.keys():
            _, key, parameter = name.split(".", 2)
            value = tensors[name].to(parameters[parameter].device)
            self.optimizer.state[parameters[parameter]][key] = value
        for name in COUNTERS:
            setattr(self, name, facts[name])
        self.kept = self.step


def trained(learner: nn.Module) -> dict[str, Tensor]:
    """The parameters that the optimiser changes, by name, without their graph."""
    return {name: p.detach() for name, p in learner.named_parameters() if p.requires_grad}


COUNTERS = ("step", "skipped", "bad_in_row", "rollbacks")


def read(checkpoint: Path) -> tuple[dict, dict[str, Tensor]]:
    """Counters and tensors of a checkpoint. Raises ValueError, saying what, when any byte of it is damaged."""
    try:
        facts = json.loads((checkpoint / "state.json").read_text("utf-8"))
        if _digest(checkpoint / "state.safetensors") != facts["sha256"]:
            raise ValueError("its checksum does not fit")
        if any(not isinstance(facts[name], int) for name in COUNTERS):
            raise ValueError("its counters are not whole numbers")
        return facts, load_file(checkpoint / "state.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"checkpoint {checkpoint} is damaged: {error}") from error


def checkpoints(workdir: Path) -> list[Path]:
    """The finished checkpoints of a run, newest first; the one that LAST names comes before all others."""
    found = sorted((workdir / "checkpoints").glob("step-*"), key=lambda path: path.name, reverse=True)
    try:
        last = (workdir / "LAST").read_text("utf-8").strip()
    except OSError:
        return found
    return sorted(found, key=lambda path: path.name != last)


def start(workdir: Path, state: State, begin: Callable[[], None], say: Callable[[str], None]) -> None:
    """Where a run begins: at its own newest intact checkpoint, a damaged one being said; else where `begin` brings it."""
    found = checkpoints(workdir)
    for checkpoint in found:
        try:
            state.load(checkpoint)
        except ValueError as error:
            say(f"{error}; trying the one before it")
        else:
            return
    if found:
        raise ValueError(f"every checkpoint in {workdir / 'checkpoints'} is damaged; remove {workdir} to start over")
    begin()
    for name, value in trained(state.learner).items() if state.average else ():
        state.average[name].copy_(value)


def point(workdir: Path, name: str) -> None:
    """Move the pointer to the last checkpoint; readers see the old name or the new one."""
    new = workdir / "LAST.new"
    new.write_text(name, "utf-8")
    sync(new)
    new.replace(workdir / "LAST")
    sync(workdir)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
