"""Shards as jobs: what submitit is told. Jobs run in test_studies.py."""

import subprocess
import sys

import pytest
from processes import Forked

from vitkit.apps.studies.jobs import Shard, run_jobs


@pytest.mark.slow
def test_a_shard_that_fails_says_so(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", Forked)
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
