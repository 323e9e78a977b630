"""`vitkit doctor --data`: numbers, balance, broken images and duplicates of a data set."""

from collections.abc import Iterator

from vitkit.data import Source, Splits, subset
from vitkit.system.console.text import as_word, counted
from vitkit.verbs.diagnosis.finding import Finding

LOOKED_AT = 4_000  # images of a part that are decoded to look for duplicates
UNEVEN = 10  # times as many images in the largest class as in the smallest


def examine_data(data: str, splits: Splits) -> Iterator[Finding]:
    """Numbers, balance, broken images and duplicates of a data set."""
    parts = parts_of(splits)
    word = as_word(data)
    counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
    yield Finding("images", counts)
    train = splits.train
    if train is None:
        yield Finding("training images", "none", f"{data} has nothing to train on")
        return
    yield from _classes(word, train)
    yield from _looks(word, parts)


def parts_of(splits: Splits) -> dict[str, Source]:
    """The parts of a data set that it has, by name."""
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    return {name: part for name, part in parts.items() if part is not None}


def _classes(word: str, train: Source) -> Iterator[Finding]:
    """How many classes there are, and how even they are."""
    from vitkit.curation import class_counts

    if train.target_kind == "none":
        advice = (
            f"put the images of {word} into a folder for each class to train a classifier; without, "
            f"vitkit train paper.masked_patches {word} learns from them"
        )
        yield Finding("labels", "none", advice)
        return
    if train.target_kind != "class":
        yield Finding(
            "labels", {"classes": "several an image", "number": "a number each"}[train.target_kind]
        )
        return
    numbers = class_counts(train)
    ranked = sorted(zip(numbers, train.labels, strict=True))
    (least, rare), (most, common) = ranked[0], ranked[-1]
    classes = "1 class" if len(train.labels) == 1 else f"{len(train.labels):,} classes"
    value = f"{classes}, of {least:,} ({rare}) to {most:,} ({common}) images"
    advice = ""
    if len(train.labels) == 1:
        advice = f"there is one class, {rare}, and so nothing to tell apart: add a folder of others"
    elif least < 2:
        advice = f"{rare} has {counted(least, 'training image')}: add some, or remove the class"
    elif most >= UNEVEN * least:
        advice = (
            f"{common} has {most // least} times as many images as {rare}: judge by "
            "balanced_accuracy, which vitkit evaluate prints, and add images of the rare classes"
        )
    yield Finding("classes", value, advice)


def _looks(word: str, parts: dict[str, Source]) -> Iterator[Finding]:
    """Broken images, and duplicates between the training part and the others, among up to
    LOOKED_AT of each part."""
    from vitkit.curation import near_duplicates, survey
    from vitkit.system.console.progress import bar
    from vitkit.system.machine import cpus

    surveys = {}
    for name, part in parts.items():
        step = len(part) // LOOKED_AT + 1
        some = subset(part, range(0, len(part), step))
        surveys[name] = survey(some, cpus(), bar(f"looking at {name}"))
    looked = sum(len(each.source) for each in surveys.values())

    broken = sum(len(each.bad) for each in surveys.values())
    advice = ""
    if broken == looked:
        advice = f"no image of {word} can be decoded: copy or download them again"
    elif broken:
        advice = (
            f"vitkit data stats {word} names the broken images; --on-bad-image skip leaves them out"
        )
    yield Finding("broken images", f"{broken:,} of {looked:,}", advice)

    pairs = 0
    for name in surveys:
        if name != "train":
            pairs += len(near_duplicates(surveys["train"], surveys[name]))
    advice = ""
    if pairs:
        advice = (
            f"{counted(pairs, 'training image')} can be seen in a held-out part too, which "
            f"flatters the accuracy: vitkit data stats {word} --exclude FILE lists them for "
            "--data.exclude FILE"
        )
    yield Finding("duplicates between parts", f"{pairs:,} of {looked:,}", advice)
