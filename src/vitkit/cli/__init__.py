"""The command line: words that a person types become a call of a function, its result is printed, and
there is an exit status. A function's signature and docstring give its options and their help.
"""

from vitkit.cli.entry import main

__all__ = ["main"]
