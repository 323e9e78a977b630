"""Time is data: a duration in the unit that its writer thinks in. It becomes steps once, in
resolve()."""

import re
from typing import Literal, NamedTuple, get_args

Unit = Literal["steps", "epochs", "images"]


class Span(NamedTuple):
    """`Span(10, "epochs")`; the paper's tables mix epochs (Table 3) and steps (Table 4)."""

    n: float
    unit: Unit = "steps"

    def steps(self, batch: int, examples: int) -> int:
        """Whole steps, when a step takes `batch` of `examples` images; at least one unless the span
        is zero."""
        exact = self.n * {"steps": 1, "epochs": examples / batch, "images": 1 / batch}[self.unit]
        return max(round(exact), 1) if exact > 0 else 0

    def __str__(self) -> str:
        return (
            f"{self.n:g} {self.unit}" if self.n != round(self.n) else f"{int(self.n)} {self.unit}"
        )

    @classmethod
    def parse(cls, text: str) -> "Span":
        """From "10 epochs", "10epochs" or "500" (steps). Raises ValueError for anything else."""
        found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-z]*)\s*", text)
        unit = (found[2].rstrip("s") + "s" if found[2] else "steps") if found else ""
        if unit not in get_args(Unit):
            raise ValueError(
                f"{text!r} is not a duration; write it like 500steps, 10epochs or 1e6images"
            )
        try:
            return cls(float(found[1]), unit)
        except ValueError:
            raise ValueError(f"{text!r} is not a duration; {found[1]!r} is not a number") from None


def due(step: int, every: int, total: int) -> bool:
    """Whether something that happens `every` steps happens at this one; the last step always
    counts, step 0 never."""
    return step > 0 and ((every > 0 and step % every == 0) or step == total)
