"""Locate a model: a path, a repository on the Hugging Face hub, or one of Google's published files.

Models that are not local are downloaded once, to the cache.
"""

import os
import re
import socket
from pathlib import Path
from types import ModuleType
from urllib.request import getproxies

from vitkit.system.console.text import printable_name, quoted
from vitkit.system.errors import BadWeights, NotThere, Unavailable, Unsupported, VitkitError
from vitkit.system.storage.download import download
from vitkit.system.storage.files import cache_dir, impossible, nearest
from vitkit.system.storage.private import paths_of_this_machine
from vitkit.weights.files.directory import PROCESSOR_FILE, UNKNOWN
from vitkit.weights.licenses import CARD, NAMES, License
from vitkit.weights.published import meant, published_called

# Google's files: the buckets that https://github.com/google-research/vision_transformer lists
ENDPOINT = "https://storage.googleapis.com/vit_models"
BUCKETS = ("imagenet21k", "imagenet21k+imagenet2012", "augreg", "sam", "gsam")
AUGREG = re.compile(r"[A-Za-z0-9_]+-i(1k|21k|21k_30)-\d+ep-lr_[\w.\-]+?(\.npz)?")
FILE = re.compile(r"[\w\-+][\w\-+.]*")

# Names on the hub: OWNER/NAME, or OWNER/NAME@REVISION
HUB = re.compile(r"[\w\-.]{1,96}/[\w\-.]{1,96}(@[\w\-./]+)?")
# Files to download, PyTorch's own only if there is no safetensors file; and files to upload
DESCRIPTIONS = ("config.json", "preprocessor_config.json")
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin")
SENT = (*DESCRIPTIONS, "model.safetensors", UNKNOWN, CARD, *NAMES)


def fetch(source: Path | str) -> Path:
    """The local path of a model, which is downloaded if it is a name and not in the cache.

    A name is a hub repository ("google/vit-base-patch16-224", "timm/...", optionally with @REVISION), or a
    file of Google's bucket ("imagenet21k/ViT-B_16", the whole name of an AugReg checkpoint, or its
    address). Raises VitkitError.
    """
    if reason := impossible(source):
        raise BadWeights(f"there is nothing at {quoted(str(source))}, {reason}; give another name")
    if Path(source).exists():
        return Path(source)
    name = str(source)
    if google := google_name(name):
        return from_google(google)
    repository = name.removeprefix("hf-hub:")
    if isinstance(source, str) and HUB.fullmatch(repository) and ".." not in repository:
        try:
            return from_hub(repository)
        except VitkitError as error:
            raise type(error)(f"{error}{nearest(name) or meant(repository)}") from error
    name = printable_name(name)  # an address may be long, or have a signature
    if near := nearest(source) or meant(str(source)):
        raise BadWeights(f"there is nothing at {name}{near}")
    raise BadWeights(
        f"there is nothing at {name}, and it is not the name of a model; give a run, "
        "a model directory, a file of weights, a hub repository such as "
        "google/vit-base-patch16-224, or one of Google's such as imagenet21k/ViT-B_16"
    )


def google_name(name: str) -> str | None:
    """The name of one of Google's files as "BUCKET/FILE.npz"; None for any other name."""
    if AUGREG.fullmatch(name):
        name = f"augreg/{name}"
    for address in (f"{ENDPOINT}/", "gs://vit_models/"):
        name = name.removeprefix(address)
    bucket, _, file = name.rpartition("/")
    if bucket not in BUCKETS or not FILE.fullmatch(file):
        return None
    return f"{bucket}/{file.removesuffix('.npz')}.npz"


def from_google(name: str) -> Path:
    """A file of Google's bucket, from the cache or downloaded. Raises BadWeights if there is no such file,
    Unavailable if it cannot be downloaded now."""
    url = f"{ENDPOINT}/{name.replace('+', '%2B')}"
    try:
        return download(url, cache_dir() / "google" / name)
    except NotThere as error:
        names = "https://github.com/google-research/vision_transformer"
        raise BadWeights(f"{error}; the names are listed at {names}") from error


