"""Images that a command leaves out, and says so."""

import sys
from dataclasses import replace

import numpy as np

from vitkit.data import Source, Splits
from vitkit.system.console.text import counted, printable
from vitkit.system.processes.ranks import from_rank_0, on_rank_0


def without_broken(source: Source) -> Source:
    """The images that can be decoded; a sentence about each other one is printed."""
    from vitkit.data import subset

    broken = broken_images(source)
    return subset(source, [i for i in range(len(source)) if i not in broken])


def broken_images(source: Source) -> dict[int, str]:
    """The images that cannot be decoded, by index, with a sentence about each, which is printed."""
    from vitkit.data import check_images
    from vitkit.system.machine import cpus

    broken = from_rank_0(lambda: dict(check_images(source, cpus())))
    if on_rank_0():
        for sentence in broken.values():
            print(f"left out: {printable(sentence)}", file=sys.stderr)
    return broken


def without_unknown(source: Source, labels: tuple[str, ...]) -> Source:
    """The images of classes that a model with these labels knows, and only these classes; a sentence
    about the others is printed. If it knows none, the images stay as they are.

    Raises ValueError for images of another kind of target.
    """
    from vitkit.data import subset
    from vitkit.evaluation import unknown

    if source.target_kind != "class":
        raise ValueError(
            "--on-unknown-class skip is for images of one class each; these have targets of the kind "
            f"{source.target_kind!r}"
        )
    others = np.intersect1d(unknown(source.labels, labels), source.targets).tolist()
    left_out = np.isin(source.targets, others)
    if not others or left_out.all():  # if all, whoever meets the classes says what they are called
        return source
    names = ", ".join(source.labels[k] for k in others[:5])
    if len(others) > 5:
        names += ", ..."
    if on_rank_0():
        sentence = (
            f"left out: {left_out.sum():,} of {counted(len(source), 'image')}, of classes that the "
            f"model does not know ({names})"
        )
        print(printable(sentence), file=sys.stderr)

    # The classes that stay, numbered anew
    kept = np.setdiff1d(np.arange(len(source.labels)), others)
    rest = subset(source, np.flatnonzero(~left_out))
    return replace(
        rest,
        targets=np.searchsorted(kept, rest.targets),
        labels=tuple(source.labels[k] for k in kept),
    )


def splits_without_broken(splits: Splits) -> Splits:
    """The parts of a data set without the images that cannot be decoded."""
    parts = {}
    for name in ("train", "val", "test"):
        part = getattr(splits, name)
        if part is not None:
            part = without_broken(part)
            parts[name] = part if len(part) else None
    return replace(splits, **parts)
