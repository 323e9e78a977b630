"""What people type who have not read help: it is done where it is certain what they mean, else
answered in one sentence."""

import json
import os
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from pictures import encoded, make_photographs, photograph

from vitkit.cli import other_tools
from vitkit.cli.entry import main
from vitkit.cli.guesses import meant
from vitkit.cli.table import COMMANDS, WrongWords
from vitkit.system.functions.parameters import options
from vitkit.system.values import choices_of

NAMES = {command.name: command for command in COMMANDS}


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Photographs that no test changes."""
    return make_photographs(tmp_path_factory.mktemp("once"))


@pytest.fixture(autouse=True)
def folder(once, tmp_path, monkeypatch):
    """A folder with photographs, an archive of them, a file of recipes, and a finished run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(once, "photos", copy_function=os.link)  # files are written slowly
    Path("photo.jpg").write_bytes(encoded(photograph(40, 40), "JPEG"))
    Path("photos.zip").write_bytes(b"PK\x03\x04")
    Path("run/model").mkdir(parents=True)
    Path("one.py").write_text(
        "from vitkit.recipes import recipe\ndef mine():\n    return recipe('digits')\n"
    )
    Path("two.py").write_text("def a(): ...\ndef b(): ...\ndef _c(): ...\n")
    return tmp_path


