"""docs/inspection.md: its Python runs, and its commands name figures that there are."""

import re
from pathlib import Path

from inspected import FAMILY, classifier
from pictures import encoded, photograph

from vitkit.inspection.catalogue import FIGURES
from vitkit.weights import save

PAGE = Path(__file__).parents[2] / "docs/inspection.md"


def test_the_python_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(classifier(FAMILY["token"]), tmp_path / "MODEL")
    Path("holiday.jpg").write_bytes(encoded(photograph(300, 400)))
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    exec(block, names)
    assert names["maps"].shape == names["for_a_class"].shape == (1, 4, 6)
    assert Path("distance.svg").read_bytes().startswith(b"<?xml")
    assert "float64" in capsys.readouterr().out


def test_the_page_has_every_figure():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(kind.name for kind in FIGURES)
