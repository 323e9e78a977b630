"""A model as a page that answers in a browser: what is written, how it prepares photographs, and, in a real
Chromium, what it answers."""

import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from margins import at_most
from pictures import encoded, photograph
from PIL import Image

from vitkit.cli.entry import main
from vitkit.data import Preprocessing, open_image
from vitkit.evaluation import fit_unknown
from vitkit.exporting import check, exporting
from vitkit.exporting.browser import (
    GLUE,
    PARTS,
    PROGRAM,
    WASM,
    find_web_runtime,
    page,
    tall_by_columns,
)
from vitkit.exporting.exporting import _subject
from vitkit.inspection import over_image, rollout
from vitkit.models import create, vit
from vitkit.runtimes import Export, Exported
from vitkit.runtimes.exported import ExportedLimits
from vitkit.runtimes.graphs.graph import Graph
from vitkit.weights import Classifier, save

HOSTILE = "</script><b>bee</b>"
LABELS = ("ant", HOSTILE, "wasp")


# How photographs are prepared: the page's own code, run by Node

SETTINGS = {
    "square": Preprocessing(size=(24, 32)),
    "square, bicubic": Preprocessing(size=(24, 32), interpolation="bicubic"),
    "square, cropped": Preprocessing(size=(24, 24), resize=29, interpolation="bicubic"),
    "shorter": Preprocessing(size=(32, 32), rule="shorter", interpolation="bicubic"),
    "shorter, cropped": Preprocessing(size=(17, 23), rule="shorter", resize=26),
    "enlarged": Preprocessing(size=(90, 70), interpolation="bicubic"),
    "enlarged, bilinear": Preprocessing(size=(64, 64), rule="shorter", resize=71),
    "not antialiased": Preprocessing(size=(24, 32), antialias=False),
    "not antialiased, bicubic": Preprocessing(
        size=(24, 24), rule="shorter", resize=27, interpolation="bicubic", antialias=False
    ),
    "enlarged, not antialiased": Preprocessing(
        size=(70, 90), interpolation="bicubic", antialias=False
    ),
}
SIZES = [(61, 47), (40, 103), (33, 33), (24, 32), (7, 5), (250, 180)]
HARNESS = """
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
const answers = cases.map(({ height, width, pixels, settings }) => {
  const all = Buffer.from(pixels, "base64");
  const rows = (top, count) => all.subarray(4 * top * width, 4 * (top + count) * width);
  return Buffer.from(prepare(height, width, rows, settings)).toString("base64");
});
console.log(JSON.stringify(answers));
"""


