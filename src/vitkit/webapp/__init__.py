"""The page of `vitkit app`: drop a photograph, see the answer and what the model looked at."""

from vitkit.system.lazy import lazily

_FILES = {
    "server": "check_gradio listening_socket run_until_ended serve",
    "viewer": "Viewer",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
