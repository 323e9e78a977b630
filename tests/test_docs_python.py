"""docs/python.md: its code runs, in order, in a folder where every file that it names exists; it
calls every public name; and what it sets beside other libraries' lines gives the same numbers."""

import ast
import inspect
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from margins import at_least
from pictures import encoded, photograph

import vitkit
from vitkit.cli.table import COMMANDS
from vitkit.data import Preprocessing, open_source
from vitkit.weights.proof import convert_weights

PAGE = Path(__file__).parents[1] / "docs/python.md"
REAL = "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
FILE = "vit_tiny_patch16_224.safetensors"
DIRECTORY = "google/vit-base-patch16-224"
SECTION = re.compile(r"^##+ (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(.*?)` \| `(.*?)` \|$", re.MULTILINE)


def sections() -> dict[str, str]:
    """The text below each heading."""
    parts = SECTION.split(PAGE.read_text())
    return dict(zip(parts[1::2], parts[2::2], strict=True))


LIBRARIES = {
    "Transformers": (),
    "timm": (),
    "torchvision": pytest.mark.slow,  # the smallest of its models has 86 million parameters
}


TIMMS = Preprocessing(size=(224, 224), rule="shorter", resize=248, interpolation="bicubic")
"""The preprocessing of timm's vit_tiny_patch16_224."""


def save_published(preprocessing: Preprocessing, labels: tuple[str, ...]) -> None:
    """A random model as the published ones that the page names: one file and one directory."""
    size = preprocessing.size
    model = vitkit.create("Ti/16", image=size, classes=len(labels), gelu="erf", seed=0).eval()
    torch.nn.init.normal_(model.head.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    classifier = vitkit.Classifier(model, preprocessing, labels)
    convert_weights(classifier, Path(FILE), "timm")
    vitkit.save(classifier, DIRECTORY)


def run(blocks: list[str], names: dict) -> dict:
    """The names after these blocks of code have run, one after the other."""
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    return names


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with photographs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    Path("more-photos").mkdir()
    for name in ("holiday.jpg", "more-photos/cat.jpg"):
        Path(name).write_bytes(encoded(photograph(300, 400)))
    for label in ("ant", "bee"):
        Path("photos", label).mkdir(parents=True)
        for i in range(8):
            pixels = photograph(40, 30, seed=i)
            pixels[..., 0] //= 1 + 3 * (label == "bee")
            Path("photos", label, f"{i}.jpg").write_bytes(encoded(pixels))
    return tmp_path


@pytest.mark.slow
def test_the_code_runs(folder, capsys):
    save_published(Preprocessing(size=(32, 32)), ("cat", "dog", "owl"))
    blocks = []
    for title, text in sections().items():
        if title not in LIBRARIES:
            blocks += BLOCK.findall(text)
    names = run(blocks, {})
    assert names["probabilities"].shape == (2, 3)
    assert names["states"][-1].shape == (1, 5, 192)
    assert names["maps"][-1].shape == (1, 192, 2, 2)
    assert names["classifier"].labels == ("ant", "bee")
    assert vitkit.load("ants", quiet=True).labels == ("ant", "bee")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("take other weights: ")
    assert lines[1].startswith("holiday.jpg ")


def test_every_public_name_is_called():
    called = set()
    for block in BLOCK.findall(PAGE.read_text()):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Call):
                called.add(ast.unparse(node.func))
    functions = {f"vitkit.{command.function}" for command in COMMANDS}  # the notebook calls them
    errors = set()
    packages = set()
    for name in vitkit.__all__:
        value = getattr(vitkit, name)
        if isinstance(value, type) and issubclass(value, BaseException):
            errors.add(f"vitkit.{name}")
        if inspect.ismodule(value):
            packages.add(f"vitkit.{name}")
    assert all(f"`{name.removeprefix('vitkit.')}`" in PAGE.read_text() for name in errors)
    missing = {f"vitkit.{name}" for name in vitkit.__all__} - called - functions - errors - packages
    assert not {name for name in missing if f"{name}(" not in PAGE.read_text()}
    assert vitkit.__version__ and "`vitkit.__version__`" in PAGE.read_text()


@pytest.fixture
def published(folder):
    """What the lines load, with real weights and a real photograph if they are here."""
    shared = Path(__file__).resolve().parents[2] / "shared"
    if (shared / REAL).exists():
        shutil.copy(shared / REAL, FILE)
        vitkit.save(vitkit.load(FILE, quiet=True), DIRECTORY)
        source = open_source(str(shared / "data/ants_bees-test.parquet"))
        Path("holiday.jpg").write_bytes(source[15][0])
    else:
        save_published(TIMMS, tuple(map(str, range(1000))))
    return folder


def torchvisions_file() -> None:
    """Random weights where torchvision looks for those that it has downloaded."""
    from torchvision.models import vit_b_16

    path = Path(torch.hub.get_dir(), "checkpoints/vit_b_16-c867db91.pth")
    path.parent.mkdir(parents=True)
    model = vit_b_16()
    torch.nn.init.normal_(model.heads.head.weight, std=0.02)
    torch.save(model.state_dict(), path)


@pytest.mark.parametrize(
    "library", [pytest.param(name, marks=marks) for name, marks in LIBRARIES.items()]
)
@pytest.mark.slow
def test_line_by_line_the_numbers_are_the_same(library, published, capsys):
    if library == "torchvision":
        torchvisions_file()
    text = sections()[library]
    theirs, ours = (run([block], {}) for block in BLOCK.findall(text))
    rows = [("x", "x"), ("logits", "logits"), *ROW.findall(text)]
    assert len(rows) > 4
    for left, right in rows:
        with torch.no_grad():
            expected = eval(left, theirs)
            answer = eval(right, ours)
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(answer, expected, atol=1e-5, rtol=1e-5, msg=left)
        else:
            assert answer == expected, left
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 and printed[1].startswith(printed[0])


# The notebook


NOTEBOOK = PAGE.with_name("first_steps.ipynb")


def test_the_notebook_was_executed_and_is_small():
    text = NOTEBOOK.read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", ()) for output in outputs) == 3
    assert not any(output["output_type"] == "error" for output in outputs)
    assert len(text) < 500_000
    assert not re.search(r"(?<![\w.:/])/(home|root|work|tmp|usr|Users)/", text)


@pytest.mark.parametrize("data", ["photos", pytest.param("digits", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_notebook_runs_with_a_small_model(data, folder, capsys):
    save_published(Preprocessing(size=(32, 32)), ("cat", "dog", "owl"))
    if data == "digits":  # what it takes where there are no photographs
        shutil.rmtree("photos")
    names = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            run(["".join(cell["source"])], names)
    names["plt"].close("all")
    assert (names["MODEL"], names["PHOTOS"]) == (FILE, data)
    at_least(names["mine"].left_out_score_, 0.7)
    assert vitkit.load("my-model", quiet=True).labels == tuple(names["mine"].classes_)
    assert "test part:" in capsys.readouterr().out
