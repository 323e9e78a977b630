"""What forward.py and step.py share: the same model in several libraries, and interleaved timing of them.

A plain Vision Transformer is in four libraries, a hybrid or a BiT ResNet in two: vitkit, in timm's dialect, and timm. Before
anything is timed all get the same random weights and must give the same logits. In a round every contender
takes its turn, and every round begins with the next one, so that what disturbs the machine disturbs them alike.
"""

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np
import torch
from loader import machine
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from vitkit.models import (
    DIALECTS,
    ModelConfig,
    ResNetConfig,
    VisionTransformer,
    ViTConfig,
    cost,
    create,
    named,
)
from vitkit.recipes import recipe
from vitkit.weights.formats import format_of
from vitkit.weights.formats.timm import resnets, vit
from vitkit.weights.rules import write as in_their_names

PACKAGES = ("vitkit", "torch", "timm", "transformers", "torchvision")
TURN = 0.03  # seconds that a turn takes at least: short work is repeated, the same number of times by all
Run = Callable[[], object]
Work = Callable[[nn.Module, Tensor, str], Run]  # (model, images, precision) -> what is timed


# the same model several times


def config(name: str) -> ViTConfig | ResNetConfig:
    """A named model, or that of the CIFAR-10 recipe, with what the peers have: erf GELU, no stochastic depth, timm's ResNets."""
    known = recipe("cifar10").model if name == "cifar10" else named(name)
    if isinstance(known, ResNetConfig):
        return replace(known, backbone=replace(known.backbone, **DIALECTS["timm_bit"]))
    stem = replace(known.stem, **DIALECTS["timm"]) if known.stem else None
    return replace(known, classes=known.classes or 10, gelu="erf", stochastic_depth=0.0, stem=stem)


def stacks(c: ModelConfig) -> dict[str, nn.Module]:
    """The model in every library, with the same random weights; no parameter keeps a value that hides a mistake."""
    ours = create(c, seed=0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    peers = PEERS if isinstance(c, ViTConfig) and c.stem is None else {"timm": timm_resnet}
    return {"vitkit": ours} | {name: build(c, ours) for name, build in peers.items()}


def timm_resnet(c: ModelConfig, ours: nn.Module) -> nn.Module:
    """timm's hybrid, or its BiT, by the table that vitkit's converter has."""
    from timm import create_model

    format = format_of("timm", c)
    architecture = (resnets if c.kind == "resnet" else vit).architecture
    name, arguments = architecture(c)
    model = create_model(name, num_classes=c.classes, **arguments)
    tensors = in_their_names(ours.state_dict(), format.rules(c))
    model.load_state_dict(format.spell(tensors, c, ""))
    return model


def timm(c: ViTConfig, ours: VisionTransformer) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    sizes = {
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
        "mlp_ratio": c.mlp / c.width,
    }
    model = VisionTransformer(c.image, c.patch, num_classes=c.classes, **sizes)
    model.load_state_dict(renamed(ours, TIMM))
    return model


def torchvision(c: ViTConfig, ours: VisionTransformer) -> nn.Module:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        c.image[0], c.patch, c.depth, c.heads, c.width, c.mlp, num_classes=c.classes
    )
    model.load_state_dict(renamed(ours, TORCHVISION))
    return model


def transformers(c: ViTConfig, ours: VisionTransformer) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": c.width, "num_hidden_layers": c.depth, "num_attention_heads": c.heads}
    sizes |= {"intermediate_size": c.mlp, "image_size": c.image[0], "patch_size": c.patch}
    model = ViTForImageClassification(
        ViTConfig(**sizes, layer_norm_eps=c.eps, num_labels=c.classes)
    )
    state = {}
    for name, tensor in renamed(ours, TRANSFORMERS).items():
        parts = zip("qkv", tensor.chunk(3), strict=True) if ".qkv." in name else [("", tensor)]
        state |= {name.replace("qkv", f"{letter}_proj"): part for letter, part in parts}
    model.load_state_dict(state)
    return Logits(model)


