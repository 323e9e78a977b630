"""What the shapes of a file's tensors tell about a model, and what has to be said."""

import pytest

from vitkit.weights.formats.shapes import heads_of, table_of


@pytest.mark.parametrize(
    ("width", "mlp", "hint", "heads", "note"),
    [
        (768, 3072, None, 12, "heads: 12, as ViT-B has"),
        (384, 1536, None, 6, "MoCo v3's has 12: --heads 12"),
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
    assert "if they are 5 x 3 patches and all 1 tokens: --image 80 48" in notes[0]


def test_where_the_size_or_a_shape_tells_the_grid_nothing_is_guessed():
    assert table_of(16, (1, 0), (16, 16), (64, 64)) == ((4, 4), 0, [])
    assert table_of(50, (1, 0), (16, 8), None) == ((5, 10), 0, [])
