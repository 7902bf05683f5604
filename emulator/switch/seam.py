"""The seam between a switch and what moves its packets: a datapath is given flows, and gives counters and packets for the controller."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from emulator.switch.flow import Flow, FlowKey, Group


@dataclass(frozen=True)
class Port:
    """A port of a switch: its number, the name of its interface, and whether that has carrier."""

    number: int
    name: str
    up: bool = True


@dataclass(frozen=True)
class Punt:
    """A packet for the controller. `flow` sent it; `frame` is its first bytes, at most `max_len`, of `length` in all.

    A datapath may cut it shorter, as may any switch (OpenFlow 1.3.5, 7.4.1): the kernel's gives 16,360 bytes at most.
    """

    in_port: int
    frame: bytes
    length: int
    flow: FlowKey
    max_len: int


@dataclass(frozen=True)
class Count:
    """Packets and bytes of frames, without their checksum on the wire.

    What a host leaves to segmentation offload counts as the packets that it would be cut into, and with its bytes as handed over: the headers of
    all but the first are not in them.
    """

    packets: int = 0
    bytes: int = 0


class Datapath(Protocol):
    """What moves a switch's packets by its flows. Calls come from one thread."""

    @property
    def ports(self) -> Mapping[int, Port]: ...

    def load(self, flows: Sequence[Flow], groups: Sequence[Group] = ()) -> None:
        """The table becomes this one: each packet meets all of the old or all of the new. FlowError, naming the flow, changes nothing."""
        ...

    def port_changed(self, number: int, *, up: bool) -> None:
        """Tell of a port's carrier; fast-failover groups follow."""
        ...

    def counters(self, of: Iterable[FlowKey] | None = None) -> Mapping[FlowKey, Count]:
        """Of every flow in the table since it came in; or of these, those that are in the table. A flow of the same key keeps its count through any load."""
        ...

    def send(self, port: int, frame: bytes) -> None:
        """A frame out of a port, by no flow (packet-out). FlowError if there is no such port."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when `received` has something, for epoll."""
        ...

    def received(self) -> Sequence[Punt]:
        """What flows have sent to the controller since the last call. Never waits."""
        ...

    def close(self) -> None: ...
