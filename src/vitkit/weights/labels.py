"""Names of classes: a model's own, ImageNet's, or numbers."""

from pathlib import Path


def numbered(classes: int) -> tuple[str, ...]:
    """Names for classes that nobody named: "0", "1", ..."""
    return tuple(map(str, range(classes)))


def counted(classes: int) -> str:
    """ "1 class", "1,000 classes"."""
    if classes == 1:
        return "1 class"
    return f"{classes:,} classes"


def imagenet_labels() -> tuple[str, ...]:
    """The names of ImageNet-1k's classes, in the order that every published model has; no name
    twice.

    Where two classes share a name ("crane"), it says which is meant. They are in a file of ours,
    for importing the libraries that have such a list takes longer than a prediction.
    """
    return tuple(Path(__file__).with_name("imagenet_classes.txt").read_text("utf-8").splitlines())


def usual_labels(classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """ImageNet-1k's names for a head of 1000 classes, with a note that this is assumed; else
    None."""
    if classes != 1000:
        return None, []
    return imagenet_labels(), ["labels: ImageNet-1k's 1,000 classes; nothing in the file says so"]
