"""Probes of light: the frame, and what is made of those that come, come elsewhere, come late or don't come."""

from collections.abc import Callable, Mapping, Sequence

import pytest
from scapy.layers.l2 import Ether

from controller.southbound.openflow.light_probe import FRAME_BYTES, OpenFlowProbe, fibres, frame, parsed
from moefabric.circuits import CircuitSet
from moefabric.topology import Eps, Fabric, Ocs, Region

FABRIC = Fabric("f", (Region("r0", 0, ("s0", "s1", "s2"), Ocs("ocs0", 6)),), 8, 2, 1, 1e9, Eps(3))
BOTH = CircuitSet.of(["s0/o0~s1/o1", "s1/o0~s2/o0"])
Port = tuple[str, int]


def test_a_frame_is_what_scapy_reads_in_it() -> None:
    read = Ether(frame(0x0102030405060708, 9))
    assert (read.dst, read.src, read.type) == ("02:6d:66:00:00:01", "02:6d:66:00:00:00", 0x88B5)
    body = b"moefabric light\0" + bytes([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9])
    assert bytes(read.payload) == body.ljust(46, b"\0")
    assert len(frame(1, 2)) == FRAME_BYTES


@pytest.mark.parametrize(
    ("received", "told"),
    [
        pytest.param(frame(7, 3), (7, 3), id="a-probe"),
        pytest.param(frame(7, 3) + b"trailer", (7, 3), id="with-a-trailer"),
        pytest.param(frame(7, 3)[:40], None, id="cut-off"),
        pytest.param(bytes(60), None, id="something-else"),
        pytest.param(frame(7, 3)[:12] + b"\x08\x00" + frame(7, 3)[14:], None, id="of-another-type"),
    ],
)
def test_a_frame_is_known_again(received: bytes, told: tuple[int, int] | None) -> None:
    assert parsed(received) == told


def test_each_circuit_has_a_fibre_each_way() -> None:
    assert [(fibre.sent, fibre.expected) for fibre in fibres(FABRIC, BOTH)] == [
        (("s0", 2), ("s1", 3)),
        (("s1", 3), ("s0", 2)),
        (("s1", 2), ("s2", 2)),
        (("s2", 2), ("s1", 2)),
    ]


class Light:
    """What comes out where, on a clock of its own: rounds pass when they are waited for."""

    def __init__(self, through: Mapping[Port, Port], from_s: float = 0.0) -> None:
        self.through, self.from_s, self.now_s = dict(through), from_s, 0.0
        self.sent: list[tuple[float, Port]] = []
        self.spilt: dict[Port, Port] = {}
        self._all = False
        self.probe = OpenFlowProbe(FABRIC, self.emit, lambda: self, lambda: self.now_s)

    def emit(self, frames: Mapping[str, Sequence[tuple[int, bytes]]]) -> None:
        for switch, listed in frames.items():
            for port, sent in listed:
                self.sent.append((self.now_s, (switch, port)))
                if (switch, port) in self.spilt:
                    assert self.probe.hears(*self.spilt[switch, port], sent)
                out = self.through.get((switch, port))
                if out and self.now_s >= self.from_s:
                    assert self.probe.hears(*out, sent)

    def set(self) -> None:
        self._all = True

    def wait(self, seconds: float) -> bool:
        if not self._all:
            self.now_s += seconds
        return self._all


WIRED: Mapping[Port, Port] = {
    ("s0", 2): ("s1", 3),
    ("s1", 3): ("s0", 2),
    ("s1", 2): ("s2", 2),
    ("s2", 2): ("s1", 2),
}


def test_light_is_found_with_one_frame_each_way() -> None:
    light = Light(WIRED)
    probed = light.probe.through(BOTH, 1)
    assert (probed.carrying, probed.waited_s) == (BOTH, 0.0)
    assert [port for _, port in light.sent] == list(WIRED)


@pytest.mark.parametrize(
    ("change", "carrying"),
    [
        pytest.param(lambda w: w.pop(("s0", 2)), ["s1/o0~s2/o0"], id="one-way-is-dark"),
        pytest.param(
            lambda w: w.update({("s0", 2): ("s2", 3)}), ["s1/o0~s2/o0"], id="one-way-ends-elsewhere"
        ),
        pytest.param(lambda w: w.clear(), [], id="all-is-dark"),
    ],
)
def test_a_circuit_that_is_not_through_each_way_carries_nothing(
    change: Callable[[dict[Port, Port]], object], carrying: list[str]
) -> None:
    light = Light(WIRED)
    change(light.through)
    assert light.probe.through(BOTH, 0.1).carrying == CircuitSet.of(carrying)
    assert light.now_s == pytest.approx(0.1, abs=0.05)
    assert [port for at, port in light.sent if at][:1] == [("s0", 2)], "what was missing was not sent again"


def test_a_circuit_whose_light_reaches_another_port_as_well_carries_nothing() -> None:
    light = Light(WIRED)
    light.spilt["s0", 2] = "s2", 3
    assert light.probe.through(BOTH, 0.1).carrying == CircuitSet.of(["s1/o0~s2/o0"])


def test_light_that_is_late_is_waited_for_and_the_waiting_is_told() -> None:
    light = Light(WIRED, from_s=0.02)
    probed = light.probe.through(BOTH, 1)
    assert probed.carrying == BOTH
    assert 0.02 <= probed.waited_s <= 0.04


def test_frames_of_an_earlier_time_say_nothing() -> None:
    light = Light({})
    assert light.probe.hears("s1", 3, frame(1, 0))
    assert light.probe.through(BOTH, 0.01).carrying == CircuitSet()


def test_other_frames_are_not_its_business() -> None:
    assert not Light({}).probe.hears("s1", 3, bytes(60))
