"""Puts the pages of the site together, in build/docs, for Zensical: `make docs`.

The pages are those of docs/ and of the repository's root, as a forge shows them. Added are the
notebooks, and a page of the reference for each package: its public names with their docstrings.
For programs that read, the built site has every page as Markdown too, and llms.txt, which lists them
(https://llmstxt.org).

    python docs/build_site.py            the pages, before Zensical builds the site
    python docs/build_site.py --texts    the Markdown and llms.txt, in the built site
    python docs/build_site.py --check    whether everything on the built site leads somewhere
"""

import inspect
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import griffe

import vitkit
from vitkit.cli.parsing import purpose_of
from vitkit.cli.table import COMMANDS
from vitkit.system.functions.parameters import MISSING, parameters

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BUILT = ROOT / "build/docs"
SITE = ROOT / "build/site"
# Pages outside of docs/, as they are called in the site
OTHERS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
# The four parts of the documentation, each with a page that lists its others
PARTS = ("tutorials", "how-to", "reference", "explanation")
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
ENTRY = re.compile(r"^- \[(.*?)\]\((\S+?)\): (.*)$", re.MULTILINE)
DIRECTIVE = re.compile(r"^::: (\S+)\n(?: {4}.*\n)*", re.MULTILINE)  # of mkdocstrings


def build() -> None:
    """Write all pages."""
    shutil.rmtree(BUILT, ignore_errors=True)
    BUILT.mkdir(parents=True)
    for path in DOCS.iterdir():
        if path.suffix == ".md":
            write(path.name, pointed(path.read_text(), path))
        elif path.suffix not in (".py", ".ipynb"):
            shutil.copy(path, BUILT)
    for name, page in OTHERS.items():
        if (ROOT / name).exists():
            write(page, pointed((ROOT / name).read_text(), ROOT / name))
    write("licence.md", f"# Licence\n\n```text\n{(ROOT / 'LICENSE').read_text()}```\n")
    for notebook in DOCS.glob("*.ipynb"):
        render_notebook(notebook)
    write_reference()


def write(name: str, text: str) -> None:
    """Write a page."""
    path = BUILT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def pointed(text: str, page: Path) -> str:
    """The text of a page whose links lead where the other pages are in the site."""

    def target(match: re.Match) -> str:
        before, link, after = match.groups()
        address, mark, anchor = link.partition("#")
        if "://" in address or not address:
            return match.group()
        path = (page.parent / address).resolve()
        return f"{before}{place_of(path)}{mark}{anchor}{after}"

    text = LINK.sub(target, text)
    return text.replace('src="docs/', 'src="')


def place_of(path: Path) -> str:
    """Where a file of the repository is in the site, from its front page. A file that is no page is
    copied there. Raises ValueError for one that does not exist."""
    if path.parent == ROOT and path.name in OTHERS:
        return OTHERS[path.name]
    if path == ROOT / "LICENSE":
        return "licence.md"
    if path.parent == DOCS and path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"
    if path.parent == DOCS:
        return path.name
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    copy = BUILT / "files" / path.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, copy)
    return copy.relative_to(BUILT).as_posix()


def render_notebook(notebook: Path) -> None:
    """A notebook as a page, with what it has printed and drawn."""
    folder = BUILT / "notebooks"
    command = [sys.executable, "-m", "nbconvert", "--to", "markdown", "--log-level", "WARN"]
    subprocess.run([*command, f"--output-dir={folder}", notebook], check=True)


# The reference


def write_reference() -> None:
    """A page for the functions of commands, and one for each package."""
    lines = [
        "# All public names",
        "",
        "From the docstrings. `import vitkit` is enough for all of it.",
        "",
        "- [Commands as functions](functions.md): what `vitkit` itself has, with every argument",
    ]
    root = Path(vitkit.__file__).parent
    for path in [*sorted(root.glob("*/__init__.pyi")), *sorted(root.glob("apps/*/__init__.pyi"))]:
        package = ".".join(path.parent.relative_to(root).parts)
        module = import_module(f"vitkit.{package}")
        lines.append(f"- [vitkit.{package}]({package}.md): {first_sentence(module)}")
        write(f"api/{package}.md", package_page(package, module, path))
    write("api/index.md", "\n".join(lines) + "\n")
    write("api/functions.md", functions_page())


def first_sentence(module: object) -> str:
    """What a package says of itself."""
    words = " ".join(inspect.getdoc(module).split("\n\n")[0].split())
    return words.split(". ")[0].rstrip(".")


def package_page(package: str, module: object, stub: Path) -> str:
    """The public names of a package, module by module, as its stub lists them."""
    lines = [f"# vitkit.{package}", "", inspect.getdoc(module), ""]
    for file, name in re.findall(r"from \.([\w.]+) import (\w+) as", stub.read_text()):
        place = where_it_is(module, package, file, name)
        if place:
            lines += [f"::: {place}", "    options:"]
            lines += [f"      heading: {name}", f"      toc_label: {name}", ""]
    return "\n".join(lines)


