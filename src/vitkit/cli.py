"""The `vitkit` command: the only place with argv. Help comes before anything heavy is imported."""

import sys

from vitkit.commands import COMMANDS, Command, WordsMissing

STOPPED = 75  # exit status of a run that was asked to stop: saved, run the same command again (EX_TEMPFAIL)


def main(argv: list[str] | None = None) -> int:
    """Run a command; its exit status. What a user can cause is one sentence and status 1 (2 for a wrong command line)."""
    words = list(sys.argv[1:] if argv is None else argv)

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
    """What `vitkit` says by itself: every command, from the table."""
    usages = {command.name: f"{command.name} {command.words}" for command in COMMANDS}
    width = max(map(len, usages.values())) + 3
    lines = [f"  {usages[command.name]:{width}}{command.summary}" for command in COMMANDS]
    return "\n".join(
        [
            "usage: vitkit COMMAND ...",
            "",
            *lines,
            "",
            "MODEL is a run, a model directory, a file of weights in any of these formats, or the name of a published one.",
            "",
            "vitkit COMMAND --help says more. The first thing to try: vitkit train digits",
        ]
    )


def _split(words: list[str]) -> tuple[str, list[str]]:
    """The command's name, of one word or two, and the words that follow it."""
    first = words[0]
    if any(command.name.startswith(f"{first} ") for command in COMMANDS):
        return " ".join(words[:2]), words[2:]
    return first, words[1:]


def _unknown(name: str) -> str:
    """That there is no such command, with the nearest name."""
    from difflib import get_close_matches

    sentence = f"vitkit: no command {name!r}"
    near = get_close_matches(name, [command.name for command in COMMANDS], 1)
    if near:
        sentence += f"; did you mean {near[0]!r}?"
    return f"{sentence}\n\n{overview()}"


def _run_and_report(command: Command, words: list[str]) -> int:
    """Run a command; errors that a user can cause become a sentence, and every end an exit status."""
    from vitkit.system.errors import Interrupted, PeerFailed, RankLost, WorkerDied

    try:
        return _run(command, words)
    except WordsMissing as usage:
        print(usage)
        return 0 if {"-h", "--help"} & set(words) else 2
    except Interrupted:
        return STOPPED
    except PeerFailed:
        return 1
    except KeyboardInterrupt:  # outside a training run, where there is nothing to save
        return 130
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
    """One sentence in red; the exit status of a failure."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"vitkit: {sentence}", style="red")
    return 1


def _run(command: Command, words: list[str]) -> int:
    """Read the settings of a command from its words, and run it."""
    import tyro

    # Settings that follow from the first words
    name = f"vitkit {command.name}"
    default = tyro.MISSING_NONPROP
    read_first_words = command.load_defaults()
    if read_first_words is not None:
        default, count = read_first_words(words)
        name = " ".join([name, *words[:count]])
        words = words[count:]

    # The others
    with _spans():
        settings = tyro.cli(
            command.load_settings(),
            prog=name,
            args=words,
            default=default,
            # a setting that may be absent, as a hybrid's stem, is no command of its own
            config=(tyro.conf.AvoidSubcommands,),
        )
        return command.load_action()(settings)


def _spans():
    """Durations on the command line are one word: --length 10epochs, or none where there may be none."""
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
