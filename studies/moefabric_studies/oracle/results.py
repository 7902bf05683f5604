"""Results of the comparison with other simulators, as JSON and as figures derived from them."""

from collections.abc import Iterator, Sequence
from itertools import combinations, groupby
from pathlib import Path
from typing import Any, Final, Self

from moefabric.api.commands import write_output
from moefabric.api.results import Provenance
from moefabric_studies.raw_tables import FrozenPart, read_table, table_text

ORDER_MARGIN: Final = 0.02
"""Fabrics whose predicted times differ by less than this have no predicted order."""

LONGER: Final = "prototype, longer"
"""Group of the prototype's cases with three times the bytes."""
FORWARDING: Final = "forwarding"
"""Group of the fabrics whose circuits never move, with and without forwarding by servers."""
PACED: Final = "paced"
"""Name of the transport whose flows keep to their rates."""
INTO_THE_DARK: Final = "into the dark"
"""Name of the case whose flows start on dark circuits."""
_NEAR: Final = 0.1
_COLUMNS: Final = "group", "demand", "fabric", "factor", "predicted_s"
"""Stored attributes of a case."""


class Completion(FrozenPart):
    """Result of a simulation in another simulator."""

    ends_s: tuple[float | None, ...]
    """When the last byte of each flow arrived, in seconds from the start; null if it hadn't arrived
    when the simulation ended."""
    sent_packets: int
    """Data packets sent, retransmissions included; 0 in a simulator without packets."""
    lost_packets: int
    """Data packets that didn't arrive."""
    wall_s: float
    """Seconds that the simulation took."""

    @property
    def last_s(self) -> float | None:
        """When the last flow ended; None if one didn't."""
        ends = [end for end in self.ends_s if end is not None]
        return max(ends, default=0.0) if len(ends) == len(self.ends_s) else None


class PacketResult(Completion):
    """A case in a packet simulator, under one transport."""

    transport: str
    """Name of the transport."""


class CaseResult(FrozenPart):
    """A case in all simulators."""

    group: str
    """The experiment."""
    demand: str
    """Name of the demand."""
    fabric: str
    """Name of the fabric, or of what it does about dark circuits."""
    factor: float
    """Factor by which modelled bytes and times were multiplied."""
    bytes: float
    """Payload bytes of all flows."""
    forwarded_bytes: float = 0.0
    """Payload bytes that other servers forward."""
    predicted_s: float
    """The model's completion time: the fluid bound of each phase."""
    max_min_s: tuple[float, ...]
    """When each flow ends in the model's max-min simulation."""
    paced_s: tuple[float, ...]
    """When each flow ends in that simulation if none exceeds its own rate."""
    alone_s: tuple[float, ...]
    """When each flow would end if it were alone on its links: a null model."""
    packets: tuple[PacketResult, ...]
    """Packet simulations, one per transport."""

    def last_s(self, transport: str) -> float | None:
        """Return when the last flow ended under a transport; None if one didn't."""
        return next(p.last_s for p in self.packets if p.transport == transport)

    def error(self, transport: str) -> float | None:
        """Return the model's error: prediction over measurement, less 1; negative is optimistic."""
        last_s = self.last_s(transport)
        return None if last_s is None else self.predicted_s / last_s - 1

    def flow_errors(self, transport: str) -> Iterator[float]:
        """Yield the error of the max-min simulation for each flow that ended.

        Paced flows are compared with paced ones.
        """
        [packets] = [p for p in self.packets if p.transport == transport]
        simulated = self.paced_s if transport == PACED else self.max_min_s
        for model_s, end_s in zip(simulated, packets.ends_s, strict=True):
            if end_s is not None:
                yield model_s / end_s - 1


