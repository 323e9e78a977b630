"""From a folder of photographs to a model: a first one in seconds, a better one in minutes."""

from vitkit.system.lazy import lazily

_FILES = {
    "candidates": "CLOSED_FORM best candidate head_on question solved targets_of",
    "first_model": "guess",
    "from_folder": "Answer answer measured_by",
    "plan": "OtherPlan read_plan",
    "record": "check_recorded is_quick weakest_class write_page",
    "head_inputs": "TOKEN kinds_for part_of shared_products widest_of",
    "fine_tuning": "RUN",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
