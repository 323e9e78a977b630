"""A model as a single HTML page that classifies photographs in a browser, without a server or a network:
the page contains the model as ONNX, and onnxruntime-web, which runs it.

A page opened by a double click may not fetch anything, not even a file beside it, so everything is in one
file: the model and the program as text (gzip, base64), which the page's own script unpacks. The page's
Content-Security-Policy forbids all connections. preprocessing.js prepares the pixels, since no browser
resizes images as the training pipelines of the models do.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from pathlib import Path

import numpy as np
from PIL import Image

from vitkit.inspection.pages.html import working_style
from vitkit.prediction.predictions import LIKELY
from vitkit.runtimes import Exported
from vitkit.runtimes.graphs.writing import WebRuntime
from vitkit.system.console.text import counted_kind, printable_name
from vitkit.system.environment import MAX_PIXELS
from vitkit.system.errors import Unsupported
from vitkit.system.storage.files import MARK, parse_json

PARTS = Path(__file__).with_name("browser_page")
PACKAGE = "onnxruntime-web"
OLDEST = (1, 30)  # earlier versions (1.19 to 1.22 were tested) do not start from within a page
PROGRAM = "ort.wasm.min.js"
GLUE = "ort-wasm-simd-threaded.mjs"
WASM = "ort-wasm-simd-threaded.wasm"
LARGEST_FILE = 50 * 2**20  # of a photograph, bytes; the limit of `vitkit app`
LARGEST_PIXELS = 100 * 10**6  # of a photograph; a browser decodes it to four bytes per pixel
LONGEST_SIDE = 16384  # of a canvas that every browser supports, pixels
LARGEST_NETWORK = 256 * 2**20  # of weights, bytes; a browser holds them twice, as text and unpacked
LARGEST_PROGRAM = 128 * 2**20  # of one file of onnxruntime-web, bytes

# The licence of onnxruntime-web, whose package names it without including its text
NOTICE = """\
This page contains ONNX Runtime Web {version}.
Copyright (c) Microsoft Corporation. All rights reserved.

MIT License

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and \
associated documentation files (the "Software"), to deal in the Software without restriction, including \
without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell \
copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the \
following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial \
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT \
LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO \
EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER \
IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR \
THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def find_web_runtime(named: Path | None = None) -> WebRuntime:
    """The onnxruntime-web in a given folder, or in node_modules of this folder or one above. Raises
    VitkitError if there is none, or if its version is unsupported."""
    if named is not None:
        candidates = [named, named / PACKAGE, named / "node_modules" / PACKAGE]
    else:
        here = Path.cwd()
        candidates = [folder / "node_modules" / PACKAGE for folder in (here, *here.parents)]
    for folder in candidates:
        if (folder / "package.json").is_file():
            return _checked(folder)
    where = "here or above"
    if named is not None:
        where = f"in {named}"
    raise Unsupported(
        f"a page needs {PACKAGE}, and there is none {where}; type: npm install {PACKAGE} "
        "(npm comes with Node.js, nodejs.org)"
    )


def _checked(folder: Path) -> WebRuntime:
    """The runtime in a folder with a package.json. Raises VitkitError if it is a different package."""
    try:
        described = parse_json((folder / "package.json").read_text("utf-8"))
        name = described["name"]
        version = described["version"]
        numbers = tuple(int(number) for number in version.split(".")[:2])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unsupported(f"{folder}/package.json cannot be read: {error}") from error
    if name != PACKAGE:
        raise Unsupported(f"{folder} is the package {name!r}, not {PACKAGE}")
    if numbers < OLDEST:
        raise Unsupported(
            f"{folder} has {PACKAGE} {version}; a page needs {'.'.join(map(str, OLDEST))} or later: "
            f"npm install {PACKAGE}"
        )
    for file in (PROGRAM, GLUE, WASM):
        path = folder / "dist" / file
        if not path.is_file() or path.stat().st_size > LARGEST_PROGRAM:
            raise Unsupported(
                f"{PACKAGE} {version} in {folder} has no dist/{file} as in the versions that vitkit "
                f"knows; type: npm install {PACKAGE}@1.30.0"
            )
    return WebRuntime(folder, version)


