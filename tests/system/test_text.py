"""What a terminal is shown of other people's text."""

import shlex

import pytest

from vitkit.system.console.text import as_word, counted, printable, printable_name, readable

ORDINARY = [
    "a cat",
    "größer als π",
    "two\nlines",
    "猫\u3000犬",
    "Café\xa0c",
    "👩\u200d🚀",
    "می\u200cخواهم",
    "https://x.org/?a=b&c",
    'a "quoted" word',
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_as_it_was(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("one\rtwo", r"one\rtwo"),
        ("nul\0", r"nul\x00"),
        ("\u202egnp.exe", r"\u202egnp.exe"),  # writes the rest from right to left
        ("undecodable \udcff", r"undecodable \udcff"),
    ],
)
def test_what_would_move_a_cursor_is_an_escape(text, shown):
    assert printable(text) == shown


def test_a_long_text_keeps_both_ends():
    shown = printable("begin" + "x" * 100_000 + "end", longest=100)
    assert shown.startswith("begin") and shown.endswith("end")
    assert "100,008 characters" in shown
    assert len(shown) < 150


def test_a_name_has_one_line():
    assert printable_name("evil\nline") == r"evil\nline"
    assert len(printable_name("x" * 100_000)) < 300


def test_a_path_in_a_command_can_be_pasted():
    assert as_word("runs/digits") == "runs/digits"
    assert as_word("my photos") == "'my photos'"
    assert shlex.split(as_word("it's $HOME")) == ["it's $HOME"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1567.1, "1,567"), (99.96, "100"), (12, "12"), (3.181, "3.18"), (0.00123, "0.00123"),
     (1.2e-7, "0.00000012"), (0, "0"), (2e6, "2,000,000")],
)  # fmt: skip
def test_a_number_as_people_write_it(value, text):
    assert readable(value) == text


def test_things_are_counted_in_their_plural():
    assert [counted(1, "class"), counted(1000, "class")] == ["1 class", "1,000 classes"]
