"""A fabric whose OCS shows circuits without light: no traffic uses them."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from moefabric.runtime.failure_log import read_failure_log
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import Deadline
from moefabric.ui.cli.main import main
from tests.support.metric_samples import Scrape
from tests.support.namespaces import own_machine

FABRIC = """
fabric: proof
gpus_per_server: 2
nic_rate: 100Mb/s
nics: {{optical: 2, electrical: 1}}
regions:
  - servers: 3
    ocs: {{settle: 5ms, driver: {driver}}}
scale: {{bytes: 1}}
"""
A, B, C = "s0/o0~s1/o0", "s0/o1~s2/o0", "s1/o1~s2/o1"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def run_ok(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture(
    scope="module",
    params=[
        "scpi",
        *(pytest.param(other, marks=pytest.mark.nightly) for other in ("tl1", "restconf")),
    ],
)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("proof")
    with own_machine():
        (folder / "fabric.yaml").write_text(FABRIC.format(driver=request.param))
        run_ok("up", str(folder / "fabric.yaml"))
        yield
        run_ok("down", "proof")


@pytest.fixture
def healthy(up: None) -> Iterator[None]:
    """Yield the fabric; its OCS has no faults before and after a test."""
    yield
    run_ok("fault", "ocs", "--clear")


def inspected(*words: str) -> str:
    """Return the output of `inspect` as a process, whose end closes its connections."""
    command = [str(Path(sys.executable).with_name("moefabric")), "inspect", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def light(*circuits: str) -> tuple[list[str], list[str]]:
    result = run("light", *circuits, "--json")
    reply = json.loads(result.stdout)
    assert result.exit_code == bool(reply["dark"]), "scripts tell dark circuits by the status"
    return reply["circuits_after"], reply["dark"]


@pytest.mark.usefixtures("healthy")
def test_opaque_path_is_torn_down_and_used_after_repair() -> None:
    assert light(A, B) == ([A, B], [])
    run_ok("fault", "ocs", "loss", "s1/o1~s2/o1", "--db", "60")
    assert light(A, C) == ([A], [C]), "one way of it is dark"
    ocs = json.loads(inspected("--json"))["ocs"][0]
    assert (ocs["circuits"], ocs["dark"]) == ([A.split("~")], [C.split("~")])
    assert "dark: s1/o1~s2/o1" in inspected()
    run_ok("fault", "ocs", "--clear")
    assert light(A, C) == ([A, C], [])
    assert json.loads(inspected("--json"))["ocs"][0]["dark"] == []


@pytest.mark.usefixtures("healthy")
def test_stuck_mirror_gets_no_traffic() -> None:
    assert light(A) == ([A], [])
    run_ok("fault", "ocs", "stuck", "s0/o0")
    assert light("s0/o0~s2/o0", C) == ([C], ["s0/o0~s2/o0"])


@pytest.mark.usefixtures("healthy")
def test_refusal_leaves_circuits_and_rules() -> None:
    assert light(A) == ([A], [])
    run_ok("fault", "ocs", "reject")
    result = run("light", B)
    assert result.exit_code == 1
    assert "ocs0 refuses" in result.stderr
    assert f"traffic is on {A}, all else on the EPS" in result.stderr
    run_ok("fault", "ocs", "--clear")
    assert light(B) == ([B], [])


@pytest.mark.usefixtures("healthy")
def test_disabled_port_is_named_as_the_reason() -> None:
    ocs = json.loads(inspected("--json"))["ocs"][0]["management"]

    def command(line: str) -> None:
        with socket.create_connection((ocs, 5025), 5) as device:
            device.sendall(f"{line};*opc?\n".encode())
            assert device.recv(64).strip() == b"1"

    command(":oxc:swit:port:dis (@1,7)")
    try:
        result = run("light", A)
    finally:
        command(":oxc:swit:port:enab (@1,7)")
    reason = "no frame came through: port 1 of ocs0 is disabled, port 7 of ocs0 is disabled"
    assert f"dark: {A}: {reason}; its pair is on the EPS" in result.stdout
    assert result.exit_code == 1


@pytest.mark.usefixtures("healthy")
def test_ocs_without_power_has_no_light_and_is_the_reason() -> None:
    assert light(A) == ([A], [])
    since_ns = time.monotonic_ns()
    run_ok("fault", "ocs", "down")
    assert "no power: no port has light; `moefabric fault ocs --clear --ocs ocs0`" in run_ok("ocs")
    shown = json.loads(run_ok("ocs", "--json"))
    states = {(port["state"], port["partner"], port["power_dbm"]) for port in shown["ports"]}
    assert (shown["power"], states) == (False, {("failed", None, None)})
    scrape = Scrape(run_ok("metrics", "proof", "--once"))
    assert scrape.value("ocs_cross_connects", ocs="ocs0") == 0
    assert scrape.value("ocs_faults", ocs="ocs0") == 1

    def is_detected() -> bool:
        log = read_failure_log(RunDirectory.of_fabric("proof"))
        events = {(event.phase, event.kind) for event in log if event.at_ns > since_ns}
        return ("detected", "ocs") in events

    Deadline.after(20).wait_for(is_detected, "the detection")
    result = run("light", C)
    (dark,) = (line for line in result.stdout.splitlines() if line.startswith(f"dark: {C}: "))
    assert dark.endswith("ocs ocs0 has failed; its pair is on the EPS")  # NICs may have, too
    assert result.exit_code == 1


@pytest.mark.usefixtures("healthy")
def test_stopped_controller_is_named_at_once_with_the_remedy() -> None:
    run_ok("fault", "controller", "r0", "--stop")
    try:
        for words in (["light", A], ["light", "--none"]):
            started_s = time.monotonic()
            stopped = "the controller of r0 is stopped: `moefabric fault controller r0 --continue`"
            assert stopped in run(*words).stderr
            assert time.monotonic() - started_s < 20, "a request would wait for a minute"
        assert "controller r0" in run_ok("fault", "list")
    finally:
        run_ok("fault", "controller", "r0", "--continue")
    assert "controller" not in run_ok("fault", "list")
    assert light(A) == ([A], [])
