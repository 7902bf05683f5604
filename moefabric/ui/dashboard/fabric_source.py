"""Access of the dashboard to a running fabric: reads its state, changes its light and failures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pydantic import Field

from moefabric import Lab, Region, SpecError
from moefabric.api.running_fabrics import running_fabrics
from moefabric.config.section import Section
from moefabric.core.failures import FailureEvent
from moefabric.core.port_counts import PortReading
from moefabric.results.parts import Json
from moefabric.runtime.failure_log import FAILURE_LOG, read_failure_log


class FabricSource:
    """A running fabric. One thread reads; commands come from others."""

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
        """Return the names of `lit` and `dark` circuits, and the controller's `fault` if any.

        The region has an OCS, whose own circuits they are if others control the region.
        """
        state = self._reader.circuits(region)
        fault = {"fault": state["fault"]} if "fault" in state else {}
        return {"lit": state["circuits"], "dark": state["dark"]} | fault

    def hardware(self) -> Json:
        """Return `servers` (with NICs), `processes`, `controllers` and why machines are lost."""
        hardware, controllers = self._reader.hardware(), list[Json]()
        for region in self._reader.controllers:
            state, name = self._reader.controller_state(region), region.name if region else "eps"
            fault = {"fault": state["fault"]} if "fault" in state else {}
            controllers.append({"region": name, "ready": state["ready"], **fault})
        shown = {key: hardware[key] for key in ("servers", "processes")}
        lost = hardware.get("lost_machines", {})
        return shown | {"controllers": controllers, "lost_machines": lost}

    def failures(self) -> list[Json]:
        """Return the present failures, each with `kind` and `what`."""
        return self._lab.faults()

    def failure_version(self) -> int:
        """Return a number that changes with each event of a failure."""
        with suppress(FileNotFoundError):
            return (self._lab.run_directory.path / FAILURE_LOG).stat().st_size
        return 0

    def failure_events(self) -> Sequence[FailureEvent]:
        """Return all events of failures so far, in order of time."""
        return read_failure_log(self._lab.run_directory)

    def ocs_events(self) -> Iterator[Json]:
        """Yield the events of the OCSes until the fabric ends."""
        return self._lab.events(follow=True)

    def read_ports(self) -> PortReading:
        """Read the counters of all NICs, in the order of `counted_nics`."""
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
        """Make components fail; return the present failures."""
        self._lab.fault(kind, *what)
        return self._lab.faults()

    def clear(self, kind: str | None, what: Sequence[str]) -> list[Json]:
        """Clear failures; return those that remain.

        A kind such as `ocs loss` clears all faults of its OCS.
        """
        if kind is not None and kind.startswith("ocs "):
            for name in what:
                self._lab.ocs_clear(ocs=name)
            return self._lab.faults()
        return self._lab.clear(kind, *what)

    def close(self) -> None:
        """Release the counters."""
        self._reader.close()


class RunningFabrics:
    """The fabrics of this machine.

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
        return FabricSource(Lab(name))


class Change(Section):
    """The JSON of a command."""

    circuits: list[str] = Field(default_factory=list)
    """Circuits, or pairs of servers."""
    region: str | None = None
    """Region of the circuits. Default: that of the circuits, or the first."""
    kind: str | None = None
    """Kind of failure."""
    what: list[str] = Field(default_factory=list)
    """Components."""


def _light(source: FabricSource, change: Change) -> Json:
    if not change.circuits:
        raise SpecError([("circuits", "name circuits such as s0/o0~s1/o0 or s0~s1")])
    return source.light(change.circuits, change.region)


COMMANDS: Final[Mapping[str, Callable[[FabricSource, Change], Json | list[Json]]]] = {
    "light": _light,
    "dark": lambda source, change: source.dark(change.circuits, change.region),
    "fault": lambda source, change: source.fault(change.kind or "", change.what),
    "clear": lambda source, change: source.clear(change.kind, change.what),
}
"""Commands by name. `light` sets the circuits of a region, `dark` removes circuits, `fault` makes
components fail, and `clear` clears failures."""
