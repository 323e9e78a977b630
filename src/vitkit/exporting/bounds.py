"""Acceptance bounds for an exported file, and the number of images that is needed to verify them.

A file is refused if the images show too many changed predictions, or a statistically significant loss of
accuracy. That a file keeps its accuracy is a separate claim, one of non-inferiority: it is made if the
confidence interval of the loss ends below MARGIN, not if merely no loss was seen. Otherwise there are too
few images for either conclusion, and the message says how many would suffice.
"""

import math

from vitkit.evaluation import tango
from vitkit.exporting.agreement import Agreement
from vitkit.weights import Activation

# Smallest share of images with the same most likely class. Even in float32 a few are ties of two classes
LEAST = {"float32": 0.99, "float16": 0.99, "bfloat16": 0.95, "int8": 0.9}

# Largest difference of an output that is not a probability, relative to the largest output
LARGEST_SHARE = {"float32": 1e-3, "float16": 0.01, "bfloat16": 0.05, "int8": 0.2}

# Largest difference of an anomaly score, or of a distance in the map, of a model of good images
APART = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 0.02, "int8": 0.05}
RESIZED = (
    2e-3  # and at least of a file that resizes pictures, and rounds their levels as no library does
)

# Largest loss of accuracy: estimated by the model's own probabilities, and measured with true classes at
# the lower end of the confidence interval
LOST = {"float32": 0.0005, "float16": 0.001, "bfloat16": 0.003, "int8": 0.006}

MARGIN = 0.01  # of accuracy: a file that is shown to lose less keeps its accuracy
FEW = 20  # photographs: fewer are no evidence of any accuracy
MOST = 10_000_000  # largest number of images that a message suggests


def wrong(agreement: Agreement, precision: str, activation: Activation, least: float) -> str:
    """A sentence about violated bounds; "" if there are none."""
    if activation == "none":
        most = LARGEST_SHARE[precision] * agreement.scale
        if least > 0 and not agreement.largest <= most:
            return (
                f"its outputs differ by {agreement.largest:.3g}, and {most:.3g} is accepted (`agreement=0` "
                "accepts anything)"
            )
        return ""
    if not agreement.same >= least:
        return (
            f"{agreement.same:.1%} of its answers are the model's, and at least {least:.1%} is "
            "required (`agreement`)"
        )
    if least == 0:
        return ""
    most = APART[precision]
    if agreement.resizes:
        most = max(most, RESIZED)
    if agreement.scores is not None and not agreement.farthest <= most:
        return (
            f"its anomaly scores differ by {agreement.scores:.2g}, and its distances of patches by "
            f"{agreement.maps:.2g}; {most:g} is accepted (`agreement=0` accepts anything)"
        )
    accepted = LOST[precision]
    if not agreement.cost <= accepted:
        return (
            f"its changed answers cost {agreement.cost:.2%} of accuracy by the model's own "
            f"probabilities, and {accepted:.2%} is accepted (`agreement=0` accepts anything)"
        )
    if agreement.same_unknown is not None and agreement.same_unknown < least:
        return (
            f"it agrees with the model on whether an image is unknown for {agreement.same_unknown:.1%} of "
            f"the images, and at least {least:.1%} is required (`agreement`)"
        )
    if agreement.accuracy is None:
        return ""
    least_loss, most_loss = agreement.interval_of_loss
    if least_loss > accepted:
        return (
            f"its accuracy is {agreement.accuracy:.1%}, the model's is "
            f"{agreement.models_accuracy:.1%}: it loses {100 * least_loss:.1f} to "
            f"{100 * most_loss:.1f} points at 95 % confidence, and {accepted:.2%} is accepted "
            "(`agreement=0` accepts anything)"
        )
    return ""


def keeps_accuracy(agreement: Agreement) -> bool:
    """Whether the images show that a file loses less accuracy than MARGIN."""
    return agreement.photographs >= FEW and agreement.interval_of_loss[1] < MARGIN


def images_needed(agreement: Agreement) -> int | None:
    """The number of images, rounded to two digits, that would show this if the file's results stay
    the same; None if no number would, because the loss seems to be MARGIN or more."""
    from scipy.optimize import brentq

    # Shares of lost and gained images; changed predictions of unknown correctness count half to each
    lost = (1 - agreement.unchanged) / 2
    won = lost
    if agreement.labelled:
        lost = agreement.lost / agreement.labelled
        won = agreement.won / agreement.labelled

    def above(log_count: float) -> float:
        """How far the interval for this number of images ends above the margin."""
        count = math.exp(log_count)
        return tango(lost * count, won * count, count)[1] - MARGIN

    if above(math.log(MOST)) > 0:
        return None
    count = math.exp(brentq(above, 0.0, math.log(MOST)))
    step = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return math.ceil(count / step) * step


def conclusion(agreement: Agreement) -> str:
    """A sentence with the conclusion about a file's accuracy."""
    images = agreement.images_text()
    loss = f"{100 * MARGIN:g} point of accuracy"
    if agreement.photographs < FEW:
        return f"no evidence of its accuracy: {images}; `data=DATA` measures on your own"
    if keeps_accuracy(agreement):
        return f"it loses less than {loss}, at 95 % confidence: {images}"
    sentence = f"that it loses less than {loss} is not shown by {images}"
    needed = images_needed(agreement)
    if needed is None and agreement.interval_of_loss[0] >= MARGIN:
        return f"{sentence}; more images would not show it either, because it loses more"
    if needed is None:
        return f"{sentence}; more images could show whether it does (`data`, `limit`)"
    what = "" if needed > agreement.photographs else " different photographs"
    sentence += f"; about {needed:,}{what} could (`data`, `limit`)"
    if not agreement.labelled:
        sentence += ", with their right answers"
    return sentence
