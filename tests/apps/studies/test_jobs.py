"""Shards as jobs: what submitit is told, and that several processes give what one gave."""

import subprocess
import sys

import pytest
from processes import Forked

from vitkit.apps.studies.jobs import Shard, run_jobs
from vitkit.cli.entry import main
from vitkit.training import read_rows


@pytest.mark.slow
def test_a_shard_that_fails_says_so():
    shard = Shard(("study", "nothing"), 0, 1, spread=False)
    with pytest.raises(RuntimeError, match="shard 1/1 ended with status 1"):
        shard()


def test_options_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`job_options` has 'timeout'; write each like"):
        run_jobs(["study"], 1, "local", ["timeout"], tmp_path)
    with pytest.raises(ValueError, match="submitit cannot run jobs on local so"):
        run_jobs(["study"], 1, "local", ["bananas=3"], tmp_path)


def test_without_submitit_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"pip install 'vitkit\[cluster\]'"):
        run_jobs(["study"], 1, "local", [], tmp_path)


@pytest.mark.slow
def test_jobs_give_what_one_process_gave(tmp_path, monkeypatch):
    words = ["study", "pooling", "--data", "digits", "--seeds", "1", "--device", "cpu"]
    words += ["--budget", "21steps", "--workdir"]
    # With the same threads and the same products everywhere
    monkeypatch.setenv("VITKIT_MATMUL", "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main([*words, str(tmp_path / "one")]) == 0
    # In a process of its own: importing submitit ends what other tests have begun to log
    jobs = [sys.executable, "-m", "vitkit", *words, str(tmp_path / "two"), "--jobs", "16"]
    process = Forked(jobs, stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "are 4 shards at most, so --jobs 16 starts no more" in said and "failed" not in said
    assert all(f"shard {number}/4 has ended" in said for number in (1, 2, 3, 4))
    assert read_rows(tmp_path / "two") == read_rows(tmp_path / "one")
    assert (tmp_path / "two/table.md").read_text() == (tmp_path / "one/table.md").read_text()
