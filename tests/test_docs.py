"""What README and docs say holds: links lead somewhere, and commands do their work.

The commands of a page are run one after another, as a reader would, in a folder where every file
that they name exists, with models and runs as small as possible. Those that need a network or a
large model are only read by the command line.
"""

import itertools
import re
import shlex
import shutil
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import encoded, photograph
from PIL import Image

import vitkit
from vitkit import cli
from vitkit.cli.table import COMMANDS, Command
from vitkit.data import Preprocessing
from vitkit.exporting.browser import GLUE, PROGRAM, WASM
from vitkit.models import create, vit
from vitkit.recipes.finetuning import FAMILY
from vitkit.weights import Classifier, save

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LINK = re.compile(r"\]\(([^)#\s]*)#?([^)\s]*)\)")
# The four parts of the documentation, each with a page that lists its others
PARTS = ("tutorials", "how-to", "reference", "explanation")
ENTRY = re.compile(r"^- \[.*?\]\((\S+?)\): \S", re.MULTILINE)

# Names in commands: folders of photographs, models, and words that stand for another one.
PHOTOGRAPHS = "photos more-photos DATA PATH imagenet-val cifar10 tiny_imagenet100".split()
MODELS = [
    *"MODEL OTHER ONE TWO imagenet21k+imagenet2012/ViT-B_16".split(),
    *"google/vit-base-patch16-224 google/vit-base-patch16-224-in21k".split(),
]
CLASSES = ("ants", "bees", "cats", "good")  # folders of photographs that are a class each
PARTS_MADE = ("good", "cracked")  # classes of photographs of parts
# Pages that go on with what the readers of another one have; a command of both is run once
GO_ON = {"first-hour.md": ("README.md", "how-to.md")}
FIRST = ("weights.md",)  # pages whose commands run at once; others as slow tests
PLACEHOLDERS = {"IMAGE...": "holiday.jpg", "RECIPE": "digits", "FORMAT": "native"}

# Settings that make a run short and its model small. They follow the page's own, and the last one
# holds.
SHORT = [
    *"--length 1steps --optim.warmup 0steps --batch 16 --micro-batch 16".split(),
    *"--data.workers 0 --data.no-check --precision float32 --device cpu".split(),
]
SMALL = "--model.width 16 --model.depth 1 --model.mlp 16 --model.heads 1".split()
HEAD = 2  # a seed of its noise with which the model is right on three of four test images
ONE_VALUE = "--weight-decays 0.2 --dropouts 0 --label-smoothings 0".split()  # instead of twelve
ONE_MODEL = "--models mu/16 --sizes 32 --memory 0.02 --device cpu".split()  # not every model
# Not how fast anything is, nor every library (tests/apps/bench)
ONE_TURN = "--batch 1 --rounds 1 --seconds 0.01 --no-start-up --runtimes torch".split()
ONE_SHOWN = "--shown 1".split()  # instead of eight images in every figure
ALL_FIGURES = (["inspect", "MODEL"], ["inspect", "MODEL", "photos/"])  # other commands draw one
ONE_RUN = "--rates 0.01 --seeds 1".split()  # instead of four rates and several seeds


# Links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors_of(path), f"{page.name} links to {target}#{anchor}"


def test_every_promise_of_security_has_its_tests():
    rows = (
        (ROOT / "SECURITY.md").read_text().split("| promise |")[1].split("\n\n")[0].splitlines()[2:]
    )
    assert len(rows) > 10
    for row in rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert tests, row
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 50
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(), (file, name)


