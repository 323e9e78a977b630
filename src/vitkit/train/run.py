"""The run directory: recipe.json (what runs), data.json (what it runs on), metrics.jsonl, checkpoints/ + LAST, model/."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vitkit.data import (
    BadImage,
    Source,
    Splits,
    check_images,
    decoded,
    fingerprint,
    open_splits,
    split_off,
    subset,
    together,
    without,
)
from vitkit.system.files import on_this_machine, write_json
from vitkit.system.machine import cpus
from vitkit.system.progress import bar, silent
from vitkit.system.ranks import any_rank, from_every_rank, from_rank_0, on_rank_0, world
from vitkit.system.watchdog import watchdog
from vitkit.train.checkpoints import checkpoints, steps
from vitkit.train.recipe import Data, Facts, Recipe, differences, to_json


@dataclass(frozen=True)
class RunData:
    """The parts of a data set after broken images were dealt with."""

    train: Source
    held_out: dict[str, Source]
    """"val" and "test", as far as they are there."""
    facts: Facts
    record: dict
    """What data.json holds."""


def open_data(data: Data, workdir: Path, say) -> RunData:
    """Open and check the data of a run. An interrupted run, one with a recipe.json, is not checked again.

    Unless `check` is off, every image is decoded once before the training. A broken one raises BadImage, or with
    `on_bad_image` "skip" is left out, counted and listed in data.json.
    """
    if not data.source:
        raise ValueError(
            "no images: say which with --data.source FOLDER, a manifest, a parquet file, or digits"
        )
    splits, seed = open_splits(data.source, data.columns, data.split_seed), data.split_seed
    if data.exclude and splits.train is not None:
        left = without(splits.train, data.exclude)
        say(
            f"{len(splits.train) - len(left):,} training images that {data.exclude} lists are left out"
        )
        splits = replace(splits, train=left)
    parts = divide(splits, data)
    counts = {name: len(part) for name, part in parts.items()}
    record = {
        "source": data.source,
        "split_seed": seed,
        "target": splits.target,
        "labels": list(splits.labels),
        "counts": counts,
    }
    record |= {"fingerprint": {name: fingerprint(part) for name, part in parts.items()}}
    record |= {"notes": list(splits.notes), "made": splits.made}
    if any(other != record["fingerprint"] for other in from_every_rank(record["fingerprint"])):
        raise ValueError(
            f"{data.source!r} is not the same on every machine of this run; bring all to one state"
        )
    known = from_rank_0(lambda: _known(workdir))
    if known and (known["source"], known["split_seed"]) == (data.source, seed):
        if any(
            known[name] != record[name] for name in ("target", "labels", "counts", "fingerprint")
        ):
            raise ValueError(
                f"{data.source!r} has changed since this run began ({known['counts']} images then, {counts} now); choose "
                f"another --workdir for a new run, or bring the images back as they were"
            )
        record["skipped"] = known["skipped"]
    else:
        for note in splits.notes:
            say(note)
        record["skipped"] = _check(parts, data, say) if data.check else {}
    for name, bad in record["skipped"].items():
        out = {index for index, _ in bad}
        parts[name] = (
            subset(parts[name], [i for i in range(counts[name]) if i not in out])
            if out
            else parts[name]
        )
    train = parts.pop("train")
    if not data.augmentation.reduced_decode:  # which makes other pixels of a file
        room, shown = (
            int(data.keep_decoded * 1e9) // world().ranks,
            bar("decoding") if on_rank_0() else silent,
        )
        train = decoded(train, room, cpus() if data.workers < 0 else data.workers, shown)
    return RunData(train, parts, Facts(len(train), tuple(splits.labels), splits.target), record)


def _known(workdir: Path) -> dict:
    """What data.json holds, empty before a run is claimed."""
    return (
        json.loads((workdir / "data.json").read_text("utf-8"))
        if (workdir / "recipe.json").exists()
        else {}
    )


def divide(splits: Splits, data: Data) -> dict[str, Source]:
    """The parts of a run: "train", and "val" and "test" as far as it may see them. Raises ValueError without any to train on."""
    parts = {
        name: part
        for name in ("train", "val", "test")
        if (part := getattr(splits, name)) is not None
    }
    if "train" not in parts:
        raise ValueError(f"{data.source!r} has no training images, only {', '.join(parts)}")
    if data.parts == "given":
        return parts
    both = {"val", "test"} <= parts.keys()
    if data.parts == "final":
        return (
            {"train": together(parts["train"], parts["val"]), "test": parts["test"]}
            if both
            else parts
        )
    if both:
        return {"train": parts["train"], "val": parts["val"]}
    first, second = split_off(parts["train"], data.hold_out, data.split_seed)
    if not len(second):
        raise ValueError(
            f"{data.source!r} has no class with two training images, so none can be held out to select on"
        )
    return {"train": subset(parts["train"], first), "val": subset(parts["train"], second)}


def _check(parts: dict[str, Source], data: Data, say) -> dict[str, list[tuple[int, str]]]:
    """Broken images of every part, by index, with what is wrong; each rank looks at its share. Raises BadImage where they
    must not be."""
    workers = cpus() if data.workers < 0 else data.workers  # all of them: no model is running yet
    rank, ranks = world()
    found = {}
    for name, part in parts.items():
        mine = subset(part, range(rank, len(part), ranks)) if ranks > 1 else part
        found[name] = [
            (rank + i * ranks, text) for i, text in check_images(mine, workers, on_rank_0())
        ]
    everyone = from_every_rank(found)
    skipped = {
        name: bad for name in parts if (bad := sorted(one for of in everyone for one in of[name]))
    }
    count = sum(map(len, skipped.values()))
    if count and data.on_bad_image == "fail":
        first = "\n  ".join([text for bad in skipped.values() for _, text in bad][:10])
        raise BadImage(
            f"{count} broken image{'s' if count > 1 else ''} in {data.source!r}; mend or remove them, or leave them out "
            f"with --data.on-bad-image skip:\n  {first}{'' if count <= 10 else f'{chr(10)}  and {count - 10} more'}"
        )
    for bad in skipped.values():
        for _, text in bad:
            say(f"left out: {text}")
    return skipped


def claim(workdir: Path, recipe: Recipe, data: RunData) -> None:
    """Write down what runs, and on what. A directory where another recipe was trained is refused, with the differences."""
    path, asked = workdir / "recipe.json", to_json(recipe)
    from_rank_0(lambda: _claim(path, asked, data.record))


def _claim(path: Path, asked: dict, record: dict) -> None:
    workdir = path.parent
    if path.exists():
        other = differences(json.loads(path.read_text("utf-8")), asked)
        if other and any(steps(one) for one in checkpoints(workdir)):
            raise ValueError(
                f"{workdir} holds a run of another recipe ({'; '.join(other[:5])}); choose another --workdir, or remove it"
            )
        if (
            other
        ):  # nothing was trained: settings that were refused, or a run that was stopped at once
            shutil.rmtree(workdir / "checkpoints", ignore_errors=True)
    write_json(workdir / "data.json", record)
    write_json(path, asked)  # last: where it is, the other holds


@contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Make the directory, and keep any other process from training into it. Raises ValueError where one does.

    The system drops the lock with the process that holds it, however that ends; processes that it forked do not hold it,
    and it works on shared file systems.
    """
    handle = from_rank_0(lambda: _lock(workdir))
    try:
        yield
    finally:
        if on_rank_0():
            os.close(handle)


