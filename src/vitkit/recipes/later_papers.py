"""Pre-training after the paper: AugReg's 28 settings, the plain baseline on ImageNet, MAE and DINO.

`vitkit train augreg.medium1 --data.source PATH`. vitkit has not run them, so it claims no accuracy; the
docstrings give the accuracies that the authors report.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

from vitkit.data import Augmentation
from vitkit.models import vit
from vitkit.objectives import MaskedAutoencoder, SelfDistillation, Supervised
from vitkit.recipes.optim import Optim
from vitkit.recipes.paper import COMMON, EVALUATION, TRAINING
from vitkit.recipes.settings import Data, Recipe
from vitkit.system.span import Span

# MAE and DINO normalise by the mean and standard deviation of ImageNet's channels
BY_IMAGENET = replace(
    EVALUATION, interpolation="bicubic", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)
GOOGLE = replace(TRAINING, rand_augment_by="google")  # big_vision's RandAugment
AUGREG = {  # RandAugment's (layers, magnitude), and mixup's alpha
    "none": ((0, 0), 0.0),
    "light1": ((2, 0), 0.0),
    "light2": ((2, 10), 0.2),
    "medium1": ((2, 15), 0.2),
    "medium2": ((2, 15), 0.5),
    "strong1": ((2, 20), 0.5),
    "strong2": ((2, 20), 0.8),
}


def augreg(name: str, augmentation: str, decay: float, regularised: bool) -> Recipe:
    """A setting of Steiner et al. 2021 on ImageNet-21k: B/16, 300 epochs; `--length 30epochs` is their
    shorter run. On ImageNet-1k they use the softmax and no head bias."""
    rand_augment, mixup = AUGREG[augmentation]
    rate = 0.1 if regularised else 0.0
    return Recipe(
        name=name,
        model=vit("B/16", classes=0, head_bias=-10.0, dropout=rate, stochastic_depth=rate),
        data=Data(
            preprocessing=EVALUATION,
            augmentation=replace(GOOGLE, rand_augment=rand_augment),
        ),
        optim=Optim(lr=1e-3, weight_decay=decay, decay_on="kernels", warmup=Span(10_000)),
        objective=Supervised(loss="sigmoid", mixup=mixup),
        length=Span(300, "epochs"),
        **COMMON,
    )


def augregs() -> dict[str, Callable[[], Recipe]]:
    """All settings of AugReg by name. augreg.medium1 has weight decay 0.1, and neither dropout
    nor stochastic depth; augreg.medium1.wd0.03.do0.1 has weight decay 0.03, and 0.1 of both."""
    recipes: dict[str, Callable[[], Recipe]] = {}
    for augmentation, decay, regularised in product(AUGREG, (0.1, 0.03), (False, True)):
        name = f"augreg.{augmentation}"
        if decay == 0.03:
            name += ".wd0.03"
        if regularised:
            name += ".do0.1"
        recipes[name] = partial(augreg, name, augmentation, decay, regularised)
    return recipes


def plain() -> Recipe:
    """`vitkit train plain.S16 --data.source PATH`: Beyer et al. 2022, ImageNet-1k in 90 epochs.

    They report 76.5 %.
    """
    return Recipe(
        name="plain.S16",
        model=vit("S/16", classes=0, pool="gap", positions="sincos", representation=384),
        data=Data(preprocessing=EVALUATION, augmentation=replace(GOOGLE, rand_augment=(2, 10))),
        optim=Optim(lr=1e-3, weight_decay=0.1, decay_on="kernels", warmup=Span(10_000)),
        objective=Supervised(mixup=0.2),
        length=Span(90, "epochs"),
        **(COMMON | {"batch": 1024}),
    )


def mae() -> Recipe:
    """`vitkit train mae.B16 --data.source PATH`: He et al. 2021, ImageNet-1k without labels.

    800 epochs. The learning rate is theirs, 1.5e-4 for each 256 examples of the batch. They report
    83.6 % after 1,600 epochs and fine-tuning with augmentation and layer-wise decay.
    """
    return Recipe(
        name="mae.B16",
        model=vit("B/16", classes=0, positions="sincos-mae", gelu="erf"),
        data=Data(
            preprocessing=BY_IMAGENET,
            augmentation=Augmentation(area=(0.2, 1.0)),
        ),
        optim=Optim(
            lr=2.4e-3,
            weight_decay=0.05,
            decay_on="matrices",
            clip=0.0,
            beta2=0.95,
            warmup=Span(40, "epochs"),
        ),
        objective=MaskedAutoencoder(),
        length=Span(800, "epochs"),
        **COMMON,
    )


def dino() -> Recipe:
    """`vitkit train dino.S16 --data.source PATH`: Caron et al. 2021, ImageNet-1k without labels.

    100 epochs. The values are those of their vanilla command on 8 GPUs; its learning rate is 5e-4
    for each 256 examples of the batch. They report 69.3 % by nearest neighbours and 73.8 % with a
    linear classifier. Their longer run adds `--length 300epochs --objective.teacher-temperature
    0.07 --objective.teacher-warmup 30epochs`, and learns the norms of the last layer's rows,
    which vitkit does not support.

    vitkit makes the views on the device, from the central 224 x 224 pixels of an image whose
    shorter side is 224; they crop the views from the file.
    """
    return Recipe(
        name="dino.S16",
        model=vit("S/16", classes=0, gelu="erf", stochastic_depth=0.1),
        data=Data(
            preprocessing=replace(BY_IMAGENET, resize=224),
            augmentation=Augmentation(crop="none", flip=False),
        ),
        optim=Optim(
            lr=1e-3,
            end_lr=1e-6,
            warmup=Span(10, "epochs"),
            weight_decay=0.04,
            weight_decay_end=0.4,
            decay_on="matrices",
            clip=3.0,
            clip_each=True,
        ),
        objective=SelfDistillation(),
        length=Span(100, "epochs"),
        average=0.996,
        **(COMMON | {"batch": 512, "micro_batch": 64}),
    )
