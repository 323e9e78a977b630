"""A model behind HTTP: requests in batches, within limits, and none that was accepted is lost."""

from vitkit.system.lazy import lazily

_FILES = {
    "http.body": "Limits",
    "http.service": "Settings",
    "http.server": "Plan Server bound_socket check_installed prepare_process",
    "http.workers": "Workers",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
