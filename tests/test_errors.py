"""Errors are vitkit's own, messages name settings, and bugs are shown as bugs."""

import ast
import io
import logging
import re
import sys
from pathlib import Path

import pytest
from pictures import encoded, make_photographs, photograph

import vitkit
from vitkit.cli.entry import main
from vitkit.cli.spelling import as_options
from vitkit.system.console.messages import log_bug, reason, say, spelled

SOURCE = Path(vitkit.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))


# The source


def test_nothing_raises_a_bare_value_error():
    for module in MODULES:
        assert "raise ValueError" not in module.read_text(), module


def caught_broadly(text: str) -> list[str]:
    """The lines that catch every exception; whoever does says why, or raises again."""
    return [line for line in text.split("\n") if re.search(r"except (Base)?Exception\b", line)]


def test_few_places_catch_everything_and_they_say_why():
    lines = []
    for module in MODULES:
        text = module.read_text()
        for line in caught_broadly(text):
            after = text.split(line, 1)[1].split("\n")[1:6]
            says_why = "#" in line or any("#" in each or "raise" in each for each in after)
            assert says_why, f"{module}: {line}"
            lines.append(line)
    assert len(lines) <= 33


PAGES = ("evaluation/reports/review.py", "training/reports/comparison.py", "weights/card.py",
         "finetuning/record.py", "system/environment.py")  # texts of files, whose readers type commands  # fmt: skip
# What starts processes by a command, and a record that compares such words
COMMANDS_OF_JOBS = (
    "apps/studies/function.py",
    "apps/batch/function.py",
    "training/functions/plan.py",
)
OPTION = re.compile(r"(?<![\w(-])--[a-z][a-z-]*")
OF_OTHERS = {"--logdir", "--backend-store-uri", "--data-binary", "--spider", "--device", "--shard",
             "--calibrate", "--groups", "--shm-size"}  # fmt: skip


def test_no_message_below_the_command_line_names_an_option():
    for module in MODULES:
        path = module.relative_to(SOURCE).as_posix()
        if path.startswith("cli/") or path in (*PAGES, *COMMANDS_OF_JOBS):
            continue
        text = module.read_text()
        if not OPTION.search(text):  # which is faster than parsing
            continue
        tree = ast.parse(text)
        for statement in ast.walk(tree):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                statement.value.value = ""  # a docstring
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert set(OPTION.findall(node.value)) <= OF_OTHERS, f"{path}: {node.value}"


# Python


def test_a_caller_catches_what_it_can_put_right(tmp_path):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no weights")
    with pytest.raises(vitkit.BadWeights, match=r"broken\.safetensors"):
        vitkit.load(broken)
    with pytest.raises(vitkit.BadSettings, match="`heads`|heads is 0"):
        vitkit.load(broken, heads=0)
    picture = tmp_path / "picture.jpg"
    picture.write_bytes(encoded(photograph(32, 32, 0))[:200])
    with pytest.raises(vitkit.BadImage, match=r"picture\.jpg"):
        vitkit.data.open_image(picture.read_bytes(), str(picture))
    (tmp_path / "empty").mkdir()
    with pytest.raises(vitkit.BadData, match="holds no images"):
        vitkit.data.open_splits(str(tmp_path / "empty"))


@pytest.mark.parametrize("name", ["BadSettings", "BadImage", "BadData", "BadWeights", "BadRun",
                                  "Unsupported", "Unavailable", "Diverged", "WorkerDied", "RankLost"])  # fmt: skip
def test_every_error_is_a_value_error_as_before(name):
    kind = getattr(vitkit, name)
    assert issubclass(kind, vitkit.VitkitError) and issubclass(kind, ValueError)
    assert str(kind("what is wrong")) == "what is wrong"
    assert kind.__doc__


