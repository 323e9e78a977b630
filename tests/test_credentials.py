"""Users, passwords and signatures of addresses reach no terminal and no file, whatever a command does."""

import json
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from counted import _Counting
from pictures import encoded, photograph
from quick_ones import quick_ones
from served import make_classifier

import vitkit
from vitkit.cli.entry import main
from vitkit.data import open_splits
from vitkit.system.storage.addresses import (
    _typed,
    holds_credentials,
    is_masked,
    remember,
    showing_no_credentials,
    shown_address,
    values_without_credentials,
    without_credentials,
    without_credentials_of,
)
from vitkit.system.storage.private import public
from vitkit.weights import save

SECRETS = ("alice77", "hunter2pass", "SIG0123456789abcdef", "t0ken-99", "c0de9")
QUERY = "X-Amz-Signature=SIG0123456789abcdef&token=t0ken-99&sig=c0de9&version=2"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://u:p@h/x", "https://***@h/x"),
        ("https://u@h/x", "https://***@h/x"),
        ("https://u:p/q@h:80/x", "https://***@h:80/x"),
        ("https://u:p?q@h/x", "https://***@h/x"),
        ("https://h/x?sig=a&version=2&x=0123456789abcdef", "https://h/x?sig=***&version=2&x=***"),
        ("https://h/x?a2c4e6", "https://h/x?***"),
        ("https://h/x?q=1#3fa8c2d19be07f4458aa01", "https://h/x?q=1#***"),
        ("https://u:p@h/x/https://v:q@i/y", "https://***@h/x/https://***@i/y"),
        ("zip://a.csv::https://u:p@h/b@c", "zip://a.csv::https://***@h/b@c"),
        ("github://user:ghp_0123456789abcdef@host/x", "github://***@host/x"),
        ("https://h/x?token=my-photo-0001.jpg", "https://h/x?token=***"),
        ("https://h/x?q=3fa8c2d19be07f4458aa01.jpg", "https://h/x?q=***"),
        ("https://h/x#access_token=a", "https://h/x#access_token=***"),
        ("zip://*.csv::https://u:p@h/x?sig=a", "zip://*.csv::https://***@h/x?sig=***"),
        ("s3://k:s@bucket/a", "s3://***@bucket/a"),
        # There is nothing to hide
        ("https://h:80/a@b?id=1&download=true", None),
        ("s3://bucket/a?.tar", None),
        ("hf://datasets/o/r@main/x", None),
        ("abfs://container@account.dfs.core.windows.net/x", None),
        ("photos/u:p@h", None),
        ("github://org:repo@main/x", None),
        ("git://main@path", None),
        ("zip://img@2x.png::https://h/x.zip", None),
        ("tar://img@2x.png::https://h/x.tar", None),
        ("memory://a@b", None),
        ("file://C:/Users/a@b", None),
        ("local://C:/Users/a@b", None),
        ("https://h/LICENSE#section-of-the-authors", None),
        ("https://h/x?download", None),
        ("s3://b/x?versionId=3HL4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY", None),
        ("https://h/render?photo=holidays-2024-0000.jpg", None),
        ("https://h/render?photo=my%20holidays/IMG_20240102_123456789.jpg&w=3", None),
    ],
)
def test_what_is_shown_of_an_address(address, shown):
    assert shown_address(address) == (shown or address)
    assert shown_address(shown_address(address)) == shown_address(address)
    assert holds_credentials(address) == bool(shown) == is_masked(shown_address(address))
    assert without_credentials(f"see ({address}).") == f"see ({shown or address})."
    assert values_without_credentials({"a": [address, 1]}) == {"a": [shown or address, 1]}
    assert "***" not in public("https://u:p@h/x?sig=a")


def test_a_sentence_that_begins_with_an_address_is_kept():
    sentence = "https://u:p@h/x.tar?dl=1 has no test part: name one?"
    shown = sentence.replace("u:p", "***")
    assert values_without_credentials(sentence) == shown
    blank = "https://h/my photos/x?sig=a&version=2"
    assert values_without_credentials(blank) == "https://h/my photos/x?sig=***&version=2"


