"""A fabric whose OCS shows circuits without light: no traffic uses them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from moefabric.ui.cli.main import main
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
    reply = json.loads(run_ok("light", *circuits, "--json"))
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
