"""The table of published weights that vitkit opens, src/vitkit/weights/published.csv, of facts alone.

- timm: the names, licences and sizes of the installed version's own table; each is built without memory,
  and is in the table if vitkit reads its tensors. Accuracies are those of results/results-imagenet.csv
  in timm's repository, which is not in its package.
- torchvision: the metadata of the installed version's weights.
- Transformers: names that its users know, each built without memory by its class; accuracies are those
  of the authors' own pages.
- Google: the files that the README of google-research/vision_transformer recommends, with its sizes and
  accuracies, and the paper's own.

What no source states is empty. Megabytes that no source states are four bytes for each parameter of the
file's model.

    python benchmarks/published_weights.py --timm-results results-imagenet.csv
"""

import argparse
import csv
import re
import warnings
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitkit.models import build, called, vit
from vitkit.weights import Hints, Published
from vitkit.weights.classifier import Description
from vitkit.weights.files.content import Lazy
from vitkit.weights.files.directory import Opened
from vitkit.weights.formats import recognise
from vitkit.weights.published import FILE
from vitkit.weights.rules import read

# What tags of timm's say of the pre-training, in order
DATA = {
    "in1k": "ImageNet-1k", "in12k": "ImageNet-12k", "in21k": "ImageNet-21k", "in22k": "ImageNet-22k",
    "lvd142m": "LVD-142M", "lvd1689m": "LVD-1689M", "sat493m": "SAT-493M", "webli": "WebLI",
    "openai": "OpenAI's image-text pairs", "laion2b": "LAION-2B", "laion400m": "LAION-400M",
    "datacompxl": "DataComp-XL", "dfn2b": "DFN-2B", "dfn5b": "DFN-5B", "yfcc15m": "YFCC-15M",
}  # fmt: skip
WAYS = {
    "augreg": "AugReg", "augreg2": "AugReg", "sam": "SAM", "miil": "MIIL", "mae": "MAE", "dino": "DINO",
    "ijepa": "I-JEPA", "v2": "version 2",
}  # fmt: skip

# ImageNet top-1 that authors state of models without a head, by timm's name and by the hub's
DINO = {"small/16": 77.0, "small/8": 79.7, "base/16": 78.2, "base/8": 80.1}
DINOV2 = {"small": (81.1, 80.9), "base": (84.5, 84.6), "large": (86.3, 86.7), "giant": (86.5, 87.1)}
MAE = {"base": 83.6, "large": 85.9, "huge": 86.9}
DEIT = {
    "tiny-patch16-224": 72.2, "small-patch16-224": 79.9, "base-patch16-224": 81.8,
    "tiny-distilled-patch16-224": 74.5, "small-distilled-patch16-224": 81.2,
    "base-distilled-patch16-224": 83.4, "base-patch16-384": 82.9, "base-distilled-patch16-384": 85.2,
}  # fmt: skip

