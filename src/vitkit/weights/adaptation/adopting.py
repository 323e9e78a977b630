"""The one place where a loaded model is fitted to another task: a new head, another image size."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

import torch

from vitkit.data import Preprocessing
from vitkit.models import Model, ModelConfig, as_pair, build, resized
from vitkit.weights.adaptation.channels import with_channels
from vitkit.weights.classifier import Classifier, check_labels
from vitkit.weights.labels import counted
from vitkit.weights.ownership import check_own_weights


def adopt(
    classifier: Classifier,
    *,
    labels: Sequence[str] | None = None,
    image: tuple[int, int] | int | None = None,
    channels: int | None = None,
    method: str | None = None,
    new_head: bool = False,
) -> tuple[Classifier, list[str]]:
    """The model for other classes, another image size, other channels, or all of these; and what
    changed, in sentences.

    Other `labels` than the model's give it a new head of zeros and drop the hidden layer before it
    (Section 3.2, App. B.1.1); `new_head` does that for the same labels too, and no labels leave it
    without a head. `image`, (height, width) or one side of a square, resamples positions (`method`: google, timm, huggingface
    or torchvision; the origin's own unless told), and the preprocessing follows. `channels` are those
    of the images: see `with_channels`. All other weights are the classifier's own, not copies.

    Raises ValueError for a size that patches do not divide, or that positions have no meaning for,
    and for a model that was made for inference or that another library changed.
    """
    if labels is not None:
        check_labels(labels)
    model = classifier.model
    check_own_weights(model)
    preprocessing = classifier.preprocessing
    sentences = []

    # A new head
    if labels is None:
        labels = classifier.labels
    elif new_head or tuple(labels) != classifier.labels:
        old = model
        model = with_new_head(old, len(labels))
        classifier = replace(classifier, unknown=None)
        sentences += head_sentences(old, model)

    # Other channels
    if channels is not None:
        adapted, changes = with_channels(replace(classifier, model=model, labels=()), channels)
        classifier = replace(classifier, unknown=adapted.unknown)
        model = adapted.model
        preprocessing = adapted.preprocessing
        sentences += changes

    # Another size of images
    image = as_pair(image)
    if image is not None and tuple(image) != tuple(model.config.image):
        old = model
        model = resized(old, image, method)
        classifier = replace(classifier, unknown=None)
        sentences += size_sentences(old, model)
        preprocessing = preprocessing_for(preprocessing, image)

    adopted = replace(classifier, model=model, preprocessing=preprocessing, labels=tuple(labels))
    return adopted, sentences


def with_labels(
    classifier: Classifier, labels: Sequence[str], new_head: bool = False
) -> tuple[Classifier, list[str]]:
    """The model for the classes that a user names, and what changed, in sentences.

    As many names as the head has outputs are names of these; other than as many, or `new_head`,
    give it a new head of zeros. Raises ValueError for what is no list of names, and for one that
    most of the model's own classes are in, though it is not as long: a mistake in such a list would
    cost the head.
    """
    labels = checked_names(labels)
    classes = classifier.model.config.classes
    if new_head or not classes:
        return adopt(classifier, labels=labels, new_head=True)
    if len(labels) == classes:
        if labels == classifier.labels:
            return classifier, []
        sentence = f"labels: yours, for the {counted(classes)} that the head has"
        return replace(classifier, labels=labels), [sentence]

    own = len(set(labels) & set(classifier.labels))
    if 2 * own > classes:
        raise ValueError(
            f"there are {len(labels):,} labels for a head of {counted(classes)}, and {own:,} of them "
            "are the head's own; give one for each class, or new_head=True for a new head of zeros"
        )
    return adopt(classifier, labels=labels, new_head=True)


def checked_names(labels: Sequence[str]) -> tuple[str, ...]:
    """The names of classes that a user gives, as a tuple. Raises ValueError for what is no list of
    names, for an empty one, and for a name that is there twice."""
    check_labels(labels)
    if not isinstance(labels, Iterable):
        raise ValueError(f"labels is {labels!r}; give a list of names, one a class")
    if isinstance(labels, Set | Mapping):  # no order, or not that of the classes
        kind = type(labels).__name__
        raise ValueError(f"labels is a {kind}; give a list of names, in the order of the classes")
    names = tuple(labels)
    if not names:
        raise ValueError("labels is empty; give a list of names, one a class")
    for name in names:
        if not isinstance(name, str):
            raise ValueError(
                f"labels holds {name!r}, which is no string; give a name for each class"
            )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"labels holds {twice[0]!r} twice; every class needs a name of its own")
    return tuple(str(name) for name in names)  # numpy's strings become ordinary ones


def with_new_head(model: Model, classes: int) -> Model:
    """The model with a head of zeros for so many classes, or without one for 0. The hidden layer
    before the head goes: fine-tuning has one linear layer (Section 3.2)."""
    return with_zero_head(model, model.config.with_head(classes))


def with_zero_head(model: Model, config: ModelConfig) -> Model:
    """The model of a configuration that differs from the model's own in its head alone, or in a
    pooling without parameters, with a head of zeros."""
    with torch.device("meta"):
        new = build(config)
    weights = model.state_dict()
    device = next(model.parameters()).device
    state = {}  # of the new model
    for name, expected in new.state_dict().items():
        if name.startswith("head."):
            state[name] = torch.zeros(expected.shape, device=device)
        else:
            state[name] = weights[name]
    new.load_state_dict(state, assign=True)
    return new.train(model.training)


def preprocessing_for(preprocessing: Preprocessing, image: tuple[int, int]) -> Preprocessing:
    """The same preprocessing for images of another size (height, width).

    The part of an image that the crop cuts off stays the same. `resize` is one number for both
    sides, so it goes by the longer one, which the crop has to fit into.
    """
    resize = 0
    if preprocessing.resize:
        scale = max(image) / max(preprocessing.size)
        resize = max(round(preprocessing.resize * scale), max(image))
    return replace(preprocessing, size=tuple(image), resize=resize)


def head_sentences(old: Model, new: Model) -> list[str]:
    """What changed with a new head, in sentences for people."""
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


def size_sentences(old: Model, new: Model) -> list[str]:
    """What another size of images changed of a model's positions, in sentences for people."""
    before = old.config.grid
    after = new.config.grid
    grids = f"from {before[0]} x {before[1]} to {after[0]} x {after[1]} patches"
    old_state = old.state_dict()
    new_state = new.state_dict()
    sentences = []

    # Position tables (Section 3.2)
    tables = [name for name in new_state if name.startswith("positions")]
    if tables and before != after:
        sentences.append(f"resampled: the position table {grids}, as {new.config.resample} does")

    # Everything else of another shape is an axial block's table of offsets along rows or columns
    changed = [name for name in new_state if new_state[name].shape != old_state[name].shape]
    offsets = [name for name in changed if name not in tables]
    if offsets:
        sentences.append(
            f"stretched: {len(offsets)} tables of offsets along rows and columns, {grids}"
        )

    # Rotary positions have no table
    if getattr(new.config, "position_grid", None):
        extent = new.config.position_grid
        sentences.append(
            f"rotary positions {grids}, over the extent of the {extent[0]} x {extent[1]} that they "
            "were trained on"
        )
    return sentences
