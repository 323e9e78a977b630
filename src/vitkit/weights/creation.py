"""`create` for users: a model by name, with the official initial weights or with published ones."""

from dataclasses import fields, replace
from pathlib import Path

import torch

from vitkit import models
from vitkit.models import Model, ModelConfig, called, named
from vitkit.weights.adoption import rebuilt, with_new_head
from vitkit.weights.fitting import at_stride
from vitkit.weights.store import load

# Settings that a loaded model is fitted to
FITTED = ("image", "stride", "classes", "head_bias")
# Settings that change no weight's shape, and nothing in evaluation
FOR_TRAINING = ("dropout", "attention_dropout", "stochastic_depth")


def create(
    model: ModelConfig | str,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    weights: Path | str | None = None,
    **changes,
) -> Model:
    """A network by its name or configuration: `create("B/16", classes=10)`, with the official
    initial weights; `create("B/16", classes=10, weights="imagenet21k/ViT-B_16")`, with published
    ones and a new head of zeros.

    It is a bare network, in training mode: `load(weights, labels=...)` gives the same one with the
    preprocessing that belongs to it.

    `weights` is whatever `load` takes, which also prints what it found. It decides what a name
    leaves open (eps, the form of the GELU, the pooling). `classes` keeps the head if that has as
    many; positions are resampled to another `image` or `stride`; dropout, attention_dropout and
    stochastic_depth are as you say. With a configuration in place of a name every setting is
    compared. `seed` makes initial weights repeatable, whatever the device, and leaves torch's own
    generator as it was.

    Raises ValueError for an unknown name or setting, and for weights of another architecture.
    """
    if "pretrained" in changes:  # timm's
        raise ValueError(
            "say which pre-trained weights: a file, a folder or a name as weights=..., in place of "
            "pretrained"
        )
    if weights is None:
        return models.create(model, device, seed, **changes)
    if seed is not None:
        raise ValueError("seed is for initial weights; leave it out, or leave out weights")

    # What is asked for: what is said with a name, or every setting of a configuration
    if isinstance(model, str):
        wanted = named(model, **changes)
        asked = set(changes)
    elif changes:
        return models.create(model, **changes)  # which refuses them
    else:
        wanted = model
        asked = {field.name for field in fields(model)}

    # The published model, for the images and classes that are asked for
    image = None
    if "image" in asked:
        image = wanted.image
    if getattr(wanted, "stride", None) is None:
        network = load(weights, image=image).model
    else:
        overlapping, _ = at_stride(load(weights), wanted.tiling.stride, image)
        network = overlapping.model
    _check_architecture(weights, network.config, wanted, asked)
    if "classes" in asked and wanted.classes != network.config.classes:
        network = with_new_head(network, wanted.classes)

    # What is for training alone
    settings = {name: getattr(wanted, name) for name in FOR_TRAINING if name in asked}
    if settings:
        network = rebuilt(network, replace(network.config, **settings))
    return network.train().to(device)


def _check_architecture(
    weights: Path | str, published: ModelConfig, wanted: ModelConfig, asked: set[str]
) -> None:
    """Raises ValueError, with all that differs, unless the published model is of the architecture
    that is wanted, and as the settings that are asked for say."""
    if called(published) != called(wanted):
        raise ValueError(f"{weights} holds {called(published)}, not {called(wanted)}")
    differences = []
    for name in sorted(asked - {*FITTED, *FOR_TRAINING}):
        theirs = getattr(published, name)
        ours = getattr(wanted, name)
        if theirs != ours:
            differences.append(f"{name} is {theirs!r} there, {ours!r} here")
    if differences:
        raise ValueError(f"{weights} holds another model: {'; '.join(differences)}")
