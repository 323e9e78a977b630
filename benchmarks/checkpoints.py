"""What checkpoints cost a run of many ranks: plans, headers and checksums, before and now.

    python benchmarks/checkpoints.py --output FILE

Ranks are simulated one after the other in one process, by PyTorch's fake process group: each knows
which shards it has, and nothing is sent. The state is a ViT-g/14's with Adam and an average: every
tensor has its name and its rows, of which FSDP gives each rank a share, but one column, so that there
are as many pieces as in a real run and few bytes. Files are real. Not in it: the network, a file system
that many machines share, and writing a real state's bytes.

- before: torch.distributed.checkpoint, called as vitkit did: rank 0 plans for all ranks at every
  save; every rank reads the headers of all files twice at every load.
- now: a rank writes its shards to its own file (training/state/tensors.py); at a load each header is
  read by one rank, and all get what it says.

For each number of ranks:

- save: seconds from a rank's copies to a complete checkpoint, on rank 0, which has most to do;
- copied: seconds in which the training waits for the copies of its shards;
- stalled: seconds that steps of a training lose while rank 0 writes in a thread beside them, the copies
  with them: the time of all steps until the checkpoint was complete, less what as many take alone. The
  steps are those of a small model, which the CPU is as busy with as with launching a GPU's kernels;
- load: seconds of one rank from the folder to its filled shards; what it waits for others is not in it;
- opened: how often all ranks together open a file of tensors at a load.

    python benchmarks/checkpoints.py --processes 2 4 --output FILE

Real ranks instead, which meet by gloo and train a ViT-Ti/16 under FSDP: seconds that `State.save` takes of
the training, and seconds that it takes together with what the next steps lose to the writing, in turns with
as many steps alone (medians).
"""

import argparse
import json
import multiprocessing
import os
import pickle
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import record
import safetensors
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from vitkit.models import create, vit
from vitkit.objectives import Supervised
from vitkit.system.processes.ranks import process_group, shard
from vitkit.system.storage.files import sync
from vitkit.training.state import tensors as state_tensors
from vitkit.training.state.checkpoints import check_file, checksum, complete, new_folder, read_facts
from vitkit.training.state.state import State

PACKAGES = ("torch", "safetensors", "vitkit")
FACTS = {"step": 1}  # of a checkpoint: its state.json
STEPS = 4  # of real ranks, beside a save
ROUNDS = 7
OF_STEP = 20  # steps alone from which the time of one is taken


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--model", default="g/14")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 64, 512])
    parser.add_argument("--processes", type=int, nargs="*", default=[])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    if options.processes:
        return real(options)

    shapes = shapes_of_state(options.model)
    result = record.about(__doc__, PACKAGES)
    result |= {"model": options.model, "tensors": len(shapes), "results": []}
    for ranks in options.ranks:
        for way in (Planned, Own):
            with tempfile.TemporaryDirectory() as folder:
                row = {
                    "ranks": ranks,
                    "way": way.name,
                    **measured(way, shapes, ranks, Path(folder)),
                }
            result["results"].append(row)
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            record.write(result, options.output)
    return result


# Real ranks


