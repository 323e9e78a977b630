"""The paper's pre-training: Table 3 and masked patch prediction (App. B.1.2), and variants from the group's
published configurations ("siblings").

`vitkit train paper.imagenet21k.B16 --data.source PATH`. The sources of the values:

- The paper prints model, epochs, learning rate and its decay, weight decay, dropout, batch,
  warm-up, resolution, clipping on ImageNet, Adam's betas, the Inception crop and flip, and a hidden
  layer before the head.
- Values that it does not print are from the group's published configurations: the sigmoid loss with a head
  bias of -10, the end of the linear decay at 1e-5, weight decay on every parameter, crops resized
  without antialiasing, and evaluation on the centre 224 of a shorter side of 256.
- The precision, the micro-batch, and when to save and to evaluate are vitkit's choices.
- Runs of Tables 5 and 6 and of Figure 8 that have no row in Table 3 (`UNPRINTED`, `shape`) take the
  learning rate of the largest model beside them that has one. Their names end with their length.

JFT is Google's own: its recipes are for data of a similar size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, TypedDict

from vitkit.data import Augmentation, Preprocessing, TargetKind
from vitkit.models import ViTConfig, named, vit
from vitkit.objectives import MaskedPatches, Supervised
from vitkit.recipes.optim import Optim, Schedule
from vitkit.recipes.settings import Data, Facts, Recipe
from vitkit.system.machine import PrecisionChoice
from vitkit.system.span import Span


class Common(TypedDict):
    """The settings that all pre-training recipes share."""

    batch: int
    micro_batch: int
    precision: PrecisionChoice
    save_every: Span
    evaluate_every: Span


# With antialiasing, as in the authors' code
EVALUATION = Preprocessing(rule="shorter", resize=256, size=(224, 224))
TRAINING = Augmentation(antialias=False)
COMMON: Common = {
    "batch": 4096,
    "micro_batch": 256,
    "precision": "bfloat16",
    "save_every": Span(1000),
    "evaluate_every": Span(10_000),
}


@dataclass(frozen=True)
class Regime:
    """The values that the rows of Table 3 for one data set share."""

    schedule: Schedule
    """How the learning rate decays."""
    weight_decay: float
    dropout: float
    clip: float
    """Largest norm of the gradient; 0 is off."""


REGIMES = {
    "jft": Regime("linear", 0.1, 0.0, clip=0.0),
    "imagenet21k": Regime("linear", 0.03, 0.1, clip=0.0),
    "imagenet": Regime("cosine", 0.3, 0.1, clip=1.0),
}
TABLE_3 = (  # data, models, epochs, base learning rate
    ("jft", ("B/16", "B/32"), (7,), 8e-4),
    ("jft", ("L/32",), (7,), 6e-4),
    ("jft", ("L/16",), (7, 14), 4e-4),
    ("jft", ("H/14",), (14,), 3e-4),
    ("jft", ("R50x1", "R50x2"), (7,), 1e-3),
    ("jft", ("R101x1",), (7,), 8e-4),
    ("jft", ("R152x1", "R152x2"), (7,), 6e-4),
    ("jft", ("R50+B/16", "R50+B/32"), (7,), 8e-4),
    ("jft", ("R50+L/32",), (7,), 2e-4),
    ("jft", ("R50+L/16",), (7, 14), 4e-4),
    ("imagenet21k", ("B/16", "B/32"), (90,), 1e-3),
    ("imagenet21k", ("L/16", "L/32"), (30, 90), 1e-3),
    ("imagenet", ("B/16", "B/32", "L/16", "L/32"), (300,), 3e-3),  # "ViT-*": those of Table 5
)
# Runs of the paper whose settings it does not print, with the columns of TABLE_3
UNPRINTED = (
    ("jft", ("R152x2", "R200x3"), (14,), 6e-4),  # Table 6; the rate of R152x2's 7 epochs
    ("imagenet21k", ("H/14",), (90,), 1e-3),  # Table 5; the rate and length of L/16
)
IMAGES = {  # numbers of images and classes of each data set (Section 4.1; Zhou et al. 2017)
    "jft": (303_000_000, 18_291),
    "imagenet21k": (14_197_122, 21_843),
    "imagenet": (1_281_167, 1_000),
    "ade20k": (20_210, 150),
}
DATA_OF = {  # data set of recipes whose names do not contain it, by the prefix of the name
    "paper.masked_patches": "jft",
    "augreg.": "imagenet21k",
    "plain.": "imagenet",
    "mae.": "imagenet",
    "dino.": "imagenet",
    "segmenter.": "ade20k",
}


def pretraining(name: str, data: str, model: str, epochs: int, lr: float) -> Recipe:
    """A row of Table 3, for one of its models and lengths."""
    regime = REGIMES[data]
    config = named(model, classes=0, head_bias=-10.0)
    if isinstance(config, ViTConfig):  # a ResNet has neither dropout nor a hidden layer
        config = replace(config, dropout=regime.dropout, representation=config.width)
    return Recipe(
        name=name,
        model=config,
        data=Data(preprocessing=EVALUATION, augmentation=TRAINING),
        optim=Optim(
            lr=lr,
            weight_decay=regime.weight_decay,
            clip=regime.clip,
            warmup=Span(10_000),
            schedule=regime.schedule,
        ),
        objective=Supervised(loss="sigmoid"),
        length=Span(epochs, "epochs"),
        **COMMON,
    )


def table_3() -> dict[str, Callable[[], Recipe]]:
    """The rows of Table 3 by name: paper.jft.B16, or with the epochs for a row with two lengths,
    paper.jft.L16.14ep."""
    recipes: dict[str, Callable[[], Recipe]] = {}
    for data, models, lengths, lr in TABLE_3:
        for model, epochs in product(models, lengths):
            name = f"paper.{data}.{model.replace('/', '')}"
            if len(lengths) > 1:
                name += f".{epochs}ep"
            recipes[name] = partial(pretraining, name, data, model, epochs, lr)
    return recipes


def unprinted() -> dict[str, Callable[[], Recipe]]:
    """The runs without a row in Table 3 by name, which ends with the epochs: paper.jft.R200x3.14ep."""
    recipes: dict[str, Callable[[], Recipe]] = {}
    for data, models, lengths, lr in UNPRINTED:
        for model, epochs in product(models, lengths):
            name = f"paper.{data}.{model.replace('/', '')}.{epochs}ep"
            recipes[name] = partial(pretraining, name, data, model, epochs, lr)
    recipes["paper.jft.shape.7ep"] = shape
    return recipes


def shape() -> Recipe:
    """`vitkit train paper.jft.shape.7ep`: the model that Figure 8 begins with (App. D.2): 8 layers,
    width 1024, MLP width 2048, patches of 32. Vary one of --model.depth, --model.width, --model.mlp
    and --model.patch.

    The paper does not state heads, data and length. The recipe is that of L/32, with heads of width 64.
    """
    recipe = pretraining("paper.jft.shape.7ep", "jft", "L/32", 7, 6e-4)
    assert isinstance(recipe.model, ViTConfig)
    return replace(recipe, model=replace(recipe.model, depth=8, mlp=2048))


def facts_of(name: str) -> Facts | None:
    """The numbers of images and classes of the data set of a recipe, from the recipe's name; None if it is for
    any images."""
    data = ""
    for beginning, of_beginning in DATA_OF.items():
        if name.startswith(beginning):
            data = of_beginning
    source, _, rest = name.partition(".")
    if source in ("paper", "sibling") and not data:
        data = rest.partition(".")[0]
    if data not in IMAGES:
        return None
    examples, classes = IMAGES[data]
    kind: TargetKind = "mask" if data == "ade20k" else "class"
    return Facts(examples, tuple(map(str, range(classes))), kind)


def siblings() -> dict[str, Callable[[], Recipe]]:
    """The group's published configurations that differ from Table 3, by name."""
    smoothed = {"objective": Supervised(loss="sigmoid", off_target=1e-4)}
    # name: (other values of the optimiser, other values of the recipe)
    rows: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "sibling.jft.L32": ({"clip": 1.0}, {}),
        "sibling.imagenet21k.B16": ({}, {"batch": 1024, **smoothed}),
        "sibling.imagenet21k.L32": ({"weight_decay": 0.1, "clip": 1.0}, smoothed),
        "sibling.imagenet.B16": ({"schedule": "linear"}, {"length": Span(90, "epochs")}),
    }
    return {name: partial(sibling, name, *changes) for name, changes in rows.items()}


