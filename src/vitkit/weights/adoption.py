"""Adapt a loaded model to another task: other classes, another size of images, other channels.

Legend: C channels of the new images, D filters, k side of a kernel.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice

import torch
from torch import Tensor

from vitkit.data import Preprocessing
from vitkit.models import LeNetConfig, Model, ModelConfig, ViTConfig, as_pair, build, resized
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings
from vitkit.weights.classifier import Classifier, check_own_weights, checked_labels
from vitkit.weights.outputs import counted_classes

COLOURS = 3
OPAQUE = (0.5, 0.5)  # mean and standard deviation of a fourth channel


def adopt(
    classifier: Classifier,
    *,
    labels: Sequence[str] | None = None,
    image: tuple[int, int] | int | None = None,
    channels: int | None = None,
    method: str | None = None,
    new_head: bool = False,
) -> tuple[Classifier, list[str]]:
    """Adapt a model to other classes, another image size or other channels; returns it with sentences on
    what changed.

    Other `labels` than the model's give it a new head of zeros and remove the hidden layer before the
    head (Section 3.2, App. B.1.1); `new_head` does that for equal labels too, and empty labels leave no
    head. `image`, (height, width) or the side of a square, resamples positions (`method` is one of
    RESAMPLE; by default that of the model's source) and adapts the preprocessing. `channels` are those of
    the images: see `with_channels`. All other weights are shared with the classifier, not copied.

    Raises VitkitError for a size that patches do not divide or that the positions do not support, and
    for a model that was made for inference or that another library changed.
    """
    if labels is not None:
        labels = checked_labels(labels)
    model = classifier.model
    check_own_weights(model)
    preprocessing = classifier.preprocessing
    sentences = []

    # A new head
    if labels is None:
        labels = classifier.labels
    elif new_head or labels != classifier.labels:
        old = model
        model = with_new_head(old, len(labels))
        sentences += _head_sentences(old, model)

    # Other channels
    if channels is not None:
        adapted, changes = with_channels(replace(classifier, model=model, labels=()), channels)
        model = adapted.model
        preprocessing = adapted.preprocessing
        sentences += changes

    # Another size of images
    if image is not None and as_pair(image) != model.config.image:
        image = as_pair(image)
        old = model
        model = resized(old, image, method)
        sentences += size_sentences(old, model)
        preprocessing = preprocessing_for(preprocessing, image)

    adopted = replace(classifier, model=model, preprocessing=preprocessing, labels=tuple(labels))
    if model is not classifier.model:  # limits for unknown images belong to one model
        adopted = replace(adopted, unknown=None)
    return adopted, sentences


# Other classes


def with_labels(
    classifier: Classifier, labels: Sequence[str], new_head: bool = False
) -> tuple[Classifier, list[str]]:
    """Give a model the classes that a user names; returns it with sentences on what changed.

    If there are as many names as the head has outputs, they become its labels. Otherwise, or with
    `new_head`, the model gets a new head of zeros. Raises VitkitError if the names are not a list, or if
    most of the model's own classes are among them although their number differs.
    """
    labels = checked_names(labels)
    classes = classifier.model.config.classes
    if new_head or not classes:
        return adopt(classifier, labels=labels, new_head=True)
    if len(labels) == classes:
        if labels == classifier.labels:
            return classifier, []
        sentence = f"labels: yours, for the {counted_classes(classes)} that the head has"
        return replace(classifier, labels=labels), [sentence]

    # A mistake in a list that is meant for the existing head would cost that head
    own = len(set(labels) & set(classifier.labels))
    if 2 * own > classes:
        raise BadSettings(
            f"there are {len(labels):,} labels for a head of {counted_classes(classes)}, and "
            f"{own:,} of them are the head's own; give one for each class, or new_head=True for a "
            "new head of zeros"
        )
    return adopt(classifier, labels=labels, new_head=True)


def checked_names(labels: Sequence[str]) -> tuple[str, ...]:
    """A user's names of classes. Raises VitkitError unless they are a list of unique names."""
    names = checked_labels(labels)
    if not names:
        raise BadSettings("labels is empty; give a list of names, one a class")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadSettings(f"labels holds {twice[0]!r} twice; every class needs a name of its own")
    return names


def with_new_head(model: Model, classes: int) -> Model:
    """The model with a head of zeros for this many classes; 0 removes the head. The hidden layer before
    the head is removed: fine-tuning has one linear layer (Section 3.2)."""
    return with_zero_head(model, model.config.with_head(classes))


def with_zero_head(model: Model, config: ModelConfig) -> Model:
    """The model with a head of zeros. The configuration may have another pooling without parameters."""
    return rebuilt(model, config, zeros=r"head\.")


def headless(classifier: Classifier) -> Classifier:
    """The model without its head. Its output is the former input of the head, for example the class token's
    final state, as in other libraries. All weights are shared with the classifier, not copied."""
    check_own_weights(classifier.model)
    config = classifier.model.config
    if isinstance(config, ViTConfig):
        config = config.headless()
    else:
        config = config.with_head(0)
    model = rebuilt(classifier.model, config)
    return replace(classifier, model=model, labels=(), unknown=None)


def rebuilt(
    model: Model,
    config: ModelConfig,
    weights: Mapping[str, Tensor] | None = None,
    zeros: str | None = None,
) -> Model:
    """Build a model of another configuration with these weights, by default the model's own. Tensors
    whose names match the pattern `zeros` are new, and zero."""
    if weights is None:
        weights = model.state_dict()
    with torch.device("meta"):
        new = build(config)
    device = next(model.parameters()).device
    state = {}
    for name, expected in new.state_dict().items():
        if zeros and re.match(zeros, name):
            state[name] = torch.zeros(expected.shape, device=device)
        else:
            state[name] = weights[name]
    new.load_state_dict(state, assign=True)
    return new.train(model.training)


def _head_sentences(old: Model, new: Model) -> list[str]:
    """Sentences on the change of a head."""
    sentences = []
    if old.config.classes:
        dropped = f"dropped: the head of {old.config.classes:,} classes"
        weights = old.state_dict()
        if "representation.bias" in weights.keys() - new.state_dict().keys():
            dropped += f", and its hidden layer of {len(weights['representation.bias'])}"
        sentences.append(dropped)
    else:
        sentences.append("there was no head")
    if new.config.classes:
        sentences.append(f"newly made: a head of {new.config.classes:,} classes, all zeros")
    return sentences


# Another size of images


def preprocessing_for(preprocessing: Preprocessing, image: tuple[int, int]) -> Preprocessing:
    """The preprocessing for images of another size (height, width).

    The crop keeps the same part of an image. `resize` is one number for both sides, so it is scaled like
    the longer side, which the crop must fit into.
    """
    resize = 0
    if preprocessing.resize:
        scale = max(image) / max(preprocessing.size)
        resize = max(round(preprocessing.resize * scale), max(image))
    return replace(preprocessing, size=image, resize=resize)


def size_sentences(old: Model, new: Model) -> list[str]:
    """Sentences on the changes of a model's positions for another image size."""
    assert not isinstance(old.config, LeNetConfig) and not isinstance(new.config, LeNetConfig)
    before = old.config.grid
    after = new.config.grid
    grids = f"from {before[0]} x {before[1]} to {after[0]} x {after[1]} patches"
    old_state = old.state_dict()
    new_state = new.state_dict()
    sentences = []

    # Position tables (Section 3.2)
    tables = [name for name in new_state if name.startswith("positions")]
    if tables and before != after and isinstance(new.config, ViTConfig):
        sentences.append(f"resampled: the position table {grids}, as {new.config.resample} does")

    # Any other tensor with another shape is an axial block's table of offsets along rows or columns
    changed = [name for name in new_state if new_state[name].shape != old_state[name].shape]
    offsets = [name for name in changed if name not in tables]
    if offsets:
        sentences.append(
            f"stretched: {len(offsets)} tables of offsets along rows and columns, {grids}"
        )

    # Rotary positions have no table
    if isinstance(new.config, ViTConfig) and new.config.position_grid:
        extent = new.config.position_grid
        sentences.append(
            f"rotary positions {grids}, over the extent of the {extent[0]} x {extent[1]} that they "
            "were trained on"
        )
    return sentences


# Other channels


def with_channels(classifier: Classifier, channels: int) -> tuple[Classifier, list[str]]:
    """Adapt a model to images with this many channels; returns it with sentences on what changed.

    - 1: the kernels of the first layer are summed, so that a grey image has the output that it had as
      red, green and blue, up to rounding;
    - 4: the kernels of the fourth channel are zeros, so that it has no effect at first;
    - others: the kernels are repeated, red, green, blue, red and so on, times 3 / C, as in timm.

    Means and standard deviations follow: the mean of the three, 0.5 for the fourth, or repeated. Those
    of images with many channels should be measured (`measured`), and their values are float32.

    Raises VitkitError for a model that is not for red, green and blue.
    """
    model = classifier.model
    before = model.config.channels
    if channels == before:
        return classifier, []
    if channels < 1 or before != COLOURS:
        raise BadSettings(
            f"the model's images have {counted(before, 'channel')}, not {channels}; only weights for red, "
            "green and blue can be adapted to another number of channels"
        )

    # Only the first layer depends on the channels: its kernel, and a bias if there is one
    config = replace(model.config, channels=channels)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in build(config).state_dict().items()}
    weights = dict(model.state_dict())
    (name,) = [name for name, shape in shapes.items() if shape != weights[name].shape]
    kernel = weights[name]  # (D, 3, k, k)
    old = classifier.preprocessing
    preprocessing = preprocessing_for_channels(old, channels)

    if channels == 1:
        weights[name], shift = _summed(kernel, old, preprocessing)
        bias = name.removesuffix("weight") + "bias"
        if bias in weights:
            weights[bias] = weights[bias] + shift
        sentences = [f"summed: the kernels of red, green and blue, {name}, for grey"]
        if not _is_exact(config, old, bias in weights):
            sentences.append("until it is trained, grey images have other outputs than as colours")
    elif channels == 4:
        weights[name] = torch.cat([kernel, torch.zeros_like(kernel[:, :1])], 1)
        sentences = [f"newly made: kernels of zeros for the fourth channel, in {name}"]
    else:
        weights[name] = repeated(kernel, channels)
        sentences = [
            f"repeated: the kernels of red, green and blue, {name}, for {channels} channels"
        ]
    new = rebuilt(model, config, weights)
    adapted = replace(classifier, model=new, preprocessing=preprocessing, unknown=None)
    return adapted, sentences