def answer(capsys, words: str) -> tuple[int, str]:
    """Runs `vitkit WORDS`: its exit status, and all that it printed, on one line."""
    try:
        status = main(words.split())
    except SystemExit as end:
        status = end.code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    return status, " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        # No command, or another tool's
        ("photo.jpg", 2, "photo.jpg is an image, and what to do with it comes first: vitkit predict"),
        ("photos/", 2, "vitkit finetune photos/ makes a classifier of it"),
        ("run", 2, "run is a model, and what to do with it comes first: vitkit predict run"),
        ("one.py", 2, "vitkit train one.py:FUNCTION"),
        ("nosuch", 2, "there is no command 'nosuch'; vitkit alone lists all"),
        ("tran digits", 2, "there is no command 'tran'; did you mean 'train'?"),
        ("version", 0, "vitkit "),
        ("eval", 2, "took eval for vitkit evaluate vitkit: MODEL is missing"),
        ("classify photo.jpg", 2, "photo.jpg is not a model, and MODEL comes first: vitkit predict"),
        ("test run", 2, "DATA is missing: vitkit evaluate MODEL DATA"),
        ("help data", 0, "data stats DATA"),
        # Words for what there is no command of
        ("gui", 2, "took gui for vitkit app vitkit: MODEL is missing"),
        ("resume run", 2, "the same command again continues a run"),
        ("undo", 2, "originals stay where they are"),
        ("delete run", 2, "vitkit deletes no files; vitkit data review DATA MODEL lists"),
        ("clean photos", 2, "took clean for vitkit data review vitkit: MODEL is missing: vitkit data review"),
        ("search photos", 2, "vitkit features MODEL photos -o features.parquet"),
        ("cluster run photos", 2, "vitkit features run photos -o features.parquet"),
        ("similar run", 2, "vitkit features run DATA -o features.parquet"),
        ("search rum photos", 2, "vitkit features rum photos -o features.parquet"),
        ("dedupe run photos", 2, "vitkit data stats photos finds"),
        ("explore photos", 2, "vitkit inspect MODEL draws what a model has learned, and vitkit data stats photos"),
        ("metrics run photos", 2, "vitkit evaluate run photos measures"),
        ("purge photos", 2, "vitkit deletes no files"),
        ("prune run", 2, "vitkit faster run finds"),
        ("tidy photos", 2, "took tidy for vitkit data review"),
        ("dedup photos", 2, "vitkit data stats photos finds"),
        ("docs", 2, "vitkit COMMAND --help explains a command"),
        ("score run", 2, "took score for vitkit evaluate"),
        ("benchmark", 2, "took benchmark for vitkit bench"),
        ("clasify run", 2, "there is no command 'clasify'; did you mean 'predict'?"),
        ("plans", 2, "did you mean 'plan'?"),
        ("lemon", 2, "there is no command 'lemon'; vitkit alone lists all"),
        ("export run --format coreml", 2, "writes onnx, openvino, torch, torchscript and page, and not coreml"),
        ("export run -o run.onnx --format engine", 2, "--to is 'engine'; it is one of onnx, openvino"),
        ("evaluate run photos --calibration", 2, "--calibrate DIR writes the model"),
        ("train scratch photos --config my.yaml", 2, "vitkit train FILE.py:FUNCTION"),
        ("teach run name photos", 2, "vitkit teach run DIR --add name=photos"),
        ("batch run photos -o out.parquet", 1, "write one table of all answers: --to out.parquet"),
        ("sort run photos --into out.csv", 1, "it names a folder, such as out"),
        ("finetune photos --minutes", 2, "--minutes needs a value"),
        ("ls", 2, "vitkit models lists"),
        ("quantise run", 2, "vitkit export run -o model.onnx --precision int8"),
        ("data check photos", 0, "took data check for vitkit data stats"),
        ("data split photos", 2, "vitkit finetune photos and vitkit train hold out a fifth"),
        ("sort run photos --dry-run", 2, "vitkit predict run photos says what each photograph is"),
        ("predict run photos --conf 0.8", 2, "vitkit sort --sure 0.8"),
        ("train --dry-run", 2, "usage: vitkit train RECIPE"),
        ("train digits --dry-run --gpus 1", 0, "took train --dry-run for vitkit plan"),
        ("train --dry-run digits --gpus 1", 0, "took train --dry-run for vitkit plan"),
        ("train digits --workdir runs/a --device=cpu --dry-run --gpus 1", 0, "on each GPU"),
        ("train --data photos --dry-run", 2, "vitkit finetune DATA --minutes 0.1"),
        ("train --data photos --minutes", 2, "took train --data photos for vitkit finetune photos"),
        ("data review photos --dry-run", 2, "took --dry-run for data review without --yes"),
        ("data review photos --dry-run --yes", 2, "leave out one of --dry-run and --yes"),
        ("predict run photos --csv", 2, "--csv needs a value, as in --to answers.csv"),
        # What the parser complains of is a sentence
        ("convert run timm", 2, "--to FORMAT is missing: the format"),
        ("train digits --optim.lr", 2, "--optim.lr needs a value"),
        ("evaluate run --data", 2, "--data needs a value, as in --data DATA"),
        ("train digits --out", 2, "--out needs a value, as in --workdir DIR"),
        ("train digits --batchsize", 2, "--batchsize needs a value, as in --batch 1"),
        ("train digits --learningrate 1 --batchsize=0", 1, "took --batchsize=0 for --batch 0"),
        ("train digits --optim.lr 0", 2, "--optim.lr is 0.0; it must be"),
        ("train digits --data.augmentation.erase 3", 2, "--data.augmentation.erase is 3.0; it is a share"),
        ("train digits --data.hold-out 3", 1, "--data.hold-out is 3.0; it is a share"),
        ("data stats photos --data.columns.level 0", 1, "--data.columns.level is 0"),
        ("train digits --model.image", 2, "--model.image needs a value, as in --model.image 224"),
        ("train digits --model.image big", 2, "--model.image is 'big'; it takes a whole number, or two"),
        ("train digits --data.preprocessing.size 32", 2, "--data.preprocessing.size takes two whole numbers"),
        ("train digits --seed 1 2", 2, "2 is one word too many"),
        ("show run --pool cls", 2, "--pool is 'cls'; it is one of token, gap, corner"),
        ("evaluate run photos --evals accurate", 2, "--evals is 'accurate'; it is one of accuracy"),
        ("finetune phtos", 1, "there is no folder, file or data set 'phtos'; did you mean photos?"),
        ("app --help", 0, "MODEL [OTHER]"),
        ("help show", 0, "usage: vitkit show"),
        # The first words of train
        ("train photos/", 1, "vitkit finetune photos/ trains published weights on them"),
        ("train photos scratch", 1, "the recipe comes before the images: vitkit train scratch photos"),
        ("train two.py", 1, "a recipe is a function of it: say two.py:a or two.py:b"),
        ("train one.py --length soon", 2, "took one.py for one.py:mine, its only function"),
        ("train scratch photos/ --gpus 2", 2, "torchrun --nproc-per-node 2 -m vitkit train"),
        ("train scratch photos/ --pretrained", 2, "vitkit finetune and vitkit probe always begin"),
        ("train scratch photos/ --num-classes 2", 2, "the classes are those of the images"),
        ("train scratch photos/ --resume run", 2, "the same command again continues a run"),
        ("train scratch photos/ more", 2, "more is one word too many: vitkit train RECIPE [DATA]"),
        # Options that nothing has, or without their value
        ("train digits --epochs", 2, "--epochs needs a value, as in --length 1epochs"),
        ("train digits --optm.lr 1", 2, "has no --optm.lr; did you mean --optim.lr?"),
        ("train digits --width 1", 2, "has no --width; did you mean --model.width?"),
        ("evaluate run photos --epochs 5", 2, "vitkit evaluate has no --epochs; --help-all lists"),
        # Words in other places
        ("evaluate photos/", 2, "photos/ is not a model, and MODEL comes first: vitkit evaluate"),
        ("sort photos run --into out", 2, "vitkit sort run photos --into out"),
        ("sort photo.jpg photos run --into out --sure 0.9", 2, "vitkit sort run photo.jpg photos --into out --sure 0.9"),
        ("serve photos run --port 80", 2, "MODEL comes first: vitkit serve run --port 80"),
        ("probe photos", 2, "photos is not a model, and MODEL comes first: vitkit probe"),
        ("predict run photos.zip", 2, "photos.zip is an archive; unpack it, and give the folder"),
        ("predict photos.zip", 2, "photos.zip is an archive"),
        ("data stats photos.zip", 2, "photos.zip is an archive"),
        ("evaluate run photo phot more", 2, "phot is one word too many: vitkit evaluate MODEL DATA"),
        ("predict run", 2, "IMAGE is missing: vitkit predict MODEL IMAGE..."),
        ("data photos", 0, "took data photos for vitkit data stats photos"),
    ],
)  # fmt: skip
def test_a_guess_is_done_or_answered(words, status, sentence, capsys):
    actual_status, printed = answer(capsys, words)
    assert sentence in printed
    assert actual_status == status


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [
        (["f"], ["finetune", "fewshot", "features", "faster"]),
        (["data", ""], ["stats", "review", "pack"]),
        (["data", "review", "photos", "--app"], ["--apply"]),
        (["predict", "run", "--runtime", "o"], ["onnx", "openvino"]),
        (["train", "digi"], ["digits"]),
        (["train", "digits", "--optim.schedule", "c"], ["cosine", "constant"]),
        (["predict", "run", "My"], ["My photos"]),
    ],
)
def test_a_shell_completes_words(typed, proposed, capsys, tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    (tmp_path / "My photos").mkdir()
    script += f"COMP_WORDS=({shlex.join(['vitkit', *typed])}); COMP_CWORD={len(typed)}\n"
    script += "_vitkit; printf '%s\\n' \"${COMPREPLY[@]}\""
    ran = subprocess.run(
        [bash, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == proposed


def test_a_shell_without_a_script_is_a_sentence(capsys):
    assert main(["completion", "zsh"]) == 0 and "bashcompinit" in capsys.readouterr().out
    assert main(["completion"]) == main(["--print-completion", "fish"]) == 2
    assert "vitkit completion bash or zsh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ("train digits --epochs 5 --batch_size=16", "digits --length 5epochs --batch 16"),
        ("train scratch --data photos/", "scratch photos/"),
        ("finetune --data photos/ --model run", "run photos/"),
        ("finetune --data.source photos/", "photos/"),
        ("finetune run --data.source=photos/ --minutes 1", "run photos/ --minutes 1"),
        ("train scratch photos --lr 0.01 --wd 0.1", "scratch photos --optim.lr 0.01 --optim.weight-decay 0.1"),
        ("train digits --gpu 0 --fp16 True", "digits --device cuda:0 --precision auto"),
        ("train digits --fp16 False", "digits"),
        ("train digits --device 1 -j 2", "digits --device cuda:1 --data.workers 2"),
        ("train digits --gpu --batch 3", "digits --device cuda --batch 3"),
        ("train digits --gpu cuda:1", "digits --device cuda:1"),
        ("train digits --output_dir here", "digits --workdir here"),
        ("train digits --model-name S/16", "digits --model S/16"),
        (
            "train scratch photos --img-size 384",
            "scratch photos --model.image 384 384 --data.preprocessing.size 384 384 "
            "--data.preprocessing.resize 0",
        ),
        (
            "train digits --image 32 --patch-size 8",
            "digits --model.image 32 32 --data.preprocessing.size 32 32 "
            "--data.preprocessing.resize 0 --model.patch 8 8",
        ),
        (
            "train digits --model.image 16x32 --data.preprocessing.size 16 32",
            "digits --model.image 16 32 --data.preprocessing.size 16 32",
        ),
        ("export run --format onnx", "run -o run.onnx"),
        ("export run -o run.onnx --half", "run -o run.onnx --precision float16"),
        ("export run openvino --precision int8", "run -o run.xml --precision int8"),
        ("export run my.onnx", "run -o my.onnx"),
        ("batch run photos --to parts", "run photos --into parts"),
        ("sort run photos --conf 0.9", "run photos --sure 0.9"),
        ("train digits epochs=3 batch=8 imgsz=8", "digits --length 3epochs --batch=8 --model.image 8 8 "
         "--data.preprocessing.size 8 8 --data.preprocessing.resize 0"),
        ("evaluate run photos --num-workers 3 --batch-size 9", "run photos --workers 3 --batch 9"),
        ("evaluate --model run --data photos", "run photos"),
        ("evaluate --data photos run", "run photos"),
        ("evaluate photos run --json", "run photos --json"),
        ("predict photo.jpg run", "run photo.jpg"),
        ("predict run photo.jpg --top-k 3 --imgsz 100", "run photo.jpg --top 3 --image 100"),
        ("probe photos google/vit-base --output here", "google/vit-base photos --to here"),
        ("finetune photos run", "run photos"),
        ("finetune run photos --num_train_epochs 3", "run photos --length 3epochs"),
        ("features run photos -o x.npz", "run photos -o x.npz"),
        ("convert run --output there --to timm", "run there --to timm"),
        # As they are
        ("predict run photo.jpg other/photo.jpg", "run photo.jpg other/photo.jpg"),
        ("evaluate run x=y/photos", "run x=y/photos"),
        ("train digits --batch 8 --optim.lr -1", "digits --batch 8 --optim.lr -1"),
        ("teach run --add root=photos/ classes=photos/", "run --add root=photos/ classes=photos/"),
    ],
)  # fmt: skip
def test_what_is_certain_is_taken_for_what_it_means(words, taken, capsys):
    name, *rest = words.split()
    assert meant(NAMES[name], rest) == taken.split()
    told = capsys.readouterr().err.splitlines()
    assert all(line.startswith("took ") for line in told)
    is_square = taken.split() == [*rest, rest[-1]]
    assert bool(told) == (rest != taken.split() and "False" not in rest and not is_square)


def test_suggestions_are_words_of_a_shell(folder, capsys):
    """Names with spaces are quoted, and the model is one that is here."""
    shutil.copytree("photos/red", "My Photos")
    Path("run/model/config.json").write_text("{}")
    for words in (["predict", "My Photos", "photos"], ["data", "review", "My Photos"]):
        assert main(words) == 2
        assert "'My Photos'" in capsys.readouterr().err
    with pytest.raises(WrongWords, match="vitkit predict run 'My Photos' photos"):
        meant(NAMES["predict"], ["My Photos", "photos"])


@pytest.mark.parametrize("command", NAMES)
def test_help_says_nothing_in_python(command, capsys):
    """A setting that may be absent is no `None`, neither a choice nor a default."""
    words = [*command.split(), "--help-all"]
    if command in ("train", "plan"):
        words.insert(1, "digits")
    _, printed = answer(capsys, " ".join(words))
    assert "usage: vitkit" in printed
    assert "None" not in printed


OWN = set()
WORDS = " ".join(command.words for command in COMMANDS)
for _command in COMMANDS:
    for _option in options(_command.load_function()):
        OWN.add(f"{_option.name}." if _option.is_open else _option.name)


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ("finetune --minutes 1 photos", "photos --minutes 1"),
        ("finetune --select run photos", "run photos --select"),
        ("finetune --minutes=1 photos --workdir run", "photos --minutes=1 --workdir run"),
        (
            "finetune --minutes 1 run --workdir there photos",
            "run photos --minutes 1 --workdir there",
        ),
        ("evaluate --limit 3 run photos", "--limit 3 run photos"),  # which needs them nowhere
    ],
)
def test_images_may_follow_the_options(words, taken):
    name, *rest = words.split()
    assert meant(NAMES[name], rest) == taken.split()