def page(
    title: str,
    exported: Exported,
    network: bytes,
    runtime: WebRuntime,
    about: list[tuple[str, str]],
) -> str:
    """The HTML of the page. network: the .onnx file. about: pairs of a name and a text for the page's
    details."""
    data = page_data(title, exported, runtime, about)
    packed = {
        "program": runtime.read(PROGRAM),
        "glue": runtime.read(GLUE),
        "wasm": runtime.read(WASM),
        "model": network,
    }

    # Everything but markup goes into script elements, whose text is never parsed as markup
    script = "\n".join(_part(name) for name in ("preprocessing.js", "page.js"))
    style = working_style() + _part("page.css")
    body = [_part("page.html")]
    for name, content in packed.items():
        text = base64.b64encode(gzip.compress(content, mtime=0)).decode()
        body.append(f"<script type=application/octet-stream id={name}>{text}</script>")
    # "<" could begin the end tag of a script element; JSON can express it by an escape
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    body.append(f"<script type=application/json id=data>{text}</script>")
    body.append(f"<script>{script}</script>")

    # The page loads nothing except what its own script has unpacked
    allowed = (
        f"default-src 'none'; script-src {_digest(script)} 'wasm-unsafe-eval' blob:; "
        f"style-src {_digest(style)}; img-src blob: data:; base-uri 'none'; form-action 'none'"
    )
    head = (
        "<meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'>"
        f'<meta http-equiv=Content-Security-Policy content="{allowed}">'
        "<meta name=referrer content=no-referrer><link rel=icon href='data:,'>"
        f"<title>{html.escape(printable_name(title))}</title><style>{style}</style>"
    )
    lines = "\n".join(body)
    return f"<!doctype html><!-- {MARK} --><html lang=en><head>{head}</head><body>\n{lines}\n</body></html>"


def page_data(
    title: str, exported: Exported, runtime: WebRuntime, about: list[tuple[str, str]]
) -> dict:
    """The data for the page's script, as plain values."""
    preprocessing = exported.preprocessing
    height, width = preprocessing.size
    classes = counted_kind(len(exported.labels), "classes")
    unknown = None
    if exported.limits is not None:
        unknown = {"least": list(exported.limits.least), "likely": LIKELY}
    about = [
        *about,
        ("preparing", str(preprocessing)),
        ("computing", f"ONNX Runtime Web {runtime.version} (MIT), WebAssembly"),
    ]
    return {
        "name": printable_name(title),
        "facts": f"{classes}, {height} × {width} pixels, {exported.precision}",
        "labels": [printable_name(label) for label in exported.labels],
        "activation": exported.activation,
        "preprocessing": preprocessing.to_json() | {"tallByColumns": tall_by_columns()},
        "unknown": unknown,
        "largestFile": LARGEST_FILE,
        "largestPixels": LARGEST_PIXELS,
        "longestSide": LONGEST_SIDE,
        "mostResized": MAX_PIXELS,
        "about": about,
        "notice": NOTICE.format(version=runtime.version),
    }


def tall_by_columns() -> bool:
    """Whether the installed Pillow resizes the columns of tall images before their rows, as version
    13 and later do. Some pixels differ by a level, and the page must prepare exactly the model's
    pixels."""
    tall = np.array([[78, 28], [64, 166], [121, 89], [170, 233]], np.uint8)
    (level,) = Image.fromarray(tall).resize((1, 1), Image.Resampling.BILINEAR).tobytes()
    return level == 118  # with rows first it would be 117


def _part(name: str) -> str:
    """The text of one of the page's files, checked not to contain the end tag of its element."""
    text = (PARTS / name).read_text("utf-8")
    assert name.endswith(".html") or not re.search("</(script|style)|<!--", text, re.IGNORECASE)
    return text


def _digest(text: str) -> str:
    """The hash by which a Content-Security-Policy allows a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
