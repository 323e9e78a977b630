"""Weights for red, green and blue, adapted to images of another number of channels.

Legend: C channels of the new images, D filters, k side of a kernel.
"""

from dataclasses import replace
from itertools import cycle, islice

import torch
from torch import Tensor

from vitkit.data import Preprocessing
from vitkit.models import Model, build
from vitkit.system.console.text import counted
from vitkit.weights.classifier import Classifier

COLOURS = 3
OPAQUE = (0.5, 0.5)  # mean and standard deviation of the channel behind red, green and blue


def with_channels(classifier: Classifier, channels: int) -> tuple[Classifier, list[str]]:
    """The model for images of so many channels, and what changed, in sentences.

    - 1: the kernels of the first layer are summed, so that a grey image gives what the model gave for
      it as red, green and blue, up to rounding;
    - 4: the fourth channel's kernels are zeros, so that it changes nothing at first;
    - others: the kernels are repeated, red, green, blue, red and so on, times 3 / C, as timm has it.

    Means and standard deviations follow: the mean of the three, 0.5 for the fourth, or repeated; those
    of images of many channels are better measured (`measured`), and the values of these are float32.

    Raises ValueError for a model that is not for red, green and blue.
    """
    model = classifier.model
    before = model.config.channels
    if channels == before:
        return classifier, []
    if channels < 1 or before != COLOURS:
        raise ValueError(
            f"the model's images have {counted(before, 'channel')}, not {channels}; weights for red, "
            "green and blue can be adapted to another number of channels, others not"
        )

    # The first layer is what depends on the images: one kernel, and a bias or none
    with torch.device("meta"):
        new = build(replace(model.config, channels=channels))
    weights = dict(model.state_dict())
    shapes = {name: tensor.shape for name, tensor in new.state_dict().items()}
    (name,) = [name for name, shape in shapes.items() if shape != weights[name].shape]
    kernel = weights[name]  # (D, 3, k, k)
    old = classifier.preprocessing
    preprocessing = preprocessing_for_channels(old, channels)

    if channels == 1:
        weights[name], shift = summed(kernel, old, preprocessing)
        bias = name.removesuffix("weight") + "bias"
        if bias in weights:
            weights[bias] = weights[bias] + shift
        sentences = [f"summed: the kernels of red, green and blue, {name}, for grey"]
        if not _is_exact(new, old, bias in weights):
            sentences.append("grey images get other answers than as colours, until it is trained")
    elif channels == 4:
        weights[name] = torch.cat([kernel, torch.zeros_like(kernel[:, :1])], 1)
        sentences = [f"newly made: kernels of zeros for the fourth channel, in {name}"]
    else:
        weights[name] = repeated(kernel, channels)
        sentences = [
            f"repeated: the kernels of red, green and blue, {name}, for {channels} channels"
        ]
    new.load_state_dict(weights, assign=True)
    adapted = replace(
        classifier, model=new.train(model.training), preprocessing=preprocessing, unknown=None
    )
    return adapted, sentences


def _is_exact(model: Model, colours: Preprocessing, has_bias: bool) -> bool:
    """Whether a model for grey answers as the one for colours: the sum of standardised kernels is not
    standardised; and where the three means differ, only a bias holds what that makes, and none holds
    it at an image's padded border."""
    one_mean = len(set(colours.mean)) == 1
    backbone = getattr(model.config, "backbone", None) or getattr(model.config, "stem", None)
    if backbone is not None:
        return one_mean and backbone.standardise == "none"
    return one_mean or has_bias


def summed(kernel: Tensor, colours: Preprocessing, grey: Preprocessing) -> tuple[Tensor, Tensor]:
    """A kernel (D, 3, k, k) for grey, (D, 1, k, k), and what the bias grows by, (D,): three equal
    channels, each normalised by its own mean and deviation, as one by the mean of these."""
    exact = kernel.double()
    mean = exact.new_tensor(colours.mean)[:, None, None]  # (3, 1, 1)
    std = exact.new_tensor(colours.std)[:, None, None]
    # (x - mean) / std of a colour = slope · (x - mean) / std of grey + offset
    slope = grey.std[0] / std
    offset = (grey.mean[0] - mean) / std
    one = (exact * slope).sum(1, keepdim=True)
    shift = (exact * offset).sum((1, 2, 3))
    return one.to(kernel.dtype), shift.to(kernel.dtype)


def repeated(kernel: Tensor, channels: int) -> Tensor:
    """A kernel (D, 3, k, k) for C channels, (D, C, k, k): as timm adapts them."""
    order = list(islice(cycle(range(COLOURS)), channels))
    return kernel[:, order] * (COLOURS / channels)


def preprocessing_for_channels(preprocessing: Preprocessing, channels: int) -> Preprocessing:
    """The same preprocessing for images of so many channels."""
    mean = preprocessing.mean
    std = preprocessing.std
    values = preprocessing.values
    if channels == len(mean):
        return preprocessing
    if len(mean) not in (1, COLOURS):
        raise ValueError(
            f"the preprocessing has {counted(len(mean), 'mean')}, and the images have "
            f"{counted(channels, 'channel')}; give a mean and a deviation for each"
        )
    if channels == 1:
        mean = (sum(mean) / len(mean),)
        std = (sum(std) / len(std),)
    elif channels == 4 and len(mean) == COLOURS:
        mean = (*mean, OPAQUE[0])
        std = (*std, OPAQUE[1])
    else:
        mean = tuple(islice(cycle(mean), channels))
        std = tuple(islice(cycle(std), channels))
        if channels != COLOURS:
            values = "float32"
    return replace(preprocessing, mean=mean, std=std, values=values)
