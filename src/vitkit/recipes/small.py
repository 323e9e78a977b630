"""Recipes for small models from scratch, which a laptop, or one GPU in an hour, can train."""

from dataclasses import replace

from vitkit.data import Augmentation, Preprocessing
from vitkit.models import ViTConfig, vit
from vitkit.objectives import MaskedPatches, Supervised
from vitkit.recipes.optim import Optim
from vitkit.recipes.settings import Data, Recipe
from vitkit.system.span import Span


def digits() -> Recipe:
    """`vitkit train digits`: scikit-learn's 1,797 handwritten digits; nothing is downloaded.

    One to three minutes on two cores; 98 % of the 359 test images, which varies by half a point
    with the machine and the seed.
    """
    return Recipe(
        name="digits",
        model=ViTConfig(width=64, depth=4, mlp=128, heads=4, patch=4, image=(16, 16), classes=0),
        data=Data(
            source="digits",
            preprocessing=Preprocessing(size=(16, 16)),
            augmentation=Augmentation(crop="pad_crop", pad=1, flip=False, rand_augment=(1, 10)),
            workers=1,
        ),
        optim=Optim(lr=3e-3, weight_decay=0.1, decay_on="kernels", warmup=Span(3, "epochs")),
        objective=Supervised(label_smoothing=0.1),
        length=Span(90, "epochs"),
        batch=96,
        average=0.99,
        evaluate_every=Span(15, "epochs"),
        save_every=Span(15, "epochs"),
    )


def cifar10() -> Recipe:
    """`vitkit train cifar10 --data.source PATH`: a ViT of 6.3 million parameters for one GPU.

    300 epochs. Not run yet, so no accuracy is claimed.
    """
    return Recipe(
        name="cifar10",
        model=vit(
            "Ti/4",
            image=(32, 32),
            width=256,
            depth=8,
            mlp=1024,
            heads=4,
            classes=0,
            stochastic_depth=0.1,
        ),
        data=Data(
            preprocessing=Preprocessing(size=(32, 32)),
            augmentation=Augmentation(crop="pad_crop", pad=4, rand_augment=(2, 9)),
        ),
        optim=Optim(lr=1e-3, weight_decay=0.1, decay_on="kernels", warmup=Span(10, "epochs")),
        length=Span(300, "epochs"),
        batch=512,
        average=0.9998,
        precision="auto",
        evaluate_every=Span(10, "epochs"),
        save_every=Span(10, "epochs"),
    )


def cifar10_laptop() -> Recipe:
    """`vitkit train cifar10-laptop --data.source PATH`: the same task in half an hour on two cores.

    25 minutes; 66.5 % top-1 on the test images, which is underfitted (docs/cifar10.md).

    The head reads the mean of the patches. A class token needs another learning rate (App. D.3), so
    try several with `--model.pool token`.
    """
    return Recipe(
        name="cifar10-laptop",
        model=ViTConfig(
            width=128, depth=6, mlp=256, heads=4, patch=4, image=(32, 32), pool="gap", classes=0
        ),
        data=Data(
            preprocessing=Preprocessing(size=(32, 32)),
            augmentation=Augmentation(crop="pad_crop", pad=4),
            workers=0,
        ),
        optim=Optim(lr=2e-3, weight_decay=0.05, decay_on="kernels", warmup=Span(1, "epochs")),
        length=Span(20, "epochs"),
        batch=128,
        average=0.999,
        precision="auto",
        evaluate_every=Span(2, "epochs"),
        save_every=Span(1, "epochs"),
    )


def cifar10_masked_laptop() -> Recipe:
    """`vitkit train cifar10-masked-laptop --data.source PATH`: pre-train cifar10-laptop's model.

    It is trained by masked patch prediction. To fine-tune it:
    `vitkit train cifar10-laptop --data.source PATH --init runs/cifar10-masked-laptop`.
    """
    recipe = cifar10_laptop()
    return replace(
        recipe,
        name="cifar10-masked-laptop",
        objective=MaskedPatches(),
        optim=replace(recipe.optim, lr=1e-3),
        precision="float32",
    )


def tiny_imagenet() -> Recipe:
    """`vitkit train tiny-imagenet --data.source PATH`: S/8 at 64 pixels, Tiny ImageNet on one GPU.

    200 epochs. Not run yet, so no accuracy is claimed.
    """
    return Recipe(
        name="tiny-imagenet",
        model=vit("S/8", image=(64, 64), classes=0, stochastic_depth=0.1),
        data=Data(
            preprocessing=Preprocessing(size=(64, 64)),
            augmentation=Augmentation(area=(0.2, 1.0), rand_augment=(2, 9)),
        ),
        optim=Optim(lr=1e-3, weight_decay=0.1, decay_on="kernels", warmup=Span(10, "epochs")),
        objective=Supervised(label_smoothing=0.1, mixup=0.2, cutmix=1.0),
        length=Span(200, "epochs"),
        batch=512,
        average=0.9998,
        precision="auto",
        evaluate_every=Span(10, "epochs"),
        save_every=Span(5, "epochs"),
    )


def scratch() -> Recipe:
    """`vitkit train scratch --data.source PATH`: S/16 at 224 pixels on photographs of your own.

    It uses the paper's augmentation, without changes that do not preserve the classes (`Augmentation.auto`). From
    scratch, a Vision Transformer needs many images (Fig. 3, Fig. 4): with fewer than some tens of thousands, the
    accuracy is low.
    """
    return Recipe(
        name="scratch",
        model=vit("S/16", classes=0, dropout=0.1),
        data=Data(
            preprocessing=Preprocessing(rule="shorter", resize=256, size=(224, 224)),
            augmentation=Augmentation(auto=True),
        ),
        optim=Optim(lr=1e-3, weight_decay=0.1, warmup=Span(5, "epochs")),
        length=Span(90, "epochs"),
        batch=256,
        micro_batch=64,
        precision="auto",
    )