def anchors_of(page: Path) -> list[str]:
    """The headings of a page, as GitHub spells them in an address."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


# The four parts


def pages_of(part: str) -> list[str]:
    """The pages of a part of the documentation, as its own page lists them, by their names in the site."""
    names = {
        "../LICENSE": "licence.md",
        **{
            f"../{name.upper()}.md": f"{name}.md"
            for name in ("contributing", "changelog", "security")
        },
    }
    pages = [f"{part}.md"]
    for target in ENTRY.findall((ROOT / "docs" / f"{part}.md").read_text()):
        if target.endswith(".ipynb"):
            target = f"notebooks/{target.removesuffix('.ipynb')}.md"
        pages.append(names.get(target, target))
    return pages


def test_every_page_is_in_one_part():
    listed = [page for part in PARTS for page in pages_of(part)]
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    pages |= {f"notebooks/{path.stem}.md" for path in (ROOT / "docs").glob("*.ipynb")}
    pages |= {"contributing.md", "changelog.md", "security.md", "licence.md"}
    assert sorted(listed) == sorted(pages)


def test_the_site_has_the_same_parts():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert nav[0] == {"vitkit": "index.md"}
    assert len(nav) == 1 + len(PARTS)
    for part, entry in zip(PARTS, nav[1:], strict=True):
        [(title, pages)] = entry.items()
        assert (ROOT / "docs" / f"{part}.md").read_text().startswith(f"# {title}\n")
        in_nav = []
        for page in pages:
            [names] = page.values() if isinstance(page, dict) else [page]
            in_nav += [names] if isinstance(names, str) else names
        # `make docs` writes the pages of the public names
        assert sorted(in_nav) == sorted(
            [*pages_of(part), *["api/index.md"] * (part == "reference")]
        )


def test_readme_fits_on_a_screen_and_its_figures_are_measured():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 75
    assert len(LINK.findall(readme)) <= 12
    measured = (ROOT / "docs" / "accuracy.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| (\d+\.\d %) \| (\S+ ± \S+) \|$", readme, re.MULTILINE)
    assert len(rows) == 3
    for accuracy, difference in rows:
        assert f"` | 20 | {accuracy} | {difference} |" in measured


# Commands


def code_of(page: Path) -> list[str]:
    """The lines of a page's code, each once: continued ones joined, comments left out."""
    lines = []
    fenced = False
    for line in re.sub(r"\\\n\s*", "", page.read_text()).splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            lines.append(re.split(r"\s+#\s|\s{3,}", line.strip())[0])
    return list(dict.fromkeys(lines))


def commands_of(page: Path) -> list[list[str]]:
    """The words of every vitkit command on a page, torchrun's too, with placeholders filled in."""
    matches = [re.fullmatch(r"(?:.*-m )?vitkit (.*?)(?: &)?", line) for line in code_of(page)]
    commands = [shlex.split(match[1]) for match in matches if match]
    return [[PLACEHOLDERS.get(word, word) for word in words] for words in commands]


def is_run(words: list[str]) -> bool:
    """Whether a command ends by itself, and soon, and needs no network, no large model, no folder elsewhere
    and no benchmark. `faster` needs more photographs than are here (tests/apps/faster has some), and Segmenter's
    recipes ADE20k (tests/training runs them on other images)."""
    elsewhere = any(word.startswith(("/", "benchmarks/", "segmenter.")) for word in words)
    return (
        words[0] not in ("push", "app", "faster", "label", "serve", "watch")
        and "--model" not in words
        and not elsewhere
    )


def shortened(words: list[str]) -> list[str]:
    """A command that trains with a short run and a small model; any other as it is."""
    if "--help" in words or len(words) == 1:
        return words
    if "--regularise" in words:
        words = [*words, *ONE_VALUE]
    if words[0] == "train":
        return [*words, *SHORT, *SMALL]
    if "--select" in words:
        return [*words, *SHORT, *ONE_RUN]
    if "--masks" in words and words[0] == "finetune":  # without a recipe
        return [*words, "--tokens", "36", "--device", "cpu"]
    if words[0] == "finetune":
        return [*words, *SHORT]
    if words[0] == "inspect":
        figures = ["--figures", "rollout"]
        if words in ALL_FIGURES or "--figures" in words:
            figures = []
        return [*words, *ONE_SHOWN, *figures]
    if words[0] == "bench":
        return [*words, *ONE_TURN]
    if words[:2] == ["study", "speed"]:
        return [*words, *ONE_MODEL]
    return words


