"""What the model has seen of photographs is kept for the next session, unless their files change."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pictures import encoded, photograph

from vitkit.apps.label.feature_thread import FeatureThread
from vitkit.apps.label.session import LabelSession
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.weights import Classifier

NAMES = ("1.png", "2.png", "3.png")


@pytest.fixture
def photos(tmp_path):
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_bytes(encoded(photograph(20, 20, number), "PNG"))
    (tmp_path / "session").mkdir()
    return tmp_path


def started(photos):
    """A session, and the thread that shows its photographs to a model; it does not run yet."""
    session = LabelSession(NAMES, photos / "session")
    network = create(vit("mu/8", image=(16, 16), classes=2), seed=0).eval()
    classifier = Classifier(network, Preprocessing((16, 16)), ("0", "1")).for_inference()
    return session, FeatureThread(session, classifier, photos, "float32", lambda: list(NAMES))


def see_all(thread):
    """What the thread does until it has seen all photographs."""
    with ThreadPoolExecutor(1) as pool:
        while thread.session.unseen():
            thread._step(pool)


@pytest.mark.parametrize("when", ["before it was kept", "after it was kept"])
def test_a_photograph_that_has_changed_is_seen_anew(photos, when):
    first, thread = started(photos)
    see_all(thread)
    changed = encoded(photograph(20, 24, 9), "PNG")
    if when == "before it was kept":
        (photos / "2.png").write_bytes(changed)
    thread._keep()
    (photos / "2.png").write_bytes(changed)

    second, thread = started(photos)
    thread.take_up()
    assert second.unseen() == ["2.png"]
    see_all(thread)
    before = dict(zip(*first.features(), strict=True))
    after = dict(zip(*second.features(), strict=True))
    assert np.array_equal(before["1.png"], after["1.png"])
    assert not np.array_equal(before["2.png"], after["2.png"])
