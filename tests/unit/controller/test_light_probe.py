"""Light probes: frames that arrive, arrive elsewhere, arrive late or not at all."""

from collections.abc import Callable, Mapping, Sequence

import pytest
from scapy.layers.l2 import Ether

from moefabric.controller.southbound.openflow.light_probe import (
    FRAME_BYTES,
    OpenFlowProbe,
    encode_frame,
    fibres,
    parse_frame,
)
from moefabric.core.circuits import CircuitSet
from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region

FABRIC = Fabric("f", (Region("r0", 0, ("s0", "s1", "s2"), Ocs("ocs0", 6)),), 8, 2, 1, 1e9, Eps(3))
BOTH = CircuitSet.of(["s0/o0~s1/o1", "s1/o0~s2/o0"])
Port = tuple[str, int]


def test_encode_frame_matches_scapy() -> None:
    read = Ether(encode_frame(0x0102030405060708, 9))
    assert (read.dst, read.src, read.type) == ("02:6d:66:00:00:01", "02:6d:66:00:00:00", 0x88B5)
    body = b"moefabric light\0" + bytes([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9])
    assert bytes(read.payload) == body.ljust(46, b"\0")
    assert len(encode_frame(1, 2)) == FRAME_BYTES


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        pytest.param(encode_frame(7, 3), (7, 3), id="a-probe"),
        pytest.param(encode_frame(7, 3) + b"trailer", (7, 3), id="with-a-trailer"),
        pytest.param(encode_frame(7, 3)[:40], None, id="cut-off"),
        pytest.param(bytes(60), None, id="something-else"),
        pytest.param(
            encode_frame(7, 3)[:12] + b"\x08\x00" + encode_frame(7, 3)[14:],
            None,
            id="of-another-type",
        ),
    ],
)
def test_parse_frame(received: bytes, expected: tuple[int, int] | None) -> None:
    assert parse_frame(received) == expected


def test_fibres_lists_both_directions() -> None:
    assert [(fibre.source, fibre.destination) for fibre in fibres(FABRIC, BOTH)] == [
        (("s0", 2), ("s1", 3)),
        (("s1", 3), ("s0", 2)),
        (("s1", 2), ("s2", 2)),
        (("s2", 2), ("s1", 2)),
    ]


class Light:
    """Delivers frames between ports on a virtual clock, which waiting advances."""

    def __init__(self, through: Mapping[Port, Port], from_s: float = 0.0) -> None:
        self.through, self.from_s, self.now_s = dict(through), from_s, 0.0
        self.source: list[tuple[float, Port]] = []
        self.spilt: dict[Port, Port] = {}
        self._all = False
        self.probe = OpenFlowProbe(FABRIC, self.emit, lambda: self, lambda: self.now_s)

    def emit(self, frames: Mapping[str, Sequence[tuple[int, bytes]]]) -> None:
        for switch, listed in frames.items():
            for port, sent in listed:
                self.source.append((self.now_s, (switch, port)))
                if (switch, port) in self.spilt:
                    assert self.probe.frame_received(*self.spilt[switch, port], sent)
                out = self.through.get((switch, port))
                if out and self.now_s >= self.from_s:
                    assert self.probe.frame_received(*out, sent)

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


def test_probe_needs_one_frame_each_way() -> None:
    light = Light(WIRED)
    probed = light.probe.probe(BOTH, 1)
    assert (probed.carrying, probed.waited_s) == (BOTH, 0.0)
    assert [port for _, port in light.source] == list(WIRED)


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
def test_one_dark_direction_makes_a_circuit_dark(
    change: Callable[[dict[Port, Port]], object], carrying: list[str]
) -> None:
    light = Light(WIRED)
    change(light.through)
    assert light.probe.probe(BOTH, 0.1).carrying == CircuitSet.of(carrying)
    assert light.now_s == pytest.approx(0.1, abs=0.05)
    assert [port for at, port in light.source if at][:1] == [("s0", 2)], (
        "what was missing was not sent again"
    )


def test_misdirected_light_makes_a_circuit_dark() -> None:
    light = Light(WIRED)
    light.spilt["s0", 2] = "s2", 3
    assert light.probe.probe(BOTH, 0.1).carrying == CircuitSet.of(["s1/o0~s2/o0"])


def test_late_light_is_waited_for_and_timed() -> None:
    light = Light(WIRED, from_s=0.02)
    probed = light.probe.probe(BOTH, 1)
    assert probed.carrying == BOTH
    assert 0.02 <= probed.waited_s <= 0.04


def test_frames_of_an_earlier_probe_are_ignored() -> None:
    light = Light({})
    assert light.probe.frame_received("s1", 3, encode_frame(1, 0))
    assert light.probe.probe(BOTH, 0.01).carrying == CircuitSet()


def test_other_frames_are_not_consumed() -> None:
    assert not Light({}).probe.frame_received("s1", 3, bytes(60))
