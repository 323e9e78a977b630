"""What the words MODEL and DATA stand for, everywhere."""

MODEL = (
    "A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's, torchvision's "
    "or Google's), or the name of a published model."
)
DATA = (
    "A folder, a manifest, parquet files, tar shards, an address (https://, s3://, gs://), hf:NAME "
    "on the Hugging Face hub, file.py:function, or digits."
)
