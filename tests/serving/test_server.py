"""What holds for the process of a server."""

import io
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from pictures import encoded, photograph
from PIL import Image

from vitkit.data.images.pillow import as_bad_image
from vitkit.serving.http.server import prepare_process

GIANT = encoded(photograph(40, 50), "PNG")


def test_a_servers_limit_of_pixels_holds_in_all_its_threads(monkeypatch):
    """Pillow's limit is one variable of the process. Threads that decode set it and restore it, so what
    one of them restores has to be the server's limit, and not Pillow's."""
    monkeypatch.setenv("VITKIT_MAX_PIXELS", "1000")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # put back at the end
    monkeypatch.setattr("vitkit.serving.http.server.start_logs", lambda: None)
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as pool:
        prepare_process()
        first, second = as_bad_image("a"), as_bad_image("b")
        for step in (first.__enter__, second.__enter__):
            step()
            with pytest.raises(Image.DecompressionBombError):
                pool.submit(Image.open, io.BytesIO(GIANT)).result()
        for block in (first, second):
            block.__exit__(None, None, None)
            with pytest.raises(Image.DecompressionBombError):
                pool.submit(Image.open, io.BytesIO(GIANT)).result()
        assert Image.MAX_IMAGE_PIXELS == 500  # Pillow refuses from twice as many on