def status_of(words: list[str]) -> int:
    """The exit status of a vitkit command."""
    try:
        return cli.main(words)
    except SystemExit as leaving:  # after --help, or for settings that do not exist
        return leaving.code


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with every file that a command names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in PHOTOGRAPHS:
        make_photographs(tmp_path / name)
    make_masks(tmp_path / "photos", tmp_path / "masks")
    for seed, name in enumerate(CLASSES):
        (tmp_path / name).mkdir()
        for i in range(3):
            file = tmp_path / name / f"{i}.jpg"
            file.write_bytes(encoded(photograph(40, 30, seed=1000 + 10 * seed + i)))
    for seed, name in enumerate(PARTS_MADE):
        (tmp_path / "parts" / name).mkdir(parents=True)
        for i in range(3):
            file = tmp_path / "parts" / name / f"{i}.jpg"
            file.write_bytes(encoded(photograph(40, 30, seed=2000 + 10 * seed + i)))
    make_bottles(tmp_path / "bottle")
    config = vit("mu/16", image=(96, 96), classes=2)
    model = create(config, seed=0)
    noise = torch.Generator().manual_seed(HEAD)
    torch.nn.init.normal_(model.head.weight, generator=noise)
    classifier = Classifier(model, Preprocessing(size=(96, 96)), ("0", "1"))
    for name in MODELS:
        save(classifier, tmp_path / name)
    # What `vitkit finetune photos/` takes where there is no network
    weights = f"{FAMILY[-1].partition('/')[2]}.safetensors"
    shutil.copy(tmp_path / "MODEL" / "model.safetensors", tmp_path / weights)
    for name in ("holiday.jpg", "digit.png"):
        Path(name).write_bytes(encoded(photograph(40, 30)))
    files = [f"photos/train/{label}/{i}.jpg" for label in (0, 1) for i in range(6)]
    tags = [f"{file},{('animal', 'animal;fur', 'fur')[i % 3]}" for i, file in enumerate(files)]
    Path("tags.csv").write_text("\n".join(["file_name,label", *tags]))
    ages = [f"{file},{20 + i}" for i, file in enumerate(files)]
    Path("ages.csv").write_text("\n".join(["file_name,label", *ages]))
    Path("reviewed.txt").write_text("photos/train/0/3.jpg\tlabel\t1\t0\n")
    Path("mine.toml").write_text('[tasks.photos]\n[tasks.more-photos]\ngroup = "own"')
    make_web_runtime(tmp_path / "node_modules" / "onnxruntime-web")
    Path("mine.py").write_text(
        "def flowers():\n    return [('holiday.jpg', i % 2) for i in range(12)]"
    )
    return tmp_path


def make_bottles(folder):
    """Images of parts as MVTec's data sets have them."""
    for number, kind in enumerate(("train/good", "test/good", "test/cracked")):
        (folder / kind).mkdir(parents=True)
        for i in range(3):
            content = encoded(photograph(40, 30, seed=3000 + 10 * number + i), "PNG")
            (folder / kind / f"{i}.png").write_bytes(content)
    mask = np.zeros((40, 30), np.uint8)
    mask[10:20, 5:15] = 255
    (folder / "ground_truth" / "cracked").mkdir(parents=True)
    for i in range(3):
        (folder / "ground_truth" / "cracked" / f"{i}_mask.png").write_bytes(encoded(mask, "PNG"))


