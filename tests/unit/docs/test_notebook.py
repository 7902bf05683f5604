"""The notebook of the documentation: its cells without packets show what the file says."""

import json
from pathlib import Path

import pytest

from tests.support.notebook import PACKETS, code_cells, run_notebook
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.nightly
pytest.importorskip("pandas", reason="nightly: needs pandas: packaging/setup all")
NOTEBOOK = REPOSITORY / "docs/notebooks/first-steps.ipynb"
REMEDY = f"as root: python tests/support/notebook.py {NOTEBOOK.relative_to(REPOSITORY)}"


def test_cells_without_packets_show_what_the_notebook_has() -> None:
    cells = code_cells(json.loads(NOTEBOOK.read_text()))
    shown = [cell for cell in cells if PACKETS not in cell["metadata"].get("tags", [])]
    assert 4 <= len(shown) < len(cells)
    for cell, output in zip(shown, run_notebook(NOTEBOOK, packets=False), strict=True):
        stored = {"printed": "", "text/plain": ""}
        for entry in cell["outputs"]:
            if entry["output_type"] == "stream":
                stored["printed"] += "".join(entry["text"])
            else:
                stored["text/plain"] += "".join(entry["data"]["text/plain"])
        again = {"printed": output.printed, "text/plain": output.shown.get("text/plain", "")}
        assert stored == again, REMEDY


def test_every_cell_was_run() -> None:
    cells = code_cells(json.loads(NOTEBOOK.read_text()))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), REMEDY
    kinds = {kind for cell in cells for entry in cell["outputs"] for kind in entry.get("data", {})}
    assert kinds == {"image/svg+xml", "text/html", "text/plain"}


def test_failing_cell_fails_the_notebook(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "code", "metadata": {}, "source": ["x = 1\n", "x"]},
        {"cell_type": "code", "metadata": {"tags": [PACKETS]}, "source": ["x / 0"]},
    ]
    path = tmp_path / "fails.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    (output,) = run_notebook(path, packets=False)
    assert output.shown == {"text/plain": "1"}
    with pytest.raises(ZeroDivisionError):
        run_notebook(path, packets=True)
