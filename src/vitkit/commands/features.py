"""`vitkit features`: what a model's head reads of every image, as a file for other programs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from vitkit.data import Columns
from vitkit.system.console.text import counted
from vitkit.verbs import (
    As,
    Data,
    DataColumns,
    Device,
    Model,
    ModelHints,
    OnBadImage,
    Precision,
    Runtime,
    as_words,
    loaded_for_features,
    parts_of,
    pick_precision,
    without_broken,
)
from vitkit.weights import Hints


@dataclass
class WriteFeatures:
    """Write the features of images, what the head of a model reads of them, to a file: to search,
    to cluster, or to train something else on. Each image is one row. What was computed stays in the
    cache, for the next time and for other commands."""

    model: Model
    data: Data
    output: Annotated[Path, arg(aliases=["-o"])] = Path("features.parquet")
    """File to write: .parquet, or .npz for numpy."""
    split: Literal["train", "val", "test"] | None = None
    """Part of the data. Default: all parts, with a column that says which."""
    named: As = None
    columns: DataColumns = field(default_factory=Columns)
    on_bad_image: OnBadImage = "fail"
    runtime: Runtime = "auto"
    precision: Precision = "auto"
    device: Device = "auto"
    hints: ModelHints = field(default_factory=Hints)


def features(command: WriteFeatures) -> int:
    """Compute the features of every part, write them, and print what was written."""
    from vitkit.data import part_of
    from vitkit.evaluation import WRITERS
    from vitkit.evaluation import features as compute
    from vitkit.system.machine import autocast
    from vitkit.system.processes.ranks import on_rank_0, process_group
    from vitkit.system.storage.files import MARK, check_replaceable

    output = command.output
    if output.suffix not in WRITERS:
        raise ValueError(
            f"--output is {output}; give the name of a file that ends in {' or '.join(WRITERS)}"
        )
    check_replaceable(output)
    with process_group(command.device) as device:
        classifier = loaded_for_features(command.model, command.hints, device)
        sources = parts_of(command.data, command.columns, command.named).sources
        if command.split:
            sources = {command.split: part_of(sources, command.split, command.data)}
        if command.on_bad_image == "skip":
            sources = {name: without_broken(source) for name, source in sources.items()}
        parts = {}
        precision = pick_precision(command.precision, device)
        if command.runtime not in ("auto", "torch"):
            from vitkit.exporting import features_on

            classifier = features_on(classifier, command.runtime, precision)
        with autocast(device, precision):
            for name, source in sources.items():
                parts[name] = (source, compute(classifier, source).x)
        if not on_rank_0():
            return 0

    # Where they come from goes with them
    facts = {
        "made": MARK,
        "model": command.model,
        "data": command.data,
        "preprocessing": str(classifier.preprocessing),
        "precision": precision,
        "runtime": command.runtime,
    }
    output.resolve().parent.mkdir(parents=True, exist_ok=True)
    WRITERS[output.suffix](output.resolve(), parts, facts)
    count = sum(len(source) for source, _ in parts.values())
    _, x = next(iter(parts.values()))
    print(f"wrote {output}: {counted(count, 'image')}, {x.shape[1]:,} features each")
    if next(iter(sources.values())).target_kind == "class":
        words = as_words(command.model, command.data, command.named)
        print(f"next: vitkit probe {words}, a classifier in seconds")
    return 0
