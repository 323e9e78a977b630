"""The meaning of the words MODEL and DATA everywhere, and whether a word is one of them."""

from pathlib import Path

MODEL = (
    "A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's, torchvision's "
    "or Google's), or the name of a published model."
)
DATA = (
    "A folder, a manifest, parquet files, tar shards, an address (https://, s3://, gs://), hf:NAME "
    "on the Hugging Face hub, file.py:function, or digits."
)

IMAGE_FILES = {
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".heif", ".avif",
}  # fmt: skip
TABLES = {".csv", ".tsv", ".jsonl", ".parquet", ".tar"}
WEIGHTS = {".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt"}
ARCHIVES = {".zip", ".rar", ".7z", ".tgz", ".gz", ".bz2", ".xz"}
MODEL_FILES = (
    "config.json", "recipe.json", "model", "model.safetensors", "pytorch_model.bin",
)  # fmt: skip


def kind_of(word: str) -> str:
    """Return "folder" or "file" if one with this name exists, otherwise ""."""
    try:
        if word and Path(word).is_dir():
            return "folder"
        if word and Path(word).exists():
            return "file"
    except OSError:  # a name that is too long, or a folder without permission
        pass
    return ""


def is_model(word: str) -> bool:
    """Whether a word is an existing run, model directory or file of weights, or has the form of a published
    model's name."""
    path = Path(word)
    kind = kind_of(word)
    if kind == "folder":
        return any((path / name).exists() for name in MODEL_FILES)
    if kind == "file":
        return path.suffix.lower() in WEIGHTS or path.name.lower().endswith(".pth.tar")
    if ":" in word or path.suffix.lower() in IMAGE_FILES | TABLES | ARCHIVES:
        return False
    owner, _, name = word.partition("/")
    return bool(owner and name) and not kind_of(owner)


def is_images(word: str) -> bool:
    """Whether a word is an existing folder, image or data set, or has the form of a data set's name."""
    kind = kind_of(word)
    if kind == "folder":
        return not is_model(word)
    if kind == "file":
        return Path(word).suffix.lower() in IMAGE_FILES | TABLES | ARCHIVES
    return word == "digits" or word.startswith("hf:")
