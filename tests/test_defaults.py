"""Defaults, named recipes and the constants that packages share are promises: people repeat results by them.

`defaults.json` holds what they are. After a change that is meant, `python tests/test_defaults.py` writes it again,
and CHANGELOG.md says what has changed.
"""

import dataclasses
import inspect
import json
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from architecture import names_imported, package_of
from described import defaults_of, described

import vitkit
from vitkit.recipes import RECIPES

KEPT = Path(__file__).with_name("defaults.json")
ROOT = Path(vitkit.__file__).parent
CONSTANT = bool | int | float | str | tuple | list | dict | set | frozenset


def shared_things() -> Iterator[tuple[str, object]]:
    """Every name of a stub, and every other name that a package imports from another, with what it is; a name
    that means several things comes more than once."""
    seen = set()
    for file in sorted(ROOT.rglob("*.py")):
        here = package_of(".".join(file.relative_to(ROOT).with_suffix("").parts))
        for source, name in names_imported(file.read_text()):
            if package_of(source) in ("system", "cli", here) or source == "vitkit":
                continue
            thing = getattr(import_module(source), name)
            if not inspect.ismodule(thing) and (name, id(thing)) not in seen:
                seen.add((name, id(thing)))
                yield name, thing
    for stub in sorted(ROOT.rglob("__init__.pyi")):
        module = import_module(".".join(("vitkit", *stub.parent.relative_to(ROOT).parts)))
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.ismodule(thing) and (name, id(thing)) not in seen:
                seen.add((name, id(thing)))
                yield name, thing


def _is_value(thing: object) -> bool:
    """Whether it is a value of a frozen class, such as a theme."""
    return dataclasses.is_dataclass(thing) and not isinstance(thing, type)


def as_they_are() -> dict[str, dict[str, str]]:
    """Defaults and constants by name, and the values of named recipes."""
    found = {}
    for name, thing in shared_things():
        if typing.get_origin(thing) is typing.Literal:
            found.setdefault(name, set()).add(described(typing.get_args(thing)))
        elif isinstance(thing, CONSTANT) or _is_value(thing):
            found.setdefault(name, set()).add(described(thing))
        for setting, value in defaults_of(thing):
            found.setdefault(f"{name}.{setting}", set()).add(value)
    return {
        "defaults": {name: " or ".join(sorted(values)) for name, values in sorted(found.items())},
        "recipes": {name: described(make()) for name, make in RECIPES.items()},
    }


def test_defaults_constants_and_recipes_are_those_that_people_know():
    known = json.loads(KEPT.read_text())
    for kind, values in as_they_are().items():
        changed = [
            f"{name}: {known[kind].get(name)} -> {values.get(name)}"
            for name in sorted(known[kind].keys() | values.keys())
            if known[kind].get(name) != values.get(name)
        ]
        assert not changed, "\n".join(["see the top of test_defaults.py", *changed])


if __name__ == "__main__":
    KEPT.write_text(json.dumps(as_they_are(), indent=1, ensure_ascii=False) + "\n")
