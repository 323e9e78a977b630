"""The answers to millions of images, in parts, by several processes, any of which may be killed."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from vitkit.prediction import BATCH, Chosen, Parts, answers, from_sequence, write_parts
from vitkit.runtimes import FileRuntime, Runtime
from vitkit.system.console.text import as_word, counted
from vitkit.system.errors import BadSettings
from vitkit.verbs import arguments
from vitkit.verbs.arguments import check_folder, read_shard, status_of
from vitkit.verbs.definition import result, verb
from vitkit.verbs.prediction.common import (
    INPUT,
    Answering,
    check_answering,
    images_of,
    runtime_of,
)
from vitkit.verbs.prediction.terminal import ImageCounter


@dataclass(frozen=True)
class Batch(Answering):
    """Classify very many images, and write the answers to a folder, as parquet files of some
    thousand rows. The same command continues after any interruption, and several processes can
    share the work, with torchrun or --shard."""

    images: arguments.Images
    into: Path = Path("answers")
    """Folder for the parquet files."""
    shard: str = ""
    """Which of several processes this is: 1/4 to 4/4."""


@result
@dataclass(frozen=True)
class BatchState:
    """The state of the answers to very many images."""

    settings: Batch
    written: int
    """Parts that this process wrote."""
    summary: str
    """What it did in which time; empty if there was nothing to do."""
    parts: int
    """Parts there will be."""
    missing: int
    """Parts that are not there yet."""
    images: int
    rows_written: int
    """Rows of the whole folder; 0 until it is whole."""
    unreadable: int
    """Images that could not be read: of the whole folder, or, until it is whole, of what this process
    wrote."""

    @property
    def path(self) -> Path:
        """The folder."""
        return self.settings.into

    @property
    def status(self) -> int:
        """The exit status of the command: 3 if images could not be read. Of several processes that
        torchrun started it is 0 all the same, for it would start them again."""
        ok = self.settings.ok_if_unreadable or int(os.environ.get("WORLD_SIZE", 1)) > 1
        return status_of(self.unreadable, ok)

    def rows(self) -> list[dict]:
        """A row for each image, of all existing parts."""
        import pyarrow.parquet as pq

        return pq.read_table(self.path).to_pylist()

    def shown(self) -> Iterator[str]:
        """The output: the parts that were written, and those that are still missing."""
        done = counted(self.written, "part")
        if self.summary:
            done += f", {self.summary}"
        yield f"wrote {done}"
        if self.missing:
            again = "the same command"
            if self.settings.shard:
                again += " without --shard"
            yield f"still missing in {self.path}: {self.missing:,} of {counted(self.parts, 'part')}"
            yield f"next: when the other processes have ended, {again} does what is missing"
            return
        rows = counted(self.rows_written, "row")
        whole = f"{self.path} is whole: {rows} for {counted(self.images, 'image')}"
        if self.unreadable:
            whole += f", {self.unreadable:,} of them not classified: column error says why"
        yield whole
        code = f"import pyarrow.parquet as pq; print(pq.read_table({str(self.path)!r}))"
        yield f"next: python -c {as_word(code)}"


@verb
def batch(settings: Batch) -> BatchState:
    """Classify very many images, in parts: missing parts are computed and written. Images that
    are unreadable have their rows. Raises ValueError if the folder holds other answers."""
    # What cannot be done is refused before the model is loaded
    check_answering(settings)
    shard, shards = shard_of(settings.shard)
    if not all(isinstance(image, str) for image in settings.images):
        raise BadSettings("this goes on where it ended, so it takes names, and no images in memory")
    if tuple(settings.images) == (INPUT,):
        raise BadSettings(
            "this goes on where it ended, so it takes no names from the standard input"
        )
    check_folder("`into`", settings.into, settings.images)

    # What there is to do
    runtime = runtime_of(settings, in_batches=True)
    items = images_of(settings, runtime.labels)
    parts = Parts.begin(settings.into, items, runtime, settings.top, _less(settings, runtime))
    missing = parts.missing(shard, shards)
    chosen = Chosen.of(items, parts, missing)

    # Do it
    progress = ImageCounter(len(chosen))
    batches = from_sequence(chosen, runtime.preprocessing, BATCH, settings.workers)
    with closing(answers(runtime, batches, settings.top)) as answered:
        for predictions in write_parts(parts, missing, answered):
            unreadable = [each.error for each in predictions if each.error is not None]
            progress.count(len(predictions), len(unreadable))
    progress.wipe()
    still = len(parts.missing())
    rows = 0
    unreadable = progress.unreadable
    if not still:
        rows, unreadable = parts.finish()
    summary = progress.summary() if progress.done else ""
    return BatchState(
        settings, len(missing), summary, len(parts), still, len(items), rows, unreadable
    )


def shard_of(text: str) -> tuple[int, int]:
    """The number of this process, from 0, and the number of processes: from --shard, or from
    torchrun."""
    rank = int(os.environ.get("RANK", 0))
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if not text:
        return rank, ranks
    shard = read_shard(text)
    if ranks > 1:
        raise BadSettings(f"`shard` is {text}, but torchrun has {ranks} processes; leave it out")
    return shard


def _less(settings: Batch, runtime: Runtime) -> str:
    """What work is left out, so that a folder has answers of one kind."""
    if settings.exit:
        return f"--exit {settings.exit:g} --calibrate {settings.calibrate}"
    merge = settings.merge
    if isinstance(runtime, FileRuntime):
        merge = runtime.exported.merged
    if merge:
        return f"--merge {merge}"
    return ""