@pytest.mark.parametrize("name", other_tools.SETTINGS)
def test_every_foreign_name_stands_for_something_that_a_command_has(name):
    """A renamed setting is not forgotten in the table."""
    for template in other_tools.SETTINGS[name]:
        first, *_ = template.split()
        option = first.removeprefix("--")
        if option == first:
            assert first in WORDS
        else:
            assert option in OWN or f"{option.partition('.')[0]}." in OWN, template


@pytest.mark.parametrize("command", NAMES)
def test_a_value_that_a_foreign_name_stands_for_is_one_that_the_option_takes(command):
    """--half stood for --precision auto, which export refuses."""
    choices = {}
    for option in options(NAMES[command].load_function()):
        choices[f"--{option.name}"] = choices_of(option.kind)
    for name, templates in other_tools.SETTINGS.items():
        owner = name.rpartition(" ")[0]
        if f"{command} {name}" in other_tools.SETTINGS or owner not in ("", command):
            continue  # another line is read
        words = templates[0].split()
        for option, value in pairwise(words):
            if choices.get(option) and "{" not in value:
                assert value in choices[option], f"{name} of {command}"


def test_no_answer_deletes_anything():
    texts = [*other_tools.COMMAND_ANSWERS.values(), *other_tools.ANSWERS.values()]
    assert not [text for text in texts if re.search(r"\brm\b|\bdel\b|unlink", text)]


