"""What a run is called: after its images, then after what is done with them."""

import os
import re
from pathlib import Path

from vitkit.system.storage.files import on_this_machine
from vitkit.system.storage.remote import is_address
from vitkit.training.state.earlier import read_earlier

RUNS = Path("runs")
"""The folder of all runs that were not given a directory."""
LONGEST = 60  # characters of a name, so that a path with it stays short
GENERAL = {
    # Folders of every data set, and of every machine
    "data", "dataset", "datasets", "images", "img", "imgs", "raw", "train", "training", "test",
    "val", "valid", "validation", "labels", "manifest", "metadata", "annotations", "index",
    "home", "users", "root", "mnt", "media", "tmp", "work", "workspace", "content",
}  # fmt: skip
"""Names that say nothing of the images: the folder above is named instead."""
_SHARD = re.compile(r"[-_.]?(\d{4,}(-of-\d+)?|\{\d+\.\.\d+\}|[*?]+)$")
_PART = re.compile(r"[-_.](train|training|val|valid|validation|test)[*?]*$")
_EXTENSION = re.compile(r"\.(csv|tsv|jsonl|json|parquet|tar|tgz|gz|zip|npz|txt)$", re.I)


def run_name(data: str, kind: str) -> str:
    """The name of a run's directory: that of its images, then `kind`, which is what is done with
    them.

    run_name("/home/me/photos/", "finetune") is "photos-finetune". Folders, files, shards, addresses,
    hf:NAME and file.py:function can be named. `kind` alone is the name if it begins with the
    images' ("digits" on digits), or if nothing is known of them.
    """
    images = _safe(_name_of(data))
    kind = _safe(kind)
    if not images or f"{kind}-".startswith(f"{images}-"):
        return kind or "run"
    if not kind:
        return images
    return f"{images}-{kind}"


def default_run_dir(data: str, kind: str) -> Path:
    """The directory of a run that was not given one: runs/NAME, by `run_name`. If that holds a run
    on images of another place, it is runs/NAME-2, and so on, so that two folders of one name do not
    meet."""
    name = run_name(data, kind)
    folder = RUNS / name
    number = 1
    while _holds_another(folder, data):
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder


def tidied(data: str) -> str:
    """The same images, named without "./" and without a slash at the end, as a shell completes
    folders: `photos/` continues a run on `photos`."""
    if not data or is_address(data) or not Path(data).exists():
        return data
    return os.path.normpath(data)


def _holds_another(folder: Path, data: str) -> bool:
    """Whether a directory holds a trained run on images of another place."""
    if not folder.is_dir():
        return False
    earlier = read_earlier(on_this_machine(folder))
    if not earlier.trained or not earlier.recipe:
        return False
    source = earlier.recipe.get("data", {}).get("source", "")
    return Path(source).resolve() != Path(data).resolve()


def _name_of(data: str) -> str:
    """What people would call these images: the name of a folder or file, without what says only
    which part or shard it is."""
    # Not a path: hf:OWNER/NAME@REVISION, file.py:function, an address
    text = data.strip()
    if text.startswith("hf:"):
        text = text.removeprefix("hf:").partition("@")[0]
    file, _, function = text.rpartition(":")
    if file.endswith(".py"):
        return function
    if is_address(text):
        text = text.partition("://")[2].partition("?")[0]
    elif text:
        text = os.path.normpath(Path(text).absolute())

    # The last part of the path that says something, which a user's own folder does not
    if text == str(Path.home()):
        return "home"
    names = [part for part in text.removeprefix(str(Path.home())).split("/") if part]
    for name in reversed(names):
        name = _without_part(name)
        if name and name.lower() not in GENERAL:
            return name
    if not names:
        return ""
    return _without_part(names[-1]) or names[-1]


def _without_part(name: str) -> str:
    """A file's or folder's name without its extensions, the number of its shard and its part."""
    stem = name
    while _EXTENSION.search(stem):
        stem = _EXTENSION.sub("", stem)
    stem = _SHARD.sub("", stem)
    return _PART.sub("", stem)


def _safe(name: str) -> str:
    """The name with nothing but letters, digits, "_", "." and "-", beginning with a letter or
    digit: a word for every shell and file system."""
    safe = re.sub(r"[^\w.]+", "-", name).strip("-_.")
    return safe[:LONGEST].rstrip("-_.")
