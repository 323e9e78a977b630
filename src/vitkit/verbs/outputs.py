"""Files and folders that a verb is to write."""

from pathlib import Path

from vitkit.system.storage.files import check_can_be_made, check_replaceable


def check_folder(flag: str, folder: Path, images: tuple[str, ...]) -> None:
    """Raises ValueError for a folder to write to that is none, or is one of the images'."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{flag} is {folder}, which is a file; give a folder")
    for image in images:
        if Path(image).is_dir() and Path(image).resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"{flag} is {folder}, and the images are in {image}: what is written there would be "
                "taken for images; give another folder, such as sorted"
            )
    check_can_be_made(folder / "photograph")


def check_sheet(file: Path) -> None:
    """Raises ValueError for a path that a contact sheet cannot be written to."""
    if file.suffix.lower() != ".png":
        raise ValueError(f"--sheet is {file}; give the name of a PNG file, such as {file}.png")
    check_replaceable(file)
