"""`vitkit batch`: predictions for millions of images, in parts, by several processes that may be
killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from vitkit.apps.batch.parts import Chosen, PartFolder, write_parts
from vitkit.prediction import (
    BATCH,
    INPUT,
    Answering,
    ImageCounter,
    Request,
    images_of,
    request,
    runtime_of,
)
from vitkit.prediction.batches import from_sequence
from vitkit.prediction.items import Pictures
from vitkit.prediction.predictions import answers
from vitkit.runtimes import FileRuntime, Runtime
from vitkit.system.console.text import as_word, counted
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import check_folder, read_shard, status_of
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import in_a_program
from vitkit.system.functions.types import DataLike, PathLike
from vitkit.weights import ModelLike


@dataclass(frozen=True, repr=False)
class BatchState(Rows):
    """The state of a folder of predictions."""

    path: Path
    """The folder."""
    shard: str
    """Shard of this process, such as 1/4; "" for a single process."""
    written: int
    """Number of parts that this process wrote."""
    summary: str
    """Number of images and duration of this process; "" if there was nothing to do."""
    parts: int
    """Number of parts of the complete folder."""
    missing: int
    """Number of parts that do not exist yet."""
    images: int
    rows_written: int
    """Number of rows in the complete folder; 0 until it is complete."""
    unreadable: int
    """Number of unreadable images: of the complete folder, or, until it is complete, of the parts
    that this process wrote."""
    ok_if_unreadable: bool = False
    """Whether the exit status is 0 even if images could not be read."""

    @property
    def status(self) -> int:
        """The exit status of the command: 3 if images could not be read. It is 0 for processes of
        torchrun, which would restart them otherwise."""
        ok = self.ok_if_unreadable or int(os.environ.get("WORLD_SIZE", 1)) > 1
        return status_of(self.unreadable, ok)

    def rows(self) -> list[dict]:
        """One row per image, from all existing parts."""
        import pyarrow.parquet as pq

        return pq.read_table(self.path).to_pylist()

    def shown(self) -> Iterator[str]:
        """The output: the written parts, and the missing ones."""
        done = counted(self.written, "part")
        if self.summary:
            done += f", {self.summary}"
        yield f"wrote {done}"
        if self.missing:
            again = "the same command"
            if self.shard:
                again += " without `shard`"
            yield f"still missing in {self.path}: {self.missing:,} of {counted(self.parts, 'part')}"
            yield f"next: when the other processes have ended, {again} does what is missing"
            return
        rows = counted(self.rows_written, "row")
        whole = f"{self.path} is whole: {rows} for {counted(self.images, 'image')}"
        if self.unreadable:
            whole += f", {self.unreadable:,} of them not classified: column error says why"
        yield whole
        code = f"import pyarrow.parquet as pq; pq.read_table({str(self.path)!r})"
        if not in_a_program():
            code = f"python -c {as_word(code.replace('pq.read', 'print(pq.read') + ')')}"
        yield f"next: {code}"


@public
def batch(
    model: ModelLike,
    *images: DataLike,
    into: PathLike = Path("answers"),
    shard: str = "",
    **answering: Unpack[Answering],
) -> BatchState:
    """Classify very many images, and write the answers to a folder, as parquet files of some thousand
    rows. The same command continues after any interruption, and several processes can share the work,
    with torchrun or `shard`.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), the name of a published model, or a file of `vitkit.export`
            (.onnx or .xml).
        images: Image files, folders of images, patterns ('**/*.jpg'), web addresses, data sets (their
            test part), or digits.
        into: Folder for the parquet files.
        shard: Which of several processes this is: 1/4 to 4/4.
        **answering: How images are answered: `Answering`.

    Raises:
        BadSettings: If settings do not go together.
        BadData: If `into` holds the answers to other images or of another model.
    """
    # Checks before the model is loaded
    asked = request(model, images, answering)
    part, processes = shard_of(shard)
    if images == (INPUT,):
        raise BadSettings(
            "this goes on where it ended, so it takes no names from the standard input"
        )
    check_folder("`into`", into, images)

    # The missing parts
    runtime = runtime_of(asked, in_batches=True)
    items = images_of(asked, runtime.labels)
    assert isinstance(items, Pictures)  # streams of names are refused above
    parts = PartFolder.begin(into, items, runtime, asked.top, _less(asked, runtime))
    missing = parts.missing(part, processes)
    chosen = Chosen.of(items, parts, missing)

    # Compute and write the parts
    progress = ImageCounter(len(chosen))
    batches = from_sequence(chosen, runtime.preprocessing, BATCH, asked.workers)
    with closing(answers(runtime, batches, asked.top)) as answered:
        for predictions in write_parts(parts, missing, answered):
            unreadable = [each.error for each in predictions if each.error is not None]
            progress.count(len(predictions), len(unreadable))
    progress.wipe()
    still = len(parts.missing())
    rows = 0
    not_read = progress.unreadable
    if not still:
        rows, not_read = parts.finish()
    summary = progress.summary() if progress.done else ""
    return BatchState(
        path=into,
        shard=shard,
        written=len(missing),
        summary=summary,
        parts=len(parts),
        missing=still,
        images=len(items),
        rows_written=rows,
        unreadable=not_read,
        ok_if_unreadable=asked.ok_if_unreadable,
    )


def shard_of(text: str) -> tuple[int, int]:
    """The index of this process, from 0, and the number of processes: from --shard, or from
    torchrun."""
    rank = int(os.environ.get("RANK", 0))
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if not text:
        return rank, ranks
    shard = read_shard(text)
    if ranks > 1:
        raise BadSettings(f"`shard` is {text}, but torchrun has {ranks} processes; leave it out")
    return shard


def _less(settings: Request, runtime: Runtime) -> str:
    """The approximation that is used, since a folder may only hold predictions of one kind."""
    if settings.exit:
        return f"--exit {settings.exit:g} --calibrate {settings.calibrate}"
    merge = settings.merge
    if isinstance(runtime, FileRuntime):
        merge = runtime.exported.merged
    if merge:
        return f"--merge {merge}"
    return ""