@pytest.mark.parametrize("password", ["pa'ss\"word", "pa<ss>word", "pa\\ss`word", "pa ssword"])
def test_a_known_address_is_found_in_a_sentence_whatever_its_password_has(password):
    address = f"https://me:{password}@host/x.tar"
    remember(address)
    try:
        for said in (address, repr(address)):
            with pytest.raises(ValueError) as raised, showing_no_credentials():
                raise ValueError(f"{said} has no part 'val'")
            assert "me:" not in str(raised.value) and "word@" not in str(raised.value)
            assert "host/x.tar" in str(raised.value)
    finally:
        _typed.clear()


LONG = 30_000
LONG_TEXTS = [
    "a" * LONG + " xy://",
    *(begin + repeated * (LONG // len(repeated)) + end
      for begin in ("", "xy://", "https://h/a@b?")
      for repeated in ("a", "a:", "://", "ab://", "://a:1", "/a:1", "a::xy://", ":@", "?a=", "a&")
      for end in ("", " ", "@")),
]  # fmt: skip


@pytest.mark.parametrize(
    "function", [shown_address, without_credentials, values_without_credentials, public]
)
def test_long_texts_take_time_in_proportion(function):
    for text in LONG_TEXTS:
        began = time.process_time()
        function(text)
        assert time.process_time() - began < 0.5, text[:30]  # ten times what is needed


def test_an_address_behind_a_long_word():
    assert without_credentials("a" * 50 + "https://u:p@h") == "a" * 50 + "https://***@h"
    assert without_credentials("1://https://u:p@h") == "1://https://***@h"


def test_parts_of_a_password_in_the_sentences_of_libraries():
    address = "https://alice77:hunter2pass/x@h/x"
    text = without_credentials_of(address, "Port 'hunter2pass' of alice77 is no number")
    assert text == "Port '***' of *** is no number"


class _Guarded(_Counting):
    """Answers below /refused with 401, below /busy with 503, and else sends files."""

    def _answer(self, with_body: bool):
        self.path = self.path.partition("?")[0]
        for folder, status in (("/refused/", 401), ("/busy/", 503)):
            if self.path.startswith(folder):
                self.send_error(status)
                return
        super()._answer(with_body)


def write_parquet(path: Path) -> None:
    """Twenty-four pictures of two classes."""
    pictures = [encoded(photograph(8, 9, i), "PNG") for i in range(24)]
    images = [{"bytes": picture, "path": None} for picture in pictures]
    pq.write_table(pa.table({"image": images, "label": [0, 1] * 12}), path)


class _Sent:
    """A count that nobody reads."""

    value = 0

    @contextmanager
    def get_lock(self):
        yield


@pytest.fixture
def address(tmp_path, monkeypatch):
    """address(PATH): of a file of a server, with a user, a password and signatures."""
    pytest.importorskip("aiohttp")
    monkeypatch.setattr("vitkit.system.storage.retries._pause", lambda *_: 0)
    folder = tmp_path / "served"
    folder.mkdir()
    write_parquet(folder / "photos.parquet")
    (folder / "1.png").write_bytes(encoded(photograph(8, 9, 0), "PNG"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Guarded, folder, _Sent()))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield lambda path: f"http://alice77:hunter2pass@127.0.0.1:{server.server_port}/{path}?{QUERY}"
    server.shutdown()
    server.server_close()


TRAIN = (
    "train scratch ADDRESS --workdir run --length 1 --model.image 16 16 --data.preprocessing.size 16 16 "
    "--model.patch 8 --batch 4 --model.width 8 --model.depth 1 --model.mlp 8 --model.heads 1 "
    "--device cpu --data.workers 0"
)
COMMANDS = {
    "train": TRAIN,
    "finetune": "finetune MODEL ADDRESS --workdir run --minutes 0.001 --device cpu",
    "evaluate": "evaluate MODEL ADDRESS --report report.html report.json --device cpu --workers 0",
    "evaluate --json": "evaluate MODEL ADDRESS --json --device cpu --workers 0",
    "fewshot": "fewshot MODEL ADDRESS --shots 1 --device cpu",
    "probe": "probe MODEL ADDRESS --to head --device cpu",
    "features": "features MODEL ADDRESS -o features.npz --device cpu",
    "teach": "teach MODEL taught --add ADDRESS --device cpu",
    "predict": "predict MODEL ADDRESS --device cpu --workers 0",
    "predict --to": "predict MODEL ADDRESS --to rows.jsonl --device cpu --workers 0",
    "predict --parts": "predict MODEL ADDRESS --parts parts --device cpu --workers 0",
    "batch": "batch MODEL ADDRESS --into parts --device cpu --workers 0",
    "stats": "data stats ADDRESS --json --workers 0",
    "review": "data review ADDRESS MODEL --device cpu",
    "pack": "data pack ADDRESS packed --workers 0",
    "plan": "plan scratch ADDRESS --gpus 1",
    "inspect": "inspect MODEL ADDRESS --device cpu --into figures",
    "compare": "compare MODEL MODEL ADDRESS",
    "export": "export MODEL -o model.onnx --data ADDRESS",
    "faster": "faster MODEL --data ADDRESS --device cpu",
    "bench": "bench MODEL --images ADDRESS --device cpu",
    "study": "study pooling --data ADDRESS --device cpu",
    "show": "show ADDRESS",
    "suite": "suite vtab MODEL --data ADDRESS --device cpu",
}
BUSY = ("stats", "predict")
READ = (
    "train", "finetune", "evaluate", "evaluate --json", "probe", "features", "teach", "predict",
    "predict --to", "batch", "stats", "review", "pack",
)  # fmt: skip


def check_nothing_is_told(said: str, folder: Path) -> None:
    """Raises AssertionError if a secret was printed, or is in a file."""
    assert "Traceback" not in said
    for secret in SECRETS:
        assert secret not in said, said
        for file in folder.rglob("*"):
            assert secret not in file.name, file
            if file.is_file():
                assert secret.encode() not in file.read_bytes(), file


def words_of(name: str, address: str, model: Path) -> list[str]:
    words = COMMANDS[name].split()
    return [{"ADDRESS": address, "MODEL": str(model)}.get(word, word) for word in words]


@pytest.fixture
def model(tmp_path):
    return save(make_classifier(), tmp_path / "model")


@pytest.mark.parametrize("name", quick_ones(COMMANDS, ("predict", "study")))
def test_who_is_refused_is_told_no_secret(name, address, model, tmp_path, monkeypatch, capfd):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    places = ["refused/photos.parquet", "refused/1.png"]
    if name in BUSY:
        places.append("busy/photos.parquet")
    for place in places:
        assert main(words_of(name, address(place), model)) in (1, 2, 3)
        said = "".join(capfd.readouterr())
        check_nothing_is_told(said, tmp_path / "here")


@pytest.mark.parametrize("name", quick_ones(READ, ("predict", "stats", "evaluate --json")))
def test_what_is_read_with_secrets_is_written_down_without(
    name, address, model, tmp_path, monkeypatch, capfd
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    words = words_of(name, address("photos.parquet"), model)
    status = main(words)
    said = "".join(capfd.readouterr())
    assert status == 0, said
    check_nothing_is_told(said, tmp_path / "here")

    # And the same command continues a run, or says that it has ended, with another signature
    if name in ("train", "finetune"):
        words = [word.replace("SIG0123456789abcdef", "SIGfedcba9876543210") for word in words]
        assert main(words) == 0, "".join(capfd.readouterr())
        where = next(word for word in words if "://" in word)
        assert main(["report", "run", "--data", where]) == 0, "".join(capfd.readouterr())
        check_nothing_is_told("".join(capfd.readouterr()), tmp_path / "here")
        _typed.clear()  # as in another process, which was not given the address
        main(["report", "run"])
        check_nothing_is_told("".join(capfd.readouterr()), tmp_path / "here")
        recipe = json.loads(Path("run/recipe.json").read_text())
        assert is_masked(recipe["data"]["source"])


def test_errors_of_functions_have_no_secret(address, model):
    refused = address("refused/photos.parquet")
    for call in (
        lambda: open_splits(refused),
        lambda: vitkit.evaluate(model, refused, device="cpu", quiet=True),
    ):
        with pytest.raises((OSError, ValueError)) as raised:
            call()
        assert "***@127.0.0.1" in str(raised.value)
        check_nothing_is_told(str(raised.value), Path("nothing"))


def test_an_address_in_the_place_of_a_directory(address, capsys, model):
    assert main(["probe", str(model), "digits", "--to", address("run")]) == 1
    said = capsys.readouterr().err
    assert "is an address" in said
    check_nothing_is_told(said, Path("nothing"))