# Messages as options


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("say so: `heads=12`", "say so: --heads 12"),
        ("leave out `on_bad_image`", "leave out --on-bad-image"),
        ("`data.on_bad_image='skip'` leaves them out", "--data.on-bad-image skip leaves them out"),
        ("`image=(384, 512)`", "--image 384 512"),
        ("`image=(HEIGHT, WIDTH)`", "--image HEIGHT WIDTH"),
        ("`data.augmentation.auto=False`", "--data.augmentation.no-auto"),
        ("`compile=True` and `data=DATA`", "--compile and --data DATA"),
        ("`part='a b'`", "--part 'a b'"),
        ("a class called `` or `Two Words`", "a class called `` or `Two Words`"),
    ],
)
def test_the_command_line_spells_settings_as_options(message, printed):
    assert as_options(message) == printed


def test_a_message_names_the_setting_in_python_and_the_option_in_a_terminal(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(vitkit.BadSettings, match=r"`port` is 70000"):
        vitkit.serve("nothing", port=70000)
    assert main(["serve", "nothing", "--port", "70000"]) == 1
    assert "--port is 70000" in capsys.readouterr().err


def test_a_call_in_a_message_is_written_as_the_program_writes_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        vitkit.BadSettings, match=r": vitkit\.compare\('one', 'two', images\) takes"
    ):
        vitkit.compare("one", "two")
    assert main(["compare", "one", "two"]) == 1
    assert ": vitkit compare one two IMAGE... takes" in capsys.readouterr().err
    with pytest.raises(vitkit.BadSettings, match="no image to classify; give files, .*, arrays or"):
        vitkit.predict("model", [])
    assert main(["predict", "model", "--json"]) == 1
    assert "or - for names from the standard input" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["finetune", "label"])
def test_without_weights_the_call_that_was_made_is_named(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vitkit.recipes.finetuning.hub_answers", lambda: False)
    monkeypatch.setattr("vitkit.weights.Published.is_here", False)
    make_photographs(tmp_path)
    calls = {
        "finetune": ("vitkit.finetune(model, 'photos')", "vitkit finetune MODEL photos"),
        "label": ("vitkit.label('photos', model=model)", "vitkit label photos --model MODEL"),
    }
    in_python, in_a_terminal = calls[name]
    with pytest.raises(vitkit.BadSettings, match=f"Name a model: {re.escape(in_python)}, where"):
        getattr(vitkit, name)("photos")
    assert main([name, "photos"]) == 1
    assert f"Name a model: {in_a_terminal}, where" in capsys.readouterr().err


# Bugs


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's own file with a recipe that has a typo and one that adds arrays of other shapes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "from vitkit.recipes import digits\n"
        "def typo():\n"
        "    return digits().optimm\n"
        "def shapes():\n"
        "    return np.zeros(3) + np.zeros(4)\n"
    )


@pytest.mark.parametrize(
    ("function", "line", "error"), [("typo", 4, "AttributeError"), ("shapes", 6, "ValueError")]
)
def test_a_bug_in_a_file_of_the_user_has_its_line(function, line, error, own, capsys):
    assert main(["train", f"own.py:{function}"]) == 70
    printed = capsys.readouterr().err
    assert "Traceback (most recent call last)" in printed and f"{error}: " in printed
    last = " ".join(printed.split("vitkit: ")[-1].split())
    assert last.startswith(f"{error} in your own code: ") and last.endswith(f"own.py, line {line}")


def test_a_bug_of_vitkit_is_no_mistake_of_the_user(monkeypatch, capsys):
    import numpy as np

    def broken(*_):
        return np.zeros(3) + np.zeros(4)

    monkeypatch.setattr("vitkit.weights.functions.zoo.find_published", broken)
    monkeypatch.setattr("vitkit.cli.entry._outside_of_vitkit", lambda error: None)  # this file
    assert main(["models", "--published", "dinov2"]) == 70
    printed = capsys.readouterr().err
    assert "could not be broadcast" in printed
    assert "this is a bug of vitkit" in " ".join(printed.split())


def test_a_traceback_shows_no_password_and_moves_no_cursor(monkeypatch, capsys):
    def broken(*_):
        raise KeyError("s3://alice:hunter2@bucket/\x1b[2J")

    monkeypatch.setattr("vitkit.weights.functions.zoo.find_published", broken)
    assert main(["models", "--published", "dinov2"]) == 70
    printed = capsys.readouterr().err
    assert "KeyError" in printed and "hunter2" not in printed and "\x1b[2J" not in printed


