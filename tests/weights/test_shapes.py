"""What the shapes of a file's tensors tell about a model, and what has to be said."""

import pytest

from vitkit.weights.formats.shapes import heads_of, table_of


@pytest.mark.parametrize(
    ("width", "mlp", "hint", "heads", "note"),
    [
        (768, 3072, None, 12, "heads: 12, as in ViT-B"),
        (384, 1536, None, 6, "MoCo v3's has 12: `heads=12`"),
        (128, 300, None, 2, "heads: 2, of 64 channels each"),
        (768, 3072, 8, 8, None),
    ],
)
def test_heads_are_said_or_those_of_a_published_model(width, mlp, hint, heads, note):
    number, notes = heads_of(width, mlp, hint)
    assert number == heads
    assert len(notes) == (note is not None) and (note is None or note in notes[0])


@pytest.mark.parametrize("width", [0, 96])
def test_heads_of_other_widths_must_be_said(width):
    with pytest.raises(ValueError, match=f"share its width of {width}"):
        heads_of(width, 4 * width, None)


def test_a_position_table_may_have_no_row_for_the_class_token():
    assert table_of(17, (1, 0), (16, 16), None) == ((4, 4), None, [])
    grid, prefix, notes = table_of(16, (1, 0), (16, 16), None)
    assert (grid, prefix) == ((4, 4), 0)
    assert "if they are 5 x 3 patches and all 1 tokens: `image=(80, 48)`" in notes[0]


def test_where_the_size_or_a_shape_tells_the_grid_nothing_is_guessed():
    assert table_of(16, (1, 0), (16, 16), (64, 64)) == ((4, 4), 0, [])
    assert table_of(1, (1, 0), (16, 16), None) == ((1, 1), 0, [])
    assert table_of(50, (1, 0), (16, 8), None) == ((5, 10), 0, [])


def test_a_square_with_the_class_token_may_be_a_rectangle_without_it():
    """10 x 17 patches are 13 x 13 and one: told where a table without a row for the token is usual."""
    assert table_of(170, (1, 0), (16, 16), None) == ((13, 13), None, [])
    grid, prefix, [note] = table_of(170, (1, 0), (16, 16), None, either=True)
    assert (grid, prefix) == ((13, 13), None)
    assert "170 rows, read as 13 x 13 patches and 1 of 1 tokens before them" in note
    assert "if they are 17 x 10 patches and 0 of 1 tokens: `image=(272, 160)`" in note
    assert table_of(170, (1, 0), (16, 16), (272, 160), either=True)[1] == 0
    assert table_of(170, (1, 0), (16, 16), (208, 208), either=True)[2] == []
    for rows, tokens in ((197, (1, 0)), (26, (1, 0)), (169, (0, 0))):  # 197 x 1, 13 x 2, no token
        assert table_of(rows, tokens, (16, 16), None, either=True)[2] == []
