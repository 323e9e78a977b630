"""How large an image may be, which people can change for every command at once."""

import os
import re

MAX_PIXELS = 178_956_970  # above it Pillow, too, refuses an image as a decompression bomb
VARIABLE = "VITKIT_MAX_PIXELS"


def max_pixels() -> int:
    """The largest image that is decoded: MAX_PIXELS, or what the environment says, which processes
    that are started inherit. `vitkit COMMAND --max-pixels N` sets it there.

    Raises ValueError.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return MAX_PIXELS
    if not re.fullmatch(r"[\d_,]{1,15}", text) or not int(re.sub("[_,]", "", text)):
        raise ValueError(
            f"the largest number of pixels is {text!r}; give a whole number, such as 500_000_000 "
            f"(--max-pixels, or {VARIABLE} in the environment)"
        )
    return int(re.sub("[_,]", "", text))
