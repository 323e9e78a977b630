"""`vitkit study NAME`: help that begins with a description of the named study."""

from vitkit.apps.studies import STUDIES, study_description
from vitkit.cli.spelling import as_options
from vitkit.cli.table import Defaults

HELP = ("-h", "--help", "--help-all")


def defaults(words: list[str]) -> Defaults:
    """The settings at their defaults. For --help, prints a description of the named study first."""
    asks_for_help = any(word in HELP for word in words)
    named = [word for word in words[:1] if word in STUDIES]
    if asks_for_help and named:
        print(as_options(study_description(STUDIES[named[0]])))
    return Defaults(None, words=0)
