"""Data sets in other people's code: whatever they hold becomes a Source, and trains, evaluates and
predicts."""

import io
import json
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch
from pictures import encoded, photograph
from PIL import Image
from torchvision.datasets import FakeData, ImageFolder

from vitkit.cli.entry import main
from vitkit.data import (
    Augmentation,
    Columns,
    Preprocessing,
    eval_batches,
    fingerprint,
    from_dataset,
    open_image,
    open_source,
    open_splits,
    train_batches,
)
from vitkit.system.errors import BadImage, BadSettings

PIXELS = photograph(12, 16, 3)
GREY = PIXELS[..., 0]


def pixels(source, i: int = 0) -> np.ndarray:
    return open_image(source[i][0], source.name(i)).pixels()


@pytest.mark.parametrize("image", [
    PIXELS,
    torch.from_numpy(PIXELS.copy()),
    torch.from_numpy(PIXELS.copy()).permute(2, 0, 1),
    PIXELS.transpose(2, 0, 1),
    Image.fromarray(PIXELS),
    encoded(PIXELS, "PNG"),
])  # fmt: skip
def test_images_in_their_many_forms(image):
    source = from_dataset([(image, 0), (image, 1)])
    assert np.array_equal(pixels(source), PIXELS)
    assert source.labels == ("0", "1") and source.name(1) == "list item 1"


def test_grey_transparent_and_turned_images_are_read_as_files_are(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded(PIXELS, "PNG"))
    clear = Image.fromarray(np.dstack([PIXELS, np.zeros_like(GREY)]))
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.fromarray(PIXELS).save(turned, "PNG", exif=exif)
    upside_down = Image.open(io.BytesIO(turned.getvalue()))
    items = [path, str(path), Image.fromarray(GREY), torch.from_numpy(GREY.copy())[None], clear,
             upside_down]  # fmt: skip
    source = from_dataset(items)
    assert source.target_kind == "none"
    grey = np.stack([GREY] * 3, axis=-1)
    white = np.full_like(PIXELS, 255)
    expected = [PIXELS, PIXELS, grey, grey, white, PIXELS[::-1, ::-1]]
    assert len(source) == len(expected)
    for i, picture in enumerate(expected):
        assert np.array_equal(pixels(source, i), picture)


@pytest.mark.parametrize(("targets", "asked", "kind", "expected"), [
    ([1, 0, 2], "auto", "class", [1, 0, 2]),
    (["b", "a", "b"], "auto", "class", [1, 0, 1]),
    ([0.5, 1, 2], "auto", "number", [0.5, 1, 2]),
    ([3, 1, 2], "number", "number", [3, 1, 2]),
    ([[0, 1], [], [2]], "auto", "classes", [[1, 1, 0], [0, 0, 0], [0, 0, 1]]),
    (torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 0]]), "auto", "classes", [[0, 1, 1], [1, 0, 0], [0, 0, 0]]),
    (torch.tensor([1, 0, 2]), "auto", "class", [1, 0, 2]),
    ([1, 0, 2], "none", "none", [-1, -1, -1]),
])  # fmt: skip
def test_targets_in_their_many_forms(targets, asked, kind, expected):
    source = from_dataset([(PIXELS, target) for target in targets], target=asked)
    assert source.target_kind == kind
    assert source.targets_of(np.arange(3)).tolist() == expected


@pytest.mark.parametrize(("dataset", "message"), [
    (iter([]), "is not a map-style data set"),
    ([], "has no items"),
    ([(PIXELS, 1, 2)], "an item has 3 values; expected an image and its target"),
    ([{"image": PIXELS}], "an item is a dictionary of image"),
    ([(torch.rand(3, 8, 8), 1)], "list item 0 is float32; expected .*leave out ToTensor and Normalize"),
    ([("nowhere.png", 1)], "nowhere.png is missing"),
    ([(3, 1)], "list item 0 is int; expected a Pillow image"),
    ([(PIXELS, 1), (PIXELS, None)], "row 1 has no label"),
])  # fmt: skip
def test_what_is_no_data_set_is_one_sentence(dataset, message):
    with pytest.raises(ValueError, match=message) as caught:
        from_dataset(dataset)
    assert "\n" not in str(caught.value)


