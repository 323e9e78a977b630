"""Shards and parquet files through the real s3fs, from a server on this machine that answers as S3
does (moto).

Skipped where these are not installed: pip install s3fs 'moto[s3]' flask flask-cors
"""

import socket
import subprocess
import sys
import time

import pytest
import torch
from test_scale import check, shards, write_parquet

from vitkit.data import Augmentation, Preprocessing, open_source, open_splits, train_batches
from vitkit.data.formats import tar
from vitkit.data.sources import stores
from vitkit.system.storage import remote

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A bucket with three shards and a parquet file in it; a process of its own, for workers are
    forked from this one."""
    with socket.socket() as free, pytest.MonkeyPatch.context() as patch:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        folder = tmp_path_factory.mktemp("bucket")
        for name, value in {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "VITKIT_CACHE": str(folder / "cache"),
        }.items():
            patch.setenv(name, value)
        free.close()
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", str(port)], stderr=subprocess.DEVNULL
        )
        try:
            for _ in range(300):
                with socket.socket() as asking:
                    if asking.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            store = s3fs.S3FileSystem()
            store.mkdir("birds")
            store.put(str(shards(folder / "wds")), "birds/wds", recursive=True)
            store.put(write_parquet(folder / "x.parquet"), "birds/x.parquet")
            yield "s3://birds"
        finally:
            server.kill()
            server.wait()


@pytest.mark.parametrize(
    "where", ["wds", "wds/train-*.tar", "wds/train-{000..002}.tar", "x.parquet"]
)
def test_a_bucket_is_read_whole_and_in_windows_by_forked_workers(bucket, monkeypatch, where):
    check(open_source(f"{bucket}/{where}"))
    for name, value in (("KEEP", 10), ("WINDOW", 10), ("LEAST", 2)):
        monkeypatch.setattr(stores, name, value)
    monkeypatch.setattr(tar, "RANGE", 8192)
    source = open_source(f"{bucket}/{where}")
    check(source)
    one, other = (
        train_batches(source, Augmentation(), Preprocessing(size=(8, 8)), 6, 0, 0, n)
        for n in (2, 0)
    )
    for _ in range(5):
        assert torch.equal(next(one).images, next(other).images)
    one.close()


def test_what_is_not_there_and_what_does_not_answer(bucket, monkeypatch):
    monkeypatch.setattr(remote.time, "sleep", lambda _: None)
    for where, message in [
        ("s3://nowhere/wds", "^there is no s3://nowhere/wds$"),
        ("s3://nowhere/x.parquet", "^there is no s3://nowhere/x.parquet$"),
        (f"{bucket}/none.tar", "^there is no s3://birds/none.tar$"),
        (f"{bucket}/none-*.tar", "none-.*tar matches no file"),
    ]:
        with pytest.raises((ValueError, OSError), match=message):
            open_splits(where)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(
        OSError,
        match="^s3://birds/x.parquet cannot be read, after 4 attempts: Unable to locate credentials",
    ):
        open_splits(f"{bucket}/x.parquet")
    s3fs.S3FileSystem.clear_instance_cache()
