"""`moefabric down` without a name removes what `up` left running, and no fabric of a run."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from moefabric.api.running_fabrics import removable_fabric
from moefabric.core.errors import FabricError, SpecError, UnsupportedError
from moefabric.emulator.fabric import node_commands
from moefabric.emulator.fabric.daemon_protocol import NODES
from moefabric.emulator.fabric.run_directories import hold, holder_pid, sole_check
from moefabric.runtime.run_directory import RunDirectory
from moefabric.ui.cli.fabric import ocs_port_lines
from tests.support.fabrics import fabric
from tests.support.run_folders import running as running_folders

_NOBODY = 65534
HOLD_FABRIC = """
import sys
from pathlib import Path
from moefabric.emulator.fabric.run_directories import hold
from moefabric.runtime.run_directory import RunDirectory
with hold(RunDirectory(Path(sys.argv[1]))):
    print(flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    "running",
    [pytest.param(["mine"], id="alone"), pytest.param(["a-run-7", "mine"], id="beside-a-run")],
)
def test_down_chooses_only_fabric_without_run(running: Sequence[str]) -> None:
    assert removable_fabric(running, {"a-run-7": 7}) == "mine"


@pytest.mark.parametrize(
    ("running", "message"),
    [
        pytest.param(
            ["a-run-7"],
            "a-run-7 (of process 7) is up: left to the run; "
            "`moefabric down NAME` removes it nevertheless",
            id="a-run",
        ),
        pytest.param(
            ["a-run-7", "mine", "yours"],
            "a-run-7 (of process 7), mine, yours are up: choose one with `moefabric down NAME`",
            id="several",
        ),
    ],
)
def test_down_refuses_ambiguous_fabric(running: Sequence[str], message: str) -> None:
    with pytest.raises(SpecError) as error:
        removable_fabric(running, {"a-run-7": 7})
    assert str(error.value) == message


def test_fabric_is_held_until_process_releases_it(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path)
    assert holder_pid(run_dir) is None
    with hold(run_dir):
        assert holder_pid(run_dir) == os.getpid()
    assert holder_pid(run_dir) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
@pytest.mark.parametrize("use", [hold, sole_check])
def test_a_fabric_of_another_user_is_refused(tmp_path: Path, use: Callable[..., Any]) -> None:
    os.seteuid(_NOBODY)
    try:
        with (
            pytest.raises(UnsupportedError, match="a fabric of another user's; run with sudo"),
            use(RunDirectory(tmp_path)),
        ):
            pass
    finally:
        os.seteuid(0)


def test_killed_process_releases_its_fabric(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_FABRIC, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert holder_pid(RunDirectory(tmp_path)) == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert holder_pid(RunDirectory(tmp_path)) is None


def port(number: int, state: str = "blocked", **more: object) -> dict[str, object]:
    given = {"port": number, "state": state, "admin": "enabled", "partner": None}
    return given | {"power_dbm": None, "label": ""} | more


def test_ports_of_an_ocs_are_aligned_and_name_the_direction() -> None:
    wired = fabric()
    ports = [
        port(1, "tuned", partner=16, power_dbm=0.0, label="rack 7"),
        port(4, "tuning", partner=13),
        port(5),
        port(6, admin="disabled"),
        port(13, "tuning", partner=4),
        port(16, "tuned", partner=1, power_dbm=-1.25),
        port(17, "tuned", partner=2, power_dbm=-60.0),
    ]
    assert ocs_port_lines(ports, wired, wired.regions[0], all_ports=False) == [
        "  port  fibre       state               to      power  label",
        "     1  from s0/o0  tuned               16    0.0 dBm  rack 7",
        "     4  from s1/o0  tuning              13",
        "     6  from s1/o2  blocked (disabled)",
        "    13  to s0/o0    tuning               4",
        "    16  to s1/o0    tuned                1   -1.2 dBm",
        "    17  to s1/o1    tuned (dark)         2  -60.0 dBm",
    ]
    everything = ocs_port_lines(ports, wired, wired.regions[0], all_ports=True)
    assert "     5  from s1/o1  blocked" in everything


def test_ocs_without_cross_connects_hints_at_all_ports() -> None:
    wired = fabric()
    lines = ocs_port_lines([port(1), port(2)], wired, wired.regions[0], all_ports=False)
    assert lines == ["  no cross-connects: --all lists the 2 ports"]


def test_unknown_node_is_neither_server_nor_ocs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_folders(tmp_path, monkeypatch, ["lab"]):
        (tmp_path / "lab" / NODES).write_text('{"s0": 1, "ocs0": 2}')
        monkeypatch.setattr(node_commands, "request", lambda *_: {})
        with pytest.raises(FabricError) as error:
            node_commands.network_argv("lab", "s9", ["true"])
    assert str(error.value) == "s9: lab has no such server or OCS; it has s0, ocs0"
