"""Matching the classes of a data set with those of a model. A class may have different indices in different
data sets, so classes are matched by their names."""

import re
from collections.abc import Callable, Container, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.system.console.text import some
from vitkit.system.errors import BadData, VitkitError
from vitkit.system.functions.steps import DATA, MODEL, step
from vitkit.weights import imagenet21k_wordnet, imagenet_labels

SYNSET = re.compile(r"n\d{8}")  # a WordNet ID, such as n01440764
SHOWN = 5  # largest number of names in a message


class LabelAlignment(NamedTuple):
    """The indices of the data's classes among the model's."""

    classes: Tensor
    """The model's index of each of the data's C classes: int64 (C,)."""
    notes: tuple[str, ...] = ()
    """Sentences about how the classes were matched, where their names are not identical."""


def align(
    data: Sequence[str], model: Sequence[str], needed: Container[int] | None = None
) -> LabelAlignment:
    """Match each of the data's classes with one of the model's, by its name.

    Names may be WordNet IDs on one side and ImageNet's names on the other ("n01440764" is "tench"). They
    may differ in case, spaces, hyphens and underscores ("English_springer"), and be one of several
    names separated by commas ("tench, Tinca tinca"). A note mentions each of these. Numbers are taken as
    indices only if none of them is a name of a class of the model.

    needed: indices of the data's classes that must be found, such as those that occur; by default all.
        Others that the model does not have are -1.

    Raises VitkitError, with the nearest names, for classes that the model does not have, and for two
    classes that match the same one of the model's.
    """
    if by_position(data, model):
        note = (
            f"the images' classes have no names, only the numbers 0 to {len(data) - 1}; they are "
            f"taken for the model's classes in its own order ({some(model)})"
        )
        return LabelAlignment(torch.arange(len(data)), (note,))
    _check_numbers(data, model)
    numbers, notes, names, model_names = _matched(data, model)
    missing = [i for i in range(len(data)) if i not in numbers]
    if needed is not None:
        missing = [i for i in missing if i in needed]
    if missing:
        raise BadData(_unknown({data[i]: names[i] for i in missing}, len(data), model_names))
    _check_distinct(data, model, numbers)
    classes = torch.tensor([numbers.get(i, -1) for i in range(len(data))])
    return LabelAlignment(classes, tuple(notes))


def unknown(data: Sequence[str], model: Sequence[str]) -> list[int]:
    """The indices of the data's classes that the model does not have, ascending."""
    if by_position(data, model):
        return []
    numbers, *_ = _matched(data, model)
    return [i for i in range(len(data)) if i not in numbers]


def _matched(
    data: Sequence[str], model: Sequence[str]
) -> tuple[dict[int, int], list[str], Sequence[str], Sequence[str]]:
    """The model's classes by the data's, notes, and the names of both sides as they were compared."""
    names, model_names, notes = _in_one_language(data, model)
    numbers: dict[int, int] = {}
    for matches, difference in _by_rules(names, model_names):
        numbers |= matches
        if matches and difference:
            examples = [f"{data[i]} is {model[k]}" for i, k in matches.items()]
            notes.append(f"{len(matches)} of {len(data)} classes {difference} ({some(examples)})")
    return numbers, notes, names, model_names


def label_notes(data: Sequence[str], model: Sequence[str]) -> tuple[str, ...]:
    """The notes about matching the data's classes with the model's; none if they do not match."""
    if not data or not model:
        return ()
    try:
        return align(data, model).notes
    except VitkitError:
        return ()


# Rules for which names denote the same class. A form of a name is what is compared


def _normalised(name: str) -> set[str]:
    """The name in lower case, with single spaces for spaces, hyphens and underscores."""
    return {" ".join(re.split(r"[\s_-]+", name.casefold())).strip()}


def _one_of_several(name: str) -> set[str]:
    """Each of the names that commas separate, as `_normalised` normalises it."""
    forms = set()
    for part in name.split(","):
        forms |= _normalised(part)
    return forms - {""}


RULES: tuple[tuple[Callable[[str], set[str]], str], ...] = (
    (lambda name: {name}, ""),
    (_normalised, "meet by names that differ in case, spaces, hyphens or underscores"),
    (_one_of_several, "meet by one of several names"),
)


def _by_rules(data: Sequence[str], model: Sequence[str]) -> Iterator[tuple[dict[int, int], str]]:
    """Yields, for each rule, the matches beyond those of the rules before it, and how their names differ."""
    found: set[int] = set()
    for forms, difference in RULES:
        matches = _matches(data, model, forms)
        new = {i: k for i, k in matches.items() if i not in found}
        found |= new.keys()
        yield new, difference
        if len(found) == len(data):
            return


