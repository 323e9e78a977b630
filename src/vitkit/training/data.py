"""The images of a run: those to train on, those to evaluate on, and the broken ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.data import (
    Masks,
    Source,
    Splits,
    check_images,
    decoded,
    default_workers,
    fingerprint,
    is_elsewhere,
    masks_digest,
    merge_parts,
    one_per_cpu,
    random_subset,
    refuse_recorded,
    source_at,
    split_off,
    splits_at,
    splits_with_masks,
    subset,
    subset_size,
    without,
)
from vitkit.data.masks.sources import masked_splits
from vitkit.evaluation import Eval, learns, unbalanced
from vitkit.recipes import Data, Facts, Say
from vitkit.system.console.progress import bar, silent
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, BadImage, BadSettings
from vitkit.system.processes.ranks import from_every_rank, from_rank_0, on_rank_0, world
from vitkit.system.storage.addresses import shown_address
from vitkit.training.record.values import to_json, with_defaults
from vitkit.training.state.checkpoints import Earlier, Occupied, earlier_call, refuse_other_recipe

RECORDED = {"target", "labels", "counts", "fingerprint", "others", "skipped"}
"""Keys that data.json must have so that a run can continue."""


@dataclass(frozen=True)
class RunData:
    """The images of a run, without the broken ones."""

    train: Source
    """The images to train on."""
    held_out: dict[str, Source]
    """The parts of the same data set to evaluate on: "val", "test", both or neither."""
    others: dict[str, Source]
    """The images of evaluators with data sets of their own, by the prefix of their metrics."""
    readers: int
    """Number of processes that share the chunks of remote training images."""
    facts: Facts
    """Facts about the images that the recipe depends on."""
    record: dict
    """The content of data.json."""


def open_data(data: Data, evals: Sequence[Eval], run_dir: Path, say: Say) -> RunData:
    """Open and check the images of a run. The images of a run that has trained before are not checked
    again.

    Unless `check` is off, every image is decoded once. A broken one raises BadImage, or with
    `on_bad_image` "skip" is left out, counted and listed in data.json. Raises VitkitError for images
    that cannot be found, for a directory with a run with other data settings, and for a run whose images
    have changed since it began.
    """
    if not data.source:
        raise BadData(
            "no images are given: set `data.source` to a folder, a manifest, a parquet file, or digits"
        )

    # Compare the settings before the images, so that a changed setting is not reported as changed images
    earlier = earlier_call(run_dir)
    if earlier.trained and earlier.recipe:
        ran = with_defaults(earlier.recipe["data"], data)
        refuse_other_recipe(run_dir, ran, to_json(data), "data.")
    # A run from before images had groups continues without them
    if earlier.trained and earlier.data:
        data = replace(data, groups=earlier.data.get("groups", "none"))

    # Open the run's own parts, without the images that `exclude` lists, and the data sets of its evaluators
    splits = open_to_divide(data, typed=True)
    if data.exclude and not data.masks:
        splits = _without_listed(splits, data.exclude)
    own = divide(splits, data)
    for sentence in about_subset(own["train"], data):
        say(sentence)
    others = open_others(evals)
    record = _describe(data, splits, own, others)

    # Check them: against data.json if the run has trained before, else by decoding
    parts = own | others
    paths: dict[str, str] = {}
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

    # Keep the training images decoded, if they fit into `keep_decoded`. With reduced decoding the pixels
    # depend on the crop, so they cannot be kept
    train = parts["train"]
    if not data.augmentation.reduced_decode:
        bytes_per_rank = int(data.keep_decoded * 1e9) // world().world_size
        progress = bar("decoding") if on_rank_0() else silent
        train = decoded(train, bytes_per_rank, _workers(data), progress, data.preprocessing)
    record["readers"] = readers_of(train, data, earlier)
    return RunData(
        train=train,
        held_out={name: parts[name] for name in own if name != "train"},
        others={name: parts[name] for name in others},
        readers=record["readers"],
        facts=Facts(len(train), tuple(splits.labels), splits.target_kind),
        record=record,
    )


def open_others(evals: Sequence[Eval]) -> dict[str, Source]:
    """The images of evaluators with data sets of their own, by the prefix of their metrics.

    Raises VitkitError for two data sets with one name, for images that an evaluator cannot measure on,
    and for a learning evaluator whose data set has no training images, or no others to measure on.
    """
    sources = {}
    paths: dict[str, str] = {}
    for each in evals:
        if not each.data:
            continue
        path = paths.setdefault(each.images, each.data)
        if path != each.data:
            raise BadData(
                f"metrics on {shown_address(path)} and on {shown_address(each.data)} would both be called {each.images}; give "
                "one of them a name (`evals.0.name`)"
            )
        if each.images not in sources:
            sources[each.images] = source_at(each.data, each.columns, typed=True)
        measured = sources[each.images]
        if learns(each.evaluator):
            train = source_at(each.data, each.columns, "train", typed=True)
            if np.isin(train.rows, measured.rows).any():
                raise BadData(
                    f"{each.title} learns from training images and measures on others, and "
                    f"{shown_address(each.data)} has no test or val part; give it one"
                )
            sources[each.train_images] = train
        if not each.evaluator.judges(measured.target_kind):
            raise BadData(
                f"{each.title} cannot measure there: the targets of {shown_address(each.data)} are of the kind "
                f"{measured.target_kind!r}"
            )
    return sources


def _describe(
    data: Data, splits: Splits, own: dict[str, Source], others: dict[str, Source]
) -> dict:
    """The description of the images for data.json. Raises VitkitError if the ranks see different
    images."""
    fingerprints = {name: fingerprint(part) for name, part in (own | others).items()}
    if any(of_rank != fingerprints for of_rank in from_every_rank(fingerprints)):
        raise BadData(
            f"{shown_address(data.source)!r} differs between the machines of this run; make the copies equal"
        )
    masks: dict[str, Any] = {}
    if isinstance(own["train"].targets, Masks):
        digests = {name: masks_digest(part) for name, part in own.items()}
        if any(of_rank != digests for of_rank in from_every_rank(digests)):
            raise BadData(
                f"the masks {data.masks!r} differ between the machines of this run; make the copies equal"
            )
        legend = own["train"].targets.legend.to_json()
        masks = {"masks": data.masks, "legend": legend, "masks_fingerprint": digests}
    return masks | {
        "source": shown_address(data.source),
        "split_seed": data.split_seed,
        "groups": group_setting(data),
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
    begun_on = earlier.get("source", record["source"])
    what = f"{record['source']!r} has changed since this run began"
    if begun_on != record["source"]:
        what = f"this run began on {begun_on!r}, and {record['source']!r} has other images"
    for fact in ("target", "labels", "counts", "fingerprint"):
        if earlier[fact] != record[fact]:
            raise Occupied(
                f"{what} ({earlier['counts']} "
                f"images then, {record['counts']} now); choose another `workdir` for a new run, or "
                "bring the images back as they were"
            )
    if earlier.get("masks_fingerprint") != record.get("masks_fingerprint"):
        raise Occupied(
            f"the masks of {record['source']!r} have changed since this run began; choose another `workdir` for a "
            "new run, or bring the masks and their legend back as they were"
        )
    for name in earlier["others"].keys() & record["others"].keys():
        if earlier["others"][name] != record["others"][name]:
            raise Occupied(
                f"the images of {name}, which this run is measured on, have changed since it "
                "began; choose another `workdir` for a new run, or bring them back as they were"
            )


def _check(
    parts: dict[str, Source], paths: dict[str, str], data: Data, say: Say
) -> dict[str, list[tuple[int, str]]]:
    """The broken images of every part, each as its index and a sentence. Every rank decodes its share.

    paths: for messages, the data sets of parts that do not belong to `data.source`.

    Raises BadImage if there are broken images and `on_bad_image` is "fail".
    """
    # This rank's share: consecutive images, so that no two ranks fetch the same chunks
    rank, world_size = world()
    own = {}
    for name, part in parts.items():
        first = rank * len(part) // world_size
        share = part
        if world_size > 1:
            share = subset(part, range(first, (rank + 1) * len(part) // world_size))
        broken = check_images(share, _workers(data), on_rank_0(), data.preprocessing)
        own[name] = [(first + i, text) for i, text in broken]

    # The broken images of all ranks
    skipped: dict[str, list[tuple[int, str]]] = {}
    texts = []
    of_ranks = from_every_rank(own)
    for name in parts:
        broken = []
        for of_rank in of_ranks:
            broken += of_rank[name]
        if broken:
            skipped[name] = sorted(broken)
            texts += [text for _, text in skipped[name]]

    # Refuse them, with a message that lists the first ten, or report that they are left out
    if texts and data.on_bad_image == "fail":
        places = dict.fromkeys(paths.get(name, data.source) for name in skipped)
        where = " and ".join(map(repr, places))
        lines = texts[:10]
        if len(texts) > 10:
            lines.append(f"and {len(texts) - 10} more")
        listed = "\n  ".join(lines)
        raise BadImage(
            f"{counted(len(texts), 'broken image')} in {where}; repair or remove them, or leave them out "
            f"with `data.on_bad_image='skip'`:\n  {listed}"
        )
    for text in texts:
        say(f"left out: {text}")
    return skipped


def readers_of(train: Source, data: Data, earlier: Earlier) -> int:
    """The number of processes that share the chunks of remote training images: the workers of all ranks
    with which the run began, because the order of images depends on it."""
    if earlier.trained:
        readers = earlier.data.get("readers", 1)  # missing in runs of older versions, which had one
        if not isinstance(readers, int) or readers < 1:
            raise Occupied(
                f"`readers` in data.json is {readers!r}; it is a number of processes, at least 1, on which "
                "the order of this run's images depends; choose another `workdir`"
            )
        return readers
    if not is_elsewhere(train) or train.chunks() is None:
        return 1
    return from_rank_0(lambda: max(training_workers(data, train), 1)) * world().world_size


def training_workers(data: Data, train: Source) -> int:
    """Number of processes of a rank that decode images while it trains: the setting, or one that suits
    the CPUs."""
    if data.workers < 0:
        return default_workers(train)
    return data.workers


def _workers(data: Data) -> int:
    """Number of processes that decode images before training starts. By default one per CPU,
    because no model is running yet."""
    if data.workers < 0:
        return one_per_cpu()
    return data.workers


# Parts


def open_to_divide(data: Data, *, typed: bool = False) -> Splits:
    """The parts of a data set, with the groups that `divide` keeps together.

    typed: whether a user typed the name of the data set, so that it may name a Python function; False for
        a name from the record of a run.
    """
    divides = data.parts in ("select", "three")
    place = (data.columns, data.split_seed, data.groups, divides)
    if not data.masks:
        return splits_at(data.source, *place, typed=typed)
    if not typed:
        for name in (data.source, data.masks):
            refuse_recorded(name, "the record of a run", "name the images yourself")
    splits = splits_with_masks(data.source, data.masks, *place)
    if data.exclude:  # before masks are looked for: a list may name images without one
        splits = _without_listed(splits, data.exclude)
    legend = Path(data.legend) if data.legend else None
    return masked_splits(splits, data.source, data.masks, legend, data.ignore)


def _without_listed(splits: Splits, exclude: str) -> Splits:
    """The parts without the training images that a file lists; a note has their number."""
    if splits.train is None:
        return splits
    remaining = without(splits.train, exclude)
    count = len(splits.train) - len(remaining)
    note = f"{count:,} training images that {exclude} lists are left out"
    return replace(splits, train=remaining, notes=(*splits.notes, note))


def group_setting(data: Data) -> str:
    """How images are grouped: "auto", "none" or the name of a column."""
    if data.groups == "auto" and data.columns.group is not None:
        return data.columns.group
    return data.groups


def divide(splits: Splits, data: Data) -> dict[str, Source]:
    """The parts of a data set that a run uses, according to `data.parts`: "train", reduced to
    `data.subset`, and "val" and "test".

    Raises VitkitError if there is nothing to train on, or nothing that can be held out, and for
    classes without a training image, whose outputs of the head would stay untrained.
    """
    parts = _parts(splits, data)
    train = parts["train"]
    if data.subset == 1:
        return parts
    if data.subset_by_class and train.target_kind != "class":
        raise BadSettings(
            f"`data.subset_by_class` needs images of one class each; the targets of "
            f"{shown_address(data.source)!r} are of the kind {train.target_kind!r}"
        )
    count = subset_size(len(train), data.subset)
    chosen = random_subset(train, count, data.subset_seed, data.subset_by_class)
    return parts | {"train": chosen}


def _parts(splits: Splits, data: Data) -> dict[str, Source]:
    """The parts that a run uses, before `data.subset` is applied."""
    if splits.unlearned:
        raise BadData(f"{splits.unlearned}; rename or remove it")
    parts = splits.sources
    if "train" not in parts:
        raise BadData(
            f"{shown_address(data.source)!r} has no training images, only {', '.join(parts)}"
        )
    has_all_three = len(parts) == 3

    # given: the data set's own parts; three: also these, if there are three
    if data.parts == "given" or (data.parts == "three" and has_all_three):
        return parts

    # final: train on all except the test part
    if data.parts == "final":
        if has_all_three:
            return {"train": merge_parts(parts["train"], parts["val"]), "test": parts["test"]}
        return parts

    # select: evaluate on the val part, or on a share of the training images; the test part is not used
    if has_all_three:
        return {"train": parts["train"], "val": parts["val"]}
    train, held_out = split_off(parts["train"], data.hold_out, data.split_seed)
    if not len(held_out):
        raise BadData(
            f"{shown_address(data.source)!r} has no class with two training images, so none can be held out for "
            "selection"
        )
    chosen = {"train": subset(parts["train"], train), "val": subset(parts["train"], held_out)}
    if data.parts == "select":
        return chosen

    # three: split off a val part, and keep the data set's own part to evaluate on as the test part
    for name in ("val", "test"):
        if name in parts:
            chosen["test"] = parts[name]
    return chosen


def about_subset(train: Source, data: Data) -> list[str]:
    """Sentences to print if a run trains on a subset of its images."""
    if data.subset == 1:
        return []
    sentences = [f"training on a subset of {len(train):,} images (seed {data.subset_seed})"]
    if train.target_kind == "class":
        missing = len(train.labels) - len(np.unique(train.target_array))
        if missing:
            sentences.append(
                f"{missing:,} of {len(train.labels):,} classes have no image in it, so the model "
                "cannot learn them; `data.subset_by_class` gives every class its share"
            )
    return sentences


def refuse_one_class(train: Source, data: Data) -> None:
    """Raises VitkitError if all training images are of one class: the loss of a head would be 0 from the
    beginning."""
    if train.target_kind != "class":
        return
    classes = np.unique(train.target_array)
    if len(classes) == 1:
        name = train.labels[classes[0]]
        raise BadData(
            f"all images of {shown_address(data.source)!r} that train ({len(train):,}) are of one class, "
            f"{name!r}, so there is nothing to distinguish: add images of another class"
        )


def about_classes(train: Source, class_weights: str) -> list[str]:
    """Sentences to print if classes differ much in size and are not balanced by weights."""
    if train.target_kind != "class" or class_weights != "equal":
        return []
    counts = np.bincount(train.target_array, minlength=len(train.labels))
    if not unbalanced(counts):
        return []
    largest = train.labels[counts.argmax()]
    least = np.where(counts > 0, counts, counts.max()).argmin()
    times = counts.max() / counts[least]
    return [
        f"unbalanced: {largest} has {times:,.0f} times the images of {train.labels[least]}. "
        "`objective.class_weights='balanced'` gives all classes equal weight; balanced_accuracy, the mean of "
        "the classes' own, is measured beside top1"
    ]
