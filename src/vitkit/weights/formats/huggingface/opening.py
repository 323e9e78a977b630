"""A written model as Transformers itself opens it: for the proof, and for the model card."""

from collections.abc import Callable
from pathlib import Path

from PIL import Image
from torch import Tensor, nn

from vitkit.models import ViTConfig
from vitkit.weights.formats.format import Elsewhere


class _Answer(nn.Module):
    """A model of Transformers that returns a tensor, as vitkit's do, and not a record."""

    def __init__(self, model: nn.Module, read: Callable):
        super().__init__()
        self.model = model
        self.read = read

    def forward(self, images: Tensor) -> Tensor:
        return self.read(self.model(images))


def logits(record) -> Tensor:
    """What a classifier of Transformers answers, (B, K)."""
    return record.logits


def pooler_output(record) -> Tensor:
    """What a model without a head gives by its own pooling, (B, D)."""
    return record.pooler_output


def first_token(record) -> Tensor:
    """The class token of a model without a pooling, (B, D)."""
    return record.last_hidden_state[:, 0]


def mean_of_tokens(record) -> Tensor:
    """The mean of a model's tokens, all of which are patches, (B, D)."""
    return record.last_hidden_state.mean(1)


def open_in_transformers(
    path: Path, architecture: str, read: Callable, **arguments: bool
) -> Elsewhere:
    """A class of Transformers, opened from a written directory by Transformers itself. `read` gets
    the answer out of the record that it returns. Raises ImportError without Transformers."""
    import transformers
    from transformers.utils import logging

    kind = getattr(transformers, architecture)
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # of a second's work, among our own sentences
    try:
        model = kind.from_pretrained(path, local_files_only=True, **arguments)
    finally:
        if bars:
            logging.enable_progress_bar()
    return Elsewhere(f"Transformers {transformers.__version__}", _Answer(model, read))


def pixels_elsewhere(path: Path, image: Image.Image) -> Tensor:
    """What the image processor of a written directory makes of an image, (1, 3, h, w)."""
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(path, local_files_only=True)
    return processor(image, return_tensors="pt")["pixel_values"]


def example(config: ViTConfig) -> str:
    """How to open a directory with Transformers."""
    kind = "AutoModelForImageClassification" if config.classes else "AutoModel"
    return f"""\
from transformers import AutoImageProcessor, {kind}

model = {kind}.from_pretrained("DIRECTORY")
processor = AutoImageProcessor.from_pretrained("DIRECTORY")
"""
