"""`vitkit study NAME`: its help says what the study is."""

from vitkit.apps.studies import STUDIES, study_description
from vitkit.cli.spelling import as_options
from vitkit.cli.table import Defaults

HELP = ("-h", "--help", "--help-all")


def defaults(words: list[str]) -> Defaults:
    """The settings at their defaults. If help is asked for, what the named study is comes first."""
    asks_for_help = any(word in HELP for word in words)
    named = [word for word in words[:1] if word in STUDIES]
    if asks_for_help and named:
        print(as_options(study_description(STUDIES[named[0]])))
    return Defaults(None, words=0)
