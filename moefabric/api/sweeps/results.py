"""Records of a sweep's runs: rows of the table, attempts, and whether a run has failed."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

from pydantic import Field

from moefabric.api.sweeps.columns import FabricFigures, predicted_figures, run_figures
from moefabric.api.sweeps.plan import PlannedRun
from moefabric.api.sweeps.point import Value
from moefabric.api.sweeps.task import Mode, RunEnded, RunStarted
from moefabric.results.model import ExperimentPrediction, RunResult, Verdict
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

    @classmethod
    def of(cls, started: RunStarted | None, ended: RunEnded) -> Self:
        """Return an attempt from its start, if it had one, and its end."""
        node, host = (started.node, started.host) if started else ("", "")
        return cls(node=node, host=host, wall_s=round(ended.wall_s, 3), error=ended.error)


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
                "fabric": fabric.fabric,
                "policy": fabric.policy,
                "verdict": fabric.verdict,
                **fabric.figures,
                "host": last.host,
                "attempts": len(self.attempts),
                "wall_s": last.wall_s,
            }


def is_invalid(record: RunRecord) -> bool:
    """Return whether any fabric has the verdict `invalid`."""
    return any(fabric.verdict == Verdict.INVALID for fabric in record.fabrics)


def run_record(
    run: PlannedRun, attempts: Sequence[Attempt], ended: RunEnded, figures: Sequence[str]
) -> RunRecord:
    """Return the record of a run from its attempts and the end of the last one."""
    return RunRecord(
        run=run.task.id,
        point=run.point.number,
        values=dict(run.point.values),
        seed=run.seed,
        repetition=run.repetition,
        attempts=list(attempts),
        fabrics=result_figures(run.task.mode, ended.result, figures) if ended.result else [],
    )


def result_figures(mode: Mode, result: str, figures: Sequence[str]) -> list[FabricFigures]:
    """Return the figures of each fabric of a result's JSON."""
    if mode == "predict":
        return predicted_figures(ExperimentPrediction.model_validate_json(result), figures)
    return run_figures(RunResult.model_validate_json(result), figures)
