"""From images on disk to batches on their way to a model."""

from vitkit.data.check import check_images
from vitkit.data.images import BadImage, Picture, open_image
from vitkit.data.loader import Batch, default_workers, eval_batches, train_batches
from vitkit.data.mix import mix, uniforms
from vitkit.data.sources import Source, Splits, open_source, open_splits, stratified, subset, together
from vitkit.data.tables import Columns
from vitkit.data.transforms import Augmentation, Preprocessing, augment
from vitkit.data.workers import WorkerDied

__all__ = [
    "Augmentation",
    "BadImage",
    "Batch",
    "Columns",
    "Picture",
    "Preprocessing",
    "Source",
    "Splits",
    "WorkerDied",
    "augment",
    "check_images",
    "default_workers",
    "eval_batches",
    "mix",
    "open_image",
    "open_source",
    "open_splits",
    "stratified",
    "subset",
    "together",
    "train_batches",
    "uniforms",
]
