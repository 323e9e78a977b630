"""Weights fitted to a configuration, as far as weights can follow one: what `--init` does."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from vitkit.models import WITHOUT_PARAMETERS, Grid, ModelConfig, ViTConfig, build, with_stride
from vitkit.weights.adaptation.adopting import (
    adopt,
    preprocessing_for,
    size_sentences,
    with_zero_head,
)
from vitkit.weights.classifier import Classifier
from vitkit.weights.ownership import check_own_weights


def fitted_to(
    classifier: Classifier, config: ModelConfig, labels: Sequence[str]
) -> tuple[Classifier, list[str]]:
    """The model with a new head for these labels, and for the images, channels and stride of a
    configuration; and what changed, in sentences. What else differs stays as it is.

    Positions are resampled in the configuration's way. Queries, keys and values without biases get
    biases of zeros if the configuration has them. The head reads what the configuration's does, as
    far as that is a pooling of the same tokens without parameters (WITHOUT_PARAMETERS). Raises
    ValueError as `adopt` does.
    """
    sentences = []
    method = getattr(config, "resample", None)
    own = classifier.model.config
    if isinstance(config, ViTConfig) and isinstance(own, ViTConfig):
        ours = config.tiling  # in pixels
        if own.tiling.size == ours.size and own.tiling.stride != ours.stride:
            classifier, changes = at_stride(classifier, ours.stride, config.image, method)
            sentences += changes
        if config.qkv_bias and not own.qkv_bias:
            classifier = with_zero_biases(classifier)
            sentences.append("newly made: biases of queries, keys and values, all zeros")
    adopted, changes = adopt(
        classifier,
        labels=labels,
        image=config.image,
        channels=config.channels,
        method=method,
        new_head=True,
    )
    sentences += changes
    pool = getattr(config, "pool", "")
    before = adopted.model.config
    if pool in WITHOUT_PARAMETERS and before.pool in WITHOUT_PARAMETERS and pool != before.pool:
        model = with_zero_head(adopted.model, replace(before, pool=pool))
        adopted = replace(adopted, model=model)
        sentences.append(f'the new head reads "{pool}" (pooling), not "{before.pool}"')
    return adopted, sentences


def at_stride(
    classifier: Classifier,
    stride: int | Grid | None,
    image: Grid | None = None,
    method: str | None = None,
) -> tuple[Classifier, list[str]]:
    """The model with patches at other distances, and what changed, in sentences.

    `stride` is in pixels, of a hybrid too; None is the patch, so that they lie side by side. The
    projection of patches stays as it is; positions are resampled to the new grid (`method`: google,
    timm, huggingface or torchvision; the origin's own unless told). Without an `image` it is for the
    largest size not above its own that the patches fit, and the preprocessing follows. At its own
    stride it is the same model. All weights but the positions are the classifier's own, not copies.

    Raises ValueError for a model that is no Vision Transformer, for a size that the patches do not
    fit, for a stride between the positions of a hybrid's feature map, and for a model that was made
    for inference or that another library changed.
    """
    old = classifier.model
    check_own_weights(old)
    if not isinstance(old.config, ViTConfig):
        raise ValueError(
            f"a {old.config.title} has no patches, so they have no stride; leave it out"
        )
    new = with_stride(old, stride, image, method)
    if new.config == old.config:
        return classifier, []
    size, apart = new.config.tiling
    sentences = [
        f"patches of {size[0]} x {size[1]} pixels every {apart[0]} x {apart[1]}, cut by the same "
        "projection",
        *size_sentences(old, new),
    ]
    preprocessing = classifier.preprocessing
    if new.config.image != old.config.image:
        preprocessing = preprocessing_for(preprocessing, new.config.image)
    changed = replace(classifier, model=new, preprocessing=preprocessing, unknown=None)
    return changed, sentences


def with_zero_biases(classifier: Classifier) -> Classifier:
    """The same model with biases of queries, keys and values, all zeros, which computes the same."""
    model = classifier.model
    with torch.device("meta"):
        new = build(replace(model.config, qkv_bias=True))
    weights = model.state_dict()
    device = next(model.parameters()).device
    for name, expected in new.state_dict().items():
        if name not in weights:
            weights[name] = torch.zeros(expected.shape, device=device)
    new.load_state_dict(weights, assign=True)
    return replace(classifier, model=new.train(model.training))
