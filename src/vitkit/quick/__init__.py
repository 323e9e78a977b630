"""From a folder of photographs to a model: a first one in seconds, a better one in minutes."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Answer": "from_folder",
    "CLOSED_FORM": "candidates",
    "OtherPlan": "plan",
    "RUN": "tuning",
    "answer": "from_folder",
    "guess": "first",
    "question": "candidates",
    "read_plan": "plan",
    "targets_of": "candidates",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
