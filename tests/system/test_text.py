"""What a terminal is shown of other people's text."""

import pytest

from vitkit.system.text import printable


@pytest.mark.parametrize(
    "text", ["a cat", "größer als π", "猫", "two\nlines", "https://x.org/?a=b&c", 'a "quoted" word']
)
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
