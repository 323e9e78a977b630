"""Pages of `vitkit export -o photos.html` in Chromium, beside vitkit in PyTorch, on photographs.

Each photograph is given to the page as it is, and as a PNG of the pixels that vitkit decodes: what differs in
the first and not in the second is the decoder's. The page's ONNX file is computed by ONNX Runtime here, too
(`native`): what the browser adds, and what the file's precision does. `levels` is the largest difference of the pixels that the
model gets, of 255, and `share` how many of them differ at all. Opening is from the address to a page that can
answer, in a new context each time. Chromium runs without a screen and without the network.

    vitkit export MODEL -o photos.html
    python benchmarks/browser.py --model MODEL --page photos.html --images val.parquet --output FILE

It needs playwright for Python, and Chromium.
"""

import base64
import gzip
import re
import statistics
import time
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from shutil import which

import numpy as np
import pyarrow.parquet as pq
import record
import torch
from onnxruntime import InferenceSession
from PIL import Image

from vitkit.data import open_image
from vitkit.inspection import logits_and_rollout
from vitkit.weights import activate_array, load

PACKAGES = ("torch", "pillow", "onnxruntime", "playwright", "vitkit")
# What the page answers a photograph, its bytes in base64: plain values for this script
ANSWER = """async (text) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const answer = await vitkit.answer(new Blob([bytes]));
  answer.bitmap.close();
  let images = "";
  for (let i = 0; i < answer.images.length; i += 4096) {
    images += String.fromCharCode(...answer.images.subarray(i, i + 4096));
  }
  const attention = answer.attention && Array.from(answer.attention.map);
  return { ...answer, bitmap: null, images: btoa(images), attention };
}"""


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help="what the pages were exported from")
    parser.add_argument("--page", nargs="+", type=Path, required=True)
    parser.add_argument("--images", required=True, help="parquet of photographs")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--openings", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)

    classifier = load(options.model, quiet=True).for_inference()
    rows = pq.read_table(options.images).column("image").to_pylist()
    step = max(len(rows) // options.count, 1)
    files = [row["bytes"] for row in rows[::step][: options.count]]
    expected = [own_answer(classifier, data) for data in files]
    results = []
    with chromium() as browser:
        for path in options.page:
            result = {"page": path.name, "megabytes": round(path.stat().st_size / 1e6, 1)}
            result["opening_seconds"] = [opening(browser, path) for _ in range(options.openings)]
            native = native_answers(path, expected, classifier)
            with opened(browser, path) as tab:
                result["as_they_are"] = beside(tab, files, expected, native)
                pngs = [as_png(data) for data in files]
                result["as_png"] = beside(tab, pngs, expected, native)
            results.append(result)
            print(sentence(result), flush=True)
        content = {
            **about,
            "browser": f"Chromium {browser.version}",
            "webgpu": has_webgpu(browser, options.page[0]),
            "photographs": len(files),
            "results": results,
        }
    record.write(content, options.output)
    return content


@contextmanager
def chromium():
    """The browser."""
    from playwright.sync_api import sync_playwright

    path = which("chromium") or which("chromium-browser") or which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser, path: Path):
    """A page that can answer, as a file, without the network."""
    context = browser.new_context(offline=True)
    tab = context.new_page()
    tab.goto(path.resolve().as_uri())
    tab.evaluate("vitkit.ready.then(() => true)")
    yield tab
    context.close()


def opening(browser, path: Path) -> float:
    """Seconds until a page can answer."""
    start = time.perf_counter()
    with opened(browser, path):
        return round(time.perf_counter() - start, 2)


def has_webgpu(browser, path: Path) -> bool:
    """Whether this browser has something to compute on by WebGPU."""
    with opened(browser, path) as tab:
        return tab.evaluate(
            "(async () => Boolean(navigator.gpu && (await navigator.gpu.requestAdapter())))()"
        )


