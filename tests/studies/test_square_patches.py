"""Studies that vary the side of patches say which patches they can vary."""

import pytest

from vitkit.models import vit
from vitkit.studies.base import check_square_patches


@pytest.mark.parametrize("settings", [{"patch": (16, 8)}, {"stride": 8}])
def test_rectangles_and_overlap_are_refused(settings):
    check_square_patches(vit("mu/16"))
    with pytest.raises(
        ValueError, match="leave out model.stride, and give one number for model.patch"
    ):
        check_square_patches(vit("mu/16", **settings))
