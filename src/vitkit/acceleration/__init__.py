"""The fastest model that loses no more than is allowed: what this machine can run, judged and measured"""

from vitkit.system.lazy import lazily

_FILES = {
    "bodies": "Arithmetic Body Shape",
    "figures": "HEADER cells draw write_page",
    "heads": "Head head_of",
    "pareto": "Line Point",
    "losses": "Judge Judged Loss on_others",
    "races": "LIBRARIES Wanted",
    "searching": "Found check search",
    "subjects": "Subject of_data of_run",
    "writing": "ending_of library_of write",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
