"""What FSDP2 costs where it has nothing to share: training steps of one process, plain and as a run of one rank, interleaved.

    python benchmarks/sharding.py --device cuda --output FILE

Both have the blocks compiled with --compiled, bfloat16 autocast with --precision bfloat16, Adam, and the same weights and
images. The ratio is the speed of sharded steps over that of plain ones, of medians: 0.95 is a cost of 5 %.
"""

import argparse
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from side_by_side import about, rounds, summary, write
from torch import Tensor, nn

from vitkit.models import create, vit
from vitkit.objectives import Supervised
from vitkit.system.machine import autocast
from vitkit.system.ranks import shard


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["Ti/16", "S/16", "B/16", "L/16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--seconds-per-row", type=float, default=10)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    backend = "nccl" if args.device.startswith("cuda") else "gloo"
    result = {**about(args.device, __doc__), "results": []}
    for name, batch in product(args.models, args.batches):
        torch.compiler.reset()
        images = torch.randn(batch, 3, 224, 224, device=args.device)
        plain = step(name, images, args)
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        steps = {"sharded": step(name, images, args), "plain": plain}
        losses = [float(run()) for run in steps.values()]
        assert abs(losses[0] - losses[1]) < 1e-3, losses
        times, calls = rounds(steps, args.device, args.seconds_per_row)
        dist.destroy_process_group()
        row = {
            "model": name,
            "batch": batch,
            "precision": args.precision,
            "compiled": args.compiled,
        }
        row |= {"calls_a_turn": calls, **summary(times, batch)}
        result["results"].append(row)
        write(result, args.output)
        print(
            f"{name} {batch}: {row['ratio']:.3f} ({row['ratio_95_percent'][0]:.3f} to {row['ratio_95_percent'][1]:.3f})"
        )


def step(name: str, images: Tensor, args: argparse.Namespace):
    """One training step of a model, sharded if this process is in a group."""
    learner = Supervised().learner(create(vit(name, classes=1000), images.device, seed=0).train())
    blocks = list(learner.model.blocks)
    if args.compiled:
        for block in blocks:
            block.compile()
    learner: nn.Module = shard(learner, blocks, args.precision)
    optimizer = torch.optim.AdamW(learner.parameters(), 1e-4, fused=True)
    labels = torch.arange(len(images), device=images.device) % 1000
    keys = torch.zeros(len(images), dtype=torch.int64, device=images.device)

    def run() -> Tensor:
        with autocast(images.device, args.precision):
            loss = learner(images, labels, keys)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return run


if __name__ == "__main__":
    main()
