"""Where a model is: a path, a repository on the Hugging Face hub, or one of Google's published files, fetched once."""

import base64
import hashlib
import re
import urllib.error
import urllib.request
from pathlib import Path

from vitkit.system.files import cache_dir

ENDPOINT = "https://storage.googleapis.com/vit_models"
BUCKETS = ("imagenet21k", "imagenet21k+imagenet2012", "augreg", "sam", "gsam")
AUGREG = re.compile(r"[A-Za-z0-9_]+-i(1k|21k|21k_30)-\d+ep-lr_[\w.\-]+?(\.npz)?")
HUB = re.compile(r"[\w\-.]{1,96}/[\w\-.]{1,96}(@[\w\-./]+)?")
TIMEOUT = 30  # seconds without an answer
PIECE = 2**20  # bytes


def fetch(source: Path | str) -> Path:
    """The local path of a model, downloaded if it is a name and not there yet.

    Names are a hub repository ("google/vit-base-patch16-224", "timm/...", with @REVISION if wanted), a file of Google's
    bucket ("imagenet21k/ViT-B_16", or the whole name of an AugReg checkpoint), or its address. Raises ValueError.
    """
    path, text = Path(source), str(source)
    if path.exists():
        return path
    if AUGREG.fullmatch(text):
        text = f"augreg/{text}"
    bucket, _, name = (
        text.removeprefix(ENDPOINT + "/").removeprefix("gs://vit_models/").rpartition("/")
    )
    if bucket in BUCKETS and re.fullmatch(r"[\w\-+.]+", name) and not name.startswith("."):
        return download(f"{bucket}/{name.removesuffix('.npz')}.npz")
    if (
        not isinstance(source, Path)
        and HUB.fullmatch(text.removeprefix("hf-hub:"))
        and ".." not in text
    ):
        return from_hub(text.removeprefix("hf-hub:"))
    raise ValueError(
        f"there is nothing at {text}, and it is no name of a model; give a run, a model directory, a file of weights, a hub "
        "repository such as google/vit-base-patch16-224, or one of Google's such as imagenet21k/ViT-B_16"
    )


def from_hub(name: str) -> Path:
    """A snapshot of a hub repository: its JSON files and its weights, from the cache where there is no network."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError:
        raise ValueError(
            f"{name} is on the Hugging Face hub; to download it: pip install 'vitkit[hf]'"
        ) from None
    repo, _, revision = name.partition("@")

    def get(*patterns: str) -> Path:
        described = ["config.json", "preprocessor_config.json"]
        return Path(
            snapshot_download(
                repo, revision=revision or None, allow_patterns=[*described, *patterns]
            )
        )

    try:
        folder = get(
            "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"
        )
        if not any(folder.glob("model*.safetensors")):
            folder = get(
                "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"
            )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{name} is neither a local path nor a model that the hub gives: {first}"
        ) from error
    return folder


def download(name: str) -> Path:
    """A file of Google's bucket, kept, continued where it broke off, checked by the size and the md5 that the server states."""
    target = cache_dir() / "google" / name
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part, url = target.with_suffix(".part"), f"{ENDPOINT}/{name.replace('+', '%2B')}"
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            have = have if answer.status == 206 else 0
            total = have + int(answer.headers["Content-Length"])
            hashes = [
                kind
                for line in answer.headers.get_all("x-goog-hash", [])
                for kind in line.split(",")
            ]
            _receive(answer, part, have, total, name)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # all of it was there, or more than there is
            part.unlink()
            return download(name)
        what = (
            "there is no such file"
            if error.code in (403, 404)
            else f"the server answers {error.code}"
        )
        raise ValueError(
            f"{url}: {what}; the names are listed at https://github.com/google-research/vision_transformer"
        ) from error
    except OSError as error:
        kept = (
            f"; the {part.stat().st_size:,} bytes that came are kept, run it again"
            if part.is_file()
            else ""
        )
        raise ValueError(
            f"{url} cannot be downloaded: {getattr(error, 'reason', None) or error}{kept}"
        ) from error
    _check(
        part,
        total,
        next((h.strip()[4:] for h in hashes if h.strip().startswith("md5=")), None),
        url,
    )
    part.replace(target)
    return target


def _receive(answer, part: Path, have: int, total: int, name: str) -> None:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with (
        part.open("ab" if have else "wb") as file,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        task = progress.add_task(name, total=total, completed=have)
        while piece := answer.read(PIECE):
            file.write(piece)
            progress.advance(task, len(piece))


def _check(part: Path, total: int, md5: str | None, url: str) -> None:
    size = part.stat().st_size
    if size < total:
        raise ValueError(
            f"{url} broke off after {size:,} of {total:,} bytes; run it again to continue"
        )
    if md5:
        with part.open("rb") as file:
            found = base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()
        if found != md5:
            part.unlink()
            raise ValueError(
                f"{url} arrived damaged: its md5 is {found}, the server says {md5}; run it again"
            )


def push(folder: Path, name: str, private: bool = False) -> str:
    """Upload a model directory to the Hugging Face hub; -> its address. The repository is made if it is not there.

    Only what a model directory holds is sent. Raises ValueError where the hub refuses, and says how to log in.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalTokenNotFoundError,
        )
    except ImportError:
        raise ValueError("to upload to the Hugging Face hub: pip install 'vitkit[hf]'") from None
    try:
        api = HfApi()
        address = api.create_repo(name, private=private, exist_ok=True)
        sent = ["config.json", "preprocessor_config.json", "model.safetensors", "README.md"]
        api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=sent, commit_message="Upload by vitkit"
        )
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"the hub did not take {name}: {first}; to log in: hf auth login"
        ) from error
    return str(address)
