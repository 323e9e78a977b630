"""From images on disk to batches on their way to a model."""

from vitkit.data.augmentation import Augmentation
from vitkit.data.check import check_images
from vitkit.data.dataset import from_dataset
from vitkit.data.draws import Draw, apply, apply_geometry, augment, draw
from vitkit.data.engine.resident import decoded
from vitkit.data.images import BadImage, Picture, open_image
from vitkit.data.loader import Batch, default_workers, eval_batches, train_batches
from vitkit.data.mix import mix, uniforms
from vitkit.data.opening import Parts, Splits, open_parts, open_source, open_splits
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources import (
    Source,
    content_digest,
    fingerprint,
    is_elsewhere,
    merge_parts,
    split_off,
    stratified,
    subset,
    without,
    write_list,
)
from vitkit.data.tables import Columns
from vitkit.data.targets import TargetKind
from vitkit.system.errors import WorkerDied

__all__ = [
    "Augmentation",
    "BadImage",
    "Batch",
    "Columns",
    "Draw",
    "Parts",
    "Picture",
    "Preprocessing",
    "Source",
    "Splits",
    "TargetKind",
    "WorkerDied",
    "apply",
    "apply_geometry",
    "augment",
    "check_images",
    "content_digest",
    "is_elsewhere",
    "decoded",
    "default_workers",
    "draw",
    "eval_batches",
    "fingerprint",
    "from_dataset",
    "mix",
    "open_image",
    "open_parts",
    "open_source",
    "open_splits",
    "split_off",
    "stratified",
    "subset",
    "merge_parts",
    "train_batches",
    "uniforms",
    "without",
    "write_list",
]
