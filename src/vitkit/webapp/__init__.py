"""The page of `vitkit app`: drop a photograph, see the answer and what the model looked at."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Viewer": "viewer",
    "check_gradio": "server",
    "listening_socket": "server",
    "serve": "server",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