def make_photographs(folder: Path) -> None:
    """Training and test images of the classes 0 and 1; one image is in both parts."""
    for part, count in (("train", 6), ("test", 2)):
        for label in (0, 1):
            (folder / part / str(label)).mkdir(parents=True)
            for i in range(count):
                file = folder / part / str(label) / f"{i}.jpg"
                file.write_bytes(encoded(photograph(40, 30, seed=100 * count + 10 * label + i)))
    (folder / "test/0/0.jpg").write_bytes((folder / "train/0/0.jpg").read_bytes())


def make_masks(photographs: Path, folder: Path) -> None:
    """A mask for each photograph: its bright pixels, and the others."""
    for file in photographs.rglob("*.jpg"):
        mask = folder / file.relative_to(photographs).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        grey = np.asarray(Image.open(file).convert("L"))
        mask.write_bytes(encoded((grey > 127).astype(np.uint8), "PNG"))


def make_web_runtime(folder: Path) -> None:
    """The files that `npm install onnxruntime-web` writes, which go into a page; none opens it here."""
    (folder / "dist").mkdir(parents=True)
    (folder / "package.json").write_text('{"name": "onnxruntime-web", "version": "1.30.0"}')
    for name in (PROGRAM, GLUE, WASM):
        (folder / "dist" / name).write_bytes(name.encode())


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=() if page.name in FIRST else pytest.mark.slow)
        for page in PAGES
        if any(map(is_run, commands_of(page))) and page.name not in sum(GO_ON.values(), ())
    ],
)
def test_the_commands_of_a_page_work(page, folder, capsys):
    more = [other for other in PAGES if other.name in GO_ON.get(page.name, ())]
    commands = []
    for each in (page, *more):
        commands += [words for words in commands_of(each) if words not in commands]
    for words in filter(is_run, commands):
        expected = 0
        if words == ["train"]:  # lists the recipes, and that one is missing
            expected = 2
        assert status_of(shortened(words)) == expected, f"{words}: {capsys.readouterr().err}"


def test_commands_that_are_not_run_have_the_settings_that_they_give(folder, monkeypatch, capsys):
    settings = {command.name: command.load_function() for command in COMMANDS}  # of the actions
    monkeypatch.setattr(Command, "load_function", lambda self: settings[self.name])
    monkeypatch.setattr(Command, "run", lambda self, values: 0)
    for page in PAGES:
        for words in itertools.filterfalse(is_run, commands_of(page)):
            assert status_of(words) == 0, f"{words}: {capsys.readouterr().err}"


def test_a_command_that_does_not_work_is_noticed(folder, capsys):
    assert status_of(["evaluate", "MODEL", "nothing/"]) == 1
    assert status_of(["evaluate", "MODEL", "DATA", "--no-such-setting"]) == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_have_the_settings_that_a_page_gives_them(page):
    for line in code_of(page):
        words = line.replace("[", "").replace("]", "").split()
        if words[:1] != ["python"]:
            continue
        source = (ROOT / words[1]).read_text()
        for shared in ("side_by_side", "shares", "record"):
            if f"from {shared} import" in source or f"{shared}.model_arguments" in source:
                source += (ROOT / "benchmarks" / f"{shared}.py").read_text()
        for flag in words:
            if flag.startswith("--"):
                setting = flag.rpartition(".")[2].removeprefix("--").replace("-", "_")
                names = (f'"{flag}"', f"{setting}:")
                assert any(name in source for name in names), f"{page.name}: {line}"


# Python


def test_the_python_of_readme_and_tour_runs(folder, capsys, monkeypatch):
    monkeypatch.setattr(vitkit, "create", partial(vitkit.create, depth=4))  # of its 12 blocks
    Path("runs").mkdir()
    for run in ("digits", "photos"):
        Path("runs", run).symlink_to(folder / "MODEL")
    names = {}
    for page, first in (("README.md", "more-photos/"), ("docs/tour.md", "0 1")):
        [block] = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        exec(block, names)
        assert capsys.readouterr().out.split()[0].startswith(tuple(first.split()))
    assert names["record"].attention[3].shape == (2, 12, 193, 193)
