"""Settings that are chosen on held-out images, and several seeds: what `train` and `finetune` take and
show of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table

from vitkit.evaluation import Metric
from vitkit.studies import USUAL, Regularisation, Transfer, regularised
from vitkit.system.console.saying import say
from vitkit.system.console.text import counted
from vitkit.training import Recipe


@dataclass(frozen=True)
class Regularise:
    """Regularisation that is chosen on held-out images."""

    regularise: bool = False
    """Choose weight decay, dropout and label smoothing first, on held-out training images, as the paper
    does on its smaller sets: every combination of the following, and the recipe's own."""
    weight_decays: tuple[float, ...] = ()
    """Weight decays to choose from. Default, with --regularise: 0.03, 0.1 and 0.3."""
    dropouts: tuple[float, ...] = ()
    """Rates of dropout to choose from. Default, with --regularise: 0 and 0.1."""
    label_smoothings: tuple[float, ...] = ()
    """Label smoothings to choose from. Default, with --regularise: 0 and 0.1."""

    def values(self) -> Regularisation:
        """What is tried: the values that are given; for the others the usual ones, if
        --regularise is."""
        usual = Regularisation()
        if self.regularise:
            usual = USUAL
        return Regularisation(
            self.weight_decays or usual.weight_decays,
            self.dropouts or usual.dropouts,
            self.label_smoothings or usual.label_smoothings,
        )


def say_regularisation(recipe: Recipe, values: Regularisation) -> None:
    """Say how many runs it takes to choose the regularisation, before any starts."""
    if not values:
        return
    runs = counted(len(regularised(recipe, values)), "run")
    say(f"{runs} on held-out images choose the regularisation first, each as long as the final one")


def transfer_tables(outcome: Transfer) -> Iterator[str | Table]:
    """What was chosen, and what the final runs reached."""
    yield from _selection(outcome)
    if outcome.regularisation:
        tried = dict(outcome.regularisation)
        yield _tried_table("regularisation", tried, outcome.regularised)
    yield from _seeds(outcome)


def _selection(outcome: Transfer) -> Iterator[str | Table]:
    """What each learning rate reached, and which was chosen."""
    if not outcome.selection:
        return
    tried = {f"{rate:g}": metric for rate, metric in outcome.selection.items()}
    yield _tried_table("learning rate", tried, f"{outcome.lr:g}")

    # A rate at the end of a range may not be the best there is
    ends = (min(outcome.selection), max(outcome.selection))
    if len(outcome.selection) > 1 and outcome.lr in ends:
        yield (
            f"the best rate, {outcome.lr:g}, is at the end of those tried: "
            "try beyond it with --rates"
        )


def _tried_table(title: str, tried: dict[str, Metric | None], chosen: str) -> Table:
    """What was tried, and what each reached."""
    table = Table(title, tried[chosen].name, "")
    for text, metric in tried.items():
        value = "failed"
        if metric is not None:
            value = metric.unit.text(metric.value)
        remark = ""
        if text == chosen:
            remark = "chosen"
        table.add_row(text, value, remark)
    return table


def _seeds(outcome: Transfer) -> Iterator[str | Table]:
    """What the final runs reached, if there are several."""
    if len(outcome.runs) == 1 or None in outcome.runs.values():
        return
    first = next(iter(outcome.runs.values()))
    table = Table("seed", first.name)
    for seed, metric in outcome.runs.items():
        table.add_row(str(seed), metric.unit.text(metric.value))
    yield table
    mean, deviation = (first.unit.text(value) for value in outcome.mean())
    count = len(outcome.runs)
    yield (f"{first.name}: {mean} ± {deviation} (mean and standard deviation of {count} seeds)")
