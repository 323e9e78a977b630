"""What a review finds, on data whose mistakes are known."""

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from pictures import make_photographs
from PIL import Image
from tables import saved

from vitkit.cli.entry import main
from vitkit.curation import repeats, survey
from vitkit.data import open_image, open_splits, picture_to_look_at, without
from vitkit.evaluation import Finding, fit_probe, write_review
from vitkit.evaluation.reports.label_noise import wrong_labels
from vitkit.evaluation.reports.review import outliers, robust_deviations, unusual_looks


def clusters(count, width=16, classes=5, seed=0):
    random = np.random.default_rng(seed)
    y = np.arange(count) % classes
    centres = 4 * random.standard_normal((classes, width))
    return (centres[y] + random.standard_normal((count, width))).astype(np.float32), y


def with_errors(classes, share, count, seed, to=None):
    """Labels of which a share is replaced by class `to` of each, or by any other; and which."""
    random = np.random.default_rng(seed)
    planted = random.random(len(classes)) < share
    other = (classes + random.integers(1, count, len(classes))) % count
    if to is not None:
        other = to[classes]
    return np.where(planted, other, classes), planted


def test_planted_labels_are_found_and_no_others():
    x, y = clusters(200)
    planted = np.arange(0, 200, 17)
    labels = y.copy()
    labels[planted] = (y[planted] + 1) % 5
    found = wrong_labels(fit_probe("linear", x, labels, 5).left_out.numpy(), labels)
    suspects = found.suspects
    assert sorted(suspect.index for suspect in suspects) == planted.tolist()
    assert [suspect.answer for suspect in suspects] == [y[suspect.index] for suspect in suspects]
    own = [suspect.own for suspect in suspects]
    assert own == sorted(own) and own[-1] < 0.5
    assert found.low <= len(planted) <= found.high


@pytest.mark.parametrize("spread", [1.2, 2.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.2])
def test_hard_images_are_not_wrong_labels(spread, share):
    """True logits of images that are easy to hard, whose labels are drawn from them: most of the
    labels that the answers doubt are right, and the number of errors is still told."""
    random = np.random.default_rng(0)
    logits = spread * 2 * random.standard_normal((2000, 6))
    gumbel = random.gumbel(size=logits.shape)
    classes = (logits + gumbel).argmax(1)  # drawn with the softmax's probabilities
    labels, planted = with_errors(classes, share, 6, 1)
    found = wrong_labels(logits, labels)
    assert found.low <= planted.sum() <= found.high
    assert abs(len(found.suspects) - planted.sum()) < 70
    if share == 0:
        assert (logits.argmax(1) != classes).mean() > 0.15  # by the classes' bars 300 were listed


def test_errors_from_one_class_to_another_are_counted():
    """A fifth of class 0 is labelled 1, and nothing else is wrong."""
    x, y = clusters(1000, seed=3)
    to = np.array([1, 1, 2, 3, 4])
    labels, planted = with_errors(y, 0.2, 5, 0, to)
    planted &= labels != y
    found = wrong_labels(fit_probe("linear", x, labels, 5).left_out.numpy(), labels)
    listed = np.array([suspect.index for suspect in found.suspects])
    assert planted[listed].mean() > 0.9 and planted[listed].sum() > 0.9 * planted.sum()
    assert found.low <= planted.sum() <= found.high


def test_what_no_image_can_tell_is_said_with_the_pair_of_classes():
    """Two classes resemble each other, and a fifth of one is labelled as the other: that may be errors or
    may be looks. Errors that are spread evenly over classes apart leave nothing unclear."""
    random = np.random.default_rng(0)
    y = random.integers(0, 5, 1500)
    logits = 6 * np.eye(5)[y] + random.standard_normal((1500, 5))
    pair = y < 2
    logits[pair, :2] = 2.2 * np.eye(2)[y[pair]] + 1.2 * random.standard_normal((pair.sum(), 2)) + 2
    labels, _ = with_errors(y, 0.25, 5, 1, np.array([1, 1, 2, 3, 4]))
    found = wrong_labels(logits, labels)
    assert {found.unclear.label, found.unclear.answer} == {0, 1} and found.unclear.images > 10

    x, y = clusters(500, seed=3)
    labels, _ = with_errors(y, 0.1, 5, 0)
    clear = wrong_labels(fit_probe("linear", x, labels, 5).left_out.numpy(), labels)
    assert clear.unclear is None


def test_answers_that_know_nothing_judge_no_label():
    random = np.random.default_rng(0)
    assert wrong_labels(0.1 * random.standard_normal((300, 4)), random.integers(0, 4, 300)) is None


