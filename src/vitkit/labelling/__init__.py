"""Labelling in conversation: which photographs to ask a person about, the answers, and the page for
them."""

from vitkit.system.lazy import lazily

_FILES = {
    "answers": "Answer Answers Difference JOURNAL kappa",
    "active_learning": "next_to_label",
    "checking": "Check Checking",
    "directory": "folder_of_sitting open_for_one record_sitting",
    "estimate": "Estimate",
    "http": "Table application sentences",
    "feature_thread": "FeatureThread",
    "questions": "Question",
    "sitting": "PHOTOGRAPHS Sitting SittingProgress",
    "saving": "TakenHome save_model sort_into",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
