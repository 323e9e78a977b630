"""What forward.py and step.py share: one model in several libraries, and fair timing of all.

This is no benchmark of its own.

- The same model. A plain Vision Transformer is built in four libraries; a hybrid or a BiT ResNet
  in two, vitkit (in timm's dialect) and timm. All get the same random weights and must give the
  same logits before anything is timed.
- Fair timing. In a round, every library has one turn, after a pause and in an order that is drawn
  anew: what disturbs the machine, and what the turn before leaves behind, disturb all alike. Results
  are medians over the rounds.
"""

import argparse
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import record
import torch
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
from vitkit.system import matmul
from vitkit.weights import format_of
from vitkit.weights.formats.timm import resnets, vit
from vitkit.weights.rules import write as in_their_names

PEERS = ("timm", "transformers", "torchvision")
PACKAGES = ("vitkit", "torch", *PEERS)
TURN = 0.03  # seconds that a turn takes at least: all repeat short work, equally often
PAUSE = (
    0.05  # seconds before a turn, in which the threads of the one before end their waiting for work
)
LEAST_ROUNDS = 5
DRAWS = 2000  # of rounds, for an interval
Run = Callable[[], object]
Work = Callable[[nn.Module, Tensor, str], Run]
"""(model, images, precision) -> what is timed."""


# The same model in several libraries


def config(name: str) -> ViTConfig | ResNetConfig:
    """A named model, or that of the recipe cifar10, as the peers have it: with erf GELU, without
    stochastic depth, its ResNet as timm computes it."""
    model = named(name) if name != "cifar10" else recipe("cifar10").model
    if isinstance(model, ResNetConfig):
        return replace(model, backbone=replace(model.backbone, **DIALECTS["timm_bit"]))
    stem = model.stem
    if stem is not None:
        stem = replace(stem, **DIALECTS["timm"])
    classes = model.classes or 10
    return replace(model, classes=classes, gelu="erf", stochastic_depth=0.0, stem=stem)


def stacks(c: ModelConfig, libraries: Sequence[str] = PEERS) -> dict[str, nn.Module]:
    """The model in vitkit and in those of the libraries that have it, with the same random
    weights."""
    ours = create(c, seed=0)
    with torch.no_grad():
        for parameter in ours.parameters():  # zeros and ones would hide a mistake
            parameter += 0.02 * torch.randn_like(parameter)

    builders = {"timm": timm_resnet}
    if isinstance(c, ViTConfig) and c.stem is None:
        builders = {"timm": timm, "transformers": transformers, "torchvision": torchvision}
    models: dict[str, nn.Module] = {"vitkit": ours}
    for name, build in builders.items():
        if name in libraries:
            models[name] = build(c, ours)
    return models


def timm_resnet(c: ModelConfig, ours: nn.Module) -> nn.Module:
    """timm's hybrid or BiT ResNet, with weights that vitkit's converter has renamed."""
    from timm import create_model

    architecture = vit.architecture
    if c.kind == "resnet":
        architecture = resnets.architecture
    name, arguments = architecture(c)
    model = create_model(name, num_classes=c.classes, **arguments)

    format = format_of("timm", c)
    tensors = in_their_names(ours.state_dict(), format.rules(c))
    model.load_state_dict(format.spell(tensors, c, ""))
    return model


def timm(c: ViTConfig, ours: VisionTransformer) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        c.image,
        c.patch,
        num_classes=c.classes,
        embed_dim=c.width,
        depth=c.depth,
        num_heads=c.heads,
        mlp_ratio=c.mlp / c.width,
    )
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

    model = ViTForImageClassification(
        ViTConfig(
            hidden_size=c.width,
            num_hidden_layers=c.depth,
            num_attention_heads=c.heads,
            intermediate_size=c.mlp,
            image_size=c.image[0],
            patch_size=c.patch,
            layer_norm_eps=c.eps,
            num_labels=c.classes,
        )
    )
    state = {}
    for name, tensor in renamed(ours, TRANSFORMERS).items():
        if ".qkv." in name:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                state[name.replace("qkv", f"{letter}_proj")] = part
        else:
            state[name] = tensor
    model.load_state_dict(state)
    return Logits(model)