def _lock(workdir: Path) -> int:
    import fcntl

    on_this_machine(workdir).mkdir(parents=True, exist_ok=True)
    handle = os.open(workdir / "LOCK", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ValueError(
            f"another process is training into {workdir}; wait for it, or choose another --workdir"
        ) from error
    return handle


class Interrupted(Exception):
    """The run was asked to stop, saved itself and can be continued by the same command."""


class Stop:
    """Whether someone asked the run to stop (SIGTERM of a scheduler, Ctrl-C), of any rank: they stop at the same step."""

    def __init__(self):
        self.asked = False

    def raise_if_asked(self) -> None:
        """Raises Interrupted, on every rank. All of them ask at the same places."""
        watchdog.heartbeat()
        if any_rank(self.asked):
            raise Interrupted

    def watch(self, items) -> Iterator:
        """The same items, until someone asks."""
        for item in items:
            self.raise_if_asked()
            yield item


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Turn SIGTERM and SIGINT into a question that the loop asks itself; only in the main thread, as signals go.

    Ctrl-C again stops a run of one process at once. SIGTERM again does not, for SLURM sends it twice in a moment; nor does
    either stop one of several: torchrun and the scheduler both pass the same signal on, and kill what takes too long.
    """
    stop, before = Stop(), {}

    def ask(number, frame):
        stop.asked = True
        if number == signal.SIGINT and world().ranks == 1:
            signal.signal(number, before[number] or signal.SIG_DFL)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, ask)
    except ValueError:  # not the main thread
        pass
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
