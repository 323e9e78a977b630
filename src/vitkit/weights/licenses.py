"""Licences of weights: finding the licence of a model, what it allows, and saving it with the model.

The notation is that of the Hugging Face hub: `license` in the header of README.md is an id such as
"apache-2.0", or "other" with a `license_name` and a `license_link`; LICENSE contains the text.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from vitkit.system.errors import BadSettings, BadWeights

FILE = "LICENSE"
"""The file name of the text that vitkit writes to a directory."""
NAMES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE", "LICENCE.md", "LICENCE.txt")
"""File names of a text that are read."""
CARD = "README.md"
ID = re.compile(r"[\w.+-]{1,80}")
HEADER = re.compile(r"---[ \t]*\n(.*?)\n---[ \t]*\n", re.DOTALL)
FIELD = re.compile(
    r"^(license|license_name|license_link):[ \t]*(?:\n[ \t]*-[ \t]*|\[)?([^\n\],]*)[^\n]*$",
    re.MULTILINE,
)
OTHER = "other"  # the hub's id of a licence without an id
UNKNOWN = "unknown"  # the hub's id of an unknown licence
LONGEST_HEADER = 2**16  # characters of a card that are searched for its header
LONGEST_TEXT = 2**18  # characters of a licence; the longest published ones have a tenth of that

# Licences under which a model trained from the weights may be released under other terms
PERMISSIVE = (
    "apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "isc",
    "unlicense", "cc0-1.0", "cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "wtfpl", "zlib",
)  # fmt: skip
# Words in a licence's text, with single spaces -> its id, and its name if it has no id
MARKS = {
    "Apache License Version 2.0": ("apache-2.0", ""),
    "Permission is hereby granted, free of charge": ("mit", ""),
    "Attribution-NonCommercial-NoDerivatives 4.0": ("cc-by-nc-nd-4.0", ""),
    "Attribution-NonCommercial-ShareAlike 4.0": ("cc-by-nc-sa-4.0", ""),
    "Attribution-NonCommercial 4.0": ("cc-by-nc-4.0", ""),
    "DINOv3 License": (OTHER, "dinov3-license"),
}


@dataclass(frozen=True)
class License:
    """The terms under which weights may be used and passed on."""

    id: str
    """The hub's id: "apache-2.0", "cc-by-nc-4.0"; "other" for a licence without one."""
    name: str = ""
    """Name of an "other" licence, such as "dinov3-license"."""
    link: str = ""
    """Address of its text."""
    text: str = ""
    """The text of the licence; empty if no copy came with the weights."""

    def __post_init__(self):
        if not ID.fullmatch(self.id):
            raise BadSettings(
                f"the licence is {self.id[:80]!r}; give one of the hub's ids, such as apache-2.0, "
                "mit or cc-by-nc-4.0"
            )

    @property
    def called(self) -> str:
        """The usual name of the licence."""
        return self.name or self.id

    def allows(self) -> str:
        """A summary of what the licence allows; a reminder, not legal advice."""
        if self.id in PERMISSIVE:
            return "any use; its notices stay with the weights"
        terms = []
        if "-nc" in self.id:
            terms.append("no commercial use")
        if "-nd" in self.id:
            terms.append("no changed versions")
        if "-sa" in self.id:
            terms.append("changed versions under the same licence")
        if self.id.startswith("cc-by"):
            terms.append("the authors are named")
        if not terms:
            terms.append("read its text; it is passed on with the weights")
        return ", ".join(terms)


def check_may_be_shared(license: License | None, is_trained: bool) -> License:
    """Return the licence. Raises VitkitError if weights may not be uploaded, or if their licence is
    unknown. is_trained: whether they were trained further after they were published under it."""
    if license is None:
        raise BadSettings(
            "the licence of these weights is unknown; state it, such as "
            "`license='apache-2.0'`. For weights that you trained from scratch you choose it; for "
            "others, look where they come from"
        )
    if is_trained and "-nd" in license.id:
        raise BadSettings(
            f"the weights are under {license.called}, which does not allow sharing modified ones, "
            "and these were trained further"
        )
    if license.id == OTHER and not license.text:
        raise BadSettings(
            f"the weights are under a licence of their own ({license.called}), which must be passed on "
            f"with a copy of it; put its text into a file {FILE} in the directory"
        )
    return license


def chosen(license: License | None, id: str, text: str) -> License:
    """The licence that a user states. Raises VitkitError if the known one does not allow another."""
    given = License(id)
    if id == OTHER:
        given = License(id, text=text)
    if license and license.id == id:
        return license
    if license and license.id not in (UNKNOWN, *PERMISSIVE):
        raise BadSettings(
            f"the weights are under {license.called}, which `license={id!r}` cannot change; "
            "leave it out"
        )
    return given


