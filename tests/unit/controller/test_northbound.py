"""The northbound interface: responses, errors and its client."""

import json
import socket
import threading
import time
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

from moefabric.controller.client import ControllerClient
from moefabric.controller.http_client import HttpClient, ResponseTimeoutError
from moefabric.controller.reconfiguration import Reconciler
from moefabric.controller.recovery.eps_recovery import EpsRecovery
from moefabric.controller.recovery.region_recovery import RegionRecovery
from moefabric.controller.service.controller import Controller
from moefabric.controller.service.northbound import respond
from moefabric.controller.southbound.openflow import green
from moefabric.core.circuits import CircuitSet, Transition
from moefabric.core.eps import Eps
from moefabric.core.errors import ControlError, MisconfiguredError
from moefabric.core.flows import Split
from moefabric.core.ocs import CrossConnectMode, Ocs
from moefabric.core.rules import Rule
from moefabric.core.topology import Fabric, Region
from moefabric.planner.mixnet import SPILL
from moefabric.runtime.structured_log import JsonFormatter
from tests.support import faulty_policies
from tests.support.background import call_at_once
from tests.support.memory_ocs import MemoryOcs
from tests.support.memory_switches import MemorySwitches
from tests.support.northbound import TOKEN, served

REGION = Region("r0", 0, ("s0", "s1", "s2"), Ocs("ocs0", 6, 0))
FABRIC = Fabric("f", (REGION,), 2, 2, 1, 100e9, Eps(4))
DEMAND = [[0, 9e9, 1e9], [9e9, 0, 2e9], [1e9, 2e9, 0]]
LIT = ["s0/o0~s1/o0", "s0/o1~s2/o0", "s1/o1~s2/o1"]


class ObservedSwitches(MemorySwitches):
    """Switches in memory as a controller observes its own."""

    @property
    def switches(self) -> tuple[str, ...]:
        return self.fabric.servers

    @property
    def ready(self) -> tuple[str, ...]:
        return tuple(switch for switch in self.fabric.servers if switch not in self.gone)

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(sorted(self.circuit_rules, key=lambda rule: rule.match))

    def counters(self) -> dict[str, list[Any]]:
        return {"s0": []}


class Bench:
    def __init__(self, wired: Fabric = FABRIC) -> None:
        region = wired.regions[0]
        self.ocs, self.switches = MemoryOcs(wired, region), ObservedSwitches(wired)
        reconciler = Reconciler(self.ocs, self.switches, call_at_once)
        recovery = RegionRecovery(wired, region, self.switches, reconciler)
        self.controller = Controller(recovery, self.switches)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, reply = respond(self.controller, method, path, raw, self.controller.clock())
        return status.value, json.loads(json.dumps(reply))


@pytest.fixture
def bench() -> Bench:
    new_bench = Bench()
    new_bench.controller.adopt()
    return new_bench


def test_demand_plans_and_lights_circuits(bench: Bench) -> None:
    status, reply = bench.ask(
        "POST", "/demand", {"demand": DEMAND, "policy": "mixnet", "servers": ["s0", "s1", "s2"]}
    )
    assert status == 200
    assert reply["plan"]["circuits"] == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert (reply["circuits_before"], reply["circuits_after"]) == ([], LIT)
    assert [str(circuit) for circuit in bench.ocs.circuits()] == LIT
    phases = reply["phases"]
    assert set(phases) == {
        "demand_s",
        "plan_s",
        "divert_s",
        "command_s",
        "settle_s",
        "verify_s",
        "admit_s",
        "total_s",
    }
    assert (
        phases["total_s"]
        >= sum(seconds for name, seconds in phases.items() if name != "total_s") * 0.99
        > 0
    )


