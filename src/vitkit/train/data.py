"""The images of a run: which train, which measure, and what was wrong with some of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitkit.data import (
    BadImage,
    Source,
    Splits,
    check_images,
    decoded,
    fingerprint,
    open_source,
    open_splits,
    split_off,
    subset,
    together,
    without,
)
from vitkit.evaluate import Eval
from vitkit.system.machine import cpus
from vitkit.system.progress import bar, silent
from vitkit.system.ranks import from_every_rank, from_rank_0, on_rank_0, world
from vitkit.train.recipe import Data, Facts

Say = Callable[[str], None]


@dataclass(frozen=True)
class RunData:
    """The parts of a data set, and what else a run is measured on, after broken images were dealt
    with."""

    train: Source
    held_out: dict[str, Source]
    """"val" and "test", as far as they are there."""
    others: dict[str, Source]
    """The images that evaluators of the recipe bring along, by the name that their metrics begin
    with."""
    facts: Facts
    record: dict
    """What data.json holds."""


def open_data(data: Data, evals: Sequence[Eval], run_dir: Path, say: Say) -> RunData:
    """Open and check the images of a run. An interrupted run, one with a recipe.json, is not
    checked again.

    Unless `check` is off, every image is decoded once before the training. A broken one raises
    BadImage, or with `on_bad_image` "skip" is left out, counted and listed in data.json. Raises
    ValueError for images that cannot be found, and for a run whose images have changed.
    """
    if not data.source:
        raise ValueError(
            "no images: say which with --data.source FOLDER, a manifest, a parquet file, or digits"
        )
    splits = _open(data, say)
    own = divide(splits, data)
    others = _open_others(evals)
    parts = own | others
    record = _describe(data, splits, own, others)

    # The images of an earlier start of this run, or new ones
    known = from_rank_0(lambda: _known(run_dir))
    if known and (known["source"], known["split_seed"]) == (data.source, data.split_seed):
        _refuse_changes(known, record)
        record["skipped"] = known["skipped"]
    else:
        for note in splits.notes:
            say(note)
        record["skipped"] = {}
        if data.check:
            record["skipped"] = _check(parts, data, say)

    # Without the broken ones
    for name, bad in record["skipped"].items():
        broken = {index for index, _ in bad}
        intact = [i for i in range(len(parts[name])) if i not in broken]
        parts[name] = subset(parts[name], intact)

    train = _in_memory(parts["train"], data)
    held_out = {name: parts[name] for name in own if name != "train"}
    others = {name: parts[name] for name in others}
    facts = Facts(len(train), tuple(splits.labels), splits.target)
    return RunData(train, held_out, others, facts, record)


def _open(data: Data, say: Say) -> Splits:
    """The data set, without the training images that `exclude` lists."""
    splits = open_splits(data.source, data.columns, data.split_seed)
    if not data.exclude or splits.train is None:
        return splits
    rest = without(splits.train, data.exclude)
    count = len(splits.train) - len(rest)
    say(f"{count:,} training images that {data.exclude} lists are left out")
    return replace(splits, train=rest)


def _open_others(evals: Sequence[Eval]) -> dict[str, Source]:
    """The images that evaluators bring along, by the name that their metrics begin with.

    Raises ValueError for two data sets of one name, and for images that an evaluator cannot measure
    on.
    """
    sources = {}
    paths = {}
    for each in evals:
        if not each.data:
            continue
        if paths.setdefault(each.images, each.data) != each.data:
            raise ValueError(
                f"metrics on {paths[each.images]} and on {each.data} would both be called "
                f"{each.images}; "
                f"rename one of them"
            )
        if each.images not in sources:
            sources[each.images] = open_source(each.data, each.columns)
        target = sources[each.images].target
        if not each.evaluator.judges(target):
            raise ValueError(
                f"{each.title} cannot measure there: the targets of {each.data} are of the kind "
                f"{target!r}"
            )
    return sources


def _describe(
    data: Data, splits: Splits, own: dict[str, Source], others: dict[str, Source]
) -> dict:
    """What data.json says of the images. Raises ValueError where ranks see other ones."""
    fingerprints = {name: fingerprint(part) for name, part in (own | others).items()}
    if any(other != fingerprints for other in from_every_rank(fingerprints)):
        raise ValueError(
            f"{data.source!r} is not the same on every machine of this run; bring all to one state"
        )
    return {
        "source": data.source,
        "split_seed": data.split_seed,
        "target": splits.target,
        "labels": list(splits.labels),
        "counts": {name: len(part) for name, part in own.items()},
        "fingerprint": {name: fingerprints[name] for name in own},
        "others": {name: [len(part), fingerprints[name]] for name, part in others.items()},
        "notes": list(splits.notes),
        "made": splits.made,
    }


def _known(run_dir: Path) -> dict:
    """What data.json holds, empty before the run is recorded."""
    if not (run_dir / "recipe.json").exists():
        return {}
    return json.loads((run_dir / "data.json").read_text("utf-8"))


def _refuse_changes(known: dict, record: dict) -> None:
    """Raises ValueError where the images are not those that the run began with."""
    if any(known[name] != record[name] for name in ("target", "labels", "counts", "fingerprint")):
        raise ValueError(
            f"{record['source']!r} has changed since this run began ({known['counts']} images "
            "then, "
            f"{record['counts']} now); choose another --workdir for a new run, or bring the images "
            "back as they were"
        )
    for name in known["others"].keys() & record["others"].keys():
        if known["others"][name] != record["others"][name]:
            raise ValueError(
                f"the images of {name}, which this run is measured on, have changed since it "
                "began; choose "
                f"another --workdir for a new run, or bring them back as they were"
            )


def _in_memory(train: Source, data: Data) -> Source:
    """The training images, decoded once where they fit into `keep_decoded`."""
    if data.augmentation.reduced_decode:  # which makes other pixels of a file
        return train
    room = int(data.keep_decoded * 1e9) // world().world_size
    shown = bar("decoding") if on_rank_0() else silent
    return decoded(train, room, _workers(data), shown)


def _workers(data: Data) -> int:
    """Processes that decode before the training: all that there are, for no model is running
    yet."""
    return cpus() if data.workers < 0 else data.workers


def divide(splits: Splits, data: Data) -> dict[str, Source]:
    """The parts of a run: "train", and "val" and "test" as far as it may see them. Raises
    ValueError without any to train on."""
    parts = {}
    for name in ("train", "val", "test"):
        part = getattr(splits, name)
        if part is not None:
            parts[name] = part
    if "train" not in parts:
        raise ValueError(f"{data.source!r} has no training images, only {', '.join(parts)}")
    if data.parts == "given":
        return parts

    all_three = {"val", "test"} <= parts.keys()
    if data.parts == "final":
        if all_three:
            return {"train": together(parts["train"], parts["val"]), "test": parts["test"]}
        return parts
    if all_three:
        return {"train": parts["train"], "val": parts["val"]}
    first, second = split_off(parts["train"], data.hold_out, data.split_seed)
    if not len(second):
        raise ValueError(
            f"{data.source!r} has no class with two training images, so none can be held out to "
            "select on"
        )
    return {"train": subset(parts["train"], first), "val": subset(parts["train"], second)}


def _check(parts: dict[str, Source], data: Data, say: Say) -> dict[str, list[tuple[int, str]]]:
    """Broken images of every part, by index, with what is wrong; each rank looks at its share.

    Raises BadImage where there must not be any.
    """
    rank, world_size = world()
    own = {}
    for name, part in parts.items():
        share = subset(part, range(rank, len(part), world_size)) if world_size > 1 else part
        broken = check_images(share, _workers(data), on_rank_0())
        own[name] = [(rank + i * world_size, text) for i, text in broken]
    everyone = from_every_rank(own)

    skipped = {}
    for name in parts:
        bad = sorted(pair for shares in everyone for pair in shares[name])
        if bad:
            skipped[name] = bad
    texts = [text for bad in skipped.values() for _, text in bad]
    if texts and data.on_bad_image == "fail":
        raise BadImage(_complaint(texts, data.source))
    for text in texts:
        say(f"left out: {text}")
    return skipped


def _complaint(texts: list[str], source: str) -> str:
    """What is said of broken images that may not be left out: the first ten by name."""
    plural = "s" if len(texts) > 1 else ""
    lines = texts[:10]
    if len(texts) > 10:
        lines.append(f"and {len(texts) - 10} more")
    listed = "\n  ".join(lines)
    return (
        f"{len(texts)} broken image{plural} in {source!r}; mend or remove them, or leave them out "
        f"with --data.on-bad-image skip:\n  {listed}"
    )
