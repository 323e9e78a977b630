"""The architecture as the code has it: the packages, their layers, and what each says of itself.

    cd tests && python -m architecture

prints the list that CONTRIBUTING.md has; test_contracts.py holds the two together.
"""

import ast
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


def _line(name: str, file: Path) -> str:
    """The name of a package, and the first sentence of its docstring."""
    words = ast.get_docstring(ast.parse(file.read_text())) or ""
    paragraph = " ".join(words.split("\n\n")[0].split())
    sentence = paragraph.split(". ")[0].rstrip(".")
    return f"{name:20} {sentence}"


if __name__ == "__main__":
    print(drawn())
