"""Result of a run from its journal, also of one that was stopped."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from moefabric.runner.comparison import with_ratios
from moefabric.runner.fidelity import worst_verdict
from moefabric.runner.iteration_outcome import IterationOutcome
from moefabric.runner.journal import FabricLine, JournalReader
from moefabric.runner.result_model import FabricResult, FidelityResult, RunResult, Verdict
from moefabric.runner.results import OutcomeSums


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
    """Yield what the experiment lacks."""
    for begun in reader.fabrics:
        if not reader.is_finished(begun.fabric):
            ended = len({number for _, number in reader.iterations(begun.fabric)})
            yield f"{begun.fabric} was stopped after {ended} of {begun.iterations} iterations"
    begun_names = {begun.fabric for begun in reader.fabrics}
    if absent := [name for name in reader.header.fabrics if name not in begun_names]:
        yield f"{', '.join(absent)} did not begin"


def _unfinished(begun: FabricLine, reader: JournalReader) -> FabricResult:
    """Return the result of a fabric that was stopped."""
    wiring = begun.wiring
    servers = [*chain.from_iterable(wiring.regions.values()), *wiring.backups]
    sums = OutcomeSums(wiring.mtu or 1500, servers, paced=begun.paced)
    outcomes = list[IterationOutcome]()
    for outcome in reader.outcomes(begun.fabric):
        sums.add(outcome)
        outcomes.append(outcome.without_evidence())
    if outcomes:
        ended = len({outcome.result.iteration for outcome in outcomes})
        remark = f"the fabric was stopped after {ended} of {begun.iterations} iterations"
        fidelity = sums.fidelity([remark], failures=False)
    else:
        fidelity = FidelityResult(verdict=Verdict.INVALID, reasons=["no iteration ended"])
    return FabricResult(
        fabric=begun.fabric,
        policy=begun.policy,
        wiring=wiring,
        iterations=[outcome.result for outcome in outcomes],
        collectives=[one for outcome in outcomes for one in outcome.collectives],
        transfers=[one for outcome in outcomes for one in outcome.transfers],
        reconfigurations=[one for outcome in outcomes for one in outcome.reconfigurations],
        control_time=sums.control_time,
        harness_s=sum(outcome.result.harness_s for outcome in outcomes),
        timeline=sums.timeline,
        integrity=sums.integrity,
        circuits=outcomes[-1].circuits if outcomes else [],
        fidelity=fidelity,
    )