class Logits(nn.Module):
    """Transformers' models answer with a record; the others with logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


PEERS = {"timm": timm, "transformers": transformers, "torchvision": torchvision}
# Patterns in vitkit's names and what peers write there, in this order
TIMM = {
    "stem.project": "patch_embed.proj", "^cls": "cls_token", "positions.table": "pos_embed",
    "attention": "attn", "attn.out": "attn.proj", "expand": "fc1", "contract": "fc2",
}  # fmt: skip
TRANSFORMERS = {
    "stem.project": "embeddings.patch_embeddings.projection", "^cls": "embeddings.cls_token",
    "positions.table": "embeddings.position_embeddings", "^blocks": "layers", "norm1": "layernorm_before",
    "norm2": "layernorm_after", "^norm": "layernorm", "attention.out": "attention.o_proj", "expand": "fc1",
    "contract": "fc2", "^head": "classifier", "^(?!classifier)": "vit.",
}  # fmt: skip
TORCHVISION = {
    "stem.project": "conv_proj", "^cls": "class_token", "positions.table": "encoder.pos_embedding",
    r"^blocks\.": "encoder.layers.encoder_layer_", "^norm": "encoder.ln", "norm": "ln_", "attention": "self_attention",
    r"qkv\.": "in_proj_", "attention.out": "attention.out_proj", "expand": "0", "contract": "3", "^head": "heads.head",
}  # fmt: skip


def renamed(ours: VisionTransformer, names: dict[str, str]) -> dict[str, Tensor]:
    state = ours.state_dict()
    for pattern, theirs in names.items():
        state = {re.sub(pattern, theirs, name): tensor for name, tensor in state.items()}
    return state


def same_work(models: dict[str, nn.Module], images: Tensor) -> None:
    """Stop unless all models have as many parameters as vitkit's and give its logits."""
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    assert len(set(counts.values())) == 1, counts
    with torch.inference_mode():
        logits = {name: model.eval()(images) for name, model in models.items()}
    for name, found in logits.items():
        torch.testing.assert_close(
            found, logits["vitkit"], atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


# timing


def ready(model: nn.Module, train: bool, precision: str, compiled: bool) -> nn.Module:
    """A copy of the model for one row; a compiled one is made for the row's shapes alone."""
    model = deepcopy(model).train(train)
    model = model.bfloat16() if precision == "bfloat16" else model
    return torch.compile(model, dynamic=False) if compiled else model


def autocast(images: Tensor, precision: str) -> torch.autocast:
    return torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "autocast")


def seconds(run: Run, calls: int, device: str) -> float:
    """Of one call, the mean of `calls`; the GPU is idle before and after."""
    settle(device)
    began = time.perf_counter()
    for _ in range(calls):
        run()
    settle(device)
    return (time.perf_counter() - began) / calls


