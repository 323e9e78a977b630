"""A model behind HTTP: requests in batches, within limits, and none that was accepted is lost."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Limits": "http.body",
    "Plan": "http.server",
    "Server": "http.server",
    "Settings": "http.desk",
    "Workers": "http.workers",
    "bound_socket": "http.server",
    "check_installed": "http.server",
    "prepare_process": "http.server",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
