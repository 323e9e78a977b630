"""Approximations that save computation and change predictions a little: token merging and early exit.

`vitkit bench --merge` and `--exit` measure the lost accuracy on the user's images.

Legend: N images, B batch, D width.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from vitkit.evaluation import distilled
from vitkit.models import EarlyExit, Exit, Merging, VisionTransformer, check_can_merge, states_at
from vitkit.models.shortcuts import check_can_exit, check_sure
from vitkit.system.errors import BadData, Unsupported
from vitkit.weights import Classifier

BATCH = 32
FEWEST = 10  # fewest images for fitting exits


def merging(classifier: Classifier, r: int) -> Classifier:
    """The classifier for inference with r tokens merged in every block. Raises VitkitError for a model
    whose tokens cannot be merged."""
    deployed = classifier.for_inference()
    check_can_merge(deployed.model, r)
    assert isinstance(deployed.model, VisionTransformer)  # `check_can_merge` refuses any other
    return _with_model(deployed, Merging(deployed.model, r))


def _with_model(classifier: Classifier, model: Merging | EarlyExit) -> Classifier:
    """The classifier with an approximate model in place of its own, for inference only."""
    return replace(classifier, model=model, unknown=None)  # type: ignore[arg-type]


def check_less_work(classifier: Classifier, merge: Sequence[int], sure: Sequence[float]) -> None:
    """Raises VitkitError for impossible numbers of merged tokens or exit probabilities, and for a model
    that supports neither. Called first, since both are used only at the end."""
    model = classifier.for_inference().model  # at the image size of its preprocessing
    for r in merge:
        check_can_merge(model, r)
    if sure and classifier.preprocessing.is_native:
        raise Unsupported(
            "exits are fitted to images of one size, and the model reads images at their own proportions; "
            "leave `exit` out"
        )
    if sure:
        check_one_class(classifier)
        check_can_exit(model, usual_exits(len(getattr(model, "blocks", ()))))
    for each in sure:
        check_sure(each)


def usual_exits(depth: int) -> tuple[int, ...]:
    """The blocks after which exits are placed: every second one of the second half."""
    return tuple(range((depth + 1) // 2, depth, 2))


def fit_exits(
    classifier: Classifier, images: np.ndarray, after: Sequence[int] | None = None
) -> list[Exit]:
    """Fit exits after some of the blocks to the model's own features and predictions; needs no labels.

    images: prepared images, uint8 (N, 3, h, w). after: the blocks; `usual_exits` by default.

    The regularisation of each exit is chosen by leave-one-out predictions. Raises VitkitError for too
    few images, and for a model without a class token of its own.
    """
    deployed = classifier.for_inference()
    model = deployed.model
    if after is None:
        after = usual_exits(len(getattr(model, "blocks", ())))
    check_can_exit(model, after)
    assert isinstance(model, VisionTransformer)  # `check_can_exit` refuses any other
    if len(images) < FEWEST:
        raise BadData(f"exits are fitted on {FEWEST} images at least, and there are {len(images)}")

    # The hidden states of all images
    parts = []
    for start in range(0, len(images), BATCH):
        batch = torch.from_numpy(images[start : start + BATCH]).to(deployed.device)
        with torch.inference_mode():
            parts.append(states_at(model, deployed.preprocessing.normalise(batch), after))
    *states, features = (torch.cat(each).cpu() for each in zip(*parts, strict=True))

    # One linear map per exit
    exits = []
    for blocks, x in zip(after, states, strict=True):
        weight, bias = distilled(x, features)
        exits.append(Exit(blocks, weight.float(), bias.float()).to(deployed.device))
    return exits


def exiting(classifier: Classifier, exits: Sequence[Exit], sure: float) -> Classifier:
    """The classifier for inference with early exit: an image leaves after the first exit whose highest
    probability is `sure` or more. Raises VitkitError if the outputs are not classes of one image."""
    check_one_class(classifier)
    deployed = classifier.for_inference()
    check_can_exit(deployed.model, [each.after for each in exits])
    assert isinstance(deployed.model, VisionTransformer)  # `check_can_exit` refuses any other
    return _with_model(deployed, EarlyExit(deployed.model, exits, sure))


def check_one_class(classifier: Classifier) -> None:
    """Raises VitkitError if the model does not predict exactly one class per image."""
    if classifier.activation != "softmax":
        raise Unsupported(
            f"early exit needs one class an image; the model's activation is {classifier.activation!r}"
        )
