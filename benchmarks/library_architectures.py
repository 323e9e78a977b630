"""Every architecture of timm and of Transformers that resembles a Vision Transformer: whether vitkit computes
the same as the library, or refuses it by name.

Each is built by its library's own function at a depth of one block, with random numbers, and saved as the
library saves it. vitkit opens that directory without any hint. Logits, or the features of a model without
a head, of random images are compared, and so are the pixels and the features of a photograph.

    python benchmarks/library_architectures.py timm           a line for each, and a count
    python benchmarks/library_architectures.py transformers
    python benchmarks/library_architectures.py write          src/vitkit/weights/formats/timm/architectures.csv

The file that it writes holds what timm's functions say of a model and no tensor tells: the number of
heads, the activation, the positions. It has a row for each architecture; those that vitkit does not read
have the reason in place of settings.
"""

import argparse
import csv
import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from published_weights import OnHub, on_hub
from safetensors.torch import save_file
from torch import Tensor, nn

from vitkit.data import open_image
from vitkit.models import vit
from vitkit.weights import Classifier, load
from vitkit.weights.formats.huggingface.dino import DINOV2, DINOV3
from vitkit.weights.formats.huggingface.towers import NAFLEX, TOWERS
from vitkit.weights.formats.huggingface.vit import VIT
from vitkit.weights.formats.timm.architectures import FILE, Architecture, architecture_called

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = (VIT, DINOV2, DINOV3, TOWERS, NAFLEX)
TOLERANCE = 2e-5
"""Largest difference of outputs, of the largest output."""
LEVELS = 1.01
"""Largest difference of a pixel, of 255."""

