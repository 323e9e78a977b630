"""The Inception crop has the distribution of TensorFlow's sample_distorted_bounding_box."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vitkit.data.augmentation.draws import ASPECT, inception_box, random_box


def boxes(height, width, count=2000, area=(0.05, 1.0)):
    random = np.random.default_rng(0)
    return np.array([inception_box(height, width, area, random) for _ in range(count)])


@settings(max_examples=100, deadline=None)
@given(
    height=st.integers(1, 64),
    width=st.integers(1, 64),
    seed=st.integers(0, 2**32),
    low=st.floats(0.01, 1),
)
def test_crops_lie_inside_images_of_any_size(height, width, seed, low):
    random = np.random.default_rng(seed)
    top, left, h, w = inception_box(height, width, (low, 1.0), random)
    assert top >= 0 and left >= 0 and h > 0 and w > 0 and top + h <= height and left + w <= width
    assert h * w >= low * height * width or (h, w) == (height, width)
    size = (min(height, 7), min(width, 5))
    top, left, h, w = random_box(height, width, size, random)
    assert (h, w) == size and 0 <= top <= height - h and 0 <= left <= width - w


def test_sides_are_uniform_between_the_smallest_and_the_largest_that_fit():
    """An independent account of the distribution, in continuous sizes: aspect uniform, then the
    height uniform in what remains when area and width have had their say. Areas themselves are not
    uniform: small crops are the more frequent."""
    height, width = 1500, 2000
    random = np.random.default_rng(1)
    aspect = random.uniform(*ASPECT, 20_000)
    tallest = np.minimum(np.minimum(height, width / aspect), np.sqrt(height * width / aspect))
    shortest = np.sqrt(0.05 * height * width / aspect)
    expected = random.uniform(shortest, tallest)
    top, left, h, w = boxes(height, width, 4000).T
    assert stats.ks_2samp(h, expected).pvalue > 0.001
    assert stats.ks_2samp(w, expected * aspect).pvalue > 0.001
    assert stats.ks_2samp(h * w, expected**2 * aspect).pvalue > 0.001
    assert stats.kstest(top / (height - h).clip(1), "uniform").pvalue > 0.001
    assert stats.kstest(left / (width - w).clip(1), "uniform").pvalue > 0.001


def test_where_nothing_fits_the_whole_image_is_taken():
    """A crop is at most 1.33 times as wide as high."""
    assert (boxes(8, 400, 50, area=(0.9, 1.0)) == (0, 0, 8, 400)).all()