def license_of_download(path: Path) -> License | None:
    """The licence of Google's repository for one of its files in the cache; otherwise None."""
    if not path.is_relative_to(cache_dir() / "google"):
        return None
    return License("apache-2.0", link="https://github.com/google-research/vision_transformer")


def from_hub(name: str) -> Path:
    """A snapshot of a hub repository, from the cache if the network is unavailable."""
    hub = _hub(f"{name} is on the Hugging Face hub; to download it")
    repository, _, revision = name.partition("@")

    def snapshot(weights: tuple[str, ...]) -> Path:
        patterns = [*DESCRIPTIONS, PROCESSOR_FILE, UNKNOWN, CARD, *NAMES, *weights]
        folder = hub.snapshot_download(
            repository, revision=revision or None, allow_patterns=patterns
        )
        return Path(folder)

    try:
        folder = snapshot(SAFETENSORS)
        if any(folder.glob("model*.safetensors")):
            return folder
        return snapshot(PICKLES)
    except hub.errors.LocalEntryNotFoundError as error:
        raise Unavailable(
            f"{name} is not on this machine, and the Hugging Face hub cannot be reached: "
            f"{_first_line(error.__cause__ or error)}; give a local run, directory or file of weights"
            f"{_where_to_get(repository)}"
        ) from error
    except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError, OSError) as error:
        raise BadWeights(
            f"{name} is neither a local path nor a model on the hub: {_first_line(error)}"
        ) from error


def _where_to_get(name: str) -> str:
    """ "; or get it from ADDRESS", with files and size, for published weights; otherwise ""."""
    row = published_called(name)
    if row is None:
        return ""
    size = ""
    if row.megabytes:
        size = f" ({row.megabytes:,} MB)"
    return (
        f"; or get config.json and model.safetensors{size} from {row.where} on another machine, and "
        "give the directory that contains them"
    )


def _hub(purpose: str) -> ModuleType:
    """The client of the hub. Raises VitkitError, with the command that installs it."""
    try:
        import huggingface_hub.errors
    except ImportError:
        raise Unsupported(f"{purpose}: pip install 'vitkit[hf]'") from None
    return huggingface_hub


def hub_host() -> str:
    """The host of the hub, with its port if there is one; HF_ENDPOINT sets it."""
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    return address.rpartition("://")[2].partition("/")[0]


def hub_answers() -> bool:
    """Whether the hub can be reached within two seconds; a proxy is assumed to work, and not tried."""
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return False
    if "https" in getproxies():
        return True
    name, _, port = hub_host().partition(":")
    try:
        socket.create_connection((name, int(port or 443)), timeout=2).close()
    except (OSError, ValueError):
        return False
    return True


def upload(folder: Path, name: str, private: bool = False) -> str:
    """Upload a model directory to the Hugging Face hub; returns its address. The repository is created if
    it does not exist. Only the files of a model directory are uploaded. Raises VitkitError, with the
    command to log in, if the hub refuses.
    """
    hub = _hub("to upload to the Hugging Face hub")
    errors = hub.errors
    refusals = (errors.HfHubHTTPError, errors.HFValidationError, errors.LocalTokenNotFoundError)
    try:
        api = hub.HfApi()
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=list(SENT),
            commit_message="Upload by vitkit",
        )
    except refusals as error:
        raise Unavailable(
            f"the hub refused {name}: {_first_line(error)}; to log in: hf auth login"
        ) from error
    # Exceptions of the hub's HTTP client: its own, and an OSError before version 1.0 of the hub
    except (OSError, *errors.HfHubHTTPError.__bases__) as error:
        raise Unavailable(
            f"the Hugging Face hub cannot be reached: {_first_line(error)}"
        ) from error
    return str(address)


def paths_in(folder: Path) -> list[str]:
    """Paths of this machine in text files that would be uploaded, each as "FILE holds PATH"."""
    found = []
    for name in (*DESCRIPTIONS, CARD):
        if (folder / name).is_file():
            text = (folder / name).read_text("utf-8", errors="replace")
            found += [f"{folder / name} holds {path}" for path in paths_of_this_machine(text)]
    return found


def _first_line(error: Exception) -> str:
    """The first line of an error's message; the error's type if it has none."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0]