class Logits(nn.Module):
    """Transformers' models return a record; this returns its logits, as the other libraries do."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


# Patterns in vitkit's names and what replaces them in a peer's, applied in this order
TIMM = {
    "stem.project": "patch_embed.proj",
    "^cls": "cls_token",
    "positions.table": "pos_embed",
    "attention": "attn",
    "attn.out": "attn.proj",
    "expand": "fc1",
    "contract": "fc2",
}
TRANSFORMERS = {
    "stem.project": "embeddings.patch_embeddings.projection",
    "^cls": "embeddings.cls_token",
    "positions.table": "embeddings.position_embeddings",
    "^blocks": "layers",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "^norm": "layernorm",
    "attention.out": "attention.o_proj",
    "expand": "fc1",
    "contract": "fc2",
    "^head": "classifier",
    "^(?!classifier)": "vit.",
}
TORCHVISION = {
    "stem.project": "conv_proj",
    "^cls": "class_token",
    "positions.table": "encoder.pos_embedding",
    r"^blocks\.": "encoder.layers.encoder_layer_",
    "^norm": "encoder.ln",
    "norm": "ln_",
    "attention": "self_attention",
    r"qkv\.": "in_proj_",
    "attention.out": "attention.out_proj",
    "expand": "0",
    "contract": "3",
    "^head": "heads.head",
}


def renamed(ours: VisionTransformer, names: dict[str, str]) -> dict[str, Tensor]:
    """vitkit's weights under a peer's names."""
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
    for name in models:
        torch.testing.assert_close(
            logits[name],
            logits["vitkit"],
            atol=1e-4,
            rtol=1e-4,
            msg=lambda message, name=name: f"{name}: {message}",
        )


# Timing


def autocast(images: Tensor, precision: str) -> torch.autocast:
    """bfloat16 autocast on the images' device, if that is the precision."""
    return torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "autocast")


def rounds(
    contenders: dict[str, Run], device: str, limit: float
) -> tuple[dict[str, list[float]], int]:
    """The seconds that one call of every contender takes in every round; and the calls of a turn.

    Three rounds warm up: models are compiled there. The others go on for `limit` seconds, and are
    at least LEAST_ROUNDS.
    """
    for _ in range(3):
        warm = [seconds(run, 1, device) for run in contenders.values()]
    calls = max(1, math.ceil(TURN / min(warm)))

    order = list(contenders)
    draw = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    began = time.perf_counter()
    while len(times[order[0]]) < LEAST_ROUNDS or time.perf_counter() - began < limit:
        draw.shuffle(order)
        for name in order:
            time.sleep(PAUSE)
            times[name].append(seconds(contenders[name], calls, device))
    return times, calls


def seconds(run: Run, calls: int, device: str) -> float:
    """How long one call takes, the mean of `calls`; the GPU is idle before and after."""
    wait_for_gpu(device)
    began = time.perf_counter()
    for _ in range(calls):
        run()
    wait_for_gpu(device)
    return (time.perf_counter() - began) / calls


