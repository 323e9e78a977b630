"""What a run says of how much it computes: operations a second, and their share of what its devices
can do at most."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from runs import FACTS

from vitkit.recipes import resolve
from vitkit.system.processes import ranks
from vitkit.system.span import Span
from vitkit.training import Recorded, operations, run_recipe
from vitkit.training.record import machine
from vitkit.training.record.log import Log, Meter, Work
from vitkit.training.record.machine import about_compiling, about_tf32, recorded_work
from vitkit.training.record.metrics import read_metrics

CUDA = torch.device("cuda")
H100 = "NVIDIA H100 80GB HBM3"
A100 = ("-PCIE-40GB", "-SXM4-40GB", " 80GB PCIe", "-SXM4-80GB")


def begun(run_dir, exaflops):
    (run_dir / machine.BEGUN).write_text(json.dumps({"exaflops_of_an_image": exaflops}))


def test_a_run_writes_its_operations(tiny, quiet, tmp_path):
    run_recipe(tiny, tmp_path, "cpu", quiet)
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if "tflops" in line]
    assert len(lines) == 6
    of_image = 1e6 * operations(resolve(tiny, FACTS), 1)
    for line in lines:
        assert line["tflops"] == pytest.approx(line["images_per_second"] * of_image, rel=1e-4)
        assert "mfu" not in line  # nobody knows what this CPU could do at most


@pytest.mark.parametrize(
    ("name", "precision", "most"),
    [
        # 10^12 operations a second by NVIDIA's data sheets, without sparsity and without TF32
        *((f"NVIDIA A100{name}", "bfloat16", 4 * 312) for name in A100),
        *((f"NVIDIA A100{name}", "float32", 4 * 19.5) for name in A100),
        ("NVIDIA H100 PCIe", "bfloat16", 4 * 756),
        ("NVIDIA H100 PCIe", "float32", 4 * 51),
        (H100, "bfloat16", 4 * 989),
        (H100, "float32", 4 * 67),
        ("NVIDIA H200", "bfloat16", 4 * 989),
        ("NVIDIA H200", "float32", 4 * 67),
        ("NVIDIA L4", "bfloat16", 4 * 121),
        ("NVIDIA L4", "float32", 4 * 30.3),
        ("NVIDIA L40S", "bfloat16", 4 * 362),
        ("NVIDIA L40S", "float32", 4 * 91.6),
        ("NVIDIA H100 NVL", "bfloat16", 0),
    ],
)
def test_what_the_gpus_of_a_run_can_do_is_known_of_some(
    name, precision, most, tmp_path, monkeypatch
):
    begun(tmp_path, 2e-7)
    monkeypatch.setattr(machine, "_name", lambda device: name)
    monkeypatch.setattr(machine, "world", lambda: ranks.World(0, 4))
    assert recorded_work(tmp_path, CUDA, precision) == (pytest.approx(0.2), most)


@pytest.mark.parametrize("exaflops", [None, "many"])
def test_an_objective_whose_operations_nobody_could_count_has_none(exaflops, tmp_path):
    begun(tmp_path, exaflops)
    assert recorded_work(tmp_path, CUDA, "bfloat16") == Work()
    assert Work().rates(1000) == {}


def test_their_share_of_the_most_is_beside_the_images(tmp_path):
    console = Console(file=io.StringIO(), width=200)
    log = Log(tmp_path, 0, 10, console=console, work=Work(0.05, 989))
    log.meter.since -= 10
    log.training(2, 40_000, 0.5, 1.0, 1e-3)
    log.close()
    assert "8,0" in console.file.getvalue() and "TFLOP/s  MFU 40%" in console.file.getvalue()
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert line["mfu"] == pytest.approx(0.404, rel=0.01)


def test_the_pace_leaves_out_pauses_and_has_the_share_of_waiting(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("vitkit.training.record.log.time.perf_counter", lambda: now[0])
    meter = Meter(step=4)
    for kind, seconds in ((meter.waiting, 2.0), (meter.pausing, 5.0), (meter.waiting, 1.0)):
        with kind():
            now[0] += seconds
    now[0] += 7.0  # of steps
    pace = meter.pace(step=8, images=20, total=12)
    assert pace.images_per_second == 4 * 20 / 10
    assert pace.data_wait == 3 / 10
    assert pace.seconds_left == 4 * 10 / 4


def test_a_runs_first_line_promises_no_time_and_its_second_does(tmp_path):
    """What the first step does once, such as compiling, is in no other step's pace."""
    console = Console(file=io.StringIO(), width=200)
    log = Log(tmp_path, 5, 100, console=console)
    log.meter.since -= 1000
    log.at(6, 10, 0.7)
    log.at(7, 10, 0.6)
    log.at(8, 10, 0.5)
    log.training(10, 10, 0.4, 1.0, 1e-3)
    log.at(10, 10, 0.4)
    log.close()
    first, second, tenth = console.file.getvalue().splitlines()
    assert first == "6/100  loss 0.7000"
    assert second.startswith("7/100  loss 0.6000  0:00 left  ")
    assert tenth.startswith("10/100  loss 0.4000  lr 1.00e-03  ") and "images/s" in tenth
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert line["images_per_second"] > 10  # without the thousand seconds


def test_who_trains_long_on_a_gpu_is_told_of_the_compiler(tiny):
    long = replace(tiny, length=Span(5000))
    assert "`compile`" in about_compiling(CUDA, long)
    for device, recipe in (
        (torch.device("cpu"), long),
        (CUDA, replace(long, compile=True)),
        (CUDA, replace(long, length=Span(200))),
    ):
        assert about_compiling(device, recipe) == ""


def test_tf32_is_said_of_gpus(monkeypatch):
    assert about_tf32(torch.device("cpu")) == ""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert about_tf32(CUDA) == "TF32 is off: products of float32 matrices are float32"
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert "TF32 is on" in about_tf32(CUDA)


def test_a_program_may_have_set_tf32_by_either_name(monkeypatch):
    """PyTorch's older name of the setting raises once the newer one was used."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = "tf32"
    try:
        assert "TF32 is on" in about_tf32(CUDA)
    finally:
        products.fp32_precision = before


def test_the_cost_of_a_run_is_of_its_steps_without_evaluations():
    lines = [
        {"event": "training", "step": 100, "images_per_second": 20.0},
        {"event": "evaluation", "step": 100},
        {"event": "training", "step": 150},  # the first line behind an interruption has no speed
        {"event": "training", "step": 400, "images_per_second": 40.0},
        {"event": "evaluation", "step": 1000},
    ]
    begun_with = {"exaflops_of_an_image": 2e-9, "date": "2026-11-28 12:00"}
    run = Recorded(Path("run"), {"batch": 32}, {}, lines, begun_with)
    assert run.cost() == {
        "steps": "1,000",
        "time of the steps": "6:40",  # 100 x 32 / 20 s, and 300 x 32 / 40 s
        "images seen": "32,000",
        "exaFLOPs": "6.4e-05",
        "begun": "2026-11-28 12:00",
    }
    earlier = Recorded(Path("run"), {"batch": 32}, {}, [], {})
    assert earlier.cost() == {"steps": "0", "time of the steps": "0:00", "images seen": "0"}
    quick = Recorded(Path("run"), {}, {}, [], {"seconds": 3723.0})
    assert quick.cost() == {"time": "1:02:03", "begun": "at an unknown time"}
