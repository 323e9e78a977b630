"""From images, files or streams to named classes with probabilities, and to files of
predictions."""

from vitkit.system.lazy import lazily

_FILES = {
    "attention": "LookPictures Looking",
    "batches": "Prepared arrivals from_sequence from_stream names_from prepare",
    "given": "ImageLike",
    "in_memory": "as_items",
    "items": "Examples Item Pictures items_of pictures spread words_of_model",
    "parts": "Chosen Parts write_parts",
    "predictions": (
        "Answered BATCH Doubt LIKELY Prediction answers check_settings doubts least_open likely "
        "logits_and_strangeness predict predictions_of"
    ),
    "rows": "RowsFile as_json as_values check_rows_file csv_cell",
    "sorting": "Sorter",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
