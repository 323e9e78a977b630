"""The images of a run: which of them train, which measure, and which are broken."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.data import (
    BadImage,
    Source,
    Splits,
    check_images,
    decoded,
    fingerprint,
    open_source,
    open_splits,
    subset,
    without,
)
from vitkit.evaluation import Eval, learns
from vitkit.system.console.progress import bar, silent
from vitkit.system.machine import cpus
from vitkit.system.processes.ranks import from_every_rank, on_rank_0, world
from vitkit.training.division import about_subset, divide
from vitkit.training.recipe import Data, Facts
from vitkit.training.record.values import to_json, with_defaults
from vitkit.training.state.earlier import Occupied, earlier_call, refuse_other_recipe

RECORDED = {"target", "labels", "counts", "fingerprint", "others", "skipped"}
"""What data.json must hold for a run to continue by it."""
Say = Callable[[str], None]
"""Prints a sentence for the person who watches."""


@dataclass(frozen=True)
class RunData:
    """The images of a run, without the broken ones."""

    train: Source
    """The images that train."""
    held_out: dict[str, Source]
    """The parts of the same data set that measure: "val", "test", both or neither."""
    others: dict[str, Source]
    """The images that evaluators of the recipe bring along, by the name that their metrics begin
    with."""
    facts: Facts
    """What the recipe must know of them."""
    record: dict
    """What data.json holds."""


def open_data(data: Data, evals: Sequence[Eval], run_dir: Path, say: Say) -> RunData:
    """Open and check the images of a run. A run that has trained before is not checked again.

    Unless `check` is off, every image is decoded once. A broken one raises BadImage, or with
    `on_bad_image` "skip" is left out, counted and listed in data.json. Raises ValueError for images
    that cannot be found, for a directory where something was trained with other settings of the
    data, and for a run whose images have changed since it began.
    """
    if not data.source:
        raise ValueError(
            "no images: say which with --data.source FOLDER, a manifest, a parquet file, or digits"
        )

    # The settings, before the images: a change of a setting is not to look like one of the images
    earlier = earlier_call(run_dir)
    if earlier.trained and earlier.recipe:
        ran = with_defaults(earlier.recipe["data"], data)
        refuse_other_recipe(run_dir, ran, to_json(data), "data.")

    # Open: the run's own parts, and what its evaluators bring along
    splits = _open(data, say)
    own = divide(splits, data)
    for sentence in about_subset(own["train"], data):
        say(sentence)
    others = open_others(evals)
    record = _describe(data, splits, own, others)

    # Check: by data.json if the run has trained before, else by decoding
    parts = own | others
    paths = {}
    for each in evals:
        paths |= {each.images: each.data, each.train_images: each.data}
    if earlier.trained and earlier.data.keys() >= RECORDED:
        _refuse_changes(earlier.data, record)
        new = {name: part for name, part in others.items() if name not in earlier.data["others"]}
        known = {name: bad for name, bad in earlier.data["skipped"].items() if name in parts}
        record["skipped"] = known
        if data.check and new:
            record["skipped"] = known | _check(new, paths, data, say)
    else:
        for note in splits.notes:
            say(note)
        record["skipped"] = {}
        if data.check:
            record["skipped"] = _check(parts, paths, data, say)

    # Leave out the broken ones
    for name, bad in record["skipped"].items():
        broken = {index for index, _ in bad}
        intact = [i for i in range(len(parts[name])) if i not in broken]
        parts[name] = subset(parts[name], intact)

    train = _in_memory(parts["train"], data)
    return RunData(
        train=train,
        held_out={name: parts[name] for name in own if name != "train"},
        others={name: parts[name] for name in others},
        facts=Facts(len(train), tuple(splits.labels), splits.target_kind),
        record=record,
    )


def _open(data: Data, say: Say) -> Splits:
    """The data set, without the training images that `exclude` lists."""
    splits = open_splits(data.source, data.columns, data.split_seed)
    if not data.exclude or splits.train is None:
        return splits
    train = without(splits.train, data.exclude)
    count = len(splits.train) - len(train)
    say(f"{count:,} training images that {data.exclude} lists are left out")
    return replace(splits, train=train)


def open_others(evals: Sequence[Eval]) -> dict[str, Source]:
    """The images that evaluators bring along, by the name that their metrics begin with.

    Raises ValueError for two data sets of one name, and for images that an evaluator cannot measure
    on.
    """
    sources = {}
    paths = {}
    for each in evals:
        if not each.data:
            continue
        path = paths.setdefault(each.images, each.data)
        if path != each.data:
            raise ValueError(
                f"metrics on {path} and on {each.data} would both be called {each.images}; give "
                "one of them a name (--evals.0.name)"
            )
        if each.images not in sources:
            sources[each.images] = open_source(each.data, each.columns)
        if learns(each.evaluator):
            sources[each.train_images] = _train_part(each, sources[each.images])
        target_kind = sources[each.images].target_kind
        if not each.evaluator.judges(target_kind):
            raise ValueError(
                f"{each.title} cannot measure there: the targets of {each.data} are of the kind "
                f"{target_kind!r}"
            )
    return sources


def _train_part(each: Eval, measured: Source) -> Source:
    """The training images for an evaluator that learns. Raises ValueError if there are none, or if
    they are the ones that it measures on."""
    train = open_source(each.data, each.columns, "train")
    if np.isin(train.rows, measured.rows).any():
        raise ValueError(
            f"{each.title} learns from training images and measures on others, and {each.data} has "
            "no test or val part; give it one"
        )
    return train


def _describe(
    data: Data, splits: Splits, own: dict[str, Source], others: dict[str, Source]
) -> dict:
    """What data.json says of the images. Raises ValueError if the ranks do not see the same
    ones."""
    fingerprints = {name: fingerprint(part) for name, part in (own | others).items()}
    if any(of_rank != fingerprints for of_rank in from_every_rank(fingerprints)):
        raise ValueError(
            f"{data.source!r} is not the same on every machine of this run; bring all to one state"
        )
    return {
        "source": data.source,
        "split_seed": data.split_seed,
        "target": splits.target_kind,
        "labels": list(splits.labels),
        "counts": {name: len(part) for name, part in own.items()},
        "fingerprint": {name: fingerprints[name] for name in own},
        "others": {name: [len(part), fingerprints[name]] for name, part in others.items()},
        "notes": list(splits.notes),
        "made": splits.made_test,
        "made_fingerprint": splits.made_fingerprint,
    }


def _refuse_changes(earlier: dict, record: dict) -> None:
    """Raises Occupied if the images are not those that the run began with."""
    # The run's own
    for fact in ("target", "labels", "counts", "fingerprint"):
        if earlier[fact] != record[fact]:
            raise Occupied(
                f"{record['source']!r} has changed since this run began ({earlier['counts']} "
                f"images then, {record['counts']} now); choose another --workdir for a new run, or "
                "bring the images back as they were"
            )

    # Those of its evaluators
    for name in earlier["others"].keys() & record["others"].keys():
        if earlier["others"][name] != record["others"][name]:
            raise Occupied(
                f"the images of {name}, which this run is measured on, have changed since it "
                "began; choose another --workdir for a new run, or bring them back as they were"
            )


def _check(
    parts: dict[str, Source], paths: dict[str, str], data: Data, say: Say
) -> dict[str, list[tuple[int, str]]]:
    """The broken images of every part: (index, what is wrong) each. Every rank decodes its share.
    Parts that are no part of `data.source` have their own `paths`.

    Raises BadImage if there are some and they may not be left out.
    """
    # This rank's: every world_size-th image
    rank, world_size = world()
    own = {}
    for name, part in parts.items():
        share = part
        if world_size > 1:
            share = subset(part, range(rank, len(part), world_size))
        broken = check_images(share, _workers(data), on_rank_0(), data.preprocessing)
        own[name] = [(rank + i * world_size, text) for i, text in broken]

    # Those of all ranks
    skipped: dict[str, list[tuple[int, str]]] = {}
    everyone = from_every_rank(own)
    for name in parts:
        broken = []
        for of_rank in everyone:
            broken += of_rank[name]
        if broken:
            skipped[name] = sorted(broken)

    # Refused, or said
    texts = []
    for broken in skipped.values():
        texts += [text for _, text in broken]
    if texts and data.on_bad_image == "fail":
        places = dict.fromkeys(paths.get(name, data.source) for name in skipped)
        raise BadImage(_complaint(texts, list(places)))
    for text in texts:
        say(f"left out: {text}")
    return skipped


def _complaint(texts: list[str], places: list[str]) -> str:
    """A message about broken images that may not be left out, which names the first ten."""
    plural = "s" if len(texts) > 1 else ""
    lines = texts[:10]
    if len(texts) > 10:
        lines.append(f"and {len(texts) - 10} more")
    listed = "\n  ".join(lines)
    where = " and ".join(map(repr, places))
    return (
        f"{len(texts)} broken image{plural} in {where}; mend or remove them, or leave them out "
        f"with --data.on-bad-image skip:\n  {listed}"
    )


def _in_memory(train: Source, data: Data) -> Source:
    """The training images, decoded now if all of them fit into `keep_decoded`."""
    if data.augmentation.reduced_decode:  # it decodes a file to other pixels each time
        return train
    bytes_per_rank = int(data.keep_decoded * 1e9) // world().world_size
    progress = bar("decoding") if on_rank_0() else silent
    return decoded(train, bytes_per_rank, _workers(data), progress, data.preprocessing)


def _workers(data: Data) -> int:
    """Processes that decode before the training: one a CPU by default, for no model is running
    yet."""
    if data.workers < 0:
        return cpus()
    return data.workers
