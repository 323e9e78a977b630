"""A grid of runs on the digits: what is skipped, continued and reported, and the table of it."""

import io
import shutil
import subprocess
import sys
from contextlib import redirect_stderr
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from processes import Forked

from vitkit.recipes import Optim
from vitkit.system.errors import Interrupted
from vitkit.system.span import Span
from vitkit.training import Cell, read_rows, run_grid, run_recipe
from vitkit.training.grids import grid
from vitkit.training.grids.grid import of_shard
from vitkit.training.grids.rows import COLUMNS
from vitkit.training.record.metrics import last_metrics, read_metrics


def table(grid_dir):
    return pq.read_table(grid_dir / "results.parquet").to_pylist()


@pytest.fixture(scope="module")
def quick(tiny):
    return replace(tiny, length=Span(4), evaluate_every=Span(4), save_every=Span(2), optim=Optim())


@pytest.fixture(scope="module")
def cells(quick):
    """Two that work, one that diverges, and one whose setting cannot run."""
    wild = Optim("sgd", lr=1e20, clip=0.0)
    return [
        Cell("seed-0", quick, {"seed": 0}),
        Cell("seed-1", replace(quick, seed=1), {"seed": 1}),
        Cell("wild", replace(quick, optim=wild, length=Span(20)), {"seed": 0}),
        Cell("wrong", replace(quick, keep=0), {"seed": 0}),
    ]


@pytest.fixture(scope="module")
def ran(cells, tmp_path_factory):
    """The directory of this grid, which no test changes, its rows, and what was printed."""
    grid_dir = tmp_path_factory.mktemp("grid")
    with redirect_stderr(io.StringIO()) as printed:
        rows = run_grid(cells, grid_dir, "cpu")
    return grid_dir, rows, " ".join(printed.getvalue().split())


@pytest.mark.slow
def test_failed_cells_are_rows_without_a_value_and_the_rest_goes_on(ran):
    grid_dir, rows, printed = ran
    assert {row.cell for row in rows if row.metric is not None} == {"seed-0", "seed-1"}
    errors = {row.cell: row.error for row in rows if row.error is not None}
    assert "3 steps in a row were not finite" in errors["wild"]
    assert "keep is 0; it must be at least 1" in errors["wrong"]
    assert all(row.metric is None for row in rows if row.error is not None)
    assert "wrong failed, and has no value: keep is 0" in printed

    accuracy = next(row for row in rows if row.primary and row.cell == "seed-1")
    assert accuracy.metric == last_metrics(grid_dir / "seed-1")["test/top1"]
    assert (accuracy.settings, accuracy.step) == ({"seed": 1}, 4)

    lines = table(grid_dir)
    assert len(lines) == len(rows) == len(read_rows(grid_dir))
    row = next(line for line in lines if line["cell"] == "seed-1" and line["primary"])
    assert list(row) == ["cell", "seed", *COLUMNS[1:]]
    assert (row["metric"], row["unit"], row["step"]) == ("test/top1", "share", 4)
    assert row["low"] < row["value"] < row["high"]
    failed = [line for line in lines if line["error"] is not None]
    assert [line["value"] for line in failed] == [None, None]


@pytest.mark.slow
def test_finished_cells_are_skipped_and_failed_ones_tried_again(cells, ran, tmp_path):
    grid_dir = shutil.copytree(ran[0], tmp_path / "grid")
    written = (grid_dir / "seed-0/metrics.jsonl").stat().st_mtime_ns
    assert run_grid(cells, grid_dir, "cpu") == ran[1]
    assert (grid_dir / "seed-0/metrics.jsonl").stat().st_mtime_ns == written
    mended = [*cells[:3], replace(cells[3], recipe=replace(cells[3].recipe, keep=1))]
    rows = run_grid(mended, grid_dir, "cpu")
    assert {row.cell for row in rows if row.error is None} == {"seed-0", "seed-1", "wrong"}


