"""Several results side by side."""

from collections import Counter
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Self

from rich.console import Console, RenderableType

from moefabric.api.result import Result
from moefabric.report.picture import Picture
from moefabric.report.side_by_side import run_columns, runs_bars, runs_page, runs_table
from moefabric.results.model import RunResult
from moefabric.runtime.atomic_file import write_whole


class Runs:
    """Results of several runs, by labels, side by side; changes are from the first::

        runs = moefabric.Runs({"before": first, "after": second})
        runs.report("runs.html")

    Args:
        results: The results by their labels.
    """

    def __init__(self, results: Mapping[str, RunResult]) -> None:
        self.results = {label: Result.of(result) for label, result in results.items()}

    @classmethod
    def load(cls, *files: str | Path) -> Self:
        """Return the results in files; their labels are the names of the files.

        Raises:
            SpecError: If a file can't be read or has a wrong value.
        """
        stems = Counter(Path(file).stem for file in files)
        labels = [Path(f).stem if stems[Path(f).stem] == 1 else str(f) for f in files]
        return cls({label: Result.load(f) for label, f in zip(labels, files, strict=True)})

    def __getitem__(self, label: str) -> Result:
        """Return the result with this label."""
        return self.results[label]

    def table(self, width: int = 120) -> str:
        """Return a row for each fabric and run as text."""
        out = StringIO()
        console = Console(file=out, width=width, color_system=None, force_terminal=False)
        console.print(self.renderable())
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

    def renderable(self) -> RenderableType:
        """Return the table for a rich console."""
        return runs_table(self.results)

    def page(self) -> str:
        """Return one self-contained HTML page."""
        return runs_page(self.results)

    def report(self, path: str | Path) -> None:
        """Write one self-contained HTML page."""
        write_whole(Path(path), self.page())

    def plot(self) -> Picture:
        """Draw iteration and all-to-all times of all fabrics, a bar for each run."""
        return Picture.of(runs_bars(run_columns(self.results)))

    def _repr_svg_(self) -> str:
        return self.plot().svg
