"""What forward.py and step.py share: the same Vision Transformer in four libraries, and interleaved timing of them."""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from vitkit.models import ViTConfig, create, vit
from vitkit.recipes import recipe

PACKAGES = ("vitkit", "torch", "timm", "transformers", "torchvision")
Contenders = dict[str, Callable[[], object]]


def config(name: str) -> ViTConfig:
    """A named model with the erf GELU that the peers have, or the one of the CIFAR-10 recipe."""
    if name != "cifar10":
        return vit(name, gelu="erf")
    made = recipe("cifar10").model
    return ViTConfig(made.width, made.depth, made.mlp, made.heads, made.patch, made.image, classes=10, gelu="erf")


def stacks(c: ViTConfig) -> dict[str, nn.Module]:
    """The same architecture with the same number of parameters in every library; timm's and ours with the same weights."""
    import timm
    import torchvision
    from transformers import ViTConfig as HFConfig
    from transformers import ViTForImageClassification

    ours = create(c, seed=0)
    nn.init.normal_(ours.head.weight, std=0.02)
    side, ratio = c.image[0], c.mlp / c.width
    found = {
        "vitkit": ours,
        "timm": timm.models.VisionTransformer(
            side, c.patch, num_classes=c.classes, embed_dim=c.width, depth=c.depth, num_heads=c.heads, mlp_ratio=ratio
        ),
        "transformers": Logits(
            ViTForImageClassification(
                HFConfig(
                    c.width,
                    c.depth,
                    c.heads,
                    c.mlp,
                    image_size=side,
                    patch_size=c.patch,
                    layer_norm_eps=c.eps,
                    num_labels=c.classes,
                )
            )
        ),
        "torchvision": torchvision.models.VisionTransformer(
            side, c.patch, c.depth, c.heads, c.width, c.mlp, num_classes=c.classes
        ),
    }
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in found.items()}
    assert len(set(counts.values())) == 1, counts
    found["timm"].load_state_dict(timm_names(ours.state_dict()))
    return found


class Logits(nn.Module):
    """Transformers' models answer with a record; the others with logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images).logits


def timm_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """vitkit's weights under timm's names (PAPER.md 12.3)."""
    words = {
        "stem.project": "patch_embed.proj", "cls": "cls_token", "positions.table": "pos_embed", "attention.qkv": "attn.qkv",
        "attention.out": "attn.proj", "mlp.expand": "mlp.fc1", "mlp.contract": "mlp.fc2",
    }  # fmt: skip
    renamed = {}
    for name, tensor in state.items():
        for ours, theirs in words.items():
            name = name.replace(ours, theirs)
        renamed[name] = tensor
    return renamed


def same_work(models: dict[str, nn.Module], images: torch.Tensor) -> None:
    """Stop unless timm and vitkit give the same logits for the same weights."""
    with torch.inference_mode():
        ours, theirs = (models[name].eval()(images) for name in ("vitkit", "timm"))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def rounds(contenders: Contenders, device: str, seconds: float) -> dict[str, list[float]]:
    """Seconds of each contender, round after round, the order turned by one each time; at least five rounds."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():  # compile, warm up
        run(), run()
    order, began = list(contenders), time.perf_counter()
    while len(times[order[0]]) < 5 or (time.perf_counter() - began < seconds and len(times[order[0]]) < 200):
        for name in order:
            settle(device)
            start = time.perf_counter()
            contenders[name]()
            settle(device)
            times[name].append(time.perf_counter() - start)
        order = order[1:] + order[:1]
    return times


def settle(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def row(times: dict[str, list[float]], batch: int) -> dict:
    """Medians, and vitkit against the fastest peer: ratio of medians, and the quartiles of the ratio round by round."""
    medians = {name: statistics.median(t) for name, t in times.items()}
    fastest = min((name for name in medians if name != "vitkit"), key=medians.get)
    each = np.array(times[fastest]) / np.array(times["vitkit"])
    return {
        "images_per_second": {name: round(batch / t, 2) for name, t in medians.items()},
        "fastest_peer": fastest,
        "ratio": round(medians[fastest] / medians["vitkit"], 3),
        "ratio_quartiles": [round(float(q), 3) for q in np.quantile(each, (0.25, 0.75))],
        "rounds": len(each),
    }


def arguments(doc: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["Ti/16", "S/16", "B/16", "cifar10"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds-per-row", type=float, default=10)
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    return parser.parse_args()


def compare(doc: str, work: Callable[[nn.Module, torch.Tensor, str], Callable[[], object]], train: bool) -> None:
    """Every row that the command line asks for: `work(model, images, precision)` makes what is timed."""
    options, lines = arguments(doc), []
    table = Table(
        "model", "batch", "precision", "mode", *PACKAGES[:1], *PACKAGES[2:], "x fastest", "quartiles", title="images/s"
    )
    for name in options.models:
        c = config(name)
        models = {key: model.to(options.device) for key, model in stacks(c).items()}
        same_work(models, torch.randn(2, 3, *c.image, device=options.device))
        for mode in options.modes:
            torch.compiler.reset()
            ready = {key: torch.compile(m) if mode == "compiled" else m for key, m in models.items()}
            for batch in options.batches:
                images = torch.randn(batch, 3, *c.image, device=options.device)
                for precision in options.precisions:
                    contenders = {key: work(model.train(train), images, precision) for key, model in ready.items()}
                    found = row(rounds(contenders, options.device, options.seconds_per_row), batch)
                    lines.append({"model": name, "batch": batch, "precision": precision, "mode": mode, **found})
                    speeds = [f"{found['images_per_second'][key]:.1f}" for key in ready]
                    quartiles = "{} to {}".format(*found["ratio_quartiles"])
                    table.add_row(name, str(batch), precision, mode, *speeds, f"{found['ratio']:.2f}", quartiles)
                    print(lines[-1], flush=True)
    Console(width=160).print(table)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps({**machine(options.device), "results": lines}, indent=1))


def machine(device: str) -> dict:
    """Where, when and how the figures were made."""
    cpu = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), ""
    )
    return {
        "command": " ".join(["python", *(Path(a).as_posix() for a in sys.argv)]),
        "date": date.today().isoformat(),
        "machine": torch.cuda.get_device_name() if device.startswith("cuda") else cpu or platform.processor(),
        "cores": torch.get_num_threads(),
        "versions": {name: version(name) for name in PACKAGES},
    }