class Noise(torch.utils.data.Dataset):
    """Another image each time."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return np.random.default_rng().integers(0, 255, (8, 8, 3), np.uint8), i


def test_random_images_are_refused():
    with pytest.raises(ValueError, match="Noise item 0 is another image each time"):
        from_dataset(Noise())


class Broken(torch.utils.data.Dataset):
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 3

    def __getitem__(self, i):
        if i == 1:
            raise self.error
        return PIXELS, 0


def test_an_item_whose_file_cannot_be_read_is_a_bad_image():
    source = from_dataset(Broken(OSError("disk on fire")), target="none")
    with pytest.raises(BadImage, match="Broken item 1 cannot be read: OSError: disk on fire"):
        source[1]


def test_a_bug_of_a_data_set_is_no_bad_image():
    """It would be left out, or counted, as a broken photograph; it is its author's to mend."""
    source = from_dataset(Broken(TypeError("unsupported operand")), target="none")
    with pytest.raises(TypeError, match="unsupported operand") as raised:
        source[1]
    assert raised.value.__notes__ == ["while Broken item 1 was read"]


def test_targets_are_taken_from_the_attribute_if_they_are_the_items(folder, tmp_path):
    root = folder({f"{kind}/{i}.png": 20 for kind in ("ant", "bee") for i in range(40)})
    reads = []
    theirs = ImageFolder(str(root), loader=lambda path: reads.append(path) or vision_loader(path))
    source = from_dataset(theirs)
    assert source.labels == ("ant", "bee") and source.targets.tolist() == [0] * 40 + [1] * 40
    assert len(reads) < 80
    ours = open_source(str(root))
    assert all(np.array_equal(pixels(source, i), pixels(ours, i)) for i in range(80))
    other = ImageFolder(str(root), target_transform=lambda target: 1 - target)
    assert from_dataset(other).targets.tolist() == [1] * 40 + [0] * 40  # not what .targets says


def vision_loader(path: str) -> Image.Image:
    return Image.open(path).convert("RGB")


def test_batches_are_the_same_with_any_number_of_workers():
    fake = FakeData(20, (3, 16, 16), 3)
    source = from_dataset(fake, labels=("a", "b", "c"))
    assert [source.answer(i) for i in range(20)] == ["abc"[fake[i][1]] for i in range(20)]
    how, to = Augmentation(), Preprocessing(size=(8, 8))
    alone = train_batches(source, how, to, 6, 0, 0, workers=0)
    with closing(train_batches(source, how, to, 6, 0, 0, workers=2)) as prepared:
        for one, other in zip(islice(alone, 5), prepared, strict=False):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.targets, other.targets)
    rows = torch.cat([batch.targets[batch.real] for batch in eval_batches(source, to, 8, 0)])
    assert rows.tolist() == source.targets.tolist()


def test_a_data_set_is_known_again_by_its_images():
    known = fingerprint(from_dataset(FakeData(20, (3, 16, 16), 3)))
    assert known == fingerprint(from_dataset(FakeData(20, (3, 16, 16), 3)))
    assert known != fingerprint(from_dataset(FakeData(20, (3, 16, 16), 3, random_offset=9)))


# From a file


