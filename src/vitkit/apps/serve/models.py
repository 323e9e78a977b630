"""A served model: the runtime of its predictions, and the model of its attention.

PyTorch is imported only if it computes: an exported file is served without it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from vitkit.apps.serve.masks import classes_of_pixels, classifies_pixels
from vitkit.runtimes import FileRuntime, Runtime, digest_of_classifier
from vitkit.system.errors import BadWeights, Unavailable, Unsupported, VitkitError

if TYPE_CHECKING:
    from vitkit.apps.serve.attention import FileLooker, Looker
    from vitkit.weights import Classifier


@dataclass(frozen=True)
class Served:
    """A model that is being served."""

    name: str
    """Name of the model for clients."""
    runtime: Runtime
    loaded: str
    """Time when it was opened, ISO 8601."""
    looker: "Callable[[], Looker | FileLooker]"
    """Returns the model for attention; the first call may take seconds. Raises VitkitError if there is
    none."""
    no_answer: str = ""
    """Why the model names no classes; "" if it does."""

    @property
    def has_masks(self) -> bool:
        """Whether the model classifies every pixel."""
        return classifies_pixels(self.runtime)


def served_now(
    name: str,
    runtime: Runtime,
    open_classifier: "Callable[[], Classifier]",
    no_answer: str = "",
) -> Served:
    """A served model with the current time.

    open_classifier: opens the same model in PyTorch for attention; called at most once, and only if the
    runtime is not PyTorch. Raises VitkitError if there is none.
    """

    @cache
    def opened() -> "Looker | FileLooker | VitkitError":
        try:
            return _looker(runtime, open_classifier)
        except VitkitError as error:  # cached as the result of later calls
            return error
        except OSError as error:
            reason = error.strerror or error
            return Unavailable(f"the model cannot be opened to see what it looks at: {reason}")

    def looker() -> "Looker | FileLooker":
        found = opened()
        if isinstance(found, VitkitError):
            raise found
        return found

    return Served(
        name, runtime, datetime.now(UTC).isoformat(timespec="milliseconds"), looker, no_answer
    )


def _looker(runtime: Runtime, open_classifier: "Callable[[], Classifier]") -> "Looker | FileLooker":
    """The model for attention that belongs to a runtime; or the file itself if it has an anomaly map. Raises
    VitkitError."""
    from vitkit.apps.serve.attention import FileLooker, Looker

    if (
        isinstance(runtime, FileRuntime)
        and runtime.exported.has_anomaly_map
        and not runtime.made_of
    ):
        return FileLooker(runtime)
    classifier = getattr(runtime, "classifier", None)  # only PyTorch runtimes have one
    if classifier is None:
        classifier = open_classifier()
        made_of = getattr(runtime, "made_of", "")
        if made_of and digest_of_classifier(classifier) != made_of:
            raise BadWeights(
                "the model's files have changed since it was loaded, so what it looks at cannot be shown; "
                "load it again"
            )
        classifier = classifier.for_inference()
    return Looker(classifier)


def answers_alone() -> "Classifier":
    """Default for `open_classifier`: raises VitkitError, because there is only the runtime."""
    raise Unsupported(
        "an exported file gives its answers alone, so there is no map of what the model looks at"
    )


def warm_up(runtime: Runtime, batch: int) -> None:
    """Compute black images: one, then a whole batch; one alone if the model classifies every pixel. The first
    passes are slower than later ones, and a lack of memory shows here."""
    preprocessing = runtime.preprocessing
    if classifies_pixels(runtime):
        black = np.zeros(preprocessing.shape, preprocessing.dtype)
        classes_of_pixels(runtime, black, preprocessing.size)
        return
    for count in (1, batch):
        runtime.logits(np.zeros((count, *preprocessing.shape), preprocessing.dtype))
