"""Inputs of a classifier by name: image files, folders, patterns, web addresses and data sets.

An Item is made on request: for a million files only the names are kept in memory.
"""

import glob
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple, Protocol, overload
from urllib import request
from urllib.error import HTTPError

import numpy as np

from vitkit.data import IMAGE_SUFFIXES as IMAGES
from vitkit.data import Lists, Names, RowRanges, Source, find_images, note_left_out, read_file
from vitkit.data.formats import DATA_SUFFIXES as DATA_SETS
from vitkit.data.formats.folder import is_hidden
from vitkit.data.sources.stores import DATA_URL
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted_kind
from vitkit.system.errors import BadData, BadImage, VitkitError
from vitkit.system.storage.addresses import MASK, shown_address, without_credentials_of
from vitkit.system.storage.deadline import TimeLimit
from vitkit.system.storage.files import impossible
from vitkit.system.storage.remote import WILDCARDS, suffix

ARCHIVES = (".zip", ".rar", ".7z", ".gz", ".tgz", ".bz2", ".xz")


class Item(NamedTuple):
    """An image to classify: its name, a function that reads its bytes or pixels, and the name of its true
    class if known."""

    name: str
    read: Callable[[], bytes | np.ndarray]
    truth: str | None = None


class Group(Protocol):
    """Images of one kind. Picklable, because it is sent to worker processes."""

    def __len__(self) -> int:
        """Number of items."""

    def item(self, i: int) -> Item:
        """Item i."""


@dataclass(frozen=True, eq=False)
class Pictures(Sequence[Item]):
    """The items of several groups, concatenated."""

    groups: tuple[Group, ...]
    starts: RowRanges
    """The ranges of indices of the groups."""

    @classmethod
    def of(cls, groups: Iterable[Group]) -> "Pictures":
        """The concatenated items of these groups."""
        groups = tuple(groups)
        return cls(groups, RowRanges.of([len(group) for group in groups]))

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, i: int) -> Item: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Item]: ...
    def __getitem__(self, i: int | slice) -> Item | Sequence[Item]:
        """Item i, from 0, or the items of a slice. Raises IndexError past the end."""
        if isinstance(i, slice):
            return [self[each] for each in range(*i.indices(len(self)))]
        if not 0 <= i < len(self):
            raise IndexError(i)
        group, row = self.starts.locate(i)
        return self.groups[group].item(row)

    def are_files(self) -> bool:
        """Whether all items are image files on this machine, not examples of a data set or web
        addresses."""
        if not all(isinstance(group, FileNames) for group in self.groups):
            return False
        return not any(is_web(item.name) for item in self)


@dataclass(frozen=True, eq=False)
class FileNames:
    """A Group of image files and web addresses."""

    names: Names

    def __len__(self) -> int:
        return len(self.names)

    def item(self, i: int) -> Item:
        """Item i."""
        return file_item(self.names[i])


@dataclass(frozen=True, eq=False)
class DataSetItems:
    """A Group of the examples of a data set."""

    source: Source
    words: dict[str, str]
    """The model's name of each class of the data set that the model has."""

    def __len__(self) -> int:
        return len(self.source)

    def item(self, i: int) -> Item:
        """Item i."""
        return Item(self.source.name(i), partial(_image, self.source, i), self._truth(i))

    def items(self) -> list[Item]:
        """All items."""
        return [self.item(i) for i in range(len(self))]

    def _truth(self, i: int) -> str | None:
        """The true class or classes of an example, by the model's name where it has one; a number as
        text."""
        targets = self.source.targets
        if isinstance(targets, Lists):
            names = [self.source.labels[k] for k in targets.row(i)]
            return ", ".join(self.words.get(name, name) for name in names)
        answer = self.source.answer(i)
        if answer is None:
            return None
        return self.words.get(answer, answer)


def _image(source: Source, i: int) -> bytes | np.ndarray:
    """The image of an example, without its target."""
    image, _ = source[i]
    return image


def file_item(name: str) -> Item:
    """The item of an image file or a web address."""
    return Item(shown_address(name), partial(_read, name))


def _read(name: str) -> bytes:
    """The bytes of a file or a web address. Raises BadImage."""
    if is_web(name):
        return read_web(name)
    return read_file(name)


# By name


