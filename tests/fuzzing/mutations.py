"""Ways in which a file can be wrong: by accident, or on purpose."""

import contextlib
import copy
import io
import json
import os
import socket
import struct
import warnings
import zipfile
from pathlib import Path
from random import Random

HEADER = 1024  # bytes at the beginning where damage is likelier: there a file says what it is
FOOTER = 4096  # and at the end, where archives and parquet files do
NUMBERS = (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
WORDS = (b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}", b"99999999999", b'"', b"\\u0000")
WORDS += (b"\x00", b"\xff\xfe", b"\x1b[31m", b"../../etc/passwd", b"/dev/zero")
VALUES = (None, True, -1, 0, 1, 3, 10**9, -(10**9), 2**70, 1e308, float("nan"), float("inf"))
VALUES += (0.5, "", "a", "-1", "../../etc/passwd", "\x1b[2Jgone", "x" * 100_000, [], {}, [[]])
VALUES += ([0], [10**9], [1, 2, 3], {"a": 1}, {"0": "a", "1": "a"})
DEEP = "so deep"  # stands for a list in a list in a list ...: json.dumps would refuse it
VALUES += (DEEP, "\ud800", "model.safetensors", -0.0, 10**400, {"": None}, [None], ["a", 1])
DEPTH = 100_000


def damaged_bytes(data: bytes, random: Random) -> bytes:
    """The same bytes, with one to four accidents."""
    for _ in range(random.randint(1, 4)):
        where = random.choice(("beginning", "end", "anywhere"))
        at = random.randrange(len(data) + 1)
        if where == "beginning":
            at = random.randrange(min(len(data), HEADER) + 1)
        elif where == "end":
            at = len(data) - random.randrange(min(len(data), FOOTER) + 1)
        data = random.choice(_ACCIDENTS)(data, at, random)
    return data


def _flip_a_bit(data: bytes, at: int, random: Random) -> bytes:
    if at >= len(data):
        return data
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _cut_off(data: bytes, at: int, random: Random) -> bytes:
    return data[:at]


def _leave_out(data: bytes, at: int, random: Random) -> bytes:
    return data[:at] + data[at + random.choice((1, 4, 512, 4096)) :]


def _insert(data: bytes, at: int, random: Random) -> bytes:
    return data[:at] + random.randbytes(random.choice((1, 4, 512))) + data[at:]


def _repeat(data: bytes, at: int, random: Random) -> bytes:
    length = random.choice((1, 16, 512, 4096))
    return data[: at + length] + data[at:]


def _multiply(data: bytes, at: int, random: Random) -> bytes:
    """A few bytes a thousand times, as in files that are made to take long."""
    length = random.choice((1, 10, 100))
    return data[:at] + data[at : at + length] * 1000 + data[at:]


def _zeros(data: bytes, at: int, random: Random) -> bytes:
    length = min(random.choice((4, 512, 4096)), len(data) - at)
    return data[:at] + bytes(length) + data[at + length :]


def _number(data: bytes, at: int, random: Random) -> bytes:
    form = random.choice(("<I", ">I", "<Q", ">H", "<H"))
    largest = 2 ** (8 * struct.calcsize(form)) - 1
    number = struct.pack(form, min(random.choice(NUMBERS), largest))
    return data[:at] + number + data[at + len(number) :]


def _word(data: bytes, at: int, random: Random) -> bytes:
    word = random.choice(WORDS)
    return data[:at] + word + data[at + len(word) :]


_ACCIDENTS = (_flip_a_bit, _cut_off, _leave_out, _insert, _repeat, _zeros, _number, _word)
_ACCIDENTS += (_multiply,)


def damaged_archive(data: bytes, random: Random) -> bytes:
    """The same ZIP archive, with a record that is compressed, gone, renamed, twice there, or
    damaged under a checksum that is right."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(file, "w") as target:
        target.comment = archive.comment
        records = archive.infolist()
        chosen = random.choice(records)
        accident = random.choice(("compress", "remove", "rename", "twice", "damage"))
        for record in records:
            content = archive.read(record)
            name = record.filename
            compression = zipfile.ZIP_STORED
            if record is chosen and accident == "compress":
                compression = zipfile.ZIP_DEFLATED
            elif record is chosen and accident == "remove":
                continue
            elif record is chosen and accident == "rename":
                name = random.choice(records).filename + random.choice(("", "x"))
            elif record is chosen and accident == "damage":
                content = damaged(content, "", random)
            with warnings.catch_warnings(action="ignore"):  # of names that are there twice
                target.writestr(zipfile.ZipInfo(name), content, compression)
                if record is chosen and accident == "twice":
                    target.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def damage(file: Path, random: Random, replace: bool = True) -> None:
    """Do to a file what accidents and attackers do; `replace`: also put something else in its place."""
    if random.random() < 0.02 and replace:
        file.unlink()
        random.choice(_REPLACEMENTS)(file)
        return
    file.write_bytes(damaged(file.read_bytes(), file.suffix, random))


def damaged(data: bytes, ending: str, random: Random) -> bytes:
    """The bytes of a file, damaged within its grammar or anywhere. `ending`: of the file's name."""
    within = None
    if ending == ".json":
        within = damaged_json
    elif ending == ".jsonl":
        within = damaged_json_lines
    elif data.startswith(b"PK"):
        within = damaged_archive
    else:
        from fuzzing.grammars import BY_NAME, GRAMMARS  # which is made of what is here

        within = BY_NAME.get(ending)
        for starts, grammar in GRAMMARS:
            if data.startswith(starts):
                within = grammar
    if within is not None and random.random() < 0.7:
        with contextlib.suppress(ValueError, LookupError, struct.error, RecursionError):
            return within(data, random)
    return damaged_bytes(data, random)


def _link_to_a_device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def _link_to_itself(file: Path) -> None:
    file.symlink_to(file.name)


def _link_to_its_folder(file: Path) -> None:
    file.symlink_to(file.parent.absolute())


def _bind_a_socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(file.parent):
        server.bind(file.name)  # a whole path may be too long


_REPLACEMENTS = (os.mkfifo, Path.mkdir, _link_to_a_device, _link_to_itself, _link_to_its_folder)
_REPLACEMENTS += (_bind_a_socket, Path.touch, lambda file: None)  # empty, and gone


def damaged_json_lines(data: bytes, random: Random) -> bytes:
    """JSON lines, one of which is damaged."""
    lines = data.splitlines()
    at = random.randrange(len(lines))
    lines[at] = damaged_json(lines[at], random)
    return b"\n".join(lines) + b"\n"


def damaged_json(data: bytes, random: Random) -> bytes:
    """The same JSON with a value somewhere replaced, a key gone or a branch put where another was."""
    value = json.loads(data)
    for _ in range(random.randint(1, 2)):
        node, key = _anywhere(value, random)
        accident = random.choice(("replace", "replace", "replace", "remove", "move"))
        if accident == "remove":
            del node[key]
        elif accident == "move":
            other, from_key = _anywhere(value, random)
            node[key] = copy.deepcopy(other[from_key])
        else:
            node[key] = copy.deepcopy(random.choice(VALUES))
        if not value:
            break
    deep = "[" * DEPTH + "]" * DEPTH
    return json.dumps(value).replace(f'"{DEEP}"', deep).encode()


def _anywhere(value: dict | list, random: Random) -> tuple[dict | list, str | int]:
    """A place in a JSON value: the object or list, and the key or index in it."""
    node = value
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = random.choice(keys)
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or random.random() < 0.3:
            return node, key
        node = inner
