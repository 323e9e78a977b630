"""Less work, with answers that differ a little: tokens merged, and images that exit early.

`vitkit bench --merge` and `--exit` measure what it costs on images of one's own.

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
FEWEST = 10  # images that exits can be fitted on


def merging(classifier: Classifier, r: int) -> Classifier:
    """The classifier for inference with r tokens merged in every block. Raises VitkitError for a model
    whose tokens cannot be merged."""
    deployed = classifier.for_inference()
    check_can_merge(deployed.model, r)
    assert isinstance(deployed.model, VisionTransformer)  # no other can
    return _answering(deployed, Merging(deployed.model, r))


def _answering(classifier: Classifier, model: Merging | EarlyExit) -> Classifier:
    """The classifier with a model that takes the place of its own, for answers alone."""
    return replace(classifier, model=model, unknown=None)  # type: ignore[arg-type]


def check_less_work(classifier: Classifier, merge: Sequence[int], sure: Sequence[float]) -> None:
    """Raises VitkitError for numbers of tokens, and probabilities of exits, that cannot be, and for a
    model that can do neither: at once, where they are used at the end."""
    model = classifier.for_inference().model  # of the size of its preprocessing
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
    """After how many of a model's blocks it may answer: from the half on, every second one."""
    return tuple(range((depth + 1) // 2, depth, 2))


def fit_exits(
    classifier: Classifier, images: np.ndarray, after: Sequence[int] | None = None
) -> list[Exit]:
    """Exits after some of the blocks, fitted to the model's own features of prepared images, uint8
    (N, 3, h, w); labels are not needed.

    How strongly each is regularised is chosen by the exact answers of fits without an image. Raises
    VitkitError for too few images, and for a model without a class token of its own.
    """
    deployed = classifier.for_inference()
    model = deployed.model
    if after is None:
        after = usual_exits(len(getattr(model, "blocks", ())))
    check_can_exit(model, after)
    assert isinstance(model, VisionTransformer)  # no other can
    if len(images) < FEWEST:
        raise BadData(f"exits are fitted on {FEWEST} images at least, and there are {len(images)}")

    # The states of all images
    parts = []
    for start in range(0, len(images), BATCH):
        batch = torch.from_numpy(images[start : start + BATCH]).to(deployed.device)
        with torch.inference_mode():
            parts.append(states_at(model, deployed.preprocessing.normalise(batch), after))
    *states, features = (torch.cat(each).cpu() for each in zip(*parts, strict=True))

    # A map for each exit
    exits = []
    for blocks, x in zip(after, states, strict=True):
        weight, bias = distilled(x, features)
        exits.append(Exit(blocks, weight.float(), bias.float()).to(deployed.device))
    return exits


def exiting(classifier: Classifier, exits: Sequence[Exit], sure: float) -> Classifier:
    """The classifier for inference, which answers an image after the first exit that gives a class a
    probability of `sure`. Raises VitkitError if the outputs are not classes of one image."""
    check_one_class(classifier)
    deployed = classifier.for_inference()
    check_can_exit(deployed.model, [each.after for each in exits])
    assert isinstance(deployed.model, VisionTransformer)  # no other can
    return _answering(deployed, EarlyExit(deployed.model, exits, sure))


def check_one_class(classifier: Classifier) -> None:
    """Raises VitkitError if the outputs are not classes, one an image."""
    if classifier.activation != "softmax":
        raise Unsupported(
            f"early exit needs one class an image; the model's activation is {classifier.activation!r}"
        )
