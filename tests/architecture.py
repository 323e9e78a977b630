"""The architecture as the code has it: the packages, their layers, and what each says of itself.

    cd tests && python -m architecture

prints the list that CONTRIBUTING.md has; test_contracts.py holds the two together. With --lines it prints how
many lines each package has, and how many are reached by imports from a few functions.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import vitkit

ROOT = Path(vitkit.__file__).parent
APPLICATION = 11
LAYERS = {
    "system": 0,
    "models": 1, "data": 1, "web": 1,
    "weights": 2,
    "inspection": 3,
    "runtimes": 4, "curation": 4,
    "evaluation": 5,
    "prediction": 6, "objectives": 6,
    "recipes": 7,
    "training": 8,
    "exporting": 9, "estimator": 9,
    "finetuning": 10,
    **{f"apps.{path.parent.name}": APPLICATION for path in sorted(ROOT.glob("apps/*/__init__.py"))},
    "cli": 12, "__main__": 13, "__init__": 14,
}  # fmt: skip
"""A module imports only from packages of lower layers, or from its own. So the core imports no application,
and no application imports another."""


def package_of(module: str) -> str:
    """The package of a module: "data" of vitkit.data.formats.tar, "apps.label" of vitkit.apps.label.head."""
    first, *rest = module.removeprefix("vitkit.").split(".")
    if first == "apps" and rest:
        return f"apps.{rest[0]}"
    return first


def is_application(package: str) -> bool:
    """Whether a package is an application."""
    return package.startswith("apps.")


def drawn() -> str:
    """The packages from the lowest layer up, with the folders in them, a line each."""
    lines = []
    for name, layer in LAYERS.items():
        if name.startswith("__"):
            continue
        path = ROOT.joinpath(*name.split("."))
        if not path.is_dir():
            lines.append(_line(f"{layer:2} {name}.py", path.with_suffix(".py")))
            continue
        lines.append(_line(f"{layer:2} {name.replace('.', '/')}/", path / "__init__.py"))
        for folder in sorted(init.parent for init in path.rglob("*/__init__.py")):
            depth = len(folder.relative_to(path).parts)
            lines.append(_line("   " + "  " * depth + f"{folder.name}/", folder / "__init__.py"))
    return "\n".join(lines)


CLOSURES = {
    "load": "weights.store",
    "stats": "curation.functions.stats",
    "predict": "prediction.functions.predict",
    "evaluate": "evaluation.functions.evaluate",
    "train": "training.functions.train",
    "finetune": "finetuning.functions.finetune",
}
"""The modules of functions whose closures are counted: all modules that are reached by imports."""


@functools.cache
def modules() -> dict[str, Path]:
    """All modules by name, without "vitkit.": "data.formats.tar"."""
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = file
    return found


IMPORTED = re.compile(r"from (vitkit(?:\.\w+)*) import (\([^)]*\)|[^\n]*)")


def names_imported(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each `from vitkit.MODULE import NAME` in a file or a page."""
    for module, names in IMPORTED.findall(text):
        for name in names.strip("()").split(","):
            if name.strip():
                yield module, name.split()[0]


@functools.cache
def public_names(package: str) -> dict[str, str]:
    """The public names of a package, and the module that has each."""
    stub = ROOT.joinpath(*package.split("."), "__init__.pyi")
    names = {}
    if stub.exists():
        for node in ast.parse(stub.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                names |= {alias.name: f"{package}.{node.module}" for alias in node.names}
    return names


@functools.cache
def imports(module: str, at_once: bool) -> frozenset[str]:
    """The modules that one imports, those of public names included; not those that types alone need.

    at_once: only what is imported when the module is, not what its functions import.
    """
    found = set()
    open_nodes: list[ast.AST] = [ast.parse(modules()[module].read_text())]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            open_nodes += node.orelse
            continue
        if at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitkit."):
            source = node.module.removeprefix("vitkit.")
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                found.add(public_names(source).get(alias.name, inner))
                found.add(source)
        open_nodes += ast.iter_child_nodes(node)
    return frozenset(found & modules().keys())


def closure(module: str, at_once: bool = False) -> set[str]:
    """All modules that are reached by imports from one, itself included."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += imports(name, at_once)
    return reached


def lines_of(names: set[str]) -> int:
    """The lines of modules."""
    return sum(len(modules()[name].read_text().splitlines()) for name in names)


def counted() -> str:
    """Lines of each package, and of the closures of a few functions, as a table."""
    rows = []
    of_core, of_applications = 0, 0
    for package in LAYERS:
        lines = lines_of({name for name in modules() if name and package_of(name) == package})
        if is_application(package):
            of_applications += lines
        else:
            of_core += lines
        rows.append(f"{lines:7,}  {package}")
    rows.append(f"{of_core:7,}  the core")
    rows.append(f"{of_applications:7,}  applications")
    rows.append("reached by imports from (at its import, and from its functions too):")
    for function, module in CLOSURES.items():
        at_once, all_of_it = (lines_of(closure(module, each)) for each in (True, False))
        rows.append(f"{at_once:7,} {all_of_it:7,}  {function}")
    return "\n".join(rows)


def _line(name: str, file: Path) -> str:
    """The name of a package, and the first sentence of its docstring."""
    words = ast.get_docstring(ast.parse(file.read_text())) or ""
    paragraph = " ".join(words.split("\n\n")[0].split())
    sentence = paragraph.split(". ")[0].rstrip(".")
    return f"{name:20} {sentence}"


if __name__ == "__main__":
    print(counted() if "--lines" in sys.argv else drawn())
