"""Photographs of one burst are found, stay on one side of every split, and what does not belong
together is not taken for it."""

import json
import re
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import numpy as np
import pytest
from margins import at_most
from pictures import encoded, photograph
from PIL import Image, ImageEnhance

from vitkit import cli
from vitkit.data import Columns, fingerprint, merge_parts, open_parts, open_splits, subset
from vitkit.data.sources import outlines
from vitkit.data.sources.bursts import FRACTION, TAKEN, _time_taken, find_bursts
from vitkit.data.sources.source import stratified, stratified_groups
from vitkit.recipes import Data
from vitkit.training import divide
from vitkit.training.data import open_to_divide

PLAIN = ("pneumonia_mnist_1k", "eurosat_1k", "sign_digits_1k")


def thing(seed: int) -> Image.Image:
    """A photograph of something: rectangles on smooth colours."""
    random = np.random.default_rng(seed)
    pixels = photograph(160, 200, seed)
    for _ in range(12):
        top, left = random.integers(0, (140, 180))
        height, width = random.integers(8, 60, 2)
        pixels[top : top + height, left : left + width] = random.integers(0, 256, 3)
    return Image.fromarray(pixels)


def shot(image: Image.Image, random: np.random.Generator) -> bytes:
    """A photograph of it: zoomed, shifted, turned, exposed otherwise, encoded again."""
    share = 0.86 / random.uniform(1, 1.2)
    left, top = (1 - share) / 2 + random.uniform(-0.06, 0.06, 2)
    box = (left * 200, top * 160, (left + share) * 200, (top + share) * 160)
    turned = image.rotate(random.uniform(-4, 4), Image.Resampling.BICUBIC)
    taken = turned.resize((200, 160), Image.Resampling.BICUBIC, box=box)
    taken = ImageEnhance.Brightness(taken).enhance(2 ** random.uniform(-0.3, 0.3))
    return encoded(np.asarray(taken), quality=int(random.integers(60, 91)))


@pytest.fixture(scope="module")
def bursts(tmp_path_factory):
    """Two classes of eight things, of each four shots; with names that say nothing."""
    folder = tmp_path_factory.mktemp("bursts") / "photos"
    random = np.random.default_rng(0)
    for number in range(16):
        for _ in range(4):
            path = folder / f"{'ab'[number % 2]}" / f"{random.integers(10**9)}_{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(shot(thing(number), random))
    return folder


@pytest.fixture(scope="module")
def singles(tmp_path_factory):
    """As many photographs of as many things, named one after the other."""
    folder = tmp_path_factory.mktemp("singles") / "photos"
    random = np.random.default_rng(1)
    for number in range(48):
        path = folder / f"{'ab'[number % 2]}" / f"IMG_{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(shot(thing(100 + number), random))
    return folder


def things_of(source) -> list[str]:
    return [re.search(r"_(\d+)\.jpg", source.name(i))[1] for i in range(len(source))]


def test_shots_of_one_thing_are_found_and_nothing_else(bursts, singles, monkeypatch):
    source = open_parts(str(bursts)).sources[""]
    things = np.array(things_of(source))
    groups = find_bursts(source).groups
    same = things[:, None] == things
    together = groups[:, None] == groups
    assert not (together & ~same).any()
    assert together[same].mean() > 0.9
    alone = find_bursts(open_parts(str(singles)).sources[""]).groups
    assert len(np.unique(alone)) == len(alone)

    # From the cache, by whatever names the classes go
    def never(_):
        raise AssertionError

    monkeypatch.setattr("vitkit.data.sources.bursts._find", never)
    renamed = replace(source, targets=1 - source.targets, labels=("y", "x"))
    for same_images in (source, renamed):
        assert (find_bursts(same_images).groups == groups).all()
    with pytest.raises(AssertionError):
        find_bursts(
            replace(source, labels=(), targets=-np.ones(len(source), int), target_kind="none")
        )


def test_the_surest_burst_is_the_example(tmp_path):
    """A copy of one photograph, among larger groups of shots that are less alike."""
    random = np.random.default_rng(0)
    shots = {f"{i}_{k}.jpg": shot(thing(i), random) for i in range(7) for k in range(3)}
    shots |= dict.fromkeys(("x_one.jpg", "y_two.jpg"), shot(thing(7), random))
    for name, data in shots.items():
        path = tmp_path / "a" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    notes = open_splits(str(tmp_path)).notes
    assert "bursts of 2 to 3 photographs" in notes[0]
    assert "such as x_one.jpg and y_two.jpg): each stays" in notes[0]


WAYS = {
    "mirrored": [Image.Transpose.FLIP_LEFT_RIGHT],
    "upside down": [Image.Transpose.FLIP_TOP_BOTTOM],
    "turned": [Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270],
    "both": [Image.Transpose.TRANSPOSE, Image.Transpose.TRANSVERSE],
}