def test_log_lines_have_the_id_of_the_reconfiguration(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(JsonFormatter("test"))
    caplog.set_level("INFO")
    with served(bench.controller) as address, ControllerClient(address, TOKEN) as client:
        client.light(LIT)
        client.light([])
    logged = [json.loads(line) for line in caplog.text.splitlines()]
    ids = [
        (line["logger"].rpartition(".")[2], line["reconfiguration"])
        for line in logged
        if "reconfiguration" in line
    ]
    first, second = ids[0][1], ids[-1][1]
    assert first != second
    assert ids == [(who, n) for n in (first, second) for who in ("client", "controller", "client")]


def test_demand_uses_mixnet_by_default(bench: Bench) -> None:
    assert bench.ask("POST", "/demand", {"demand": DEMAND})[1]["plan"]["policy"] == "mixnet"
    assert (
        bench.ask("POST", "/demand", {"demand": DEMAND, "policy": "eps"})[1]["circuits_after"] == []
    )


@pytest.mark.parametrize(
    ("policy", "why"),
    [("Raising", "ValueError: no idea"), ("Endless", "it took longer than 0.05 s")],
)
def test_region_of_a_policy_that_fails_is_left_to_the_eps(
    bench: Bench, policy: str, why: str
) -> None:
    reference = f"{faulty_policies.__name__}:{policy}"
    assert bench.ask("POST", "/demand", {"demand": DEMAND})[1]["circuits_after"] == LIT
    status, reply = bench.ask(
        "POST", "/demand", {"demand": DEMAND, "policy": reference, "plan_limit_s": 0.05}
    )
    assert status == 200
    assert reply["circuits_after"] == []
    assert reply["policy_fault"].startswith(f"policy {reference} failed: {why}")
    assert {share["light_bytes"] for share in reply["plan"]["split"]} == {0.0}
    bench.controller.relight()
    assert bench.ask("GET", "/circuits")[1]["circuits"] == []
    reply = bench.ask("POST", "/demand", {"demand": DEMAND})[1]
    assert (reply["circuits_after"], reply["policy_fault"]) == (LIT, "")


def test_policy_of_others_splits_once_traffic_is_on_its_circuits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its split may take longer than light takes to settle."""
    rules = list[tuple[Rule, ...]]()

    def split(_self: object, *arguments: Any) -> Split:
        rules.append(bench.switches.rules)
        return SPILL.split(*arguments)

    monkeypatch.setattr(faulty_policies.Sound, "split", split)
    request = {"demand": DEMAND, "policy": f"{faulty_policies.__name__}:Sound"}
    assert bench.ask("POST", "/demand", request)[1]["circuits_after"] == LIT
    assert rules == [bench.switches.rules]


def test_demand_moves_circuits_only_where_the_all_to_alls_to_come_make_up_for_it() -> None:
    """Ten milliseconds of settling against a millisecond in each all-to-all."""
    ocs = Ocs("ocs0", 6, 10_000_000)
    slow = Bench(replace(FABRIC, regions=(replace(REGION, ocs=ocs),)))
    slow.controller.adopt()
    lit = ["s0/o0~s2/o0", "s1/o0~s2/o1"]
    slow.ask("POST", "/light", {"circuits": lit})
    request = {"demand": [[0, 3e7, 0], [3e7, 0, 0], [0, 0, 0]], "policy": "joint"}
    few, many = ({"alike": count, "left": count} for count in (2, 200))
    assert slow.ask("POST", "/demand", request | {"all_to_alls": few})[1]["circuits_after"] == lit
    moved = slow.ask("POST", "/demand", request | {"all_to_alls": many})[1]["circuits_after"]
    assert moved == ["s0/o0~s1/o0", "s0/o1~s1/o1"]


def test_light_lights_exactly_the_named_circuits(bench: Bench) -> None:
    bench.ask("POST", "/demand", {"demand": DEMAND})
    status, reply = bench.ask("POST", "/light", {"circuits": ["s2/o1~s0/o1"]})
    assert (status, reply["circuits_before"], reply["circuits_after"], reply["plan"]) == (
        200,
        LIT,
        ["s0/o1~s2/o1"],
        None,
    )
    shown = {"circuits": ["s0/o1~s2/o1"], "dark": [], "requested": ["s0/o1~s2/o1"]}
    assert bench.ask("GET", "/circuits") == (200, shown)


def test_light_accepts_a_demand(bench: Bench) -> None:
    assert bench.ask("POST", "/light", {"demand": DEMAND})[1]["circuits_after"] == LIT


def test_rules_lists_the_rules_of_switches(bench: Bench) -> None:
    bench.ask("POST", "/light", {"circuits": ["s0/o0~s1/o0"]})
    assert bench.ask("GET", "/rules")[1]["rules"][0] == {
        "switch": "s0",
        "to": "s1",
        "out": "s0/o0",
        "path": None,
        "light": True,
        "spread": [],
    }


def test_health_shows_missing_switches() -> None:
    bench = Bench()
    bench.switches.gone = {"s1"}
    assert bench.ask("GET", "/health") == (
        200,
        {
            "region": "r0",
            "ready": False,
            "switches": ["s0", "s2"],
            "expected": ["s0", "s1", "s2"],
            "ocs": False,
        },
    )
    bench.switches.gone = set()
    bench.controller.adopt()
    assert bench.ask("GET", "/health")[1]["ready"] is True


MALFORMED_DEMANDS: dict[str, tuple[dict[str, Any], str]] = {
    "not-square": ({"demand": [[0, 1]]}, "demand: 3 servers need a 3x3 matrix"),
    "unequal-rows": (
        {"demand": [[0, 1, 2], [1, 0], [2, 1, 0]]},
        "demand[1]: 2 numbers in this row, 3 servers need 3",
    ),
    "negative": ({"demand": [[0, -1, 0]] * 3}, "demand: [0][1]: -1 is not a number of bytes"),
    "words": ({"demand": [["a"] * 3] * 3}, "demand: could not convert"),
    "a-word": ({"demand": "all"}, "demand: "),
    "policy": ({"demand": DEMAND, "policy": "best"}, "policy: 'best' is not one of eps"),
    "all-to-alls": (
        {"demand": DEMAND, "all_to_alls": {"alike": 0, "left": 8}},
        "all_to_alls: two numbers above zero are needed, alike and left",
    ),
    "all-to-alls-number": (
        {"demand": DEMAND, "all_to_alls": 8},
        "all_to_alls: two numbers above zero are needed, alike and left",
    ),
    "policy-number": ({"demand": DEMAND, "policy": 1}, "policy: a name is needed, not 1"),
    "no-time": (
        {"demand": DEMAND, "plan_limit_s": 0},
        "plan_limit_s: seconds above zero are needed, not 0",
    ),
    "too-much-time": (
        {"demand": DEMAND, "plan_limit_s": 10**400},
        "plan_limit_s: at most 20 s are possible",
    ),
    "many-digits": ({"demand": [[0, 10**400, 0]] * 3}, "demand: int too large"),
    "many-bytes": ({"demand": [[0, 1e308, 0]] * 3}, "demand: at most 1e+24 bytes are possible"),
    "many-all-to-alls": (
        {"demand": DEMAND, "all_to_alls": {"alike": 10**400, "left": 8}},
        "all_to_alls: two numbers above zero are needed",
    ),
    "strangers": ({"demand": DEMAND, "servers": ["s0", "s1", "s9"]}, "servers: s0, s1, s9 are not"),
    "servers-number": ({"demand": DEMAND, "servers": 3}, "servers: a list of names"),
}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        pytest.param(
            "GET",
            "/nothing",
            None,
            404,
            "/nothing: there are /health /circuits",
            id="no-such-place",
        ),
        pytest.param("POST", "/health", {}, 405, "/health is for GET", id="post-to-a-query"),
        pytest.param("GET", "/demand", None, 405, "/demand is for POST", id="get-of-a-command"),
        pytest.param("POST", "/demand", b"{", 400, "not JSON: ", id="no-json"),
        pytest.param("POST", "/demand", [1], 400, "a JSON object is needed", id="no-object"),
        pytest.param("POST", "/demand", {}, 400, "demand: missing", id="no-demand"),
        pytest.param(
            "POST",
            "/light",
            {"circuit": ["s0/o0~s1/o0"]},
            400,
            "circuit: is not a key here; keys are: circuits, demand",
            id="unknown-key",
        ),
        pytest.param("POST", "/light", b"[" * 100_000, 400, "not JSON: ", id="deep-json"),
        pytest.param(
            "GET", "/failures?wait=nan", None, 400, "wait is a number of seconds", id="wait"
        ),
        pytest.param(
            "POST", "/light", {"circuits": "all"}, 400, "circuits: a list of names", id="no-list"
        ),
        pytest.param(
            "POST",
            "/light",
            {"circuits": ["s0~s1"]},
            400,
            "'s0~s1' is not a circuit such as s0/o0~s3/o2",
            id="servers-of-a-circuit",
        ),
        pytest.param(
            "POST",
            "/light",
            {"circuits": LIT, "policy": "joint"},
            400,
            "policy: has no effect beside circuits",
            id="circuits-and-policy",
        ),
        pytest.param("POST", "/light", {}, 400, "circuits: is missing, and so is d", id="nothing"),
        pytest.param(
            "POST",
            "/light",
            {"circuits": ["s0/o0"]},
            400,
            "circuits: 's0/o0' is not a circuit",
            id="half-a-circuit",
        ),
        pytest.param(
            "POST",
            "/light",
            {"circuits": ["s0/o0~s1/o0", "s0/o0~s2/o0"]},
            400,
            "more than one circuit would end at s0/o0",
            id="clash",
        ),
        pytest.param(
            "POST",
            "/light",
            {"circuits": ["s0/o7~s9/o0"]},
            400,
            "s0/o7, s9/o0: not an optical NIC of r0, which has s0/o0, s0/o1, s1/o0",
            id="no-such-nic",
        ),
        *(
            pytest.param("POST", "/demand", body, 400, error, id=fault)
            for fault, (body, error) in MALFORMED_DEMANDS.items()
        ),
    ],
)
def test_malformed_requests_are_refused_in_one_line_and_change_nothing(
    bench: Bench, method: str, path: str, body: Any, status: int, error: str
) -> None:
    bench.ask("POST", "/light", {"circuits": LIT})
    reply = bench.ask(method, path, body)
    assert reply[0] == status
    assert error in reply[1]["error"]
    assert "\n" not in reply[1]["error"]
    assert bench.ask("GET", "/circuits")[1]["circuits"] == LIT


def test_refusal_of_a_device_is_status_503(bench: Bench) -> None:
    bench.ocs.refusal = '-222,"Data out of range"'
    status, reply = bench.ask("POST", "/demand", {"demand": DEMAND})
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    assert reply["error"].startswith(
        'ocs0 refuses: -222,"Data out of range"; nothing has changed; traffic is on no light'
    )


def test_eps_controller_refuses_demands() -> None:
    switches = ObservedSwitches(FABRIC)
    controller = Controller(EpsRecovery(FABRIC, switches), switches)
    status, reply = respond(controller, "POST", "/demand", b'{"demand": []}', 0.0)
    assert (status.value, reply) == (
        400,
        {"error": "the EPS has no OCS, so there is no light to change"},
    )
    assert respond(controller, "GET", "/health", b"", 0.0)[1]["ready"] is True


def test_client_keeps_its_connection_open(bench: Bench) -> None:
    with served(bench.controller) as address, ControllerClient(address, TOKEN) as client:
        assert client.wait_ready(5)["ready"] is True
        connection = client._http.sock
        assert client.demand(DEMAND, "spill")["circuits_after"] == LIT
        with pytest.raises(ControlError, match="policy: 'best' is not one of"):
            client.demand(DEMAND, "best")
        assert client.light([])["circuits_before"] == LIT
        assert (client.circuits(), client.rules(), client.counters()) == ([], [], {"s0": []})
        assert client._http.sock is connection


class Crowded(MemoryOcs):
    """An OCS that is slow and counts concurrent commands."""

    inside = most = 0

    def reconfigure(
        self, transition: Transition, mode: CrossConnectMode = CrossConnectMode.SAFE
    ) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        green.sleep(0.02)
        super().reconfigure(transition, mode)
        self.inside -= 1


def test_concurrent_reconfigurations_are_serialised() -> None:
    ocs, switches = Crowded(FABRIC, REGION), ObservedSwitches(FABRIC)
    recovery = RegionRecovery(FABRIC, REGION, switches, Reconciler(ocs, switches, call_at_once))
    controller = Controller(recovery, switches, green.lock())
    lit: list[str] = []

    def ask(address: tuple[str, int], names: list[str]) -> None:
        with ControllerClient(address, TOKEN) as client:
            lit.extend(
                " ".join(client.light(circuits)["circuits_after"]) for circuits in (names, [])
            )

    with served(controller) as address:
        threads = [
            threading.Thread(target=ask, args=(address, names)) for names in (LIT[:1], LIT[1:], LIT)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert len(lit) == 6
    assert ocs.most == 1


def test_wait_ready_ends_at_its_deadline() -> None:
    with (
        ControllerClient(("127.0.0.1", 1), TOKEN) as client,
        pytest.raises(ControlError, match=r"127.0.0.1:1: not ready within 0.1 s: (?i:.*refused)"),
    ):
        client.wait_ready(0.1)


class OtherDevice(MemoryOcs):
    """An OCS that isn't the one of the fabric's file."""

    def circuits(self) -> CircuitSet:
        raise MisconfiguredError("ocs0: the device has 8 inputs: set ocs.ports: 8")


def test_wait_ready_ends_at_once_if_waiting_does_not_help() -> None:
    switches = ObservedSwitches(FABRIC)
    reconciler = Reconciler(OtherDevice(FABRIC, REGION), switches, call_at_once)
    controller = Controller(
        RegionRecovery(FABRIC, REGION, switches, reconciler), switches, green.lock()
    )
    with pytest.raises(MisconfiguredError):
        controller.adopt()
    with served(controller) as address, ControllerClient(address, TOKEN) as client:
        started_s = time.monotonic()
        with pytest.raises(ControlError, match=r"^ocs0: the device has 8 inputs: set ocs"):
            client.wait_ready(60)
        assert time.monotonic() - started_s < 30


class MuteDevice(MemoryOcs):
    """An OCS that speaks another protocol."""

    def circuits(self) -> CircuitSet:
        raise ResponseTimeoutError("ocs0 at 192.0.2.1:5025: no answer to ACT-USER within 2 s")


def test_ocs_that_does_not_answer_may_speak_another_protocol() -> None:
    switches = ObservedSwitches(FABRIC)
    reconciler = Reconciler(MuteDevice(FABRIC, REGION), switches, call_at_once)
    controller = Controller(RegionRecovery(FABRIC, REGION, switches, reconciler), switches)
    with pytest.raises(ResponseTimeoutError):
        controller.adopt()
    remedy = "; if it speaks another protocol, set ocs.driver or ocs.port"
    assert controller.health()["fault"].endswith(f"within 2 s{remedy}")


def test_wait_ready_ends_with_the_fabric() -> None:
    def refuse() -> None:
        raise ControlError("small: was taken down")

    with (
        ControllerClient(("127.0.0.1", 1), TOKEN) as client,
        pytest.raises(ControlError, match="small: was taken down"),
    ):
        client.wait_ready(60, refuse)


def test_request_leaves_in_one_piece() -> None:
    """A controller that has the headers would otherwise wait for the body."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = HttpClient("peer", listener.getsockname()[:2], 5.0)
        sent: list[bytes] = []
        client.connect()
        assert client.sock is not None
        client.sock = RecordingSocket(client.sock, sent)
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            assert client.exchange("POST", "/light", {"circuits": []}) == (200, b"{}")
        client.close()
    assert len(sent) == 1
    assert sent[0].endswith(b'\r\n\r\n{"circuits": []}')


class RecordingSocket:
    """A socket that records what is sent."""

    def __init__(self, real: socket.socket, sent: list[bytes]) -> None:
        self._real, self._sent = real, sent

    def sendall(self, data: bytes) -> None:
        self._sent.append(bytes(data))
        self._real.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
