"""The command line: parses the words of a command, calls its function, prints the result, and returns an
exit status. A function's signature and docstring define its options and their help.
"""

from vitkit.cli.entry import main

__all__ = ["main"]
