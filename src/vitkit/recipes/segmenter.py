"""Recipes for models that classify every pixel: Segmenter with its linear decoder (Strudel et al. 2021) on ADE20k.

`vitkit train segmenter.B16 ADE20K/images --data.masks ADE20K/annotations --data.ignore 0`. vitkit has not run them at
this size, so it claims no figures; the docstrings give those that the authors report.

- The paper prints the batch, the iterations, the learning rate, its decay, stochastic depth, crops, scales and flips;
  momentum, weight decay, the end of the decay and the distortion of colours are from the authors' code.
- The authors resize the shorter side to 512 pixels. Here an image gets the number of pixels that this gives a
  photograph of 4:3, whatever its proportions.
- The authors evaluate with a window of 512 pixels that slides over the image. Here the model reads all of the image.
- The authors change the colours of every other image; here `colour_jitter` changes those of all, by as much.
- The authors draw a crop again, up to ten times, if one class has three quarters of it. Here it is drawn once.
"""

from vitkit.data import Augmentation, Preprocessing
from vitkit.models import vit
from vitkit.objectives import Segmentation
from vitkit.recipes.optim import Optim
from vitkit.recipes.settings import Data, Recipe
from vitkit.system.span import Span
from vitkit.weights import over_patches

CROP = (512, 512)
SIDE = 592  # of a square with about as many pixels as 512 x 683, in whole patches
WEIGHTS = {
    "B/16": "timm/vit_base_patch16_384.augreg_in21k_ft_in1k",
    "L/16": "timm/vit_large_patch16_384.augreg_in21k_ft_in1k",
}


def segmenter(name: str, size: str) -> Recipe:
    """Segmenter with a linear decoder on ADE20k: 160,000 iterations of 8 crops of 512 x 512."""
    # The GELU of the weights and of the authors' code
    model = over_patches(vit(size, classes=0, image=CROP, stochastic_depth=0.1, gelu="erf"))
    return Recipe(
        name=name,
        model=model,
        init=WEIGHTS[size],
        data=Data(
            preprocessing=Preprocessing(rule="native", size=(SIDE, SIDE)),
            augmentation=Augmentation(
                crop="scale_crop",
                resize=SIDE,
                scales=(0.5, 2.0),
                colour_jitter=(0.125, 0.5, 0.5, 0.05),
            ),
        ),
        optim=Optim("sgd", 1e-3, schedule="polynomial", end_lr=1e-5, clip=0.0),
        objective=Segmentation(),
        length=Span(160_000),
        batch=8,
        precision="bfloat16",
        save_every=Span(1_000),
        evaluate_every=Span(10_000),
    )


def segmenter_b() -> Recipe:
    """`vitkit train segmenter.B16 DATA --data.masks MASKS`: Strudel et al. 2021, a class for every pixel.

    160,000 iterations on ADE20k. They report a mean IoU of 48.06 %.
    """
    return segmenter("segmenter.B16", "B/16")


def segmenter_l() -> Recipe:
    """`vitkit train segmenter.L16 DATA --data.masks MASKS`: Strudel et al. 2021, with ViT-L/16.

    160,000 iterations on ADE20k. They report a mean IoU of 50.71 %.
    """
    return segmenter("segmenter.L16", "L/16")
