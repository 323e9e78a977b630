"""Data sets to learn from, as `vitkit fewshot` and `probe` open them; and the model of those and
`features`."""

from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from vitkit.evaluation import SetName
from vitkit.system.console.text import as_word
from vitkit.verbs.arguments import word_of
from vitkit.verbs.leaving_out import splits_without_broken

if TYPE_CHECKING:
    import torch

    from vitkit.data import Columns, Parts, Splits
    from vitkit.verbs.arguments import OnBadImage
    from vitkit.weights import Classifier, Hints

As = Annotated[
    SetName | None,
    arg(
        name="as",
        help="What DATA is, if it is ImageNet or one of its relatives: which classes its folders are "
        "(docs/evaluation.md).",
    ),
]


def as_words(model: "str | Classifier", data: str, named: SetName | None) -> str:
    """MODEL DATA, and what the data is, as they are typed after another command's name. A classifier
    that a program holds is called MODEL."""
    words = f"{word_of(model)} {as_word(data)}"
    if named is not None:
        words += f" --as {named}"
    return words


def parts_of(data: str, columns: "Columns", named: SetName | None) -> "Parts":
    """The parts of a data set, which may go by a name."""
    from vitkit.data import open_parts
    from vitkit.evaluation import open_named_parts

    if named is None:
        return open_parts(data, columns)
    return open_named_parts(named, data, columns)


def splits_to_learn_from(
    data: str, columns: "Columns", named: SetName | None, on_bad_image: "OnBadImage"
) -> "tuple[Splits, str | None]":
    """The parts of a data set, with a test part, without broken images if they are to be skipped; and
    the fingerprint of a test part that was made, as it was before any were."""
    from vitkit.data import splits_of

    splits = splits_of(parts_of(data, columns, named), data)
    made = splits.made_fingerprint
    if on_bad_image == "skip":
        splits = splits_without_broken(splits)
    return splits, made


def loaded_for_features(
    model: "str | Classifier", hints: "Hints", device: "torch.device"
) -> "Classifier":
    """A model on its device, to read features of: by its name, or as a program holds it."""
    from vitkit.system.processes.ranks import on_rank_0
    from vitkit.weights import Classifier, load_as

    if not isinstance(model, Classifier):
        model = load_as(model, hints, quiet=not on_rank_0())
    return model.to(device).for_inference()
