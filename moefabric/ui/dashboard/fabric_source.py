"""Access of the dashboard to a running fabric: reads its state, changes its light and failures."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from moefabric.api.lab import Lab
from moefabric.api.running_fabrics import running_fabrics
from moefabric.core.errors import ControlError
from moefabric.core.failures import FailureEvent
from moefabric.core.port_counts import PortReading
from moefabric.core.topology import Fabric, Region
from moefabric.results.parts import Json
from moefabric.runtime.failure_log import FAILURE_LOG, read_failure_log


class FabricSource(Protocol):
    """A running fabric. One thread reads; commands come from others."""

    @property
    def fabric(self) -> Fabric:
        """Servers, NICs, regions and switches."""

    def circuits(self, region: Region) -> Json:
        """Return the names of `lit` and `dark` circuits, and the controller's `fault` if any."""

    def hardware(self) -> Json:
        """Return `servers` (with NICs), `processes`, `controllers` and why machines are lost."""

    def failures(self) -> list[Json]:
        """Return the present failures, each with `kind` and `what`."""

    def failure_version(self) -> int:
        """Return a number that changes with each event of a failure."""

    def failure_events(self) -> Sequence[FailureEvent]:
        """Return all events of failures so far, in order of time."""

    def ocs_events(self) -> Iterator[Json]:
        """Yield the events of the OCSes, the stored ones first, until the fabric ends."""

    def read_ports(self) -> PortReading:
        """Read the counters of all NICs, in the order of `counted_nics`."""

    def run_status(self) -> Json | None:
        """Return the status of the run that uses the fabric, or None."""

    def light(self, circuits: Sequence[str], region: str | None) -> Json:
        """Set the circuits of a region; none removes all."""

    def dark(self, circuits: Sequence[str], region: str | None) -> Json:
        """Remove circuits."""

    def fault(self, kind: str, what: Sequence[str]) -> list[Json]:
        """Make components fail; return the present failures."""

    def clear(self, kind: str | None, what: Sequence[str]) -> list[Json]:
        """Clear failures; return those that remain."""

    def close(self) -> None:
        """Close the connections to the fabric."""


class FabricSources(Protocol):
    """The fabrics that run."""

    def names(self) -> list[str]:
        """Return the names of the running fabrics."""

    def open(self, name: str) -> FabricSource:
        """Return a running fabric.

        Raises:
            MoefabricError: If it doesn't run.
        """


class RunningFabrics:
    """The fabrics of this machine; implements `FabricSources`.

    Args:
        only: Name of the only fabric to show. Default: all.
    """

    def __init__(self, only: str | None = None) -> None:
        self._only = only

    def names(self) -> list[str]:
        """Return the names of the running fabrics."""
        running = running_fabrics()
        return running if self._only is None else [name for name in running if name == self._only]

    def open(self, name: str) -> FabricSource:
        """Return a running fabric.

        Raises:
            FabricError: If it doesn't run.
        """
        return LabSource(Lab(name))


class LabSource:
    """A running fabric of this machine; implements `FabricSource`."""

    def __init__(self, lab: Lab) -> None:
        """Read the fabric's wiring.

        Raises:
            FabricError: If the fabric doesn't run.
        """
        self._lab = lab
        self.fabric = lab.fabric
        self._reader = lab.reader()
        self._status: Json | None = None
        self._status_ns = 0

    def circuits(self, region: Region) -> Json:
        """Ask the region's controller for its circuits."""
        if region.ocs is None:
            return {"lit": [], "dark": []}
        try:
            return self._reader.ask(
                region, lambda client: {"lit": client.circuits(), "dark": client.dark()}
            )
        except ControlError as error:
            return {"lit": [], "dark": [], "fault": str(error)}

    def hardware(self) -> Json:
        """Ask the fabric process for carriers and processes, and each controller for its health."""
        hardware = self._reader.hardware()
        controllers = [self._controller(region) for region in self._reader.controllers]
        shown = {key: hardware[key] for key in ("servers", "processes")}
        lost = hardware.get("lost_machines", {})
        return shown | {"controllers": controllers, "lost_machines": lost}

    def _controller(self, region: Region | None) -> Json:
        entry: Json = {"region": region.name if region else "eps"}
        try:
            health = self._reader.ask(region, lambda client: client.health())
            return entry | {"ready": bool(health["ready"])}
        except ControlError as error:
            return entry | {"ready": False, "fault": str(error)}

    def failures(self) -> list[Json]:
        """Return the present failures."""
        return self._lab.faults()

    def failure_version(self) -> int:
        """Return the size of the failure log."""
        with suppress(FileNotFoundError):
            return (self._lab.run_directory.path / FAILURE_LOG).stat().st_size
        return 0

    def failure_events(self) -> list[FailureEvent]:
        """Return the events of the failure log."""
        return read_failure_log(self._lab.run_directory)

    def ocs_events(self) -> Iterator[Json]:
        """Yield the events of the OCSes until the fabric ends."""
        return self._lab.events(follow=True)

    def read_ports(self) -> PortReading:
        """Read the kernel's counters."""
        return self._reader.ports(lost_are_zero=True)

    def run_status(self) -> Json | None:
        """Return the status that the run has written, or None."""
        file = self._lab.run_directory.run_status_file
        try:
            written_ns = file.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        if written_ns != self._status_ns:
            status = self._reader.run_status()
            self._status = status.model_dump(mode="json") if status else None
            self._status_ns = written_ns
        return self._status

    def light(self, circuits: Sequence[str], region: str | None) -> Json:
        """Set the circuits of a region."""
        return self._lab.light(*circuits, region=region).to_json()

    def dark(self, circuits: Sequence[str], region: str | None) -> Json:
        """Remove circuits, or all of a region."""
        return self._lab.dark(*circuits, region=region).to_json()

    def fault(self, kind: str, what: Sequence[str]) -> list[Json]:
        """Make components fail."""
        self._lab.fault(kind, *what)
        return self._lab.faults()

    def clear(self, kind: str | None, what: Sequence[str]) -> list[Json]:
        """Clear failures. A kind such as `ocs loss` clears all faults of its OCS."""
        if kind is not None and kind.startswith("ocs "):
            for name in what:
                self._lab.ocs_clear(ocs=name)
            return self._lab.faults()
        return self._lab.clear(kind, *what)

    def close(self) -> None:
        """Release the counters."""
        self._reader.close()
