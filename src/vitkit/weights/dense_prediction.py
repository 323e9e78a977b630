"""A pre-trained model made to classify every pixel (semantic segmentation): its head reads the patches of
several blocks, and images are read whole."""

from dataclasses import replace

from vitkit.models import ViTConfig
from vitkit.system.errors import Unsupported
from vitkit.weights.adoption import rebuilt
from vitkit.weights.classifier import Classifier, check_own_weights
from vitkit.weights.fitting import at_own_proportions, over_patches

LARGER = 2  # times its own side, the image that a model reads to classify pixels


def dense(
    classifier: Classifier,
    labels: tuple[str, ...] = (),
    blocks: int = 1,
    tokens: int | None = None,
) -> Classifier:
    """The model with a head of zeros that classifies every pixel by the patches of its last blocks; without
    labels it has no head, and gives its features, (B, N, blocks · D).

    Args:
        classifier: A pre-trained plain Vision Transformer. Its weights are shared, not copied.
        labels: The names of the classes.
        blocks: Number of blocks that the head reads, counted from the last.
        tokens: Most patches of an image; None: those of an image of twice the model's own sides. A model whose
            preprocessing keeps proportions already keeps its number too.

    Raises Unsupported for a model that has no patches, or cannot read them on every grid.
    """
    check_own_weights(classifier.model)
    config = classifier.model.config
    if not isinstance(config, ViTConfig) or config.mixer != "full" or config.stem is not None:
        raise Unsupported(
            f"a {config.title} cannot classify pixels here; give a plain Vision Transformer"
        )
    changed = replace(over_patches(config, blocks), classes=len(labels))
    if tokens is None and not classifier.preprocessing.is_native:
        tokens = LARGER**2 * config.grid[0] * config.grid[1]
    preprocessing = at_own_proportions(classifier.preprocessing, changed, tokens)
    return replace(
        classifier,
        model=rebuilt(classifier.model, changed, zeros=r"head\."),
        preprocessing=preprocessing,
        labels=labels,
        activation="softmax",
        unknown=None,
    )
