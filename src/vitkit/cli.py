"""The `vitkit` command: from the words that are typed to a function's settings, and to an exit
status.

Nothing heavy is imported before it is needed, so that help is there at once.
"""

import sys

from vitkit.commands import COMMANDS, Command, WordsMissing

# Exit status of a run that was asked to stop and has saved itself: EX_TEMPFAIL, run it again
STOPPED = 75


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns its exit status.

    An error that a user can cause is one sentence and status 1, or 2 for a wrong command line.
    """
    if argv is None:
        argv = sys.argv[1:]
    words = list(argv)

    # What needs no command
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] == "--version":
        from vitkit import __version__

        print(f"vitkit {__version__}")
        return 0

    # Which command
    name, words = _split(words)
    command = {command.name: command for command in COMMANDS}.get(name)
    if command is None:
        print(_unknown(name), file=sys.stderr)
        return 2
    return _run_and_report(command, words)


def overview() -> str:
    """What `vitkit` says without a command: all commands, from the table."""
    usages = [f"{command.name} {command.words}" for command in COMMANDS]
    width = max(map(len, usages)) + 3
    lines = ["usage: vitkit COMMAND ...", ""]
    for usage, command in zip(usages, COMMANDS, strict=True):
        lines.append(f"  {usage:{width}}{command.summary}")
    lines += [
        "",
        "MODEL is a run, a model directory, a file of weights in any of these formats, "
        "or the name of a published one.",
        "",
        "vitkit COMMAND --help says more. The first thing to try: vitkit train digits",
    ]
    return "\n".join(lines)


def _split(words: list[str]) -> tuple[str, list[str]]:
    """The command's name, of one word or of two ("data stats"), and the words that follow it."""
    first = words[0]
    if any(command.name.startswith(f"{first} ") for command in COMMANDS):
        return " ".join(words[:2]), words[2:]
    return first, words[1:]


def _unknown(name: str) -> str:
    """A sentence that there is no such command, with the nearest name, and the overview."""
    from difflib import get_close_matches

    sentence = f"vitkit: no command {name!r}"
    near = get_close_matches(name, [command.name for command in COMMANDS], 1)
    if near:
        sentence += f"; did you mean {near[0]!r}?"
    return f"{sentence}\n\n{overview()}"


def _run_and_report(command: Command, words: list[str]) -> int:
    """Run a command; returns its exit status. Errors that a user can cause are printed as a
    sentence."""
    from vitkit.system.errors import Interrupted, PeerFailed, RankLost, WorkerDied

    try:
        return _run(command, words)
    except WordsMissing as usage:
        print(usage)
        asked_for_help = "-h" in words or "--help" in words
        return 0 if asked_for_help else 2
    except Interrupted:
        return STOPPED
    except PeerFailed:
        return 1
    except KeyboardInterrupt:  # outside of a training run, where there is nothing to save
        return 130  # 128 + SIGINT, as shells have it
    except BrokenPipeError:  # `vitkit models | head`
        sys.stderr.close()
        return 1
    except (ValueError, OSError, FloatingPointError, WorkerDied, RankLost) as error:
        return _complain(str(error))
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, named without importing torch
            raise
        advice = "out of memory: use a smaller --micro-batch, or --recompute"
        return _complain(f"{advice} ({str(error).splitlines()[0]})")


def _complain(sentence: str) -> int:
    """Print one sentence in red; returns the exit status of a failure."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"vitkit: {sentence}", style="red")
    return 1


def _run(command: Command, words: list[str]) -> int:
    """Read the settings of a command from its words, and run it."""
    import tyro

    # The defaults, which may follow from the first words
    name = f"vitkit {command.name}"
    default = tyro.MISSING_NONPROP
    read_first_words = command.load_defaults()
    if read_first_words is not None:
        default, count = read_first_words(words)
        name = " ".join([name, *words[:count]])
        words = words[count:]

    # The other words change settings
    with _spans():
        settings = tyro.cli(
            command.load_settings(),
            prog=name,
            args=words,
            default=default,
            # tyro would make a subcommand of a setting that may be absent, such as a hybrid's stem
            config=(tyro.conf.AvoidSubcommands,),
        )
        return command.load_action()(settings)


def _spans():
    """Tells tyro that a Span is one word, as in --length 10epochs, or "none" if it may be
    absent."""
    import tyro

    from vitkit.system.span import Span

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def rule(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec | None:
        if info.type not in (Span, Span | None):
            return None
        optional = info.type is not Span

        def parse(words: list[str]) -> Span | None:
            if optional and words == ["none"]:
                return None
            return Span.parse(words[0])

        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="DURATION",
            instance_from_str=parse,
            is_instance=lambda value: isinstance(value, Span) or (optional and value is None),
            str_from_instance=lambda span: [str(span).replace(" ", "").lower()],
        )

    return registry
