"""What a survey takes for copies, and what `vitkit data stats` says and writes."""

import json
import tracemalloc

import datasets
import numpy as np
import pytest

from vitkit.cli import main
from vitkit.curate import duplicates, near_duplicates, survey
from vitkit.curate.duplicates import Appearances, appearance, nearest
from vitkit.data import Columns, open_parts, open_source, open_splits, subset, without


def appearances(pictures: list[np.ndarray], digests) -> Appearances:
    each = [appearance(picture) for picture in pictures]
    hashes = np.stack([one.hash for one in each])
    thumbnails = np.stack([one.thumbnail for one in each])
    return Appearances(np.array(digests, dtype=np.uint64), hashes, thumbnails)


def test_empty_images_are_duplicates_only_if_the_files_are_the_same():
    levels = (0, 255, (200, 10, 10), (200, 10, 12))
    empty = [np.full((40, 40, 3), level, np.uint8) for level in levels]
    assert not list(nearest(appearances(empty[:2], [1, 2]), appearances(empty[1:2], [3])))
    assert not list(nearest(appearances(empty[2:3], [1]), appearances(empty[3:], [2])))
    assert list(nearest(appearances(empty[:2], [1, 2]), appearances(empty[:1], [2]))) == [
        (1, 0, -1, 1)
    ]