def _is_exact(config: ModelConfig, colours: Preprocessing, has_bias: bool) -> bool:
    """Whether a model for grey has exactly the outputs of the one for colours.

    Not if kernels are standardised, because the sum of standardised kernels is not standardised. Not if
    the three means differ and there is no bias to compensate, which also fails at padded borders.
    """
    one_mean = len(set(colours.mean)) == 1
    backbone = getattr(config, "backbone", None) or getattr(config, "stem", None)
    if backbone is not None:
        return one_mean and backbone.standardise == "none"
    return one_mean or has_bias


def _summed(kernel: Tensor, colours: Preprocessing, grey: Preprocessing) -> tuple[Tensor, Tensor]:
    """Sum a kernel (D, 3, k, k) for grey: (D, 1, k, k), and the change of the bias, (D,). Grey is
    equivalent to three equal channels, each normalised by its own mean and deviation; it is normalised by
    their means."""
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
    """Repeat a kernel (D, 3, k, k) for C channels as timm does: (D, C, k, k)."""
    order = list(islice(cycle(range(COLOURS)), channels))
    return kernel[:, order] * (COLOURS / channels)


def preprocessing_for_channels(preprocessing: Preprocessing, channels: int) -> Preprocessing:
    """The preprocessing for images with this many channels."""
    mean = preprocessing.mean
    std = preprocessing.std
    values = preprocessing.values
    if channels == len(mean):
        return preprocessing
    if len(mean) not in (1, COLOURS):
        raise BadSettings(
            f"the preprocessing has {counted(len(mean), 'mean')}, but the images have "
            f"{counted(channels, 'channel')}; give a mean and a standard deviation for each"
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
