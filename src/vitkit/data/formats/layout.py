"""Roles of the folders in a tree of images: classes, parts, and folders without a meaning.

Few trees are ambiguous. An ambiguous one is refused with a question to the user, because a model would
train on a wrong table of classes without any error.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitkit.data.sources.tables import PARTS
from vitkit.system.console.text import some
from vitkit.system.errors import BadData
from vitkit.system.functions.steps import step

Folders = tuple[str, ...]
"""Names of the folders that an image lies in, from the outermost to the innermost."""

# Folders that hold the images of a data set, or of a part, and are no class
CONTAINERS = frozenset(
    "data dataset datasets files image images img imgs jpeg jpegimages jpeg_images jpg photo photos "
    "pic pics picture pictures png raw rgb".split()
)
# Folders of annotations of the images, which lie beside the folders of images
BESIDE = frozenset(
    "annotation annotations depth depths gt ground_truth groundtruth label labels mask masks seg "
    "segmentation segmentations segmentationclass segmentationobject trimap trimaps".split()
)
STRAY = 0.1  # largest share of images that may lie beside the folders of the other images
# Longer names of parts, as in training_set, test-images, seg_train and val2017. A class may have such a
# name ("bullet train"), so they count only if there is a part to train on and one to measure on.
_LONG_PART = re.compile(
    rf"(?:.*[-_ ])?(?P<part>{'|'.join(PARTS)}|eval|evaluation)"
    r"(?:[-_ ]?(?:set|data|dataset|images|imgs|img|photos|split))?[-_ ]?\d*",
    re.IGNORECASE,
)


class Layout(NamedTuple):
    """Roles of the folders of N images."""

    labels: list[str | None]
    """The class of each image; None for one that lies in no class folder."""
    parts: list[str | None]
    """The part of each image: "train", "val" or "test"; "" if there are no parts; None for an image outside
    every part."""
    class_folders: set[Folders]
    """The class folders, as paths from the root; empty if images have no class."""
    notes: tuple[str, ...]
    """Notes for the user."""


def layout_of(root: Path, paths: Sequence[Folders], labelled: bool, level: int | None) -> Layout:
    """Find the roles of folders: by their names, or by `level` if it is given.

    labelled: whether folders may be classes.
    level: how many folders below `root` the class folders are; None to find it from the tree.

    Raises VitkitError for an ambiguous tree, with the setting for each meaning, and for a level without
    images.
    """
    if level is not None and labelled:
        return _at_level(root, paths, level)
    rest = _without_containers(root.resolve().name, paths)
    notes = _check_mask_folders(root, paths, rest, labelled)
    swapped = False
    divided = _parts_by_folder(rest, labelled)
    if not divided and labelled and _classes_hold_parts(rest):
        _refuse_several_data_sets(root, rest, paths)
        swapped = True
        rest = [(path[1], path[0], *path[2:]) if len(path) > 1 else path for path in rest]
        divided = {path[0]: PARTS[path[0].lower()] for path in rest if len(path) > 1}
        notes.append("parts are the folders inside the class folders")
    parts: list[str | None] = [""] * len(paths)
    if divided:
        _check_parts(root, rest, divided)
        parts = [divided.get(path[0]) if path else None for path in rest]
        rest = _within_parts(rest)
        notes += _check_mask_folders(root, paths, rest, labelled)

    if not labelled or not any(rest):
        return Layout([None] * len(paths), parts, set(), tuple(notes))
    are_deeper = _are_deeper(rest)
    if are_deeper:
        _refuse_ambiguous_level(root, paths, rest)
    notes += _note_on_deeper(rest, are_deeper)
    labels = [path[0] if path else None for path in rest]
    class_folders = set()
    for path, below in zip(paths, rest, strict=True):
        if below:
            place = len(path) - len(below) - swapped
            class_folders.add(path[: place + 1])
    return Layout(labels, parts, class_folders, tuple(notes))


def _at_level(root: Path, paths: Sequence[Folders], level: int) -> Layout:
    """The layout with class folders at this level. A level above them is the parts if all of its folders
    have names of parts."""
    if not isinstance(level, int) or level < 1:
        raise BadData(f"`columns.level` is {level!r}; it is 1 for {root.name}/CLASS/IMAGE, or more")
    inside = [path for path in paths if len(path) >= level]
    if not inside:
        deepest = max(map(len, paths))
        raise BadData(
            f"no image of {root} lies {level} folders down, and the deepest lies {deepest} down; "
            "correct `data.columns.level`"
        )
    part_at = None
    for place in range(level - 1):
        if all(path[place].lower() in PARTS for path in inside):
            part_at = place
    labels: list[str | None] = []
    parts: list[str | None] = []
    for path in paths:
        is_inside = len(path) >= level
        labels.append(path[level - 1] if is_inside else None)
        part: str | None = ""
        if part_at is not None:
            part = PARTS[path[part_at].lower()] if is_inside else None
        parts.append(part)
    return Layout(labels, parts, {path[:level] for path in inside}, ())


# Folders without a meaning


def _without_containers(parent: str, paths: Sequence[Folders]) -> list[Folders]:
    """Remove the leading folders that hold all images and have no meaning: data/images/cat becomes cat.
    Images outside of them get no folder."""
    inside = [path for path in paths if path]
    tops = {path[0] for path in inside}
    if len(tops) != 1:
        return list(paths)
    top = tops.pop()
    below = [path[1:] for path in inside]
    is_copy = top.casefold() == parent.casefold() and any(below)  # training_set/training_set/cat
    # archive/dataset/train/cat
    has_parts = len(_parts_by_folder(_without_containers(top, below), labelled=True)) > 1
    if top.casefold() not in CONTAINERS and not is_copy and not has_parts:
        return list(paths)
    return _without_containers(top, [path[1:] for path in paths])


def _within_parts(paths: Sequence[Folders]) -> list[Folders]:
    """The folders of each image below its part, without those that have no meaning."""
    rest: list[Folders] = [()] * len(paths)
    for part in {path[0] for path in paths if path}:
        members = [i for i, path in enumerate(paths) if path and path[0] == part]
        below = _without_containers(part, [paths[i][1:] for i in members])
        for i, folders in zip(members, below, strict=True):
            rest[i] = folders
    return rest


# Parts


def _parts_by_folder(paths: Sequence[Folders], labelled: bool) -> dict[str, str]:
    """The part that each first folder represents; {} if the first folders are not parts."""
    tops = sorted({path[0] for path in paths if path})
    deep = {path[0] for path in paths if len(path) > 1}
    plain = {top: PARTS[top.lower()] for top in tops if top.lower() in PARTS}
    if plain and (len(plain) == len(tops) or not labelled or any(top in deep for top in plain)):
        return plain
    found = {}
    for top in tops:
        match = _LONG_PART.fullmatch(top)
        if match:
            found[top] = PARTS.get(match["part"].lower(), "val")
    if "train" in found.values() and len(set(found.values())) > 1:
        return found
    return {}


def _check_parts(root: Path, paths: Sequence[Folders], divided: dict[str, str]) -> None:
    """Raise VitkitError for folders beside train, val and test that are none of them, and for a part with
    two names."""
    others = sorted({path[0] for path in paths if path} - divided.keys())
    if others:
        known = some(sorted(divided))
        raise BadData(
            f"{root} is divided into parts, but {some(others)} is none of "
            f"{', '.join(PARTS)}; move the images in it elsewhere, or give a folder that holds classes "
            f"only; if {known} is a class as well: `data.columns.level=1`"
        )
    for part in sorted(set(divided.values())):
        names = [name for name in divided if divided[name] == part]
        if len(names) > 1:
            raise BadData(
                f"{root} holds the same part under two names ({', '.join(sorted(divided))}); merge or "
                "rename them"
            )


def _classes_hold_parts(paths: Sequence[Folders]) -> bool:
    """Whether below each first folder there are parts and nothing else: cat/train, cat/test."""
    inside = [path for path in paths if path]
    if not inside or any(len(path) == 1 for path in inside):
        return False
    parts = {path[1].lower() for path in inside}
    return parts <= PARTS.keys() and len(parts) > 1


def _refuse_several_data_sets(
    root: Path, paths: Sequence[Folders], whole: Sequence[Folders]
) -> None:
    """Raise VitkitError if the first folders are data sets with parts of their own, such as folds."""
    deep = [i for i, path in enumerate(paths) if len(path) > 2]
    if not deep:
        return
    tops = sorted({paths[i][0] for i in deep})
    parts = sorted({paths[i][1] for i in deep})
    above = _above(whole[deep[0]], paths[deep[0]])
    raise BadData(
        f"{root} holds {some(tops)}, each with parts of its own ({some(parts)}); give one of them, such "
        f"as {root.joinpath(*above, tops[0])}"
    )


# Classes


def _check_mask_folders(
    root: Path, paths: Sequence[Folders], rest: Sequence[Folders], labelled: bool
) -> list[str]:
    """Raise VitkitError for a folder of images beside folders of their masks, as images/ and labels/,
    because these would become classes. Returns a note instead if folders are no classes."""
    tops = sorted({path[0] for path in rest if path})
    images = [top for top in tops if top.casefold() in CONTAINERS]
    beside = [top for top in tops if top.casefold() in BESIDE]
    if len(images) != 1 or not beside or len(tops) > len(images) + len(beside):
        return []
    if not labelled:
        return [f"images of {some(beside)}, beside {images[0]}, are read too"]
    first = next(i for i, path in enumerate(rest) if path and path[0] == images[0])
    level = len(paths[first]) - len(rest[first]) + 1
    folder = root.joinpath(*paths[first][:level])
    given = f"give {folder}, or move {some(beside)} elsewhere"
    if any(path[: level - 1] != paths[first][: level - 1] for path in paths if len(path) >= level):
        given = f"move {some(beside)} elsewhere"  # each part has its own folder of images
    learning = step("finetune", root, masks=beside[0])
    raise BadData(
        f"{root} holds {images[0]} and beside it {some(beside)}, which seem to belong to each of the "
        f"images, as masks do: if so, {given}; {learning} learns masks; if {some(tops)} are the classes, "
        f"`data.columns.level={level}`"
    )


def _are_deeper(rest: Sequence[Folders]) -> bool:
    """Whether few images lie directly in their class folder: a small share of all, or at most one for each
    class folder, such as its cover."""
    inside = [path for path in rest if path]
    tops = {path[0] for path in inside}
    stray = sum(len(path) == 1 for path in inside)
    return stray < STRAY * len(inside) or (stray <= len(tops) and 2 * stray < len(inside))


def _refuse_ambiguous_level(root: Path, paths: Sequence[Folders], rest: Sequence[Folders]) -> None:
    """Raise VitkitError if the folders below the first ones may be the classes: if there is a single first
    folder with several below, or if most first folders hold folders of the same names.

    Folders in between that hold all others and have no meaning, as in 2022/images/cat, are skipped.

    paths: all folders of each image.
    rest: those of them from the class on.
    """
    inside = [i for i, path in enumerate(rest) if len(path) > 1]
    tops = sorted({rest[i][0] for i in inside})
    inner: dict[int, Folders] = {}  # by image: its folders, from the possible class folder on
    for top in tops:
        members = [i for i in inside if rest[i][0] == top]
        folders = _without_containers(top, [rest[i][1:] for i in members])
        if len(tops) == 1:
            folders = _from_first_branch(folders)
        inner.update(zip(members, folders, strict=True))
    inside = [i for i in inside if inner[i]]
    below: dict[str, set[str]] = {}
    for i in inside:
        below.setdefault(rest[i][0], set()).add(inner[i][0])
    if not below:
        return
    spellings = sorted({name for names in below.values() for name in names}, reverse=True)
    names = {name.casefold(): name for name in spellings}
    times = dict.fromkeys(names, 0)
    for inner_names in below.values():
        for name in {name.casefold() for name in inner_names}:
            times[name] += 1
    informative = sorted(names.keys() - CONTAINERS)
    shared_names = [names[name] for name in informative if times[name] > 1]

    # The setting for each meaning
    first = inside[0]
    level = len(paths[first]) - len(rest[first]) + 1
    folder = root.joinpath(*_above(paths[first], inner[first]))
    levels = {len(paths[i]) - len(inner[i]) + 1 for i in inside}
    inner_level = ""  # stays empty if the classes lie at several levels
    if len(levels) == 1:
        inner_level = f"`data.columns.level={levels.pop()}`"
    if len(tops) == 1 and len(informative) > 1:
        listed = some([names[name] for name in informative])
        given = f"give {folder}"
        if level > 1 and inner_level:
            given = inner_level
        raise BadData(
            f"{root} holds one folder, {tops[0]}, and below it {listed}: if these are the classes, "
            f"{given}; if {tops[0]} is the only class, `data.columns.level={level}`"
        )
    if len(tops) > 1 and 2 * len(shared_names) >= len(informative) > 0:
        given = f"give one folder, such as {folder}"
        if inner_level:
            given = f"{inner_level}, or {given}"
        raise BadData(
            f"{root} holds {some(tops)}, with folders of the same names below ({some(shared_names)}): if "
            f"these are the classes, {given}; if {some(tops)} are, `data.columns.level={level}`"
        )


def _from_first_branch(paths: Sequence[Folders]) -> list[Folders]:
    """The folders of each image from the first level with several folders on; all if there is none."""
    below = list(paths)
    while len({path[0] for path in below if path}) == 1:
        below = [path[1:] for path in below]
    if not any(below):
        return list(paths)
    return below


def _note_on_deeper(rest: Sequence[Folders], are_deeper: bool) -> list[str]:
    """A note on images that lie deeper than their class folder, if most do or if they lie in several
    folders, which might be classes."""
    tops = sorted({path[0] for path in rest if path})
    inner = {path[1] for path in rest if len(path) > 1 and path[1].casefold() not in CONTAINERS}
    if not inner or (len(inner) == 1 and not are_deeper):
        return []
    return [
        f"classes are {some(tops)}; the folders inside ({some(sorted(inner))}) are not: "
        "`data.columns.level` says another level"
    ]


def _above(path: Folders, rest: Folders) -> Folders:
    """The folders of an image above `rest`, its last folders."""
    return path[: len(path) - len(rest)]
