"""Probes of light: a frame out of one end of each circuit by OpenFlow, and the packet-in by which the other end's switch tells that it came.

Needs no privilege and no server's help, and works on any switch that speaks OpenFlow 1.3. Frames are of an EtherType for local experiments
(IEEE Std 802-2014, 9.2.4), and never leave the optical port they were sent to but by its fibre.
"""

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Final

from moefabric.circuits import Circuit, CircuitSet
from moefabric.seams import Probed
from moefabric.topology import Fabric, Nic

ETHERTYPE: Final = 0x88B5
_HEAD: Final = bytes.fromhex("026d66000001 026d66000000 88b5") + b"moefabric light\0"
_BODY: Final = struct.Struct("!QI")
FRAME_BYTES: Final = 60
"""The shortest that Ethernet carries, less its check sequence."""
_FIRST_ROUND_S: Final = 0.002
_FRAME_S: Final = 0.0005
"""What a frame costs a controller and its switches, at worst: frames are not sent again while they may be waiting in line."""
_LONGEST_ROUND_S: Final = 0.2

Port = tuple[str, int]
"""A switch and a port of it."""


def frame(nonce: int, number: int) -> bytes:
    """The frame of a probing, which its nonce tells, through the fibre of that number."""
    return (_HEAD + _BODY.pack(nonce, number)).ljust(FRAME_BYTES, b"\0")


def parsed(received: bytes) -> tuple[int, int] | None:
    """Nonce and number of a frame; None where it is none of ours."""
    end = len(_HEAD) + _BODY.size
    if len(received) < end or not received.startswith(_HEAD):
        return None
    nonce, number = _BODY.unpack(received[len(_HEAD) : end])
    return nonce, number


@dataclass(frozen=True)
class Fibre:
    """One direction of a circuit: from a switch's port to another's."""

    circuit: Circuit
    sent: Port
    expected: Port


def fibres(fabric: Fabric, circuits: CircuitSet) -> tuple[Fibre, ...]:
    """Both directions of each circuit."""

    def port(nic: Nic) -> Port:
        return nic.server, fabric.ports(nic.server)[str(nic)]

    ends = ((c, a, b) for c in circuits for a, b in ((c.a, c.b), (c.b, c.a)))
    return tuple(Fibre(circuit, port(a), port(b)) for circuit, a, b in ends)


@dataclass
class Probing:
    """Frames under way, and those that came."""

    nonce: int
    fibres: Sequence[Fibre]
    heard: set[int] = field(default_factory=set)
    strays: dict[int, Port] = field(default_factory=dict)
    """Fibres whose frame came out elsewhere."""

    def take(self, number: int, came: Port) -> None:
        """A frame came in by this port."""
        if number >= len(self.fibres):
            return
        if self.fibres[number].expected == came:
            self.heard.add(number)
        else:
            self.strays[number] = came

    @property
    def missing(self) -> list[int]:
        """The fibres that nothing has come through yet."""
        return [number for number in range(len(self.fibres)) if number not in self.heard]

    @property
    def carrying(self) -> CircuitSet:
        """The circuits that are through each way. One whose light reaches another port as well is none."""
        without = {self.fibres[number].circuit for number in (*self.missing, *self.strays)}
        return CircuitSet(frozenset(fibre.circuit for fibre in self.fibres) - without)


class OpenFlowProbe:
    """A `LightProbe` by packet-outs and packet-ins. One probing at a time."""

    def __init__(
        self,
        fabric: Fabric,
        emit: Callable[[Mapping[str, Sequence[tuple[int, bytes]]]], None],
        event: Callable[[], Any],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`emit` sends frames out of ports, by switch (ControlError where one is gone); `event` makes what one can wait for and set."""
        self._fabric, self._emit, self._event, self._clock = fabric, emit, event, clock
        self._random = SystemRandom()
        self._probing: Probing | None = None
        self._done: Any = None

    def hears(self, switch: str, port: int, received: bytes) -> bool:
        """A packet-in came. Whether it is a probe, of whatever time."""
        told = parsed(received)
        if told is None:
            return False
        if self._probing and told[0] == self._probing.nonce:
            self._probing.take(told[1], (switch, port))
            if not self._probing.missing:
                self._done.set()
        return True

    def through(self, circuits: CircuitSet, patience_s: float) -> Probed:
        """Send frames each way, again and again what hasn't come through, until all has or nothing has come for `patience_s`.

        ControlError where a packet switch is gone.
        """
        probing = Probing(self._random.getrandbits(64), fibres(self._fabric, circuits))
        self._probing, self._done = probing, self._event()
        started, waited_s, came_s = self._clock(), 0.0, 0.0
        round_s = _FIRST_ROUND_S + len(probing.fibres) * _FRAME_S
        try:
            while True:
                sent_s, before = self._clock() - started, len(probing.missing)
                self._send(probing)
                all_came = self._done.wait(min(round_s, patience_s))
                if len(probing.missing) < before:
                    waited_s, came_s = sent_s, self._clock() - started
                if all_came or self._clock() - started >= came_s + patience_s:
                    return Probed(probing.carrying, waited_s)
                round_s = min(2 * round_s, _LONGEST_ROUND_S)
        finally:
            self._probing = None

    def _send(self, probing: Probing) -> None:
        frames: dict[str, list[tuple[int, bytes]]] = {}
        for number in probing.missing:
            switch, port = probing.fibres[number].sent
            frames.setdefault(switch, []).append((port, frame(probing.nonce, number)))
        self._emit(frames)
