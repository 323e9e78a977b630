"""The `vitkit` command: parses the words, calls the command's function, and returns an exit status.

Nothing heavy is imported before it is needed, so that help appears immediately.
"""

import gc
import os
import signal
import sys
import threading
import traceback
from _thread import interrupt_main
from collections.abc import Sequence
from errno import ENOSPC
from pathlib import Path

from vitkit.cli.table import COMMANDS, GROUPS, NEAR, Command, Defaults, WordsMissing, WrongWords
from vitkit.system.environment import MAX_PIXELS_VARIABLE, TRACEBACK_VARIABLE, max_pixels
from vitkit.system.errors import VitkitError
from vitkit.system.functions.words import DATA, MODEL

# Exit status of a run that saved itself after a signal: EX_TEMPFAIL, run the command again
STOPPED = 75
FAILED = 1
WRONG_WORDS = 2
BUG = 70  # EX_SOFTWARE
INTERRUPTED = 130  # 128 + SIGINT, the convention of shells
HELP = ("-h", "--help")
HELP_ALL = "--help-all"  # all settings of a command; --help shows the common ones
VERSION = ("--version", "-V", "version")
COMPLETION = ("completion", "--print-completion", "--show-completion")
MAX_PIXELS = "--max-pixels"
TRACEBACK = "--traceback"


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns its exit status.

    A VitkitError, or an OSError about a file, is printed as one sentence, with status 1 (2 for a
    wrong command line). Anything else is a bug: a traceback and status 70.
    """
    own_process = argv is None
    if argv is None:
        argv = sys.argv[1:]
        sys.unraisablehook = _interrupt_again
        # PyTorch creates a million objects that are never freed. Collecting garbage during its import and
        # at exit would take a third of the time of the import
        gc.disable()
    try:
        status = _main(list(argv))
    except BrokenPipeError:  # `vitkit models | head`
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:  # a second Ctrl-C, while the first one was being handled
        status = INTERRUPTED
    if own_process:
        # A second Ctrl-C would print a traceback from the interpreter's shutdown
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if "triton" in sys.modules:  # imported by --compile; it warns about objects left at exit
            gc.unfreeze()
        else:
            gc.freeze()
    if own_process and status == STOPPED:
        # A second signal, as SLURM sends it, must not change the exit status
        for name in ("SIGTERM", "SIGUSR1", "SIGUSR2"):
            if hasattr(signal, name):  # Windows has the first alone
                signal.signal(getattr(signal, name), signal.SIG_IGN)
    return status


def _interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Hook for an exception in a destructor, which Python prints and ignores. A Ctrl-C must not be
    ignored, so it is raised again shortly afterwards, where the program can stop."""
    if unraisable.exc_type is KeyboardInterrupt:
        again = threading.Timer(0.05, interrupt_main)  # later, because a hook cannot raise
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def _main(words: list[str]) -> int:
    """Run a command; returns its exit status."""
    words = _take_common_options(words)
    try:
        max_pixels()
    except VitkitError as error:
        return _print_error(str(error), WRONG_WORDS)

    # Words that need no command
    if words[:1] == ["help"] and len(words) > 1:  # `vitkit help train`
        words = [*words[1:], "--help"]
    if not words or words[0] in (*HELP, HELP_ALL, "help"):
        print(overview())
        return 0
    if words[0] in VERSION:
        from vitkit import __version__

        print(f"vitkit {__version__}")
        return 0
    if words[0] in COMPLETION:
        from vitkit.cli.completion import completion

        try:
            print(completion(words[1:]), end="")
        except WrongWords as error:
            return _print_error(str(error), WRONG_WORDS)
        return 0

    # The command
    name, words = _split(words)
    command = {command.name: command for command in COMMANDS}.get(name)
    group = [command for command in COMMANDS if command.name.startswith(f"{name} ")]
    if group:  # `vitkit data` without its second word
        print(overview(group))
        return 0 if words else WRONG_WORDS
    if command is None:
        from vitkit.cli.guesses import other_command
        from vitkit.system.console.text import printable

        try:
            other = other_command(name, words)
        except WrongWords as answer:
            return _print_error(str(answer), WRONG_WORDS)
        if other is None:
            print(f"vitkit: {printable(_unknown(name))}", file=sys.stderr)
            return WRONG_WORDS
        name, words = _split(other)
    from vitkit.cli.guesses import own_command

    name, words = own_command(name, words)
    command = {command.name: command for command in COMMANDS}[name]
    return _run_and_report(command, words)