SCRIPT = """
import numpy as np
import torch
from torch.utils.data import Dataset
from torchvision.datasets import FakeData
import vitkit.data
from vitkit.data import Augmentation, Preprocessing
from vitkit.models import ViTConfig
from vitkit.system.span import Span
from vitkit.recipes import Data, Recipe


class Squares(Dataset):
    '''A bright square in one of four corners.'''

    classes = ["top left", "top right", "bottom left", "bottom right"]

    def __init__(self, count, start=0):
        self.count, self.start = count, start

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        image = np.random.default_rng(self.start + i).integers(0, 100, (12, 12, 3), np.uint8)
        corner = i % 4
        image[6 * (corner // 2):, 6 * (corner % 2):][:6, :6] += 120
        return torch.from_numpy(image).permute(2, 0, 1), corner


def squares():
    return Squares(80)


def parts():
    return {"train": Squares(60), "test": Squares(20, 1000)}


def source():
    return vitkit.data.from_dataset([(Squares(8)[i][0], i % 2 + 0.5) for i in range(8)])


def fake():
    return FakeData(8, (3, 12, 12), 2)


def several():
    return [(image, [corner] * (corner > 0)) for image, corner in (Squares(8)[i] for i in range(8))]


def wrong():
    return {"training": Squares(3)}


def recipe():
    model = ViTConfig(width=24, depth=2, mlp=48, heads=2, patch=3, image=(12, 12), classes=0)
    data = Data(source="mine.py:squares", preprocessing=Preprocessing(size=(12, 12)),
                augmentation=Augmentation(crop="none", flip=False), workers=0)
    return Recipe(model=model, data=data, batch=16, length=Span(12), log_every=6, name="squares",
                  evaluate_every=Span(12), save_every=Span(4))
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SCRIPT + "\ndef with_arguments(folder, size, seed=0): ...\n")
    (tmp_path / "syntax.py").write_text("import torch\ndef squares(:\n")
    monkeypatch.chdir(tmp_path)
    return "mine.py"


def test_a_function_of_one_s_own_gives_a_data_set(mine):
    splits = open_splits(f"{mine}:squares")
    assert (len(splits.train), len(splits.test)) == (64, 16) and splits.labels[1] == "top right"
    assert splits.train.name(0).startswith("mine.py:squares item ")
    divided = open_splits(f"{mine}:parts")
    assert (len(divided.train), len(divided.test)) == (60, 20) and divided.made_test is None
    assert divided.test.name(0) == "mine.py:parts test item 0"
    assert open_splits(f"{mine}:source").target_kind == "number"
    assert len(open_splits(f"{mine}:fake").train.labels) == 2
    assert open_source(f"{mine}:several").target_kind == "classes"
    assert open_source(f"{mine}:squares", Columns(target="number")).targets[3] == 3


@pytest.mark.parametrize(("where", "message"), [
    ("mine.py:nothing", "'mine.py' has no function 'nothing'"),
    ("nowhere.py:squares", "no file 'nowhere.py' to take 'squares' from"),
    ("mine.py:wrong", "returns parts called training; expected train, val and test"),
    ("mine.py:recipe", "mine.py:recipe is not a map-style data set"),
    ("mine.py:with_arguments", "is called without arguments, and it needs folder, size"),
    ("syntax.py:squares", "syntax.py, line 2, is not Python: "),
])  # fmt: skip
def test_functions_that_give_none_are_one_sentence(mine, where, message):
    with pytest.raises(ValueError, match=message):
        open_splits(where)


@pytest.fixture
def vitkit(capsys):
    """vitkit("train", ...): the command's output, or its error if it is to fail."""

    def call(*words: str, code: int = 0) -> str:
        assert main([*words, "--device", "cpu"]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return call


@pytest.mark.slow
def test_it_trains_evaluates_and_predicts(mine, tmp_path, vitkit):
    run = ("train", f"{mine}:recipe", "--workdir", "run")
    assert "64 training images" in vitkit(*run)
    assert "this run is finished" in vitkit(*run)
    metrics = json.loads(vitkit("evaluate", "run", "mine.py:squares", "--json").splitlines()[-1])
    assert metrics["seen"]["value"] == 16  # its own test part
    answers = vitkit("predict", "run", "mine.py:parts", "--json").splitlines()
    assert len(answers) == 20 and json.loads(answers[3])["truth"] == "bottom right"
    (tmp_path / "mine.py").write_text(SCRIPT.replace("integers(0, 100", "integers(0, 90"))
    error = vitkit(*run, code=1).replace("\n", " ")
    assert "'mine.py:squares' has changed since this run began" in error


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"target": "clas"}, "target is 'clas'; it is one of auto, class"),
        ({"labels": "ab"}, "labels is 'ab'; give a list of names"),
        ({"labels": 2}, "labels is 2; give a list of names"),
    ],
)
def test_wrong_settings_of_a_dataset_are_refused(wrong, sentence):
    items = [(photograph(9, 9), 0), (photograph(9, 9), 1)]
    with pytest.raises(BadSettings, match=sentence):
        from_dataset(items, **wrong)
    assert from_dataset(items, labels=np.array(["a", "b"])).labels == ("a", "b")
