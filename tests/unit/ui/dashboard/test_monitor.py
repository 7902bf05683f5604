import pytest

from moefabric.core.errors import FabricError
from moefabric.ui.dashboard.monitor import FabricMonitor, PortRates
from tests.support.dashboard_sources import MemorySource, memory_fabric, ring_circuits, run_status


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def source() -> MemorySource:
    return MemorySource(memory_fabric("lab", 4))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def monitor(source: MemorySource, clock: Clock) -> FabricMonitor:
    return FabricMonitor(source, clock, clock)


def test_the_first_reading_has_the_whole_fabric(monitor: FabricMonitor) -> None:
    live = monitor.poll().live
    assert {"fabric", "circuits", "failures", "hardware", "run", "timeline", "demand"} <= set(live)


def test_a_reading_without_a_change_sends_nothing(monitor: FabricMonitor, clock: Clock) -> None:
    monitor.poll()
    clock.now += 0.5
    monitor.poll()  # the first rates
    clock.now += 0.5
    live = monitor.poll().live
    live.pop("events", None)  # the thread of the OCS's events has its own time
    assert live == {}


def test_circuits_are_read_when_the_ocs_reports_a_change(
    monitor: FabricMonitor, source: MemorySource, clock: Clock
) -> None:
    monitor.poll()
    source.light_of["r0"] = ring_circuits(source.fabric.regions[0])
    monitor._arrived.append({"ocs": "ocs0", "at": clock.now, "kind": "settled", "text": ""})
    clock.now += 0.5
    assert monitor.poll().live["circuits"] == {"r0": {"lit": source.light_of["r0"], "dark": []}}


def test_circuits_are_read_again_after_the_last_event_of_an_ocs(
    monitor: FabricMonitor, source: MemorySource, clock: Clock
) -> None:
    monitor.poll()
    monitor._arrived.append({"ocs": "ocs0", "at": clock.now, "kind": "settled", "text": ""})
    clock.now += 0.5
    monitor.poll()
    source.light_of["r0"] = ["s0/o0~s1/o0"]  # admitted after the event was read
    clock.now += 0.5
    assert "circuits" in monitor.poll().live


def test_a_failure_is_seen_at_the_next_reading(
    monitor: FabricMonitor, source: MemorySource, clock: Clock
) -> None:
    monitor.poll()
    source.fault("nic", ["s0/e0"])
    clock.now += 0.5
    changes = monitor.poll()
    assert changes.live["failures"] == [{"kind": "nic", "what": ["s0/e0"]}]
    assert "hardware" in changes.live
    events = changes.live["events"]
    assert isinstance(events, list)
    assert ("inject", "nic s0/e0") in [(event["kind"], event["text"]) for event in events]


def test_parts_of_a_run_change_apart(
    monitor: FabricMonitor, source: MemorySource, clock: Clock
) -> None:
    source.status = run_status(source.fabric)
    assert monitor.poll().live["demand"] == source.status["demand"]
    source.status = source.status | {"iteration": 8}
    clock.now += 0.5
    live = monitor.poll().live
    assert "demand" not in live
    assert live["run"] == {
        k: v for k, v in source.status.items() if k not in {"demand", "timeline"}
    }


def test_ocs_events_name_nics_instead_of_ports(monitor: FabricMonitor) -> None:
    event = monitor._ocs_event(
        {"ocs": "ocs0", "at_ns": 0, "kind": "changed", "made": [[1, 16], [4, 13]], "parted": []}
    )
    assert event["text"] == "connected s0/o0~s1/o0"


def test_rates_are_those_of_the_modelled_cluster(source: MemorySource) -> None:
    rates = PortRates(source.fabric)
    before = source.read_ports()
    after = source.read_ports()
    after.bytes[0, 0] = before.bytes[0, 0] + 12_500  # 100 kb in half a second, times 1000
    assert rates.since_last(10.0, before) is None
    reading = rates.since_last(10.5, after)
    assert reading is not None
    sent, received, light, eps = reading
    assert (sent[0], light, eps, max(received)) == (200, 200, 0, 0)


def test_proofs_of_light_are_no_traffic(source: MemorySource) -> None:
    rates = PortRates(source.fabric)
    before, after = source.read_ports(), source.read_ports()
    after.bytes[:] = before.bytes + 4 * 60
    after.frames[:] = before.frames + 4
    rates.since_last(10.0, before)
    reading = rates.since_last(10.5, after)
    assert reading is not None
    assert not any([*reading[0], *reading[1], *reading[2:]])


def test_time_without_a_reader_is_a_gap_in_the_history(
    monitor: FabricMonitor, clock: Clock
) -> None:
    history: list[tuple[float, int | None, int | None]] = []
    for pause_s in (0.5, 0.5, 35.0, 0.5):
        clock.now += pause_s
        state = monitor.poll().state
        assert "load" not in state or pause_s < 35, "a mean over the pause is no rate"
        history = state.get("history", history)  # type: ignore[assignment]
    times = [at for at, _, _ in history]
    assert times == [101.0, 101.001, 136.5]
    assert [light is None for _, light, _ in history] == [False, True, False]
    assert [eps is None for _, _, eps in history] == [False, True, False]


def test_a_fabric_that_has_ended_is_an_error(monitor: FabricMonitor, source: MemorySource) -> None:
    source.is_down = True
    with pytest.raises(FabricError):
        monitor.poll()