def test_what_is_logged_has_no_password(records):
    say("reading s3://alice:hunter2@bucket/photos")
    assert "hunter2" not in records[0].getMessage()


@pytest.mark.parametrize("asked", ["option", "variable"])
def test_the_traceback_of_any_error_can_be_asked_for(asked, monkeypatch, capsys):
    monkeypatch.delenv("VITKIT_TRACEBACK", raising=False)
    words = ["train", "dgits"]
    assert main(words) == 1
    assert "Traceback" not in capsys.readouterr().err
    if asked == "option":
        monkeypatch.setenv("VITKIT_TRACEBACK", "")
        words.append("--traceback")
    else:
        monkeypatch.setenv("VITKIT_TRACEBACK", "1")
    assert main(words) == 1
    printed = capsys.readouterr().err
    assert "Traceback" in printed and "BadSettings: no recipe 'dgits'" in printed


def test_an_error_of_the_system_is_a_sentence_and_any_other_a_bug(monkeypatch, capsys):
    def fails(error):
        def run(*_):
            raise error

        monkeypatch.setattr("vitkit.cli.entry._run", run)
        monkeypatch.setattr("vitkit.cli.entry._outside_of_vitkit", lambda error: None)
        return main(["models"])

    assert fails(OSError(28, "No space left on device")) == 1
    assert "make room" in capsys.readouterr().err
    assert fails(OSError(28, "Error writing bytes", "review.html")) == 1
    assert (
        "vitkit: review.html could not be written: No space left on device; make room"
        in capsys.readouterr().err
    )
    assert fails(PermissionError(13, "Permission denied", "model.safetensors")) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert fails(OSError("image file is truncated")) == 70
    assert fails(KeyError("pool")) == 70


# Messages


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture
def records():
    """What vitkit logs during the test."""
    handler = Records()
    logging.getLogger("vitkit").addHandler(handler)
    yield handler.records
    logging.getLogger("vitkit").removeHandler(handler)


def test_messages_go_through_logging(records, capsys):
    say("three images are left out")
    say("metrics.jsonl is damaged", logging.WARNING)
    assert [(each.levelname, each.getMessage()) for each in records] == [
        ("INFO", "three images are left out"),
        ("WARNING", "metrics.jsonl is damaged"),
    ]
    assert capsys.readouterr().err == "three images are left out\nmetrics.jsonl is damaged\n"


def test_a_program_silences_them_or_takes_them(capsys):
    logger = logging.getLogger("vitkit")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        say("three images are left out")
    finally:
        logger.setLevel(before)
    assert capsys.readouterr().err == ""

    # With a handler of its own that prints, once
    root = logging.getLogger()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    root.addHandler(handler)
    try:
        say("three images are left out")
    finally:
        root.removeHandler(handler)
    assert stream.getvalue() == "INFO vitkit three images are left out\n"


def test_a_message_that_asks_for_a_traceback_where_there_is_none_is_printed(capsys):
    say("three images are left out")
    logging.getLogger("vitkit").error("the figure is missing", exc_info=True)
    assert capsys.readouterr().err == "three images are left out\nthe figure is missing\n"


def test_a_bug_in_one_part_is_logged_with_its_traceback(records):
    try:
        {}["pool"]
    except KeyError as error:
        log_bug("the figure rollout failed (bug)")
        assert re.fullmatch(r"KeyError: 'pool' \(test_errors\.py, line \d+\)", reason(error))
    (record,) = records
    assert record.levelname == "ERROR" and record.exc_info[0] is KeyError


def test_a_command_prints_in_its_own_form_whatever_a_library_does_to_the_root(capsys):
    """A library may configure logging while a command runs: its handler neither replaces vitkit's nor
    prints the same once more."""
    root = logging.getLogger()
    handler = logging.StreamHandler(sys.stderr)
    root.addHandler(handler)
    try:
        with spelled(as_options):
            say("take `batch=3`")
        assert capsys.readouterr().err == "take --batch 3\n"
        say("take `batch=3`")
        assert capsys.readouterr().err == "take `batch=3`\n"  # the program's handler alone
    finally:
        root.removeHandler(handler)