def test_what_is_far_from_all_others_is_an_outlier():
    x, _ = clusters(100)
    x[33] = -x.mean(0) * 50
    (index, deviations), *_ = outliers(x)
    assert index == 33 and deviations > 4
    assert outliers(x[:1]) == []
    assert outliers(np.ones((5, 3), np.float32)) == []


def test_deviations_ignore_a_few_odd_values():
    random = np.random.default_rng(0)
    values = np.append(random.standard_normal(10_000), [1e9] * 100)
    assert robust_deviations(values)[:10_000].std() == pytest.approx(1, abs=0.05)
    assert robust_deviations(np.array([2.0, 2, 2, 3])).tolist() == [0, 0, 0, np.inf]


def test_looks_are_compared_with_the_other_images():
    count = 20
    random = np.random.default_rng(0)
    sizes = np.full((count, 2), 300) + random.integers(0, 30, (count, 2))
    thumbnails = random.integers(40, 210, (count, 8, 8, 3)).astype(np.uint8)
    sharpness = np.exp(random.normal(0, 0.3, count))
    assert unusual_looks(sizes, thumbnails, sharpness) == {}
    thumbnails[1] = 3
    thumbnails[2] //= 12
    sharpness[3] /= 100
    sizes[4] = (20, 30)
    sizes[5] = (100, 900)
    found = unusual_looks(sizes, thumbnails, sharpness)
    assert found[1] == "dark, nearly empty"
    assert found[2].startswith("dark")
    assert found[3] == "blurred" and found[4] == "small" and found[5] == "of another shape"
    assert unusual_looks(sizes, np.zeros_like(thumbnails), sharpness).keys() == {3, 4, 5}


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """Red and blue photographs, and five troubles."""
    root = make_photographs(tmp_path_factory.mktemp("troubled"))
    (root / "blue" / "5.jpg").rename(root / "red" / "really-blue.jpg")
    (root / "red" / "again.jpg").write_bytes((root / "red" / "3.jpg").read_bytes())
    Image.open(root / "red" / "4.jpg").resize((90, 120)).save(root / "red" / "larger.png")
    (root / "red" / "broken.jpg").write_bytes((root / "red" / "6.jpg").read_bytes()[:300])
    Image.open(root / "blue" / "7.jpg").point(lambda v: v // 20).save(root / "blue" / "night.png")
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"), "ab", "mu/8", 16, depth=1)


def test_every_trouble_is_found(troubled, model, tmp_path, capsys):
    page = tmp_path / "page.html"
    excluded = tmp_path / "list.csv"
    words = ["data", "review", str(troubled), "--model", model, "-o", str(page), "--groups", "none"]
    assert main([*words, "--exclude", str(excluded), "--json"]) == 0
    found = {}
    for line in capsys.readouterr().out.splitlines():
        finding = json.loads(line)
        found.setdefault(Path(finding["name"]).name, []).append(finding["kind"])
    assert "label" in found["really-blue.jpg"]
    assert found["broken.jpg"] == ["unreadable"]
    assert "looks" in found["night.png"]
    assert "duplicate" in found.get("again.jpg", []) + found.get("3.jpg", [])
    assert sum("label" in kinds for kinds in found.values()) <= 2

    # The page has a picture of each, and the list leaves training images out
    text = page.read_text()
    for name in ("really-blue.jpg", "broken.jpg", "night.png"):
        assert name in text
    assert text.count("<img") >= 4
    train = open_splits(str(troubled), groups="none").train
    listed = [line for line in excluded.read_text().splitlines() if not line.startswith("#")]
    assert 2 <= len(listed) == len(train) - len(without(train, excluded))

    # As a table, the model as the second word
    assert main(["data", "review", str(troubled), model, "-o", str(page)]) == 0
    output = capsys.readouterr().out
    assert "Labels that may be wrong" in output and "next: open" in output


def test_what_cannot_be_reviewed_is_a_sentence(troubled, model, tmp_path, capsys):
    words = ["data", "review", str(troubled), "--model", model]
    assert main([*words, "-o", str(tmp_path / "page.png")]) == 1
    assert "give the name of an .html file" in capsys.readouterr().err
    assert main(words[:3]) == 2
    assert "MODEL is missing: vitkit data review DATA MODEL" in capsys.readouterr().err
    assert main([*words, "other"]) == 1
    assert "are two models" in capsys.readouterr().err
    mine = tmp_path / "mine.html"
    mine.write_text("my own")
    assert main([*words, "-o", str(mine)]) == 1
    assert mine.read_text() == "my own"


def test_a_model_that_knows_little_is_said_to(model, folder, tmp_path, capsys):
    files = {f"{'abcd'[i % 4]}/{i}.png": 20 for i in range(24)}  # noise, whatever the class
    words = ["data", "review", str(folder(files)), model, "-o", str(tmp_path / "page.html")]
    assert main(words) == 0
    assert "the model knows little of these classes" in capsys.readouterr().out
    assert "the model knows little of these classes" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("channels", [pytest.param(1, marks=pytest.mark.slow), 12])
def test_many_bits_and_bands_are_reviewed_by_a_model_of_colours(model, channels, tmp_path, capsys):
    """PNG of 16 bits, grey, and arrays of 12 channels, which use a hundredth of their range."""
    random = np.random.default_rng(0)
    photos = tmp_path / "photos"
    for number in range(24):
        pixels = random.integers(0, 200, (16, 16, channels), dtype=np.uint16)
        pixels[:, :: 2 + number % 2] += 400  # stripes, of another width for each class
        label = "ab"[number % 2]
        if number == 7:
            label = "a"
        folder = photos / label
        folder.mkdir(parents=True, exist_ok=True)
        if channels == 1:
            Image.fromarray(pixels[..., 0]).save(folder / f"{number}.png")
            Image.fromarray(pixels[..., 0]).save(folder / f"{number}-again.png")
        else:
            np.save(folder / f"{number}.npy", pixels)
            np.save(folder / f"{number}-again.npy", pixels)
    page = tmp_path / "page.html"
    excluded = tmp_path / "list.csv"
    words = ["data", "review", str(photos), model, "-o", str(page), "--exclude", str(excluded)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "48 images of more than 8 bits, or of other channels than colours" in said.out
    if channels == 12:
        assert "repeated: the kernels of red, green and blue" in said.err
    text = page.read_text()
    assert "/7" in text and text.count("<img") >= 24  # each beside what it repeats
    assert "duplicate: the same file as" in excluded.read_text()

    # What is seen has black and white in it, and nothing is called dark
    source = open_splits(str(photos)).train
    seen = picture_to_look_at(open_image(source[0][0], "seen"))
    assert seen.min() == 0 and seen.max() == 255
    assert "dark" not in excluded.read_text() and ">dark" not in text


def test_repeats_are_of_all_parts(troubled):
    parts = open_splits(str(troubled))
    surveys = [survey(part, 0) for part in (parts.train, parts.test)]
    names = [part.source.name(i) for part in surveys for i in range(len(part.source))]
    pairs = {
        (Path(names[p.first]).stem, Path(names[p.second]).stem): p.bits for p in repeats(surveys)
    }
    assert all(pair.first > pair.second for pair in repeats(surveys))
    same = [pair for pair, bits in pairs.items() if bits < 0]
    assert len(same) == 1 and set(same[0]) == {"again", "3"}
    assert {"larger", "4"} in map(set, pairs)


@pytest.fixture
def reviewed(tmp_path, monkeypatch):
    """A page about photographs, its values, and the list with which its reader says that the first
    red one is blue, as is one of the test part, and that the second one is to be left out."""
    monkeypatch.chdir(tmp_path)
    make_photographs(tmp_path)
    splits = open_splits("photos")
    parts = {"train": splits.train, "test": splits.test}
    findings = []
    for part, count in (("test", 1), ("train", 3)):
        names = [parts[part].name(i) for i in range(len(parts[part]))]
        reds = [i for i, name in enumerate(names) if "/red/" in name]
        findings += [Finding("looks", part, i, names[i], "red", "dark") for i in reds[:count]]
    page = write_review(tmp_path / "review.html", "photos", parts, findings, [])
    (values,) = re.findall("id=data>(.*?)</script>", page.read_text())
    values = json.loads(values)
    tested, first, second, _ = values["images"]
    lines = [
        values["heading"],
        f"{first}\tlabel\tblue\tred\ttrain",
        f"{second}\tleave out\t\tred\ttrain",
        f"{tested}\tlabel\tblue\tred\ttest",
    ]
    Path(values["file"]).write_text("".join(f"{line}\n" for line in lines))
    return page, values, splits


def test_the_page_marks_photographs_for_the_list_that_is_read(reviewed):
    """Those of every part, under the names and the heading that `without` asks for."""
    page, values, splits = reviewed
    page = page.read_text()
    assert re.findall('data-image="(.*?)"', page) == list(values["images"])
    parts = [("test", "red"), *3 * [("train", "red")]]
    assert [tuple(image) for image in values["images"].values()] == parts
    assert values["classes"] == ["blue", "red"]
    assert page.count("<small class=name><a href=") == 4
    assert len(without(splits.train, values["file"])) == len(splits.train) - 2
    (script,) = re.findall("(?s)</script><script>(.*?)</script>", page)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert f"--data.exclude {values['file']} trains without those of the training part" in page


def files_of(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*.*")}


def test_what_a_reader_has_decided_is_done_to_the_files_and_undone(reviewed, capsys):
    """First it is only said; nothing is lost, replaced or deleted, and the same list brings all back."""
    _, values, _ = reviewed
    tested, first, second, _ = values["images"]
    before = files_of("photos")
    words = ["data", "review", "photos", "--apply", values["file"]]
    assert main(words) == 0
    assert "3 files would be moved, and none was" in capsys.readouterr().out
    assert files_of("photos") == before

    # A photograph of the same name is in the other folder, as cameras have it
    assert first.replace("red", "blue") in before
    assert main([*words, "--yes"]) == 0
    assert "moved 3 files; vitkit data review photos" in capsys.readouterr().out
    after = files_of("photos") | files_of("photos-left-out")
    moved = Path("photos", "blue", f"{Path(first).stem}-from-red.jpg")
    assert after[str(moved)] == before[first]
    assert after[str(Path("photos", "blue", f"{Path(tested).stem}-from-red.jpg"))] == before[tested]
    assert after[second.replace("photos", "photos-left-out")] == before[second]
    assert sorted(after.values()) == sorted(before.values())

    # Once more is nothing; and back
    assert main([*words, "--yes"]) == 0 and "nothing" in capsys.readouterr().out
    assert main([*words, "--undo", "--yes"]) == 0
    assert files_of("photos") == before and not files_of("photos-left-out")


def test_a_part_need_not_have_a_folder_of_every_class(tmp_path, capsys):
    for folder in ("train/ant", "train/bee", "test/ant"):
        (tmp_path / folder).mkdir(parents=True)
    before = tmp_path / "test/ant/1.jpg"
    before.write_bytes(b"a bee")
    corrections = tmp_path / "list.txt"
    words = ["data", "review", str(tmp_path), "--apply", str(corrections), "--yes"]
    corrections.write_text(f"{before}\tlabel\twasp\tant\ttest\n")
    assert main(words) == 1 and "no folder of the class 'wasp'" in capsys.readouterr().err
    corrections.write_text(f"{before}\tlabel\tbee\tant\ttest\n")
    assert main(words) == 0
    assert (tmp_path / "test/bee/1.jpg").read_bytes() == b"a bee" and not before.exists()
    assert main([*words, "--undo"]) == 0 and before.read_bytes() == b"a bee"


def test_only_files_of_a_folder_are_said_to_be_moved(reviewed):
    _, values, splits = reviewed
    assert "vitkit data review photos --apply" in values["next"]
    names = [splits.train.name(i) for i in range(len(splits.train))]
    rows = "".join(f"{name},{Path(name).parent.name}\n" for name in names)
    Path("list.csv").write_text(f"image,label\n{rows}")
    finding = Finding("looks", "train", 0, names[0], "red", "dark")
    page = write_review(Path("other.html"), "list.csv", {"train": splits.train}, [finding], [])
    (values,) = re.findall("id=data>(.*?)</script>", page.read_text())
    following = json.loads(values)["next"]
    assert "--apply" not in following and "rows of the table" in following


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("photos/red/1.jpg\tlabel\tgreen\tred", "has no folder of the class 'green'"),
        ("photos/red/1.jpg\tlabel\t..\tred", "has no folder of the class '..'"),
        ("photos/../mine/red/1.jpg\tleave out\t\tred", "is not in photos"),
        ("photos/red/1.jpg\tlabel\tblue\tcat", "is in no folder 'cat'"),
        ("photos.parquet row 3\tleave out\t\tred\ttest", "can be moved, and no rows of a table"),
        ("photos/red/1.jpg\tmarked by hand", "no decision in the line"),
    ],
)
def test_a_list_that_says_something_else_moves_nothing(reviewed, line, sentence, capsys):
    Path("mine/red").mkdir(parents=True)
    Path("mine/red/1.jpg").write_bytes(b"mine")
    before = files_of("photos")
    Path("list.txt").write_text(f"{line}\n")
    assert main(["data", "review", "photos", "--apply", "list.txt", "--yes"]) == 1
    assert sentence in capsys.readouterr().err
    assert files_of("photos") == before


@pytest.mark.slow
def test_keys_in_a_browser(reviewed):
    """Arrows, y, n and numbers choose; the choices stay when the page is opened again, and the list
    that is saved is the one that is read."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no browser")
    page, values, _ = reviewed
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page()
        opened.goto(page.as_uri())
        for key in (*2 * ["ArrowRight", "1"], *2 * ["ArrowRight", "y"], "n"):
            opened.keyboard.press(key)
        opened.reload()
        assert "1 to leave out, 2 of another class, of 4" in opened.inner_text("footer")
        with opened.expect_download() as download:
            opened.click("text=Save the list")
        saved_list = Path(download.value.path()).read_text()
        browser.close()
    assert sorted(saved_list.splitlines()) == sorted(Path(values["file"]).read_text().splitlines())