def wait_for_gpu(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def matmul_rate(device: str, size: int = 8192) -> float:
    """FLOP a second of a bfloat16 matrix product, the best of five turns. `share_of_product` is
    a share of it; MFU, in a run's log, is a share of the data sheet's rate."""
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    seconds(lambda: a @ a, 10, device)
    best = min(seconds(lambda: a @ a, 10, device) for _ in range(5))
    return 2 * size**3 / best


def summary(times: dict[str, list[float]], batch: int) -> dict:
    """Medians and quartiles of all contenders; the first one's speed over that of the fastest other
    one, as a ratio of medians, with its 95 % interval.

    The interval is a bootstrap: it draws as many rounds again, with replacement, and takes the
    ratio of those. Another peer may be the fastest in each draw.
    """
    ours, *peers = times
    quartiles = {name: np.quantile(values, (0.25, 0.5, 0.75)) for name, values in times.items()}
    median = {name: float(middle) for name, (_, middle, _) in quartiles.items()}
    fastest = min(peers, key=median.get)

    measured = np.array(list(times.values()))  # (contenders, rounds)
    count = measured.shape[1]
    drawn = np.random.default_rng(0).integers(count, size=(DRAWS, count))
    medians = np.median(measured[:, drawn], -1)  # (contenders, DRAWS)
    low, high = np.quantile(medians[1:].min(0) / medians[0], (0.025, 0.975))

    milliseconds = {}
    for name, values in quartiles.items():
        milliseconds[name] = [round(1e3 * float(value), 4) for value in values]
    return {
        "milliseconds_q1_median_q3": milliseconds,
        "images_per_second": {name: round(batch / value, 2) for name, value in median.items()},
        "fastest_peer": fastest,
        "ratio": round(median[fastest] / median[ours], 3),
        "ratio_95_percent": [round(float(low), 3), round(float(high), 3)],
        "rounds": count,
    }


# The command


def arguments(doc: str, precisions: list[str]) -> argparse.Namespace:
    """The command line of forward.py and of step.py."""
    modes = ["eager", "compiled"]
    parser = record.parser(doc)
    parser.add_argument("--models", nargs="+", default=["Ti/16", "S/16", "B/16", "cifar10"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--precisions", nargs="+", default=precisions, choices=precisions)
    parser.add_argument("--modes", nargs="+", default=modes, choices=modes)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    add_row_arguments(parser)
    return parser.parse_args()


def add_row_arguments(parser: argparse.ArgumentParser) -> None:
    """How long each row is measured, and where the rows are written."""
    at_least = f"{LEAST_ROUNDS} rounds are made in any case"
    parser.add_argument("--seconds-per-row", type=float, default=10, help=at_least)
    parser.add_argument("--output", type=Path, help="a JSON file, written after every row")


def compare(doc: str, work: Work, train: bool, precisions: list[str]) -> None:
    """Time `work` for every row that the command line asks for; show and write the results."""
    options = arguments(doc, precisions)
    result = {**about(options.device, doc), "results": []}
    for name in options.models:
        # Build and compare on the CPU: a GPU's convolutions round to TF32.
        c = config(name)
        models = stacks(c, options.peers)
        same_work(models, torch.randn(2, 3, *c.image))
        models = {library: model.to(options.device) for library, model in models.items()}

        for mode, batch, precision in product(options.modes, options.batches, options.precisions):
            # Prepare what is timed
            torch.compiler.reset()
            images = torch.randn(batch, 3, *c.image, device=options.device)
            if precision == "bfloat16":
                images = images.bfloat16()
            contenders = {}
            for library, model in models.items():
                model = ready(model, train, precision, mode == "compiled")
                contenders[library] = work(model, images, precision)

            # Time it
            times, calls = rounds(contenders, options.device, options.seconds_per_row)

            # Write it down
            row = {"model": name, "batch": batch, "precision": precision, "mode": mode}
            row |= {"calls_a_turn": calls, **summary(times, batch)}
            if "bfloat16_matmul_flop_per_second" in result:
                row["share_of_product"] = share_of_product(
                    row, c, train, result["bfloat16_matmul_flop_per_second"]
                )
            add_row(result, row, options.output)
            print(
                f"{name} {batch} {precision} {mode}: {ratio_of(row)} times {row['fastest_peer']}",
                flush=True,
            )
    show(result["results"])


def ready(model: nn.Module, train: bool, precision: str, compiled: bool) -> nn.Module:
    """A copy of the model for one row, compiled for the row's shapes alone."""
    model = deepcopy(model).train(train)
    if precision == "bfloat16":
        model = model.bfloat16()
    if compiled:
        return torch.compile(model, dynamic=False)
    return model


def share_of_product(row: dict, c: ModelConfig, train: bool, rate: float) -> dict[str, float]:
    """The model's operations a second of every library, whether it does all of them or fewer, as a
    share of what a plain product reaches."""
    flop = 2 * cost(c).macs
    if train:
        flop *= 3  # the backward pass costs two forward passes
    return {
        library: round(flop * speed / rate, 4)
        for library, speed in row["images_per_second"].items()
    }


def about(device: str, doc: str) -> dict:
    """What is measured, where, when and how: the beginning of a result."""
    facts = {
        **record.about(doc.partition("\n")[0], PACKAGES, device),
        # the benchmark's own part of the load at the end is about `threads`
        "load_at_start_and_end": [record.load(), record.load()],
    }
    facts["machine"] |= {
        "threads": torch.get_num_threads(),
        "dense_layers": str(matmul.in_use()),
    }
    if device.startswith("cuda"):
        facts["bfloat16_matmul_flop_per_second"] = round(matmul_rate(device))
    return facts


def add_row(result: dict, row: dict, output: Path | None) -> None:
    """Add a row to a result and write it, so that what was measured survives an interruption."""
    result["results"].append(row)
    result["load_at_start_and_end"][1] = record.load()
    record.write(result, output)


def ratio_of(row: dict) -> str:
    """ "1.080 (1.033 to 1.150)": the ratio and its interval."""
    low, high = row["ratio_95_percent"]
    return f"{row['ratio']:.3f} ({low:.3f} to {high:.3f})"


def show(rows: list[dict]) -> None:
    """Print the rows as a table."""
    libraries = list(rows[0]["images_per_second"])
    title = "milliseconds, median (interquartile range in % of it)"
    if "share_of_product" in rows[0]:
        title += ", share of a plain product"
    settings = ("model", "batch", "precision", "mode")
    table = Table(*settings, *libraries, "times the fastest peer (95 %)", "rounds", title=title)
    for row in rows:
        cells = [str(row[name]) for name in settings]
        for library in libraries:
            low, middle, high = row["milliseconds_q1_median_q3"][library]
            cell = f"{middle:.2f} ({100 * (high - low) / middle:.0f})"
            if "share_of_product" in row:
                cell += f" {row['share_of_product'][library]:.1%}"
            cells.append(cell)
        table.add_row(*cells, ratio_of(row), str(row["rounds"]))
    Console(width=170).print(table)