class SharingResult(FrozenPart):
    """Max-min flows of a scenario in the model and in SimGrid."""

    name: str
    """Name of the scenario."""
    steps: int
    """Steps with dependencies between them."""
    max_min_s: tuple[float, ...]
    """When each flow ends in the model."""
    simgrid_s: tuple[float, ...]
    """When each flow ends in SimGrid."""

    @property
    def errors(self) -> list[float]:
        """The model's error for each flow."""
        pairs = zip(self.max_min_s, self.simgrid_s, strict=True)
        return [model_s / simgrid_s - 1 for model_s, simgrid_s in pairs]


class FlowErrors(FrozenPart):
    """Errors of the max-min simulation for the single flows of all cases under a transport."""

    transport: str
    """Name of the transport."""
    flows: int
    """Flows that ended."""
    p5: float
    median: float
    p95: float
    near: float
    """Share of the flows whose error is at most 10 %."""

    @classmethod
    def of(cls, cases: Sequence[CaseResult], transport: str) -> Self:
        """Return the errors of all cases whose flows start on lit circuits."""
        lit = [case for case in cases if case.fabric != INTO_THE_DARK]
        errors = [error for case in lit for error in case.flow_errors(transport)]
        p5, median, p95 = (quantile(errors, share) for share in (0.05, 0.5, 0.95))
        near = sum(abs(error) <= _NEAR for error in errors) / len(errors)
        return cls(transport=transport, flows=len(errors), p5=p5, median=median, p95=p95, near=near)


class SharingErrors(FrozenPart):
    """Errors of the max-min simulation for the flows of a scenario in SimGrid."""

    name: str
    """Name of the scenario."""
    steps: int
    """Steps with dependencies between them."""
    flows: int
    max_min_s: float
    """When the last flow ends in the model."""
    simgrid_s: float
    """When the last flow ends in SimGrid."""
    least: float
    """Least error of a flow."""
    largest: float
    """Largest error of a flow."""

    @classmethod
    def of(cls, shared: SharingResult) -> Self:
        """Return the errors of a scenario."""
        errors, last, theirs = shared.errors, max(shared.max_min_s), max(shared.simgrid_s)
        return cls(
            name=shared.name, steps=shared.steps, flows=len(errors), max_min_s=last,
            simgrid_s=theirs, least=min(errors), largest=max(errors),
        )  # fmt: skip


class OracleTables(FrozenPart):
    """What the page shows, and what is stored: each case's last flow, and errors of flows."""

    cases: tuple[CaseResult, ...]
    """All-to-alls in ns-3. Read from a file, each has one byte and one flow, the last one."""
    flows: tuple[FlowErrors, ...]
    """Errors of single flows, per transport."""
    sharing: tuple[SharingErrors, ...]
    """Scenarios in SimGrid."""
    provenance: Provenance
    """Source of the model's figures, the experiments, and the simulators."""

    @property
    def transports(self) -> tuple[str, ...]:
        """Names of the transports of every case."""
        return common_transports(self.cases)

    def of_group(self, group: str) -> list[CaseResult]:
        """Return the cases of an experiment."""
        return [case for case in self.cases if case.group == group]

    def write(self, file: Path) -> None:
        """Write a CSV of the cases, and beside it those of flows and of SimGrid's scenarios."""
        rows = [
            {
                **{name: getattr(case, name) for name in _COLUMNS},
                "forwarded": case.forwarded_bytes / case.bytes,
                "max_min_s": max(case.max_min_s),
                "alone_s": max(case.alone_s),
                "transport": run.transport,
                "last_s": run.last_s,
                "sent": run.sent_packets,
                "lost": run.lost_packets,
            }
            for case in self.cases
            for run in case.packets
        ]
        others = (one.model_dump() for one in self.flows), (s.model_dump() for s in self.sharing)
        for path, table in zip(_files(file), (rows, *map(list, others)), strict=True):
            write_output(path, table_text(self.provenance, table))

    @classmethod
    def read(cls, file: Path) -> Self:
        """Return the tables that were written."""
        (source, rows), (_, flows), (_, sharing) = map(read_table, _files(file))
        cases = []
        for key, of_case in groupby(rows, lambda row: {name: row[name] for name in _COLUMNS}):
            runs = list(of_case)
            document: dict[str, Any] = {**key, "forwarded_bytes": runs[0]["forwarded"], "bytes": 1}
            last = {name: [runs[0][name]] for name in ("max_min_s", "alone_s")}
            packets = [
                {
                    "transport": run["transport"],
                    "ends_s": [run["last_s"] or None],
                    "sent_packets": run["sent"],
                    "lost_packets": run["lost"],
                    "wall_s": 0,
                }
                for run in runs
            ]
            cases.append({**document, **last, "paced_s": [], "packets": packets})
        return cls.model_validate(
            {"cases": cases, "flows": flows, "sharing": sharing, "provenance": source}
        )


