"""Protocols of the components with effects: switches, light probes, counters and agents.

Each protocol has an in-memory implementation that ships with the package.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moefabric.core.circuits import CircuitSet, Transition
from moefabric.core.exchange import Exchange
from moefabric.core.flows import FlowRecord, PacedFlow
from moefabric.core.ocs import CrossConnectMode
from moefabric.core.port_counts import PortReading
from moefabric.core.rules import RuleChange


class OpticalSwitch(Protocol):
    """An OCS as its controller uses it: by circuits, which the driver maps to ports."""

    @property
    def has_strays(self) -> bool:
        """Whether `circuits` last met cross-connects of the region that form no circuit."""

    def circuits(self) -> CircuitSet:
        """Return the circuits that the device reports now.

        Raises:
            ControlError: If the device doesn't answer.
        """

    def reconfigure(
        self, transition: Transition, mode: CrossConnectMode = CrossConnectMode.SAFE
    ) -> None:
        """Command a transition; return when the device has accepted it.

        Args:
            transition: The change. Unless the mode is safe, circuits of `kept` and `setup` are lit
                afterwards whatever was connected before, and a repeated command is no error.
            mode: The treatment of cross-connects that are in the way.

        Raises:
            ControlError: If the device refuses; nothing has changed then.
        """

    def wait_settled(self, deadline_s: float) -> None:
        """Return when all commanded circuits have light.

        Raises:
            ControlError: If they haven't after `deadline_s` seconds.
        """

    def settled_circuits(self, deadline_s: float) -> CircuitSet:
        """Return the circuits that the device reports once all commanded circuits have light.

        Raises:
            ControlError: If they haven't after `deadline_s` seconds.
        """


@dataclass(frozen=True)
class ProbeResult:
    """The result of sending frames through circuits.

    Attributes:
        carrying: Circuits through which a frame came in each direction, out of the right port.
        waited_s: Seconds between sending the first frame and sending the frame that came through
            last. The optics are behind the switch's report by this time.
    """

    carrying: CircuitSet
    waited_s: float = 0.0


class LightProbe(Protocol):
    """Sends frames through circuits, to find out whether they have light."""

    def prepare(self, circuits: CircuitSet) -> None:
        """Prepare `probe` for circuits that will probably be probed next."""

    def probe(self, circuits: CircuitSet, timeout_s: float) -> ProbeResult:
        """Send frames until one came through every circuit in each direction.

        Args:
            circuits: Circuits to probe.
            timeout_s: Seconds without any arriving frame after which to give up.

        Raises:
            ControlError: If a packet switch is gone.
        """


class PacketSwitches(Protocol):
    """The OpenFlow switches of one controller."""

    def prepare(self, change: RuleChange) -> None:
        """Prepare `apply` for a change that may follow. No rule changes."""

    def apply(self, change: RuleChange) -> None:
        """Change the rules of all switches concerned; return when each has confirmed.

        Raises:
            UnconfirmedError: If a switch doesn't confirm.
        """


class PortCounters(Protocol):
    """The counters of all NICs, OCS ports and uplinks of a fabric."""

    def read(self) -> PortReading:
        """Read all counters.

        Returns:
            A row for each port, in the order of `moefabric.core.port_counts.counted_ports`.

        Raises:
            FabricError: If the counters can't be read.
        """


class Agents(Protocol):
    """The agents of all servers. Instants are CLOCK_MONOTONIC."""

    def launch(
        self,
        flows: Sequence[PacedFlow],
        start_ns: int | None,
        deadline_s: float,
        exchange: Exchange | None = None,
    ) -> int:
        """Order transfers from the agents without waiting for them.

        Args:
            flows: The transfers.
            start_ns: When all start; None lets each sender start when it receives the order.
            deadline_s: How long after the start they may take.
            exchange: The exchange whose bytes the flows carry; None for bytes of the agents' own.

        Returns:
            The number of the order.

        Raises:
            ServerLossError: A server is known to be lost.
        """

    def wait_ended(self, until_ns: int | None) -> dict[int, list[FlowRecord]]:
        """Wait until an order has ended, `wake` is called or the instant has come.

        Returns:
            The records of all orders that have ended, in the order of their flows.

        Raises:
            ServerLossError: A server or GPU of an order under way is lost.
            AgentError: An agent refuses an order.
        """

    def wake(self) -> None:
        """Let `wait_ended` return. Any thread may call it."""

    def take_exchanges(self) -> list[Exchange]:
        """Return the exchanges that all of their ranks have asked for since the last call."""

    def finish(self, exchange: Exchange, error: str = "") -> None:
        """Resume the ranks of an exchange whose bytes have arrived, or that ends with an error."""

    def lost_ranks(self) -> dict[int, str]:
        """Return the ranks that ended without saying so, each with the reason."""

    def losses(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the servers and GPUs (`s1/3`) that are lost now."""

    def drop(self, servers: Iterable[str]) -> None:
        """Leave these servers out of all further orders."""

    def abandon(self, collective: int) -> None:
        """End an order, complete or not."""

    def reconnect(self) -> None:
        """Open lost connections between the remaining servers again.

        Raises:
            ServerLossError: If a remaining server is lost.
        """

    def readmit(self) -> frozenset[str]:
        """Connect servers that have come back, and return them.

        Raises:
            ServerLossError: If a server is lost again.
        """
