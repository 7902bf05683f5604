"""Failures and relays at the controllers' door: what is answered to whom, and how long one is kept waiting."""

import json
import threading
import time
from http import HTTPStatus
from typing import Any

import pytest

from controller.control import Control
from controller.northbound import answer
from tests.fabrics import fabric
from tests.failure_bench import Bench


def asked(control: Control, path: str, body: Any = None) -> tuple[HTTPStatus, dict[str, Any]]:
    method = "GET" if body is None else "POST"
    status, said = answer(control, method, path, json.dumps(body).encode(), 0.0)
    return status, dict(said)


@pytest.fixture
def bench() -> Bench:
    return Bench(fabric(2, 2))


def eps_control(bench: Bench) -> Control:
    return Control(bench.fabric, None, bench.switches, None, recovery=bench.eps)


def test_who_asks_for_failures_gets_all_of_them_with_a_version(bench: Bench) -> None:
    control = bench.controls["r0"]
    assert asked(control, "/failures") == (HTTPStatus.OK, {"version": 0, "failures": []})
    bench.hear(["s1/o0"], up=False)
    status, said = asked(control, "/failures?after=0")
    assert status == HTTPStatus.OK
    assert [(one["what"], one["kind"]) for one in said["failures"]] == [("s1/o0", "optical-nic")]
    assert said["version"] > 0


def test_who_waits_is_told_as_soon_as_something_fails(bench: Bench) -> None:
    control, heard = bench.controls["r0"], list[dict[str, Any]]()
    waiting = threading.Thread(target=lambda: heard.append(asked(control, "/failures?after=0&wait=10")[1]))
    waiting.start()
    time.sleep(0.05)
    assert not heard
    bench.hear(["s1/e0"], up=False)
    waiting.join(5)
    assert heard[0]["failures"][0]["what"] == "s1/e0"


def test_nobody_is_kept_waiting_longer_than_asked_for(bench: Bench) -> None:
    began = time.monotonic()
    assert asked(bench.controls["r0"], "/failures?after=0&wait=0.1")[1]["failures"] == []
    assert 0.09 < time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/failures?after=now", None, "failures: after and wait are numbers"),
        ("/relay", {"region": "r0", "relays": {}}, "relays are for the EPS's controller"),
    ],
    ids=["no-number", "not-the-eps"],
)
def test_a_regions_controller_says_what_is_wrong_with_a_question(
    bench: Bench, path: str, body: Any, said: str
) -> None:
    status, answered = asked(bench.controls["r0"], path, body)
    assert status == HTTPStatus.BAD_REQUEST
    assert said in answered["error"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"relays": {}}, "a region's name and its `relays` are needed"),
        ({"region": "r0"}, "a region's name and its `relays` are needed"),
        ({"region": "r0", "relays": {"s0": "s9"}}, "s9: not in r0"),
    ],
    ids=["no-region", "no-relays", "a-stranger"],
)
def test_the_eps_takes_relays_of_a_regions_own_servers_alone(bench: Bench, body: Any, said: str) -> None:
    status, answered = asked(eps_control(bench), "/relay", body)
    assert status == HTTPStatus.BAD_REQUEST
    assert said in answered["error"]


def test_relays_are_shown_while_they_are_needed(bench: Bench) -> None:
    eps = eps_control(bench)
    asked(eps, "/relay", {"region": "r0", "relays": {"s0": "s1"}})
    assert asked(eps, "/relays")[1] == {"region": None, "relays": {}}  # s0 is reached directly
    bench.hear(["s0/e0", "s0/e1"], up=False)
    shown = [asked(control, "/relays")[1]["relays"] for control in (eps, bench.controls["r0"])]
    assert shown[0] == shown[1] != {}