def _take_common_options(words: list[str]) -> list[str]:
    """Remove --max-pixels and --traceback, which every command accepts; returns the other words.
    Their values go into environment variables, which worker processes inherit."""
    others = []
    waiting = iter(words)
    for word in waiting:
        name, has_value, value = word.partition("=")
        if word == TRACEBACK:
            os.environ[TRACEBACK_VARIABLE] = "1"
            continue
        if name != MAX_PIXELS:
            others.append(word)
            continue
        os.environ[MAX_PIXELS_VARIABLE] = value if has_value else next(waiting, "nothing")
    return others


def overview(commands: Sequence[Command] = COMMANDS) -> str:
    """The overview that `vitkit` prints without a command: the given commands, in groups by task if
    all are given."""
    from vitkit.system.console.text import fill, titled, two_columns

    # The commands
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in GROUPS.values()}
    rows = []
    for command in commands:
        row = (f"{command.name} {command.words}".strip(), command.summary)
        rows.append(row)
        groups[GROUPS[command.group]].append(row)
    lines = ["", *two_columns(rows)]
    if len(commands) == len(COMMANDS):
        lines = titled(groups)

    # Options of every command
    limit = "the largest image to decode, with any command; 178,956,970 pixels by default"
    rows = [
        ("MODEL", MODEL),
        ("DATA", DATA),
        (f"{MAX_PIXELS} N", limit),
        (TRACEBACK, "where in the program an error was raised, with any command"),
    ]
    lines = ["usage: vitkit COMMAND ...", *lines, "", *two_columns(rows)]
    lines += ["", fill("vitkit COMMAND --help says more. Try this first: vitkit train digits")]
    return "\n".join(lines)


def _split(words: list[str]) -> tuple[str, list[str]]:
    """The command's name, of one or two words ("data stats"), and the words that follow it."""
    first = words[0]
    has_second_word = len(words) > 1 and words[1] not in (*HELP, HELP_ALL)
    if has_second_word and any(command.name.startswith(f"{first} ") for command in COMMANDS):
        return " ".join(words[:2]), words[2:]
    return first, words[1:]


def _unknown(name: str) -> str:
    """A message for an unknown command, with the nearest name, or with what to do with a file."""
    from difflib import get_close_matches

    import vitkit.cli.other_tools as other_tools
    from vitkit.cli.guesses import not_a_command

    answer = not_a_command(name)
    if answer:
        return answer
    sentence = f"there is no command {name!r}"
    meanings = other_tools.COMMANDS | {command.name: command.name for command in COMMANDS}
    near = get_close_matches(name, meanings, 1, NEAR)
    if near:
        return f"{sentence}; did you mean {meanings[near[0]]!r}? vitkit alone lists all"
    return f"{sentence}; vitkit alone lists all"


def _run_and_report(command: Command, words: list[str]) -> int:
    """Run a command; returns its exit status. Errors that a user can fix are printed as a sentence,
    bugs with their traceback."""
    from vitkit.cli.spelling import as_command, as_options
    from vitkit.system.console.messages import spelled
    from vitkit.system.errors import Interrupted, PeerFailed
    from vitkit.system.functions.steps import steps_as

    try:
        with spelled(as_options), steps_as(as_command):
            return _run(command, words)
    except WrongWords as error:
        return _print_error(str(error), WRONG_WORDS)
    except WordsMissing as usage:
        print(as_options(str(usage)))
        asked_for_help = any(word in (*HELP, HELP_ALL) for word in words)
        return 0 if asked_for_help else WRONG_WORDS
    except Interrupted:
        return STOPPED
    except PeerFailed:
        return FAILED
    except KeyboardInterrupt:  # outside of a training run, so nothing has to be saved
        return INTERRUPTED
    except BrokenPipeError:  # an OSError, but not a user's mistake
        raise
    except Exception as error:  # reported by kind
        sentence = _sentence_of(error)
        if sentence is None:
            return _report_bug(error)
        if os.environ.get(TRACEBACK_VARIABLE):
            _print_traceback(error)
        return _print_error(sentence)


