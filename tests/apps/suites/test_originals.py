"""VTAB's tasks made of original data sets: classes by the rule, places in the files, deviations."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import encoded

from vitkit.apps.suites.images import find, select_from, where_is
from vitkit.apps.suites.running import Outcome, _deviations
from vitkit.apps.suites.task import Original, Place
from vitkit.apps.suites.vtab import VTAB
from vitkit.data import Columns, open_parts
from vitkit.weights import Hints

TASKS = {task.name: task for task in VTAB.tasks}


def put(path, count, **columns):
    """A parquet file of tiny images, each of the level of its row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [encoded(np.full((4, 4, 3), row % 250, np.uint8), "PNG") for row in range(count)]
    table = {"image": [{"bytes": image, "path": None} for image in images], **columns}
    pq.write_table(pa.table(table), path)


def test_classes_are_made_by_the_rule_and_the_validation_part_is_the_test_part(tmp_path):
    objects = [3 + row % 8 for row in range(1000)]
    distance = [(7.5, 8.25, 8.75, 9.25, 9.75, 11.0)[row % 6] for row in range(1000)]
    put(tmp_path / "clevr_scenes-train.parquet", 1000, objects=objects, distance=distance)
    put(tmp_path / "clevr_scenes-val.parquet", 16, objects=objects[:16], distance=distance[:16])
    for name, expected in (("clevr_count", 8), ("clevr_dist", 6)):
        images = find(TASKS[name], str(tmp_path), tmp_path / "run")
        assert (images.train, images.test, images.classes) == (900, 16, expected)
        sources = open_parts(images.where).sources
        assert sources["train"].targets.tolist() == [row % expected for row in range(800)]
        assert sources["val"].targets.tolist() == [row % expected for row in range(900, 1000)]
        assert sources["test"].targets.tolist() == [row % expected for row in range(16)]

    # The result is labelled, and is no VTAB
    deviations = _deviations(VTAB, {TASKS[name]: images}, "paper", Hints())
    assert "900 images to learn from instead of 1,000" in deviations[name]
    assert "images of clevr_scenes, taken in the files' own order" in deviations[name]
    assert not Outcome(VTAB, {}, {}, deviations).is_whole


def test_a_manifest_and_parts_of_one_file(tmp_path):
    put(
        tmp_path / "dsprites_factors/train.parquet",
        100,
        label_x_position=[i % 32 for i in range(100)],
    )
    images = find(TASKS["dsprites_loc"], str(tmp_path), tmp_path)
    sources = open_parts(images.where).sources
    taken = [sources[part].rows.tolist() for part in ("train", "val", "test")]
    assert taken == [list(range(80)), list(range(80, 90)), list(range(90, 100))]
    assert sources["test"].targets.tolist() == [row % 32 // 2 for row in range(90, 100)]

    lines = ["path,distance,split"]
    for part in ("train", "val", "test"):
        for k, distance in enumerate(("5.5", "12", "30", "1000")):
            (tmp_path / f"{part}{k}.png").write_bytes(encoded(np.zeros((4, 4, 3), np.uint8), "PNG"))
            lines.append(f"{part}{k}.png,{distance},{part}")
    (tmp_path / "kitti_objects.csv").write_text("\n".join(lines))
    images = find(TASKS["kitti"], str(tmp_path), tmp_path)
    # above 20 m, and no vehicle at all, which is 1000: -100, 8, 20 and 999 begin the ranges
    assert open_parts(images.where).sources["test"].targets.tolist() == [0, 1, 2, 3]


def test_images_to_select_on_begin_where_the_rule_says():
    """Of copies on the hub, after 80 % of what they have of the training part."""
    for task in VTAB.tasks:
        for original in task.originals:
            stated = re.search(r"200 after (\d+) % of train", task.rule)
            if original.is_of_the_hub:
                assert (original.val, original.test) == (Place("train", 0.8), Place("test"))
            elif stated:
                assert original.val == Place("train", int(stated[1]) / 100)
    assert TASKS["dsprites_ori"].originals[0].val == Place("train", 0.8)
    assert TASKS["dsprites_ori"].originals[0].test == Place("train", 0.9)
    assert TASKS["smallnorb_azi"].originals[0].test == Place("test", 0.5)


def test_what_a_rule_does_not_know_is_said_with_its_row(tmp_path):
    put(tmp_path / "clevr_scenes-train.parquet", 30, objects=[3] * 29 + [11], distance=[9.0] * 30)
    with pytest.raises(ValueError, match="clevr_scenes needs the part 'val'"):
        find(TASKS["clevr_count"], str(tmp_path), tmp_path)
    put(tmp_path / "clevr_scenes-val.parquet", 2, objects=[4, 4], distance=[9.0, 9.0])
    with pytest.raises(ValueError, match="row 29, column 'objects': .* 3 to 10 objects, not 11"):
        find(TASKS["clevr_count"], str(tmp_path), tmp_path)
    put(tmp_path / "clevr_scenes-val.parquet", 2, objects=[4, 4])
    with pytest.raises(ValueError, match="no column 'distance'|distance"):
        find(TASKS["clevr_dist"], str(tmp_path), tmp_path)


def test_the_hub_is_asked_only_on_request_and_read_by_the_same_way(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs the extra `hf`")
    images = [encoded(np.full((4, 4, 3), row, np.uint8), "PNG") for row in range(40)]
    rows = {"webp": [{"bytes": image, "path": None} for image in images], "cls": [0, 1] * 20}
    features = datasets.Features({"webp": datasets.Image(), "cls": datasets.Value("int64")})
    table = datasets.Dataset.from_dict(rows, features)
    saved = tmp_path / "saved"
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(str(saved))

    copy = Original(str(saved), Place("train", 0.8), Place("test"))
    selection = select_from(copy, str(saved), 2, tmp_path / "task")
    sources = open_parts(selection).sources
    assert [len(sources[part]) for part in ("train", "val", "test")] == [32, 8, 40]
    assert sources["val"].targets.tolist() == [0, 1] * 4

    assert where_is(TASKS["cifar"].originals[0], str(tmp_path)).startswith("hf:clip-benchmark/")
    assert find(TASKS["cifar"], str(tmp_path), tmp_path) is None


def test_a_selection_that_is_malformed_gets_a_sentence(tmp_path):
    put(tmp_path / "images.parquet", 4, label=[0, 1, 0, 1])
    path = tmp_path / "task.selection.json"

    def write(**changes):
        parts = {"train": {"rows": [0, 1], "classes": [1, 0]}}
        values = {"images": str(tmp_path / "images.parquet"), "labels": ["a", "b"], "parts": parts}
        path.write_text(json.dumps({**values, **changes}))

    write()
    assert open_parts(str(path)).sources["train"].targets.tolist() == [1, 0]
    with pytest.raises(ValueError, match="leave out `data.columns`"):
        open_parts(str(path), Columns(label="label"))
    for changes, message in (
        ({"images": str(path)}, "selects from"),
        ({"labels": 3}, "labels that are not a list"),
        ({"parts": {"dev": {}}}, "a part 'dev'"),
        ({"parts": {"test": {"rows": [9], "classes": [0]}}}, "has 9 among the rows of test"),
        ({"parts": {"test": {"rows": [1], "classes": [2]}}}, "has 2 among the classes of test"),
        ({"parts": {"test": {"rows": [1, 1], "classes": [0, 0]}}}, "a row of test twice"),
    ):
        write(**changes)
        with pytest.raises(ValueError, match=message):
            open_parts(str(path))
