"""Fused against plain attention, forward and training, on this machine: where `models.attention.fastest` draws its line.

    python benchmarks/attention.py [--device cuda] [--rounds 9]

Interleaved rounds; medians in milliseconds, forward / forward and backward.
"""

import argparse
import statistics
import time

import torch

from vitkit.models.attention import fused, plain

SHAPES = [
    (32, 3, 197, 64),
    (8, 12, 197, 64),
    (32, 4, 65, 32),
    (8, 12, 577, 64),
    (4, 12, 1025, 64),
]  # B, H, T, E


def timed(run, device: str) -> float:
    began = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    for dtype in (torch.float32, torch.bfloat16):
        for batch, heads, tokens, size in SHAPES:
            packed = torch.randn(batch, tokens, 3, heads, size, dtype=dtype, device=options.device)
            q, k, v = (t.transpose(1, 2).detach().requires_grad_() for t in packed.unbind(2))
            times = {(kernel, train): [] for kernel in (fused, plain) for train in (False, True)}
            for _ in range(options.rounds + 1):
                for kernel, train in times:

                    def run(kernel=kernel, train=train):
                        if train:
                            kernel(q, k, v).sum().backward()  # noqa: B023 run at once
                        else:
                            with torch.inference_mode():
                                kernel(q, k, v)  # noqa: B023

                    times[kernel, train].append(timed(run, options.device))
            shown = [
                f"{kernel.__name__} {statistics.median(times[kernel, False][1:]):8.2f} / "
                f"{statistics.median(times[kernel, True][1:]):8.2f}"
                for kernel in (fused, plain)
            ]
            print(
                f"{dtype!s:15} B {batch:3} H {heads:3} T {tokens:5} E {size}:  {'   '.join(shown)}"
            )


if __name__ == "__main__":
    main()
