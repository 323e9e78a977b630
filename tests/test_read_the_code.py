"""docs/read-the-code.md lists modules that exist, in an order in which one leads to the next."""

import re
from itertools import chain
from pathlib import Path

import architecture

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "read-the-code.md").read_text()
ENTRY = re.compile(r"^- \[([\w/]+)\.py\]\(\.\./src/vitkit/([\w/]+)\.py\): \S.*$", re.MULTILINE)


def parts():
    """The modules of each part of the page, as architecture.py names them."""
    lists = []
    for part in PAGE.split("\n## ")[1:]:
        entries = ENTRY.findall(part)
        assert len(entries) == part.count("\n- ")  # every line is read
        assert all(title == target for title, target in entries)
        lists.append([title.replace("/", ".") for title, _ in entries])
    return lists


def test_every_module_exists_and_is_listed_once():
    listed = list(chain(*parts()))
    assert not set(listed) - architecture.modules().keys()
    assert len(listed) == len(set(listed))


def test_there_are_three_parts_of_about_sixty_modules_and_below_20_000_lines():
    lists = parts()
    assert len(lists) == 3
    assert 50 <= len(list(chain(*lists))) <= 75
    assert architecture.lines_of(set(chain(*lists))) < 20_000
    # In an hour one reads two thousand lines, and a day is not two
    assert architecture.lines_of(set(lists[0])) < 2_500
    assert architecture.lines_of({*lists[0], *lists[1]}) < 12_000


def test_a_module_is_related_to_one_that_was_read_before():
    """It imports one of them, or is imported by one."""
    read = []
    for module in chain(*parts()):
        imported = architecture.imports(module, at_once=False)
        related = imported & set(read)
        related |= {other for other in read if module in architecture.imports(other, at_once=False)}
        assert related or not read, f"nothing that is listed before {module} has to do with it"
        read.append(module)


def test_every_package_of_the_core_is_explained():
    listed = {architecture.package_of(module) for module in chain(*parts())}
    core = {
        name
        for name in architecture.LAYERS
        if not architecture.is_application(name) and not name.startswith("__")
    }
    left_out = {"web", "curation", "estimator"}  # small, and needed by applications and callers
    assert core - listed == left_out
