"""Cross-connects: matchings, their changes, and the light that follows."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.ocs import DeviceProfile, SettleTime
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.ocs.cross_connects import CrossConnects, Refusal, RefusedError, pair_up
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.device_spec import DeviceSpec
from tests.support.memory_crossbar import MemoryCrossbar
from tests.support.virtual_timers import VirtualTimers

PORTS = Ports(4)  # inputs 1..4, outputs 5..8
SETTLE_NS = 25_000_000
SETTLE = SettleTime(fixed_ns=SETTLE_NS)


def connects(*pairs: tuple[int, int]) -> CrossConnects:
    return CrossConnects(PORTS, dict(pairs))


@st.composite
def matchings(draw: st.DrawFn) -> CrossConnects:
    inputs = draw(st.lists(st.sampled_from(PORTS.input_numbers), unique=True))
    outputs = draw(st.permutations(PORTS.output_numbers))
    return connects(*zip(inputs, outputs, strict=False))


@pytest.mark.parametrize(
    ("before", "added", "after"),
    [
        pytest.param([], [(1, 5)], [(1, 5)], id="free-ports"),
        pytest.param([(2, 6)], [(1, 5)], [(1, 5), (2, 6)], id="others-stay"),
        pytest.param([(1, 5)], [(1, 5)], [(1, 5)], id="repeated"),
        pytest.param([(1, 6)], [(1, 5)], [(1, 5)], id="busy-input"),
        pytest.param([(2, 5)], [(1, 5)], [(1, 5)], id="busy-output"),
        pytest.param([(1, 6), (2, 5)], [(1, 5)], [(1, 5)], id="busy-input-and-output"),
        pytest.param([(1, 5), (2, 6)], [(1, 6), (2, 5)], [(1, 6), (2, 5)], id="swap"),
    ],
)
def test_add_removes_older_cross_connects_of_busy_ports(
    before: list[tuple[int, int]], added: list[tuple[int, int]], after: list[tuple[int, int]]
) -> None:
    assert connects(*before).add(added) == connects(*after)


def test_add_with_busy_refuse_names_connected_ports() -> None:
    with pytest.raises(RefusedError, match="busy: 1 is joined to 6, 2 is joined to 5") as refused:
        connects((1, 6), (2, 5), (3, 7)).add([(1, 5)], move=False)
    assert refused.value.reason is Refusal.CONFLICT


def test_adding_existing_cross_connect_is_not_busy() -> None:
    assert connects((1, 6)).add([(1, 6)], move=False) == connects((1, 6))


def test_only_replaces_everything() -> None:
    assert connects((1, 5), (2, 6)).only([(3, 5)]) == connects((3, 5))


def test_sub_removes_cross_connects() -> None:
    assert connects((1, 5), (2, 6)).sub([(1, 5)]) == connects((2, 6))


INVALID_CHANGES: dict[str, tuple[Callable[[CrossConnects], object], Refusal, str]] = {
    "output-as-input": (lambda c: c.add([(5, 5)]), Refusal.NO_SUCH_PORT, "5: inputs are 1..4"),
    "input-as-output": (lambda c: c.add([(1, 4)]), Refusal.NO_SUCH_PORT, "4: outputs are 5..8"),
    "port-zero": (lambda c: c.only([(0, 5)]), Refusal.NO_SUCH_PORT, "0: inputs are 1..4"),
    "beyond-the-last": (lambda c: c.only([(1, 9)]), Refusal.NO_SUCH_PORT, "9: outputs are 5..8"),
    "input-twice": (lambda c: c.add([(1, 5), (1, 6)]), Refusal.CONFLICT, "input 1 twice"),
    "output-twice": (lambda c: c.only([(1, 5), (2, 5)]), Refusal.CONFLICT, "output 5 twice"),
    "only-twice": (lambda c: c.only([(1, 5), (1, 6)]), Refusal.CONFLICT, "input 1 twice"),
    "sub-elsewhere": (lambda c: c.sub([(1, 6)]), Refusal.NOT_CONNECTED, "1 is not joined to 6"),
    "unequal-lists": (lambda _: pair_up([1, 2], [5]), Refusal.MISMATCH, "2 inputs for 1 outputs"),
}


@pytest.mark.parametrize(
    ("change", "reason", "message"), INVALID_CHANGES.values(), ids=INVALID_CHANGES
)
def test_invalid_change_is_refused_with_reason(
    change: Callable[[CrossConnects], object], reason: Refusal, message: str
) -> None:
    with pytest.raises(RefusedError, match=message) as refused:
        change(connects((1, 5), (2, 6)))
    assert refused.value.reason is reason


def test_pairs_that_share_an_output_are_refused() -> None:
    with pytest.raises(RefusedError, match="output 5 twice"):
        connects((1, 5), (2, 5))


def test_cross_connects_are_sorted_pairs() -> None:
    assert list(connects((2, 6), (1, 5))) == [(1, 5), (2, 6)]


@given(matchings(), matchings())
def test_add_keeps_a_matching(before: CrossConnects, added: CrossConnects) -> None:
    after = before.add(list(added))
    assert {*added} <= {*after} <= {*before} | {*added}
    assert len({q for _, q in after}) == len(after)


@given(matchings())
def test_sub_can_remove_everything(before: CrossConnects) -> None:
    assert before.sub(list(before)) == connects()


def make_device(settle: SettleTime = SETTLE, now_ns: int = 0) -> tuple[OcsDevice, VirtualTimers]:
    timers = VirtualTimers(now_ns)
    return OcsDevice(
        MemoryCrossbar(PORTS), timers, DeviceSpec(DeviceProfile(settle=settle))
    ), timers


def lights(device: OcsDevice) -> dict[tuple[int, int], int]:
    return device.light._crossbar.cross_connects()


@given(matchings(), matchings())
def test_only_changed_cross_connects_go_dark(before: CrossConnects, target: CrossConnects) -> None:
    device, timers = make_device()
    device.only(list(before))
    timers.advance_ns(5_000_000_000)
    device.only(list(target))
    assert lights(device) == {
        pair: SETTLE_NS + (0 if pair in {*before} else 5_000_000_000) for pair in target
    }


def test_repeated_command_does_not_restart_settling() -> None:
    device, timers = make_device()
    device.add([(1, 5)])
    timers.advance_ns(10_000_000)
    device.add([(1, 5), (2, 6)])
    assert lights(device) == {(1, 5): 25_000_000, (2, 6): 35_000_000}
    assert device.light.settled_at_ns == 35_000_000


def test_switch_without_light_has_settled() -> None:
    device, _ = make_device(now_ns=7)
    device.add([(1, 5)])
    device.clear()
    assert (lights(device), device.light.settled_at_ns) == ({}, 0)
