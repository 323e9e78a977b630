"""Data sets that go by a name, in the layouts that they are published in; and ReaL: which answers count as
right, and which images count."""

import hashlib
import json
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from pictures import encoded, photograph
from PIL import Image
from scipy.io import savemat
from tables import saved

from vitkit import cli
from vitkit.data import open_source
from vitkit.evaluation import SETS, Answers, check_names, open_named, read_real, real_accuracy
from vitkit.evaluation.benchmarks import imagenet
from vitkit.evaluation.benchmarks.imagenet import IMAGES, find_labels, find_real
from vitkit.evaluation.benchmarks.labels import imagenet_wordnet
from vitkit.evaluation.benchmarks.named import open_named_parts
from vitkit.system.storage.files import cache_dir
from vitkit.weights import imagenet_labels, load

WORDNET = imagenet_wordnet()
PICTURE = encoded(photograph(20, 24, 0), "PNG")
CLASSES = {1: 65, 2: 970, 293: 0}  # of the validation images with these numbers


def put(path: Path, content=PICTURE):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)


def image(number):
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def flat(folder: Path) -> str:
    for number in CLASSES:
        put(folder / image(number))
    return str(folder)


def classes_of(source):
    """The class of each image by its file's name."""
    return {Path(source.name(i)).name: source[i][1] for i in range(len(source))}


def val_txt(root):
    put(root / "val.txt", "".join(f"{image(n)} {k}\n" for n, k in CLASSES.items()))


def solution(root):
    rows = "".join(f"{image(n)[:-5]},{WORDNET[k]} 1 2 3 4 \n" for n, k in CLASSES.items())
    put(root / "LOC_val_solution.csv", f"ImageId,PredictionString\n{rows}")


def synset_lines(root):
    lines = [WORDNET[CLASSES.get(n, 5)] for n in range(1, IMAGES + 1)]
    put(root / "imagenet_2012_validation_synset_labels.txt", "\n".join(lines))


def devkit(root, meta=True):
    """The challenge's numbers, here those of an order backwards, and meta.mat, which says so; like
    the real one it has synsets beyond the 1,000, too."""
    folder = root / "ILSVRC2012_devkit_t12" / "data"
    lines = [str(1000 - CLASSES.get(n, 5)) for n in range(1, IMAGES + 1)]
    put(folder / "ILSVRC2012_validation_ground_truth.txt", "\n".join(lines))
    synsets = np.empty((1002, 1), [("ILSVRC2012_ID", object), ("WNID", object)])
    for k in range(1002):
        wnid = WORDNET[999 - k] if k < 1000 else "n00000001"
        synsets[k, 0] = (np.uint16(k + 1), wnid)
    if meta:
        savemat(folder / "meta.mat", {"synsets": synsets})


@pytest.mark.parametrize("write", [val_txt, solution, synset_lines, devkit])
def test_validation_images_without_folders_have_the_classes_of_a_file(write, tmp_path):
    write(tmp_path)
    named = open_named("imagenet", flat(tmp_path / "val"))
    assert classes_of(named.source) == {image(n): k for n, k in CLASSES.items()}
    assert named.source.labels == WORDNET and len(named.notes) == 3
    assert str(tmp_path) in named.notes[1] and "50,000" in named.notes[2]


