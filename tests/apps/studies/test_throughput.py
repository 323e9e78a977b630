"""The largest batch by search, and the speed beside it."""

from dataclasses import replace
from functools import partial

import pytest
from margins import at_most

from vitkit.apps.studies import STUDIES
from vitkit.apps.studies.budget import Plan
from vitkit.apps.studies.drawing import write_figure
from vitkit.apps.studies.protocol import Ask, results, run_study
from vitkit.apps.studies.throughput import GIB, Fastest, largest


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
def test_memory_limits_the_batch_of_a_cpu():
    """In another process: half the memory holds fewer images, and the images alone are not above it.
    How many fewer is the processor's: one convolution of oneDNN takes 0.8 GiB whatever their number, and
    some processors keep it from one batch to the next. With 1.5 GiB, one with AVX2 alone holds 256 images
    or 416, by chance."""
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
    reached = run_study(study, ask, Plan(0, 0, 0.0, 0.0), tmp_path, "cpu")
    assert not reached.failures()
    table = study.table(reached)
    assert [row[0] for row in table.rows] == ["mu/16"]
    assert all("(" in text for row in table.rows for text in row[1:])
    write_figure(tmp_path / "figure.png", study.draw(reached))
    assert results(study, ask, reached.plan, tmp_path) == reached
    most = [row._replace(metric=replace(row.metric, value=1 << 16)) for row in reached.rows]
    assert "(65,536 or more)" in study.table(reached._replace(rows=most)).rows[0][1]
    with pytest.raises(ValueError, match="`memory` is 1e[+]06 GiB, and this machine has"):
        study.check(Ask(memory=1e6))
    with pytest.raises(ValueError, match="cannot be cut into patches"):
        study.check(Ask(sizes=(100,)))
