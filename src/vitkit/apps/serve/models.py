"""A model that is served: what computes its answers, and what shows its attention.

PyTorch is imported only where it computes: an exported file answers without it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from vitkit.runtimes import Runtime, digest_of_classifier
from vitkit.system.errors import BadWeights, Unavailable, Unsupported, VitkitError

if TYPE_CHECKING:
    from vitkit.apps.serve.attention import Looker
    from vitkit.weights import Classifier


@dataclass(frozen=True)
class Served:
    """A model that is served."""

    name: str
    """What clients know it by."""
    runtime: Runtime
    loaded: str
    """When it was opened, ISO 8601."""
    looker: "Callable[[], Looker]"
    """The model whose attention is shown; the first call may take seconds. Raises VitkitError if it has
    none."""
    no_answer: str = ""
    """Why the model names no classes; empty for a model that does."""


def served_now(
    name: str,
    runtime: Runtime,
    open_classifier: "Callable[[], Classifier]",
    no_answer: str = "",
) -> Served:
    """A model that was opened a moment ago.

    open_classifier: opens the same model in PyTorch, for what it looks at; it is asked once, and only if
    the runtime is not PyTorch itself. Raises VitkitError if there is none.
    """

    @cache
    def opened() -> "Looker | VitkitError":
        try:
            return _looker(runtime, open_classifier)
        except VitkitError as error:  # which is the answer the next time, too
            return error
        except OSError as error:
            reason = error.strerror or error
            return Unavailable(f"the model cannot be opened to see what it looks at: {reason}")

    def looker() -> "Looker":
        found = opened()
        if isinstance(found, VitkitError):
            raise found
        return found

    return Served(
        name, runtime, datetime.now(UTC).isoformat(timespec="milliseconds"), looker, no_answer
    )


def _looker(runtime: Runtime, open_classifier: "Callable[[], Classifier]") -> "Looker":
    """The model that a runtime computes, as one whose attention is shown. Raises VitkitError."""
    classifier = getattr(runtime, "classifier", None)  # PyTorch's own
    if classifier is None:
        classifier = open_classifier()
        made_of = getattr(runtime, "made_of", "")
        if made_of and digest_of_classifier(classifier) != made_of:
            raise BadWeights(
                "the model's files have changed since it was loaded, so what it looks at cannot be shown; "
                "load it again"
            )
        classifier = classifier.for_inference()

    from vitkit.apps.serve.attention import Looker

    return Looker(classifier)


def answers_alone() -> "Classifier":
    """Raises VitkitError: there is nothing but the runtime."""
    raise Unsupported(
        "an exported file gives its answers alone, so there is no map of what the model looks at"
    )


def warm_up(runtime: Runtime, batch: int) -> None:
    """Compute black images once: a single one, and a whole batch. The first pass takes longer
    than others, and what does not fit the memory fails here."""
    preprocessing = runtime.preprocessing
    for count in (1, batch):
        runtime.logits(np.zeros((count, *preprocessing.shape), preprocessing.dtype))
