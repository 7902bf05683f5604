"""Machines of a run and their clocks, as its manifest tells them by server."""

from collections.abc import Sequence
from dataclasses import dataclass

from moefabric.report.formatting import counted, printable
from moefabric.runner.result_model import HostRecord, Manifest

_SHOWN_SERVERS = 4


@dataclass(frozen=True)
class MachineClock:
    """A machine or real host that carries servers of a fabric, and its clock; wall seconds.

    Attributes:
        machine: Its name.
        fabric: Names of the fabrics.
        servers: Its servers, in words.
        offset_s: Its clock minus that of the head, by the best measurement.
        uncertainty_s: Bound of the error of the offset that is known worst.
        drift_s: Largest change of an offset until the end; None if none was measured again.
        lost: Why it was lost; empty if it wasn't.
    """

    machine: str
    fabric: str
    servers: str
    offset_s: float
    uncertainty_s: float
    drift_s: float | None
    lost: str


def machine_clocks(manifest: Manifest) -> list[MachineClock]:
    """Return the other machines of a run; none if one machine carried all of it."""
    groups: dict[tuple[str, str], list[HostRecord]] = {}
    for record in manifest.hosts or ():
        groups.setdefault((record.fabric, record.host), []).append(record)
    return [_clock(records) for records in groups.values()]


def _clock(records: Sequence[HostRecord]) -> MachineClock:
    best = min(records, key=lambda record: record.clock_uncertainty_s)
    drifts = [record.clock_drift_s for record in records if record.clock_drift_s is not None]
    return MachineClock(
        machine=printable(best.host),
        fabric=printable(best.fabric),
        servers=_names([record.server for record in records]),
        offset_s=best.clock_offset_s,
        uncertainty_s=max(record.clock_uncertainty_s for record in records),
        drift_s=max(drifts, key=abs, default=None),
        lost=printable("; ".join(dict.fromkeys(record.lost for record in records if record.lost))),
    )


def _names(servers: Sequence[str]) -> str:
    if len(servers) > _SHOWN_SERVERS:
        return f"{counted(len(servers), 'server')}, {printable(servers[0])} first"
    return printable(" ".join(servers))
