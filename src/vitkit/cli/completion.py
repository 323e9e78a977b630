"""Shell completion: a script for bash, which zsh can also run."""

import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

from vitkit.cli.table import COMMANDS, Command, WrongWords
from vitkit.recipes import RECIPES
from vitkit.system.functions.parameters import options

SHELLS = ("bash", "zsh")
OF_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
SCRIPT = """\
# Completes the commands of vitkit, their options and the values of these; else names of files.
{beginning}_vitkit() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local command=${{COMP_WORDS[1]}} words=
  if [[ $COMP_CWORD -gt 2 && $command == data ]]; then
    command="data ${{COMP_WORDS[2]}}"
  fi
  if [[ $COMP_CWORD -eq 1 ]]; then
    words={commands}
  elif [[ $word == -* ]]; then
    case $command in
{options}
    esac
  else
    case "$command $before" in
{values}
    esac
  fi
  if [[ -n $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    local IFS=$'\n'  # a name may have spaces
    compopt -o filenames 2> /dev/null
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -F _vitkit vitkit
"""


def completion(words: list[str]) -> str:
    """The completion script for the given shell. Raises WrongWords for an unknown shell."""
    if words[:1] not in [[shell] for shell in SHELLS]:
        raise WrongWords(
            f"which shell is to complete words? vitkit completion {' or '.join(SHELLS)} prints its "
            "script"
        )
    names = dict.fromkeys(command.name.split()[0] for command in COMMANDS)
    options_by_command = []
    values_by_option = [_case("data data", _second_words("data"))]
    for command in COMMANDS:
        flags, values = _flags(command)
        options_by_command.append(_case(command.name, flags))
        for before, choices in values.items():
            values_by_option.append(_case(f"{command.name} {before}", choices))
    return SCRIPT.format(
        beginning=OF_ZSH if words[0] == "zsh" else "",
        commands=shlex.join([" ".join(names)]),
        options="\n".join(options_by_command),
        values="\n".join(values_by_option),
    )


def _case(of: str, words: Iterable[str]) -> str:
    """A line of a `case` statement in the script: the words proposed after `of`."""
    return f"      {shlex.quote(of)}) words={shlex.quote(' '.join(words))} ;;"


def _second_words(first: str) -> Iterator[str]:
    """The second words of two-word commands, such as those after `data`."""
    for command in COMMANDS:
        if command.name.startswith(f"{first} "):
            yield command.name.split()[1]


def _flags(command: Command) -> tuple[list[str], dict[str, list[str]]]:
    """The options of a command; and the values of options with a few choices, by the word before them."""
    flags = ["--help"]
    values = {}
    if command.words.startswith("RECIPE"):
        values[command.name] = list(RECIPES)
    for option in options(command.load_function()):
        if option.is_word:
            continue
        flags.append(f"--{option.name}")
        choices = _choices(option.kind)
        if choices:
            values[f"--{option.name}"] = choices
    return list(dict.fromkeys(flags)), values


def _choices(kind: Any) -> list[str]:
    """The words that a value of this type may be, if it is one of a few choices."""
    if get_origin(kind) is Literal:
        return list(map(str, get_args(kind)))
    return [choice for inner in get_args(kind) for choice in _choices(inner)]
