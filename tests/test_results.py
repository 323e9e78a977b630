"""Results of benchmarks say what they were measured on, and the documentation quotes them as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import first_hour_transcript  # noqa: E402
import honesty  # noqa: E402
import record  # noqa: E402
import stale  # noqa: E402

RESULTS = stale.read_results()


def known_commits() -> set[str]:
    """The first eight digits of every commit of the history."""
    try:
        is_shallow = record.git("rev-parse", "--is-shallow-repository") == "true"
        commits = record.git("log", "--format=%h", "--abbrev=8").split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git, or no repository")
    if is_shallow:
        pytest.skip("the history is not whole")
    return set(commits)


def test_results_name_a_commit_of_the_history_and_a_date():
    commits = known_commits()
    for file, found in RESULTS.items():
        assert found["commit"].partition("+")[0] in commits, file.name
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"]), file.name


def test_every_script_that_wrote_results_says_what_it_measures():
    for script in {stale.script_of(content) for content in RESULTS.values()}:
        assert script in stale.MEASURED, script
    for script in stale.MEASURED:
        for path in stale.measured_paths(script):
            assert path.exists(), f"{script} measures {path}, which is not there"
        assert script == "mutants" or (ROOT / "benchmarks" / f"{script}.py").exists(), script


def test_a_document_gives_the_date_of_the_results_that_it_names():
    """The date is in the section that names the file, so that a new measurement needs a new sentence."""
    for document in stale.documents():
        for section in re.split(r"^## ", document.read_text(), flags=re.MULTILINE):
            names = set(stale.QUOTED.findall(section))
            for file, content in RESULTS.items():
                if stale.is_named(file, names):
                    date = content["date"]
                    assert date in section, f"{document.name} names {file.name}, of {date}"


def test_results_that_a_document_names_exist():
    for document in stale.documents():
        for name in re.findall(r"benchmarks/results/([\w*/-]+\.json)", document.read_text()):
            assert list(stale.RESULTS.glob(name)), f"{document.name} names {name}"


def test_the_transcript_of_the_first_hour_is_what_ran():
    block = first_hour_transcript.block(RESULTS[first_hour_transcript.RESULTS])
    page = first_hour_transcript.PAGE.read_text()
    assert first_hour_transcript.with_block(page, block) == page
    with pytest.raises(ValueError, match="the page has no lines"):
        first_hour_transcript.with_block("Another page", block)


def test_the_tables_of_accuracy_are_those_of_the_results():
    page = (ROOT / "docs" / "accuracy.md").read_text()
    rows = honesty.table_rows(RESULTS[stale.RESULTS / "honesty.json"])
    assert len(rows) > 60
    for row in rows:
        assert row in page


def test_commits_that_touched_the_measured_code_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    assert record.commit() is None
    assert stale.commits_since("12345678", "attention") is None
    record.git("init", "-q")
    measured = tmp_path / "src" / "vitkit" / "models" / "attention.py"
    measured.parent.mkdir(parents=True)
    other = tmp_path / "src" / "other.py"
    numbers = []
    for path in (measured, other, measured):
        path.write_text(path.read_text() + "\n" if path.exists() else "")
        record.git("add", "-A")
        record.git(*"-c user.name=a -c user.email=a@b commit -q -m change".split())
        numbers.append(record.commit())
    assert [stale.commits_since(number, "attention") for number in numbers] == [1, 1, 0]
    other.write_text("changed")
    assert record.commit() == f"{numbers[-1]}+changes"
    assert stale.commits_since(record.commit(), "attention") == 0
    (tmp_path / "notes.txt").write_text("not measured")
    record.git("checkout", "-q", "--", "src")
    assert record.commit() == numbers[-1]


def test_the_list_has_a_line_for_every_document_and_its_results(capsys):
    stale.main(["docs/accuracy.md"])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.split() == ["document", "results", "measured", "commit", "commits", "since"]
    assert {line.split()[1] for line in lines} == {"honesty.json", "honesty-groups.json"}