def real(options: argparse.Namespace) -> dict:
    """What the training of some real processes waits for."""
    result = {**record.about(__doc__, PACKAGES), "results": []}
    for ranks in options.processes:
        with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(ranks)}
            os.environ["MASTER_PORT"] = str(free.getsockname()[1])
            free.close()
            fork = multiprocessing.get_context("fork")
            run_dir = Path(folder)
            processes = [fork.Process(target=train, args=(r, run_dir)) for r in range(ranks)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            assert not any(process.exitcode for process in processes), "a rank has failed"
            row = {"processes": ranks, **json.loads((run_dir / "row.json").read_text())}
        result["results"].append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        record.write(result, options.output)
    return result


def train(rank: int, run_dir: Path) -> None:
    """A rank that trains, and saves now and then; rank 0 writes how long that took."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    with process_group("cpu"):
        objective = Supervised()
        learner = objective.learner(create(vit("Ti/16", classes=10), seed=0))
        learner = shard(learner, list(learner.model.blocks), "float32")
        state = State(learner, torch.optim.AdamW(learner.parameters(), fused=True))
        images = torch.randn(2, 3, 224, 224)
        labels = torch.arange(2)

        def steps() -> None:
            for _ in range(STEPS):
                learner(images, labels, labels).backward()
                state.optimizer.step()
                state.optimizer.zero_grad()

        steps()
        alone, saving, with_saving = [], [], []
        for state.step in range(1, ROUNDS + 1):
            alone.append(timed(steps))
            saving.append(timed(lambda: state.save(run_dir, keep=1)))
            with_saving.append(saving[-1] + timed(steps))
            state.wait()
        if rank == 0:
            lost = statistics.median(with_saving) - statistics.median(alone)
            row = {
                "steps": STEPS,
                "alone": round(statistics.median(alone), 3),
                "saved": round(statistics.median(saving), 3),
                "stalled": round(lost, 3),
            }
            (run_dir / "row.json").write_text(json.dumps(row))


# Simulated ranks


def shapes_of_state(model: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a run's state, with their rows and one column."""
    with torch.device("meta"):
        network = create(vit(model, classes=1000))
    shapes = {}
    for name, tensor in network.named_parameters():
        shape = (tensor.shape[0],)
        if tensor.ndim > 1:
            shape = (tensor.shape[0], 1)
        for part in ("learner.model", "average.model", "optimizer.exp_avg.model"):
            shapes[f"{part}.{name}"] = shape
        shapes[f"optimizer.exp_avg_sq.model.{name}"] = shape
        shapes[f"optimizer.step.model.{name}"] = ()
    return shapes


@contextmanager
def rank_of(rank: int, ranks: int) -> Iterator:
    """This process as a rank of so many: yields their mesh."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        # Named by its rank: PyTorch takes a mesh of the same name for the one that it has seen
        yield init_device_mesh("cpu", (ranks,), mesh_dim_names=(f"rank {rank}",))
    finally:
        dist.destroy_process_group()


def shards(mesh, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The tensors of a state as FSDP holds them on this rank."""
    tensors = {}
    place = mesh.get_coordinate()[0]
    for name, shape in shapes.items():
        if not shape:
            tensors[name] = torch.zeros(shape)
            continue
        most = -(-shape[0] // mesh.size())
        rows = max(min(most, shape[0] - most * place), 0)
        local = torch.full((rows, *shape[1:]), float(place))
        tensors[name] = DTensor.from_local(
            local,
            mesh,
            [Shard(0)],
            run_check=False,
            shape=torch.Size(shape),
            stride=(1,) * len(shape),
        )
    return tensors


def measured(way: type["Planned | Own"], shapes: dict, ranks: int, folder: Path) -> dict:
    """What a save and a load of so many ranks cost, in one of the two ways."""
    # A save. What the other ranks do in it is done between what rank 0 does, and not timed
    save = way(new_folder(folder, 1))
    for rank in range(1, ranks):
        with rank_of(rank, ranks) as mesh:
            save.begin_other(shards(mesh, shapes))
    with rank_of(0, ranks) as mesh:
        tensors = shards(mesh, shapes)
        began = time.perf_counter()
        copies = save.copied(tensors)
        copied = time.perf_counter() - began
        planning, lost_by_planning = beside_training(lambda: save.begin(copies))
        save.end_others()
        writing, lost_by_writing = beside_training(save.end)

    # A load, by the second rank
    (checkpoint,) = (folder / "checkpoints").glob("step-*")
    from_others = way.others_at_load(checkpoint, ranks)
    with rank_of(1, ranks) as mesh, counted_opens() as opened:
        tensors = shards(mesh, shapes)
        local = [tensor.to_local() for tensor in tensors.values() if isinstance(tensor, DTensor)]
        expected = [tensor.clone() for tensor in local]
        torch._foreach_zero_(local)
        load = timed(lambda: way.load(checkpoint, tensors, ranks, from_others))
        assert all(map(torch.equal, local, expected))
    return {
        "save": round(copied + planning + writing, 3),
        "copied": round(copied, 3),
        "stalled": round(copied + lost_by_planning + lost_by_writing, 3),
        "load": round(load, 3),
        "opened": opened[0] * ranks,
    }


def beside_training(act: Callable[[], None]) -> tuple[float, float]:
    """The seconds that an act takes in a thread beside the steps of a training, and those that the
    steps lose by it."""
    step = training_step()
    alone = [timed(step) for _ in range(OF_STEP)]
    failures = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    began = time.perf_counter()
    thread.start()
    steps = 0
    while thread.is_alive():
        step()
        steps += 1
    seconds = time.perf_counter() - began
    if failures:
        raise failures[0]
    alone += [timed(step) for _ in range(OF_STEP)]
    return seconds, max(seconds - steps * statistics.median(alone), 0.0)


def training_step() -> Callable[[], None]:
    """A step of many small operations, as a GPU's are launched."""
    layers = [nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(40)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    rows = torch.randn(8, 32)

    def step() -> None:
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


@contextmanager
def counted_opens() -> Iterator[list[int]]:
    """Counts how often this rank opens a file of tensors."""
    opened = [0]
    real = safetensors.safe_open

    def safe_open(*arguments, **settings):
        opened[0] += 1
        return real(*arguments, **settings)

    safetensors.safe_open = state_tensors.safe_open = safe_open
    try:
        yield opened
    finally:
        safetensors.safe_open = state_tensors.safe_open = real


class Planned:
    """torch.distributed.checkpoint's way, as `dcp.save` and `dcp.load` go about it."""

    name = "before"

    def __init__(self, folder: Path):
        self.folder = folder
        self.writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        self.planners: list[DefaultSavePlanner] = []
        self.sent: list[bytes] = []
        """Between rank 0 and the others, as bytes: first their plans, then what rank 0 made of
        them, then what they wrote."""

    def copied(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the training waits for."""
        return DefaultStager(StagingOptions(False, False, False, False)).stage(tensors)

    def begin_other(self, tensors: dict[str, Tensor]) -> None:
        """Another rank plans."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(tensors, is_coordinator=False)
        self.planners.append(planner)
        self.sent.append(pickle.dumps(planner.create_local_plan()))

    def begin(self, tensors: dict[str, Tensor]) -> None:
        """Rank 0 plans for all, and writes its file."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(tensors, is_coordinator=True)
        plans = [planner.create_local_plan(), *map(pickle.loads, self.sent)]
        plans, self.metadata = planner.create_global_plan(plans)
        plans = self.writer.prepare_global_plan(plans)
        self.sent = [pickle.dumps(plan) for plan in plans[1:]]
        own = self.writer.write_data(planner.finish_plan(plans[0]), planner)
        self.written = [own.value()]

    def end_others(self) -> None:
        """The other ranks write what they were told to, and make the checksums."""
        plans = map(pickle.loads, self.sent)
        sent = []
        for planner, plan in zip(self.planners, plans, strict=True):
            written = self.writer.write_data(planner.finish_plan(plan), planner)
            sent.append(pickle.dumps(written.value()))
        self.sent = sent
        self.checksums = checksums_of(sorted(self.folder.glob("*.safetensors"))[1:])

    def end(self) -> None:
        """Rank 0 makes the folder a checkpoint, when all files are on the disk."""
        self.writer.finish(self.metadata, self.written + list(map(pickle.loads, self.sent)))
        own = sorted(self.folder.glob("*.safetensors"))[:1]
        checksums = checksums_of(own) | self.checksums
        for name in checksums:
            sync(self.folder / name)
        complete(self.folder, FACTS, checksums)

    @staticmethod
    def others_at_load(checkpoint: Path, ranks: int) -> list[bytes]:
        """Nothing that a rank would wait for."""
        return []

    @staticmethod
    def load(
        checkpoint: Path, tensors: dict[str, Tensor], ranks: int, from_others: list[bytes]
    ) -> None:
        """Load this rank's shards, with the planning of rank 0 for all."""
        facts = read_facts(checkpoint)
        for name in sorted(facts["sha256"])[1::ranks]:
            check_file(checkpoint / name, facts["sha256"][name])
        reader = HuggingFaceStorageReader(str(checkpoint))
        reader.read_metadata()  # for the names and shapes
        metadata = reader.read_metadata()  # in dcp.load
        planner = DefaultLoadPlanner()
        planner.set_up_planner(tensors, metadata, is_coordinator=False)
        reader.set_up_storage_reader(metadata, is_coordinator=False)
        plan = reader.prepare_local_plan(planner.create_local_plan())

        # Rank 0 gets all plans, which are about as large as this one, and sends them back
        sent = pickle.dumps(plan)
        plans = planner.create_global_plan([pickle.loads(sent) for _ in range(ranks)])
        for each in reader.prepare_global_plan(plans):
            pickle.dumps(each)
        reader.read_data(planner.finish_plan(plan), planner).wait()


class Own:
    """vitkit's way, as `State.save` and `State.load` go about it."""

    name = "now"

    def __init__(self, folder: Path):
        self.folder = folder
        self.sent: list[bytes] = []
        """What the other ranks tell rank 0."""

    def copied(self, tensors: dict[str, Tensor]) -> state_tensors.PartsToWrite:
        """What the training waits for."""
        return state_tensors.copied(state_tensors.parts_to_write(tensors))

    def begin_other(self, tensors: dict[str, Tensor]) -> None:
        """Another rank writes its file."""
        path = state_tensors.write(self.folder, self.copied(tensors))
        self.sent.append(pickle.dumps(checksums_of([path])))

    def begin(self, parts: state_tensors.PartsToWrite) -> None:
        """Rank 0 writes its own."""
        path = state_tensors.write(self.folder, parts)
        self.checksums = checksums_of([path])

    def end_others(self) -> None:
        """They are done."""

    def end(self) -> None:
        """Rank 0 makes the folder a checkpoint."""
        for checksums in map(pickle.loads, self.sent):
            self.checksums |= checksums
        complete(self.folder, FACTS, self.checksums)

    @staticmethod
    def others_at_load(checkpoint: Path, ranks: int) -> list[bytes]:
        """What each of the other ranks read in the header of its file."""
        files = sorted(checkpoint.glob("*.safetensors"))
        return [pickle.dumps([state_tensors.pieces_of(file)]) for file in files[:1] + files[2:]]

    @staticmethod
    def load(
        checkpoint: Path, tensors: dict[str, Tensor], ranks: int, from_others: list[bytes]
    ) -> None:
        """Load this rank's shards."""
        facts = read_facts(checkpoint)
        own = []
        for name in sorted(facts["sha256"])[1::ranks]:
            check_file(checkpoint / name, facts["sha256"][name])
            own.append(state_tensors.pieces_of(checkpoint / name))
        pickle.dumps(own)
        pieces = state_tensors.collected([own, *map(pickle.loads, from_others)])
        copies = state_tensors.copies_to_make(tensors, pieces)
        state_tensors.read(checkpoint, tensors, copies)


def checksums_of(files: list[Path]) -> dict[str, str]:
    return {path.name: checksum(path) for path in files}


if __name__ == "__main__":
    main()
