"""Files and folders that a verb is to write."""

from pathlib import Path
from typing import Any

from vitkit.system.storage.files import check_can_be_made, check_replaceable


def check_folder(flag: str, folder: Path, images: tuple[Any, ...]) -> None:
    """Raises ValueError for a folder to write to that is none, or is one of the images'."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{flag} is {folder}, which is a file; give a folder")
    names = [image for image in images if isinstance(image, str)]  # others are in memory
    for image in names:
        if Path(image).is_dir() and Path(image).resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"{flag} is {folder}, and the images are in {image}: what is written there would be "
                "taken for images; give another folder, such as sorted"
            )
    check_can_be_made(folder / "photograph")


def check_rows(to: Path | None, json: bool) -> None:
    """Raises ValueError for a file that rows cannot be written to, and for two places for them."""
    if to is None:
        return
    from vitkit.prediction import check_rows_file

    check_rows_file(to)
    if json:
        raise ValueError(f"--json prints what --to {to} writes; give one of them")


def check_sheet(file: Path) -> None:
    """Raises ValueError for a path that a contact sheet cannot be written to."""
    if file.suffix.lower() != ".png":
        raise ValueError(f"--sheet is {file}; give the name of a PNG file, such as {file}.png")
    check_replaceable(file)