def test_other_names_are_no_names_of_ours():
    assert not other_tools.COMMANDS.keys() & NAMES.keys()
    assert set(other_tools.COMMANDS.values()) <= NAMES.keys()
    assert not other_tools.COMMAND_ANSWERS.keys() & (NAMES.keys() | other_tools.COMMANDS.keys())
    assert set(other_tools.SAME_COMMAND.values()) <= other_tools.COMMAND_ANSWERS.keys()
    assert set(other_tools.SAME_ANSWER.values()) <= other_tools.ANSWERS.keys()


QUICK = (
    "--epochs 1 --batch-size 16 --lr 0.01 --num-workers 0 --device cpu --warmup 0 --img-size 32 "
    "--model.width 24 --model.depth 1 --model.mlp 48 --model.heads 2 --model.patch 8"
)


@pytest.mark.slow
def test_a_whole_run_in_the_words_of_other_tools(capsys, monkeypatch):
    status, printed = answer(capsys, f"train scratch photos/ {QUICK}")
    assert status == 0, printed
    assert "took --epochs 1 for --length 1epochs" in printed
    assert "wrote runs/photos-scratch/model" in printed
    recipe = json.loads(Path("runs/photos-scratch/recipe.json").read_text())
    assert recipe["batch"] == 16 and recipe["data"]["source"] == "photos"

    # With and without a slash it is the same run; another folder of that name is another
    status, printed = answer(capsys, f"train scratch photos {QUICK}")
    assert "this run is finished" in printed
    other = make_photographs(Path("other"))
    status, printed = answer(capsys, f"train scratch {other} {QUICK}")
    assert status == 0 and "wrote runs/photos-scratch-2/model" in printed

    # Its model is in every answer that needs one
    assert "vitkit predict runs/photos-scratch" in answer(capsys, "photo.jpg")[1]
    status, printed = answer(capsys, "test photos runs/photos-scratch --device cpu")
    assert status == 0 and "took photos runs/photos-scratch for vitkit evaluate" in printed


