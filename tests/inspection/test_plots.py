"""Arrays as pictures: what is drawn is what was computed, in both themes, as files."""

import numpy as np
import pytest
import torch
from inspected import FAMILY, IMAGES, SIZE, classifier, small
from matplotlib.text import Text
from PIL import Image

from vitkit.inspection import (
    alignment,
    attention_distance,
    attention_entropy,
    draw_alignment,
    draw_colours,
    draw_distance,
    draw_entropy,
    draw_filters,
    draw_looked,
    draw_norms,
    draw_occlusion,
    draw_positions,
    draw_similarity,
    filter_components,
    occlusion_curves,
    patch_similarity,
    position_similarity,
    rollout,
    token_colours,
    token_norms,
    write_figure,
)
from vitkit.inspection.plots import mosaic
from vitkit.models import LeNetConfig


def words(figure):
    """All texts of a figure."""
    return " ".join(text.get_text() for text in figure.findobj(Text))


def test_filters_are_drawn_around_grey():
    filters = filter_components(classifier(FAMILY["token"]), count=9)
    figure = draw_filters(filters)
    picture = figure.axes[0].get_images()[0].get_array()  # 2 rows of 7 tiles of 16, gaps of 2
    assert picture.shape == (34, 124, 4)
    tile = picture[18:, 18:34, :3]  # second row, second column: the ninth
    expected = filters.components[8].permute(1, 2, 0) / filters.components[8].abs().max() / 2 + 0.5
    np.testing.assert_allclose(tile, expected, atol=1e-6)
    assert (picture[18:, 36:, 3] == 0).all()  # the empty cells
    assert "First 9 principal components" in words(figure)
    grey = filter_components(classifier(LeNetConfig(channels=1, classes=5)), 6)
    assert draw_filters(grey).axes[0].get_images()[0].get_array().shape[1] == 6 * 5 + 5
    with pytest.raises(ValueError, match="filters of 4 channels cannot be drawn"):
        draw_filters(filter_components(classifier(small(channels=4)), 6))


def test_positions_are_drawn_where_the_patches_lie():
    similarity = position_similarity(classifier(FAMILY["token"]))
    figure = draw_positions(similarity)
    picture = np.asarray(figure.axes[0].get_images()[0].get_array())
    np.testing.assert_array_equal(picture[10:14, 7:13], similarity.tiles[2, 1])
    assert np.ma.is_masked(figure.axes[0].get_images()[0].get_array()[4])  # a gap
    assert "class token" in words(figure)
    assert "cosine similarity" in words(figure)
    assert "class token" not in words(
        draw_positions(position_similarity(classifier(FAMILY["MAP"])))
    )


def test_every_dot_is_a_head():
    distance = attention_distance(classifier(FAMILY["token"]), IMAGES)
    figure = draw_distance(distance)
    for axes, values in zip(figure.axes, (distance.plain, distance.renormalised), strict=False):
        np.testing.assert_allclose(axes.lines[0].get_ydata(), values.flatten())
        np.testing.assert_allclose(axes.lines[1].get_ydata(), values.mean(1))
        np.testing.assert_allclose(axes.lines[2].get_ydata(), distance.uniform)
        assert "(pixels)" in axes.get_ylabel()
    np.testing.assert_allclose(
        figure.axes[2].lines[0].get_ydata(), 100 * distance.prefix_share.flatten()
    )
    axial = draw_distance(attention_distance(classifier(FAMILY["axial"]), IMAGES[:1]))
    assert len(axial.axes) == 1
    assert "2, columns" in words(axial) and "one image" in words(axial)


def test_photographs_beside_what_was_looked_at():
    own = classifier(FAMILY["token"])
    photographs = IMAGES.permute(0, 2, 3, 1).numpy()
    maps = torch.zeros(2, 4, 6)
    maps[:, 1, 2] = 1
    figure = draw_looked(photographs, {"rollout": rollout(own, IMAGES), "mine": maps}, names="ab")
    drawn = figure.axes[5].get_images()[0].get_array()  # the second photograph's last
    assert drawn.shape == (*SIZE, 3)
    assert drawn[:8].max() == 0 and drawn[24, 40].max() > 0
    assert "mine" in words(figure) and "b" in words(figure)


