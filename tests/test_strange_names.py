"""Files, classes and folders whose names are no UTF-8, or hold control characters, through every command:
records that are read again have the same bytes, and what people read is UTF-8 without control characters."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import encoded
from quick_ones import quick_ones

import vitkit
from vitkit.apps.label.answers import Journal, write_labels
from vitkit.apps.label.directory import record_session
from vitkit.apps.label.session import LabelSession
from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.inspection.pages import html
from vitkit.models import create, vit
from vitkit.system.storage.files import as_text, parse_json, write_json
from vitkit.weights import Classifier, load, save

FOLDER = os.fsdecode(b"photos-\xff")
CLASSES = (os.fsdecode(b"caf\xe9"), "\x1b[2Jgone")
FILE = os.fsdecode(b"\xe9t\xe9-%d.png")  # % number


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of two classes; the working folder is above it."""
    monkeypatch.chdir(tmp_path)
    try:
        Path(FOLDER).mkdir()
    except OSError:
        pytest.skip("a file system that has names of UTF-8 alone")
    for number, name in enumerate(CLASSES):
        (Path(FOLDER) / name).mkdir()
        for i in range(12):
            pixels = np.full((32, 32, 3), 40, np.uint8)
            pixels[..., 2 * number] = 255
            pixels[i, 3] = 200
            (Path(FOLDER) / name / (FILE % i)).write_bytes(encoded(pixels, "PNG"))
    return FOLDER


@pytest.fixture
def model(tmp_path):
    network = create(vit("mu/8", image=(32, 32), depth=1, classes=2), seed=0)
    torch.nn.init.normal_(network.head.weight)
    return save(Classifier(network, Preprocessing(size=(32, 32)), CLASSES), tmp_path / "model")


QUICK = "--device cpu --workers 0"
TRAIN = (
    "train scratch PHOTOS --workdir run --length 2 --model.image 32 32 --data.preprocessing.size 32 32 "
    "--model.patch 16 --batch 4 --model.width 8 --model.depth 1 --model.mlp 8 --model.heads 1 "
    "--device cpu --data.workers 0"
)
COMMANDS = {
    "train": (TRAIN, "report run"),
    "finetune": (
        "finetune model PHOTOS --workdir run --minutes 0.001 --device cpu",
        "finetune model PHOTOS --workdir run --minutes 0.001 --device cpu",
        "report run",
        f"evaluate run PHOTOS {QUICK}",
        f"predict run PHOTOS {QUICK}",
        "export run -o run.onnx --data PHOTOS",
        f"predict run.onnx PHOTOS {QUICK}",
    ),
    "stats": ("data stats PHOTOS --workers 0", "data stats PHOTOS --json --workers 0"),
    "stats exclude": (
        "data stats PHOTOS --exclude list.txt --workers 0",
        f"{TRAIN} --data.exclude list.txt",
    ),
    "review": (
        "data review PHOTOS model --device cpu --exclude list.txt",
        "data review PHOTOS model --device cpu --json --output other.html",
    ),
    "features": (
        "features model PHOTOS -o features.npz --device cpu",
        "features model PHOTOS -o features.parquet --device cpu",
    ),
    "predict": (
        f"predict model PHOTOS {QUICK}",
        f"predict model PHOTOS {QUICK} --json",
        f"predict model PHOTOS {QUICK} --to rows.csv",
        f"predict model PHOTOS {QUICK} --to rows.jsonl",
        f"predict model PHOTOS {QUICK} --to rows.parquet",
        f"predict model PHOTOS {QUICK} --sheet sheet.png",
    ),
    "batch": (
        f"batch model PHOTOS {QUICK} --into parts",
        f"batch model PHOTOS {QUICK} --into parts",
    ),
    "sort": (
        f"sort model PHOTOS {QUICK} --into sorted",
        f"sort model PHOTOS {QUICK} --into sorted",
    ),
    "evaluate": (
        f"evaluate model PHOTOS {QUICK} --report report.html report.json report.png",
        f"evaluate model PHOTOS {QUICK} --json",
    ),
    "fewshot": ("fewshot model PHOTOS --shots 1 --device cpu",),
    "probe": (
        "probe model PHOTOS --to head --device cpu",
        "show head",
        f"predict head PHOTOS {QUICK}",
    ),
    "teach": (
        "teach model taught --add PHOTOS --device cpu",
        "teach taught --device cpu",
        "teach taught --remove PHOTOS/FIRST/NUMBER0 --device cpu",
        "teach taught --undo --device cpu",
    ),
    "pack": (
        "data pack NAMED packed --workers 0",
        "data pack NAMED packed --workers 0",
        "data stats packed --workers 0",
        "data pack NAMED rows --format parquet --workers 0",
        "data stats rows --workers 0",
    ),
    "inspect": ("inspect model PHOTOS --device cpu --output figures --figures rollout",),
    "compare": ("compare model model PHOTOS",),
    "faster": (
        "finetune model PHOTOS --workdir run --minutes 0.001 --device cpu",
        "faster run --lose 50 --output fast",
    ),
}


