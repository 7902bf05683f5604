"""Light that goes away behind the controller's back: time until it is noticed, and what that costs.

Run alone: `pytest -s tests/bench/bench_lost_light.py`.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from statistics import median

import pytest

from moefabric import Lab, load_fabric
from moefabric.controller.client import ControllerClient
from moefabric.core.units import NS_PER_S
from moefabric.runtime.waiting import Deadline
from tests.bench.recording import record
from tests.support.namespaces import own_machine
from tests.support.paths import EXAMPLES

pytestmark = pytest.mark.kernel

LOSSES = 20
BOUND_S = 1.0
"""Period of the checks and the silence after which circuits count as dark, with what is left."""
LOAD_S = 10.0
FRAME_BYTES = 60


@contextmanager
def running(name: str, servers: int, nics: int, check: str) -> Iterator[Lab]:
    """Yield a fabric of one region whose light is checked at this interval."""
    ocs = f"{{settle: 25ms, light_check: {check}}}"
    settings = [
        f"regions=[{{servers: {servers}, ocs: {ocs}}}]",
        f"nics={{optical: {nics}, electrical: 1}}",
    ]
    fabric = load_fabric(EXAMPLES / "fabric.yaml", settings, fabric=name, scale={"bytes": 2000})
    with own_machine(), fabric.up() as lab:
        yield lab


def matching(servers: int, nics: int) -> list[str]:
    """Return circuits that end at all optical NICs."""
    pairs = [(2 * i, 2 * i + 1) for i in range(servers // 2)]
    return [f"s{a}/o{nic}~s{b}/o{nic}" for a, b in pairs for nic in range(nics)]


def disconnect_all(lab: Lab) -> None:
    address = lab.wiring.management.ocs_address(lab.fabric.regions[0])
    with socket.create_connection((address, 5025), 5) as ocs, ocs.makefile("rw") as lines:
        lines.write(":oxc:swit:disc:all;*opc?\n")
        lines.flush()
        assert lines.readline() == "1\n"


def phases_s(
    lab: Lab, client: ControllerClient, circuits: Sequence[str], *phases: str
) -> list[float]:
    """Take the light; return the seconds until the last circuit is in each of these phases."""
    lab.light(*circuits)
    version, before_ns = client.failures()["version"], time.monotonic_ns()
    disconnect_all(lab)
    while True:
        reply = client.failures(version, 10.0)
        version = reply["version"]
        new = [one for one in reply["failures"] if one["detected_ns"] > before_ns]
        if len(new) == len(circuits) and all(one[phase] for one in new for phase in phases):
            return [max(one[phase] - before_ns for one in new) / NS_PER_S for phase in phases]


def test_lost_light_is_noticed_within_a_second() -> None:
    circuits = matching(4, 3)
    with (
        running("noticed", 4, 3, "500ms") as lab,
        ControllerClient.of_region(lab.wiring, lab.fabric.regions[0]) as client,
    ):
        [lit_s] = phases_s(lab, client, circuits, "cleared_ns")
        times = [
            phases_s(lab, client, circuits, "detected_ns", "recovered_ns") for _ in range(LOSSES)
        ]
    noticed, avoided = (sorted(column) for column in zip(*times, strict=True))
    print(
        f"\n{LOSSES} losses of {len(circuits)} circuits: noticed p50 {median(noticed):.2f} s, "
        f"most {noticed[-1]:.2f} s; avoided p50 {median(avoided):.2f} s; the first was lit again "
        f"after {lit_s:.2f} s"
    )
    record("light that goes away by itself: noticed, p50", "s", samples=noticed, at_most=BOUND_S)
    record("light that goes away by itself: avoided, p50", "s", samples=avoided)
    assert median(noticed) <= BOUND_S


def cpu_share(lab: Lab) -> dict[str, float]:
    """Return the shares of a core that controllers and switches use while nothing happens."""
    with closing(lab.reader()) as reader:
        before, start_s = reader.processes()[""], time.monotonic()
        Deadline.after(LOAD_S + 1).wait_for(
            lambda: time.monotonic() - start_s >= LOAD_S, "the end of the measurement"
        )
        after, seconds = reader.processes()[""], time.monotonic() - start_s
    return {
        name: (after[name].cpu_s - used.cpu_s) / seconds
        for name, used in before.items()
        if name in after and ("controller" in name or "switch" in name)
    }


def test_checks_cost_little() -> None:
    for servers, nics in ((4, 3), (8, 6), (32, 6)):
        circuits, shares = matching(servers, nics), dict[str, dict[str, float]]()
        for check in ("0s", "500ms"):
            with running(f"load{servers}", servers, nics, check) as lab:
                lab.light(*circuits)
                shares[check] = cpu_share(lab)
        without, with_checks = (sum(one.values()) for one in shares.values())
        frames = 2 * len(circuits) / 0.5
        print(
            f"\n{servers} servers, {len(circuits)} circuits: {frames:.0f} frames/s, "
            f"{frames * FRAME_BYTES * 8 / 1e3:.0f} kb/s; controllers and switches use "
            f"{without:.2%} of a core without checks, {with_checks:.2%} with them"
        )
        name = "checks of light each half second, more of a core for controllers and switches"
        record(f"{name}: {len(circuits)} circuits", "%", with_checks - without, at_most=0.15)
        assert with_checks - without < 0.15
