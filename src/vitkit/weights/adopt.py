"""The one place where a loaded model is made to fit another task: a new head, positions for another size of images."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from vitkit.models import RESAMPLE, ViTConfig, build, resample
from vitkit.weights.description import Classifier


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
    (height, width) resamples the position table (`method`: google, timm, huggingface or torchvision; the origin's own
    unless told), the rows of class token and registers as they are, and the preprocessing follows. All other weights are
    the classifier's own, not copies. Raises ValueError for a size that the patch does not divide.
    """
    old, said = classifier.model.config, []
    new, state, prepare = old, dict(classifier.model.state_dict()), classifier.preprocessing
    if labels is not None and (new_head or tuple(labels) != classifier.labels):
        new, made = _new_head(new, len(labels), said)
        state = {
            name: t for name, t in state.items() if name.partition(".")[0] not in ("head", "representation")
        } | made
    if image is not None and tuple(image) != old.image:
        if method is not None and method not in RESAMPLE:
            raise ValueError(f"no resampling method {method!r}; there are {', '.join(RESAMPLE)}")
        new = replace(new, image=tuple(image), resample=method or old.resample)
        if "positions.table" in state:
            table = state["positions.table"]
            state["positions.table"] = resample(table, old.grid, new.grid, new.resample)
            (h, w), (h2, w2) = old.grid, new.grid
            said.append(f"resampled: the position table from {h} x {w} to {h2} x {w2} patches, as {new.resample} does")
        share = max(image) / max(prepare.size)
        prepare = replace(
            prepare, size=tuple(image), resize=max(round(prepare.resize * share), max(image)) if prepare.resize else 0
        )
    with torch.device("meta"):
        model = build(new)
    model.load_state_dict(state, assign=True)
    model.train(classifier.model.training)
    kept = classifier.labels if labels is None else tuple(labels)
    return Classifier(model, prepare, kept, classifier.origin), said


def _new_head(config: ViTConfig, classes: int, said: list[str]) -> tuple[ViTConfig, dict[str, torch.Tensor]]:
    """Another head, zero, straight on the pooled state."""
    hidden = f", and its hidden layer of {config.representation}" if config.representation else ""
    said.append(f"dropped: the head of {config.classes:,} classes{hidden}" if config.classes else "there was no head")
    if classes:
        said.append(f"newly made: a head of {classes:,} classes, all zeros")
    new = replace(config, classes=classes, representation=0, head_bias=0.0)
    names = ("head.token", "head.distilled") if config.pool == "distilled" else ("head",)
    names = names if classes else ()
    made = {f"{name}.weight": torch.zeros(classes, config.width) for name in names}
    return new, made | {f"{name}.bias": torch.zeros(classes) for name in names}
