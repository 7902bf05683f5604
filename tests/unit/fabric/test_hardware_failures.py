"""Injected hardware failures: interfaces that go down, agents that stop, and refused requests."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from moefabric.core.errors import FabricError
from moefabric.core.failure_kinds import INJECTABLE, FailureKind
from moefabric.core.units import Scale
from moefabric.emulator.fabric.hardware_failures import HardwareFailures, failing_interfaces
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.runtime.run_directory import ManagementNetwork
from tests.support.fabrics import fabric

PLAN = plan_fabric(
    fabric(2, 1, regions=(2, 2), scale=Scale(1000.0)), ManagementNetwork("198.18.0.0/24")
)


@pytest.mark.parametrize(
    ("kind", "what", "down"),
    [
        (FailureKind.NIC, ["s0/e0"], {"s0-e0"}),
        (FailureKind.NIC, ["s0/o1", "s3/e0"], {"s0-o1", "s3-e0"}),
        (FailureKind.SERVER, ["s2"], {"s2-o0", "s2-o1", "s2-e0"}),
        (FailureKind.OCS, ["ocs1"], {"s2-o0", "s2-o1", "s3-o0", "s3-o1", "ocs1-mgmt"}),
    ],
    ids=["nic", "nics", "server", "ocs"],
)
def test_failure_takes_interfaces_of_component_down(
    kind: FailureKind, what: list[str], down: set[str]
) -> None:
    switched = dict[bool, set[str]]()

    def set_links(names: Iterable[str], *, up: bool) -> None:
        switched[up] = set(names)

    HardwareFailures(PLAN, lambda _server, _number: None, set_links).inject(kind, what)
    assert switched == {False: down, True: set()}


@pytest.mark.parametrize(
    ("json_request", "message"),
    [
        (
            {"inject": {"kind": "nic", "what": ["s9/e0"]}},
            "fault nic: s9/e0 is not one of s0/o0, s0/o1, s0/e0, ",
        ),
        (
            {"inject": {"kind": "server", "what": ["ocs0"]}},
            "fault server: ocs0 is not one of s0, s1, s2, s3",
        ),
        ({"inject": {"kind": "ocs", "what": ["s0"]}}, "fault ocs: s0 is not one of ocs0, ocs1"),
        ({"inject": {"kind": "nic", "what": []}}, "fault nic: of what?"),
        (
            {"inject": {"kind": "fibre", "what": ["s0/o0"]}},
            "fault: 'fibre' is not one of nic, server, ocs",
        ),
        ({"inject": {"kind": "nic", "what": "s0/e0"}}, "fault: 's0/e0' is no list of names"),
        ({"inject": ["s0/e0"]}, "fault: ['s0/e0'] has no kind"),
        ({"clear": {"kind": "nic", "what": ["s0/e0"]}}, "s0/e0: no such fault"),
    ],
    ids=["no-nic", "no-server", "no-ocs", "nothing", "no-kind", "no-list", "no-keys", "not-out"],
)
def test_wrong_json_requestis_refused_and_changes_nothing(
    json_request: Mapping[str, Any], message: str
) -> None:
    failures = HardwareFailures(PLAN, lambda _server, _number: None)
    with pytest.raises(FabricError) as error:
        failures.handle(json_request)
    assert str(error.value).startswith(message)
    assert failures.handle({})["faults"] == []


def test_what_has_failed_fails_once() -> None:
    failures = HardwareFailures(PLAN, lambda _server, _number: None, lambda *_names, **_up: None)
    for what in (["s0/o0"], ["s0/o0"], ["s0/o0", "s1/o0"]):
        failures.inject(FailureKind.NIC, what)
    present = failures.handle({})["faults"]
    assert [failure["what"] for failure in present] == [("s0/o0",), ("s1/o0",)]


def test_failure_on_a_lost_machine_is_refused_and_not_present() -> None:
    def set_links(names: Iterable[str], *, up: bool) -> None:
        if not up and set(names):
            raise FabricError("machine m1: silent for 20 s")

    failures = HardwareFailures(PLAN, lambda _server, _number: None, set_links)
    with pytest.raises(FabricError, match=r"^fault nic: s0/e0: machine m1: silent for 20 s$"):
        failures.inject(FailureKind.NIC, ["s0/e0"])
    assert failures.handle({})["faults"] == []
    assert failures.clear() == []


def test_every_kind_that_the_fabric_injects_has_its_injection() -> None:
    injected = {kind for kind in INJECTABLE if kind.traits.injection == "fabric"}
    assert injected == {*failing_interfaces(PLAN), FailureKind.OCS_PORT}


def test_failure_whose_agent_takes_no_signal_is_refused_and_leaves_links_on() -> None:
    switched = list[tuple[bool, set[str]]]()

    def set_links(names: Iterable[str], *, up: bool) -> None:
        if names := set(names):
            switched.append((up, names))

    def signal_agent(server: str, _number: int) -> None:
        raise FabricError(f"agents-0 takes no signal for {server}")

    failures = HardwareFailures(PLAN, signal_agent, set_links)
    with pytest.raises(FabricError, match="fault server: s2: agents-0 takes no signal for s2"):
        failures.inject(FailureKind.SERVER, ["s2"])
    links = {"s2-o0", "s2-o1", "s2-e0"}
    assert switched == [(False, links), (True, links)]
    assert failures.handle({})["faults"] == []
