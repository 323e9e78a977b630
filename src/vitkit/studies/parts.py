"""Parts of the training images, drawn so that a smaller part lies within a larger one."""

from pathlib import Path

import numpy as np

from vitkit.data import Source
from vitkit.system.files import whole
from vitkit.system.ranks import from_rank_0


def left_out(train: Source, images: int, seed: int, study_dir: Path) -> Path:
    """The file, in a study's directory, that lists all training images but `images` drawn ones
    (`data.exclude`). Every class has its share of them; a larger part has all images of a smaller
    one of the same seed."""
    path = study_dir / "images" / f"all-but-{images}-seed-{seed}.txt"

    def write() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(seed)
        order = random.permutation(len(train))
        if train.target_kind == "class":
            order = by_turns(np.asarray(train.targets), order)
        names = [train.name(i) for i in sorted(order[images:])]
        with whole(path) as new:
            new.write_text("".join(f"{name}\n" for name in names), "utf-8", "surrogateescape")

    if not path.exists():
        from_rank_0(write)
    return path


def by_turns(classes: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The images in an order whose first n have every class in proportion, by the classes (N,) of all
    and a drawn order (N,)."""
    place = np.empty(len(order))
    for number in np.unique(classes):
        members = order[classes[order] == number]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    return order[np.argsort(place[order], kind="stable")]