def in_node(script: str, cases: list) -> list:
    """What the page's preprocessing.js answers."""
    if shutil.which("node") is None:
        pytest.skip("needs Node: apt-get install nodejs")
    source = (PARTS / "preprocessing.js").read_text() + script
    done = subprocess.run(
        ["node", "-e", source], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_photographs_are_prepared_to_the_level():
    cases = []
    expected = []
    for settings in SETTINGS.values():
        for seed, (height, width) in enumerate(SIZES):
            pixels = photograph(height, width, seed)
            pixels[::5, ::3] = 255 * (seed % 2)  # edges, which a bicubic kernel overshoots
            opaque = np.dstack([pixels, np.full((height, width), 255, np.uint8)])
            expected.append((settings, settings.array(open_image(pixels, "a picture"))))
            text = base64.b64encode(opaque.tobytes()).decode()
            cases.append({"height": height, "width": width, "pixels": text})
            cases[-1]["settings"] = settings.to_json() | {"tallByColumns": tall_by_columns()}
    answers = in_node(HARNESS, cases)
    assert len(answers) == len(SETTINGS) * len(SIZES)
    for answer, (settings, own) in zip(answers, expected, strict=True):
        given = np.frombuffer(base64.b64decode(answer), np.uint8).reshape(own.shape)
        distance = np.abs(given.astype(int) - own.astype(int)).max()
        # Pillow's, to the bit; PyTorch, which resizes without antialiasing, rounds otherwise
        allowed = 0 if settings.antialias else 1
        assert distance <= allowed, settings


def test_rows_are_read_a_band_at_a_time():
    """Telephones have canvases of few pixels."""
    script = """
    const counts = [];
    const rows = (top, count) => { counts.push([top, count]); return new Uint8Array(4 * count * 2000) };
    const settings = { size: [8, 8], rule: "square", resize: 0, interpolation: "bilinear", antialias: true };
    prepare(3000, 2000, rows, settings);
    prepare(6000, 2000, rows, { ...settings, tallByColumns: true });
    console.log(JSON.stringify(counts));
    """
    counts = in_node(script, [])
    assert max(count for _, count in counts) * 2000 <= 2**20
    assert sum(count for _, count in counts) == 9000


# What is written


@pytest.fixture
def package(tmp_path):
    """package(version): a folder that looks like onnxruntime-web's."""

    def make(version: str = "1.30.0", name: str = "onnxruntime-web", folder: str = "web") -> Path:
        root = tmp_path / folder
        (root / "dist").mkdir(parents=True)
        (root / "package.json").write_text(json.dumps({"name": name, "version": version}))
        for file in (PROGRAM, GLUE, WASM):
            (root / "dist" / file).write_bytes(f"{file} </script>".encode())
        return root

    return make


def test_a_page_is_one_file_that_may_load_nothing(package):
    exported = Exported(
        Preprocessing(size=(16, 24)), LABELS, "sigmoid", limits=ExportedLimits((0.25,), 0.05, 0.95)
    )
    network = bytes(range(256)) * 5
    about = [("model", "<i>7</i> parameters")]
    text = page(HOSTILE, exported, network, find_web_runtime(package()), about)

    # Text from outside is in it as data
    assert "<b>" not in text.replace("<p><b>Drop", "").replace('<p id="drop"><b>Drop', "")
    assert "<i>7" not in text
    data = json.loads(element(text, "data"))
    assert data["labels"] == list(LABELS) and data["name"] == HOSTILE
    assert data["activation"] == "sigmoid" and data["unknown"] == {"least": [0.25], "likely": 0.01}
    assert data["preprocessing"].pop("tallByColumns") in (True, False)
    assert Preprocessing.from_json(data["preprocessing"]) == exported.preprocessing
    assert about[0] in [tuple(pair) for pair in data["about"]]
    assert "MIT License" in data["notice"] and "1.30.0" in data["notice"]

    # The program and the model are packed in it
    packed = {"program": PROGRAM, "glue": GLUE, "wasm": WASM}
    for name, file in packed.items():
        assert unpacked(text, name) == f"{file} </script>".encode()
    assert unpacked(text, "model") == network

    # Its policy allows its own script and style, by their digests, and no address
    (policy,) = re.findall('Content-Security-Policy content="([^"]*)"', text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    for content in (script, style):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy and "unsafe-inline" not in policy and "connect" not in policy
    assert not re.findall(r"<script[^>]* src|<link[^>]*stylesheet|<img|https?://", text)


def element(text: str, name: str) -> str:
    """The text of an element of the page."""
    (content,) = re.findall(rf"<script type=[a-z/-]+ id={name}>(.*?)</script>", text, re.DOTALL)
    return content


def unpacked(text: str, name: str) -> bytes:
    return gzip.decompress(base64.b64decode(element(text, name), validate=True))


def test_onnxruntime_web_is_found_or_asked_for(package, tmp_path, monkeypatch):
    below = tmp_path / "one" / "two"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    if not any((folder / "node_modules").exists() for folder in tmp_path.parents):
        with pytest.raises(
            ValueError, match="type: npm install onnxruntime-web .npm comes with Node.js"
        ):
            find_web_runtime()
    found = package("1.31.2", folder="node_modules/onnxruntime-web")
    assert find_web_runtime().folder == found
    assert find_web_runtime(tmp_path).version == "1.31.2"
    assert find_web_runtime(tmp_path / "node_modules").folder == found

    for version, name, sentence in (
        ("1.30.0", "onnxruntime-node", "is the package 'onnxruntime-node'"),
        ("1.21.0", "onnxruntime-web", "needs 1.30 or later"),
        ("new", "onnxruntime-web", "cannot be read"),
    ):
        other = package(version, name, f"{name}-{version}")
        with pytest.raises(ValueError, match=sentence):
            find_web_runtime(other)
    (found / "dist" / WASM).unlink()
    with pytest.raises(ValueError, match=f"has no dist/{WASM}"):
        find_web_runtime()
    with pytest.raises(ValueError, match="there is none in .*one; type: npm install"):
        find_web_runtime(tmp_path / "one")


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["-o", "a.html", "--precision", "bfloat16"], "written in float16, float32, int8"),
        (["-o", "a.html", "--preprocessing"], "leave out --preprocessing"),
        (["-o", "a.onnx", "--onnxruntime-web", "web"], "ends in .html"),
        (["-o", "a.html", "--onnxruntime-web", "nowhere"], "npm install onnxruntime-web"),
    ],
)
def test_what_makes_no_page_is_refused(words, sentence, package, tmp_path, monkeypatch, capsys):
    package()
    monkeypatch.chdir(tmp_path)
    save(classifier(), Path("model"))
    assert main(["export", "model", *words]) == 1
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.glob("a.*"))