def pictures(
    sources: Iterable[str], labels: Sequence[str] = (), leave_out: Sequence[Path] = ()
) -> Pictures:
    """The images that `sources` name: a file, all images below a folder, a pattern such as
    "**/*.jpg", a web address, or the test part of a data set.

    labels: names of the model's classes; the classes of a data set that match get these names.
    leave_out: folders whose images are left out of folders and patterns.

    Raises VitkitError if a name matches nothing, or no image.
    """
    groups: list[Group] = []
    names: list[str] = []
    for source in sources:
        files = files_of(source, leave_out)
        if files is not None:
            names += files
            continue
        groups.append(FileNames(Names.of(names)))
        names = []
        groups.append(_examples(source, labels))
    groups.append(FileNames(Names.of(names)))
    return Pictures.of(group for group in groups if len(group))


def files_of(name: str, leave_out: Sequence[Path] = ()) -> list[str] | None:
    """The image files that a name matches, or its web address; None if it names a data set.

    Raises VitkitError for a folder or a pattern without images, and for an archive.
    """
    if is_web(name):
        return None if _is_data_set(name) else [name]
    if impossible(name) or name.startswith(DATA_URL):
        return [name]  # reading it will report that, and the others are still classified
    path = Path(name)
    if path.is_dir():
        return _files_of_folder(name, leave_out)
    ending = suffix(name)
    if path.is_file():
        if path.suffix.lower() in ARCHIVES:
            raise BadData(
                f"{path} is an archive; unpack it (such as with: python -m zipfile -e "
                f"{as_word(path)} photos), and give the folder"
            )
        return None if ending in DATA_SETS else [name]
    if any(sign in name for sign in WILDCARDS) and ending not in DATA_SETS:
        return _files_of_pattern(name, leave_out)
    if ending in IMAGES and "{" not in name and "://" not in name:
        return [name]  # missing: reading it will report that, and the others are still classified
    return None


def _is_data_set(address: str) -> bool:
    """Whether a web address is a data set's: a folder, shards, or a pattern."""
    path = address.partition("?")[0]
    return path.endswith("/") or suffix(address) in DATA_SETS or "*" in path


def _files_of_folder(name: str, leave_out: Sequence[Path]) -> list[str] | None:
    """The images below a folder; None if the folder is a data set, such as one of shards."""
    path = Path(name)  # normalised, as in more//cats
    found, others = find_images(name)
    files = _outside([str(Path(name, file)) for file in found], leave_out)
    if files:
        for note in note_left_out(others):
            say(f"{path}: {note}")
        return files
    try:
        if not found:
            from vitkit.data import source_at

            source_at(name)
            return None
    except VitkitError:
        pass  # not a data set either
    message = f"{path} holds no images"
    if found:
        message += f" but the {len(found):,} in the folders that are written to"
    elif others:
        counts = [counted_kind(count, kind) for kind, count in sorted(others.items())]
        message += f" that are read here, but {', '.join(counts[:5])}"
    raise BadData(f"{message}; give a folder with image files in it, such as .jpg and .png")


def _files_of_pattern(pattern: str, leave_out: Sequence[Path]) -> list[str]:
    """The image files that a pattern matches; "**" matches any number of folders."""
    matches = glob.glob(pattern, recursive=True)  # noqa: PTH207 as the user wrote it, absolute or not
    files = [name for name in matches if suffix(name) in IMAGES and Path(name).is_file()]
    shown = [name for name in files if not _in_hidden_folder(name, pattern)]
    outside = _outside(sorted(shown), leave_out)
    if outside:
        for note in note_left_out(+Counter({"images in system folders": len(files) - len(shown)})):
            say(f"{pattern}: {note}")
        return outside
    message = f"{pattern} matches no image"
    if files:
        message += f" but the {len(files):,} in the folders that are written to"
    elif matches:
        message += f", only {matches[0]}"
        if len(matches) > 1:
            message += f" and {len(matches) - 1:,} more that are none"
    raise BadData(f"{message}; '**/*.jpg' would find those in all folders below this one")


def _in_hidden_folder(name: str, pattern: str) -> bool:
    """Whether a file lies in a hidden or system folder that the pattern does not name."""
    return any(
        is_hidden(folder) for folder in set(Path(name).parts[:-1]) - set(Path(pattern).parts)
    )


def _outside(files: list[str], folders: Sequence[Path]) -> list[str]:
    """The files that lie in none of these folders."""
    if not folders:
        return files
    folders = [folder.resolve() for folder in folders]
    outside = []
    for file in files:
        parents = Path(file).parent.resolve()
        if not any(parents.is_relative_to(folder) for folder in folders):
            outside.append(file)
    return outside


def _examples(name: str, labels: Sequence[str]) -> DataSetItems:
    """The test part of the data set that a user named. Raises VitkitError if there is nothing of this
    name."""
    from vitkit.data import source_at

    source = source_at(name, typed=True)
    return DataSetItems(source, words_of_model(source.labels, labels))