def check_for_people(said: str, folder: Path) -> None:
    """Raises AssertionError unless what was printed, and every text, is UTF-8 without control characters."""
    assert "Traceback" not in said
    said.encode()
    texts = [("what was printed", said)]
    for path in folder.rglob("*"):
        if path.suffix in (".html", ".json", ".jsonl", ".csv", ".md"):
            texts.append((path, path.read_text("utf-8")))
        if path.suffix == ".json":
            json.loads(path.read_text("utf-8"))
    for name, text in texts:
        assert "\x1b" not in text, name


QUICK_ONES = ("stats", "sort", "features", "compare", "pack")


@pytest.mark.parametrize("name", quick_ones(COMMANDS, QUICK_ONES))
def test_a_command_reads_and_writes_such_names(name, photos, model, tmp_path, capfd):
    for line in COMMANDS[name]:
        if "NAMED" in line and not Path("named").exists():
            # Classes of shards are lines of a text, so their names are text
            shutil.copytree(FOLDER, "named")
            Path("named", CLASSES[0]).rename("named/cafe")
        line = line.replace("PHOTOS", FOLDER).replace("NAMED", "named").replace("FIRST", CLASSES[0])
        words = line.replace("NUMBER0", FILE % 0).split(" ")
        status = main(words)
        said = "".join(capfd.readouterr())
        assert status == 0, f"{line!r}: {as_text(said)}"
        check_for_people(said, tmp_path)
        for page in ("report.html", "review.html"):
            if Path(page).exists():
                assert "\\udce9" in Path(page).read_text("utf-8")


def test_a_table_of_pandas_has_the_escapes_of_csv(photos, model):
    pytest.importorskip("pandas")
    answers = vitkit.predict(model, photos, device="cpu", workers=0, quiet=True)
    table = answers.to_frame()
    assert table["name"].tolist() == [as_text(prediction.name) for prediction in answers]
    assert set(table["label"]) <= set(map(as_text, CLASSES))
    assert "caf\\udce9" in table.to_csv()


def test_a_session_of_such_a_folder(photos, tmp_path):
    (tmp_path / "labels").mkdir()
    names = [f"{CLASSES[1]}/{FILE % 0}", "named.png"]
    for _ in range(2):
        record_session(tmp_path / "labels", Path(FOLDER), check=False)
    session = LabelSession(names, tmp_path / "labels")
    question = session.ask("a")
    session.say("a", question.number, "class", "cat")
    assert session.labels() == {"named.png": "cat"}

    # A journal of somebody else's may have names that no table of text can hold
    with Journal(tmp_path / "labels").path.open("a") as file:
        answer = {"number": 9, "by": "a", "how": "typed", "decision": "class", "label": "cat"}
        file.write(json.dumps(answer | {"photographs": [FILE % 0]}) + "\n")
    session = LabelSession(names, tmp_path / "labels")
    assert session.labels() == {"named.png": "cat", FILE % 0: "cat"}
    write_labels(tmp_path / "labels.csv", "photographs", session.answers)
    assert "\\udce9" in (tmp_path / "labels.csv").read_text("utf-8")


def test_pages_show_control_characters_as_escapes():
    page = html.page(CLASSES[1], [html.table([CLASSES])])
    assert "\x1b" not in page and "\\x1b[2Jgone" in page and "caf\\udce9" in page


@pytest.mark.slow
def test_records_have_the_same_bytes(photos, model, tmp_path):
    vitkit.probe("model", FOLDER, to="head", device="cpu", quiet=True)
    assert sorted(load("head", quiet=True).labels) == sorted(CLASSES)
    write_json(tmp_path / "record.json", {CLASSES[0]: [FILE]})
    assert parse_json((tmp_path / "record.json").read_bytes()) == {CLASSES[0]: [FILE]}
    main(["predict", "model", FOLDER, "--to", "rows.jsonl", "--device", "cpu", "--workers", "0"])
    names = {json.loads(line)["name"] for line in Path("rows.jsonl").read_text().splitlines()}
    assert all(Path(name).is_file() for name in names) and len(names) == 24
    main(["sort", "model", FOLDER, "--into", "sorted", "--device", "cpu", "--workers", "0"])
    found = {path.name for path in Path("sorted").rglob("*.png")}
    assert found >= {FILE % i for i in range(12)}
