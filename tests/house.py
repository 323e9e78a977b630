"""The house as its code has it: rooms, their ranks, and what each says of itself.

    cd tests && python -m house

prints the page that CONTRIBUTING.md has; test_contracts.py holds the two together.
"""

import ast
from pathlib import Path

import vitkit

ROOT = Path(vitkit.__file__).parent

RANKS = {
    "system": 0,
    "models": 1, "data": 1,
    "curation": 2, "weights": 2,
    "inspection": 3,
    "evaluation": 4,
    "objectives": 5,
    "training": 6,
    "recipes": 7, "runtimes": 7, "estimator": 7,
    "quick": 8, "prediction": 8, "studies": 8,
    "exporting": 9, "serving": 9, "suites": 9,
    "benching": 10, "labelling": 10,
    "acceleration": 11,
    "verbs": 12,
    "cli": 13, "__main__": 14, "__init__": 15,
}  # fmt: skip
"""A file imports only from rooms of lower ranks, or from its own."""


def drawn() -> str:
    """The rooms from the ground up, with the folders in them, a line each."""
    lines = []
    for name, rank in RANKS.items():
        if name.startswith("__"):
            continue
        room = ROOT / name
        if not room.is_dir():
            lines.append(_line(f"{rank:2} {name}.py", room.with_suffix(".py")))
            continue
        lines.append(_line(f"{rank:2} {name}/", room / "__init__.py"))
        for folder in sorted(path.parent for path in room.rglob("*/__init__.py")):
            depth = len(folder.relative_to(room).parts)
            lines.append(_line("   " + "  " * depth + f"{folder.name}/", folder / "__init__.py"))
    return "\n".join(lines)


def _line(name: str, file: Path) -> str:
    """A room's name, and the first sentence of what it says of itself."""
    words = ast.get_docstring(ast.parse(file.read_text())) or ""
    paragraph = " ".join(words.split("\n\n")[0].split())
    sentence = paragraph.split(". ")[0].rstrip(".")
    return f"{name:20} {sentence}"


if __name__ == "__main__":
    print(drawn())