def test_of_many_copies_one_is_named_and_few_are_compared_at_once(monkeypatch):
    one = appearances([np.zeros((40, 40, 3), np.uint8)], [7])
    copies = Appearances(*(np.repeat(array, 300, axis=0) for array in one))
    assert list(nearest(copies, copies)) == [(i, 0, -1, 300) for i in range(300)]
    monkeypatch.setattr(duplicates, "THUMBNAILS_AT_ONCE", 2000)
    tracemalloc.start()
    assert not list(nearest(copies, copies._replace(digests=copies.digests + 1)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6  # 90,000 pairs of thumbnails are 140 MB


def test_what_is_alike_is_measured_against_its_own_contrast():
    """A mark on grey elsewhere is another picture, though nearly all colours are the same; a
    fainter mark is not."""
    mark, elsewhere, fainter = (np.full((64, 64, 3), 128, np.uint8) for _ in range(3))
    mark[8:24, 8:24] += 40
    elsewhere[8:24, 16:32] += 40
    fainter[8:24, 8:24] += 30
    first = appearances([mark], [1])
    hashes = first.hashes ^ np.uint64(0b111)  # close enough, whatever the hash says
    assert not list(nearest(first, appearances([elsewhere], [2])._replace(hashes=hashes)))
    assert len(list(nearest(first, appearances([fainter], [3])._replace(hashes=hashes)))) == 1


@pytest.mark.parametrize("name, most", [("pneumonia_mnist_1k", 6), ("gtsrb_1k", 6)])
def test_pictures_of_one_kind_are_not_taken_for_copies(shared, name, most):
    """X-rays and traffic signs are much alike: by an absolute bound alone, 134 and 59 of 800
    training images were listed."""
    parts = open_parts(str(shared(f"data/{name}-train.parquet").parent / name))[0]
    train = survey(subset(parts["train"], range(400)), 0)
    test = survey(parts["test"], 0)
    assert len(near_duplicates(train, test)) <= most


def stats(*words: str, capsys) -> tuple[int, str, str]:
    code = main(["data", "stats", *words, "--workers", "0"])
    return code, *capsys.readouterr()


def test_an_undivided_set_is_compared_as_train_will_divide_it(folder, tmp_path, capsys):
    root = folder({f"{kind}/{i}.png": 40 for kind in ("ant", "bee") for i in range(10)})
    for kind in ("ant", "bee"):
        for i in range(10):
            (root / kind / f"{i} again.png").write_bytes((root / kind / f"{i}.png").read_bytes())
    drop = tmp_path / "drop.txt"
    code, out, _ = stats(str(root), "--exclude", str(drop), "--split-seed", "3", capsys=capsys)
    assert code == 0 and f"{root} has no test part: 8 of 40 images" in out
    assert f"--data.split-seed 3 --data.exclude {drop}" in out
    splits = open_splits(str(root), seed=3)
    left, held = without(splits.train, drop), {splits.test[i][0] for i in range(len(splits.test))}
    assert len(left) < len(splits.train) and not held & {left[i][0] for i in range(len(left))}
    with pytest.raises(ValueError, match="must be written for this very source and split seed"):
        without(open_splits(str(root), seed=0).train, drop)


def test_stats_says_at_once_what_it_cannot_do(folder, tmp_path, capsys):
    root = str(folder({f"test/{kind}/{i}.png": 20 for kind in ("ant", "bee") for i in range(3)}))
    for words in (["--test", "digits"], ["--exclude", str(tmp_path / "x.txt")]):
        code, _, said = stats(root, *words, capsys=capsys)
        assert (
            code == 1
            and "has no training images to compare, only test; leave out --exclude and --test"
            in said
        )
    assert stats(root, capsys=capsys)[0] == 0
    code, _, said = stats("digits", "--exclude", str(tmp_path / "no" / "x.txt"), capsys=capsys)
    assert code == 1 and "there is no folder" in said


def test_stats_shows_names_as_they_are_and_json_alone(folder, tmp_path, capsys):
    root = str(folder({f"{part}/{kind}/{i}.png": 20 for part in ("train", "test") for kind in ("[red]x", "[", "ok")
                       for i in range(2)}))  # fmt: skip
    (tmp_path / "manifest.csv").write_text("".join(["path,label\n", *(
        f"photos/test/ok/{i}.png,{'[x]'[j]}\n" for j in range(3) for i in range(2))]))  # fmt: skip
    code, out, _ = stats(root, "--test", str(tmp_path / "manifest.csv"), capsys=capsys)
    assert code == 0 and "[red]x" in out
    (header,) = [line for line in out.splitlines() if line.startswith("┃ class ")]
    assert "manifest.csv" not in header  # the same number of classes, and others
    code, out, said = stats(root, "--json", "--exclude", str(tmp_path / "d.txt"), capsys=capsys)
    assert (
        code == 0
        and json.loads(out)["classes"] == ["[", "[red]x", "ok"]
        and "wrote 0 training images" in said
    )


@pytest.mark.parametrize("labels", [["a|b", "b"], ["0.5", "2"], None])
def test_stats_and_packing_of_every_kind_of_target(folder, tmp_path, capsys, labels):
    """Several classes, numbers and no labels are counted, packed, and read again from both kinds of
    shards."""
    root = folder({f"{i}.png": 20 for i in range(10)}, "labelled")
    where, asked, target = root, [], "none"
    if labels:
        rows = [f"{i}.png,{labels[i % 2]}" for i in range(10)]
        where = root / "list.csv"
        where.write_text("\n".join(["image,label", *rows]))
        several = "|" in labels[0]
        asked = ["--data.columns.target", "classes"] if several else []
        target = "classes" if several else "number"
    code, out, _ = stats(str(where), "--json", *asked, capsys=capsys)
    told = json.loads(out)
    assert code == 0 and told["target"] == target
    train = told["parts"]["train"]
    assert train["numbers"][::2] == ([0.5, 2] if target == "number" else [])
    assert len(train["classes"]) == {"classes": 2}.get(target, 0)
    code, out, _ = stats(str(where), *asked, capsys=capsys)
    assert code == 0 and ("number: least" in out) == (target == "number")
    assert ("images a class" in out) == (target == "classes")
    for kind in ("tar", "parquet"):
        words = ["--format", kind, "--workers", "0", *asked]
        assert main(["data", "pack", str(where), str(tmp_path / kind), *words]) == 0
        again = open_source(str(tmp_path / kind))
        before = open_source(str(where), Columns(target="classes") if target == "classes" else None)
        assert again.target == before.target == target and again.labels == before.labels
        answers = sorted(str(before.answer(i)) for i in range(10))
        assert sorted(str(again.answer(i)) for i in range(10)) == answers
    if target == "classes":
        features = datasets.load_dataset("parquet", data_files=str(tmp_path / "parquet/*.parquet"),
                                         split="train", cache_dir=tmp_path / "cache").features  # fmt: skip
        assert features["label"].feature.names == ["a", "b"]