def test_a_model_that_no_browser_would_open_is_refused(package, tmp_path, monkeypatch):
    path = tmp_path / "large.html"
    wanted = Export("page", "float32", web_runtime=find_web_runtime(package()))
    check(classifier(), path, wanted)
    monkeypatch.setattr(exporting, "LARGEST_NETWORK", 10_000)
    with pytest.raises(ValueError, match="bytes in float32, and a page holds 10,000; choose"):
        check(classifier(), path, wanted)


# What a model looks at, as an output of its graph


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pool": "gap", "class_token": False},
        {"pool": "token-gap-quarters"},
        {"pool": "map", "class_token": False},
        {"mixer": "axial", "pool": "gap", "class_token": False},
        {"registers": 2},
    ],
    ids=str,
)
def test_a_graph_says_what_it_looks_at(changes):
    own = classifier(**changes).for_inference()
    images = own.batch([photograph(30, 40, seed) for seed in range(2)])
    with torch.no_grad():
        logits, attention = Graph(own, apart=True, looks=True)(images)
        assert torch.equal(logits, Graph(own, apart=True)(images))
    expected = over_image(rollout(own, images), own.model.config.tiling)
    torch.testing.assert_close(attention, expected, atol=1e-6, rtol=1e-5)


def classifier(**changes) -> Classifier:
    """A small model with random weights."""
    changes = {"classes": 3, **changes}
    network = create(vit("mu/8", image=(16, 24), **changes), seed=0).eval()
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    preprocessing = Preprocessing(size=(16, 24), rule="shorter", resize=28, interpolation="bicubic")
    return Classifier(network, preprocessing, LABELS[: changes["classes"]])


# The page itself


@pytest.fixture(scope="module")
def with_limits():
    """A model with limits for unknown images that a photograph of noise is beyond."""
    bare = classifier()
    with torch.inference_mode():
        learned = bare.features(bare.batch([photograph(40, 50, i) for i in range(90)]))
        unknown = fit_unknown(learned, torch.arange(90) % 3, bare.model.head(learned))
    return replace(bare, unknown=unknown)


@pytest.fixture(scope="module")
def tab(with_limits, chromium, tmp_path_factory):
    """The page of that model in Chromium, as a file and without the network."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    try:
        runtime = find_web_runtime()
    except ValueError:
        pytest.skip("needs onnxruntime-web: npm install onnxruntime-web")
    folder = tmp_path_factory.mktemp("page")
    save(with_limits, folder / "model")
    path = folder / "insects.html"
    words = ["export", str(folder / "model"), "-o", str(path), "--precision", "float32"]
    assert main([*words, "--onnxruntime-web", str(runtime.folder)]) == 0
    with chromium() as browser:
        opened = browser.new_context(offline=True).new_page()
        opened.asked = []
        opened.failed = []
        opened.on("request", lambda request: opened.asked.append(request.url))
        opened.on("pageerror", lambda error: opened.failed.append(str(error)))
        opened.goto(path.as_uri())
        opened.evaluate("vitkit.ready.then(() => true)")
        yield opened


ANSWER = """async (text) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const answer = await vitkit.answer(new Blob([bytes]));
  const attention = Array.from(answer.attention.map);
  return { ...answer, bitmap: null, images: Array.from(answer.images), attention };
}"""


def answered(tab, data: bytes) -> dict:
    return tab.evaluate(ANSWER, base64.b64encode(data).decode())


def turned(pixels: np.ndarray, orientation: int) -> bytes:
    """A PNG that Exif turns."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(pixels, "PNG", exif=exif)


