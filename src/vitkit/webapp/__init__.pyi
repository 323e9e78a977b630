from .server import check_gradio as check_gradio
from .server import listening_socket as listening_socket
from .server import run_until_ended as run_until_ended
from .server import serve as serve
from .viewer import Viewer as Viewer