def where_it_is(module: object, package: str, file: str, name: str) -> str:
    """The full name of a public name in the file that defines it; empty for a value of another package,
    which is on the page of that one."""
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"{value.__module__}.{value.__qualname__}"
    source = Path(import_module(f"vitkit.{package}.{file}").__file__).read_text()
    if not re.search(rf"^{name}\b", source, re.MULTILINE):
        return ""
    return f"vitkit.{package}.{file}.{name}"


def functions_page() -> str:
    """What each command's function does, and its arguments with their defaults."""
    lines = [
        "# Commands as functions",
        "",
        "Each function does what the command does, and returns a frozen value "
        "([how to call them](../python.md#every-command-is-a-function)).",
        "",
    ]
    for command in COMMANDS:
        function = command.load_function()
        lines += [
            f"## vitkit.{command.function}",
            "",
            f"`vitkit {command.name} {command.words}`",
            "",
        ]
        lines += [purpose_of(function), ""]
        for each in parameters(function):
            default = ""
            if each.default is not MISSING:
                default = f" = `{each.default!r}`"
            lines.append(f"- `{each.name}`{default}: {one_line(each.help)}")
        lines.append("")
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Text of several lines or paragraphs as one line of a list."""
    return " ".join(text.split()).replace("<", "&lt;")


# The site for programs that read


def write_texts() -> None:
    """Every page as Markdown beside its HTML, and llms.txt."""
    package = griffe.load("vitkit", search_paths=[ROOT / "src"])
    for page in BUILT.rglob("*.md"):
        text = DIRECTIVE.sub(lambda match: text_of(package, match[1]), page.read_text())
        path = SITE / page.relative_to(BUILT)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (SITE / "llms.txt").write_text(llms_txt())


def llms_txt() -> str:
    """What vitkit is, and the pages of each part of the documentation with a line about each."""
    introduction = (BUILT / "index.md").read_text().split("\n\n")[1]
    lines = ["# vitkit", "", f"> {' '.join(introduction.split())}"]
    for part in PARTS:
        page = (BUILT / f"{part}.md").read_text()
        title = page.partition("\n")[0].removeprefix("# ")
        lines += ["", f"## {title}", ""]
        lines += [f"- [{name}]({link}): {about}" for name, link, about in ENTRY.findall(page)]
        if part == "reference":
            lines.append("- [All public names](api/index.md): from the docstrings, by package")
    return "\n".join(lines) + "\n"


def text_of(package: griffe.Module, place: str) -> str:
    """A public name as Markdown: its signature, its docstring, and the members of a class."""
    thing = package[place.removeprefix("vitkit.")]
    lines = [f"### {thing.name}", "", *described(thing)]
    if thing.is_class:
        for member in thing.members.values():
            if member.is_public and member.has_docstring:
                lines += [f"#### {thing.name}.{member.name}", "", *described(member)]
    return "\n".join(lines)


def described(thing: griffe.Object) -> list[str]:
    """What a function, a class or a value is: its signature or type, and its docstring."""
    signature = thing.name
    if thing.is_function:
        signature = thing.signature()
    elif thing.is_attribute and thing.annotation is not None:
        signature = f"{thing.name}: {thing.annotation}"
        if thing.value is not None:
            signature += f" = {thing.value}"
    docstring = thing.docstring.value if thing.has_docstring else ""
    return ["```python", signature, "```", "", docstring, ""]


# Whether everything on the built pages leads somewhere


class Page(HTMLParser):
    """The addresses on a page, and the places on it that addresses may name."""

    def __init__(self, path: Path):
        super().__init__()
        self.addresses: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        for name in ("href", "src"):
            if values.get(name):
                self.addresses.append(values[name])
        for name in ("id", "name"):
            if values.get(name):
                self.places.add(values[name])


def broken() -> list[str]:
    """A line for each address on the built site that leads nowhere in it."""
    pages = {path: Page(path) for path in SITE.rglob("*.html")}
    lines = []
    for path, page in pages.items():
        if path.name == "404.html":  # its addresses are from the site's root
            continue
        for address in page.addresses:
            if not leads_somewhere(address, path, pages):
                lines.append(f"{path.relative_to(SITE)}: {address}")
    for _, address, _ in ENTRY.findall((SITE / "llms.txt").read_text()):
        if not leads_somewhere(address, SITE / "llms.txt", pages):
            lines.append(f"llms.txt: {address}")
    return lines


def leads_somewhere(address: str, path: Path, pages: dict[Path, Page]) -> bool:
    """Whether an address on a page is elsewhere, or a file of the site, and a place on it."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return True
    target = path
    if parts.path:
        target = (path.parent / unquote(parts.path)).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    if not parts.fragment or target not in pages:
        return True
    return unquote(parts.fragment) in pages[target].places


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        lines = broken()
        if lines:
            sys.exit("\n".join(lines))
    elif sys.argv[1:] == ["--texts"]:
        write_texts()
    else:
        build()
