"""Axial attention, as layers of Axial-ViT and in a ResNet's units, against the same numbers by plain einsum, interleaved.

    python benchmarks/axial.py --output benchmarks/results/axial-cpu.json

The einsum form is how the equations are written: a projection each for queries, keys and values, logits of every row and of
every column, offsets looked up in a table for each pair, softmax, mixture, and the projection of that. Both have the same
weights and must give the same numbers before anything is timed.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from side_by_side import about, rounds, summary, write
from torch import Tensor, nn

from vitkit.models import create, named
from vitkit.models.attention import Attention
from vitkit.models.axial import AxialBlock, AxialMixer

CASES = {  # batch, places along a side, width, layers' attention or a ResNet's unit with offsets
    "Axial-B/16": (8, 14, 768),
    "Axial-B/16 at 384": (2, 24, 768),
    "Axial-S/8 at 384": (1, 48, 384),
    "Axial-R50, stage 1": (2, 56, 64),
    "Axial-R50, stage 3": (8, 14, 256),
}


def einsum_attention(layer: Attention, x: Tensor, axis: str, table: Tensor | None = None) -> Tensor:
    """(B, h, w, D) -> (B, h, w, D): attention along "row" or "column", with the table of offsets where there is one."""
    kernels, biases = (
        t.unflatten(0, (3, layer.heads, -1)) for t in (layer.qkv.weight, layer.qkv.bias)
    )  # (3, H, E, D)
    q, k, v = (torch.einsum("bhwd,ned->bhwne", x, kernels[i]) + biases[i] for i in range(3))
    pairs, mixes = (
        ("bhqne,bhkne->bhnqk", "bhnqk,bhkne->bhqne")
        if axis == "row"
        else ("bqwne,bkwne->bwnqk", "bwnqk,bkwne->bqwne")
    )
    logits = torch.einsum(pairs, q, k)
    if table is not None:
        side = x.shape[2 if axis == "row" else 1]
        place = torch.arange(side)
        offsets = table[0][place[:, None] - place + side - 1]  # (q, k, E), query minus key
        logits = logits + torch.einsum(
            "bhqne,qke->bhnqk" if axis == "row" else "bqwne,qke->bwnqk", q, offsets
        )
    weights = (logits * q.shape[-1] ** -0.5).softmax(-1)
    mixed, out = torch.einsum(mixes, weights, v), layer.out.weight.unflatten(1, (layer.heads, -1))
    return torch.einsum("bhwne,dne->bhwd", mixed, out) + layer.out.bias


def both_axes(
    layer: AxialBlock, x: Tensor, how: Callable[[Attention, Tensor, str], Tensor]
) -> Tensor:
    """(B, h, w, D) -> the same: the attention of a layer along rows, then along columns, without its MLPs."""
    return how(layer.column.attention, how(layer.row.attention, x, "row"), "column")


def fused_attention(layer: Attention, x: Tensor, axis: str) -> Tensor:
    """What AxialBlock does along an axis."""
    return layer(x) if axis == "row" else layer(x.transpose(1, 2)).transpose(1, 2)


def einsum_mixer(mixer: AxialMixer, x: Tensor) -> Tensor:
    """(B, C, h, w) -> the same: what AxialMixer computes with a stride of 1."""
    x = einsum_attention(mixer.row, x.permute(0, 2, 3, 1), "row", mixer.row_offsets.table)
    return einsum_attention(mixer.column, x, "column", mixer.column_offsets.table).permute(
        0, 3, 1, 2
    )


def contenders(name: str) -> tuple[int, dict[str, Callable[[], Tensor]]]:
    """The batch, and both forms of one case on random images."""
    batch, side, width = CASES[name]
    x = torch.randn(batch, side, side, width, generator=torch.Generator().manual_seed(0))
    if "R50" not in name:
        config = replace(
            named("Axial-B/16", depth=1, image=side * 16),
            width=width,
            mlp=4 * width,
            heads=width // 64,
        )
        layer = create(config, seed=0).eval().blocks[0]
        forms = {"vitkit": fused_attention, "einsum": einsum_attention}
        return batch, {name: partial(both_axes, layer, x, how) for name, how in forms.items()}
    mixer, image = started(AxialMixer(width, 1, (side, side))), x.permute(0, 3, 1, 2).contiguous()
    return batch, {"vitkit": partial(mixer, image), "einsum": partial(einsum_mixer, mixer, image)}


def started(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if hasattr(part, "init_weights"):
            part.init_weights()
    return module.eval()


def graded(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A pass forward and backward."""

    def both() -> Tensor:
        out = run()
        out.sum().backward()
        return out

    return both


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds-per-row",
        type=float,
        default=10,
        help="at least five rounds are made in any case",
    )
    parser.add_argument(
        "--output", type=Path, help="a JSON file for the results, written after every row"
    )
    options = parser.parse_args()
    result = {**about("cpu", __doc__), "results": []}
    for name in CASES:
        batch, forms = contenders(name)
        torch.testing.assert_close(forms["vitkit"](), forms["einsum"](), atol=1e-4, rtol=1e-4)
        for work in ("forward", "forward and backward"):
            runs = {
                key: torch.inference_mode()(run) if work == "forward" else graded(run)
                for key, run in forms.items()
            }
            times, calls = rounds(runs, "cpu", options.seconds_per_row)
            row = {
                "case": name,
                "batch": batch,
                "work": work,
                "calls_a_turn": calls,
                **summary(times, batch),
            }
            result["results"].append(row)
            write(result, options.output)
            print(
                f"{name}, {work}: {row['ratio']:.3f} ({' to '.join(map(str, row['ratio_95_percent']))}) times einsum",
                flush=True,
            )


if __name__ == "__main__":
    main()