def transparent(pixels: np.ndarray) -> bytes:
    alpha = np.linspace(0, 255, pixels[..., 0].size).reshape(pixels.shape[:2]).astype(np.uint8)
    return encoded(np.dstack([pixels, alpha]), "PNG")


@pytest.mark.slow
@pytest.mark.parametrize(
    "data, levels",
    [
        (encoded(photograph(120, 160), "PNG"), 0),
        (encoded(photograph(300, 90, 1), "PNG"), 0),
        (encoded(photograph(90, 91, 2)[..., 0], "PNG"), 0),
        (turned(photograph(120, 160, 3), 6), 0),
        (turned(photograph(120, 160, 3), 2), 0),
        (transparent(photograph(120, 160, 4)), 1),
        (encoded(photograph(120, 160, 5), "JPEG", quality=90), 1),
        (encoded(photograph(1500, 2000, 6), "JPEG", quality=80), 1),
    ],
    ids="plain tall grey turned mirrored transparent jpeg large".split(),
)
def test_the_page_answers_as_the_model(tab, with_limits, data, levels):
    own = with_limits.batch([open_image(data, "a picture")])
    answer = answered(tab, data)
    images = np.array(answer["images"]).reshape(own[0].shape)
    assert np.abs(images - own[0].numpy()).max() <= levels

    # The answers to the pixels that it has made
    own = torch.from_numpy(images.astype(np.uint8))[None]
    with torch.inference_mode():
        features = with_limits.features(own)
        logits = with_limits.model.head(features)
    probabilities = with_limits.probabilities(logits)[0].numpy()
    np.testing.assert_allclose(answer["probabilities"], probabilities, atol=1e-5)
    excess = float(with_limits.unknown.excess(features, logits)[0])
    at_most(abs(answer["strangeness"] - excess), 1e-3)
    looked = rollout(with_limits, own)[0].numpy().ravel()
    np.testing.assert_allclose(answer["attention"], looked, atol=1e-6)


@pytest.mark.slow
def test_a_person_gives_photographs(tab, with_limits):
    strange = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    strange[::2] = 0
    known = photograph(40, 50, 1)
    said = {}
    for name, pixels in {"<b>a</b>.png": known, "strange.png": strange}.items():
        file = {"name": name, "mimeType": "image/png", "buffer": encoded(pixels, "PNG")}
        tab.set_input_files("#file", file)
        tab.wait_for_function(
            "name => document.querySelector('#shown figcaption').textContent === name", arg=name
        )
        said[name] = tab.locator("#unknown").is_visible()
        own = with_limits.batch([open_image(pixels, name)])
        with torch.inference_mode():
            features = with_limits.features(own)
            unknown = with_limits.unknown.is_unknown(features, with_limits.model.head(features))
        assert said[name] == bool(unknown[0])

    # Names are text, and something is drawn
    names = tab.locator("#classes li span:not(.number)").all_inner_texts()
    assert sorted(names) == sorted(LABELS)
    drawn = """() => {
      const canvas = document.querySelector("#looked canvas");
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return pixels.reduce((highest, value, i) => (i % 4 < 3 ? Math.max(highest, value) : highest), 0);
    }"""
    assert tab.evaluate(drawn) > 50

    # By drag and drop, and from the clipboard
    for kind, event in {"drop": "DragEvent", "paste": "ClipboardEvent"}.items():
        give = """([kind, event, text]) => {
          const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
          const given = new DataTransfer();
          given.items.add(new File([bytes], `${kind}.png`, { type: "image/png" }));
          const values = { dataTransfer: given, clipboardData: given, bubbles: true, cancelable: true };
          document.dispatchEvent(new globalThis[event](kind, values));
        }"""
        data = base64.b64encode(encoded(known, "PNG")).decode()
        tab.evaluate(give, [kind, event, data])
        tab.locator("#shown figcaption").filter(has_text=f"{kind}.png").wait_for()

    # What is no photograph is a sentence, and the page goes on
    half = encoded(known, "PNG")[:60]
    for name, data in {"notes.txt": b"?", "half.png": half}.items():
        tab.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": data})
        problem = tab.locator("#problem")
        problem.filter(has_text=f"{name}: this browser cannot read it as a photograph.").wait_for()
    assert answered(tab, encoded(known, "PNG"))["probabilities"]

    # Nor is it said beside the answer to the next one
    for name, data in {"notes.txt": b"?", "next.png": encoded(known, "PNG")}.items():
        tab.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": data})
    tab.locator("#shown figcaption").filter(has_text="next.png").wait_for()
    assert tab.locator("#problem").inner_text() == ""

    # Nothing was asked for but the page, and what it holds
    outside = [url for url in tab.asked if not url.startswith(("blob:", "data:"))]
    assert len(outside) == 1 and outside[0].endswith("insects.html")
    assert tab.failed == []


