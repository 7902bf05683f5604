"""A whole fabric whose optical switch says that there is light where there is none: traffic never relies on its word alone."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from moefabric.cli import main
from tests.kernel.optical_bench import missing_for_kernel_tests

_LACKS = missing_for_kernel_tests() or ("" if shutil.which("mnexec") else "lacks mininet")
pytestmark = [pytest.mark.kernel, pytest.mark.skipif(bool(_LACKS), reason=_LACKS)]

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


def told(*words: str) -> str:
    done = run(*words)
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["scpi", "tl1", "restconf"])
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("proof")
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("MOEFABRIC_RUN_DIR", str(folder / "run"))
        (folder / "fabric.yaml").write_text(FABRIC.format(driver=request.param))
        told("up", str(folder / "fabric.yaml"))
        yield
        told("down", "proof")


@pytest.fixture
def healthy(up: None) -> Iterator[None]:
    """The fabric, whose optical switch is as it should be before a test and after it."""
    yield
    told("fault", "ocs", "--clear")


def inspected(*words: str) -> str:
    """What the command shows, as a process: it leaves connections to the controllers for its end to close."""
    command = [str(Path(sys.executable).with_name("moefabric")), "inspect", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def light(*circuits: str) -> tuple[list[str], list[str]]:
    said = json.loads(told("light", *circuits, "--json"))
    return said["circuits_after"], said["dark"]


@pytest.mark.usefixtures("healthy")
def test_a_path_that_lets_no_light_through_is_taken_out_and_found_again_when_it_is_healed() -> None:
    assert light(A, B) == ([A, B], [])
    told("fault", "ocs", "loss", "s1/o1~s2/o1", "--db", "60")
    assert light(A, C) == ([A], [C]), "one way of it is dark"
    seen = json.loads(inspected("--json"))["ocs"][0]
    assert (seen["circuits"], seen["dark"]) == ([A.split("~")], [C.split("~")])
    assert "dark: s1/o1~s2/o1" in inspected()
    told("fault", "ocs", "--clear")
    assert light(A, C) == ([A, C], [])
    assert json.loads(inspected("--json"))["ocs"][0]["dark"] == []


@pytest.mark.usefixtures("healthy")
def test_a_mirror_that_sticks_is_not_believed() -> None:
    assert light(A) == ([A], [])
    told("fault", "ocs", "stuck", "s0/o0")
    assert light("s0/o0~s2/o0", C) == ([C], ["s0/o0~s2/o0"])


@pytest.mark.usefixtures("healthy")
def test_a_switch_that_says_no_leaves_all_as_it_was() -> None:
    assert light(A) == ([A], [])
    told("fault", "ocs", "deny")
    done = run("light", B)
    assert done.exit_code == 1
    assert "ocs0 refuses" in done.stderr
    assert f"traffic is on {A}, all else on the EPS" in done.stderr
    told("fault", "ocs", "--clear")
    assert light(B) == ([B], [])
