"""Answers to millions of images as a folder of parquet files, a part of the images in each: whoever
computes a part writes it whole or not at all, so a process that is killed loses what it was at, and
the next one goes on.

    parts = Parts.begin(Path("answers"), items, runtime, top=5)
    for part in parts.missing(shard=0, shards=4):
        parts.write(part, predictions_of_its_images)

The images of a part are neighbours, and which part they are in follows from their order alone. So
processes need not know of each other: each computes every so manieth part, and there may be more or
fewer of them the next time. `_answers.json` beside the parts says of what images they are, of which
model, and what computed it; others are refused.
"""

import hashlib
import io
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy as np

from vitkit.data import fingerprint
from vitkit.prediction import DataSetItems, Item, Prediction
from vitkit.prediction.items import FileNames, Pictures
from vitkit.prediction.predictions import Answered, least_open
from vitkit.prediction.rows import ParquetWriter
from vitkit.runtimes import Runtime, identity_of
from vitkit.runtimes.identity import Identity
from vitkit.system.console.messages import say
from vitkit.system.errors import BadRun
from vitkit.system.storage.files import MARK, parse_json, remove_unfinished, write_whole

SIZE = 4096  # images of a part
ABOUT = "_answers.json"  # what reads a folder of parquet leaves such names out
SAME = 0.1  # of the outputs' deviation, in folders that have no digest of their model


