"""`vitkit predict --parts`: the answers to millions of images, by several processes, any of which may
be killed."""

import os
from contextlib import closing
from typing import TYPE_CHECKING

from vitkit.commands.predict_progress import Progress
from vitkit.verbs import read_shard
from vitkit.runtimes import FileRuntime
from vitkit.system.console.text import as_word, counted

if TYPE_CHECKING:
    from vitkit.commands.predict import Predict
    from vitkit.prediction import Pictures
    from vitkit.runtimes import Runtime


def check_parts(command: "Predict") -> None:
    """Raises ValueError for settings that do not go with --parts, or without."""
    if command.parts is None:
        if command.shard:
            raise ValueError(
                f"--shard {command.shard} needs --parts FOLDER, which the shards share"
            )
        return
    shard_of(command.shard)
    others = {
        "--to": command.to,
        "--sort-into": command.sort_into,
        "--attention": command.attention,
        "--sheet": command.sheet,
        "--watch": command.watch,
        "--json": command.json,
        "--limit": command.limit,
    }
    given = [name for name, value in others.items() if value]
    if given:
        raise ValueError(f"--parts writes all answers into a folder; leave out {given[0]}")
    if command.images == ("-",):
        raise ValueError(
            "--parts goes on where it ended, so it takes no names from the standard input"
        )
    if command.parts.exists() and not command.parts.is_dir():
        raise ValueError(f"--parts is {command.parts}, which is a file; give a folder")


def shard_of(text: str) -> tuple[int, int]:
    """Which process this is, from 0, and of how many: by --shard, or by torchrun."""
    rank = int(os.environ.get("RANK", 0))
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if not text:
        return rank, ranks
    shard = read_shard(text)
    if ranks > 1:
        raise ValueError(f"--shard is {text}, but torchrun has {ranks} processes; leave it out")
    return shard


def predict_parts(command: "Predict", runtime: "Runtime", items: "Pictures") -> int:
    """Compute and write the parts of this process that are not there. Returns 0, also if images were
    unreadable: they have their rows, and torchrun would take another status for a failure."""
    from vitkit.prediction import BATCH, Chosen, Parts, answers, from_sequence, write_parts

    # What there is to do
    shard, shards = shard_of(command.shard)
    parts = Parts.begin(command.parts, items, runtime, command.top, _less(command, runtime))
    missing = parts.missing(shard, shards)
    chosen = Chosen.of(items, parts, missing)

    # Do it
    progress = Progress(len(chosen))
    batches = from_sequence(chosen, runtime.preprocessing, BATCH, command.workers)
    with closing(answers(runtime, batches, command.top)) as answered:
        for predictions in write_parts(parts, missing, answered):
            unreadable = [each.error for each in predictions if each.error is not None]
            progress.count(len(predictions), len(unreadable))
    progress.wipe()

    # Say what is there
    done = counted(len(missing), "part")
    if progress.done:
        done += f", {progress.summary()}"
    print(f"wrote {done}")
    still = len(parts.missing())
    if still:
        again = "the same command"
        if command.shard:
            again += " without --shard"
        print(f"still missing in {command.parts}: {still:,} of {counted(len(parts), 'part')}")
        print(f"next: when the other processes have ended, {again} does what is missing")
        return 0
    rows = parts.finish()
    print(f"{command.parts} is whole: {counted(rows, 'row')} for {counted(len(items), 'image')}")
    print(
        'next: python -c "import pyarrow.parquet as pq; '
        f"print(pq.read_table('{as_word(command.parts)}'))\""
    )
    return 0


def _less(command: "Predict", runtime: "Runtime") -> str:
    """What work is left out, so that a folder has answers of one kind."""
    if command.exit:
        return f"--exit {command.exit:g}"
    merge = command.merge
    if isinstance(runtime, FileRuntime):
        merge = runtime.exported.merged
    if merge:
        return f"--merge {merge}"
    return ""