def words_of_model(data: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """The model's names of the data set's classes, matched as in `vitkit evaluate`: by name, by WordNet
    ID, or by position; without classes that the model does not have."""
    from vitkit.evaluation import align

    if not data or not labels:
        return {}
    try:
        classes = align(data, labels, needed=()).classes.tolist()
    except VitkitError:
        return {}
    return {name: labels[k] for name, k in zip(data, classes, strict=True) if k >= 0}


# Single names of a stream


def items_of(name: str, leave_out: Sequence[Path] = ()) -> Iterator[Item]:
    """The items of one name of a stream: a file, a folder, a pattern or a web address. An error in a
    name is raised when its item is read, so it does not stop the stream."""
    try:
        files = files_of(name, leave_out)
    except VitkitError as error:
        yield Item(name, partial(_raise_bad_image, str(error)))
        return
    if files is None:
        yield file_item(name)
        return
    for file in files:
        yield file_item(file)


def _raise_bad_image(sentence: str) -> bytes:
    """Raises BadImage with this sentence."""
    raise BadImage(sentence)


def spread(items: Sequence[Item], limit: int) -> Sequence[Item]:
    """At most `limit` items, evenly spaced; 0 is all."""
    if not 0 < limit < len(items):
        return items
    return [items[i * len(items) // limit] for i in range(limit)]


# Web addresses, read with the standard library, within limits of size and time

MAX_BYTES = 64 << 20  # largest image, bytes; photographs have about 10 MB
SILENCE = 15  # seconds without any data after which a download fails
PATIENCE = 60  # longest download of an image in seconds, including headers
SCHEMES = ("http://", "https://")
# URL handlers for an address and its redirects: HTTP and HTTPS only, never local files.
_HANDLERS = (
    request.ProxyHandler,
    request.UnknownHandler,
    request.HTTPDefaultErrorHandler,
    request.HTTPRedirectHandler,
    request.HTTPErrorProcessor,
)


def is_web(name: str) -> bool:
    """Whether a name is a web address: http:// or https://."""
    return name.lower().startswith(SCHEMES)


def read_web(address: str) -> bytes:
    """The bytes of an image at a web address. Raises BadImage if the download takes longer than PATIENCE
    seconds, if the image is larger than MAX_BYTES, or if the address is an HTML page."""
    deadline = TimeLimit(PATIENCE)
    shown = shown_address(address)
    if f"://{MASK}@" in shown:
        raise BadImage(
            f"{shown} cannot be read: user names and passwords are not sent for single images; download it first"
        )
    opener = request.OpenerDirector()
    for handler in _HANDLERS:
        opener.add_handler(handler())
    opener.add_handler(deadline.handler())
    headers = {"User-Agent": "vitkit", "Accept": "image/*"}
    try:
        asked = request.Request(address, headers=headers)
        with deadline, opener.open(asked, timeout=SILENCE) as answer:
            if answer.headers.get_content_type() == "text/html":
                raise BadImage(
                    f"{shown} is a web page, not an image; give the address of the picture itself"
                )
            return _body_of(answer, shown, deadline)
    except BadImage:
        raise
    except (OSError, HTTPException, ValueError) as error:
        if deadline.is_over:
            raise BadImage(_too_slow(shown)) from None
        reason = getattr(error, "reason", None) or error
        if isinstance(error, TimeoutError) or isinstance(reason, TimeoutError):
            reason = f"no answer for {SILENCE} seconds"
        if isinstance(error, HTTPError):
            error.close()
            reason = f"the server answers {error.code} {reason}"
        reason = without_credentials_of(address, str(reason))
        raise BadImage(f"{shown} cannot be read: {reason}") from None


def _too_slow(shown: str) -> str:
    return f"{shown} takes longer than {PATIENCE} seconds; download it first"


def _body_of(answer: HTTPResponse, shown: str, deadline: TimeLimit) -> bytes:
    """The body of a response. shown: the address for messages. Raises BadImage beyond the limits,
    OSError."""
    data = bytearray()
    while part := answer.read1():
        data += part
        if len(data) > MAX_BYTES:
            raise BadImage(f"{shown} is larger than {MAX_BYTES:,} bytes; download it first")
        if deadline.is_over:
            raise BadImage(_too_slow(shown))
    if deadline.is_over:
        raise BadImage(_too_slow(shown))
    expected = answer.headers.get("Content-Length", "")
    if expected.isdecimal() and len(data) < int(expected):
        raise BadImage(f"{shown} broke off after {len(data):,} of {expected} bytes")
    return bytes(data)
