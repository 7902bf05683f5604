"""Which circuits were lit at which instant, from the events of an OCS."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from moefabric.core.circuits import Circuit
from moefabric.core.nic import Nic
from moefabric.core.ocs_ports import nic_at, ocs_port
from moefabric.core.topology import Fabric, Region
from moefabric.results.parts import Json


class LightHistory:
    """The light of one OCS since some instant, on the clock of its events (CLOCK_MONOTONIC).

    Args:
        fabric: The fabric.
        region: The region of the OCS.
        ports: Ports of the OCS at that instant, as `moefabric ocs --json` lists them.
        events: Its events since then, in order of time.
    """

    def __init__(
        self,
        fabric: Fabric,
        region: Region,
        ports: Iterable[Mapping[str, Any]],
        events: Iterable[Json],
    ) -> None:
        assert region.ocs is not None
        self._fabric, self._region, self._inputs = fabric, region, region.ocs.ports
        self._changes: dict[int, list[tuple[int, int | None]]] = {}
        for port in ports:
            if port["port"] <= self._inputs and port["state"] == "tuned":
                self._changes[port["port"]] = [(0, port["partner"])]
        for event in events:
            if event["kind"] == "changed":
                self._note(event["at_ns"], [(p, None) for p, _ in event.get("parted", ())])
            elif event["kind"] == "settled":
                self._note(event["at_ns"], event.get("made", ()))

    def _note(self, at_ns: int, pairs: Iterable[tuple[int, int | None]]) -> None:
        for source, target in pairs:
            self._changes.setdefault(source, []).append((at_ns, target))

    def circuit_at(self, nic: Nic, at_ns: int) -> str | None:
        """Return the circuit that led light from a NIC at an instant, or None."""
        changes = self._changes.get(ocs_port(self._fabric, nic), [])
        last = bisect_right(changes, at_ns, key=lambda change: change[0])
        target = changes[last - 1][1] if last else None
        if target is None:
            return None
        return str(Circuit(nic, nic_at(self._fabric, self._region, target - self._inputs)))
