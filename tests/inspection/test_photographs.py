"""Maps laid over photographs, also those of patches that overlap."""

import numpy as np
import pytest
import torch
from pictures import photograph

from vitkit.data import Preprocessing, open_image
from vitkit.inspection import InspectedModel, Tile, contact_sheet, darkened, over_image
from vitkit.inspection.catalogue import occlusion_plate, rollout_plate
from vitkit.inspection.fonts import BOX, drawable
from vitkit.inspection.photographs import LINE, captioned
from vitkit.models import Tiling, create, vit
from vitkit.weights import Classifier

OVERLAP = Tiling((16, 8), (12, 4))


def by_pixel(weights, tiling):
    """The mean of the patches that each pixel is in, slowly."""
    height, width = tiling.image(weights.shape)
    total = torch.zeros(height, width)
    count = torch.zeros(height, width)
    for row in range(weights.shape[0]):
        for column in range(weights.shape[1]):
            top = row * tiling.stride[0]
            left = column * tiling.stride[1]
            area = (slice(top, top + tiling.size[0]), slice(left, left + tiling.size[1]))
            total[area] += weights[row, column]
            count[area] += 1
    return total / count


@pytest.mark.parametrize("tiling", [OVERLAP, Tiling((16, 16), (8, 8)), Tiling((7, 9), (5, 9))])
def test_a_cell_has_the_mean_of_its_patches(tiling):
    maps = torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(0))
    laid = over_image(maps, tiling)
    height, width = tiling.image((5, 4))
    down = height // laid.shape[1]
    across = width // laid.shape[2]
    pixels = laid.repeat_interleave(down, 1).repeat_interleave(across, 2)
    assert pixels.shape == (2, height, width)
    for one, expected in zip(pixels, maps, strict=True):
        torch.testing.assert_close(one, by_pixel(expected, tiling))


def test_maps_of_patches_side_by_side_stay_as_they_are():
    maps = torch.rand(2, 5, 4)
    assert over_image(maps, Tiling((16, 8), (16, 8))) is maps


def test_the_box_that_a_model_sees():
    picture = open_image(photograph(300, 500), "a")
    assert Preprocessing(size=(224, 224)).visible(picture) == (0, 0, 300, 500)
    top, left, height, width = Preprocessing((200, 200), "shorter", 250).visible(picture)
    assert (top, left, height, width) == pytest.approx((30, 130, 240, 240), abs=1)
    # What is cut out, enlarged to the model's size, is what the model gets
    prepared = Preprocessing((100, 100), "shorter", 150)(picture).permute(1, 2, 0).float()
    box = [round(number) for number in Preprocessing((100, 100), "shorter", 150).visible(picture)]
    crop = open_image(picture.pixels(tuple(box)).copy(), "b")
    again = Preprocessing((100, 100))(crop).permute(1, 2, 0).float()
    assert (prepared - again).abs().mean() < 2


def test_darkened_keeps_what_is_looked_at_and_darkens_the_rest():
    pixels = np.full((60, 100, 3), 200, np.uint8)
    weights = np.zeros((2, 2), np.float32)
    weights[0, 1] = 0.004
    drawn = darkened(pixels, weights, (10, 20, 40, 40))
    assert drawn.dtype == np.uint8 and drawn.shape == pixels.shape
    assert (drawn[11:15, 55:59] == 200).all()  # far corner of the patch
    assert (drawn[:10] == 0).all() and (drawn[:, :20] == 0).all() and (drawn[:, 60:] == 0).all()
    assert drawn[45, 25].max() == 0 and 0 < drawn[20, 40].min() < 200
    assert (darkened(pixels, np.zeros((2, 2)), (0, 0, 60, 100)) == 0).all()
    assert darkened(pixels[:1, :1], weights, (0, 0.2, 0.4, 0.4)).shape == (1, 1, 3)


def test_figures_of_overlapping_patches():
    config = vit("mu/16", patch=(16, 8), stride=(12, 4), image=(64, 48), classes=3)
    model = create(config, seed=0).eval()
    torch.nn.init.normal_(model.head.weight)
    classifier = Classifier(model, Preprocessing((64, 48)), tuple("abc"))
    images = torch.randint(0, 256, (2, 3, 64, 48), dtype=torch.uint8)
    subject = InspectedModel(classifier, images, ("one", "two"))
    assert rollout_plate(subject).arrays["rollout"].shape == (2, 5, 11)
    assert occlusion_plate(subject).arrays["deletion"].shape == (2, 15)


@pytest.mark.parametrize("width", [1, 20, 400])
def test_a_caption_of_a_picture_of_any_width_ends(width):
    page = captioned(np.zeros((30, width, 3), np.uint8), "bees 98 % " * 20)
    assert page.shape == (30 + LINE, width, 3) and (page[:30] == 0).all()
    assert (page[30:, -1] == 255).all() or width < 400


def test_names_are_drawn_in_a_font_that_has_their_letters(tmp_path):
    """DejaVu Sans has European and Arabic letters; of others it depends on the machine."""
    line = drawable("Grüne  Ameise\u200d αβγ\nя")
    assert line.text == "Grüne Ameise αβγ я" and line.font.name == "DejaVuSans.ttf"
    missing = chr(0x10FFFD)  # for private use: no font has it
    assert drawable(f"ant {missing}\ufe0f 98 %").text == f"ant {BOX} 98 %"
    pixels = np.zeros((30, 40, 3), np.uint8)
    contact_sheet([Tile(pixels, f"蚂蚁 {missing} $x$")], tmp_path / "sheet.png")  # no warning
