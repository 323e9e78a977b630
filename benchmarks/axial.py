"""Axial attention in vitkit against the same numbers by einsum.

    python benchmarks/axial.py --output benchmarks/results/axial-cpu.json

Compares vitkit's axial attention, in a layer of Axial-ViT and in a unit of Axial-ResNet, with how
the equations are written: a projection each for queries, keys and values, logits of every row and
of every column, offsets looked up in a table for each pair, softmax, mixture, and the projection
of that. Both have the same weights and must give the same numbers before anything is timed.

Prints and writes a row for each case, forward pass and forward with backward pass: vitkit's speed
over einsum's, of medians, with its 95 % interval. Above 1 vitkit is faster.

Legend: B batch, C channels, (h, w) the grid, D width, H heads, E width of a head, Q queries and K
keys of a row or column.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import record
import torch
from side_by_side import Run, about, add_row, add_row_arguments, ratio_of, rounds, summary
from torch import Tensor, nn

from vitkit.models import Attention, create, named
from vitkit.models.ancestors.mixers import AxialBlock, AxialMixer

CASES = {  # batch, side of the grid, width
    "Axial-B/16": (8, 14, 768),
    "Axial-B/16 at 384": (2, 24, 768),
    "Axial-S/8 at 384": (1, 48, 384),
    "Axial-R50, stage 1": (2, 56, 64),
    "Axial-R50, stage 3": (8, 14, 256),
}
AlongAxis = Callable[[Attention, Tensor, str], Tensor]
"""(layer, (B, h, w, D), "row" or "column") -> (B, h, w, D)."""


def main() -> None:
    parser = record.parser(__doc__)
    add_row_arguments(parser)
    options = parser.parse_args()
    result = {**about("cpu", __doc__), "results": []}
    for name, (batch, side, width) in CASES.items():
        if "R50" in name:
            forms = resnet_unit(batch, side, width)
        else:
            forms = transformer_layer(batch, side, width)
        torch.testing.assert_close(forms["vitkit"](), forms["einsum"](), atol=1e-4, rtol=1e-4)

        for work, wrap in WORK.items():
            runs = {form: wrap(run) for form, run in forms.items()}
            times, calls = rounds(runs, "cpu", options.seconds_per_row)
            row = {"case": name, "batch": batch, "work": work, "calls_a_turn": calls}
            row |= summary(times, batch)
            add_row(result, row, options.output)
            print(f"{name}, {work}: {ratio_of(row)} times einsum", flush=True)


def forward_only(run: Run) -> Run:
    """The forward pass, in inference mode."""
    return torch.inference_mode()(run)


def with_backward(run: Run) -> Run:
    """Forward and backward pass."""

    def both() -> None:
        run().sum().backward()

    return both


WORK = {"forward": forward_only, "forward and backward": with_backward}


# The two forms of each case


def transformer_layer(batch: int, side: int, width: int) -> dict[str, Run]:
    """The attention of a layer of Axial-ViT, along rows, then along columns, without its MLPs."""
    config = named("Axial-B/16", depth=1, image=side * 16)
    config = replace(config, width=width, mlp=4 * width, heads=width // 64)
    layer = create(config, seed=0).eval().blocks[0]
    x = numbers(batch, side, width)
    return {
        "vitkit": partial(both_axes, layer, x, fused_attention),
        "einsum": partial(both_axes, layer, x, einsum_attention),
    }


def resnet_unit(batch: int, side: int, width: int) -> dict[str, Run]:
    """What a unit of Axial-ResNet has in place of its 3 x 3 convolution."""
    mixer = initialised(AxialMixer(width, 1, (side, side)))
    image = numbers(batch, side, width).permute(0, 3, 1, 2).contiguous()  # (B, C, h, w)
    return {"vitkit": partial(mixer, image), "einsum": partial(einsum_mixer, mixer, image)}


def numbers(batch: int, side: int, width: int) -> Tensor:
    """Random states of all positions of a grid: (B, h, w, D)."""
    return torch.randn(batch, side, side, width, generator=torch.Generator().manual_seed(0))


def initialised(module: nn.Module) -> nn.Module:
    """The module, its parameters filled as `create` fills those of a model."""
    for part in module.modules():
        if hasattr(part, "init_weights"):
            part.init_weights()
    return module.eval()


def both_axes(layer: AxialBlock, x: Tensor, attend: AlongAxis) -> Tensor:
    """(B, h, w, D) -> (B, h, w, D): along rows, then along columns."""
    x = attend(layer.row.attention, x, "row")
    return attend(layer.column.attention, x, "column")


def fused_attention(layer: Attention, x: Tensor, axis: str) -> Tensor:
    """What vitkit does along an axis."""
    if axis == "row":
        return layer(x)
    return layer(x.transpose(1, 2)).transpose(1, 2)


def einsum_mixer(mixer: AxialMixer, x: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, C, h, w): what AxialMixer computes with a stride of 1."""
    x = x.permute(0, 2, 3, 1)
    x = einsum_attention(mixer.row, x, "row", mixer.row_offsets.table)
    x = einsum_attention(mixer.column, x, "column", mixer.column_offsets.table)
    return x.permute(0, 3, 1, 2)


def einsum_attention(layer: Attention, x: Tensor, axis: str, table: Tensor | None = None) -> Tensor:
    """(B, h, w, D) -> (B, h, w, D), with a table of offsets, (1, 2 · side - 1, E), if there is one.

    In the subscripts, n is the head, e the width of a head, q a query and k a key.
    """
    if axis == "row":
        pairs, offset_pairs, mixture = (
            "bhqne,bhkne->bhnqk",
            "bhqne,qke->bhnqk",
            "bhnqk,bhkne->bhqne",
        )
        side = x.shape[2]
    else:
        pairs, offset_pairs, mixture = (
            "bqwne,bkwne->bwnqk",
            "bqwne,qke->bwnqk",
            "bwnqk,bkwne->bqwne",
        )
        side = x.shape[1]

    # Eq. 5: queries, keys and values
    kernels = layer.qkv.weight.unflatten(0, (3, layer.heads, -1))  # (3, H, E, D)
    biases = layer.qkv.bias.unflatten(0, (3, layer.heads, -1))  # (3, H, E)
    q, k, v = (torch.einsum("bhwd,ned->bhwne", x, kernels[i]) + biases[i] for i in range(3))

    # Eq. 6: attention weights
    logits = torch.einsum(pairs, q, k)
    if table is not None:
        position = torch.arange(side)
        offsets = table[0][position[:, None] - position + side - 1]  # (Q, K, E), query minus key
        logits = logits + torch.einsum(offset_pairs, q, offsets)
    weights = (logits * q.shape[-1] ** -0.5).softmax(-1)

    # Eq. 7 and 8: the mixture, through U_msa
    mixed = torch.einsum(mixture, weights, v)
    out = layer.out.weight.unflatten(1, (layer.heads, -1))  # (D, H, E)
    return torch.einsum("bhwne,dne->bhwd", mixed, out) + layer.out.bias


if __name__ == "__main__":
    main()
