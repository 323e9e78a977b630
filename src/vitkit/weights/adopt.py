"""The one place where a loaded model is fitted to another task: a new head, another image size."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from vitkit.data import Preprocessing
from vitkit.models import Model, build, resized
from vitkit.weights.classifier import Classifier, check_labels
from vitkit.weights.own import check_own_weights


def adopt(
    classifier: Classifier,
    *,
    labels: Sequence[str] | None = None,
    image: tuple[int, int] | None = None,
    method: str | None = None,
    new_head: bool = False,
) -> tuple[Classifier, list[str]]:
    """The model for other classes, another image size, or both; and what changed, in sentences.

    Other `labels` than the model's give it a new head of zeros and drop the hidden layer before it
    (Section 3.2, App. B.1.1); `new_head` does that for the same labels too, and no labels leave it
    without a head. `image` (height, width) resamples positions (`method`: google, timm, huggingface
    or torchvision; the origin's own unless told), and the preprocessing follows. All other weights
    are the classifier's own, not copies.

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
        sentences += head_sentences(old, model)

    # Another size of images
    if image is not None and tuple(image) != tuple(model.config.image):
        old = model
        model = resized(old, image, method)
        sentences += size_sentences(old, model)
        preprocessing = preprocessing_for(preprocessing, image)

    adopted = replace(classifier, model=model, preprocessing=preprocessing, labels=tuple(labels))
    return adopted, sentences


def with_new_head(model: Model, classes: int) -> Model:
    """The model with a head of zeros for so many classes, or without one for 0. The hidden layer
    before the head goes: fine-tuning has one linear layer (Section 3.2)."""
    with torch.device("meta"):
        new = build(model.config.with_head(classes))
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
