"""Records of a sweep's runs: rows of the table, attempts, and whether a run has failed."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from moefabric.api.sweeps.columns import FabricFigures
from moefabric.api.sweeps.spec import Value
from moefabric.results.model import Verdict
from moefabric.results.parts import ResultPart


class Attempt(ResultPart):
    """An attempt at a run."""

    node: str = ""
    """Identity of the machine; empty if the attempt never started."""
    host: str = ""
    """Name of the machine."""
    wall_s: float = 0.0
    """Seconds that it took."""
    error: str = ""
    """Why it has no result; empty if it has one."""


class RunRecord(ResultPart):
    """A run that has ended, with a result or without."""

    run: str
    """Its id, which names the file of its result."""
    point: int
    """Number of its point."""
    values: dict[str, Value]
    """Its value on each axis."""
    seed: int
    """Its seed."""
    repetition: int
    """Its number among runs with the same point and seed, from 0."""
    attempts: list[Attempt] = Field(min_length=1)
    """Attempts at it; the last one counts."""
    fabrics: list[FabricFigures]
    """Figures of its fabrics; empty if it has failed."""

    @property
    def failed(self) -> bool:
        """Whether the run has no result."""
        return not self.fabrics

    @property
    def valid_figures(self) -> dict[str, dict[str, float | None]]:
        """Figures of the fabrics that aren't invalid, by their names."""
        valid = (one for one in self.fabrics if one.verdict != Verdict.INVALID)
        return {fabric.fabric: fabric.figures for fabric in valid}

    @property
    def is_invalid(self) -> bool:
        """Whether any fabric has the verdict `invalid`."""
        return len(self.valid_figures) < len(self.fabrics)

    @property
    def error(self) -> str:
        """Why the run has no result; empty if it has one."""
        return self.attempts[-1].error

    @property
    def summary(self) -> str:
        """Verdicts of the fabrics: `pass`, or each fabric with its verdict if they differ."""
        verdicts = {fabric.fabric: fabric.verdict for fabric in self.fabrics}
        if len(different := set(verdicts.values())) == 1:
            return different.pop()
        return ", ".join(f"{name} {verdict}" for name, verdict in verdicts.items())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row of the table for each fabric."""
        last = self.attempts[-1]
        for fabric in self.fabrics:
            yield {
                "run": self.run,
                "point": self.point,
                **self.values,
                "seed": self.seed,
                "repetition": self.repetition,
                **fabric.model_dump(exclude={"figures"}),
                **fabric.figures,
                "host": last.host,
                "attempts": len(self.attempts),
                "wall_s": last.wall_s,
            }