def sibling(name: str, optim: dict[str, Any], other: dict[str, Any]) -> Recipe:
    """The row of Table 3 for the same model and data, the longer one if it has two lengths, with other
    values."""
    rows = table_3()
    row = name.replace("sibling", "paper")
    if row not in rows:
        row = f"{row}.90ep"
    recipe = rows[row]()
    return replace(recipe, name=name, optim=replace(recipe.optim, **optim), **other)


def masked_patches(name: str, objective: MaskedPatches) -> Recipe:
    """Masked patch prediction (App. B.1.2): a million steps, 14 epochs of JFT. Most of the gain on ImageNet is
    reached after 100,000. The weight decay is Section 4.1's."""
    return Recipe(
        name=name,
        model=vit("B/16", classes=0),
        data=Data(preprocessing=EVALUATION, augmentation=TRAINING),
        optim=Optim(lr=2e-4, weight_decay=0.1, clip=0.0, warmup=Span(10_000)),
        objective=objective,
        length=Span(1_000_000),
        **COMMON,
    )


def self_supervised() -> dict[str, Callable[[], Recipe]]:
    """Masked patch prediction with the paper's three targets, and with BERT's share of corrupted patches, by
    name."""
    objectives = {
        "paper.masked_patches": MaskedPatches(),
        "paper.masked_patches.colours": MaskedPatches("colours"),
        "paper.masked_patches.pixels": MaskedPatches("pixels"),
        "paper.masked_patches.rate15": MaskedPatches(rate=0.15),
    }
    return {name: partial(masked_patches, name, each) for name, each in objectives.items()}