# Google's recommended files: name, pre-trained and fine-tuned suffix, MiB, accuracy at 384 pixels
AUGREG = [
    ("L_16", "aug_strong1-wd_0.1-do_0.0-sd_0.0", "0.01", 1243, 85.59),
    ("B_16", "aug_medium1-wd_0.1-do_0.0-sd_0.0", "0.03", 391, 85.49),
    ("S_16", "aug_light1-wd_0.03-do_0.0-sd_0.0", "0.03", 115, 83.73),
    ("R50_L_32", "aug_medium1-wd_0.1-do_0.1-sd_0.1", "0.01", 1337, 85.99),
    ("R26_S_32", "aug_light1-wd_0.1-do_0.0-sd_0.0", "0.01", 170, 83.85),
    ("Ti_16", "aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 37, 78.22),
    ("B_32", "aug_light1-wd_0.1-do_0.0-sd_0.0", "0.01", 398, 83.59),
    ("S_32", "aug_none-wd_0.1-do_0.0-sd_0.0", "0.01", 118, 79.58),
    ("R_Ti_16", "aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 40, 75.40),
]
# The paper's, pre-trained on ImageNet-21k: its Table 5, at 384 pixels; -224 as the repository states it
PAPER = {"B_16": 83.97, "B_32": 81.28, "L_16": 85.15, "L_32": 80.99, "H_14": 85.13}
PAPER_224 = {"B_16": 81.2, "L_16": 82.7}


# Whether vitkit opens a model


def opened_as(state: dict[str, Tensor], config: dict) -> Description:
    """How vitkit describes a model with these tensors, whose numbers it does not need, and this
    config.json. Raises ValueError if it does not open it."""
    tensors = {}
    for name, tensor in state.items():
        without_numbers = tensor.to("meta")
        if tensor.ndim == 1 or name.endswith("mask_token"):  # which are joined, or looked at
            without_numbers = torch.zeros(tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        tensors[name] = Lazy(tuple(tensor.shape), dtype, lambda it=without_numbers: it)
    format = recognise(tensors)
    if format is None:
        raise ValueError("its tensors have names that vitkit does not know")
    tidied = format.tidy(tensors)
    opened = Opened(Path("model.safetensors"), {(): tensors}, config)
    description = format.describe(opened, tidied, Hints())
    with torch.device("meta"):
        model = build(description.config)
    read(tidied.tensors, format.rules(description.config), model.state_dict())
    return description


def megabytes(model: nn.Module) -> int:
    """Of a file with a model's tensors, in float32."""
    return round(sum(tensor.numel() for tensor in model.state_dict().values()) * 4 / 1e6)


# timm


@cache
def timms_model(architecture: str, classes: int) -> nn.Module:
    """A model of timm's without memory."""
    import timm

    settings = {}
    if timm.models.model_entrypoint(architecture).__module__ == "timm.models.vision_transformer":
        settings["weight_init"] = "skip"  # there are no numbers to draw
    with torch.device("meta"):
        return timm.create_model(architecture, num_classes=classes, **settings)


def opened_by_timm(name: str) -> tuple[Description, nn.Module]:
    """How vitkit describes one of timm's published models. Raises ValueError if it does not open it."""
    from timm.models import get_pretrained_cfg

    settings = get_pretrained_cfg(name).to_dict()
    architecture = name.partition(".")[0]
    model = timms_model(architecture, settings["num_classes"])
    config = {
        "architecture": architecture,
        "num_classes": settings["num_classes"],
        "pretrained_cfg": settings,
    }
    if isinstance(pool := getattr(model, "global_pool", None), str):
        config["global_pool"] = pool
    return opened_as(model.state_dict(), config), model


def from_timm(results: Path) -> Iterator[Published]:
    """timm's, in its order."""
    from timm.models import get_pretrained_cfg, list_pretrained

    with results.open(newline="") as file:
        accuracy = {(row["model"], row["img_size"]): row["top1"] for row in csv.DictReader(file)}
    for name in list_pretrained(["vit_*", "deit*", "flexivit*", "eva_*", "resnetv2_*_bit*"]):
        settings = get_pretrained_cfg(name)
        if not (settings.hf_hub_id or "").startswith("timm/"):
            continue
        try:
            description, model = opened_by_timm(name)
        except (ValueError, RuntimeError) as error:
            print(f"left out: {name}: {str(error)[:120]}")
            continue
        side = settings.input_size[-1]
        row = Published(
            name=f"timm/{name}",
            library="timm",
            family=family_of(name),
            model=called(description.config),
            pixels=side,
            pretraining=pretraining_of(name),
            licence=settings.license or "",
            megabytes=megabytes(model),
        )
        if stated := accuracy.get((name, str(side))):
            row = replace(row, top1=round(float(stated), 1), measured="its head", source="timm")
        yield with_authors_figure(row)


def family_of(name: str) -> str:
    """What people call the models of this name."""
    for pattern, family in (
        ("dinov3", "DINOv3"), ("dinov2", "DINOv2"), (r"\.dino$", "DINO"), (r"\.mae$", "MAE"),
        ("ijepa", "I-JEPA"), ("siglip.*v2_webli", "SigLIP 2"), ("siglip.*pali", "PaliGemma"),
        ("siglip", "SigLIP"), ("clip|metaclip|_pe_", "CLIP"), ("^eva", "EVA"), ("^deit3", "DeiT III"),
        ("^deit", "DeiT"), ("^flexivit", "FlexiViT"), ("_bit", "BiT"), ("augreg", "AugReg"),
        (r"\.orig_", "the paper's"), (r"\.sam_", "SAM"), ("tips", "TIPS"), ("_rope_", "RoPE-ViT"),
    ):  # fmt: skip
        if re.search(pattern, name):
            return family
    return "timm's own"


def pretraining_of(name: str) -> str:
    """The pre-training that a tag of timm's tells: "ImageNet-21k, fine-tuned on ImageNet-1k, AugReg"."""
    words = name.partition(".")[2].split("_")
    told = []
    ways = []
    for previous, word in zip(["", *words], words, strict=False):
        if word in DATA and previous == "ft":
            told.append(f"fine-tuned on {DATA[word]}")
        elif word in DATA:
            told.append(DATA[word])
        elif word in WAYS:
            ways.append(WAYS[word])
    return ", ".join(told + ways)


def with_authors_figure(row: Published) -> Published:
    """With the accuracy that its authors state, of a model whose file has no head."""
    size = "small|base|large|giant|huge"
    if row.family == "DINOv2" and (match := re.search(rf"({size})(?!.*imagenet1k)", row.name)):
        plain, with_registers = DINOV2[match[1]]
        top1 = with_registers if re.search("reg", row.name) else plain
        return replace(row, top1=top1, measured="a linear probe", source="DINOv2")
    if row.family == "DINO":
        patch = row.model.partition("/")[2]
        size = {"S": "small", "B": "base"}[row.model.partition("-")[2][0]]
        top1 = DINO[f"{size}/{patch}"]
        return replace(row, top1=top1, measured="a linear probe", source="DINO")
    if row.family == "MAE":
        (size,) = re.findall("base|large|huge", row.name)
        return replace(row, top1=MAE[size], measured="fine-tuned", source="MAE")
    return row


# torchvision


def from_torchvision() -> Iterator[Published]:
    """torchvision's Vision Transformers, by the names of their files."""
    from torchvision.models import get_model, get_model_weights

    for name in ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"):
        for weights in get_model_weights(name):
            meta = weights.meta
            side = weights.transforms.keywords["crop_size"]
            with torch.device("meta"):
                model = get_model(name, image_size=side)
            is_swag = "SWAG" in weights.name
            yield Published(
                name=weights.url.rpartition("/")[2],
                library="torchvision",
                family="torchvision",
                model=called(opened_as(model.state_dict(), {}).config),
                pixels=side,
                pretraining="SWAG, fine-tuned on ImageNet-1k" if is_swag else "ImageNet-1k",
                top1=round(meta["_metrics"]["ImageNet-1K"]["acc@1"], 1),
                measured="its head",
                source="torchvision",
                licence="cc-by-nc-4.0" if is_swag else "",
                megabytes=round(meta["_file_size"] * 1.048576),
                address=weights.url,
            )


# Transformers

SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "so400m": "So400m"}
SIZES |= {"giant": "g-opt", "giant-opt": "g-opt"}
TWO_PARTS = ("MAE", "CLIP", "SigLIP", "SigLIP 2")
"""Whose files have a decoder or a text tower too."""


class OnHub(NamedTuple):
    """A repository of the hub, and what its config.json would say."""

    name: str
    kind: str
    """The class of Transformers."""
    shape: str
    """The size and the patch, as vit() takes them."""
    side: int
    family: str
    pretraining: str
    licence: str = "apache-2.0"
    own: tuple[tuple[str, Any], ...] = ()
    """Other fields of the config.json."""


def transformers_model(row: OnHub) -> tuple[nn.Module, dict]:
    """A model of the hub without memory, and its config.json."""
    import transformers

    size = vit(row.shape)
    shape = {
        "hidden_size": size.width,
        "num_hidden_layers": size.depth,
        "num_attention_heads": size.heads,
        "intermediate_size": size.mlp,
        "patch_size": size.patch,
        "image_size": row.side,
    }
    model_class = getattr(transformers, row.kind)
    config = model_class.config_class(**shape | dict(row.own))
    with torch.device("meta"):
        model = model_class(config)
    return model, {**config.to_dict(), "architectures": [row.kind]}


def from_transformers() -> Iterator[Published]:
    """Models of the hub that Transformers opens."""
    warnings.simplefilter("ignore")
    for one in on_hub():
        model, config = transformers_model(one)
        try:
            description = opened_as(model.state_dict(), config)
        except ValueError as error:
            print(f"left out: {one.name}: {str(error)[:120]}")
            continue
        row = Published(
            name=one.name,
            library="transformers",
            family=one.family,
            model=called(description.config),
            pixels=one.side,
            pretraining=one.pretraining,
            licence=one.licence,
            megabytes=megabytes(model),
        )
        if one.family in TWO_PARTS:  # of which the model is one
            row = replace(row, megabytes=None)
        short = one.name.removeprefix("facebook/deit-")
        if short in DEIT:
            row = replace(row, top1=DEIT[short], measured="its head", source="DeiT")
        if "imagenet1k" not in one.name:
            row = with_authors_figure(row)
        yield row


def on_hub() -> Iterator[OnHub]:
    """The repositories, family by family."""
    thousand = (("num_labels", 1000),)
    headed = "ViTForImageClassification"

    # Google's ViTs and Facebook's DeiTs
    tuned = "ImageNet-21k, fine-tuned on ImageNet-1k"
    for size, patch in (("base", 16), ("base", 32), ("large", 16), ("large", 32)):
        shape = f"{SIZES[size]}/{patch}"
        stem = f"google/vit-{size}-patch{patch}"
        if patch == 16:
            yield OnHub(f"{stem}-224", headed, shape, 224, "ViT", tuned, own=thousand)
        yield OnHub(f"{stem}-384", headed, shape, 384, "ViT", tuned, own=thousand)
        yield OnHub(f"{stem}-224-in21k", "ViTModel", shape, 224, "ViT", "ImageNet-21k")
    huge = "google/vit-huge-patch14-224-in21k"
    yield OnHub(huge, "ViTModel", "H/14", 224, "ViT", "ImageNet-21k")
    for name in DEIT:
        kind = headed  # which the plain ones are in Transformers too
        if "distilled" in name:
            kind = "DeiTForImageClassificationWithTeacher"
        size, *_, side = name.split("-")
        shape = f"{SIZES[size]}/16"
        full = f"facebook/deit-{name}"
        yield OnHub(full, kind, shape, int(side), "DeiT", "ImageNet-1k", own=thousand)

    # Learned without labels
    for shape in ("S/16", "S/8", "B/16", "B/8"):
        name = f"facebook/dino-vit{shape.replace('/', '').lower()}"
        yield OnHub(name, "ViTModel", shape, 224, "DINO", "ImageNet-1k, DINO")
    for size in MAE:
        shape = f"{SIZES[size]}/{14 if size == 'huge' else 16}"
        name = f"facebook/vit-mae-{size}"
        terms = "cc-by-nc-4.0"
        yield OnHub(name, "ViTMAEModel", shape, 224, "MAE", "ImageNet-1k, MAE", terms)
    for size in DINOV2:
        shape = f"{SIZES[size]}/14"
        own = (("use_swiglu_ffn", size == "giant"), ("mlp_ratio", 4))
        if size == "giant":
            own += (("num_attention_heads", 24),)
        for kind, name in (("", "dinov2"), ("WithRegisters", "dinov2-with-registers")):
            full = f"facebook/{name}-{size}"
            yield OnHub(full, f"Dinov2{kind}Model", shape, 518, "DINOv2", "LVD-142M", own=own)
        full = f"facebook/dinov2-{size}-imagenet1k-1-layer"
        kind = "Dinov2ForImageClassification"
        data = "LVD-142M, a linear head for ImageNet-1k"
        yield OnHub(full, kind, shape, 518, "DINOv2", data, own=own + thousand)
    for shape, data in (
        ("S/16", "lvd1689m"),
        ("B/16", "lvd1689m"),
        ("L/16", "lvd1689m"),
        ("L/16", "sat493m"),
    ):
        name = f"facebook/dinov3-vit{shape.replace('/', '').lower()}-pretrain-{data}"
        own = (("num_register_tokens", 4),)
        yield OnHub(name, "DINOv3ViTModel", shape, 224, "DINOv3", DATA[data], "dinov3-license", own)

    # Learned from pairs of images and texts
    for name in ("base-patch32", "base-patch16", "large-patch14", "large-patch14-336"):
        full = f"openai/clip-vit-{name}"
        kind = "CLIPVisionModel"
        family = "CLIP"
        shape, side = shape_in(name)
        yield OnHub(full, kind, shape, side, family, DATA["openai"], "")
    for version, names in SIGLIP.items():
        for name in names.split():
            full = f"google/{version}-{name}"
            family = "SigLIP" if version == "siglip" else "SigLIP 2"
            shape, side = shape_in(name)
            yield OnHub(full, "SiglipVisionModel", shape, side, family, "WebLI")


SIGLIP = {
    "siglip": (
        "base-patch16-224 base-patch16-256 base-patch16-384 base-patch16-512 large-patch16-256 "
        "large-patch16-384 so400m-patch14-224 so400m-patch14-384"
    ),
    "siglip2": (
        "base-patch32-256 base-patch16-224 base-patch16-256 base-patch16-384 base-patch16-512 "
        "large-patch16-256 large-patch16-384 large-patch16-512 so400m-patch14-224 "
        "so400m-patch14-384 so400m-patch16-256 so400m-patch16-384 so400m-patch16-512 "
        "giant-opt-patch16-256 giant-opt-patch16-384"
    ),
}


def shape_in(name: str) -> tuple[str, int]:
    """The size and patch that a name tells, and the side: "base-patch16-384" is ("B/16", 384)."""
    size, patch, side = re.fullmatch(r"(.+)-patch(\d+)(?:-(\d+))?", name).groups()
    return f"{SIZES[size]}/{patch}", int(side or 224)


# Google's own files


def from_google() -> Iterator[Published]:
    """What the README of the paper's repository lists, of vit_models."""
    link = "apache-2.0"
    for name, suffix, rate, mebibytes, top1 in AUGREG:
        model = named(name)
        stem = f"augreg/{name}-i21k-300ep-lr_0.001-{suffix}"
        common = {"library": "google", "family": "AugReg", "model": model, "licence": link}
        megabyte = round(mebibytes * 1.048576)
        yield Published(
            name=stem, pixels=224, pretraining="ImageNet-21k, AugReg", megabytes=megabyte, **common
        )
        yield Published(
            name=f"{stem}--imagenet2012-steps_20k-lr_{rate}-res_384",
            pixels=384,
            pretraining="ImageNet-21k, fine-tuned on ImageNet-1k, AugReg",
            top1=top1,
            measured="its head",
            source="Google",
            **common,
        )
    for name, top1 in PAPER.items():
        common = {"library": "google", "family": "the paper's", "licence": link}
        model = named(name)
        yield Published(
            name=f"imagenet21k/ViT-{name}", model=model, pixels=224, pretraining="ImageNet-21k",
            top1=top1, measured="fine-tuned", source="the paper", **common,
        )  # fmt: skip
        if name in PAPER_224:
            yield Published(
                name=f"imagenet21k+imagenet2012/ViT-{name}-224", model=model, pixels=224,
                pretraining="ImageNet-21k, fine-tuned on ImageNet-1k", top1=PAPER_224[name],
                measured="its head", source="Google", **common,
            )  # fmt: skip


def named(name: str) -> str:
    """What vitkit calls the architecture of a file of Google's: "R50_L_32" is R50+ViT-L/32."""
    words = name.split("_")
    short = f"{words[-2]}/{words[-1]}"
    if len(words) == 3:
        short = f"{words[0]}+{short}"
    return called(vit(short))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timm-results", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=FILE)
    given = parser.parse_args()
    rows = [
        *from_google(),
        *from_transformers(),
        *from_torchvision(),
        *from_timm(given.timm_results),
    ]
    with given.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Published)])
        writer.writeheader()
        writer.writerows(vars(row) for row in rows)
    print(f"wrote {len(rows)} rows to {given.output}")


if __name__ == "__main__":
    main()