def test_every_sentence_about_a_file_of_labels(tmp_path):
    where = flat(tmp_path / "val")

    def said():
        with pytest.raises(ValueError) as error:
            open_named("imagenet", where)
        return str(error.value)

    assert "no file says what they are; expected one of val.txt" in said()
    devkit(tmp_path, meta=False)
    assert "meta.mat does not exist" in said()
    put(tmp_path / "ILSVRC2012_devkit_t12" / "data" / "meta.mat", "no matrix")
    assert "meta.mat is not the development kit's" in said()
    put(tmp_path / "val.txt", f"{image(1)} 1000\n")
    assert "numbers from 1 are the challenge's" in said()
    put(tmp_path / "val.txt", f"{image(1)} n01440764\n")
    assert "line 1 is 'ILSVRC2012_val_00000001.JPEG n01440764'" in said()
    put(tmp_path / "val.txt", f"{image(1)} 65\n")
    assert "has no class for" in said()
    put(tmp_path / "val" / "holiday.JPEG")
    assert "does not have the name of an ImageNet validation image" in said()
    (tmp_path / "val.txt").unlink()
    (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\nx,y\n")
    with pytest.raises(ValueError, match="which names no image and class"):
        find_labels(where)


def test_v2s_folders_are_numbers_and_not_text(tmp_path):
    for folder in ("0", "2", "10", "999"):
        put(tmp_path / folder / f"of_{folder}.jpeg")
    named = open_named("imagenet-v2", str(tmp_path))
    expected = {f"of_{folder}.jpeg": int(folder) for folder in ("0", "2", "10", "999")}
    assert classes_of(named.source) == expected


def test_named_sets_have_the_titles_and_sizes_that_were_published():
    assert {each.title: each.images for each in SETS.values()} == {
        "ImageNet's validation part": 50_000,
        "ImageNet-v2": 10_000,
        "ImageNet-A": 7_500,
        "ImageNet-R": 30_000,
        "ImageNet-Sketch": 50_889,
        "ObjectNet": 18_574,
    }
    assert all(each.source.startswith("https://") for each in SETS.values())


@pytest.mark.parametrize("name", ["imagenet-a", "imagenet-r"])
def test_only_200_classes_may_be_answered(name, tmp_path):
    subset = open_named_classes(name)
    assert len(subset) == 200 and list(subset) == sorted(subset) and set(subset) <= set(WORDNET)
    put(tmp_path / subset[7] / "a.jpg")
    named = open_named(name, str(tmp_path))
    choice = named.choice(imagenet_labels())
    assert len(choice.labels) == len(choice.columns) == 200
    assert choice.labels[7] == imagenet_labels()[WORDNET.index(subset[7])]
    assert named.source[0][1] == 7

    outside = next(wnid for wnid in WORDNET if wnid not in subset)
    put(tmp_path / outside / "b.jpg")
    with pytest.raises(ValueError, match=f"is not {SETS[name].title}: it has the classes"):
        open_named(name, str(tmp_path))


def open_named_classes(name):
    import vitkit.evaluation

    file = Path(vitkit.evaluation.__file__).parent / "benchmarks" / SETS[name].classes
    return tuple(file.read_text().split())


@pytest.fixture
def objectnet(tmp_path):
    """ObjectNet's layout: a red border around each image."""
    folders = {"clock": "Alarm clock", "fishes": "Fish", "bed": "Bed"}
    classes = {"Alarm clock": "analog clock; digital clock", "Fish": "tench, Tinca tinca"}
    put(tmp_path / "mappings" / "folder_to_objectnet_label.json", json.dumps(folders))
    put(tmp_path / "mappings" / "objectnet_to_imagenet_1k.json", json.dumps(classes))
    for number, folder in enumerate(folders):
        pixels = np.full((12, 10, 3), (255, 0, 0), np.uint8)
        pixels[1:-1, 1:-1] = 20 + number
        path = tmp_path / "images" / folder / "1.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels).save(path)
    return tmp_path


def test_objectnets_border_is_cut_off_and_objects_are_classes(objectnet):
    for where in (objectnet, objectnet / "images"):
        named = open_named("objectnet", str(where))
        assert named.source.labels == ("Alarm clock", "Fish") and len(named.source) == 2
        for i, level in enumerate((20, 21)):
            pixels, target = named.source[i]
            assert target == i and pixels.shape == (10, 8, 3) and (pixels == level).all()
        choice = named.choice(imagenet_labels())
        labels = imagenet_labels()
        clocks = [labels.index("analog clock"), labels.index("digital clock")]
        assert choice.answer_of[clocks].tolist() == [0, 0]
        assert choice.answer_of[0].item() == 1 and len(choice.labels) == 999


def test_objectnets_sentences(objectnet):
    put(objectnet / "images" / "sofa" / "1.png")
    with pytest.raises(ValueError, match="has the folder 'sofa'"):
        open_named("objectnet", str(objectnet))
    put(objectnet / "mappings" / "objectnet_to_imagenet_1k.json", '{"Fish": "a sort of fish"}')
    (objectnet / "images" / "sofa" / "1.png").unlink()
    with pytest.raises(ValueError, match="which are not classes of ImageNet"):
        open_named("objectnet", str(objectnet))
    (objectnet / "mappings" / "objectnet_to_imagenet_1k.json").unlink()
    with pytest.raises(ValueError, match="needs folder_to_objectnet_label.json and"):
        open_named("objectnet", str(objectnet))


def test_the_command_says_the_protocol(objectnet, tmp_path, capsys):
    saved(tmp_path / "model", imagenet_labels())
    words = ["evaluate", str(tmp_path / "model"), str(objectnet), "--device", "cpu"]
    assert cli.main([*words, "--as", "objectnet", "--workers", "0"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for text in (
        "2 images of ObjectNet (",
        "every class of ImageNet that an object is counts as right",
        "these are 2 images, and ObjectNet has 18,574",
        "--as objectnet --report report.html",
    ):
        assert text in out, text
    for option in (
        ["--calibrate", str(tmp_path / "new")],
        ["--real", "real.json"],
        ["--on-unknown-class", "skip"],
    ):
        assert cli.main([*words, "--as", "objectnet", *option]) == 1
        assert "--as" in capsys.readouterr().err


@pytest.mark.slow
def test_what_learns_reads_named_sets_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    classes = open_named_classes("imagenet-r")[3:5]
    for k, wnid in enumerate(classes):
        for i in range(5):
            pixels = np.full((32, 32, 3), 40 + 150 * k + i, np.uint8)
            put(tmp_path / "imagenet-r" / wnid / f"{i}.png", encoded(pixels, "PNG"))
    names = [imagenet_labels()[WORDNET.index(wnid)] for wnid in classes]
    saved(tmp_path / "model", "ab")
    data, tuned = str(tmp_path / "imagenet-r"), str(tmp_path / "tuned")
    more = ["--as", "imagenet-r", "--device", "cpu"]

    def run(name, *words):
        assert cli.main([name, str(tmp_path / "model"), data, *words, *more]) == 0
        return capsys.readouterr()

    said = run("probe", "--to", tuned, "--json")
    assert json.loads(said.out)["test/top1"]["value"] == 1
    assert "198 of 200 classes have no image to learn from" in said.err
    assert "these are 10 images, and ImageNet-R has 30,000" in " ".join(said.err.split())
    assert load(tuned, quiet=True).labels == tuple(names)
    said = run("fewshot", "--shots", "2", "--json")
    assert json.loads(said.out)[data]["2-shot/top1"]["value"] == 1
    table = str(tmp_path / "features.npz")
    run("features", "-o", table)
    with np.load(table, allow_pickle=False) as arrays:
        assert sorted(set(arrays["class"].tolist())) == sorted(names)

    # A head of two classes has no accuracy among 200; and what it learned from is said
    assert cli.main(["evaluate", tuned, data, *more]) == 1
    capsys.readouterr()
    assert cli.main(["evaluate", tuned, data, "--as", "imagenet", "--device", "cpu"]) == 0
    assert "it may know the other images" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["probe", str(tmp_path / "model"), data, "--as", "imagenet-c"]) == 2


def test_all_parts_of_imagenet_have_its_classes(tmp_path):
    for part in ("train", "val"):
        put(tmp_path / part / WORDNET[7] / "a.jpg")
        put(tmp_path / part / WORDNET[9] / "b.jpg")
    parts = open_named_parts("imagenet", str(tmp_path))
    assert set(parts.sources) == {"train", "val"}
    for source in parts.sources.values():
        assert sorted(source.targets.tolist()) == [7, 9] and source.labels == imagenet_labels()
    assert len([note for note in parts.notes if "50,000" in note]) == 1


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Validation images 1 to 4, in folders of two synsets."""
    folder = tmp_path_factory.mktemp("val")
    for number, synset in ((1, "n01440764"), (2, "n01443537"), (3, "n01440764"), (4, "n01443537")):
        path = folder / synset / f"ILSVRC2012_val_{number:08d}.JPEG"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return open_source(str(folder))


def answered(predicted, labels, finite=True):
    nothing = np.zeros(len(predicted))
    return Answers(
        tuple(labels), (), np.arange(len(predicted)), nothing, np.array(predicted), nothing, nothing,
        nothing, nothing, nothing > 0, np.full(len(predicted), finite),
    )  # fmt: skip


def in_order_of(source, by_number):
    """Values by the images' numbers, in the source's order."""
    return [by_number[int(source.name(i)[-13:-5])] for i in range(len(source))]


def lists_of(first):
    return [*first, *([[]] * (IMAGES - len(first)))]


def test_an_answer_in_the_list_is_right_and_images_without_labels_are_left_out(source):
    lists = lists_of([[3, 7], [5], [], [9]])
    given = answered(in_order_of(source, {1: 7, 2: 4, 3: 0, 4: 9}), imagenet_labels())
    top1, seen = real_accuracy(given, source, lists)
    assert (top1.name, top1.value, seen.value) == ("real/top1", 2 / 3, 3)


def test_classes_meet_by_name_whatever_their_order_in_the_model(source):
    lists = lists_of([[3, 7], [5], [], [9]])
    labels = imagenet_labels()[::-1]
    given = answered(in_order_of(source, {1: 992, 2: 994, 3: 0, 4: 990}), labels)
    assert real_accuracy(given, source, lists)[0].value == 1.0


def test_the_command_prints_it(tmp_path, photographs, capsys):
    saved(tmp_path / "model", imagenet_labels())  # whose answers are all 0
    for number, synset in ((1, "n01440764"), (2, "n01443537")):
        path = tmp_path / "val" / synset / f"ILSVRC2012_val_{number:08d}.JPEG"
        path.parent.mkdir(parents=True)
        path.write_bytes(next(photographs.glob("red/*.jpg")).read_bytes())
    (tmp_path / "real.json").write_text(json.dumps(lists_of([[4, 0], [1]])))
    words = ["evaluate", str(tmp_path / "model"), str(tmp_path / "val"), "--json"]
    words += ["--real", str(tmp_path / "real.json"), "--device", "cpu", "--workers", "0"]
    assert cli.main(words) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert (metrics["real/top1"]["value"], metrics["real/seen"]["value"]) == (0.5, 2)


def test_logits_that_are_no_numbers_have_no_accuracy(source):
    given = answered([0] * 4, imagenet_labels(), finite=False)
    assert np.isnan(real_accuracy(given, source, lists_of([[0]]))[0].value)


def test_what_cannot_be_counted_is_a_sentence(source, photographs):
    given = answered([0] * 4, imagenet_labels())
    with pytest.raises(ValueError, match="none of the 4 images has a label in ReaL"):
        real_accuracy(given, source, lists_of([]))
    with pytest.raises(ValueError, match="does not have the name of an ImageNet validation image"):
        check_names(open_source(str(photographs)))
    check_names(source)
    with pytest.raises(ValueError, match="classes that the model does not know"):
        real_accuracy(replace(given, labels=("cat", "dog")), source, lists_of([[0]]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[1]]", "is not ReaL's real.json"),
        ("{", "is not JSON"),
        (json.dumps([[1000]] + [[]] * (IMAGES - 1)), "for image 1; expected a list of classes"),
        (json.dumps([[0], 3] + [[]] * (IMAGES - 2)), "has 3 for image 2"),
    ],
)
def test_another_file_is_a_sentence(text, message, tmp_path):
    (tmp_path / "real.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_real(tmp_path / "real.json")
    with pytest.raises(ValueError, match="cannot be read"):
        read_real(tmp_path / "nothing.json")


def test_the_file_is_read_as_it_is(tmp_path):
    lists = lists_of([[1, 2], []])
    (tmp_path / "real.json").write_text(json.dumps(lists))
    assert read_real(tmp_path / "real.json") == lists


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The address of a folder that a server on this machine passes on, and the folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    serve = partial(server.serve_forever, poll_interval=0.01)
    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setattr(imagenet, "URL", f"http://127.0.0.1:{server.server_port}/real.json")
    yield folder
    server.shutdown()
    server.server_close()


def test_the_published_file_is_downloaded_once_and_no_other(served, monkeypatch):
    data = json.dumps(lists_of([[1, 2], []])).encode()
    (served / "real.json").write_bytes(data)
    with pytest.raises(ValueError, match="is not the published file"):
        find_real("download")
    monkeypatch.setattr(imagenet, "SHA256", hashlib.sha256(data).hexdigest())
    path = find_real("download")
    assert path.read_bytes() == data and path.is_relative_to(cache_dir())
    (served / "real.json").unlink()
    assert find_real("download") == path  # from the cache


def test_without_a_network_the_sentence_says_what_to_do(served):
    with pytest.raises(ValueError, match="without a network, give the file of"):
        find_real("download")
