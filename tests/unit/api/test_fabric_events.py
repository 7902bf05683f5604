"""Events of OCSes and failures in one order, stored and new."""

import socket
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from moefabric.api.fabric_events import fabric_events
from moefabric.api.failure_injection import FailureInjection
from moefabric.api.ocs_events import event_line
from moefabric.emulator.ocs import client
from moefabric.emulator.ocs.event_publisher import EventPublisher
from moefabric.results.parts import Json
from moefabric.runtime.event_loop import IN, EventLoop
from moefabric.runtime.failure_log import append_failure_event
from moefabric.runtime.run_directory import RunDirectory
from tests.support.fabrics import fabric


class Recorded(FailureInjection):
    """A fabric whose OCS has recorded events."""

    fabric = fabric()

    def __init__(self, folder: Path, *ocs_events: Json) -> None:
        super().__init__(folder.name)
        self._folder, self._ocs_events = folder, ocs_events

    @property
    def run_directory(self) -> RunDirectory:
        return RunDirectory(self._folder)

    def events(self, *, follow: bool = False) -> Iterator[Json]:
        yield from self._ocs_events


@pytest.mark.parametrize("follow", [False, True])
def test_failures_are_between_the_events_of_the_ocses(tmp_path: Path, follow: bool) -> None:
    first, last = (
        {"ocs": "ocs0", "at_ns": at_ns, "kind": kind}
        for at_ns, kind in ((10, "started"), (30, "reboot"))
    )
    lab = Recorded(tmp_path, first, last)
    append_failure_event(lab.run_directory, "inject", "nic", ["s0/o0"], "by hand", at_ns=20)
    events = list(fabric_events(lab, follow=follow))
    assert events[::2] == [first, last]
    assert (events[1]["failure"], events[1]["what"]) == ("nic", ["s0/o0"])
    assert events[1]["at"].endswith("+00:00")
    line = event_line(events[1], lab.fabric)
    assert line.endswith("fabric inject         nic s0/o0: by hand")


def test_followed_events_are_all_there_though_a_later_line_is_earlier(tmp_path: Path) -> None:
    class Live(Recorded):
        def events(self, *, follow: bool = False) -> Iterator[Json]:
            yield {"ocs": "ocs0", "at_ns": 10, "kind": "started"}
            assert logged.wait(10)

    lab, logged = Live(tmp_path), threading.Event()
    append_failure_event(lab.run_directory, "inject", "nic", ["s0/e0"], at_ns=20)
    append_failure_event(lab.run_directory, "recovered", "electrical-nic", ["s0/e0"], at_ns=40)
    kinds = []
    for event in fabric_events(lab, follow=True):
        kinds.append(event["kind"])
        if event["kind"] == "recovered":
            append_failure_event(lab.run_directory, "detected", "nic", ["s0/e0"], at_ns=30)
            logged.set()
    assert kinds == ["started", "inject", "recovered", "detected"]


@pytest.mark.parametrize("follow", [False, True])
def test_stored_events_of_two_switches_are_in_order_of_time(
    monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    loop, ends = EventLoop(), dict[Path, socket.socket]()
    for name, instants in (("ocs0", (10, 30)), ("ocs1", (20, 40))):
        ends[Path(name)], theirs = socket.socketpair()
        publisher = EventPublisher(loop, lambda _request: False)
        for at_ns in instants:
            publisher.publish({"at_ns": at_ns, "kind": "settled"})
        publisher.accept(theirs)
    monkeypatch.setattr(client, "_connect", ends.__getitem__)
    stop, stopped = socket.socketpair()
    loop.watch(stopped.fileno(), IN, lambda _events: loop.stop())
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        events = client.events({str(path): path for path in ends}, follow=follow)
        found = [(name, event["at_ns"]) for name, event in islice(events, 4)]
        events.close()
    finally:
        stop.send(b"x")
        thread.join()
        stop.close()
        stopped.close()
        loop.close()
    assert found == [("ocs0", 10), ("ocs1", 20), ("ocs0", 30), ("ocs1", 40)]
