"""Fabrics in memory for the dashboard: light, failures, rates, events and a run's status."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from queue import SimpleQueue

import numpy as np

from moefabric.core.eps import Eps
from moefabric.core.errors import FabricError, SpecError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailureEvent, FailurePhase
from moefabric.core.nic import NicKind
from moefabric.core.port_counts import PortReading, counted_nics
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.results.parts import Json
from moefabric.ui.dashboard.fabric_source import FabricSource, RunningFabrics
from tests.support.fabrics import fabric


def memory_fabric(name: str, servers: int) -> Fabric:
    """Return a fabric with 3 optical NICs and 1 electrical NIC for each server."""
    per_region = min(8, servers)
    regions = (per_region,) * (servers // per_region)
    made = fabric(regions=regions, eps=Eps(8), scale=Scale(bytes=1000), settle_ns=0)
    return replace(made, name=name)


class MemorySource(FabricSource):
    """A fabric in memory."""

    def __init__(self, fabric: Fabric, rate: float = 0.0) -> None:
        """Make a fabric whose NICs send and receive at `rate` of what they can."""
        self.fabric, self.rate = fabric, rate
        self.light_of: dict[str, list[str]] = {region.name: [] for region in fabric.regions}
        self.failed: list[Json] = []
        self.log: list[FailureEvent] = []
        self.status: Json | None = None
        self.readings = 0
        self.is_down = False
        self._ocs_events = SimpleQueue[Json]()
        for region in fabric.regions:
            self._report(region)
        self._start = time.monotonic()
        rng = np.random.default_rng(1)
        self._weights = rng.uniform(0.2, 1.0, len(counted_nics(fabric)))

    def circuits(self, region: Region) -> Json:
        return {"lit": list(self.light_of[region.name]), "dark": []}

    def hardware(self) -> Json:
        down = {name for failure in self.failed for name in failure["what"]}
        servers = [
            {
                "name": server,
                "nics": [
                    {"name": str(nic), "kind": nic.kind.value, "carrier": str(nic) not in down}
                    for nic in self.fabric.nics(server)
                ],
            }
            for server in self.fabric.servers
        ]
        names = ["fabric", *(region.ocs.name for region in self.fabric.regions if region.ocs)]
        processes = [{"name": name, "pid": 4000 + i} for i, name in enumerate(names)]
        controllers = [{"region": region.name, "ready": True} for region in self.fabric.regions]
        return {"servers": servers, "processes": processes, "controllers": controllers}

    def failures(self) -> list[Json]:
        return list(self.failed)

    def failure_version(self) -> int:
        return len(self.log)

    def failure_events(self) -> Sequence[FailureEvent]:
        return list(self.log)

    def ocs_events(self) -> Iterator[Json]:
        return iter(self._ocs_events.get, {})

    def _report(self, region: Region) -> None:
        """Let a region's OCS report that it has connected the first NICs of two servers."""
        assert region.ocs is not None
        first = 1 + region.ocs.ports
        event = {"kind": "settled", "made": [[1, first + 3], [4, first]]}
        self._ocs_events.put({"ocs": region.ocs.name, "at_ns": time.monotonic_ns()} | event)

    def read_ports(self) -> PortReading:
        if self.is_down:
            raise FabricError("counters: an interface of the fabric is gone")
        self.readings += 1
        elapsed_s = time.monotonic() - self._start
        bytes_per_s = self.fabric.scale.rate_bps(self.fabric.nic_rate_bps) / 8 * self.rate
        lit = {end for names in self.light_of.values() for name in names for end in name.split("~")}
        column = np.array(
            [
                weight * (nic.kind is NicKind.ELECTRICAL or str(nic) in lit)
                for weight, nic in zip(self._weights, counted_nics(self.fabric), strict=True)
            ]
        )
        counts = np.zeros((len(column), 4), np.int64)
        counts[:, 0] = column * bytes_per_s * elapsed_s
        counts[:, 1] = column[::-1] * bytes_per_s * elapsed_s
        return PortReading(counts, np.zeros_like(counts))

    def run_status(self) -> Json | None:
        return self.status

    def light(self, circuits: Sequence[str], region: str | None) -> Json:
        server = circuits[0].partition("/")[0]
        if server not in self.fabric.server_index:
            raise SpecError([(circuits[0], f"{server!r} is not one of the servers")])
        return self._set_light(region or self.fabric.region_of[server].name, list(circuits))

    def dark(self, circuits: Sequence[str], region: str | None) -> Json:
        name = region or self.fabric.regions[0].name
        lit = self.light_of.get(name, [])
        return self._set_light(name, [c for c in lit if circuits and c not in circuits])

    def _set_light(self, name: str, circuits: list[str]) -> Json:
        found = [region for region in self.fabric.regions if region.name == name]
        if not found:
            raise SpecError([(name, "is not one of the regions")])
        self.light_of[name] = circuits
        self._report(found[0])
        return {"circuits_after": circuits}

    def fault(self, kind: str, what: Sequence[str]) -> list[Json]:
        if kind not in list(FailureKind):
            raise SpecError([(kind, f"is not one of {', '.join(FailureKind)}")])
        self.failed.append({"kind": kind, "what": list(what)})
        self._append("inject", kind, what)
        return self.failures()

    def clear(self, kind: str | None, what: Sequence[str]) -> list[Json]:
        kept = [f for f in self.failed if kind and (f["kind"], f["what"]) != (kind, list(what))]
        for failure in self.failed:
            if failure not in kept:
                self._append("clear", failure["kind"], failure["what"])
        self.failed = kept
        return self.failures()

    def _append(self, phase: FailurePhase, kind: str, what: Sequence[str]) -> None:
        self.log.append(FailureEvent(time.monotonic_ns(), phase, FailureKind(kind), tuple(what)))

    def close(self) -> None:
        """Go on: the fabric is shared by all who open it."""