def settle(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def rounds(
    contenders: dict[str, Run], device: str, limit: float
) -> tuple[dict[str, list[float]], int]:
    """Seconds a call of every contender in every round, and the calls of a turn.

    After three rounds of warm-up, in which models are compiled, rounds follow for `limit` seconds, but at least five.
    """
    for _ in range(3):
        warm = [seconds(run, 1, device) for run in contenders.values()]
    calls, order = max(1, math.ceil(TURN / min(warm))), list(contenders)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    began = time.perf_counter()
    while len(times[order[0]]) < 5 or time.perf_counter() - began < limit:
        for name in order:
            times[name].append(seconds(contenders[name], calls, device))
        order = order[1:] + order[:1]
    return times, calls


def matmul_rate(device: str, size: int = 8192) -> float:
    """FLOP a second of a bfloat16 matrix product, the best of five turns: the ceiling that MFU is a share of."""
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    seconds(lambda: a @ a, 10, device)
    return 2 * size**3 / min(seconds(lambda: a @ a, 10, device) for _ in range(5))


def summary(times: dict[str, list[float]], batch: int) -> dict:
    """Medians and quartiles, and the first contender against the fastest other: ratio of medians, with its 95 % interval.

    The interval draws rounds again, with replacement; each draw may have another fastest peer.
    """
    ours, *peers = times
    each = np.array(list(times.values()))  # (contenders, rounds)
    drawn = np.random.default_rng(0).integers(each.shape[1], size=(2000, each.shape[1]))
    medians = np.median(each[:, drawn], -1)  # (contenders, 2000)
    quartiles = {name: np.quantile(t, (0.25, 0.5, 0.75)) for name, t in times.items()}
    fastest = min(peers, key=lambda name: quartiles[name][1])
    low, high = np.quantile(medians[1:].min(0) / medians[0], (0.025, 0.975))
    return {
        "milliseconds_q1_median_q3": {
            name: [round(1e3 * float(q), 4) for q in t] for name, t in quartiles.items()
        },
        "images_per_second": {name: round(batch / float(t[1]), 2) for name, t in quartiles.items()},
        "fastest_peer": fastest,
        "ratio": round(float(quartiles[fastest][1] / quartiles[ours][1]), 3),
        "ratio_95_percent": [round(float(low), 3), round(float(high), 3)],
        "rounds": each.shape[1],
    }


# the command


def arguments(doc: str, precisions: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["Ti/16", "S/16", "B/16", "cifar10"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--precisions", nargs="+", default=precisions, choices=precisions)
    parser.add_argument(
        "--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"]
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument(
        "--seconds-per-row",
        type=float,
        default=10,
        help="at least five rounds are made in any case",
    )
    parser.add_argument(
        "--output", type=Path, help="a JSON file for the results, written after every row"
    )
    return parser.parse_args()


def compare(doc: str, work: Work, train: bool, precisions: list[str]) -> None:
    """Time `work` for every row that the command line asks for; show and keep the results."""
    options = arguments(doc, precisions)
    result = {**about(options.device, doc), "results": []}
    for name in options.models:
        c = config(name)
        models = stacks(c)
        same_work(
            models, torch.randn(2, 3, *c.image)
        )  # on the CPU: a GPU's convolutions round to TF32
        models = {key: model.to(options.device) for key, model in models.items()}
        for mode, batch, precision in product(options.modes, options.batches, options.precisions):
            torch.compiler.reset()
            images = torch.randn(batch, 3, *c.image, device=options.device)
            images = images.bfloat16() if precision == "bfloat16" else images
            copies = {
                key: ready(model, train, precision, mode == "compiled")
                for key, model in models.items()
            }
            contenders = {key: work(model, images, precision) for key, model in copies.items()}
            times, calls = rounds(contenders, options.device, options.seconds_per_row)
            row = {
                "model": name,
                "batch": batch,
                "precision": precision,
                "mode": mode,
                "calls_a_turn": calls,
            }
            row |= summary(times, batch)
            if rate := result.get("bfloat16_matmul_flop_per_second"):
                flop = (
                    2 * cost(c).macs * (3 if train else 1)
                )  # the model's, whether a contender does all of it or less
                row["mfu"] = {
                    key: round(flop * speed / rate, 4)
                    for key, speed in row["images_per_second"].items()
                }
            result["results"].append(row)
            result["load_at_start_and_end"][1] = round(os.getloadavg()[0], 2)
            write(result, options.output)
            ratio = "{:.3f} ({:.3f} to {:.3f})".format(row["ratio"], *row["ratio_95_percent"])
            print(
                f"{name} {batch} {precision} {mode}: {ratio} times {row['fastest_peer']}",
                flush=True,
            )
    show(result["results"])


def about(device: str, doc: str) -> dict:
    """What is measured, where, when and how."""
    words = [
        Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]
    ]  # no one's folders
    found = {
        "measures": doc.partition("\n")[0],
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words]),
        "date": date.today().isoformat(),
        "machine": machine() | {"threads": torch.get_num_threads()},
        "versions": {package: version(package) for package in PACKAGES},
        "load_at_start_and_end": [round(os.getloadavg()[0], 2)]
        * 2,  # its own part of the second is about `threads`
    }
    if device.startswith("cuda"):
        found["machine"]["gpu"] = torch.cuda.get_device_name(device)
        found["bfloat16_matmul_flop_per_second"] = round(matmul_rate(device))
    return found


def write(result: dict, output: Path | None) -> None:
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=1) + "\n")


def show(rows: list[dict]) -> None:
    contenders = list(rows[0]["images_per_second"])
    table = Table(
        "model",
        "batch",
        "precision",
        "mode",
        *contenders,
        "times the fastest peer",
        "95 %",
        "rounds",
    )
    table.title = "milliseconds, median (interquartile range in % of it)" + ", MFU" * (
        "mfu" in rows[0]
    )
    for row in rows:
        cells = []
        for name, (low, middle, high) in row["milliseconds_q1_median_q3"].items():
            share = f" {row['mfu'][name]:.1%}" if "mfu" in row else ""
            cells.append(f"{middle:.2f} ({100 * (high - low) / middle:.0f}){share}")
        ratio = [
            f"{row['ratio']:.3f}",
            "{:.3f} to {:.3f}".format(*row["ratio_95_percent"]),
            str(row["rounds"]),
        ]
        table.add_row(
            row["model"], str(row["batch"]), row["precision"], row["mode"], *cells, *ratio
        )
    Console(width=170).print(table)
