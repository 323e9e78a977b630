"""From images on disk to batches on their way to a model."""

from vitkit.data.check import check_images
from vitkit.data.images import BadImage, Picture, open_image
from vitkit.data.likeness import Pair
from vitkit.data.loader import Batch, default_workers, eval_batches, train_batches
from vitkit.data.mix import mix, uniforms
from vitkit.data.pack import Packed, Packing, pack
from vitkit.data.progress import bar
from vitkit.data.resident import decoded
from vitkit.data.sources import (
    Source,
    Splits,
    fingerprint,
    open_parts,
    open_source,
    open_splits,
    stratified,
    subset,
    together,
    without,
    write_list,
)
from vitkit.data.survey import Survey, other_class, same_files, survey, twins
from vitkit.data.tables import Columns
from vitkit.data.transforms import Augmentation, Preprocessing, augment
from vitkit.data.workers import WorkerDied

__all__ = [
    "Augmentation",
    "BadImage",
    "Batch",
    "Columns",
    "Packed",
    "Packing",
    "Pair",
    "Picture",
    "Preprocessing",
    "Source",
    "Splits",
    "Survey",
    "WorkerDied",
    "augment",
    "bar",
    "check_images",
    "decoded",
    "default_workers",
    "eval_batches",
    "fingerprint",
    "mix",
    "open_image",
    "open_parts",
    "open_source",
    "open_splits",
    "other_class",
    "pack",
    "same_files",
    "stratified",
    "subset",
    "survey",
    "together",
    "train_batches",
    "twins",
    "uniforms",
    "without",
    "write_list",
]
