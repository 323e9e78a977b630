"""Serving the page of `vitkit app`: a port, a server that stops in one moment, and files that are
gone afterwards."""

import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.apps.demo import html as app_html
from vitkit.apps.demo.viewer import LARGEST_FILE, Viewer
from vitkit.system.errors import Unsupported
from vitkit.web import Guard, run_until_ended

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def check_gradio() -> None:
    """Raises VitkitError if gradio, which makes the page, is not installed."""
    if find_spec("gradio") is None:
        raise Unsupported("the page needs gradio: pip install 'vitkit[app]'")


def serve(
    viewers: Sequence[Viewer],
    listener: socket.socket,
    host: str,
    secret: str,
    started: Callable[[], None],
) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Uploaded files are kept in a folder of this process, which is removed at the end.

    Args:
        viewers: The models, one or two.
        listener: The socket to serve at.
        host: The address that was asked for, by which browsers may call the page.
        secret: What its addresses begin with, "/SECRET/": without it nothing is answered.
        started: Called when the page answers.
    """
    # A folder of its own, which gradio reads from the environment when it is imported; and nothing
    # of it calls home
    with closing(listener), tempfile.TemporaryDirectory(prefix="vitkit-app-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
        application = _application(viewers, Path(folder), secret)
        run_until_ended(Guard(application, host, secret=secret), listener, started)


def _application(viewers: Sequence[Viewer], folder: Path, secret: str) -> "ASGIApp":
    """The page, at addresses that begin with the secret."""
    import gradio as gr
    from fastapi import FastAPI

    from vitkit.apps.demo.page import build

    theme = gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.gray,
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    ).set(
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_border_width_dark="0px",
        block_padding="0px",
        block_label_text_color="var(--vk-faint)",
        block_title_text_color="var(--vk-faint)",
        block_title_text_color_dark="var(--vk-faint)",
        block_info_text_color="var(--vk-faint)",
    )
    page = build(viewers, folder)
    page.queue(default_concurrency_limit=4, max_size=64)
    # Else gradio copies whatever path a request names to the folder of uploads: only of a page that it has
    # launched itself does it check that the file was uploaded
    page.has_launched = True
    return gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        page,
        path=f"/{secret}",
        footer_links=[],
        run_history=False,
        max_file_size=LARGEST_FILE,
        ssr_mode=False,
        show_error=False,
        theme=theme,
        css=app_html.STYLE,
    )
