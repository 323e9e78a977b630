"""Which of several processes this one is, that share work: `--shard 1/4` to `--shard 4/4`."""

import re

FORM = re.compile(r"(\d{1,6})/(\d{1,6})")


def read_shard(text: str) -> tuple[int, int]:
    """(i, n) from the text "1/n" to "n/n": the number of this process, from 0, and how many there are;
    (0, 1) from an empty one. Raises ValueError for any other text."""
    if not text:
        return 0, 1
    match = FORM.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"--shard is {text!r}; it is 1/4 to 4/4, for four processes")
    return int(match[1]) - 1, int(match[2])
