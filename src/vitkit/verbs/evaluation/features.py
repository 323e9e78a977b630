"""What a model's head reads of every image, as a file for other programs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from tyro.conf import arg

from vitkit.data import Columns, Source, part_of
from vitkit.evaluation import WRITERS
from vitkit.evaluation import features as features_of
from vitkit.exporting import features_on
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import from_rank_0, process_group
from vitkit.system.storage.addresses import shown_address
from vitkit.system.storage.files import MARK, check_replaceable
from vitkit.verbs.arguments import (
    Data,
    DataColumns,
    Device,
    Model,
    ModelHints,
    OnBadImage,
    Precision,
    Runtime,
    name_of,
    pick_precision,
)
from vitkit.verbs.definition import result, verb
from vitkit.verbs.sources import As, as_words, loaded_for_features, parts_of, without_broken
from vitkit.weights import Hints


@dataclass(frozen=True)
class WriteFeatures:
    """Write the features of images to a file: the vectors that the head of a model reads, for
    search, clustering, or training something else. Each image is one row. vitkit caches features
    for the next time and for other commands."""

    model: Model
    data: Data
    output: Annotated[Path, arg(aliases=["-o"])] = Path("features.parquet")
    """File to write: .parquet, or .npz for numpy."""
    split: Literal["train", "val", "test"] | None = None
    """Part of the data. Default: all parts, and a column names the part."""
    named: As = None
    columns: DataColumns = field(default_factory=Columns)
    on_bad_image: OnBadImage = "fail"
    runtime: Runtime = "auto"
    precision: Precision = "auto"
    device: Device = "auto"
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True, eq=False)
class WrittenFeatures:
    """The features of a data set's images, in memory and in a file."""

    settings: WriteFeatures
    sources: dict[str, Source]
    """The images, by part."""
    features: dict[str, np.ndarray]
    """float32 (N, D) for each part: what the head reads of its images, in their order."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.settings.output

    def rows(self) -> list[dict]:
        """A row for each image: its part, name, answer and features."""
        rows = []
        for part, source in self.sources.items():
            for i, x in enumerate(self.features[part]):
                row = {
                    "part": part,
                    "name": source.name(i),
                    "label": source.answer(i),
                    "features": x,
                }
                rows.append(row)
        return rows

    def shown(self) -> Iterator[str]:
        """A sentence on the file that was written, and the next command."""
        settings = self.settings
        count = sum(map(len, self.sources.values()))
        width = next(iter(self.features.values())).shape[1]
        yield f"wrote {settings.output}: {counted(count, 'image')}, {width:,} features each"
        if next(iter(self.sources.values())).target_kind == "class":
            words = as_words(settings.model, settings.data, settings.named)
            yield f"next: vitkit probe {words}, a classifier in seconds"


@verb
def features(settings: WriteFeatures) -> WrittenFeatures:
    """Compute what the head of a model reads of every image, once, and write it to a file.

    Raises ValueError for a file of another kind, and, before anything is computed, for one that is
    somebody else's.
    """
    output = settings.output
    if output.suffix not in WRITERS:
        raise BadSettings(
            f"`output` is {output}; give the name of a file that ends in {' or '.join(WRITERS)}"
        )
    check_replaceable(output)
    with process_group(settings.device) as device:
        classifier = loaded_for_features(settings.model, settings.hints, device)
        sources = parts_of(settings.data, settings.columns, settings.named).sources
        if settings.split:
            sources = {settings.split: part_of(sources, settings.split, settings.data)}
        if settings.on_bad_image == "skip":
            sources = {name: without_broken(source) for name, source in sources.items()}
        parts = {}
        precision = pick_precision(settings.precision, device)
        if settings.runtime not in ("auto", "torch"):
            classifier = features_on(classifier, settings.runtime, precision)
        with autocast(device, precision):
            for name, source in sources.items():
                parts[name] = (source, features_of(classifier, source).x)

        # Where they come from goes with them
        facts = {
            "made": MARK,
            "model": name_of(settings.model),
            "data": shown_address(str(settings.data)),
            "preprocessing": str(classifier.preprocessing),
            "precision": precision,
            "runtime": settings.runtime,
        }
        from_rank_0(lambda: _write(output, parts, facts))
    return WrittenFeatures(settings, sources, {name: x for name, (_, x) in parts.items()})


def _write(output: Path, parts: dict[str, tuple[Source, np.ndarray]], facts: dict) -> None:
    """Write the file, and the folders that it lies in."""
    output.resolve().parent.mkdir(parents=True, exist_ok=True)
    WRITERS[output.suffix](output.resolve(), parts, facts)
