"""Read a tar shard from its beginning to its end: the offsets of its images, and their labels."""

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from vitkit.data.formats.folder import IMAGE_SUFFIXES, is_hidden
from vitkit.data.sources.stores import MAX_FILE, Names
from vitkit.data.sources.tables import Columns, label_column
from vitkit.system.errors import BadData
from vitkit.system.storage import remote
from vitkit.system.storage.files import parse_json

MAX_LABEL = 1 << 20  # bytes of a member that holds a label
TAIL = tarfile.RECORDSIZE + 2 * tarfile.BLOCKSIZE  # most bytes of zeros at the end of a tar file
NO_LABEL = "null"  # the label of an example without one, as JSON


class Index(NamedTuple):
    """The N examples of one shard."""

    offsets: np.ndarray
    """int64 (N,): offset of each image in the shard."""
    sizes: np.ndarray
    """int64 (N,): bytes of each image."""
    names: Names
    """Name of each image."""
    labels: list[str]
    """Label of each example as JSON; NO_LABEL if it has none."""
    left_out: Counter
    """How many members or examples of each kind were left out."""


def read_index(file: str, columns: Columns) -> Index:
    """Index a shard by reading it from its beginning to its end. Raises VitkitError."""
    offsets = []
    sizes = []
    names = []
    labels = []
    left_out: Counter[str] = Counter()
    by_key = groupby(_members(file, left_out), key=lambda member: member.key)
    for first_key, group in by_key:
        for key, members in _examples(first_key, list(group), columns, file):
            extension = _image_extension(members, columns, f"{file} {key}")
            if extension is None:
                left_out["examples without an image"] += 1
                continue
            if columns.image is None:
                left_out["images beside that of their example"] += _compound_images(members)
            offsets.append(members[extension].offset)
            sizes.append(members[extension].size)
            names.append(f"{key}.{extension}")
            labels.append(json.dumps(_label(members, columns, f"{file} {key}")))
    return Index(
        offsets=np.array(offsets, np.int64),
        sizes=np.array(sizes, np.int64),
        names=Names.of(names),
        labels=labels,
        left_out=left_out,
    )


class _Member(NamedTuple):
    """A file in a shard."""

    key: str
    """The path of the member up to the first dot of its name, which is equal for all members of an example."""
    extension: str
    """Text after that dot, in lower case."""
    name: str
    """The whole path of the member."""
    offset: int
    """Offset of its content in the shard."""
    size: int
    content: bytes
    """Content of a small member that is not an image; empty for all other members."""


def _examples(
    key: str, group: list[_Member], columns: Columns, file: str
) -> Iterator[tuple[str, dict[str, _Member]]]:
    """The examples among members with equal names up to the first dot.

    Usually they are one example. They are several, by their names up to the last dot, if each of these has
    an image and the example as a whole has none, or if each has a label of its own.
    """
    members = _by_extension(group, file)
    if columns.image is None:
        several: dict[str, list[_Member]] = {}
        for member in group:
            stem, _, extension = member.name.rpartition(".")
            renamed = member._replace(key=stem, extension=extension.lower())
            several.setdefault(stem, []).append(renamed)
        examples = {stem: _by_extension(each, file) for stem, each in several.items()}
        if _image_extension(members, columns, f"{file} {key}") is None:
            are_examples = all(_has_image(each) for each in examples.values())
        else:
            are_examples = _are_labelled(key, examples, columns)
        if are_examples:
            yield from examples.items()
            return
    yield key, members


def _has_image(members: dict[str, _Member]) -> bool:
    """Whether a member has the extension of an image."""
    return any(f".{extension}" in IMAGE_SUFFIXES for extension in members)


def _are_labelled(key: str, examples: dict[str, dict[str, _Member]], columns: Columns) -> bool:
    """Whether members with equal names up to the last dot are examples of their own, beside the member that
    is named by the key alone.

    They are if each has an image and a label: a.0.png and a.0.cls beside a.png. A mask a.seg.png beside
    a.png and a.cls is not, as it has no label. JSON counts as a label only if a.png has none.
    """
    label = columns.label or "cls"
    own = examples.get(key, {})
    others = [members for stem, members in examples.items() if stem != key]
    if not others or not all(map(_has_image, others)):
        return False
    if all(label in members for members in others):
        return True
    return label not in own and "json" not in own and all("json" in members for members in others)


def _compound_images(members: dict[str, _Member]) -> int:
    """Number of images with a further dot in their names, such as a mask 1.seg.png beside 1.jpg."""
    lasts = [extension.rpartition(".")[2] for extension in members if "." in extension]
    return sum(f".{last}" in IMAGE_SUFFIXES for last in lasts)


