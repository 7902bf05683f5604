"""Runs the cells of a Jupyter notebook without Jupyter, and keeps what they show.

`python tests/support/notebook.py NOTEBOOK` runs all cells and writes their outputs to the file.
"""

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

PACKETS = "packets"
"""Tag of cells that need root and network namespaces."""


@dataclass(frozen=True)
class CellOutput:
    """What a cell printed, and its last value as notebooks show it, by MIME type."""

    source: str
    printed: str
    shown: dict[str, str]


def run_notebook(
    path: Path, *, packets: bool, changes: Mapping[str, str] | None = None
) -> list[CellOutput]:
    """Run the code cells of a notebook in its folder, in order.

    Args:
        path: The notebook.
        packets: Whether to run the cells with the tag `packets`, too.
        changes: New text of parts of the first cell that contains them, to shorten an experiment.
    """
    cells = code_cells(json.loads(path.read_text()))
    for old, new in (changes or {}).items():
        cell = next(cell for cell in cells if old in "".join(cell["source"]))
        cell["source"] = "".join(cell["source"]).replace(old, new)
    chosen = [c for c in cells if packets or PACKETS not in c["metadata"].get("tags", [])]
    names: dict[str, Any] = {"__name__": "__main__"}
    with chdir(path.parent):
        return [_run_cell("".join(cell["source"]), names) for cell in chosen]


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the code cells of a notebook."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _run_cell(source: str, names: dict[str, Any]) -> CellOutput:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    return CellOutput(source, printed.getvalue(), {} if value is None else dict(_shown(value)))


def _shown(value: object) -> Iterator[tuple[str, str]]:
    for kind, method in (("image/svg+xml", "_repr_svg_"), ("text/html", "_repr_html_")):
        if hasattr(value, method) and (text := getattr(value, method)()):
            yield kind, text
    yield "text/plain", repr(value)


def write_outputs(path: Path) -> None:
    """Run all cells of a notebook and write their outputs to its file."""
    notebook = json.loads(path.read_text())
    outputs = run_notebook(path, packets=True)
    for number, (cell, output) in enumerate(zip(code_cells(notebook), outputs, strict=True), 1):
        cell["execution_count"], cell["outputs"] = number, []
        if output.printed:
            lines = output.printed.splitlines(keepends=True)
            stream = {"name": "stdout", "output_type": "stream", "text": lines}
            cell["outputs"].append(stream)
        if output.shown:
            data = {kind: text.splitlines(keepends=True) for kind, text in output.shown.items()}
            shown = {"data": data, "execution_count": number, "metadata": {}}
            cell["outputs"].append(shown | {"output_type": "execute_result"})
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write_outputs(Path(sys.argv[1]))