def _files(file: Path) -> tuple[Path, Path, Path]:
    names = "", "-flows", "-simgrid"
    cases, flows, sharing = (file.with_stem(f"{file.stem}{name}") for name in names)
    return cases, flows, sharing


class OracleResults(FrozenPart):
    """All comparisons with simulators that ran."""

    ns3: str
    """Version of ns-3."""
    simgrid: str
    """Version of SimGrid."""
    wall_s: float
    """Seconds that all simulations took, side by side."""
    cases: tuple[CaseResult, ...]
    """All-to-alls in ns-3."""
    sharing: tuple[SharingResult, ...]
    """Scenarios in SimGrid."""
    provenance: Provenance | None = None
    """Source of the model's figures, and the experiments."""

    @property
    def tables(self) -> OracleTables:
        """What of these results is shown and stored."""
        versions = f"ns-3 {self.ns3} and SimGrid {self.simgrid}"
        remark = f"{versions} took {self.wall_s / 60:.0f} min"
        return OracleTables(
            cases=self.cases,
            flows=tuple(FlowErrors.of(self.cases, t) for t in common_transports(self.cases)),
            sharing=tuple(map(SharingErrors.of, self.sharing)),
            provenance=(self.provenance or Provenance()).model_copy(update={"remark": remark}),
        )


def common_transports(cases: Sequence[CaseResult]) -> tuple[str, ...]:
    """Return the names of the transports under which all of these cases ran, in order."""
    names = [[packets.transport for packets in case.packets] for case in cases]
    return tuple(name for name in names[0] if all(name in others for others in names))


def ordered_pairs(
    cases: Sequence[CaseResult], transport: str
) -> Iterator[tuple[CaseResult, CaseResult, bool]]:
    """Yield pairs of fabrics with a predicted order, the faster first, and whether it held.

    Only fabrics that carried the same demand are compared. A fabric on which a flow didn't end is
    the slower one.
    """
    for a, b in combinations(cases, 2):
        if (a.group, a.demand) != (b.group, b.demand):
            continue
        fast, slow = sorted((a, b), key=lambda case: case.predicted_s)
        if slow.predicted_s < fast.predicted_s * (1 + ORDER_MARGIN):
            continue
        fast_s, slow_s = fast.last_s(transport), slow.last_s(transport)
        if fast_s is None and slow_s is None:
            continue
        yield fast, slow, fast_s is not None and (slow_s is None or fast_s < slow_s)


def ratios(
    cases: Sequence[CaseResult], over: str, under: str, transport: str | None
) -> list[float]:
    """Return the ratio of two fabrics' completion times for each demand that both carried.

    Args:
        over: Fabric whose time is divided.
        under: Fabric by whose time it is divided.
        transport: Name of the transport; None is the model.
    """

    def seconds(case: CaseResult) -> float | None:
        return case.predicted_s if transport is None else case.last_s(transport)

    ratios = []
    below = {(c.group, c.demand): seconds(c) for c in cases if c.fabric == under}
    for case in cases:
        if case.fabric == over and (case.group, case.demand) in below:
            one, other = seconds(case), below[case.group, case.demand]
            if one is not None and other is not None:
                ratios.append(one / other)
    return ratios


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values is; the nearest of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
