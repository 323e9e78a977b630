"""The files of a checkpoint, written by some number of ranks and read by another. Most ranks are
simulated in one process, by PyTorch's fake process group, which knows its place and sends nothing."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from processes import together
from runs import FACTS
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from vitkit.models import create
from vitkit.recipes import resolve
from vitkit.system.processes.ranks import process_group, shard, world
from vitkit.training.state import state as state_module
from vitkit.training.state.checkpoints import checkpoints, checksum, complete, new_folder
from vitkit.training.state.state import State
from vitkit.training.state.tensors import (
    copied,
    copies_to_make,
    parts_to_write,
    pieces_of,
    read,
    whole_shape,
    write,
)

WHOLE = {
    "matrix": torch.arange(33.0 * 4).view(33, 4),
    "a vector of fewer rows than ranks": torch.arange(3.0),
    "kernel": torch.arange(7.0 * 8).view(7, 2, 2, 2),
    "count": torch.tensor(5.0),
    "buffer": torch.arange(6),
}
PLAIN = ("count", "buffer")  # every rank has all of them


@contextmanager
def rank_of(rank, meshes):
    """This process as one rank of a mesh, such as (2, 4): two replicas of four shards each."""
    size = 1
    for each in meshes:
        size *= each
    if size == 1:
        yield None
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        # Named by its rank: PyTorch takes a mesh of the same names for the one that it has seen
        names = tuple(f"axis {axis} of rank {rank}" for axis in range(len(meshes)))
        yield init_device_mesh("cpu", meshes, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


def sharded(mesh, whole):
    """Tensors as FSDP holds them on this rank."""
    if mesh is None:
        return dict(whole)
    placements = [Replicate()] * (mesh.ndim - 1) + [Shard(0)]
    tensors = {}
    for name, tensor in whole.items():
        if name in PLAIN:
            tensors[name] = tensor.clone()
            continue
        chunks = tensor.chunk(mesh.shape[-1])
        place = mesh.get_coordinate()[-1]
        local = tensor[:0]
        if place < len(chunks):
            local = chunks[place]
        shape = {"shape": tensor.shape, "stride": tensor.stride()}
        local = local.clone()
        tensors[name] = DTensor.from_local(local, mesh, placements, run_check=False, **shape)
    return tensors


def local_values(tensors):
    return {
        name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
        for name, tensor in tensors.items()
    }


def ranks_of(meshes):
    return range(torch.Size(meshes).numel())


def written(folder, meshes):
    """Write a checkpoint as these ranks would."""
    for rank in ranks_of(meshes):
        with rank_of(rank, meshes) as mesh:
            write(folder, copied(parts_to_write(sharded(mesh, WHOLE))))
    return [pieces_of(path) for path in sorted(folder.glob("*.safetensors"))]


def by_name(files):
    return {name: [file[name] for file in files if name in file] for name in WHOLE}


MESHES = [(1,), (2,), (5,), (64,), (2, 3)]


@pytest.mark.parametrize("before", MESHES, ids=str)
def test_what_some_ranks_wrote_any_others_read(before, tmp_path):
    pieces = by_name(written(tmp_path, before))
    assert {name: whole_shape(each) for name, each in pieces.items()} == {
        name: tensor.shape for name, tensor in WHOLE.items()
    }
    empty = {name: torch.zeros_like(tensor) for name, tensor in WHOLE.items()}
    for after in MESHES:
        for rank in ranks_of(after):
            with rank_of(rank, after) as mesh:
                tensors = sharded(mesh, empty)
                read(tmp_path, tensors, copies_to_make(tensors, pieces))
                for name, values in local_values(sharded(mesh, WHOLE)).items():
                    assert torch.equal(local_values(tensors)[name], values), (name, after, rank)


def test_each_number_is_written_once_and_a_rank_opens_no_files_of_others(tmp_path):
    """But the first rank's, for what all hold alike."""
    meshes = (2, 3)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    files = written(folder, meshes)
    assert len(files) == 3  # the second replica has nothing to write
    usual = tmp_path / "usual"
    usual.touch()
    assert {path.stat().st_mode for path in folder.iterdir()} == {usual.stat().st_mode}
    for name, of_name in by_name(files).items():
        assert sum(torch.Size(p.shape).numel() for p in of_name) == WHOLE[name].numel()
    for rank in ranks_of(meshes):
        with rank_of(rank, meshes) as mesh:
            needed = copies_to_make(sharded(mesh, WHOLE), by_name(files)).keys()
        own = {f"shard-{place + 1:05d}-model-00001-of-00001.safetensors" for place in (0, rank % 3)}
        assert needed == own


