"""Northbound requests about failures and relays."""

import json
import threading
import time
from http import HTTPStatus
from typing import Any

import pytest

from moefabric.controller.service.controller import Controller
from moefabric.controller.service.northbound import respond
from tests.support.fabrics import fabric
from tests.support.recovery_bench import Bench


def send_request(
    controller: Controller, path: str, body: Any = None
) -> tuple[HTTPStatus, dict[str, Any]]:
    method = "GET" if body is None else "POST"
    status, message = respond(controller, method, path, json.dumps(body).encode(), 0.0)
    return status, dict(message)


@pytest.fixture
def bench() -> Bench:
    return Bench(fabric(2, 2))


def eps_control(bench: Bench) -> Controller:
    return Controller(bench.eps, bench.switches)


def test_failures_lists_all_with_a_version(bench: Bench) -> None:
    controller = bench.controllers["r0"]
    unknown = {"version": 0, "failures": [], "circuits": None}
    assert send_request(controller, "/failures") == (HTTPStatus.OK, unknown)
    bench.deliver(["s1/o0"], up=False)
    status, message = send_request(controller, "/failures?after=0")
    assert status == HTTPStatus.OK
    assert [(one["what"], one["kind"]) for one in message["failures"]] == [("s1/o0", "optical-nic")]
    assert message["version"] > 0


def test_failures_replies_when_something_fails(bench: Bench) -> None:
    controller, replies = bench.controllers["r0"], list[dict[str, Any]]()
    waiting = threading.Thread(
        target=lambda: replies.append(send_request(controller, "/failures?after=0&wait=10")[1])
    )
    waiting.start()
    time.sleep(
        0.05
    )  # nobody tells that somebody waits; were it too short, less would be asked here
    assert not replies
    bench.deliver(["s1/e0"], up=False)
    waiting.join(30)
    assert replies[0]["failures"][0]["what"] == "s1/e0"


def test_failures_waits_no_longer_than_requested(bench: Bench) -> None:
    began = time.monotonic()
    assert send_request(bench.controllers["r0"], "/failures?after=0&wait=0.1")[1]["failures"] == []
    assert 0.09 < time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/failures?after=now", None, "failures: after and wait are numbers"),
        ("/relay", {"region": "r0", "relays": {}}, "relays are for the EPS's controller"),
    ],
    ids=["no-number", "not-the-eps"],
)
def test_region_controller_refuses_malformed_requests(
    bench: Bench, path: str, body: Any, message: str
) -> None:
    status, reply = send_request(bench.controllers["r0"], path, body)
    assert status == HTTPStatus.BAD_REQUEST
    assert message in reply["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"relays": {}}, "a region's name and its `relays` are needed"),
        ({"region": "r0"}, "a region's name and its `relays` are needed"),
        ({"region": "r0", "relays": {"s0": "s9"}}, "s9: not in r0"),
    ],
    ids=["no-region", "no-relays", "a-stranger"],
)
def test_eps_controller_refuses_unknown_relays(bench: Bench, body: Any, message: str) -> None:
    status, reply = send_request(eps_control(bench), "/relay", body)
    assert status == HTTPStatus.BAD_REQUEST
    assert message in reply["error"]


def test_relays_are_listed_while_needed(bench: Bench) -> None:
    eps = eps_control(bench)
    send_request(eps, "/relay", {"region": "r0", "relays": {"s0": "s1"}})
    assert send_request(eps, "/relays")[1] == {
        "region": None,
        "relays": {},
    }  # s0 is reached directly
    bench.deliver(["s0/e0", "s0/e1"], up=False)
    shown = [
        send_request(controller, "/relays")[1]["relays"]
        for controller in (eps, bench.controllers["r0"])
    ]
    assert shown[0] == shown[1] != {}