class MemorySources(RunningFabrics):
    """Fabrics in memory."""

    def __init__(self, *sources: MemorySource) -> None:
        self.sources = {source.fabric.name: source for source in sources}

    def names(self) -> list[str]:
        return sorted(self.sources)

    def open(self, name: str) -> FabricSource:
        if name not in self.sources:
            raise FabricError(f"{name} is not up")
        return self.sources[name]


def ring_circuits(region: Region) -> list[str]:
    """Return a circuit between each server and the next."""
    ring = [*region.servers, region.servers[0]] if len(region.servers) > 2 else region.servers
    return [f"{a}/o0~{b}/o1" for a, b in pairwise(ring)]


def run_status(fabric: Fabric) -> Json:
    """Return the status of a run in its eighth iteration."""
    iteration, servers = 7, list(fabric.servers)
    rng = np.random.default_rng(2)
    demand = rng.gamma(0.6, 4e8, (len(servers), len(servers)))
    np.fill_diagonal(demand, 0)
    kinds = ["attention", "dispatch", "expert", "combine"]
    lengths = [0.0011, 0.0019, 0.0016, 0.0018]
    timeline: list[Json] = []
    for server in servers:
        now = 0.0
        for layer in range(4):
            for kind, length in zip(kinds, lengths, strict=True):
                end = now + length * rng.uniform(0.85, 1.15)
                span = {"server": server, "kind": kind, "direction": "forward", "layer": layer}
                timeline.append(span | {"start_s": now, "end_s": end, "micro_batch": 0})
                now = end
    done = [
        {
            "iteration": i,
            "measured_s": 0.0262 + 0.0006 * ((i * 7) % 3),
            "predicted_s": 0.0258,
            "exposed_comm_s": 0.0121 + 0.0004 * ((i * 5) % 3),
            "bytes": 4.1e10,
            "bytes_by_light": 3.2e10,
            "bytes_by_eps": 0.9e10,
        }
        for i in range(iteration)
    ]
    operation = {"kind": "dispatch", "direction": "forward", "layer": 2, "region": "r0"}
    totals = {"iterations": iteration, "collectives": 16 * iteration, "lost_transfers": 0}
    bytes_ = {"bytes": 2.87e11, "bytes_by_light": 2.24e11, "bytes_by_eps": 0.63e11}
    return {
        "run_id": "5f0c",
        "experiment": "prototype",
        "fabric": "mixnet",
        "policy": "spill",
        "pid": 4711,
        "started": "2026-01-01T00:00:00+00:00",
        "journal": None,
        "iteration": iteration,
        "iterations": 20,
        "operation": operation | {"micro_batch": 0},
        "verdict": "degraded",
        "reasons": ["the CPU was idle for 4 % only"],
        "done": done,
        "totals": totals | {"reconfigurations": 8 * iteration, "corrupt": 0} | bytes_,
        "timeline": timeline,
        "demand": {"servers": servers, "bytes": demand.round().tolist()},
        "nic_bytes": None,
    }