def test_what_no_file_has_is_a_sentence(tmp_path):
    pieces = by_name(written(tmp_path, (5,))[:-1])
    with pytest.raises(ValueError, match="20 numbers of matrix are in none of its files"):
        copies_to_make(WHOLE, pieces)


@pytest.mark.parametrize("offsets", ["[-1]", "[Infinity]"])
def test_a_piece_begins_within_its_tensor(tmp_path, offsets):
    file = tmp_path / "shard.safetensors"
    sharding = f'{{"vector": {{"saved_offsets": {offsets}}}}}'
    save_file({"vector": torch.zeros(3)}, file, {"DCP_SHARDING_INFO": sharding})
    with pytest.raises(ValueError, match="vector has|is not a file of a checkpoint"):
        pieces_of(file)


@pytest.mark.parametrize(
    "offsets", ["{}", '{"count": 1}', '{"count": {"saved_offsets": [1]}}', "[1", "7"]
)
def test_a_header_that_was_damaged_is_a_sentence(tmp_path, offsets):
    file = tmp_path / "shard.safetensors"
    save_file({"count": torch.zeros(())}, file, {"DCP_SHARDING_INFO": offsets})
    if offsets == "{}":  # as a file of one process, which has none
        assert pieces_of(file)["count"].offsets == ()
        return
    with pytest.raises(ValueError):
        pieces_of(file)


# Two processes that meet by gloo


def small_state(recipe):
    """A state of two ranks, after one step of Adam on gradients of ones."""
    learner = recipe.objective.learner(create(recipe.model, seed=0), None)
    learner = shard(learner, list(learner.model.blocks), "float32")
    state = State(learner, recipe.optim.build(learner), record={"recipe": {}, "data": {}})
    for parameter in learner.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.optimizer.step()
    state.step = 1
    return state


def forget(state):
    for tensor in state.tensors().values():
        tensor.zero_()


def same_values(state, expected):
    values = local_values(state.tensors())
    assert values.keys() == expected.keys()
    return all(torch.equal(values[name], expected[name]) for name in values)


def snapshot(state):
    return {name: tensor.clone() for name, tensor in local_values(state.tensors()).items()}


def reads_what_torch_wrote(recipe, run_dir):
    """A checkpoint of earlier code, and torch's own reader on one of ours."""
    import torch.distributed.checkpoint as dcp

    with process_group("cpu"):
        state = small_state(recipe)
        expected = snapshot(state)
        folder = run_dir / "checkpoints" / ".step-00000001.new"
        if world().rank == 0:
            new_folder(run_dir, 1)
        dist.barrier()
        writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
        dcp.save(state.tensors(), storage_writer=writer)
        if world().rank == 0:
            checksums = {path.name: checksum(path) for path in folder.glob("*.safetensors")}
            facts = {name: getattr(state, name) for name in ("step", "skipped", "bad_in_row")}
            complete(folder, facts | {"rollbacks": 0}, checksums)
        dist.barrier()
        (checkpoint,) = checkpoints(run_dir)
        forget(state)
        state.load(checkpoint)
        assert same_values(state, expected)

        state.step = 2
        state.save(run_dir, keep=9)
        state.wait()
        forget(state)
        reader = dcp.HuggingFaceStorageReader(str(checkpoints(run_dir)[0]))
        dcp.load(state.tensors(), storage_reader=reader)
        assert same_values(state, expected)
        (run_dir / f"well-{world().rank}").touch()


def test_checkpoints_of_earlier_code_are_read_and_ours_by_torch(tiny, tmp_path):
    assert together(2, reads_what_torch_wrote, resolve(tiny, FACTS), tmp_path) == [0, 0]
    assert len(list(tmp_path.glob("well-*"))) == 2


def one_disk_is_full(recipe, run_dir):
    """Rank 1 cannot write its file of the second checkpoint."""
    with process_group("cpu"):
        state = small_state(recipe)
        state.save(run_dir, keep=9)
        state.wait()
        before = [path.name for path in checkpoints(run_dir)]
        if world().rank == 1:

            def fail(folder, parts):
                raise OSError(28, "No space left on device")

            state_module.write = fail
        state.step = 2
        state.save(run_dir, keep=9)
        with pytest.raises(OSError, match=r"step 2 .*No space left.* earlier ones are intact"):
            state.wait()
        assert [path.name for path in checkpoints(run_dir)] == before
        dist.barrier()
        assert not list((run_dir / "checkpoints").glob(".*"))
        (run_dir / f"well-{world().rank}").touch()


@pytest.mark.slow
def test_a_rank_that_cannot_write_is_known_to_all(tiny, tmp_path):
    assert together(2, one_disk_is_full, resolve(tiny, FACTS), tmp_path) == [0, 0]
    assert len(list(tmp_path.glob("well-*"))) == 2