# The modules of timm whose models cut images into patches and compute with attention among them
MODULES = (
    "beit", "cait", "convit", "crossvit", "deepseek_vit", "deit", "eva", "gemma4_vit", "hiera",
    "hieradet_sam2", "mvitv2", "naflexvit", "pit", "qwen3_vit", "swin_transformer",
    "swin_transformer_v2", "swin_transformer_v2_cr", "tnt", "twins", "vision_transformer",
    "vision_transformer_hybrid", "vision_transformer_relpos", "vision_transformer_sam", "vitamin",
    "volo", "xcit",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What vitkit makes of an architecture."""

    name: str
    result: str
    """ "equal", "refused", or "DIFFERS"."""
    detail: str


# Random numbers in a model


class Numbers:
    """Random numbers for parameters of any size, drawn once."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.normal = torch.randn(2**22 + 7, generator=generator)  # no multiple of any width
        self.position = 0

    def of(self, shape: torch.Size) -> Tensor:
        """The next numbers; those of large tensors are repeated."""
        count = shape.numel()
        pieces = []
        while count:
            piece = self.normal[self.position : self.position + count]
            pieces.append(piece)
            count -= len(piece)
            self.position = (self.position + len(piece)) % len(self.normal)
        return torch.cat(pieces).view(shape)


def filled(model: nn.Module) -> nn.Module:
    """A model, which may have no memory yet, with random numbers in every parameter, of sizes at which all parts
    matter to the outputs."""
    if next(model.parameters()).is_meta:
        model.to_empty(device="cpu")
        for module in model.modules():
            if hasattr(module, "init_non_persistent_buffers"):
                module.init_non_persistent_buffers()
    numbers = Numbers()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = numbers.of(parameter.shape)
            is_factor = name.endswith(("gamma", "gamma_1", "gamma_2", "lambda1"))
            is_norm = name.endswith("weight") and parameter.ndim == 1
            if is_factor or is_norm:
                values = 1 + 0.1 * values
            elif parameter.ndim == 1:
                values = 0.1 * values
            elif name.endswith("weight"):
                values = values * parameter[0].numel() ** -0.5
            else:
                values = 0.5 * values
            parameter.copy_(values)
    return model.eval()


def photograph() -> Image.Image:
    """Smooth random colours, neither a square nor of a size that any model has."""
    colours = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((640, 480), Image.Resampling.BICUBIC)


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, of the largest number; infinite for other shapes, and for no numbers."""
    if ours.shape != theirs.shape or not theirs.isfinite().all():
        return float("inf")
    return float((ours - theirs).abs().max() / theirs.abs().max())


# timm


def of_timm() -> list[str]:
    """The names of the architectures in timm's modules that resemble a Vision Transformer."""
    import timm

    names = []
    for module in MODULES:
        names += timm.list_models(module=module)
    return sorted(names)


def timms_model(name: str, depth: int | None = 1) -> nn.Module:
    """A model by timm's own function, without memory. None leaves the depth as it is."""
    import timm

    settings = {}
    if depth is not None:
        settings["depth"] = depth
    classes = timm.get_pretrained_cfg(name).num_classes
    # timm's truncated normal takes half the time of it, though there are no numbers to draw
    drawing = "timm.layers.weight_init._trunc_normal_"
    with torch.device("meta"), patch(drawing, lambda tensor, *_: tensor):
        return timm.create_model(name, num_classes=classes, **settings)


def save_timms(model: nn.Module, folder: Path) -> None:
    """A directory as timm writes it."""
    from timm.models import save_for_hf

    save_for_hf(model, folder, safe_serialization=True)
    # timm's own repositories have none: the name says all
    config = json.loads((folder / "config.json").read_text())
    del config["model_args"]
    (folder / "config.json").write_text(json.dumps(config))


def check_timm(name: str) -> Outcome:
    """What vitkit makes of one of timm's architectures."""
    known = architecture_called(name)
    if known is None or known.refused:
        try:
            state = timms_model(name).state_dict()
        except (TypeError, ValueError, AssertionError, IndexError):  # its depth is no one number
            state = {"patch_embed.proj.weight": torch.zeros(8, 3, 4, 4)}
        return refused_without_numbers(name, {"architecture": name}, state)
    model = filled(timms_model(name))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        save_timms(model, path)
        try:
            ours = load(path, quiet=True)
        except ValueError as error:
            return Outcome(name, "DIFFERS", str(error).replace(folder, "DIRECTORY"))

        def features(pixels: Tensor) -> Tensor:
            return model.forward_head(model.forward_features(pixels), pre_logits=True)

        if ours.model.config.pool == "distilled":  # two states here, their mean there
            features = None
        return compared(name, model, features, ours, timms_pixels(path))


def refused_without_numbers(name: str, config: dict, state: dict[str, Tensor]) -> Outcome:
    """Whether a model is refused, whatever numbers it has: its tensors have one each."""
    tensors = {
        tensor_name: torch.zeros((1,) * tensor.ndim) for tensor_name, tensor in state.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        save_file(tensors, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(config))
        try:
            load(path, quiet=True)
        except ValueError as error:
            return Outcome(name, "refused", str(error).replace(folder, "DIRECTORY"))
    return Outcome(name, "DIFFERS", "it is read")


def timms_pixels(path: Path) -> Tensor:
    """The photograph as timm prepares it by a directory's config.json."""
    from timm.data import create_transform, resolve_data_config

    settings = json.loads((path / "config.json").read_text())["pretrained_cfg"]
    transform = create_transform(**resolve_data_config(pretrained_cfg=settings), is_training=False)
    return transform(photograph())[None]


def compared(
    name: str,
    theirs: Callable[[Tensor], Tensor],
    their_features: Callable[[Tensor], Tensor] | None,
    ours: Classifier,
    pixels: Tensor,
) -> Outcome:
    """The outputs of two models side by side, of random images and of a photograph, whose pixels by the
    library these are; its features too, where the library has them."""
    height, width = ours.preprocessing.size
    rest = pixels.shape[-1] - width  # which no patch covers
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(pixels.shape, generator=generator)

    def seen(x: Tensor) -> Tensor:
        return x[..., :height, :width]

    # The pixels of the photograph, which of a model with a rest lie elsewhere
    if not rest:
        picture = open_image(np.asarray(photograph()), "photograph")
        own = ours.preprocessing.normalise(ours.batch([picture]).cpu())
        if own.shape != pixels.shape:
            return Outcome(name, "DIFFERS", f"pixels of {tuple(own.shape)}, {tuple(pixels.shape)}")
        apart = (own - pixels).abs().amax((0, 2, 3)) * torch.tensor(ours.preprocessing.std)
        if 255 * apart.max() > LEVELS:
            return Outcome(name, "DIFFERS", f"pixels by {255 * apart.max():.1f} levels")

    # Outputs of random images, and of the photograph features where the library has them
    with torch.inference_mode():
        differences = [relative(ours.model(seen(images)), theirs(images))]
        if their_features:
            differences.append(relative(ours.model.features(seen(pixels)), their_features(pixels)))
        else:
            differences.append(relative(ours.model(seen(pixels)), theirs(pixels)))
    if not max(differences) <= TOLERANCE:
        return Outcome(name, "DIFFERS", f"by {max(differences):.1e} of the largest")
    return Outcome(name, "equal", f"{max(differences):.1e}")


# Transformers


def of_transformers() -> list[str]:
    """The model types of the installed Transformers that cut images into patches."""
    from transformers import CONFIG_MAPPING, MODEL_MAPPING

    types = []
    for name in CONFIG_MAPPING:
        config_class = CONFIG_MAPPING[name]
        with suppress(Exception):  # some cannot be made without settings
            if "patch_size" in config_class().to_dict() and config_class in MODEL_MAPPING:
                types.append(name)
    return sorted(types)


def check_type(name: str) -> Outcome:
    """Whether a model of this type of Transformers' is refused by its name, unless vitkit reads the type."""
    from transformers import CONFIG_MAPPING, AutoModel

    if any(name in family.types for family in FAMILIES):
        return Outcome(name, "read", "each published model below")
    config = CONFIG_MAPPING[name]()
    for layers in ("num_hidden_layers", "depth", "num_layers"):
        if isinstance(getattr(config, layers, None), int):
            with suppress(AttributeError, ValueError):
                setattr(config, layers, 1)
    try:
        with torch.device("meta"):
            state = AutoModel.from_config(config).state_dict()
    except Exception:  # whatever the type needs besides: its name is what matters
        state = {"embeddings.patch_embeddings.projection.weight": torch.zeros(8, 3, 4, 4)}
    return refused_without_numbers(name, {"model_type": name}, state)


def check_published(row: OnHub) -> Outcome:
    """What vitkit makes of a model of the hub's, which Transformers itself makes and saves."""
    import transformers

    size = vit(row.shape)
    kind = getattr(transformers, row.kind)
    shape = {
        "hidden_size": size.width,
        "num_hidden_layers": 1,
        "num_attention_heads": size.heads,
        "intermediate_size": size.mlp,
        "patch_size": size.patch,
        "image_size": row.side,
    }
    config = kind.config_class(**shape | dict(row.own))
    model = filled(kind(config))
    if row.kind == "ViTMAEModel":
        model.config.mask_ratio = 0.0  # which leaves out patches at random
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        model.save_pretrained(path)
        pixels = saved_processor(path, config, row.side)
        try:
            ours = load(path, quiet=True)
        except ValueError as error:
            return Outcome(row.name, "refused", str(error).replace(folder, "DIRECTORY"))

        def answer(images: Tensor) -> Tensor:
            record = model(pixel_values=images)
            if "logits" in record:
                return record.logits
            if record.get("pooler_output") is not None:
                return record.pooler_output
            return record.last_hidden_state[:, 0]

        return compared(row.name, answer, None, ours, pixels)


def saved_processor(path: Path, config: "PretrainedConfig", side: int) -> Tensor:
    """The photograph as the image processor of such models prepares it, which is saved beside the model: of
    the size of its images; of DINOv2 224, as its authors have it."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    # A vision tower has that of both towers, and DINOv2 with registers that of DINOv2
    kind = type(config).__name__.replace("Vision", "").replace("WithRegisters", "")
    classes = IMAGE_PROCESSOR_MAPPING[getattr(transformers, kind)]
    kind = classes.get("pil") or classes["torchvision"]
    processor = kind()
    if "shortest_edge" in processor.size:
        if not config.model_type.startswith("dinov2"):
            processor = kind(
                size={"shortest_edge": side}, crop_size={"height": side, "width": side}
            )
    elif getattr(processor, "do_center_crop", None):
        size = side * 256 // 224  # 256 for 224, 438 for 384
        processor = kind(
            size={"height": size, "width": size}, crop_size={"height": side, "width": side}
        )
    else:
        processor = kind(size={"height": side, "width": side})
    processor.save_pretrained(path)
    return processor(photograph(), return_tensors="pt")["pixel_values"]


# What timm's functions say of a model


def described(name: str) -> Architecture:
    """The settings that the function of this name gives a model, or why vitkit does not read it."""
    from timm.layers import LayerNorm, RmsNorm
    from timm.models import deit, eva, vision_transformer

    try:
        model = timms_model(name)
    except (TypeError, ValueError, AssertionError, IndexError):
        model = None
    classes = (vision_transformer.VisionTransformer, deit.VisionTransformerDistilled, eva.Eva)
    if type(model) not in classes:
        kind = type(model or timms_model(name, None)).__name__
        return Architecture(name, refused=f"of the class {kind}")

    stem = type(getattr(model.patch_embed, "backbone", None)).__name__
    if stem not in ("NoneType", "ResNetV2", "Sequential"):
        return Architecture(name, refused=f"with a stem of the class {stem}")
    block = model.blocks[0]
    kind = type(block).__name__
    if kind not in ("Block", "ResPostBlock", "EvaBlock"):
        return Architecture(name, refused=f"with blocks of the class {kind}")
    attention = type(block.attn).__name__
    if attention not in ("Attention", "EvaAttention", "AttentionRope"):
        return Architecture(name, refused=f"with attention of the class {attention}")
    positions = "learned"
    grid = 0
    rope = getattr(model, "rope", None)
    if rope is not None:
        positions = rotation(model)
        if positions not in ROTATIONS:
            return Architecture(name, refused=f"with {positions}")
        if positions == "rotary-timm":
            grid = rope.ref_feat_shape[0]
    elif model.pos_embed is None:
        positions = "none"
    for part, words in (
        (block.attn.norm, "a norm within attention"),
        (getattr(model.patch_embed, "norm", nn.Identity()), "a norm of patches"),
        (getattr(block.mlp, "norm", nn.Identity()), "a norm within the MLP"),
    ):
        if not isinstance(part, nn.Identity):
            return Architecture(name, refused=f"with {words}")
    if block.attn.proj.bias is None:
        return Architecture(name, refused="without biases of its dense layers")
    if not isinstance(block.norm1, LayerNorm | nn.LayerNorm | RmsNorm):
        return Architecture(name, refused=f"with norms of the class {type(block.norm1).__name__}")
    if getattr(model, "pool_include_prefix", False) and model.num_prefix_tokens:
        return Architecture(name, refused="with a pooling that reads the tokens before the patches")
    if isinstance(model.norm, nn.Identity) and isinstance(model.fc_norm, nn.Identity):
        return Architecture(name, refused="without a norm behind the last block")
    pools = {"token": "token", "avg": "gap", "map": "map", "": "none"}
    if model.global_pool not in pools:
        return Architecture(name, refused=f"with the pooling {model.global_pool}")
    return Architecture(
        name,
        width=model.embed_dim,
        patch=model.patch_embed.proj.kernel_size[0],
        class_token=model.cls_token is not None,
        heads=block.attn.num_heads,
        gelu=activation(block.mlp),
        eps=block.norm1.eps,
        positions=positions,
        trained_grid=grid,
        branch_norm="after" if kind == "ResPostBlock" else "before",
        pool=pools[model.global_pool],
    )


ROTATIONS = ("rotary-axial", "rotary-timm", "rotary-dinov3")


def rotation(model: nn.Module) -> str:
    """The kind of a model's rotary positions; words, if vitkit does not have it."""
    rope = model.rope
    kind = type(rope).__name__
    if kind == "RotaryEmbeddingMixed":
        return "rotary positions that are learned (RoPE-Mixed)"
    if model.pos_embed is not None:
        return "rotary positions beside a table"
    if kind == "RotaryEmbeddingDinoV3":
        return "rotary-dinov3"
    if kind != "RotaryEmbeddingCat" or rope.grid_offset:
        return f"rotary positions of the class {kind}"
    if (rope.grid_indexing, rope.temperature, rope.ref_feat_shape) == ("xy", 100.0, None):
        return "rotary-axial"
    if (rope.grid_indexing, rope.temperature) == ("ij", 10_000.0) and rope.ref_feat_shape:
        return "rotary-timm"
    return f"rotary positions of the class {kind} with other settings"


def activation(mlp: nn.Module) -> str:
    """The form of an MLP's GELU; of a SwiGLU, which has none, the one that a ViTConfig has there."""
    act = mlp.act
    if isinstance(act, nn.GELU):
        return {"none": "erf", "tanh": "tanh"}[act.approximate]
    names = {"GELU": "erf", "GELUTanh": "tanh", "QuickGELU": "quick", "ReLU": "relu", "SiLU": "erf"}
    return names[type(act).__name__]


def write() -> None:
    """The file of what timm's functions say."""
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Architecture)])
        writer.writeheader()
        for name in of_timm():
            row = vars(described(name))
            writer.writerow({field: value or "" for field, value in row.items()})
    print(f"wrote {FILE.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["timm", "transformers", "write"])
    parser.add_argument("--only", default="", help="names that begin so")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with suppress(ImportError):
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
    if given.what == "write":
        write()
        return
    checks = [(name, partial(check_timm, name)) for name in of_timm()]
    if given.what == "transformers":
        checks = [(name, partial(check_type, name)) for name in of_transformers()]
        checks += [(row.name, partial(check_published, row)) for row in on_hub()]
    counts = Counter()
    for name, check in checks:
        if name.startswith(given.only):
            outcome = check()
            counts[outcome.result] += 1
            print(f"{outcome.name:44} {outcome.result:8} {outcome.detail[:160]}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.most_common()))


if __name__ == "__main__":
    main()