def license_in(folder: Path, described: object, config: dict) -> License | None:
    """The licence that a directory states: in the header of its card, which the user may edit; in vitkit's
    description (`described`); in timm's config.json; or only by its text. None if it states none."""
    text = read_license(folder)
    fields = _header(folder / CARD)
    id = fields.get("license", UNKNOWN).lower()
    if id != UNKNOWN and ID.fullmatch(id):
        name = fields.get("license_name", "")
        link = fields.get("license_link", "")
        return License(id, name, link, text)
    if described:
        license = described_license(described, text)
        if license.text == text:  # the text was not replaced
            return license
    written = config.get("pretrained_cfg")
    if isinstance(written, dict) and ID.fullmatch(str(written.get("license") or "")):
        return License(written["license"].lower(), text=text)
    if text:
        return _by_its_text(text)
    return None


def license_of_file(text_file: Path, described: object) -> License | None:
    """The licence of a single file of weights, with its text, which lies beside the file."""
    text = read_text(text_file)
    if described:
        return described_license(described, text)
    if text:
        return _by_its_text(text)
    return None


def license_text(model: Path) -> Path:
    """The path of the text of a model's licence: LICENSE in its directory, or vit.LICENSE beside
    vit.pth."""
    if model.is_dir():
        return model / FILE
    return model.with_suffix(f".{FILE}")


def license_fields(license: License | None) -> dict[str, str]:
    """The fields of a card's header for a licence."""
    if license is None:
        return {"license": UNKNOWN}
    fields = {"license": license.id}
    if license.id == OTHER and license.name:
        fields["license_name"] = license.name
    link = license.link
    if license.text and (link or license.id == OTHER):
        link = FILE
    # Other links are to files of the original repository, which do not exist here
    if link == FILE or "://" in link:
        fields["license_link"] = link
    return fields


def with_license(card: str, license: License) -> str:
    """A card with a licence in its header; the rest is unchanged."""
    lines = []
    if match := HEADER.match(card):
        lines = FIELD.sub("", match[1]).splitlines()
        card = card[match.end() :]
    fields = [f"{key}: {json.dumps(value)}" for key, value in license_fields(license).items()]
    header = "\n".join(["---", *fields, *filter(None, lines), "---"])
    return f"{header}\n{card}"


def _by_its_text(text: str) -> License:
    """The licence that a text belongs to."""
    words = " ".join(text[:3000].split())
    for mark, (id, name) in MARKS.items():
        if mark.lower() in words.lower():
            return License(id, name, text=text)
    return License(OTHER, text=text)


def read_license(folder: Path) -> str:
    """The text of the licence in a directory; "" if there is none."""
    for name in NAMES:
        if text := read_text(folder / name):
            return text
    return ""


def _header(card: Path) -> dict[str, str]:
    """The fields of a card's YAML header on its licence. Only simple forms of YAML are read:
    `license: mit`, or a list, of which the first item is used."""
    match = HEADER.match(read_text(card, LONGEST_HEADER) + "\n")
    if not match:
        return {}
    fields = {}
    for key, value in FIELD.findall(match[1]):
        fields[key] = value.strip().strip("'\"")[:300]
    return fields


def read_text(file: Path, most: int = LONGEST_TEXT) -> str:
    """The first characters of a text file; "" if it does not exist."""
    if not file.is_file():
        return ""
    with file.open(encoding="utf-8", errors="replace", newline="") as opened:
        return opened.read(most)


def digest(text: str) -> str:
    """A digest that identifies a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def license_to_json(license: License | None) -> dict | None:
    """A licence as JSON for the description of a model, with a digest of its text, which is a separate file."""
    if license is None:
        return None
    values = {"id": license.id}
    for key in ("name", "link"):
        if value := getattr(license, key):
            values[key] = value
    if license.text:
        values["text_digest"] = digest(license.text)
    return values


def described_license(values: object, text: str) -> License:
    """Read a licence of `license_to_json`. It gets `text` if that is the licence's. Raises VitkitError if
    `values` is not an object."""
    if not isinstance(values, dict):
        raise BadWeights(f"its license is a {type(values).__name__}, not an object")
    id, name, link = (str(values.get(key, ""))[:300] for key in ("id", "name", "link"))
    if values.get("text_digest") != digest(text):
        text = ""
    return License(id, name, link, text)
