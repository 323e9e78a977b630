"""Runs from a stranger: what their records name is not run, not fetched and not written to."""

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from canaries import Canaries
from pictures import make_photographs
from quick_ones import quick_ones
from rich.console import Console

import vitkit
from vitkit.apps.faster.subjects import of_run
from vitkit.cli.entry import main
from vitkit.data import Augmentation, Preprocessing
from vitkit.models import ViTConfig, create, vit
from vitkit.recipes import Data, Recipe, recipe
from vitkit.system.span import Span
from vitkit.training import counting_as_typed, open_learned, open_part, read_run, run_recipe
from vitkit.training.state.checkpoints import FINISHED, checksum, read_sealed, write_sealed
from vitkit.training.state.finish import model_is_intact
from vitkit.weights import Classifier, load, save

OWN = """
from pathlib import Path
from vitkit.data import open_splits

def make():
    with Path("asked").open("a") as file:
        file.write("once ")
    return open_splits("photos")
"""
RECIPE = Recipe(
    model=ViTConfig(width=16, depth=1, mlp=16, heads=2, patch=4, image=(8, 8), classes=0),
    data=Data(
        source="photos",
        preprocessing=Preprocessing(size=(8, 8)),
        augmentation=Augmentation(crop="none", flip=False),
        workers=0,
    ),
    length=Span(4),
    batch=8,
    log_every=2,
    evaluate_every=Span(4),
    save_every=Span(4),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Photographs, a run of `train` on them, and another one."""
    folder = tmp_path_factory.mktemp("strangers")
    make_photographs(folder)
    with contextlib.chdir(folder):
        run_recipe(RECIPE, folder / "trained", "cpu", Console(quiet=True))
        shutil.copytree("trained", "other")
    network = create(vit("mu/8", image=(16, 16), depth=1, classes=2), seed=0)
    save(Classifier(network, Preprocessing(size=(16, 16)), ("a", "b")), folder / "start")
    return folder


@pytest.fixture(scope="module")
def made_quickly(made):
    """A quick run on the same photographs."""
    settings = {"minutes": 0.001, "device": "cpu", "quiet": True}
    with contextlib.chdir(made):
        vitkit.finetune("start", "photos", workdir=Path("quick"), **settings)
    return made / "quick"


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture(params=["trained", pytest.param("quick", marks=pytest.mark.slow)])
def run(request, here):
    """The directory of a run of each kind."""
    if request.param == "quick" and not Path("quick").exists():
        shutil.copytree(request.getfixturevalue("made_quickly"), "quick")
    return request.param


@pytest.fixture
def canaries(tmp_path):
    with contextlib.closing(Canaries(tmp_path / "canaries")) as planted:
        yield planted


def say(run: str, **names: str) -> None:
    """Write into a run's records what images it had, as a stranger would."""
    for file in (Path(run, "recipe.json"), Path(run, "data.json")):
        values = json.loads(file.read_text("utf-8"))
        if "data" in values:
            values["data"]["source"] = names["source"]
        else:
            values["source"] = names["source"]
            values.pop("place", None)
            values |= {"place": names["place"]} if "place" in names else {}
        file.write_text(json.dumps(values), "utf-8")


COMMANDS = {
    "report": lambda run: ["report", run],
    "several": lambda run: ["report", run, "other"],
    "compare": lambda run: ["compare", "other", run],
    "faster": lambda run: ["faster", run, "--budget", "1s"],
    "export": lambda run: ["export", run, "-o", "x.onnx", "--precision", "int8"],
    "doctor": lambda run: ["doctor", "--run", run],
}


@pytest.mark.parametrize("command", quick_ones(COMMANDS, ("faster", "export", "doctor")))
@pytest.mark.parametrize("kind", quick_ones(["code", "address", "braces"], ["code"]))
def test_no_command_runs_or_asks_what_a_run_names(command, run, kind, here, canaries, capfd):
    name = getattr(canaries, kind)
    say(run, source=name)
    main(COMMANDS[command](run))
    assert canaries.sang() == []
    said = " ".join("".join(capfd.readouterr()).split())
    if command != "doctor":
        page = ""
        if "wrote trained/report.html" in said:
            page = Path("trained/report.html").read_text()
        assert "that a file names" in said + page


@pytest.mark.parametrize("kind", ["code", "address", "braces"])
def test_neither_does_the_place_in_data_json(run, kind, here, canaries):
    say(run, source="gone", place=getattr(canaries, kind))
    for ask in (
        lambda: open_part(read_run(Path(run)), "test"),
        lambda: open_learned(read_run(Path(run))),
    ):
        with pytest.raises(ValueError, match=r"data\.json names .* that a file names"):
            ask()
    with pytest.raises(ValueError, match="that a file names"):
        of_run(load(run, quiet=True), Path(run))
    assert canaries.sang() == []


@pytest.mark.parametrize(
    "name", ["hf:you/birds", "s3://bucket/birds", "//server/share/birds", r"\\server\share"]
)
def test_other_ways_to_other_machines(name, here):
    say("trained", source=name)
    with pytest.raises(ValueError, match="on another machine"):
        open_part(read_run(Path("trained")), "test")


def test_a_place_of_this_machine_is_opened_if_its_images_are_those_of_the_run(here):
    """A run was copied from elsewhere: its own images are found; others are not shown, whatever a
    stranger wrote, because they have another fingerprint."""
    say("trained", source="/gone", place=str(here / "photos"))
    assert len(open_part(read_run(Path("trained")), "test")) == 8
    make_photographs(here / "private")
    (here / "private/photos/red/0.jpg").unlink()
    say("trained", source=str(here / "private/photos"))
    with pytest.raises(ValueError, match="has changed since the run"):
        open_part(read_run(Path("trained")), "test")


@pytest.fixture
def own(here):
    """A function of one's own, which counts how often it was asked."""
    Path("own.py").write_text(OWN)

    def asked() -> int:
        count = Path("asked").read_text().count("once") if Path("asked").exists() else 0
        Path("asked").unlink(missing_ok=True)
        return count

    return asked


@pytest.mark.slow
def test_a_run_on_a_function_of_one_s_own_goes_on_working(own, capsys):
    """Typed, it is run, as often as it is needed; not typed, it is not, and a sentence says what to do."""
    words = ["train", "trained.py:recipe", "--workdir", "mine", "--device", "cpu"]
    Path("trained.py").write_text(
        "from test_strangers import RECIPE\nfrom dataclasses import replace\n"
        "def recipe():\n    data = replace(RECIPE.data, source='own.py:make')\n"
        "    return replace(RECIPE, data=data)\n"
    )
    assert main(words) == 0 and own()
    page = Path("mine/report.html").read_text()
    assert "that a file names" not in page
    assert main(words) == 0 and own()  # the same command continues
    assert main(["evaluate", "mine", "own.py:make", "--device", "cpu"]) == 0 and own()

    assert main(["report", "mine"]) == 0 and not own()
    page = Path("mine/report.html").read_text()
    assert "names the Python function own.py:make" in page and "give that name as" in page
    assert main(["report", "mine", "--data", "own.py:make"]) == 0 and own()
    page = Path("mine/report.html").read_text()
    assert "that a file names" not in page
    capsys.readouterr()
    shutil.copytree("mine", "copy")
    assert main(["compare", "mine", "copy", "--data", "own.py:make"]) == 0 and own()
    assert "on the 8 images that both held out" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", "mine", "copy"]) == 0 and not own()
    said = " ".join(capsys.readouterr().out.split())
    assert "their answers cannot be compared image by image" in said


@pytest.mark.slow
def test_so_does_a_quick_one(own, capsys):
    words = ["finetune", "start", "own.py:make", "--workdir", "mine", "--minutes", "0.001"]
    words += ["--device", "cpu"]
    assert main(words) == 0 and own()
    assert main(words) == 0 and own()
    capsys.readouterr()
    assert main(["report", "mine"]) == 1 and not own()
    said = " ".join(capsys.readouterr().err.split())
    assert "mine/recipe.json names the Python function own.py:make" in said
    assert main(["report", "mine", "--data", "own.py:make"]) == 0 and own()
    run = read_run(Path("mine"), ("own.py:make",))
    assert len(open_learned(run)) and own()
    with pytest.raises(ValueError, match="give that name as `data`"):
        of_run(load("mine", quiet=True), Path("mine"))
    assert of_run(load("mine", quiet=True), Path("mine"), ("own.py:make",)) and own()
    with counting_as_typed("own.py:make"):  # as `finetune` with `fast` does, at its end
        assert of_run(load("mine", quiet=True), Path("mine")) and own()
    with pytest.raises(ValueError, match="give that name as `data`"):
        of_run(load("mine", quiet=True), Path("mine"))


def test_recipes_are_programs_whose_names_count_as_typed(own):
    """A recipe in Python is code of a person already, so it may name more."""
    data = replace(RECIPE.data, source="own.py:make")
    run_recipe(replace(RECIPE, data=data), "mine", "cpu", Console(quiet=True))
    assert own()
    Path("named.py").write_text(
        "from vitkit.recipes import digits\ndef mine():\n    return digits()\n"
    )
    assert recipe("named.py:mine").name == "digits"


def test_doctor_opens_no_other_machine_that_a_record_says_a_run_began_with(here, canaries):
    for name in canaries.names(here / "trained"):
        for file in ("trained/recipe.json", "trained/model/config.json"):
            values = json.loads(Path(file).read_text())
            values["init"] = name
            values.get("vitkit", {}).get("origin", {})["init"] = name
            Path(file).write_text(json.dumps(values))
        main(["doctor", "--run", "trained", "--model", "trained"])
        assert canaries.sang() == []


@pytest.mark.slow
def test_a_metric_that_was_not_measured_is_damage(here):
    """Found by the fuzzing: `report` ended with a traceback."""
    path = Path("trained/metrics.jsonl")
    path.write_text(path.read_text().replace('"primary": "test/top1"', '"primary": "gone"'))
    assert main(["report", "trained"]) == 0
    assert read_run(Path("trained")).primary() is None


def test_checksums_of_a_run_are_those_of_its_own_files(here):
    """A stranger's finished.json, or state.json of a checkpoint, names no file outside."""
    secret = here / "secret"
    secret.write_text("private")
    path = Path("trained", FINISHED)
    values = read_sealed(path)
    assert model_is_intact(Path("trained"))
    for name in ("../../secret", str(secret)):
        write_sealed(path, values | {"sha256": values["sha256"] | {name: checksum(secret)}})
        assert not model_is_intact(Path("trained"))