@pytest.mark.slow
def test_two_shards_give_what_one_gave(cells, ran, tmp_path):
    whole_dir, whole, _ = ran
    run_grid(cells, tmp_path, "cpu", shard=(1, 2))
    assert {line["cell"] for line in table(tmp_path)} == {"seed-1", "wrong"}
    assert run_grid(cells, tmp_path, "cpu", shard=(0, 2)) == whole
    assert table(tmp_path) == table(whole_dir)


def test_a_cell_that_follows_another_is_in_the_same_shard(cells, tmp_path):
    chain = [
        cells[0],
        replace(cells[1], name="later-0", after="seed-0"),
        cells[1],
        replace(cells[0], name="last-0", after="later-0"),
    ]
    names = [[cell.name for cell in of_shard(chain, (i, 2))] for i in range(2)]
    assert names == [["seed-0", "later-0", "last-0"], ["seed-1"]]
    with pytest.raises(ValueError, match="comes after 'seed-0', which is no earlier"):
        run_grid([chain[1], chain[0]], tmp_path)


def test_a_stop_in_a_cell_stops_the_grid_and_a_bug_does_not(quick, tmp_path, monkeypatch):
    """A stop is no failure of the cell; of a bug the traceback is logged, and the others go on."""
    cells = [Cell(f"seed-{i}", replace(quick, seed=i), {"seed": i}) for i in range(2)]
    begun = []
    errors = [ZeroDivisionError("a bug"), Interrupted()]

    def stopped(recipe, run_dir, device):
        begun.append(recipe.seed)
        raise errors[len(begun) - 1]

    monkeypatch.setattr(grid, "run_recipe", stopped)
    with pytest.raises(Interrupted):
        run_grid([*cells, replace(cells[0], name="never")], tmp_path, "cpu")
    assert begun == [0, 1]


def test_a_grid_in_which_nothing_works_raises(cells, tmp_path):
    with pytest.raises(ValueError, match="keep is 0"):
        run_grid(cells[3:], tmp_path, "cpu")


def test_a_shard_that_fails_is_in_the_table_too(cells, tmp_path):
    run_grid(cells[::3], tmp_path, "cpu", shard=(0, 2))
    with pytest.raises(ValueError, match="keep is 0"):
        run_grid(cells[::3], tmp_path, "cpu", shard=(1, 2))
    assert {line["cell"] for line in table(tmp_path)} == {"seed-0", "wrong"}


def test_a_shard_without_cells_writes_an_empty_table(cells, tmp_path):
    assert run_grid(cells[:1], tmp_path / "new", "cpu", shard=(1, 2)) == []
    assert table(tmp_path / "new") == []


@pytest.mark.parametrize("name", ["a/", "../a", "a//b", ""])
def test_a_name_that_is_no_folder_within_the_grids_is_refused(name, cells, tmp_path):
    with pytest.raises(ValueError, match="use the path of a folder"):
        run_grid([replace(cells[0], name=name)], tmp_path)


def test_a_run_of_another_recipe_gets_no_record_of_this_grid(quick, quiet, tmp_path):
    run_recipe(quick, tmp_path / "mine", "cpu", quiet)
    other = Cell("mine", replace(quick, seed=5))
    with pytest.raises(ValueError, match="mine holds a run of another recipe"):
        run_grid([other], tmp_path, "cpu")
    assert not (tmp_path / "mine" / "cell.json").exists()


def test_what_is_no_grid_is_refused(cells, tmp_path):
    with pytest.raises(ValueError, match="two cells of a grid have one name"):
        run_grid([cells[0], cells[0]], tmp_path)
    with pytest.raises(ValueError, match="shard is 2 of 2; .* the last is 1"):
        run_grid(cells, tmp_path, shard=(2, 2))
    with pytest.raises(ValueError, match="a column 'value' of its own"):
        run_grid([replace(cells[0], settings={"value": 1})], tmp_path)
    run_grid(cells[:1], tmp_path, "cpu")
    other = replace(cells[0], recipe=replace(cells[0].recipe, batch=25))
    with pytest.raises(ValueError, match="seed-0 holds a run of another recipe .batch: 50 -> 25"):
        run_grid([other, cells[1]], tmp_path, "cpu")


