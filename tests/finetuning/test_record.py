"""A quick run is a run: it is reported on and compared as one, and continued wherever its images are."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from vitkit.apps.report import report
from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.finetuning import write_page
from vitkit.models import create, vit
from vitkit.training import is_run, read_run
from vitkit.weights import Classifier, save


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    network = create(vit("mu/8", image=(16, 16), depth=1, classes=2), seed=0)
    classifier = Classifier(network, Preprocessing(size=(16, 16)), ("a", "b"))
    return str(save(classifier, tmp_path_factory.mktemp("model") / "mu"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with photographs of two colours, in another one of 16 and of 20 a class."""
    for name, count in (("photos", 16), ("more", 20)):
        for colour in ("red", "blue"):
            (tmp_path / name / colour).mkdir(parents=True)
            for i in range(count):
                pixels = Image.new("RGB", (24, 24), colour)
                pixels.putpixel((i, 3), (0, 255, 0))
                pixels.save(tmp_path / name / colour / f"{i:02}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finetune(model, *words):
    assert main(["finetune", model, *words, "--minutes", "0.001", "--device", "cpu"]) == 0


@pytest.mark.slow
def test_what_is_suggested_reads_the_table_too(model, here, capsys):
    names = sorted(path.relative_to("photos") for path in Path("photos").rglob("*.png"))
    lines = [f"{name};{name.parent}" for name in names]
    Path("photos/list.csv").write_text("\n".join(["Datei;Klasse", *lines]))
    columns = ["--data.columns.image", "Datei", "--data.columns.label", "Klasse"]
    finetune(model, "photos/list.csv", *columns)
    said = " ".join(capsys.readouterr().out.split())
    review = f"vitkit data review photos/list.csv runs/list {' '.join(columns)}"
    assert f"{review} labels that may be wrong" in said
    assert main([*review.split()[1:], "--device", "cpu"]) == 0
    assert " ".join(columns) in Path("runs/list/report.html").read_text()


@pytest.mark.slow
def test_it_is_reported_on_as_finetune_wrote_it(model, here, capsys):
    finetune(model, "photos")
    run_dir = Path("runs/photos")
    assert is_run(run_dir)
    run = read_run(run_dir)
    assert run.primary().name == "test/top1" and run.recipe["init"] == model
    assert run.data["labels"] == ["blue", "red"]
    assert run.data["counts"] == {"train": 20, "held out": 6, "test": 6}
    assert set(run.cost()) == {"time", "begun"}

    written = (run_dir / "report.html").read_bytes()
    (run_dir / "report.html").unlink()
    assert main(["report", str(run_dir)]) == 0
    assert (run_dir / "report.html").read_bytes() == written
    assert "6 images of photos (test)" in written.decode()

    # Another recipe does not take its place; nor is a run of an earlier version a puzzle
    capsys.readouterr()
    words = ["finetune", model, "photos", "--preset", "none", "--workdir", str(run_dir)]
    assert main([*words, "--device", "cpu"]) == 1
    assert "holds a run of another recipe" in capsys.readouterr().err
    (run_dir / "recipe.json").unlink()
    with pytest.raises(ValueError, match="was made by an earlier version, which did not record"):
        write_page(run_dir)


@pytest.mark.slow
def test_two_are_compared_on_the_images_that_both_left_out(model, here, capsys):
    finetune(model, "photos")
    finetune(model, "more")
    first, second = "runs/photos", "runs/more"
    files = []
    for name in ("photos", "more"):
        files.append(left_out(Path("runs", name)))
    both = len(files[0] & files[1])
    assert 0 < both < len(files[1])
    capsys.readouterr()
    assert main(["compare", first, second]) == 0
    assert f"on the {both} images that both held out photos is right" in " ".join(
        capsys.readouterr().out.split()
    )
    written = report(Path(first), Path(second))
    assert written.notes[0].endswith("(McNemar's exact test, p = 1)")
    assert written.notes[0] in written.path.read_text().replace("&#x27;", "'")

    # Images that have changed since are no reason for silence
    shutil.rmtree("more/red")
    (sentence,) = report(Path(first), Path(second)).notes
    assert sentence.startswith("their answers cannot be compared image by image: ")


def left_out(run_dir):
    """The bytes of the images that a run was tested on."""
    from vitkit.training import open_part

    source = open_part(read_run(run_dir), "test")
    return {source[i][0] for i in range(len(source))}


@pytest.mark.slow
def test_one_folder_is_one_run_whatever_it_is_called(model, here, capsys):
    for word in ("./photos/", str(here / "photos")):
        finetune(model, word)
    assert [path.name for path in Path("runs").iterdir()] == ["photos"]
    said = " ".join(capsys.readouterr().out.split())
    assert said.endswith("the same command with --minutes 1 more time")

    # Moved elsewhere, it is said; other images there are another run
    Path("photos").rename("elsewhere")
    finetune(model, "elsewhere", "--workdir", "runs/photos")
    said = " ".join(capsys.readouterr().out.split())
    assert "runs/photos was begun on photos: elsewhere has the same images" in said
    assert said.endswith("--minutes 1 and another --workdir more time")
    words = ["finetune", model, "more", "--workdir", "runs/photos", "--minutes", "0.001"]
    assert main([*words, "--device", "cpu"]) == 1
    assert "its images are others, or have changed" in capsys.readouterr().err


@pytest.mark.slow
def test_int8_is_judged_on_the_runs_own_images(model, here, capsys):
    """The ones that it left out judge, and those that it has learned from calibrate."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    finetune(model, "photos")
    capsys.readouterr()
    words = ["export", "runs/photos", "-o", "file.onnx", "--precision", "int8"]
    assert main([*words, "--agreement", "0"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "on images of photos that its run left out: " in out and "of 6 images" in out
    assert "calibrated on 20 images that the model has learned from" in out

    # From another directory too; but no others that are called the same
    run_dir = Path("runs/photos").resolve()
    Path("other").mkdir()
    os.chdir("other")
    again = ["export", str(run_dir / "model"), "-o", "file.onnx", "--precision", "int8"]
    assert main([*again, "--agreement", "0"]) == 0
    os.chdir(here)
    Path("photos").rename("elsewhere")
    assert main(words) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "those of runs/photos cannot be opened" in err and "give some with --data DATA" in err
    Path("more").rename("photos")
    assert main(words) == 1
    assert "'photos' has changed since the run" in " ".join(capsys.readouterr().err.split())
