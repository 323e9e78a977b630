"""Verbs: what a command does, as a function of the same name.

The settings of a verb are one dataclass, from which the command line is made too; a program gives
them as keyword arguments. What a verb returns is a frozen value that prints itself, shows itself in a
notebook, and is a table.

    @verb
    def fewshot(settings: MeasureFewshot) -> FewshotAccuracy: ...

    vitkit.fewshot("google/vit-base-patch16-224", "photos/", shots=(1, 5))
"""

import inspect
import random
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, update_wrapper, wraps
from io import StringIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy

from vitkit.system.console.messages import (
    Listener,
    current_callback,
    current_listener,
    followed_by,
    heard_by,
    say,
    to_nobody,
)
from vitkit.system.processes.signals import leaving_signals
from vitkit.system.storage.addresses import without_credentials
from vitkit.system.storage.files import as_utf8
from vitkit.verbs.call import Begin, parameters, settings_from
from vitkit.verbs.settings import options

if TYPE_CHECKING:
    import pandas
    from rich.console import Console

WIDTH = 100  # columns of a result as text, where there is no terminal


class _Help:
    """The docstring of a verb, made when it is asked for; of the class its own."""

    def __init__(self, of_class: str):
        self.of_class = of_class

    def __get__(self, verb: "Verb | None", kind: type) -> str:
        if verb is None:
            return self.of_class
        return verb.help_text()


class Verb:
    """A function whose arguments are the fields of its settings.

    Settings without a default, and words such as IMAGE..., may be given by position; all others are
    keyword arguments. `quiet` says nothing while it works; `progress` is called with each sentence
    (str) and each step of a bar (Progress) instead of the standard error.
    """

    __doc__ = _Help(__doc__)

    def __init__(self, run: Callable[[Any], Any], begin: Begin | None = None):
        update_wrapper(self, run, ("__module__", "__name__", "__qualname__"))
        self.run = run
        """The function of the settings."""
        self.begin = begin
        """What follows from the arguments that decide the others' defaults, if there are such."""

    @cached_property
    def settings(self) -> type:
        """The class of the settings."""
        return get_type_hints(self.run)["settings"]

    @cached_property
    def first(self) -> type:
        """The class of the settings that a call begins with."""
        if self.begin is None:
            return self.settings
        return get_type_hints(self.begin)["first"]

    # What help(), notebooks and pickle ask of a function

    @property
    def __signature__(self) -> inspect.Signature:
        by_name = {each.name: each for each in parameters(self.settings)}
        if self.begin:  # what has no default follows from the first ones
            first = {each.name: each for each in parameters(self.first)}
            by_name = first | {
                name: each
                for name, each in by_name.items()
                if name not in first and each.default is not inspect.Parameter.empty
            }
        ordered = sorted(by_name.values(), key=lambda each: each.kind)
        for name, default in (("quiet", False), ("progress", None)):
            kind = inspect.Parameter.KEYWORD_ONLY
            ordered.append(inspect.Parameter(name, kind, default=default))
        returned = get_type_hints(self.run)["return"]
        return inspect.Signature(ordered, return_annotation=returned)

    def help_text(self) -> str:
        """The text of help(): the purpose of the function, and its arguments."""
        lines = [inspect.getdoc(self.run), "", "Arguments:", ""]
        for option in options(self.first):
            text = option.help.split("\n\n")[0]
            lines += wrap(f"{option.argument}: {text}", 90, subsequent_indent="    ")
        if self.begin:
            lines += ["", "Every other setting of a run is one too, such as optim__lr=0.1."]
        lines += ["", "quiet: say nothing. progress: a function that is told sentences and steps."]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<vitkit.{self.__name__}>"

    def __get__(self, owner: Any, kind: type | None = None) -> "Verb":
        return self  # help() takes what has this for a function

    def __reduce__(self) -> str:
        return self.__qualname__

    # The call

    def __call__(
        self,
        *words: Any,
        quiet: bool = False,
        progress: Listener | None = None,
        **values: Any,
    ) -> Any:
        """Do it. Raises TypeError if an argument does not exist or has another type, and what the verb
        raises."""
        if progress is not None and not callable(progress):
            raise TypeError(f"progress is {progress!r}; it is a function that is told what happens")
        listener = progress or (to_nobody if quiet else current_listener())

        # A run is followed by the program itself: track=FUNCTION
        callback = current_callback()
        if self.begin is not None and callable(values.get("track")):
            callback = values.pop("track")

        with (
            heard_by(listener),
            followed_by(callback),
            leaving_signals(),
            _leaving_generators(),
            _without_credentials(),
        ):
            settings = settings_from(self.settings, self.__name__, words, values, self.begin)
            return self.run(settings)


def verb(run: Callable[[Any], Any]) -> Verb:
    """Makes a verb of a function whose one argument is called `settings`, a dataclass."""
    return Verb(run)