CANVASES = """() => ["shown", "looked"].map((id) => {
  const canvas = document.getElementById(id).querySelector("canvas");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return Array.from(pixels.data);
})"""


@pytest.mark.slow
def test_the_page_of_good_images_is_as_red_as_a_photograph_is_unlike_them(chromium, tmp_path):
    """The map is not scaled by its highest value: a good photograph stays as it is."""
    pytest.importorskip("onnxscript")
    try:
        runtime = find_web_runtime()
    except ValueError:
        pytest.skip("needs onnxruntime-web: npm install onnxruntime-web")
    own = classifier(pool="memory", memory=6, class_token=False, classes=2)
    with torch.no_grad():  # half unlike, everywhere
        own.model.head.weight.copy_(torch.tensor([[0.0], [0.01]]))
        own.model.head.bias.zero_()
    save(own, tmp_path / "model")
    (tmp_path / "a.png").write_bytes(encoded(photograph(60, 90), "PNG"))
    path = tmp_path / "page.html"
    words = ["export", str(tmp_path / "model"), "-o", str(path), "--precision", "float32"]
    assert main([*words, "--onnxruntime-web", str(runtime.folder)]) == 0
    with chromium() as browser:
        opened = browser.new_context(offline=True).new_page()
        opened.goto(path.as_uri())
        opened.evaluate("vitkit.ready.then(() => true)")
        opened.set_input_files("input[type=file]", str(tmp_path / "a.png"))
        opened.wait_for_selector("#looked canvas", state="visible")
        assert "Red where it is unlike" in opened.inner_text("#looked")
        shown, looked = (np.array(each).reshape(-1, 4)[:, :3] for each in opened.evaluate(CANVASES))
    at_most(np.abs(looked - (0.65 * shown + 0.35 * np.array([228, 26, 28]))).max(), 1.5)


@pytest.mark.slow
def test_the_policy_keeps_the_network_out(tab):
    """Each attempt is refused by the policy itself, not by the lack of a network."""
    attempts = {
        "img-src": "new Image().src = address",
        "connect-src": "fetch(address).catch(() => 0)",
    }
    for directive, attempt in attempts.items():
        script = """(resolve) => {
          const seen = (event) => resolve(event.effectiveDirective);
          document.addEventListener("securitypolicyviolation", seen, { once: true });
          const address = "https://example.org/a.png";
        """
        assert tab.evaluate(f"new Promise({script} {attempt} }})") == directive


@pytest.mark.parametrize(
    ("labels", "title"),
    [
        (("ants", "bees"), "ants or bees"),
        (("a", "b", "c"), "a, b or c"),
        (("a", "b", "c", "d"), "a, b, c and 1 more"),
        (("only",), "only"),
    ],
)
def test_a_page_is_titled_by_its_classes(labels, title):
    assert _subject(labels) == title
