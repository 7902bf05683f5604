"""The seams: what has effects, seen from the side that decides. Each has an in-memory answer that ships."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from moefabric.circuits import CircuitSet, Transition
from moefabric.ocs_control import Mode
from moefabric.records import FlowRecord
from moefabric.rules import RuleChange


class OpticalSwitch(Protocol):
    """An OCS, as its controller reaches it. Circuits only; ports are the driver's affair."""

    def lit(self) -> CircuitSet:
        """The circuits that the device shows now. ControlError if it doesn't answer."""

    def reconfigure(self, transition: Transition, mode: Mode = Mode.SAFE) -> None:
        """Command the change; returns when the device has accepted it. ControlError, and nothing changed, if it says no.

        Where `mode` is not to be safe, what is lit by `transition.kept` and `setup` afterwards is so whatever was joined before: the same twice is no
        fault.
        """

    def settled(self, deadline_s: float) -> None:
        """Return when all that was commanded has light. ControlError after `deadline_s`."""


@dataclass(frozen=True)
class Probed:
    """What frames sent through circuits tell."""

    carrying: CircuitSet
    """The circuits through which a frame came each way, out of the right port."""
    waited_s: float = 0.0
    """From the first frame until the one that came through last was sent: the optics' own time, if they were behind what the switch said."""


class LightProbe(Protocol):
    """Frames through circuits, to see whether there is light."""

    def through(self, circuits: CircuitSet, patience_s: float) -> Probed:
        """Send frames each way until one has come through each, or none has come anywhere for `patience_s`.

        ControlError where a packet switch is gone.
        """


class PacketSwitches(Protocol):
    """The OpenFlow switches of one controller."""

    def change(self, change: RuleChange) -> None:
        """Make the change on every switch concerned; returns when each has confirmed it. ControlError if one doesn't."""


class PacedFlow(Protocol):
    """What an agent has to send: `bytes` really sent, `rate_bps` to pace at (None is greedy)."""

    @property
    def src(self) -> str: ...
    @property
    def dst(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def rate_bps(self) -> float | None: ...


class Agents(Protocol):
    """The agents of all servers."""

    def run(
        self, collective: int, flows: Sequence[PacedFlow], start_ns: int | None, deadline_s: float
    ) -> list[FlowRecord]:
        """Send these flows at `start_ns` (CLOCK_MONOTONIC; None is now) and return a record of each. AgentError if an agent is gone."""

    def arm(
        self, collective: int, flows: Sequence[PacedFlow], start_ns: int | None, deadline_s: float
    ) -> int:
        """Tell the agents concerned what they will send and receive at that instant; when it starts. Several collectives may be armed at once."""

    def collect(self, collective: int, flows: Sequence[PacedFlow], deadline_s: float) -> list[FlowRecord]:
        """A record of each flow of an armed collective, once all agents have told; AgentError where one is gone, or silent for `deadline_s`."""
