"""What a run's images go through, for as many channels as its model's images have."""

from dataclasses import replace

from vitkit.data import Preprocessing, Source, look_at, measured, open_splits
from vitkit.system.console.text import counted
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training.data import Say, divide
from vitkit.training.recipe import Recipe
from vitkit.weights import COLOURS, Classifier, adopt, preprocessing_for_channels


def with_channels(recipe: Recipe, say: Say) -> Recipe:
    """The recipe with a preprocessing for its model's channels, if it has one for others: see
    `fitted`. Raises ValueError for images that cannot be found or measured."""
    preprocessing = recipe.data.preprocessing
    if recipe.model.channels == preprocessing.channels or not recipe.data.source:
        return recipe
    splits = open_splits(recipe.data.source, recipe.data.columns, recipe.data.split_seed)
    train = divide(splits, recipe.data)["train"]
    preprocessing = from_rank_0(lambda: fitted(preprocessing, recipe.model.channels, train, say))
    return replace(recipe, data=replace(recipe.data, preprocessing=preprocessing))


def adapted_to(
    classifier: Classifier, channels: int | None, images: Source, say: Say
) -> Classifier:
    """A model for images of so many channels; if nobody says how many, for those of the images where
    these are no photographs, such as 12 bands of a satellite. Says what changed."""
    if channels is None:
        if classifier.model.config.channels != COLOURS:
            return classifier
        seen = look_at(images)
        if seen.colours:
            return classifier
        channels = seen.channels
    adapted, sentences = adopt(classifier, channels=channels)
    if not sentences:
        return classifier
    for sentence in sentences:
        say(sentence)
    preprocessing = fitted(adapted.preprocessing, channels, images, say)
    return replace(adapted, preprocessing=preprocessing)


def fitted(preprocessing: Preprocessing, channels: int, train: Source, say: Say) -> Preprocessing:
    """A preprocessing for colours, for images of so many channels: float32 if the images have more
    than 8 bits. Grey is normalised by the mean of the colours' numbers, a fourth channel by 0.5, and
    images of other channels by their own mean and standard deviation, measured now."""
    new = preprocessing_for_channels(preprocessing, channels)
    seen = look_at(train)
    values = "float32" if seen.many_bits else "uint8"
    new = replace(new, values=values)
    what = "as the mean of the colours'"
    if channels not in (1, 3, 4):
        new = measured(train, new)
        what = "measured on the training images"
    say(
        f"preprocessing for {counted(channels, 'channel')}: {new.values}, mean and deviation {what}"
    )
    return new