def test_images_that_teach_nothing_get_a_sentence_with_the_next_step(folder, capsys):
    shutil.copytree("photos/red", "one/red")
    shutil.copytree("photos/red", "unlabelled")
    for name in ("a", "b"):
        Path("broken", name).mkdir(parents=True)
        for i in range(5):
            Path("broken", name, f"{i}.jpg").write_bytes(b"\xff\xd8 no image")
    for data, sentence in (
        (
            "one",
            "are of one class, 'red', so there is nothing to distinguish: add a folder with",
        ),
        ("unlabelled", "put those of each class into a folder, name the column that holds the"),
        ("broken", "10 broken images in 'broken'; repair or remove them, or leave them out with"),
        ("broken --data.on-bad-image skip", "has no training images, or none that can be decoded"),
        ("photos.zip", "photos.zip is an archive; unpack it"),
    ):
        status, printed = answer(capsys, f"train scratch {data} {QUICK}")
        assert sentence in printed and status != 0, data


def test_a_place_that_takes_no_files_is_said_before_the_work(folder, capsys):
    Path("locked").write_text("a file where a folder is needed")
    status, printed = answer(capsys, f"train scratch photos {QUICK} --workdir locked/run")
    assert status == 1 and "is no folder that you may write to" in printed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("predict run photo.jpg --top abc", "--top is 'abc'; it takes a whole number"),
        ("train digits --batch=1.5", "--batch is '1.5'; it takes a whole number"),
        ("train digits --optim.lr fast", "--optim.lr is 'fast'; it takes a number"),
        (
            "train digits --optim.name adamx",
            "--optim.name is 'adamx'; it is one of adam, sgd; did you mean adam?",
        ),
        ("finetune photos --minutes five", "--minutes is 'five'; it takes a number"),
        ("finetune run photos --minutes 0,5", "--minutes is '0,5'; it takes a number"),
        ("finetune photos --minutes=", "--minutes is ''; it takes a number"),
        ("finetune photos --seeds two", "--seeds is 'two'; it takes a whole number"),
        ("finetune photos --rates 0.1 x", "--rates is 'x'; it takes a number"),
        (
            "finetune photos --like papr",
            "--like is 'papr'; it is one of paper, code; did you mean paper?",
        ),
        (
            "finetune photos --length -5",
            "--length is '-5'; it takes a duration, such as 500steps, 10epochs or 1e6images",
        ),
        ("export run -o x.onnx --agreement high", "--agreement is 'high'; it takes a number"),
    ],
)
def test_a_value_of_another_kind_is_one_sentence(words, sentence, capsys):
    status, said = answer(capsys, words)
    assert (status, said) == (2, f"vitkit: {sentence}")


def test_what_is_misspelt_is_named(folder, capsys):
    assert "did you mean photos?" in answer(capsys, f"train scratch phtos {QUICK}")[1]
    assert "did you mean photo.jpg?" in answer(capsys, "show phooto.jpg")[1]
    Path("runs/photos-finetune/model").mkdir(parents=True)
    printed = answer(capsys, "show runs/photo-fintune/model")[1]
    assert "did you mean runs/photos-finetune/model?" in printed


def test_what_is_examined_needs_no_option(capsys):
    doctor = NAMES["doctor"]
    assert meant(doctor, ["photos", "--json"]) == ["--data", "photos", "--json"]
    assert meant(doctor, ["run"]) == ["--model", "run"]
    Path("run/metrics.jsonl").touch()
    assert meant(doctor, ["run", "photos"]) == ["--run", "run", "--data", "photos"]
