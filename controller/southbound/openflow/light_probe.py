"""Light probes: each sends a frame into one end of a circuit and expects it at the other end.

Packet-outs send the frames and packet-ins report them, so a probe needs no privilege and no help
of servers, and works on any OpenFlow 1.3 switch. Frames have an EtherType for local experiments
(IEEE Std 802-2014, 9.2.4) and leave an optical port by its fibre only.
"""

import secrets
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.nic import Nic
from moefabric.core.protocols import ProbeResult
from moefabric.core.topology import Fabric

ETHERTYPE: Final = 0x88B5
_HEADER: Final = bytes.fromhex("026d66000001 026d66000000 88b5") + b"moefabric light\0"
_BODY: Final = struct.Struct("!QI")
FRAME_BYTES: Final = 60
"""Ethernet's minimum without the check sequence."""
_FIRST_ROUND_S: Final = 0.002
_FRAME_S: Final = 0.0005
"""Longest time for one frame in controller and switches; queued frames must not be sent again."""
_LONGEST_ROUND_S: Final = 0.2

Port = tuple[str, int]
"""A switch and the number of a port."""


def encode_frame(nonce: int, fibre: int) -> bytes:
    """Return the probe frame for a fibre's number; the nonce identifies the round of probing."""
    return (_HEADER + _BODY.pack(nonce, fibre)).ljust(FRAME_BYTES, b"\0")


def parse_frame(frame: bytes) -> tuple[int, int] | None:
    """Return nonce and fibre number of a probe; None for other frames."""
    end = len(_HEADER) + _BODY.size
    if len(frame) < end or not frame.startswith(_HEADER):
        return None
    nonce, fibre = _BODY.unpack(frame[len(_HEADER) : end])
    return nonce, fibre


@dataclass(frozen=True)
class Fibre:
    """Direction of a circuit, from a switch's port to another's."""

    circuit: Circuit
    source: Port
    destination: Port


def fibres(fabric: Fabric, circuits: CircuitSet) -> tuple[Fibre, ...]:
    """Return both directions of each circuit."""

    def port(nic: Nic) -> Port:
        return nic.server, fabric.openflow.ports(nic.server)[str(nic)]

    ends = ((c, a, b) for c in circuits for a, b in ((c.a, c.b), (c.b, c.a)))
    return tuple(Fibre(circuit, port(a), port(b)) for circuit, a, b in ends)


@dataclass
class _Probing:
    """The frames of one probing.

    Attributes:
        nonce: Identifies its frames.
        all_arrived: Event that no frame is missing.
        missing: Numbers of the fibres whose frame has not arrived.
        misdirected: Numbers of the fibres whose frame arrived at another port.
    """

    nonce: int
    fibres: Sequence[Fibre]
    all_arrived: Any
    missing: set[int]
    misdirected: set[int] = field(default_factory=set)

    def frame_received(self, fibre: int, port: Port) -> None:
        """Record at which port the frame of a fibre has arrived."""
        if fibre < len(self.fibres):
            arrives = self.fibres[fibre].destination == port
            (self.missing.discard if arrives else self.misdirected.add)(fibre)
        if not self.missing:
            self.all_arrived.set()

    @property
    def carrying(self) -> CircuitSet:
        """The circuits that carry frames in both directions, and to no other port."""
        bad = {self.fibres[number].circuit for number in self.missing | self.misdirected}
        return CircuitSet(frozenset(fibre.circuit for fibre in self.fibres) - bad)


@dataclass(eq=False)
class OpenFlowProbe:
    """A `LightProbe` by packet-outs and packet-ins. Several probings may be under way.

    Attributes:
        send_frames: Sends frames out of ports, by switch; raises ControlError if one is absent.
        event: Makes an event with `set()` and `wait(seconds)`.
        clock: Returns the seconds of a monotonic clock.
        catch_up: Returns when switches have handled all that has reached them; raises ControlError
            if one is silent. A busy machine then makes no circuit look dark.
    """

    fabric: Fabric
    send_frames: Callable[[Mapping[str, Sequence[tuple[int, bytes]]]], None]
    event: Callable[[], Any]
    clock: Callable[[], float] = time.perf_counter
    catch_up: Callable[[Collection[str]], None] = lambda _switches: None
    _probings: dict[int, _Probing] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Keep the fibres of the circuits that were looked up last, lit ones and new ones."""
        self._fibres: Callable[[CircuitSet], tuple[Fibre, ...]]
        self._fibres = lru_cache(maxsize=2)(partial(fibres, self.fabric))

    def frame_received(self, switch: str, port: int, frame: bytes) -> bool:
        """Take a packet-in; return whether it is a probe, of this probing or an earlier one."""
        if (parsed := parse_frame(frame)) is None:
            return False
        nonce, fibre = parsed
        if probing := self._probings.get(nonce):
            probing.frame_received(fibre, (switch, port))
        return True

    def prepare(self, circuits: CircuitSet) -> None:
        """Look up the ports of circuits that will probably be probed next."""
        self._fibres(circuits)

    def probe(self, circuits: CircuitSet, timeout_s: float) -> ProbeResult:
        """Probe circuits until each carries frames, or none has arrived for `timeout_s`.

        Missing frames are sent again in growing intervals.

        Raises:
            ControlError: if a packet switch is absent, or is silent while frames are missing.
        """
        probed = self._fibres(circuits)
        state = _Probing(secrets.randbits(64), probed, self.event(), set(range(len(probed))))
        self._probings[state.nonce] = state
        started_s, waited_s, last_arrival_s = self.clock(), 0.0, 0.0
        round_s = _FIRST_ROUND_S + len(state.fibres) * _FRAME_S
        try:
            while True:
                sent_s, missing = self.clock() - started_s, len(state.missing)
                self._send_missing(state)
                state.all_arrived.wait(min(round_s, timeout_s))
                is_late = self.clock() - started_s >= last_arrival_s + timeout_s
                if is_late and state.missing:
                    self.catch_up({port[0] for f in probed for port in (f.source, f.destination)})
                if len(state.missing) < missing:
                    waited_s, last_arrival_s, is_late = sent_s, self.clock() - started_s, False
                if is_late or not state.missing:
                    return ProbeResult(state.carrying, waited_s)
                round_s = min(2 * round_s, _LONGEST_ROUND_S)
        finally:
            del self._probings[state.nonce]

    def _send_missing(self, state: _Probing) -> None:
        frames = defaultdict[str, list[tuple[int, bytes]]](list)
        for number in sorted(state.missing):
            switch, port = state.fibres[number].source
            frames[switch].append((port, encode_frame(state.nonce, number)))
        self.send_frames(frames)
