"""Adapting a model and its preprocessing to images that do not have three channels."""

from collections.abc import Callable
from dataclasses import replace

from vitkit.data import Preprocessing, Source, look_at, measured
from vitkit.system.console.text import counted
from vitkit.weights import Classifier, adopt, preprocessing_for_channels
from vitkit.weights.adoption import COLOURS

Say = Callable[[str], None]
"""Prints a message."""


def adapted_to(
    classifier: Classifier, channels: int | None, images: Source, say: Say
) -> Classifier:
    """The model, adapted to images with this number of channels. None uses the number that the images have,
    unless they are colour images. Prints what changed."""
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
    """A preprocessing of RGB images, adapted to another number of channels; float32 if the images have more
    than 8 bits. Grey images are normalised with the averages of the colours' mean and deviation, a fourth
    channel with 0.5, and images with other numbers of channels with their own mean and standard deviation,
    which are measured."""
    new = preprocessing_for_channels(preprocessing, channels)
    new = replace(new, values="uint8")
    if look_at(train).many_bits:
        new = replace(new, values="float32")
    origin = "as the mean of the colours'"
    if channels not in (1, 3, 4):
        new = measured(train, new)
        origin = "measured on the training images"
    count = counted(channels, "channel")
    say(f"preprocessing for {count}: {new.values}, mean and deviation {origin}")
    return new
