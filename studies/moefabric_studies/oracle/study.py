"""Runs all cases in all simulators."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

from moefabric import UnsupportedError
from moefabric.api.results import ProgressReporter
from moefabric.api.units import Units
from moefabric_studies.oracle import results
from moefabric_studies.oracle.cases import Case, cases, sharing_cases
from moefabric_studies.oracle.own_simulators import alone_ends_s, max_min_ends_s
from moefabric_studies.oracle.processes import SimulatorProcess, packet_document
from moefabric_studies.oracle.scenario import Scenario, Transport

TRANSPORTS: Final = (
    Transport("paced"),
    Transport("cubic"),
    Transport("dctcp"),
    Transport("cubic", 100),
    Transport("dctcp", 100, mark_packets=20),
)
"""Transports of every case."""
WARM_BYTES: Final = 128 * 1024
"""Bytes that connections of a run carry before its first collective."""
FORWARDING_TRANSPORTS: Final = (
    *TRANSPORTS,
    Transport("dctcp", fair_hosts=True),
    *(Transport(control, warm_bytes=WARM_BYTES) for control in ("cubic", "dctcp")),
)
"""Transports of fabrics with and without forwarding."""
_PROCESSES: Final = 2


@dataclass(frozen=True)
class Study:
    """The comparisons to run.

    Attributes:
        cases: All-to-alls for ns-3.
        sharing: Scenarios for SimGrid.
    """

    cases: tuple[Case, ...]
    sharing: tuple[Scenario, ...]

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return the study of the examples in a folder."""
        return cls(tuple(cases(folder)), tuple(sharing_cases(folder)))

    @property
    def simulations(self) -> list[tuple[Case, Transport]]:
        """Every simulation of ns-3."""
        return [(case, transport) for case in self.cases for transport in _transports(case)]


def compare(
    study: Study,
    ns3: SimulatorProcess,
    simgrid: SimulatorProcess,
    reporter: ProgressReporter,
    units: Units | None = None,
) -> results.OracleResults:
    """Run a study.

    Args:
        study: The comparisons.
        ns3: The packet simulator.
        simgrid: The simulator of max-min flows.
        reporter: Shows progress, a step for each simulation of ns-3.
        units: Keeps simulations of ns-3 that have ended. Default: nothing does.

    Raises:
        UnsupportedError: If a simulator is missing.
    """
    if missing := [reason for s in (ns3, simgrid) if (reason := s.missing)]:
        raise UnsupportedError("\n".join(missing))
    started = time.monotonic()
    reporter.show_message(f"SimGrid: {len(study.sharing)} scenarios")
    flows = simgrid.run([scenario.to_json() for scenario in study.sharing])
    documents = [packet_document(case.scenario, how) for case, how in study.simulations]
    reporter.show_message(f"ns-3: {len(study.cases)} all-to-alls, {len(documents)} simulations")
    completions = iter(_simulated(ns3, documents, reporter, units or Units()))
    return results.OracleResults(
        ns3=ns3.version,
        simgrid=simgrid.version,
        wall_s=time.monotonic() - started,
        cases=tuple(_case_result(case, completions) for case in study.cases),
        sharing=tuple(
            results.SharingResult(
                name=scenario.name,
                steps=len(scenario.steps),
                max_min_s=tuple(max_min_ends_s(scenario, store_and_forward=False)),
                simgrid_s=tuple(end for end in completion.ends_s if end is not None),
            )
            for scenario, completion in zip(study.sharing, flows, strict=True)
        ),
    )


def _simulated(
    ns3: SimulatorProcess,
    documents: Sequence[Mapping[str, Any]],
    reporter: ProgressReporter,
    units: Units,
) -> list[results.Completion]:
    """Return the completions of scenarios; simulate those without a stored one."""
    names = [_digest(document) for document in documents]
    named = dict(zip(names, documents, strict=True))
    missing = {name: named[name] for name in named if name not in units.results}

    def keep(document: Mapping[str, Any], completion: results.Completion) -> None:
        units.result(_digest(document), lambda: completion.model_dump(mode="json"))

    for _ in range(len(documents) - len(missing)):
        reporter.advance("simulated before")
    ns3.run_side_by_side([*missing.values()], _PROCESSES, reporter.advance, keep)
    return [results.Completion.model_validate(units.results[name]) for name in names]


def _digest(document: Mapping[str, Any]) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _transports(case: Case) -> tuple[Transport, ...]:
    return FORWARDING_TRANSPORTS if case.group == results.FORWARDING else TRANSPORTS


def _case_result(case: Case, completions: Iterator[results.Completion]) -> results.CaseResult:
    return results.CaseResult(
        group=case.group,
        demand=case.demand,
        fabric=case.fabric,
        factor=case.factor,
        bytes=case.scenario.bytes,
        forwarded_bytes=sum(flow.bytes for flow in case.scenario.flows if flow.tree),
        predicted_s=case.predicted_s,
        max_min_s=tuple(max_min_ends_s(case.scenario)),
        paced_s=tuple(max_min_ends_s(case.scenario, paced=True)),
        alone_s=tuple(alone_ends_s(case.scenario)),
        packets=tuple(
            results.PacketResult(transport=transport.name, **dict(next(completions)))
            for transport in _transports(case)
        ),
    )