def _by_extension(group: list[_Member], file: str) -> dict[str, _Member]:
    """The members of one example by extension. Raises VitkitError if an extension occurs twice."""
    members: dict[str, _Member] = {}
    for member in group:
        if member.extension in members:
            raise BadData(f"{file} holds {member.name} twice; give every example a name of its own")
        members[member.extension] = member
    return members


def _members(file: str, left_out: Counter) -> Iterator[_Member]:
    """Yield each regular file in the order of the shard. Raises VitkitError for a damaged shard."""
    try:
        with (
            remote.open_file(file) as opened,
            tarfile.open(fileobj=opened, mode="r:", errorlevel=1) as shard,
        ):
            for info in shard:
                # tarfile would keep all members in memory; its type stubs lack this attribute
                shard.members = []  # type: ignore[attr-defined]
                if not info.isreg() or info.issparse() or info.size > MAX_FILE:
                    left_out["members other than plain files"] += not info.isdir()
                    continue
                folder, _, name = info.name.rpartition("/")
                stem, _, extension = name.partition(".")
                extension = extension.lower()
                if name.startswith(".") or not extension:
                    left_out["hidden or suffixless members"] += 1
                    continue
                if any(
                    is_hidden(above) for above in folder.split("/") if above not in ("", ".", "..")
                ):
                    left_out["members in system folders"] += 1
                    continue
                content = b""
                last = name.rpartition(".")[2].lower()
                if info.size <= MAX_LABEL and f".{last}" not in IMAGE_SUFFIXES:
                    extracted = shard.extractfile(info)
                    assert extracted is not None  # a plain file has content
                    content = extracted.read()
                key = f"{folder}/{stem}" if folder else stem
                yield _Member(key, extension, info.name, info.offset_data, info.size, content)
            _check_end(opened, shard.offset)
    except (tarfile.TarError, EOFError, MemoryError, OverflowError) as error:
        reason = str(error) or "it is damaged"  # some errors have no message
        message = f"{file} is not a readable tar file: {reason}"
        if remote.without_query(file).endswith(("gz", "z")):
            message += (
                "; unpack it with gunzip: images in a compressed shard cannot be read individually"
            )
        raise BadData(message) from None


def _check_end(opened, offset: int) -> None:
    """Raise tarfile.ReadError unless the shard ends, after `offset` bytes, with the zeros of a tar file.

    tarfile treats damage as the end of the file: a hole that a download left, or the end of the first of
    two concatenated files.
    """
    opened.seek(offset)
    tail = opened.read(TAIL + 1)
    if not tarfile.BLOCKSIZE <= len(tail) <= TAIL or any(tail):
        raise tarfile.ReadError(
            f"after {offset:,} bytes it is damaged, cut off, or two files in one"
        )


def _image_extension(members: dict[str, _Member], columns: Columns, where: str) -> str | None:
    """The extension of an example's image; None if it has none. Raises VitkitError if it has several."""
    if columns.image is not None:
        extensions = [extension for extension in members if extension == columns.image]
    else:
        extensions = [extension for extension in members if f".{extension}" in IMAGE_SUFFIXES]
    if len(extensions) > 1:
        raise BadData(
            f"{where} has several images ({', '.join(extensions)}); "
            f"choose one with `data.columns.image=EXTENSION`"
        )
    return extensions[0] if extensions else None


def _label(members: dict[str, _Member], columns: Columns, where: str) -> Any:
    """The label of an example: text, or a value of its JSON; None if it has none. Raises VitkitError for
    anything else."""
    if columns.target == "none":
        return None
    extension = columns.label or "cls"
    if extension in members:
        return members[extension].content.decode("utf-8", "replace").strip()
    value = _json_field(members, columns, where)
    if not is_label(value):
        raise BadData(
            f"{where}.json has the label {json.dumps(value)[:100]}; "
            f"a label is a number, a name, or a list of them"
        )
    return value


def is_label(value: Any) -> bool:
    """Whether a value may be a label: a number, a boolean, a name, a list, or None."""
    if isinstance(value, int | float):
        try:
            return isfinite(value)
        except OverflowError:  # an integer with hundreds of digits
            return False
    return isinstance(value, str | list | None)


def _json_field(members: dict[str, _Member], columns: Columns, where: str) -> Any:
    """The label in the JSON member; None if there is no such member or field."""
    if "json" not in members:
        if columns.label is None:
            return None
        raise BadData(
            f"{where} has no label, only {', '.join(members)}; expected a .{columns.label} member, "
            f"or a field {columns.label!r} of .json; correct `data.columns.label`"
        )
    try:
        fields = parse_json(members["json"].content)
        name = label_column(columns, list(fields))
        return None if name is None else fields[name]
    except (TypeError, AttributeError):
        raise BadData(f"{where}.json is not an object; expected one with the label in it") from None
    except ValueError as error:
        raise BadData(f"{where}.json: {error}") from None
