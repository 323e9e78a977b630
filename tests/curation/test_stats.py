"""What `vitkit data stats` says and writes, and that every kind of target can be packed."""

import json

import pytest

from vitkit.cli.entry import main
from vitkit.data import Columns, open_source, open_splits, without


def stats(*words: str, capsys) -> tuple[int, str, str]:
    code = main(["data", "stats", *words, "--workers", "0"])
    return code, *capsys.readouterr()


def test_an_undivided_set_is_compared_as_train_will_divide_it(folder, tmp_path, capsys):
    root = folder({f"{kind}/{i}.png": 40 for kind in ("ant", "bee") for i in range(10)})
    for kind in ("ant", "bee"):
        for i in range(10):
            (root / kind / f"{i} again.png").write_bytes((root / kind / f"{i}.png").read_bytes())
    drop = tmp_path / "drop.txt"
    words = ("--exclude", str(drop), "--split-seed", "3", "--groups", "none")
    code, out, _ = stats(str(root), *words, capsys=capsys)
    assert code == 0 and f"{root} has no test part: 8 of 40 images" in out
    assert f"--data.split-seed 3 --data.groups none --data.exclude {drop}" in out
    splits = open_splits(str(root), seed=3, groups="none")
    remaining = without(splits.train, drop)
    assert len(remaining) < len(splits.train)
    train = {remaining[i][0] for i in range(len(remaining))}
    test = {splits.test[i][0] for i in range(len(splits.test))}
    assert not train & test
    with pytest.raises(ValueError, match="must be written for this very source and split seed"):
        without(open_splits(str(root), seed=0, groups="none").train, drop)


def test_the_next_command_reads_the_same_data(folder, capsys):
    """Few images need published weights; and a table with names of its own, the names of its columns."""
    root = folder({f"{kind}/{i}.png": 30 + i for kind in ("ant", "bee") for i in range(3)})
    assert f"next: vitkit finetune {root}\n" in stats(str(root), capsys=capsys)[1]
    lines = [f"{kind}/{i}.png;{kind}" for kind in ("ant", "bee") for i in range(3)]
    table = root / "list.csv"
    table.write_text("\n".join(["Datei;Klasse", *lines]))
    columns = ("--data.columns.image", "Datei", "--data.columns.label", "Klasse")
    _, out, _ = stats(str(table), *columns, capsys=capsys)
    assert f"vitkit finetune {table} {' '.join(columns)}\n" in out


def test_stats_says_at_once_what_it_cannot_do(folder, tmp_path, capsys):
    root = str(folder({f"test/{kind}/{i}.png": 20 for kind in ("ant", "bee") for i in range(3)}))
    for words in (["--test", "digits"], ["--exclude", str(tmp_path / "x.txt")]):
        code, _, err = stats(root, *words, capsys=capsys)
        assert code == 1 and "has no training images to compare, only test; leave out --ex" in err
    assert stats(root, capsys=capsys)[0] == 0
    (tmp_path / "file").write_text("mine")
    for name in ("file/x.txt", "file"):
        code, _, err = stats("digits", "--exclude", str(tmp_path / name), capsys=capsys)
        assert code == 1 and str(tmp_path / "file") in err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_list_is_replaced_unless_somebody_edited_it(folder, tmp_path, capsys):
    root = str(folder({f"{part}/a/{i}.png": 20 for part in ("train", "test") for i in range(2)}))
    listed = tmp_path / "new" / "list.txt"
    for _ in range(2):
        assert stats(root, "--exclude", str(listed), capsys=capsys)[0] == 0
    without(open_splits(root).train, listed)
    listed.write_text(listed.read_text() + "# looked at\n")
    edited = listed.read_text()
    code, _, err = stats(root, "--exclude", str(listed), capsys=capsys)
    assert code == 1 and "is not as vitkit wrote it, so it is not replaced" in err
    assert listed.read_text() == edited
    without(open_splits(root).train, listed)  # an edited list counts


def test_stats_shows_names_as_they_are_and_json_alone(folder, tmp_path, capsys):
    names = [f"{kind}/{i}.png" for kind in ("[red]x", "[", "ok") for i in range(2)]
    root = str(folder({f"{part}/{name}": 20 for part in ("train", "test") for name in names}))
    rows = [f"photos/test/ok/{i}.png,{label}\n" for label in "[x]" for i in range(2)]
    (tmp_path / "manifest.csv").write_text("".join(["path,label\n", *rows]))
    code, out, _ = stats(root, "--test", str(tmp_path / "manifest.csv"), capsys=capsys)
    assert code == 0 and "[red]x" in out
    (header,) = [line for line in out.splitlines() if line.startswith("┃ class ")]
    assert "manifest.csv" not in header  # the same number of classes, and others
    code, out, err = stats(root, "--json", "--exclude", str(tmp_path / "d.txt"), capsys=capsys)
    assert code == 0 and "wrote 0 training images" in err
    assert json.loads(out)["classes"] == ["[", "[red]x", "ok"]


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
    description = json.loads(out)
    assert code == 0 and description["target"] == target
    train = description["parts"]["train"]
    assert train["numbers"][::2] == ([0.5, 2] if target == "number" else [])
    assert len(train["classes"]) == {"classes": 2}.get(target, 0)
    code, out, _ = stats(str(where), *asked, capsys=capsys)
    assert code == 0 and ("number: least" in out) == (target == "number")
    assert ("images per class" in out) == (target == "classes")
    for kind in ("tar", "parquet"):
        words = ["--format", kind, "--workers", "0", *asked]
        assert main(["data", "pack", str(where), str(tmp_path / kind), *words]) == 0
        again = open_source(str(tmp_path / kind))
        before = open_source(str(where), Columns(target="classes") if target == "classes" else None)
        assert again.target_kind == before.target_kind == target and again.labels == before.labels
        answers = sorted(str(before.answer(i)) for i in range(10))
        assert sorted(str(again.answer(i)) for i in range(10)) == answers
    if target == "classes":
        import datasets  # in here: it takes half a second

        files = str(tmp_path / "parquet/*.parquet")
        rows = datasets.load_dataset("parquet", data_files=files, cache_dir=tmp_path / "cache")
        assert rows["train"].features["label"].feature.names == ["a", "b"]
