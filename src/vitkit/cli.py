"""The `vitkit` command: the only place with argv. Help comes before anything heavy is imported."""

import sys
from difflib import get_close_matches
from itertools import pairwise

STOPPED = 75  # exit status of a run that was asked to stop: saved, run the same command again (EX_TEMPFAIL)
COMMANDS = (
    "train", "finetune", "plan", "evaluate", "predict", "show", "compare", "convert", "push", "data pack", "data stats", "models"
)  # fmt: skip

OVERVIEW = """usage: vitkit COMMAND ...

  train RECIPE [--setting value]   train a model, or continue the run that is there
  finetune MODEL DATA              published weights on images of one's own, as the paper does
  plan RECIPE --gpus N             memory, time and energy that a recipe needs, by formula
  evaluate MODEL DATA              accuracy of a model on images with labels
  predict MODEL IMAGE...           the likeliest classes of images
  show MODEL                       what a model is and where it came from
  compare ONE TWO IMAGE...         whether two models compute the same, layer by layer
  convert MODEL DEST --to FORMAT   write it for Transformers, timm, torchvision or Google's code, with the proof
  push DIRECTORY NAME              upload it to the Hugging Face hub
  data stats DATA                  sizes, classes, duplicates and broken images of a data set
  data pack DATA DEST              write it as shards, to be read from anywhere
  models                           every named model, with what it costs

MODEL is a run, a model directory, a file of weights in any of these formats, or the name of a published one.

vitkit COMMAND --help says more. The first thing to try: vitkit train digits"""


def main(argv: list[str] | None = None) -> int:
    """Run a command; its exit status. What a user can cause is one sentence and status 1 (2 for a wrong command line)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(OVERVIEW)
        return 0
    if argv[0] == "--version":
        from vitkit import __version__

        print(f"vitkit {__version__}")
        return 0
    if argv[0] == "data":
        argv[:2] = [" ".join(argv[:2])]
    if argv[0] not in COMMANDS:
        near = get_close_matches(argv[0], COMMANDS, 1)
        print(
            f"vitkit: no command {argv[0]!r}{f'; did you mean {near[0]!r}?' if near else ''}\n\n{OVERVIEW}",
            file=sys.stderr,
        )
        return 2

    import torch

    from vitkit.data import WorkerDied
    from vitkit.system.ranks import PeerFailed, RankLost
    from vitkit.train import Interrupted

    try:
        return _dispatch(argv[0], argv[1:])
    except Interrupted:
        return STOPPED
    except PeerFailed:
        return 1
    except KeyboardInterrupt:  # outside a training run, where there is nothing to save
        return 130
    except BrokenPipeError:  # `vitkit models | head`
        sys.stderr.close()
        return 1
    except torch.OutOfMemoryError as error:
        return _complain(
            f"out of memory: use a smaller --micro-batch, or --recompute ({str(error).splitlines()[0]})"
        )
    except (ValueError, OSError, FloatingPointError, WorkerDied, RankLost) as error:
        return _complain(str(error))


def _complain(sentence: str) -> int:
    from rich.console import Console

    Console(stderr=True).print(
        f"vitkit: {sentence}", style="red", highlight=False, markup=False, soft_wrap=True
    )
    return 1


def _dispatch(name: str, rest: list[str]) -> int:
    import tyro

    from vitkit.commands import COMMANDS

    settings, act = COMMANDS[name]
    prog, default = f"vitkit {name}", None
    plain = (
        tyro.conf.AvoidSubcommands,
    )  # a setting that may be absent, as a hybrid's stem, is no command of its own
    if name == "finetune":
        from vitkit.commands.finetune import Known, values

        # with MODEL and DATA there, --help is about every setting that follows from them
        named = len(rest) > 1 and not any(word.startswith("-") for word in rest[:2])
        words = [word for word in rest if not (named and word in ("-h", "--help"))]
        default = values(
            tyro.cli(Known, prog=prog, args=words, config=plain, return_unknown_args=True)[0]
        )
        prog, rest = (f"{prog} {rest[0]} {rest[1]}", rest[2:]) if named else (prog, rest)
    elif name in ("train", "plan"):
        from vitkit.recipes import listing, recipe, with_model

        if not rest or rest[0].startswith("-"):
            print(
                f"usage: vitkit {name} RECIPE [--model NAME] [--setting value]\n\nrecipes (or file.py:function):\n{listing()}\n\n"
                f"vitkit {name} RECIPE --help lists every setting with its value."
            )
            return 0 if rest else 2
        chosen, prog, rest = recipe(rest[0]), f"{prog} {rest[0]}", rest[1:]
        model = _value_of("--model", rest)  # first: the settings of the model are those of its kind
        default = settings(with_model(chosen, model) if model else chosen)
    with _spans():
        return act(
            tyro.cli(
                settings,
                prog=prog,
                args=rest,
                config=plain,
                **({"default": default} if default else {}),
            )
        )


def _value_of(option: str, words: list[str]) -> str:
    """What an option of one value is set to, the last time it is; empty where it is not."""
    found = [after for word, after in pairwise(words) if word == option]
    found += [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    return found[-1] if found else ""


def _spans():
    """Durations on the command line are one word: --length 10epochs."""
    import tyro

    from vitkit.system.span import Span

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def rule(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec | None:
        if info.type is not Span:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="DURATION",
            instance_from_str=lambda words: Span.parse(words[0]),
            is_instance=lambda value: isinstance(value, Span),
            str_from_instance=lambda span: [str(span).replace(" ", "")],
        )

    return registry
