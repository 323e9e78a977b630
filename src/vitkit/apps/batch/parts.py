"""Predictions for millions of images as a folder of parquet files, one per part of the images. Each
part is written atomically, so a killed process loses only the part it was computing, and the next
process continues.

    parts = Parts.begin(Path("answers"), items, runtime, top=5)
    for part in parts.missing(shard=0, shards=4):
        parts.write(part, predictions_of_its_images)

A part contains consecutive images and is determined by their order alone. So processes need no
communication: process i of n computes every n-th part, and the number of processes may change
between calls. `_answers.json` beside the parts identifies the images, the model and the runtime; a
call with others is refused.
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

SIZE = 4096  # images per part
ABOUT = "_answers.json"  # readers of parquet folders skip names that begin with an underscore
SAME = 0.1  # largest difference, in standard deviations of the outputs, in folders without a model digest


@dataclass(frozen=True, eq=False)
class PartFolder:
    """A folder of predictions, some parts of which may exist."""

    folder: Path
    count: int
    """Images."""
    size: int
    """Number of images per part; the last one may have fewer."""
    top: int
    extra: tuple[str, ...]
    """Columns in addition to those of every model's predictions."""
    about: dict
    """Identity of the images, the model and the runtime, as in `_answers.json`."""

    @classmethod
    def begin(
        cls, folder: Path, items: Pictures, runtime: Runtime, top: int, less: str = ""
    ) -> "PartFolder":
        """Begin the parts of these images in a new folder, or continue those of an earlier call.

        less: the approximation, such as "--merge 8".

        A folder of an earlier version has no digest of its model. A model with nearly the same
        outputs for noise continues it, with a log message; a model after a few more steps of
        training would too.

        Raises VitkitError if the folder has predictions for other images, of another model, or
        computed by another runtime.
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
        if not file.exists():  # it is written before any part
            if others:
                raise BadRun(
                    f"{folder} holds other files; give a folder that is empty or does not exist yet"
                )
            write_whole(
                file, json.dumps(about).encode()
            )  # several processes may write it, all with the same content
        before = _read(file)
        _check_same_images(folder, before, about)
        if "model" in before:
            _check_same_model(folder, before, identity)
        else:
            _check_outputs_for_noise(folder, before, about["labels"], runtime)
        extra: tuple[str, ...] = ()
        if least_open(runtime) is not None:
            extra = ("unknown", "possible")
        return cls(folder, len(items), before["size"], about["top"], extra, before)

    def __len__(self) -> int:
        """Number of parts of the complete folder."""
        return -(-self.count // self.size)

    def path(self, part: int) -> Path:
        """The path of a part. File names sort in the order of the images."""
        return self.folder / f"part-{part:07}.parquet"

    def rows(self, part: int) -> range:
        """The indices of a part's images."""
        return range(part * self.size, min((part + 1) * self.size, self.count))

    def missing(self, shard: int = 0, shards: int = 1) -> list[int]:
        """The missing parts of one process: shard is from 0 to shards - 1."""
        return [part for part in range(shard, len(self), shards) if not self._is_there(part)]

    def _is_there(self, part: int) -> bool:
        """Whether a part exists and is not empty: other programs leave empty files on a full disk."""
        path = self.path(part)
        return path.exists() and path.stat().st_size > 0

    def write(self, part: int, predictions: Sequence[Prediction]) -> None:
        """Write a part atomically. Raises OSError, and VitkitError if the folder now belongs to
        another process: if two begin it at the same moment with different models, only one can
        continue."""
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
        """Complete the folder: remove temporary files of killed processes, and return the numbers
        of rows and of unreadable images. Raises VitkitError, with its name, for a damaged part."""
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
    """The images of some parts, concatenated. Picklable, because it is sent to worker processes."""

    items: Sequence[Item]
    numbers: np.ndarray
    """int64: indices into `items`."""

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
        """Image i, from 0, or the images of a slice."""
        if isinstance(i, slice):
            return Chosen(self.items, self.numbers[i])
        return self.items[int(self.numbers[i])]


def write_parts(
    parts: PartFolder, missing: Sequence[int], answered: Iterable[Answered]
) -> Iterator[list[Prediction]]:
    """Write parts as their predictions arrive, in batches, in order. Yields the predictions of each
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


# The identity of the predictions


def digest_of(items: Pictures) -> str:
    """A digest of the images' names and order; for a data set, of its fingerprint."""
    digest = hashlib.sha256()
    for group in items.groups:
        if isinstance(group, FileNames):
            digest.update(group.names.block)
            digest.update(group.names.ends.tobytes())
        elif isinstance(group, DataSetItems):
            digest.update(fingerprint(group.source).encode())
    return digest.hexdigest()


def _read(file: Path) -> dict:
    """The content of `_answers.json`. Raises VitkitError if the file is damaged."""
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
    """Raises VitkitError if the existing parts are for other images, or of another kind."""
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
    if "model" not in before:  # an earlier version, which did not record the calibration images
        less = less.partition(" --calibrate ")[0]
    if before.get("less", "") != less:
        raise BadRun(
            f"{folder} holds answers {_approximation_text(before.get('less', ''))}, and these would be "
            f"{_approximation_text(about['less'])}; give another folder"
        )


def _check_same_model(folder: Path, before: dict, identity: Identity) -> None:
    """Raises VitkitError if the existing parts are from another model, or from another
    runtime."""
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


def _check_outputs_for_noise(folder: Path, before: dict, labels: str, runtime: Runtime) -> None:
    """Check parts of an earlier version, which recorded the model's outputs for noise instead of a
    digest. Raises VitkitError if the outputs clearly differ."""
    old = np.array(before["outputs"])
    new = _logits_of_noise(runtime)
    is_same = before["labels"] == labels and old.shape == new.shape
    if not is_same or np.abs(old - new).max() > SAME * max(old.std(), 1e-3):
        raise BadRun(f"{folder} holds the answers of another model; give another folder")
    say(
        f"{folder} was begun by an earlier version of vitkit, which kept no digest of its model, so a "
        "model after a few more steps of training would not be noticed; give a new folder to be sure"
    )


def _approximation_text(less: str) -> str:
    """The approximation as part of a sentence."""
    if less:
        return f"with {less}"
    return "of the whole model"


def _logits_of_noise(runtime: Runtime) -> np.ndarray:
    """The model's logits for a fixed image of noise, (K,), by which an earlier version recognised a
    model."""
    preprocessing = runtime.preprocessing
    noise = np.random.default_rng(0).integers(0, 256, (1, *preprocessing.shape), dtype=np.uint8)
    logits = runtime.logits(noise.astype(preprocessing.dtype))
    return logits[0].astype(np.float64)
