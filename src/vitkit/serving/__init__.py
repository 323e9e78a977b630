"""A model served over HTTP: in batches, within limits, and without losing an accepted request."""

from vitkit.system.lazy import lazily

_FILES = {
    "http.body": "Limits",
    "http.connections": "Listener close_silent config_of is_full",
    "http.guard": "Guard",
    "http.service": "Settings",
    "http.server": "Plan Server bound_socket check_installed prepare_process",
    "http.workers": "Workers",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
