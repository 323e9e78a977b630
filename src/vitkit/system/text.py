"""Text from files of strangers, as a terminal may show it."""

LONGEST = 2000  # characters of a sentence
LONGEST_NAME = 200  # characters of the name of a class or a file


def printable(text: str, longest: int = LONGEST) -> str:
    """The same text, if all of it can be shown: control characters become escapes, as in "\\\\x1b",
    and what is longer than `longest` loses its middle.

    Names of classes and files, and messages that repeat them, may hold what moves a terminal's
    cursor, clears its screen or turns the direction of writing.
    """
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} ... ({len(text):,} characters) ... {text[-half:]}"
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    """The character itself, or its escape."""
    if character.isprintable() or character == "\n":
        return character
    return character.encode("unicode_escape").decode("ascii")