def verb_that_begins(begin: Begin) -> Callable[[Callable[[Any], Any]], Verb]:
    """The same, for one whose defaults depend on some settings, such as the name of a recipe: `begin`
    has an argument `first`, a dataclass of these."""

    def decorate(run: Callable[[Any], Any]) -> Verb:
        return Verb(run, begin)

    return decorate


_one_at_a_time = threading.RLock()


def alone(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes a function wait while another thread is in one of these: training draws its random numbers
    from generators that the whole process has, and PyTorch traces one model at a time."""

    @wraps(run)
    def waiting(settings: Any) -> Any:
        if not _one_at_a_time.acquire(blocking=False):
            say("another thread of this program trains or exports: waiting for it to end")
            _one_at_a_time.acquire()
        try:
            return run(settings)
        finally:
            _one_at_a_time.release()

    return waiting


@contextmanager
def _leaving_generators() -> Iterator[None]:
    """A block after which a program's random numbers go on as if it had not been."""
    pythons = random.getstate()
    numpys = numpy.random.get_state()
    torchs = None
    if "torch" in sys.modules:  # else its own state cannot matter yet
        torchs = sys.modules["torch"].get_rng_state()
    try:
        yield
    finally:
        random.setstate(pythons)
        numpy.random.set_state(numpys)
        if torchs is not None:
            sys.modules["torch"].set_rng_state(torchs)


@contextmanager
def _without_credentials() -> Iterator[None]:
    """A block whose errors show no password: programs log them."""
    try:
        yield
    except (ValueError, OSError, TypeError) as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (without_credentials(error.args[0]), *error.args[1:])
        raise


# Commands in a sentence, as calls

COMMAND = re.compile(r"""(?<!-m )vitkit ((?:data )?[a-z]+)((?: (?:'[^']*'|"[^"]*"|[^\s,;'"])+)*)""")
"""A command, and the words that follow it up to a comma, a semicolon or two blanks."""


def calls_for_commands(sentence: str) -> str:
    """A sentence with calls in place of commands: "vitkit predict runs/a IMAGE... --top 3" becomes
    "vitkit.predict('runs/a', images, top=3)"."""
    return COMMAND.sub(_as_call, sentence)


def _as_call(match: re.Match) -> str:
    from vitkit import verbs

    name = {"models": "list_models"}.get(match[1].split()[-1], match[1].split()[-1])
    verb = getattr(verbs, name, None)
    if not isinstance(verb, Verb):
        return match.group()
    named = {option.name: option for option in options(verb.settings) if not option.is_word}
    arguments = []
    words = shlex.split(match[2])
    while words:
        word = words.pop(0)
        option = named.get(word.removeprefix("--"))
        if not word.startswith("--"):
            arguments.append(_in_code(word))
        elif option is None:
            return match.group()
        elif option.kind is bool:
            arguments.append(f"{option.argument}=True")
        else:
            arguments.append(f"{option.argument}={_in_code(words.pop(0)) if words else '...'}")
    return f"vitkit.{name}({', '.join(arguments)})"


def _in_code(word: str) -> str:
    """A word of a command as an argument: IMAGE... is images, 3 is 3, and others are text."""
    if word.endswith("..."):
        return f"{word.removesuffix('...').lower()}s"
    if word.isupper() or word.replace(".", "", 1).isdigit():
        return word.lower()
    return repr(word)


# What a verb returns


def result(kind: type) -> type:
    """Makes a result of a frozen dataclass with a method `shown`, which gives what its command prints:
    sentences, and tables of rich. It gets `__str__`, and HTML for notebooks; with a method `rows`,
    one dict a row, also `to_frame`. HTML of its own, with pictures, stays."""
    kind.__str__ = as_text
    kind.__repr__ = as_text  # settings may hold a whole model
    if "_repr_html_" not in vars(kind):
        kind._repr_html_ = as_html
    if hasattr(kind, "rows"):
        kind.to_frame = to_frame
    return kind


def as_text(value: Any) -> str:
    """The output of a command, without colours, and with the words of a program."""
    from rich.console import Console

    console = Console(file=StringIO(), width=WIDTH)
    print_result(value, console, _in_python)
    return console.file.getvalue().rstrip("\n")


def as_html(value: Any) -> str:
    """The same for a notebook."""
    from rich.console import Console

    console = Console(file=StringIO(), width=WIDTH, record=True, force_jupyter=False)
    print_result(value, console, _in_python)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def print_result(
    value: Any, console: "Console | None" = None, spelling: Callable[[str], str] = str
) -> None:
    """Print what a verb has returned, as its command does: a sentence as `spelling` gives it, a table as
    wide as there is room. For sentences alone rich is not imported, which takes a tenth of a short
    command."""
    for part in value.shown():
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


def _in_python(sentence: str) -> str:
    """A sentence of a result, if it is on what to do next, with calls in place of commands."""
    if sentence.startswith(("next:", "  vitkit ")):
        return calls_for_commands(sentence)
    return sentence


def to_frame(value: Any) -> "pandas.DataFrame":
    """The rows as a table of pandas. Raises ImportError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_frame needs pandas: pip install pandas") from error
    return pandas.DataFrame(value.rows())
