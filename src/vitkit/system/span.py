"""A duration of a run, in steps, epochs or images. It becomes steps once, in train.resolve()."""

import re
from typing import Literal, NamedTuple, cast, get_args

from vitkit.system.errors import BadSettings

Unit = Literal["steps", "epochs", "images"]
UNITS: tuple[Unit, ...] = get_args(Unit)

FORM = re.compile(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-z]*)\s*")  # a number, and optionally a unit


class Span(NamedTuple):
    """`Span(10, "epochs")`. The paper's tables mix epochs (Table 3) and steps (Table 4)."""

    n: float
    unit: Unit = "steps"

    def steps(self, batch: int, examples: int) -> int:
        """The span in steps of `batch` images, with `examples` images per epoch.

        Rounded to whole steps; at least one, unless the span is zero.
        """
        exact = self.exact_steps(batch, examples)
        if exact <= 0:
            return 0
        return max(round(exact), 1)

    def exact_steps(self, batch: int, examples: int) -> float:
        """The span in steps without rounding."""
        steps_a_unit = {"steps": 1, "epochs": examples / batch, "images": 1 / batch}
        return self.n * steps_a_unit[self.unit]

    @property
    def in_steps(self) -> int:
        """The number of steps of a span of a resolved recipe, where all spans are in steps."""
        assert self.unit == "steps", f"{self} is not resolved"
        return int(self.n)

    def __str__(self) -> str:
        if self.n == round(self.n):  # a whole number with all digits: 1000000 images, not 1e+06
            return f"{int(self.n)} {self.unit}"
        return f"{self.n:g} {self.unit}"

    @classmethod
    def parse(cls, text: str) -> "Span":
        """The span of a text such as "10 epochs", "10epochs", "1epoch" or "500" (steps). Raises
        VitkitError for any other text."""
        sentence = f"{text!r} is not a duration; write it like 500steps, 10epochs or 1e6images"
        match = FORM.fullmatch(text)
        if match is None:
            raise BadSettings(sentence)
        number, unit = match.groups()
        if unit == "":
            unit = "steps"
        elif not unit.endswith("s"):
            unit += "s"
        if unit not in UNITS:
            raise BadSettings(sentence)
        try:
            return cls(float(number), cast(Unit, unit))
        except ValueError:  # for example 1.2.3
            raise BadSettings(f"{text!r} is not a duration; {number!r} is not a number") from None


def due(step: int, every: int, total: int) -> bool:
    """Whether an action that happens every `every` steps is due at this one. It always is at the last step,
    `total`, and never at step 0; with `every` 0 it is only at the end."""
    if step == 0:
        return False
    return step == total or (every > 0 and step % every == 0)
