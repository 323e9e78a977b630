"""Results of the public functions: frozen dataclasses with a text form and a notebook form, and with a table
if they have rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from io import StringIO
from typing import TYPE_CHECKING, Any

from vitkit.system.storage.addresses import without_credentials
from vitkit.system.storage.files import as_text, as_utf8

if TYPE_CHECKING:
    import pandas
    from rich.console import Console
    from rich.table import Table

WIDTH = 100  # columns of a result as text without a terminal


class Result(ABC):
    """The result of a public function; `str()` is the output of its command."""

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 0

    @abstractmethod
    def shown(self) -> "Iterator[str | Table]":
        """The command's output: sentences, and tables of rich."""

    def __str__(self) -> str:
        text = StringIO()
        _printed(self, text)
        return text.getvalue().rstrip("\n")

    def __repr__(self) -> str:  # fields may contain a whole model
        return str(self)

    def _repr_html_(self) -> str:
        """The HTML form for a notebook."""
        console = _printed(self, StringIO())
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


class Rows(Result):
    """A result that is a table."""

    @abstractmethod
    def rows(self) -> list[dict]:
        """The rows, each a dict of plain values by column."""

    def to_frame(self) -> "pandas.DataFrame":
        """The rows as a table of pandas. Bytes of a name that is not UTF-8 are escapes, as in CSV, since pandas
        cannot hold them. Raises ImportError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install pandas") from error
        return pandas.DataFrame(_in_utf8(self.rows()))


def _in_utf8(value: Any) -> Any:
    """A value of a table, or several, in which every text is one that UTF-8 can represent."""
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, dict):
        return {_in_utf8(name): _in_utf8(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_in_utf8, value))
    return value


class ModelResult(Result):
    """A result that made a model; functions that need a model accept the result instead."""

    @property
    @abstractmethod
    def made(self) -> Any:
        """The model, as functions accept it: its path (a str), or the classifier itself. Raises VitkitError if no
        model was made."""


def _printed(result: Result, text: StringIO) -> "Console":
    """Print a result to this text and return the rich console."""
    from rich.console import Console

    console = Console(file=text, width=WIDTH, record=True, force_jupyter=False)
    print_result(result, console)
    return console


def print_result(
    result: Result, console: "Console | None" = None, spelling: Callable[[str], str] = str
) -> None:
    """Print a result: each sentence through `spelling`, each table in the available width. Imports rich only for
    tables, because the import takes a tenth of the time of a short command."""
    for part in result.shown():
        if isinstance(part, str):
            part = as_utf8(without_credentials(part)).decode()
            if not part.startswith(("{", "[")):  # JSON, for a program
                part = spelling(part)
        if isinstance(part, str) and console is None:
            print(part)
            continue
        if console is None:
            from rich.console import Console

            console = Console()
        if isinstance(part, str):
            console.print(part, highlight=False, markup=False, soft_wrap=True)
        else:
            console.print(part)
