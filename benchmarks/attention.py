"""Attention by one fused kernel, and by two plain matrix products.

    python benchmarks/attention.py [--device cuda] [--rounds 9]

Compares the two ways in which vitkit computes attention, for several shapes, in float32 and
bfloat16. `models.attention.unfused_is_faster` decides between them by what this measures.

Prints, and writes, a line for each shape and precision: for both ways the median over the rounds, in
milliseconds, of the forward pass and of forward and backward pass together.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from record import about, parser, write
from torch import Tensor

from vitkit.models.attention import fused, unfused

PACKAGES = ("vitkit", "torch")
SHAPES = [  # B batch, H heads, T tokens, E width of a head
    (32, 3, 197, 64),
    (8, 12, 197, 64),
    (32, 4, 65, 32),
    (8, 12, 577, 64),
    (4, 12, 1025, 64),
]
Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]


def main() -> None:
    options = arguments()
    result = {**about(__doc__, PACKAGES, options.device), "results": []}
    shapes = [shape for shape in SHAPES if not options.tokens or shape[2] in options.tokens]
    for dtype in (torch.float32, torch.bfloat16):
        for shape in shapes:
            q, k, v = queries_keys_values(shape, dtype, options.device)
            medians = measure(q, k, v, options.rounds)
            batch, heads, tokens, width = shape
            line = f"{dtype!s:15} B {batch:3} H {heads:3} T {tokens:5} E {width}:"
            for name, (of_forward, of_both) in medians.items():
                line += f"   {name} {of_forward:8.2f} / {of_both:8.2f}"
            print(line)
            shape_of_row = {"dtype": str(dtype), "batch_heads_tokens_width": shape}
            result["results"].append(shape_of_row | {"milliseconds": medians})
            write(result, options.output)


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--tokens", type=int, nargs="*", help="only shapes of so many tokens")
    options.add_argument("--output", type=Path, help="file for the results, JSON")
    return options.parse_args()


def queries_keys_values(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, H, T, E) three times, in memory as in a model: all heads of a token side by side."""
    batch, heads, tokens, width = shape
    packed = torch.randn(batch, tokens, 3, heads, width, dtype=dtype, device=device)
    q, k, v = (t.transpose(1, 2).detach().requires_grad_() for t in packed.unbind(2))
    return q, k, v


def measure(q: Tensor, k: Tensor, v: Tensor, rounds: int) -> dict[str, tuple[float, float]]:
    """The median milliseconds of each kernel: forward, and forward and backward.

    In a round, every piece of work has one turn. The first round warms up and does not count.
    """
    device = q.device.type
    times = {(kernel, work): [] for kernel in (fused, unfused) for work in (forward, both)}
    for _ in range(rounds + 1):
        for kernel, work in times:
            times[kernel, work].append(milliseconds(work, kernel, q, k, v, device))

    medians = {}
    for kernel in (fused, unfused):
        of_forward = statistics.median(times[kernel, forward][1:])
        of_both = statistics.median(times[kernel, both][1:])
        medians[kernel.__name__] = (of_forward, of_both)
    return medians


@torch.inference_mode()
def forward(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> None:
    """The forward pass alone."""
    kernel(q, k, v)


def both(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Forward and backward pass."""
    kernel(q, k, v).sum().backward()


def milliseconds(
    work: Callable, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, device: str
) -> float:
    """How long one piece of work takes."""
    began = time.perf_counter()
    work(kernel, q, k, v)
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
