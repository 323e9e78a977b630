"""Do two models compute the same? Layer by layer, on images: how users check a conversion, ours or their own."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import NamedTuple

from torch import Tensor, nn

from vitkit.data.images import Picture
from vitkit.weights import Classifier


class Layer(NamedTuple):
    """One place in both models."""

    name: str
    largest: float
    """Largest difference of any number, over all images."""
    scale: float
    """Largest number of the first model's there."""


class Comparison(NamedTuple):
    """What two models have in common on some images."""

    images: int
    layers: tuple[Layer, ...]
    """Embedding, blocks, features and logits, as far as both models have them in the same shape."""
    same_top: int
    """Images that both give the same likeliest class."""


def compare(
    one: Classifier, two: Classifier, pictures: Iterable[Picture], batch: int = 16
) -> Comparison:
    """Both models on every picture, each through its own preprocessing; classes meet by name.

    Raises ValueError where there is no picture, or a model has no head to compare.
    """
    pictures, found, images, same = iter(pictures), {}, 0, 0
    while group := list(islice(pictures, batch)):
        (logits, seen), (others, also) = _seen(one, group), _seen(two, group)
        seen, also = {**seen, "logits": logits}, {**also, "logits": others}
        for name in seen.keys() & also.keys():
            if seen[name].shape == also[name].shape:
                largest, scale = found.get(name, (0.0, 0.0))
                largest = max(largest, float((seen[name] - also[name]).abs().max()))
                found[name] = (largest, max(scale, float(seen[name].abs().max())))
        order = list(seen)
        images += len(group)
        if one.labels and two.labels:
            pairs = zip(logits.argmax(-1).tolist(), others.argmax(-1).tolist(), strict=True)
            same += sum(one.labels[i] == two.labels[j] for i, j in pairs)
    if not images:
        raise ValueError("there is no image to compare the models on")
    return Comparison(
        images, tuple(Layer(name, *found[name]) for name in order if name in found), same
    )


def _seen(classifier: Classifier, group: list[Picture]) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and what every layer gave on the way, for every token."""
    images = classifier.batch(group)
    with _watched(classifier.model) as seen:
        return classifier.logits(images), seen


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    seen: dict[str, Tensor] = {}
    blocks, trimmed = list(getattr(model, "blocks", [])), getattr(model, "tokens_read", None)
    with ExitStack() as undo:
        if blocks:
            first = blocks[0].register_forward_pre_hook(
                lambda _, inputs: seen.update(embedding=inputs[0])
            )
            undo.callback(first.remove)
        for i, block in enumerate(blocks):
            hook = block.register_forward_hook(
                lambda _, inputs, out, name=f"block {i}": seen.update({name: out})
            )
            undo.callback(hook.remove)
        undo.callback(
            model.head.register_forward_pre_hook(
                lambda _, inputs: seen.update(features=inputs[0])
            ).remove
        )
        if trimmed is not None:  # the last block for every token, not for the class token alone
            model.tokens_read = None
            undo.callback(setattr, model, "tokens_read", trimmed)
        yield seen
