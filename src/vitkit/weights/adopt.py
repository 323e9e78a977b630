"""The one place where a loaded model is made to fit another task: a new head, positions for another size of images."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vitkit.models import RESAMPLE, LeNetConfig, ModelConfig, ViTConfig, build, resample
from vitkit.weights.classifier import Classifier


def adopt(
    classifier: Classifier,
    *,
    labels: Sequence[str] | None = None,
    image: tuple[int, int] | None = None,
    method: str | None = None,
    new_head: bool = False,
) -> tuple[Classifier, list[str]]:
    """The model for other classes, another image size, or both, and what was changed, one sentence each.

    Other `labels` than the model's give it a new head of zeros and drop the hidden layer before it (Section 3.2, App.
    B.1.1); `new_head` does that for the same labels too, and no labels leave it without a head. `image`
    (height, width) resamples learned positions (`method`: google, timm, huggingface or torchvision; the origin's own
    unless told), the rows of class token and registers as they are, and the preprocessing follows. All other weights are
    the classifier's own, not copies. Raises ValueError for a size that the patch does not divide, or that the positions
    have no meaning for.
    """
    old, said = classifier.model.config, []
    new, state, prepare = old, dict(classifier.model.state_dict()), classifier.preprocessing
    fresh = labels is not None and (new_head or tuple(labels) != classifier.labels)
    if fresh:
        new = _new_head(new, len(labels), said)
    if image is not None and tuple(image) != old.image:
        new = _new_size(new, tuple(image), method)
        share = max(image) / max(prepare.size)
        prepare = replace(
            prepare,
            size=tuple(image),
            resize=max(round(prepare.resize * share), max(image)) if prepare.resize else 0,
        )
    with torch.device("meta"):
        model = build(new)
    expected = model.state_dict()
    if fresh:
        gone = ("head", "representation") if isinstance(new, ViTConfig) else ("head",)
        state = {name: t for name, t in state.items() if name.partition(".")[0] not in gone}
        state |= {
            name: torch.zeros(t.shape) for name, t in expected.items() if name.startswith("head.")
        }
    if new.image != old.image:
        state |= _resampled(state, expected, old, new, said)
    model.load_state_dict(state, assign=True)
    model.train(classifier.model.training)
    kept = classifier.labels if labels is None else tuple(labels)
    return replace(classifier, model=model, preprocessing=prepare, labels=kept), said


def _new_head(config: ModelConfig, classes: int, said: list[str]) -> ModelConfig:
    """Another head, straight on the pooled state."""
    width = config.representation if isinstance(config, ViTConfig) else 0
    hidden = f", and its hidden layer of {width}" if width else ""
    said.append(
        f"dropped: the head of {config.classes:,} classes{hidden}"
        if config.classes
        else "there was no head"
    )
    if classes:
        said.append(f"newly made: a head of {classes:,} classes, all zeros")
    new = replace(config, classes=classes, head_bias=0.0)
    return replace(new, representation=0) if isinstance(new, ViTConfig) else new


def _new_size(config: ModelConfig, image: tuple[int, int], method: str | None) -> ModelConfig:
    """For images of another size."""
    if method is not None and method not in RESAMPLE:
        raise ValueError(f"no resampling method {method!r}; there are {', '.join(RESAMPLE)}")
    if isinstance(config, LeNetConfig):
        raise ValueError(f"LeNet-5 takes images of 32 x 32 pixels, not {image[0]} x {image[1]}")
    if not isinstance(config, ViTConfig):
        return replace(config, image=image)
    new = replace(config, image=image, resample=method or config.resample)
    if new.positions == "relative" and new.grid != config.grid:
        raise ValueError(
            f"relative positions of {config.grid[0]} x {config.grid[1]} patches have no meaning on {new.grid[0]} x "
            f"{new.grid[1]}: in raster order an offset is another direction there"
        )
    return new


def _resampled(
    state: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    old: ModelConfig,
    new: ModelConfig,
    said: list[str],
) -> dict[str, Tensor]:
    """Every table of positions for images of the new size."""
    grids = f"from {old.grid[0]} x {old.grid[1]} to {new.grid[0]} x {new.grid[1]} patches"
    added, within = {}, {}
    for name, table in state.items():
        if re.fullmatch(r"positions(\.\d+)?\.table", name):
            added[name] = resample(table, old.grid, new.grid, new.resample)
        elif (
            table.shape != expected[name].shape
        ):  # of columns or rows, or of the offsets along one axis
            axes = (1, table.shape[1]), (1, expected[name].shape[1])
            one = name.startswith("positions")
            (added if one else within)[name] = resample(
                table, *axes, new.resample if one else "google"
            )
    if added:
        said.append(f"resampled: the position table {grids}, as {new.resample} does")
    if within:
        said.append(f"stretched: {len(within)} tables of offsets along rows and columns, {grids}")
    if isinstance(new, ViTConfig) and new.positions == "rotary":
        said.append(
            f"rotary positions {grids}: they count the new patches, and are not stretched over the old extent"
        )
    return added | within