def test_many_photographs_are_several_in_a_row():
    photographs = IMAGES.permute(0, 2, 3, 1).numpy().repeat(2, 0)
    maps = torch.rand(4, 4, 6)
    figure = draw_looked(photographs, {"mine": maps})
    cells = sorted(
        len(group.subfigs) for group in figure.subfigs
    )  # in an order of Matplotlib's own
    assert cells == [0, 0, 2, 2, 2, 2]  # three in a row
    assert all(axes.get_images() for axes in figure.axes) and len(figure.axes) == 8
    figure = draw_looked(photographs[:1], dict.fromkeys("abcdefgh", maps[:1]))
    assert len(figure.axes) == 9


def test_states_and_occlusion():
    own = classifier(FAMILY["registers"])
    photographs = IMAGES.permute(0, 2, 3, 1).numpy()

    norms = token_norms(own, IMAGES)
    figure = draw_norms(norms)
    longest = figure.axes[0].lines[1].get_ydata()
    np.testing.assert_allclose(longest, norms.patches.amax((0, 2, 3)))
    picture = figure.axes[1].get_images()[0].get_array()
    np.testing.assert_array_equal(picture[:, 7:], norms.patches[1, -1])

    similarity = patch_similarity(own, IMAGES, (2, 5))
    figure = draw_similarity(photographs, similarity, (2, 5), names=["$a$", "b" * 50])
    np.testing.assert_array_equal(figure.axes[3].get_images()[0].get_array(), similarity[1])
    assert "bbb..." in words(figure) and "cosine similarity" in words(figure)

    colours = token_colours(own, IMAGES)
    figure = draw_colours(photographs, colours)
    np.testing.assert_array_equal(figure.axes[1].get_images()[0].get_array(), colours[0])

    occlusion = occlusion_curves(own, IMAGES, similarity, steps=3)
    figure = draw_occlusion(occlusion, title="similarity")
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), occlusion.insertion.mean(0))
    assert f"{float(occlusion.gain.mean()):+.2f} against random" in words(figure)


def test_alignment_has_the_first_layers_below():
    own = classifier(FAMILY["token"])
    found = alignment(own, IMAGES.repeat(2, 1, 1, 1))
    figure = draw_alignment(found)
    np.testing.assert_array_equal(figure.axes[0].get_images()[0].get_array(), found.values)
    assert not figure.axes[0].yaxis_inverted()
    assert "other model" not in words(figure)
    other = alignment(own, IMAGES.repeat(2, 1, 1, 1), own, IMAGES.repeat(2, 1, 1, 1))
    assert "block of the other model" in words(draw_alignment(other))


def test_tiles_in_a_mosaic():
    tiles = np.arange(2 * 3 * 20 * 10, dtype=np.float32).reshape(2, 3, 20, 10)
    picture = mosaic(tiles)
    assert picture.shape == (42, 34)
    np.testing.assert_array_equal(picture[22:, 12:22], tiles[1, 1])
    assert np.isnan(picture[20:22]).all() and np.isnan(picture[:, 10:12]).all()


@pytest.mark.slow
def test_files(tmp_path):
    figure = draw_entropy(attention_entropy(classifier(FAMILY["token"]), IMAGES))
    for kind in ("png", "svg"):
        path = tmp_path / "new" / f"entropy.{kind}"
        write_figure(figure, path)
        first = path.read_bytes()
        write_figure(figure, path)  # our own file may be replaced
        assert path.read_bytes() == first
        path.write_bytes(b"somebody's")
        with pytest.raises(ValueError, match="is not as vitkit wrote it"):
            write_figure(figure, path)
    assert first.startswith(b"<?xml")
    write_figure(figure, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert min(image.size) > 400
    with pytest.raises(ValueError, match=r"its name must end in \.png or \.svg"):
        write_figure(figure, tmp_path / "a.gif")
