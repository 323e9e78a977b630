"""The one place where a loaded model is made to fit another task: a new head, another image
size."""

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
    if labels is None:
        labels = classifier.labels
    elif new_head or tuple(labels) != classifier.labels:
        old = model
        model = with_new_head(old, len(labels))
        sentences += head_sentences(old, model)
    if image is not None and tuple(image) != tuple(model.config.image):
        old = model
        model = resized(old, image, method)
        sentences += size_sentences(old, model)
        preprocessing = preprocessing_for(preprocessing, image)
    adopted = replace(classifier, model=model, preprocessing=preprocessing, labels=tuple(labels))
    return adopted, sentences


def with_new_head(model: Model, classes: int) -> Model:
    """The model with a head of zeros for so many classes, straight on the pooled state; 0 is
    none."""
    with torch.device("meta"):
        new = build(model.config.with_head(classes))
    weights = model.state_dict()
    device = next(model.parameters()).device
    state = {}
    for name, expected in new.state_dict().items():
        if name.startswith("head."):
            state[name] = torch.zeros(expected.shape, device=device)
        else:
            state[name] = weights[name]
    new.load_state_dict(state, assign=True)
    return new.train(model.training)


def preprocessing_for(preprocessing: Preprocessing, image: tuple[int, int]) -> Preprocessing:
    """The same preprocessing for images of another size: what a crop leaves out stays in
    proportion."""
    resize = 0
    if preprocessing.resize:
        share = max(image) / max(preprocessing.size)
        resize = max(round(preprocessing.resize * share), max(image))
    return replace(preprocessing, size=tuple(image), resize=resize)


def head_sentences(old: Model, new: Model) -> list[str]:
    """What a new head means for a model."""
    sentences = ["there was no head"]
    if old.config.classes:
        sentence = f"dropped: the head of {old.config.classes:,} classes"
        weights = old.state_dict()
        dropped = weights.keys() - new.state_dict().keys()
        if "representation.bias" in dropped:
            sentence += f", and its hidden layer of {len(weights['representation.bias'])}"
        sentences = [sentence]
    if new.config.classes:
        sentences.append(f"newly made: a head of {new.config.classes:,} classes, all zeros")
    return sentences


def size_sentences(old: Model, new: Model) -> list[str]:
    """What another size of images means for a model's positions."""
    before, after = old.config.grid, new.config.grid
    grids = f"from {before[0]} x {before[1]} to {after[0]} x {after[1]} patches"
    tables = [name for name in new.state_dict() if name.startswith("positions")]
    shapes = {name: tensor.shape for name, tensor in old.state_dict().items()}
    offsets = [name for name, tensor in new.state_dict().items() if tensor.shape != shapes[name]]
    offsets = [name for name in offsets if name not in tables]

    sentences = []
    if tables and before != after:
        sentences.append(f"resampled: the position table {grids}, as {new.config.resample} does")
    if offsets:
        sentences.append(
            f"stretched: {len(offsets)} tables of offsets along rows and columns, {grids}"
        )
    if getattr(new.config, "position_grid", None):
        extent = new.config.position_grid
        sentences.append(
            f"rotary positions {grids}, over the extent of the {extent[0]} x {extent[1]} that they "
            "were trained on"
        )
    return sentences