def own_answer(classifier, data: bytes) -> dict:
    """vitkit's answer in PyTorch, float32."""
    images = classifier.batch([open_image(data, "a photograph")])
    with torch.inference_mode():
        logits, maps = logits_and_rollout(classifier, images)
        probabilities = classifier.probabilities(logits)[0].numpy()
        unknown = None
        if classifier.unknown is not None:
            features = classifier.features(images)
            unknown = bool(classifier.unknown.is_unknown(features, logits)[0])
    return {
        "images": images[0].numpy(),
        "probabilities": probabilities,
        "attention": maps[0].numpy().ravel(),
        "unknown": unknown,
    }


def native_answers(path: Path, expected: list[dict], classifier) -> list[np.ndarray]:
    """The probabilities that the model in a page gives by ONNX Runtime on this machine, (K,) each."""
    packed = re.search("id=model>([^<]+)<", path.read_text()).group(1)
    session = InferenceSession(gzip.decompress(base64.b64decode(packed)))
    answers = []
    for own in expected:
        (logits,) = session.run(["logits"], {"images": own["images"][None]})
        answers.append(activate_array(logits, classifier.activation)[0])
    return answers


def as_png(data: bytes) -> bytes:
    """The pixels that vitkit decodes, upright, as a PNG."""
    buffer = BytesIO()
    pixels = open_image(data, "a photograph").pixels()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def beside(tab, files: list[bytes], expected: list[dict], native: list[np.ndarray]) -> dict:
    """The page's answers beside vitkit's, and beside those of its own file here."""
    levels = []
    differing = []
    probabilities = []
    attention = []
    same = []
    same_unknown = []
    same_native = []
    from_native = []
    seconds = {"preparing": [], "computing": []}
    for data, own, by_file in zip(files, expected, native, strict=True):
        answer = tab.evaluate(ANSWER, base64.b64encode(data).decode())
        images = np.frombuffer(base64.b64decode(answer["images"]), np.uint8)
        distance = np.abs(images.reshape(own["images"].shape).astype(int) - own["images"])
        levels.append(int(distance.max()))
        differing.append(float((distance > 0).mean()))
        given = np.array(answer["probabilities"])
        probabilities.append(float(np.abs(given - own["probabilities"]).max()))
        same.append(bool(given.argmax() == own["probabilities"].argmax()))
        attention.append(float(np.abs(np.array(answer["attention"]) - own["attention"]).max()))
        same_native.append(bool(given.argmax() == by_file.argmax()))
        from_native.append(float(np.abs(given - by_file).max()))
        if own["unknown"] is not None:
            same_unknown.append((answer["strangeness"] > 0) == own["unknown"])
        for name, values in seconds.items():
            values.append(answer["seconds"][name])
    highest = max(own["attention"].max() for own in expected)
    result = {
        "levels": max(levels),
        "photographs_with_other_levels": sum(level > 0 for level in levels),
        "photographs_beyond_one_level": sum(level > 1 for level in levels),
        "share": round(float(np.mean(differing)), 6),
        "same_class": sum(same) / len(same),
        "largest_difference_of_probability": max(probabilities),
        "mean_of_the_largest": float(np.mean(probabilities)),
        "same_class_as_native": sum(same_native) / len(same_native),
        "largest_difference_from_native": max(from_native),
        "largest_difference_of_attention": max(attention) / float(highest),
    }
    if same_unknown:
        result["same_unknown"] = sum(same_unknown) / len(same_unknown)
        result["unknown"] = sum(own["unknown"] for own in expected) / len(expected)
    for name, values in seconds.items():
        result[f"{name}_seconds"] = round(statistics.median(values), 3)
    return result


def sentence(result: dict) -> str:
    """A page's results in a line."""
    jpeg, png = result["as_they_are"], result["as_png"]
    opening_seconds = statistics.median(result["opening_seconds"])
    return (
        f"{result['page']}: {result['megabytes']} MB, opens in {opening_seconds:.1f} s; same class "
        f"{jpeg['same_class']:.1%}, probabilities differ by {jpeg['largest_difference_of_probability']:.2g} "
        f"at most; levels by {jpeg['levels']} (PNG {png['levels']}); {jpeg['preparing_seconds']} s to "
        f"prepare and {jpeg['computing_seconds']} s to compute"
    )


if __name__ == "__main__":
    main()
