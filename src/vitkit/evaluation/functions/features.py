"""`vitkit.features`: the features of images, written to a file for other programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Unpack

import numpy as np

from vitkit.data import Columns, Source, part_of
from vitkit.evaluation.benchmarks.named import SetName
from vitkit.evaluation.probes.features import WRITERS
from vitkit.evaluation.probes.features import compute_features as features_of
from vitkit.evaluation.sources import loaded_for_features, parts_of, without_broken
from vitkit.runtimes import RuntimeName, features_on
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import name_of, pick_precision
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import step
from vitkit.system.functions.types import DataLike, DeviceLike, PathLike
from vitkit.system.machine import PrecisionChoice, autocast
from vitkit.system.processes.ranks import from_rank_0, process_group
from vitkit.system.storage.addresses import shown_address
from vitkit.system.storage.files import MARK, check_replaceable
from vitkit.weights import ModelLike, Overrides, hints_of


@dataclass(frozen=True, eq=False, repr=False)
class WrittenFeatures(Rows):
    """The features of a data set's images, in memory and in a file."""

    path: Path
    """The file of features."""
    sources: dict[str, Source]
    """The images of each part."""
    features: dict[str, np.ndarray]
    """The features of each part's images, in their order: float32 (N, D)."""
    following: str
    """The call that fits a head to the features."""

    def rows(self) -> list[dict]:
        """A row for each image: its part, name, label and features."""
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
        count = sum(map(len, self.sources.values()))
        width = next(iter(self.features.values())).shape[1]
        yield f"wrote {self.path}: {counted(count, 'image')}, {width:,} features each"
        if next(iter(self.sources.values())).target_kind == "class":
            yield f"next: {self.following}, a classifier in seconds"


@public
def features(
    model: ModelLike,
    data: DataLike,
    *,
    output: PathLike = Path("features.parquet"),
    split: Literal["train", "val", "test"] | None = None,
    named: SetName | None = None,
    columns: Columns = Columns(),
    on_bad_image: Literal["fail", "skip"] = "fail",
    runtime: RuntimeName = "auto",
    precision: PrecisionChoice = "auto",
    device: DeviceLike = "auto",
    **overrides: Unpack[Overrides],
) -> WrittenFeatures:
    """Write the features of images to a file: the vectors that the head of a model reads, for
    search, clustering, or training something else. Each image is one row. vitkit caches features
    for the next time and for other commands.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        data: A folder, a manifest, parquet files, tar shards, an address (https://, s3://, gs://),
            hf:NAME on the Hugging Face hub, file.py:function, or digits.
        output: File to write: .parquet, or .npz for numpy.
        split: Part of the data. Default: all parts, and a column names the part.
        named: Name of DATA, if it is ImageNet or one of its relatives, which determines the classes of
            its folders (docs/evaluation.md).
        columns: Columns of a table that hold the image and its label. Default: found by their usual
            names.
        on_bad_image: What to do with a broken image: stop, or skip it and print its name.
        runtime: Library that computes the features: torch, compiled, onnx (ONNX Runtime) or openvino.
            auto is PyTorch.
        precision: Arithmetic of the matrix products. auto is bfloat16 if the CPU or GPU has
            instructions for it.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        **overrides: What the caller says about the model, and where messages go: `Overrides`.

    Raises:
        BadSettings: If `output` is of another kind, or is a file that vitkit has not written.
        BadData: If the images cannot be read.
    """
    if output.suffix not in WRITERS:
        raise BadSettings(
            f"`output` is {output}; give the name of a file that ends in {' or '.join(WRITERS)}"
        )
    check_replaceable(output)
    with process_group(device) as opened:
        classifier = loaded_for_features(model, hints_of(overrides), opened)
        sources = parts_of(data, columns, named).sources
        if split:
            sources = {split: part_of(sources, split, data)}
        if on_bad_image == "skip":
            sources = {name: without_broken(source) for name, source in sources.items()}
        parts = {}
        arithmetic = pick_precision(precision, opened)
        if runtime not in ("auto", "torch"):
            classifier = features_on(classifier, runtime, arithmetic)
        with autocast(opened, arithmetic):
            for name, source in sources.items():
                parts[name] = (source, features_of(classifier, source).x)

        # The file's metadata says how the features were computed
        facts = {
            "made": MARK,
            "model": name_of(model),
            "data": shown_address(data),
            "preprocessing": str(classifier.preprocessing),
            "precision": arithmetic,
            "runtime": runtime,
        }
        from_rank_0(lambda: _write(output, parts, facts))
    found = {name: x for name, (_, x) in parts.items()}
    following = step("probe", model, data, named=named, columns=columns)
    return WrittenFeatures(output, sources, found, following)


def _write(output: Path, parts: dict[str, tuple[Source, np.ndarray]], facts: dict) -> None:
    """Write the file, and create its folder if necessary."""
    output.resolve().parent.mkdir(parents=True, exist_ok=True)
    WRITERS[output.suffix](output.resolve(), parts, facts)