@dataclass(frozen=True, eq=False)
class PartFolder:
    """A folder of answers, some of which may be there."""

    folder: Path
    count: int
    """Images."""
    size: int
    """Images of a part; the last one may have fewer."""
    top: int
    extra: tuple[str, ...]
    """Columns beside those that every model's answers have."""
    about: dict
    """What the parts are of, as the folder says it."""

    @classmethod
    def begin(
        cls, folder: Path, items: Pictures, runtime: Runtime, top: int, less: str = ""
    ) -> "PartFolder":
        """Begin the parts of these images in a new folder, or continue those of an earlier call.

        less: what work is left out, such as "--merge 8".

        A folder of an earlier version has no digest of its model. It is gone on with by a model that
        makes nearly the same of noise, which is said: a model a few steps away does so too.

        Raises VitkitError if the folder has answers to other images, of another model, or computed by
        something else.
        """
        identity = identity_of(runtime)
        about: dict[str, Any] = {
            "made": MARK,
            "count": len(items),
            "images": digest_of(items),
            "top": min(top, len(runtime.labels)),
            "labels": hashlib.sha256(json.dumps(runtime.labels).encode()).hexdigest(),
            "size": SIZE,
            "model": identity.model,
            "computed": identity.computed,
            "less": less,
        }
        file = folder / ABOUT
        folder.mkdir(parents=True, exist_ok=True)
        others = [path for path in folder.iterdir() if not path.name.startswith(ABOUT)]
        if not file.exists():  # it is written before any part, so the other files are listed first
            if others:
                raise BadRun(
                    f"{folder} holds other files; give a folder that is empty or does not exist yet"
                )
            write_whole(
                file, json.dumps(about).encode()
            )  # several processes may: they write the same
        before = _read(file)
        _check_same_images(folder, before, about)
        if "model" in before:
            _check_same_model(folder, before, identity)
        else:
            _check_alike(folder, before, about["labels"], runtime)
        extra: tuple[str, ...] = ()
        if least_open(runtime) is not None:
            extra = ("unknown", "possible")
        return cls(folder, len(items), before["size"], about["top"], extra, before)

    def __len__(self) -> int:
        """How many there are when all are there."""
        return -(-self.count // self.size)

    def path(self, part: int) -> Path:
        """The file of a part; their names sort as the images do."""
        return self.folder / f"part-{part:07}.parquet"

    def rows(self, part: int) -> range:
        """The numbers of a part's images."""
        return range(part * self.size, min((part + 1) * self.size, self.count))

    def missing(self, shard: int = 0, shards: int = 1) -> list[int]:
        """The missing parts among those that a process has to do: shard 0 to shards - 1."""
        return [part for part in range(shard, len(self), shards) if not self._is_there(part)]

    def _is_there(self, part: int) -> bool:
        """An empty file is none: what somebody else made of a full disk."""
        path = self.path(part)
        return path.exists() and path.stat().st_size > 0

    def write(self, part: int, predictions: Sequence[Prediction]) -> None:
        """Write a part, completely or not at all. Raises OSError, and VitkitError if the folder
        has become another's: of two that began it at the same moment, with different models, one
        goes on."""
        assert len(predictions) == len(self.rows(part))
        if _read(self.folder / ABOUT) != self.about:
            raise BadRun(
                f"{self.folder} was begun by another process at the same moment, with another model, "
                "runtime or precision; give another folder"
            )
        file = io.BytesIO()
        rows = ParquetWriter(file, self.top, self.extra)
        rows.write(predictions, [{}] * len(predictions))
        rows.close()
        write_whole(self.path(part), file.getvalue())

    def finish(self) -> tuple[int, int]:
        """All parts are there: remove what killed processes had begun, and count the rows, and those of
        images that could not be read. Raises VitkitError, with its name, for a part that is damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        remove_unfinished(self.folder)
        rows = 0
        unreadable = 0
        for part in range(len(self)):
            path = self.path(part)
            again = "remove it, and the same command computes it again"
            try:
                errors = pq.read_table(path, columns=["error"])["error"]
            except (pa.ArrowException, OSError, KeyError) as error:
                reason = str(error).splitlines()[0]
                raise BadRun(f"{path} is damaged: {reason}; {again}") from error
            if len(errors) != len(self.rows(part)):
                raise BadRun(
                    f"{path} has {len(errors):,} rows, and its images are "
                    f"{len(self.rows(part)):,}; {again}"
                )
            rows += len(errors)
            unreadable += len(errors) - errors.null_count
        return rows, unreadable


@dataclass(frozen=True, eq=False)
class Chosen(Sequence[Item]):
    """The images of some parts, one part after the other. It travels to worker processes."""

    items: Sequence[Item]
    numbers: np.ndarray
    """int64: which of the items they are."""

    @classmethod
    def of(cls, items: Sequence[Item], parts: PartFolder, numbers: Iterable[int]) -> "Chosen":
        """The images of the parts with these numbers."""
        rows = chain.from_iterable(parts.rows(part) for part in numbers)
        return cls(items, np.fromiter(rows, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, i: int) -> Item: ...
    @overload
    def __getitem__(self, i: slice) -> "Chosen": ...
    def __getitem__(self, i: int | slice) -> "Item | Chosen":
        """Image i, from 0, or those of a slice."""
        if isinstance(i, slice):
            return Chosen(self.items, self.numbers[i])
        return self.items[int(self.numbers[i])]


def write_parts(
    parts: PartFolder, missing: Sequence[int], answered: Iterable[Answered]
) -> Iterator[list[Prediction]]:
    """Write parts as their answers come, in batches, in order. Yields the predictions of each
    batch."""
    waiting: list[Prediction] = []
    numbers = deque(missing)
    for batch in answered:
        waiting += batch.predictions
        while numbers and len(waiting) >= len(parts.rows(numbers[0])):
            part = numbers.popleft()
            count = len(parts.rows(part))
            parts.write(part, waiting[:count])
            waiting = waiting[count:]
        yield batch.predictions
    assert not waiting and not numbers


# What the answers are of


def digest_of(items: Pictures) -> str:
    """A digest of the images' names and order; of a data set's, of its fingerprint."""
    digest = hashlib.sha256()
    for group in items.groups:
        if isinstance(group, FileNames):
            digest.update(group.names.block)
            digest.update(group.names.ends.tobytes())
        elif isinstance(group, DataSetItems):
            digest.update(fingerprint(group.source).encode())
    return digest.hexdigest()


def _read(file: Path) -> dict:
    """What the parts are of. Raises VitkitError if the file is damaged."""
    try:
        about = parse_json(file.read_text())
        count = about["count"]
        numbers = (count, about["size"], about["top"])
        if "model" in about:
            outputs = np.zeros(0)
            is_text = isinstance(about["model"], str) and isinstance(about["computed"], str)
        else:
            outputs = np.array(about["outputs"], dtype=np.float64)
            is_text = True
    except (ValueError, KeyError, TypeError) as error:
        raise BadRun(f"{file} is damaged: {error}; begin in another folder") from error
    are_counts = all(isinstance(number, int) and number > 0 for number in numbers)
    if not are_counts or not is_text or outputs.ndim != 1:
        raise BadRun(f"{file} is damaged; begin in another folder")
    return about


def _check_same_images(folder: Path, before: dict, about: dict) -> None:
    """Raises VitkitError if the parts that are there are answers to other images, or of another kind."""
    if before["count"] != about["count"]:
        raise BadRun(
            f"{folder} holds the answers to {before['count']:,} images, and these are "
            f"{about['count']:,}; give another folder"
        )
    if before["images"] != about["images"]:
        raise BadRun(
            f"{folder} holds the answers to other images, or in another order; give another folder"
        )
    if before["top"] != about["top"]:
        raise BadRun(f"{folder} names {before['top']} classes; `top` is {about['top']}")
    less = about["less"]
    if "model" not in before:  # of an earlier version, which did not keep what exits were fitted on
        less = less.partition(" --calibrate ")[0]
    if before.get("less", "") != less:
        raise BadRun(
            f"{folder} holds answers {_with(before.get('less', ''))}, and these would be "
            f"{_with(about['less'])}; give another folder"
        )


def _check_same_model(folder: Path, before: dict, identity: Identity) -> None:
    """Raises VitkitError if the parts that are there are of another model, or computed by something
    else."""
    if before["computed"] == identity.computed:
        if before["model"] != identity.model:
            raise BadRun(
                f"{folder} holds the answers of another model: its weights, preprocessing or labels "
                "differ, or the bytes of its exported file; give another folder"
            )
        return
    if before["model"] == identity.model:
        of = "of this model"
    else:
        of = "of another model, or of another format of it,"
    raise BadRun(
        f"{folder} holds answers {of} that {before['computed']} computed, and these would be by "
        f"{identity.computed}, which differ a little even for the same weights; give the model, "
        "`runtime` and `precision` that the folder was begun with, or another folder"
    )


def _check_alike(folder: Path, before: dict, labels: str, runtime: Runtime) -> None:
    """The same for parts of an earlier version, which has kept what the model makes of noise. Raises
    VitkitError if that is clearly something else."""
    old = np.array(before["outputs"])
    new = _logits_of_noise(runtime)
    is_same = before["labels"] == labels and old.shape == new.shape
    if not is_same or np.abs(old - new).max() > SAME * max(old.std(), 1e-3):
        raise BadRun(f"{folder} holds the answers of another model; give another folder")
    say(
        f"{folder} was begun by an earlier version of vitkit, which kept no digest of its model, so a "
        "model a few steps of training away is taken for the same; a new folder tells them apart"
    )


def _with(less: str) -> str:
    """How answers were made, for a sentence."""
    if less:
        return f"with {less}"
    return "of the whole model"


def _logits_of_noise(runtime: Runtime) -> np.ndarray:
    """The model's logits of an image of noise, which is always the same, (K,): by them another model is
    noticed."""
    preprocessing = runtime.preprocessing
    noise = np.random.default_rng(0).integers(0, 256, (1, *preprocessing.shape), dtype=np.uint8)
    logits = runtime.logits(noise.astype(preprocessing.dtype))
    return logits[0].astype(np.float64)
