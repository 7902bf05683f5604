"""Mininet's `mn` with a fabric file.

After a failure `mn` kills the processes of all Mininet networks that it sees: here it sees only its
own, and has a /tmp of its own.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command_home import MOEFABRIC
from tests.support.paths import REPOSITORY
from tests.support.ryu import need_ryu

pytestmark = [pytest.mark.slow]
MN = shutil.which("mn") or ""
SCRIPT = """
mount -t tmpfs none /tmp
ip link set lo up
printf %s "$COMMANDS" > /tmp/commands
mn --custom $(moefabric mininet --custom-file) --pre /tmp/commands "$@" < /dev/null
echo "status $?, left:" /tmp/run/*
"""
FABRIC = ("--topo", "fabric,examples/fabric.yaml,fabric=mn,scale.bytes=2000", "--switch", "bpf")
OWN = ("--controller", "fabric")
RYU = ("--controller", "ryu,ryu.app.simple_switch_13", "--twait", "30")
ALL_PAIRS = "*** Results: 0% dropped (12/12 received)"
TWICE = "pingall+pingall"
"""Ryu's application may send its first flow after the first packets."""
END = "status 0, left: /tmp/run/mn.py"
"""The last line of an `mn` that has left no fabric."""


def mn(*words: str, commands: str = "") -> str:
    """Run `mn`, with a script of commands before its tests, and return what it prints."""
    if not MN:
        pytest.skip("mn not found; packaging/setup test installs it")
    own = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
    path = f"{Path(MOEFABRIC).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        [*own, "bash", "-c", SCRIPT, "bash", *words],
        cwd=REPOSITORY,
        env=os.environ | {"PATH": path, "MOEFABRIC_RUN_DIR": "/tmp/run", "COMMANDS": commands},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    return ended.stdout


def test_mn_makes_a_fabric_with_light_and_removes_it() -> None:
    commands = "sh moefabric light s0~s1\ns0 ping -c 1 s1\nsw-s0 ip -br link show s0-e0\n"
    shown = mn(*FABRIC, *OWN, "--test", "pingall", commands=commands)
    assert "lit: s0/o0~s1/o0" in shown, shown
    assert "1 packets transmitted, 1 received" in shown
    assert "s0-e0@leaf0-p1" in shown
    assert ALL_PAIRS in shown
    assert shown.splitlines()[-1] == END


def test_controller_of_mn_controls_the_switches_of_a_fabric() -> None:
    need_ryu()
    shown = mn(*FABRIC, *RYU, "--test", TWICE, commands="sh moefabric inspect\n")
    assert "controller of all  OpenFlow 198.18.0.1:6653  not the fabric's own" in shown, shown
    assert ALL_PAIRS in shown.split("testing ping reachability")[2]
    assert shown.splitlines()[-1] == END


def test_mn_makes_its_own_networks_of_bpf_switches() -> None:
    need_ryu()
    shown = mn("--topo", "tree,2", "--switch", "bpf", *RYU, "--test", TWICE)
    assert ALL_PAIRS in shown.split("testing ping reachability")[2], shown


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--topo", "fabric,nothing.yaml", "--switch", "bpf"), "nothing.yaml: No such file"),
        ((*FABRIC, "--host", "cfs"), "--host: the fabric's file decides about servers"),
        ((*FABRIC[:2], "--switch", "lxbr"), "--switch: LinuxBridge: a fabric has `bpf` or `ovs`"),
    ],
)
def test_what_contradicts_a_fabric_is_refused_and_nothing_else_is_cleaned(
    words: tuple[str, ...], refusal: str
) -> None:
    shown = mn(*words, *OWN, "--test", "pingall")
    assert refusal in shown, shown
    assert "Removing" not in shown, "Mininet's cleaning ends processes of all fabrics"
    assert shown.splitlines()[-1] == END


def test_remote_controller_at_another_port_is_refused() -> None:
    shown = mn(*FABRIC, "--controller", "remote,port=6633", "--test", "none")
    assert "--controller: switches of a fabric connect to port 6653" in shown, shown


def test_controllers_of_a_fabric_need_its_topology() -> None:
    shown = mn("--topo", "single,2", "--switch", "bpf", *OWN, "--test", "pingall")
    assert "--controller: fabric: needs `--topo fabric,FABRIC.yaml`" in shown
