"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from vitkit.webapp.server import check_gradio as check_gradio
from vitkit.webapp.server import listening_socket as listening_socket
from vitkit.webapp.server import run_until_ended as run_until_ended
from vitkit.webapp.server import serve as serve
from vitkit.webapp.viewer import Viewer as Viewer
