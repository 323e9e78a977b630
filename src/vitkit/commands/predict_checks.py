"""`vitkit predict`: what cannot be done is refused before the model is loaded."""

from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.commands.predict_parts import check_parts
from vitkit.system.console.text import as_word
from vitkit.verbs import check_folder, check_sheet

if TYPE_CHECKING:
    from vitkit.commands.predict import Predict

INPUT = "-"  # names come through the standard input


def check(command: "Predict") -> None:
    """Raises ValueError for settings that cannot go together, and for files that cannot be
    written."""
    from vitkit.prediction import BATCH, check_settings

    check_parts(command)
    check_settings(command.top, BATCH, command.workers)
    if not command.images:
        raise ValueError(
            f"there is no image to classify; vitkit predict {as_word(command.model)} IMAGE... "
            "takes files, folders, patterns and data sets, and - for names from the standard input"
        )
    if INPUT in command.images and len(command.images) > 1:
        raise ValueError("- reads the names of all images from the standard input: give it alone")
    if command.watch and (len(command.images) > 1 or not Path(command.images[0]).is_dir()):
        raise ValueError(
            f"--watch waits for what arrives in one folder; got {' '.join(command.images)}"
        )
    _check_less_work(command)
    if command.sheet:
        check_sheet(command.sheet)
    if command.to:
        from vitkit.prediction import check_rows_file

        check_rows_file(command.to)
    if command.json and command.to:
        raise ValueError(f"--json prints what --to {command.to} writes; give one of them")
    for flag, folder in (("--sort-into", command.sort_into), ("--attention", command.attention)):
        if folder is not None:
            check_folder(flag, folder, command.images)


def _check_less_work(command: "Predict") -> None:
    """Raises ValueError for --merge and --exit with what does not go with them."""
    if command.merge and command.exit:
        raise ValueError("--merge and --exit are two ways to less work; give one of them")
    if command.attention is not None and (command.merge or command.exit):
        raise ValueError("--attention draws the whole model's; leave out --merge and --exit")
    if command.merge < 0:
        raise ValueError(f"--merge is {command.merge}; it is a number of tokens, from 0 on")
    if not 0 <= command.exit <= 1:
        raise ValueError(f"--exit is {command.exit:g}; it is a probability, such as 0.9")
    if not command.exit:
        if command.calibrate:
            raise ValueError(f"--calibrate {command.calibrate} goes with --exit")
        return
    if not command.calibrate:
        raise ValueError(
            "--exit needs --calibrate DATA: images like those to come, of no matter which classes"
        )
    if command.runtime not in ("auto", "torch"):
        raise ValueError(
            f"--exit is computed by PyTorch, as how far an image goes depends on the image; leave out "
            f"--runtime {command.runtime}"
        )
