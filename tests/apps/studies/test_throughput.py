"""The largest batch by search, and the speed beside it."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
from margins import at_most

from vitkit.apps.studies import STUDIES, throughput
from vitkit.apps.studies.budget import BudgetPlan
from vitkit.apps.studies.protocol import Ask, results, run_study
from vitkit.apps.studies.throughput import GIB, Fastest, largest
from vitkit.inspection import write_figure


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 64, 100, 1000])
def test_the_search_ends_within_a_sixteenth_of_the_limit(limit):
    tried = []

    def fits(batch):
        tried.append(batch)
        return batch <= limit

    found = largest(fits)
    assert found <= limit <= found + max(found // 16, 1)
    assert len(tried) <= 16 and len(set(tried)) == len(tried)
    assert largest(lambda batch: True, most=64) == 64


@pytest.mark.slow
def test_memory_limits_the_batch_of_a_cpu(monkeypatch):
    """In another process: half the memory holds fewer images, and the images alone are not above it.
    How many fewer is the processor's: one convolution of oneDNN takes 0.8 GiB whatever their number, and
    some processors keep it from one batch to the next. With 1.5 GiB, one with AVX2 alone holds 256 images
    or 416, by chance. By doubling alone, because batches near the limit take the time: twice the memory
    still holds twice the images."""
    child = "from vitkit.apps.studies import throughput; throughput.CLOSE = 1; throughput.child()"
    monkeypatch.setattr(throughput, "CHILD", child)
    image = 3 * 512 * 512 * 4  # bytes
    small = Fastest("mu/16", 512, memory=1.2, seconds=0.01).search("cpu")
    large = Fastest("mu/16", 512, memory=2.4, seconds=0.01).search("cpu")
    assert 1 < max(small) < max(large)
    at_most(max(small) * image, 1.2 * GIB)
    at_most(max(large) * image, 2.4 * GIB)
    assert all(rate > 0 for rate in large.values())
    with pytest.raises(ValueError, match="not even one image of 512 pixels fits into 0.001 GiB"):
        Fastest("mu/16", 512, memory=0.001).measure("cpu")


@pytest.mark.slow
def test_the_study_of_speed_has_both_panels(tmp_path, monkeypatch):
    briefly = partial(Fastest, seconds=0.02)
    monkeypatch.setattr("vitkit.apps.studies.paper.image_size.Fastest", briefly)
    study = STUDIES["speed"]
    ask = Ask(models=("mu/16",), sizes=(64, 128), memory=0.02)
    study.check(ask)
    reached = run_study(study, ask, BudgetPlan(0, 0, 0.0, 0.0), tmp_path, "cpu")
    assert not reached.failures()
    table = study.table(reached)
    assert [row[0] for row in table.rows] == ["mu/16"]
    assert all("(" in text for row in table.rows for text in row[1:])
    write_figure(study.draw(reached), tmp_path / "figure.png")
    assert results(study, ask, reached.plan, tmp_path) == reached
    most = [row._replace(metric=replace(row.metric, value=1 << 16)) for row in reached.rows]
    assert "(65,536 or more)" in study.table(reached._replace(rows=most)).rows[0][1]
    with pytest.raises(ValueError, match="`memory` is 1e[+]06 GiB, and this machine has"):
        study.check(Ask(memory=1e6))
    with pytest.raises(ValueError, match="cannot be cut into patches"):
        study.check(Ask(sizes=(100,)))


def test_the_best_and_the_largest_batch_are_of_what_was_tried(monkeypatch):
    tried = {1: 10.0, 2: 18.0, 4: 17.0}
    monkeypatch.setattr(Fastest, "search", lambda self, device: tried)
    metrics = {metric.name: metric.value for metric in Fastest("mu/16", 32).measure("cpu")}
    assert metrics == {"images/s": 18.0, "largest batch": 4, "best batch": 2}
    monkeypatch.setattr(Fastest, "search", lambda self, device: {})
    with pytest.raises(ValueError, match="not even one image of 32 pixels fits into 0.5 GiB"):
        Fastest("mu/16", 32, memory=0.5).measure("cpu")


@pytest.mark.parametrize(
    ("printed", "code", "expected"),
    [
        ("[1, 10.5]\n[2, 18]\n", 0, {1: 10.5, 2: 18}),
        ("[1, 10.5]\nkilled", -9, {1: 10.5}),  # without memory for more
        ("", 0, {}),
        ("", 1, "mu/16 cannot be measured: no torch"),
    ],
)
def test_what_the_other_process_printed_counts(printed, code, expected, monkeypatch):
    asked = []

    def run(words, input, **_):
        asked.append(json.loads(input))
        return subprocess.CompletedProcess(words, code, printed, "Traceback\nno torch\n")

    monkeypatch.setattr(subprocess, "run", run)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            Fastest("mu/16", 32).search("cpu")
    else:
        assert Fastest("mu/16", 32).search("cpu") == expected
    settings = {"model": "mu/16", "side": 32, "memory": 0.25, "seconds": 0.3, "device": "cpu"}
    assert asked == [settings]


def test_the_other_process_prints_each_batch_that_fits(monkeypatch, capsys):
    settings = {"model": "mu/16", "side": 32, "memory": 0.25, "seconds": 0.0, "device": "cpu"}
    limits = []
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(settings)))
    monkeypatch.setattr(throughput, "_limit", limits.append)
    monkeypatch.setattr(throughput, "largest", lambda fits: largest(fits, most=4))
    throughput.child()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [batch for batch, _ in lines] == [1, 2, 4] and all(rate > 0 for _, rate in lines)
    assert limits == [GIB // 4] * 3


@pytest.mark.parametrize(
    ("first", "expected"), [(5.0, [5.0]), (0.5, [0.4, 0.4, 0.4]), (1.0, [0.4, 0.4, 0.4])]
)
def test_a_long_pass_is_timed_once_and_short_ones_after_the_first(first, expected):
    times = iter([first] + [0.4] * 9)
    assert list(throughput._passes(lambda: next(times), 1.0)) == expected