# Several processes

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path, monkeypatch):
    """Another process is at a cell, until this one waits for it: then `leave` is called, and it ends."""
    holders = []

    def hold(name, leave=lambda: None):
        (tmp_path / name).mkdir(parents=True)
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, tmp_path / name / grid.CELL_LOCK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        holders.append(holder)
        assert holder.stdout.readline() == b"locked\n"

        def end(seconds):
            leave()
            holder.communicate()

        monkeypatch.setattr(grid.time, "sleep", end)

    yield hold
    for holder in holders:
        holder.kill()
        holder.communicate()


needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="its locks are other ones")


@needs_locks
@pytest.mark.slow
def test_what_another_process_is_at_is_taken_up_at_the_end_if_it_dies(
    cells, ran, tmp_path, held, capsys
):
    held("seed-0")
    later = Cell("later", replace(cells[1].recipe, seed=7), {"seed": 7}, after="seed-0")
    rows = run_grid([*cells[:2], later], tmp_path, "cpu")
    metrics = {row.cell: row.metric for row in rows if row.primary}
    assert metrics.keys() == {"seed-0", "seed-1", "later"}
    assert metrics["seed-0"] == next(row.metric for row in ran[1] if row.primary)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("seed-0: another process is running it") == 1
    assert said.count("other processes are running 2 cells of") == 1
    ended = [(tmp_path / name / "cell.json").stat().st_mtime_ns for name in ("seed-1", "seed-0")]
    assert ended == sorted(ended)


@needs_locks
@pytest.mark.parametrize(
    ("name", "sentence"),
    [("seed-0", "finished by another process"), ("wild", "failed in another process, and has no")],
)
def test_what_another_process_has_ended_is_not_done_again(
    cells, ran, tmp_path, held, capsys, name, sentence
):
    held(name, leave=lambda: shutil.copytree(ran[0] / name, tmp_path / name, dirs_exist_ok=True))
    own = [cell for cell in cells if cell.name in ("seed-1", name)]
    rows = run_grid(own, tmp_path, "cpu")
    assert {row.cell for row in rows} == {"seed-1", name}
    assert sentence in " ".join(capsys.readouterr().err.split())
    copied = (ran[0] / name / "cell.json").stat().st_mtime_ns
    assert (tmp_path / name / "cell.json").stat().st_mtime_ns == copied


RUNNER = """
import sys
from dataclasses import replace
from pathlib import Path
from vitkit.recipes import digits
from vitkit.training import Cell, run_grid
from vitkit.system.errors import Interrupted
from vitkit.system.span import Span
recipe = replace(digits(), length=Span(15), evaluate_every=Span(15), save_every=Span(15))
recipe = replace(recipe, model=replace(recipe.model, depth=1), optim=replace(recipe.optim, warmup=Span(5)))
cells = [Cell(f"seed-{i}", replace(recipe, seed=i), {"seed": i}) for i in range(4)]
print(len(run_grid(cells, Path(sys.argv[1]), "cpu")))
"""


@pytest.mark.slow
def test_two_runners_share_a_folder(tmp_path):
    runners = [
        Forked(
            [sys.executable, "-c", RUNNER, tmp_path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [runner.communicate(timeout=300) for runner in runners]
    assert [runner.returncode for runner in runners] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]  # each has all rows
    assert all("finished by another process" in errors for _, errors in outputs), outputs
    for i in range(4):  # and each cell ran once
        steps = [line["step"] for line in read_metrics(tmp_path / f"seed-{i}" / "metrics.jsonl")]
        assert steps == sorted(steps) and steps.count(15) <= 3