@pytest.mark.parametrize("way", WAYS)
def test_copies_that_are_mirrored_or_turned_are_found(way, tmp_path):
    """As sets are made larger before they are published, under names that say nothing."""
    random = np.random.default_rng(0)
    for number in range(16):
        image = thing(number)
        for copy in (image, *(image.transpose(how) for how in WAYS[way])):
            path = tmp_path / f"{'ab'[number % 2]}" / f"{random.integers(10**9)}_{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(np.asarray(copy), quality=int(random.integers(60, 91))))
    source = open_parts(str(tmp_path)).sources[""]
    things = np.array(things_of(source))
    groups = find_bursts(source).groups
    same = things[:, None] == things
    together = groups[:, None] == groups
    assert not (together & ~same).any()
    assert together[same].mean() > 0.9


def test_a_glance_at_a_copy_is_the_copy_of_a_glance():
    side = (outlines.SIDE, outlines.SIDE)
    thumbnails = np.stack([np.asarray(thing(i).convert("L").resize(side)) for i in range(3)])
    copied = outlines.as_copied(thumbnails)
    expected = np.stack([outlines.glances(way) for way in copied])
    found = outlines.glances_as_copied(outlines.glances(thumbnails))
    assert found.shape[0] == outlines.COPIES and np.allclose(found, expected, atol=1e-5)
    every = [thumbnails[0], *copied[:, 0]]
    assert len({way.tobytes() for way in every}) == 8


def test_an_image_is_zoomed_and_turned_about_its_middle():
    middle = outlines.FINE / 2
    turns = np.array(outlines._turns()).reshape(-1, 2, 3)
    assert len(turns) == len(outlines.ZOOMS) * len(outlines.ANGLES)
    assert np.allclose(turns @ (middle, middle, 1), middle)
    sizes = np.linalg.det(turns[:, :, :2])  # of what is shown, as shares of the image
    assert np.allclose(sizes, np.repeat(outlines.ZOOMS, len(outlines.ANGLES)) ** -2.0)


def test_an_image_is_alike_itself_and_others_are_what_they_are_alone():
    """A part of an image is divided by its own norm, so that its middle is found with a correlation of
    1, and none is higher."""
    side = (outlines.SIDE, outlines.SIDE)
    thumbnails = np.stack([np.asarray(thing(i).convert("L").resize(side)) for i in range(4)])
    items = [(2, [2, 0]), (0, [3, 0, 1])]
    together = outlines.correlations(thumbnails, items)
    for (first, seconds), row in zip(items, together, strict=True):
        for second, found in zip(seconds, row, strict=True):
            ((alone,),) = outlines.correlations(thumbnails, [(first, [second])])
            assert found == pytest.approx(alone, abs=1e-5)
            if first == second:
                assert found == pytest.approx(1, abs=1e-4)
            else:
                assert found < 0.9


def test_no_burst_is_on_both_sides_and_none_is_the_split_of_before(bursts):
    splits = open_splits(str(bursts))
    assert not set(things_of(splits.train)) & set(things_of(splits.test))
    assert not set(splits.train.groups) & set(splits.test.groups)
    assert any("bursts of" in note and "`groups='none'`" in note for note in splits.notes)
    data = Data(source=str(bursts), parts="three")
    parts = divide(open_to_divide(data), data)
    assert not set(things_of(parts["train"])) & set(things_of(parts["val"]))

    # Old runs know their test part by this
    before = open_splits(str(bursts), groups="none")
    whole = merge_parts(before.train, before.test)
    whole = subset(whole, np.argsort(whole.rows))
    _, test = stratified(whole.targets, 0.2, 0)
    assert before.made_fingerprint == fingerprint(subset(whole, test))
    assert before.train.groups is None
    assert set(things_of(before.train)) & set(things_of(before.test))


@pytest.mark.slow
def test_a_burst_on_both_sides_of_given_parts_is_said(bursts, tmp_path):
    for number, path in enumerate(sorted(bursts.rglob("*.jpg"))):
        part = ("train", "train", "test")[number % 3]
        new = tmp_path / part / path.parent.name / path.name
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(path.read_bytes())
    notes = " ".join(open_splits(str(tmp_path), always_grouped=True).notes)
    assert re.search(r"\d+ of 2\d images of the test part are of the same burst", notes)
    assert open_splits(str(tmp_path)).notes == ()  # nothing is divided, so nothing is looked for


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_divided_whole_and_each_class_has_its_share(seed):
    random = np.random.default_rng(seed)
    groups = random.integers(0, 80, 600)
    targets = (groups * 7 % 4).astype(np.int64)  # of one class each
    train, test = stratified_groups(targets, groups, 0.2, seed)
    assert sorted([*train, *test]) == list(range(600))
    assert not set(groups[train]) & set(groups[test])
    shares = np.bincount(targets[test], minlength=4) / np.bincount(targets)
    assert (np.abs(shares - 0.2) < 0.05).all()
    again = stratified_groups(targets, groups, 0.2, seed)
    assert all((a == b).all() for a, b in zip(again, (train, test), strict=True))

    # Where each is alone, it is the split without groups, whatever the numbers
    alone = random.permutation(600)
    parts = stratified_groups(targets, alone, 0.2, seed)
    expected = stratified(targets, 0.2, seed)
    assert all((a == b).all() for a, b in zip(parts, expected, strict=True))


