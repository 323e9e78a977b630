"""What FSDP2 costs where it has nothing to share.

    python benchmarks/sharding.py --device cuda --output FILE

Compares training steps of one process: plain ones, and ones that are sharded by FSDP2 as a run of
a single rank. Both have Adam, the same weights and the same images; with --compiled the blocks are
compiled, with --precision bfloat16 they run under autocast. Both must give the same loss first.

Prints and writes a row for each model and batch: the speed of sharded steps over that of plain
ones, of medians, with its 95 % interval. 0.95 is a cost of 5 %.
"""

import argparse
from itertools import product

import record
import torch
import torch.distributed as dist
from side_by_side import Run, about, add_row, add_row_arguments, ratio_of, rounds, summary
from torch import Tensor, nn

from vitkit.models import create, vit
from vitkit.objectives import Supervised
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import shard


def main() -> None:
    options = arguments()
    result = {**about(options.device, __doc__), "results": []}
    for name, batch in product(options.models, options.batches):
        # The same step twice: `shard` does nothing until there is a process group.
        torch.compiler.reset()
        images = torch.randn(batch, 3, 224, 224, device=options.device)
        plain = step(name, images, options)
        begin_process_group(options.device)
        steps = {"sharded": step(name, images, options), "plain": plain}
        losses = [float(run()) for run in steps.values()]
        assert abs(losses[0] - losses[1]) < 1e-3, losses

        times, calls = rounds(steps, options.device, options.seconds_per_row)
        dist.destroy_process_group()

        row = {"model": name, "batch": batch}
        row |= {"precision": options.precision, "compiled": options.compiled}
        row |= {"calls_a_turn": calls, **summary(times, batch)}
        add_row(result, row, options.output)
        print(f"{name} {batch}: {ratio_of(row)}")


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["Ti/16", "S/16", "B/16", "L/16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    add_row_arguments(parser)
    return parser.parse_args()


def begin_process_group(device: str) -> None:
    """Make this process the only rank of a run."""
    backend = "gloo"
    if device.startswith("cuda"):
        backend = "nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def step(name: str, images: Tensor, options: argparse.Namespace) -> Run:
    """One training step of a model, sharded if this process is in a group."""
    model = create(vit(name, classes=1000), images.device, seed=0).train()
    blocks = list(model.blocks)
    if options.compiled:
        for block in blocks:
            block.compile()
    learner: nn.Module = shard(Supervised().learner(model), blocks, options.precision)
    optimizer = torch.optim.AdamW(learner.parameters(), 1e-4, fused=True)
    labels = torch.arange(len(images), device=images.device) % 1000
    keys = torch.zeros(len(images), dtype=torch.int64, device=images.device)

    def run() -> Tensor:
        with autocast(images.device, options.precision):
            loss = learner(images, labels, keys)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return run


if __name__ == "__main__":
    main()
