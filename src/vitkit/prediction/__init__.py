"""From images, files or streams of them to named classes with probabilities, and where those go."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Answered": "predictions",
    "BATCH": "predictions",
    "Chosen": "parts",
    "Doubt": "predictions",
    "Examples": "items",
    "Item": "items",
    "LookPictures": "attention",
    "Looking": "attention",
    "Parts": "parts",
    "Pictures": "items",
    "Prediction": "predictions",
    "Prepared": "batches",
    "RowsFile": "rows",
    "Sorter": "sorting",
    "answers": "predictions",
    "arrivals": "batches",
    "as_items": "in_memory",
    "as_json": "rows",
    "as_values": "rows",
    "check_rows_file": "rows",
    "check_settings": "predictions",
    "doubts": "predictions",
    "from_sequence": "batches",
    "from_stream": "batches",
    "items_of": "items",
    "limits_of": "predictions",
    "names_from": "batches",
    "pictures": "items",
    "predict": "predictions",
    "predictions_of": "predictions",
    "prepare": "batches",
    "read_by_head": "predictions",
    "spread": "items",
    "words_of_model": "items",
    "write_parts": "parts",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
