"""From images on disk to batches on their way to a model.

Each name is imported when it is first used: an image is read and prepared without PyTorch.
"""

from vitkit.system.errors import WorkerDied
from vitkit.system.lazy import lazily

_FILE_OF = {
    "Augmentation": "augmentation",
    "BadImage": "images",
    "Batch": "loader",
    "Columns": "tables",
    "Draw": "draws",
    "Parts": "opening",
    "Picture": "images",
    "Preprocessing": "preprocessing",
    "Source": "sources",
    "Splits": "opening",
    "TargetKind": "targets",
    "apply": "draws",
    "apply_geometry": "draws",
    "augment": "draws",
    "check_images": "check",
    "content_digest": "sources",
    "decoded": "engine.resident",
    "default_workers": "loader",
    "draw": "draws",
    "eval_batches": "loader",
    "fingerprint": "sources",
    "from_dataset": "dataset",
    "is_elsewhere": "sources",
    "look_at": "measuring",
    "measured": "measuring",
    "merge_parts": "sources",
    "mix": "mixing",
    "open_image": "images",
    "open_parts": "opening",
    "open_source": "opening",
    "open_splits": "opening",
    "part_of": "opening",
    "picture_for_people": "shown",
    "picture_to_look_at": "shown",
    "prepared_for_people": "shown",
    "random_subset": "subsets",
    "split_off": "sources",
    "splits_of": "opening",
    "square_before_crop": "augmentation",
    "stratified": "sources",
    "subset": "sources",
    "subset_size": "subsets",
    "train_batches": "loader",
    "uniforms": "mixing",
    "without": "sources",
    "write_list": "sources",
}
__all__ = ["WorkerDied", *_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