def _matches(
    data: Sequence[str], model: Sequence[str], forms: Callable[[str], set[str]]
) -> dict[int, int]:
    """The model's classes by the data's, where exactly one class of the model has a form in common."""
    classes_with: dict[str, set[int]] = {}
    for k, name in enumerate(model):
        for form in forms(name):
            classes_with.setdefault(form, set()).add(k)
    matches = {}
    for i, name in enumerate(data):
        candidates: set[int] = set()
        for form in forms(name):
            candidates |= classes_with.get(form, set())
        if len(candidates) == 1:
            matches[i] = candidates.pop()
    return matches


# Numbers instead of names


def by_position(data: Sequence[str], model: Sequence[str]) -> bool:
    """Whether the data's classes are indices of the model's: their names are "0", "1", ..., as those of a
    table of integers, and no class of the model has such a name.

    A model that was trained on folders "0" to "11" has them in lexicographic order (0, 1, 10, 11, 2,
    ...), so there a name is not an index.
    """
    return _are_numbers(data) and len(data) <= len(model) and not set(data) & set(model)


def _are_numbers(names: Sequence[str]) -> bool:
    """Whether the names are "0", "1", ... in this order."""
    return list(names) == [str(i) for i in range(len(names))]


def _check_numbers(data: Sequence[str], model: Sequence[str]) -> None:
    """Raises VitkitError for numbers beyond the model's classes, unless they are names."""
    if not _are_numbers(data) or len(data) <= len(model):
        return
    if _are_numbers(model) or not set(data) & set(model):
        raise BadData(
            f"the images' classes are the numbers 0 to {len(data) - 1}, and the model has "
            f"{len(model):,} classes ({some(model)})"
        )


# WordNet IDs and ImageNet's names


def _in_one_language(
    data: Sequence[str], model: Sequence[str]
) -> tuple[Sequence[str], Sequence[str], list[str]]:
    """The names of the data's and of the model's classes, both as WordNet IDs or both as plain names; and
    notes.

    ImageNet's folders are named by WordNet IDs, the classes of published models by plain names. A head of
    ImageNet-21k's classes has no names at all, only their order.
    """
    # A published model of ImageNet-1k: the order of its classes is known, whatever their names are
    if len(model) == 1000 and model[0].startswith("tench") and _are_synsets(data):
        return data, imagenet_wordnet(), []

    # A published model of ImageNet-21k: its classes are numbers in a known order
    if _are_numbers(model) and len(model) in (21_841, 21_843) and not set(data) <= set(model):
        note = (
            f"the model's {len(model):,} classes are taken for ImageNet-21k's, in WordNet's order"
        )
        return _as_synsets(data), imagenet21k_wordnet(len(model)), [note]

    # A model that was trained on ImageNet's folders, and data with plain names
    if _are_synsets(model) and not _are_synsets(data):
        return _as_synsets(data), model, []
    if _are_synsets(data) and not _are_synsets(model):
        plain = dict(zip(imagenet_wordnet(), imagenet_labels(), strict=True))
        return [plain.get(synset, synset) for synset in data], model, []
    return data, model, []


def _are_synsets(names: Sequence[str]) -> bool:
    return all(SYNSET.fullmatch(name) for name in names)


def _as_synsets(names: Sequence[str]) -> list[str]:
    """The names with each name of an ImageNet-1k class replaced by its WordNet ID."""
    synsets = list(names)
    for matches, _ in _by_rules(names, imagenet_labels()):
        for i, k in matches.items():
            synsets[i] = imagenet_wordnet()[k]
    return synsets


@cache
def imagenet_wordnet() -> tuple[str, ...]:
    """The WordNet IDs of ImageNet-1k's classes, in the order of all published models."""
    return tuple(Path(__file__).with_name("imagenet_wordnet.txt").read_text().split())


# Messages about classes without a match


def _unknown(unknown: dict[str, str], total: int, model: Sequence[str]) -> str:
    """The message about classes of the data that the model does not have.

    unknown: the form of each class that was compared, by its name. total: number of the data's classes.
    """
    described = []
    for name, compared in list(unknown.items())[:SHOWN]:
        near = get_close_matches(compared, model, 1)
        if near and not SYNSET.fullmatch(compared):  # similar WordNet IDs are not similar classes
            name = f"{name} (nearest: {near[0]})"
        described.append(name)
    if len(unknown) > SHOWN:
        described.append("...")
    sentence = (
        f"the data has {len(unknown)} of {total} classes that the model does not know: "
        f"{', '.join(described)}; the model knows {some(model)}"
    )
    if len(unknown) == total:
        sentence += f"; {step('probe', MODEL, DATA)} gives a model a head for other classes"
    else:
        sentence += "; evaluate leaves their images out with `on_unknown_class='skip'`"
    return sentence


def _check_distinct(data: Sequence[str], model: Sequence[str], numbers: dict[int, int]) -> None:
    """Raises VitkitError if two classes of the data would be one of the model's."""
    first_with: dict[int, int] = {}
    for i, k in sorted(numbers.items()):
        other = first_with.setdefault(k, i)
        if other != i:
            raise BadData(
                f"the data's classes {data[other]!r} and {data[i]!r} would both be the model's "
                f"{model[k]!r}; rename one of them, or make them one class"
            )
