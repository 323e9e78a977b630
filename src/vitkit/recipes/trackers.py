"""Check of the experiment tracker that a recipe names."""

import os
from importlib.util import find_spec
from pathlib import Path

from vitkit.system.errors import BadSettings, Unsupported

LIBRARIES = ("tensorboard", "wandb", "mlflow")


def check_tracker(track: str) -> None:
    """Raises VitkitError if `track` is neither a tracker nor a directory, or if its library is not
    installed."""
    library = track
    if track and track not in LIBRARIES:
        if "/" not in track and os.sep not in track and not Path(track).is_dir():
            raise BadSettings(
                f"`track` is {track!r}; it is {', '.join(LIBRARIES)}, or a directory for TensorBoard's "
                f"events, such as ./{track}"
            )
        library = "tensorboard"
    if library and find_spec(library) is None:
        raise Unsupported(f"`track={track!r}` needs {library}: pip install 'vitkit[track]'")
