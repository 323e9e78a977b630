"""Canaries: what a stranger's file may name so that something happens on this machine, and whether it did.

A function in a Python file, which leaves a mark when it is run; an address of a listener on the loopback;
and a folder outside, of which nothing may be read as data, changed or removed.
"""

import json
import re
import socket
from pathlib import Path
from random import Random

from pictures import make_photographs

from vitkit.training.state.checkpoints import SEAL, write_sealed

EVIL = """
from pathlib import Path
Path({mark!r}).write_text("sung")

def sing():
    raise ValueError("this function was run")
"""


class Canaries:
    """Canaries in a folder of their own."""

    def __init__(self, folder: Path):
        """folder: where they are planted; it need not exist."""
        self.folder = folder
        self.mark = folder / "mark"
        self.code = f"{folder / 'evil.py'}:sing"
        self.outside = folder / "outside"
        if not self.outside.exists():
            self.outside.mkdir(parents=True)
            make_photographs(self.outside)
            (folder / "evil.py").write_text(EVIL.format(mark=str(self.mark)))
        self.content = self._outside()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        port = self.listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}/photos.parquet"
        self.braces = f"{{http,https}}://127.0.0.1:{port}/photos.parquet"

    def names(self, below: Path) -> tuple[str, ...]:
        """All names that must do nothing, for a file in the folder `below`."""
        up = "../" * len(below.resolve().parts)
        outside = str(self.outside / "photos")
        return (self.code, self.address, self.braces, outside, f"{up}{outside.lstrip('/')}", "..")

    def sang(self) -> list[str]:
        """What has happened; empty if nothing did."""
        heard = []
        if self.mark.exists():
            heard.append("its code was run")
            self.mark.unlink()
        try:
            self.listener.accept()[0].close()
            heard.append("its address was asked")
        except BlockingIOError:
            pass
        if self._outside() != self.content:
            heard.append("something outside was changed")
        return heard

    def close(self) -> None:
        """End the listener."""
        self.listener.close()

    def _outside(self) -> dict[str, bytes]:
        files = (path for path in sorted(self.outside.rglob("*")) if path.is_file())
        return {str(path): path.read_bytes() for path in files}


def strings_of(node: object, where: tuple = ()) -> list[tuple]:
    """The places of all strings in a value of JSON: the keys and indices that lead to each."""
    if isinstance(node, str):
        return [where]
    places = []
    if isinstance(node, dict):
        for key, value in node.items():
            places += strings_of(value, (*where, key))
    if isinstance(node, list):
        for number, value in enumerate(node[:20]):
            places += strings_of(value, (*where, number))
    return places


def with_string(node: object, where: tuple, text: str) -> object:
    """The same value with another string at a place."""
    if not where:
        return text
    first, *rest = where
    if isinstance(node, dict):
        return node | {first: with_string(node[first], tuple(rest), text)}
    return [*node[:first], with_string(node[first], tuple(rest), text), *node[first + 1 :]]


def plant(file: Path, random: Random, canaries: Canaries) -> None:
    """Put a canary into a field of a JSON file, or into all of them; of JSON lines into one line; of
    TOML into a string. A seal fits what it seals."""
    lines = [file.read_text("utf-8")]
    if file.suffix == ".toml":
        quoted = random.choice(list(re.finditer(r'"[^"]*"', lines[0])))
        name = json.dumps(random.choice(canaries.names(file.parent)))
        file.write_text(lines[0][: quoted.start()] + name + lines[0][quoted.end() :], "utf-8")
        return
    if file.suffix == ".jsonl":
        lines = lines[0].splitlines()
    number = random.randrange(len(lines))
    values = json.loads(lines[number])
    if file.name == "data.json" and random.random() < 0.3:
        values.pop("place", None)
    places = strings_of(values)
    chosen = places
    if random.random() < 0.9 and places:
        chosen = [random.choice(places)]
    name = random.choice(canaries.names(file.parent))
    for place in chosen:
        values = with_string(values, place, name)
    if isinstance(values, dict) and SEAL in values:
        values.pop(SEAL)
        write_sealed(file, values)
        return
    lines[number] = json.dumps(values)
    file.write_text("\n".join(lines) + "\n", "utf-8")
