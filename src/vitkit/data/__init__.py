"""From images on disk to batches for a model.

Each name is imported when it is first used, so an image can be read and prepared without PyTorch.
"""

from vitkit.system.errors import WorkerDied as WorkerDied
from vitkit.system.lazy import lazily

_FILES = {
    "augmentation.draws": "Draw apply apply_geometry augment draw",
    "augmentation.mixing": "mix uniforms",
    "augmentation.settings": "Augmentation square_before_crop",
    "formats": "DATA_SUFFIXES read_table",
    "formats.folder": "IMAGE_SUFFIXES find_images is_hidden",
    "formats.index": "index_beside write_index",
    "formats.manifest": "MANIFEST_SUFFIXES SUFFIX write_selection",
    "formats.tar": "CLASSES",
    "images.jpeg": "available",
    "images.native": "of_one_size squarest",
    "images.pictures": (
        "Picture in_memory is_stretched open_image picture_for_people picture_to_look_at "
        "pixels_for_people prepared_for_people"
    ),
    "images.pillow": "limit_for_good",
    "images.pixels": "BadImage",
    "images.preprocessing": "Interpolation Preprocessing check_choice",
    "loading.batches": (
        "Batch EvalBatches WholePictures default_workers eval_batches train_batches"
    ),
    "loading.examination": "check_images look_at measured",
    "loading.order": "permutation",
    "loading.resident": "Pixels decoded",
    "loading.workers": "forked in_order ranges worth_starting",
    "sources.bursts": "find_bursts",
    "sources.datasets": "from_dataset",
    "sources.in_memory": (
        "as_pictures from_images images_of_array images_of_tensor pixels_of_pillow"
    ),
    "sources.source": (
        "Source content_digest fingerprint is_elsewhere merge_parts random_subset split_off "
        "heading_of_list stratified stratified_groups subset subset_size without write_list"
    ),
    "sources.recorded": "NotTyped leads_elsewhere refuse_recorded",
    "sources.splits": (
        "Parts Splits grouped_columns grouped_to_measure open_parts open_source open_splits part_of "
        "parts_at source_at splits_at splits_of"
    ),
    "sources.stores": "Files Names RowRanges Store read_file",
    "sources.tables": "Columns Table note_left_out",
    "sources.targets": "Lists TargetKind",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES, "WorkerDied")
