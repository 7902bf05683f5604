"""Light probes: frames that arrive, arrive elsewhere, arrive late or not at all."""

from collections.abc import Callable, Collection, Mapping, Sequence

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
from moefabric.core.errors import ControlError
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


class SlowMachine(Light):
    """Light whose frames arrive once switches catch up, for nothing else runs meanwhile."""

    def __init__(self, through: Mapping[Port, Port]) -> None:
        super().__init__(through)
        self.held: list[tuple[Port, bytes]] = []
        self.caught_up: list[list[str]] = []
        self.probe.catch_up = self.catch_up

    def emit(self, frames: Mapping[str, Sequence[tuple[int, bytes]]]) -> None:
        for switch, listed in frames.items():
            self.held += [((switch, port), sent) for port, sent in listed]

    def catch_up(self, switches: Collection[str]) -> None:
        self.caught_up.append(sorted(switches))
        for place, sent in self.held:
            if place in self.through:
                self.probe.frame_received(*self.through[place], sent)
        self.held.clear()


def test_frames_that_a_busy_machine_holds_up_are_no_darkness() -> None:
    light = SlowMachine(WIRED)
    assert light.probe.probe(BOTH, 0.1).carrying == BOTH
    assert light.caught_up == [["s0", "s1", "s2"]]


def test_darkness_is_told_from_a_busy_machine() -> None:
    light = SlowMachine({port: out for port, out in WIRED.items() if port != ("s0", 2)})
    assert light.probe.probe(BOTH, 0.1).carrying == CircuitSet.of(["s1/o0~s2/o0"])


def test_silent_switch_is_no_darkness() -> None:
    light = Light({})

    def silent(_switches: Collection[str]) -> None:
        raise ControlError("s1: no confirmation within 5 s")

    light.probe.catch_up = silent
    with pytest.raises(ControlError, match="s1: no confirmation"):
        light.probe.probe(BOTH, 0.1)


def test_two_probings_at_a_time_get_their_own_frames() -> None:
    light = Light({})
    first, second = CircuitSet.of(["s0/o0~s1/o1"]), CircuitSet.of(["s1/o0~s2/o0"])
    inner: list[CircuitSet] = []

    def wait(seconds: float) -> bool:
        light.now_s += seconds
        if not inner:
            inner.append(CircuitSet())
            light.through = dict(WIRED)
            inner[0] = light.probe.probe(second, 0.1).carrying
        return False

    light.wait = wait  # type: ignore[method-assign]
    assert light.probe.probe(first, 0.1).carrying == first
    assert inner == [second]