def _sentence_of(error: Exception) -> str | None:
    """The message for an error that a user can fix, with advice; None for a bug."""
    if type(error).__name__ == "OutOfMemoryError":  # PyTorch's, by name to avoid importing PyTorch
        advice = "out of memory: use a smaller --micro-batch, or --recompute"
        return f"{advice} ({str(error).splitlines()[0]})"
    is_the_systems = isinstance(error, OSError) and (error.errno or error.filename)
    if not isinstance(error, VitkitError) and not is_the_systems:
        return None
    sentence = str(error)
    if isinstance(error, OSError) and error.errno == ENOSPC:
        sentence = os.strerror(ENOSPC)
        if error.filename:
            sentence = f"{error.filename} could not be written: {sentence}"
    if "No space left" in sentence and "make room" not in sentence:
        sentence += "; make room, or write to another disk"
    return sentence


def _report_bug(error: Exception) -> int:
    """Print a traceback, and whether the bug is vitkit's or the user's; returns the exit status."""
    _print_traceback(error)
    place = _outside_of_vitkit(error)
    if place is not None:
        _print_error(f"{type(error).__name__} in your own code: {place}")
        return BUG
    from vitkit import __version__

    _print_error(
        f"this is a bug of vitkit {__version__}; please report it, with the lines above and the command"
    )
    return BUG


def _print_traceback(error: Exception) -> None:
    from vitkit.system.console.text import printable_traceback

    print(printable_traceback(error), file=sys.stderr)


def _outside_of_vitkit(error: Exception) -> str | None:
    """The innermost frame of a traceback in the user's own code, which is neither vitkit's nor an
    installed package's; None if there is none."""
    import sysconfig

    packages = [Path(__file__).parents[1], Path(sys.prefix)]
    packages += [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    place = None
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    for filename, line in frames:
        file = Path(filename)
        if file.is_file() and not any(file.is_relative_to(folder) for folder in packages):
            place = f"{file}, line {line}"
    return place


def _print_error(sentence: str, status: int = 1) -> int:
    """Print one sentence in red; returns the exit status."""
    from rich.console import Console

    from vitkit.cli.spelling import as_options
    from vitkit.system.console.text import printable

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"vitkit: {printable(as_options(sentence))}", style="red")
    return status


def _run(command: Command, words: list[str]) -> int:
    """Parse the settings of a command, and run it."""
    from vitkit.cli.guesses import meant
    from vitkit.cli.help import has_two_levels
    from vitkit.cli.parsing import check_options, read_settings

    # Translate words of other tools, and correct their order
    words = meant(command, words)
    if has_two_levels(command) and any(word in HELP for word in words):
        print(_everyday_help(command, words))
        return 0
    words = ["--help" if word == HELP_ALL else word for word in words]

    # Defaults, which may depend on the first words
    program, defaults, words = _read_first_words(command, words)

    # The other words change settings
    check_options(command.load_function(), defaults.settings, words, program)
    values = read_settings(command.load_function(), program, words, defaults.settings)
    values |= defaults.read

    # Freeze the imported objects, and collect garbage from here on (see main)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    return command.run(values)


def _read_first_words(command: Command, words: list[str]) -> tuple[str, Defaults, list[str]]:
    """The words before the options, joined with the program's name; the defaults that they
    determine; and the other words."""
    program = f"vitkit {command.name}"
    read_first_words = command.load_defaults()
    if read_first_words is None:
        return program, Defaults(None, 0), words
    defaults = read_first_words(words)
    count = defaults.words
    return " ".join([program, *words[:count]]), defaults, words[count:]


def _everyday_help(command: Command, words: list[str]) -> str:
    """The help with the common settings, and their values if the first words can be read."""
    from vitkit.cli.help import short_help
    from vitkit.cli.spelling import as_options

    settings = command.load_function()
    words = [word for word in words if word not in HELP]
    program = f"vitkit {command.name}"
    if not words and not command.words.startswith("RECIPE"):
        return short_help(command, program, settings)
    try:
        program, defaults, _ = _read_first_words(command, words)
    except (VitkitError, OSError) as error:
        if command.words.startswith("RECIPE"):
            raise
        reason = f"Without the values of this run, because {as_options(str(error))}"
        return f"{reason}\n\n{short_help(command, program, settings)}"
    return short_help(command, program, settings, defaults.settings)