def test_a_class_of_one_group_is_learned_and_of_two_large_ones_the_smaller_is_held_out():
    targets = np.repeat([0, 1, 2], (6, 12, 20))
    groups = np.r_[np.zeros(6, int), np.repeat([1, 2], (7, 5)), np.arange(10, 30)]
    train, test = stratified_groups(targets, groups, 0.2, 0)
    assert (targets[train] == 0).sum() == 6
    assert sorted(groups[test[targets[test] == 1]]) == [2] * 5
    assert (targets[test] == 2).sum() == 4


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_column_says_what_belongs_together(kind, tmp_path):
    rows = []
    for number in range(40):
        (tmp_path / f"{number}.png").write_bytes(encoded(photograph(30, 30, number), "PNG"))
        plant = f"plant {number // 4}" if number < 36 else ""
        rows.append({"image": f"{number}.png", "label": "ab"[number // 4 % 2], "plant": plant})
    path = tmp_path / f"set.{kind}"
    if kind == "csv":
        lines = [",".join(row.values()) for row in rows]
        path.write_text("\n".join(["image,label,plant", *lines]))
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        for row in rows:
            row["image"] = {"bytes": (tmp_path / row["image"]).read_bytes()}
        pq.write_table(pa.Table.from_pylist(rows), path)
    splits = open_splits(str(path), groups="plant")
    same = open_splits(str(path), Columns(group="plant"))
    assert (splits.test.rows == same.test.rows).all()
    assert not set(splits.train.groups) & set(splits.test.groups)
    whole = merge_parts(splits.train, splits.test)
    assert len(np.unique(whole.groups)) == 9 + 4  # those without a plant are alone
    assert "9 groups of 4 images (36 of 40 images" in splits.notes[0]
    with pytest.raises(ValueError, match="no column 'pot'"):
        open_splits(str(path), groups="pot")


def test_groups_need_a_column(bursts):
    with pytest.raises(ValueError, match="has no column 'plant'"):
        open_splits(str(bursts), groups="plant")


def test_times_tell_the_order_across_folders(tmp_path):
    from vitkit.data.sources.bursts import _order

    names = ["a/9.jpg", "a/10.jpg", "b/1.jpg"]
    by_name = _order(names, np.full(3, np.nan))
    assert by_name.places.tolist() == [0, 1, 2] and by_name.folders.tolist() == [0, 0, 1]
    by_time = _order(names, np.array([5.0, 1.0, 3.0]))
    assert by_time.places.tolist() == [1, 2, 0] and not by_time.folders.any()


def test_stats_say_the_groups_and_none_says_none(bursts, capsys):
    assert cli.main(["data", "stats", str(bursts)]) == 0
    assert re.search(r"1\d bursts of \d", capsys.readouterr().out)
    assert cli.main(["data", "stats", str(bursts), "--groups", "none"]) == 0
    assert "bursts of" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_sets_without_bursts_have_none(name, shared, tmp_path):
    path = shared(f"data/{name}-train.parquet")
    (source,) = open_parts(str(path)).sources.values()
    for i in range(len(source)):
        file = tmp_path / source.answer(i) / f"IMG_{i:04d}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(source[i][0])
    files = open_parts(str(tmp_path)).sources[""]
    groups = find_bursts(files).groups
    why = ""
    if name == "eurosat_1k":
        why = "two fields correlate by 0.914, the next by 0.862, of 0.87: far more apart than rounding"
    at_most(len(groups) - len(np.unique(groups)), 1, why=why)


@pytest.mark.parametrize(
    ("taken", "fraction", "after"),
    [
        ("2026:05:01 10:00:00", None, 0.0),
        ("2026:05:01 10:00:59", "25", 59.25),
        ("2026:05:01 10:01:00\x00", "5", 60.5),
        ("2026:05:01 10:00:07", "  ", 7.0),
        ("0000:00:00 00:00:00", "25", None),
        ("yesterday", None, None),
    ],
)
def test_the_time_of_a_photograph_is_to_the_fraction_of_a_second(taken, fraction, after):
    exif = {TAKEN: taken}
    if fraction is not None:
        exif[FRACTION] = fraction
    found = _time_taken(SimpleNamespace(exif=lambda: exif))
    if after is None:
        assert np.isnan(found)
    else:
        assert found - datetime(2026, 5, 1, 10).timestamp() == pytest.approx(after)
