"""Result of a run from its journal, also of one that was stopped."""

from collections.abc import Iterator
from pathlib import Path

from moefabric.results.comparison import with_ratios
from moefabric.results.journal import FabricLine, JournalReader
from moefabric.results.model import FabricResult, RunResult, Verdict
from moefabric.results.verdict import reasons
from moefabric.results.verdict.fabric_result import summed_outcomes
from moefabric.results.verdict.verdict import worst_verdict


def read_journal(path: Path) -> RunResult:
    """Return the result of a run from its journal.

    Fabrics that were not finished have the iterations that ended, and are degraded at best. The
    field `incomplete` says what is missing.

    Raises:
        SpecError: If the file can't be read, or is no journal.
    """
    reader = JournalReader(path)
    results = [
        reader.result(begun.fabric) or _unfinished(begun, reader) for begun in reader.fabrics
    ]
    verdicts = [result.fidelity.verdict for result in results] or [Verdict.INVALID]
    missing = "; ".join(_missing(reader))
    run = RunResult(
        experiment=reader.header.experiment,
        version=reader.header.version,
        verdict=worst_verdict(verdicts),
        manifest=reader.manifest,
        results=with_ratios(results),
    )
    return run.model_copy(update={"incomplete": missing}) if missing else run


def _missing(reader: JournalReader) -> Iterator[str]:
    """Yield the missing parts of the experiment."""
    for begun in reader.fabrics:
        if not reader.is_finished(begun.fabric):
            ended = _ended(reader, begun)
            yield f"{begun.fabric} was stopped after {ended} of {begun.iterations} iterations"
    begun_names = {begun.fabric for begun in reader.fabrics}
    if absent := [name for name in reader.header.fabrics if name not in begun_names]:
        yield f"{', '.join(absent)} did not begin"


def _ended(reader: JournalReader, begun: FabricLine) -> int:
    return len({number for _, number in reader.iterations(begun.fabric)})


def _unfinished(begun: FabricLine, reader: JournalReader) -> FabricResult:
    """Return the result of a fabric that was stopped."""
    outcomes = list(reader.outcomes(begun.fabric))
    stopped = reasons.STOPPED.judge(_ended(reader, begun), planned=begun.iterations)
    result = summed_outcomes(
        begun.wiring, begun.fabric, begun.policy, outcomes, list(stopped), paced=begun.paced
    )
    return result.model_copy(update={"circuits": outcomes[-1].circuits if outcomes else []})
