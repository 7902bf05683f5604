"""Mininet's objects, command line and example scripts on a fabric that is up."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moefabric import FabricError, Lab, load_fabric
from moefabric.core.errors import OutputError, SpecError
from moefabric.emulator.fabric.mininet_package import mininet_spec
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.runtime.waiting import Deadline
from tests.support.paths import EXAMPLES, REPOSITORY

pytestmark = [pytest.mark.usefixtures("own_machine")]
NODES = {"s0", "s1", "s2", "s3", "leaf0", "ocs0", "sw-s0", "sw-s1", "sw-s2", "sw-s3", "r0", "eps"}
ALL_PAIRS = "*** Results: 0% dropped (12/12 received)"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with load_fabric(EXAMPLES / "fabric.yaml", fabric="objects", scale={"bytes": 2000}).up() as lab:
        yield lab


@pytest.fixture
def net(lab: Lab) -> Iterator[Any]:
    with Lab.running(lab.name) as own:
        yield own.net


def printed(*argv: str | Path, script: str) -> str:
    """Run a program of this Python and return all that it prints; Mininet prints to its stderr.

    Args:
        argv: Arguments of the interpreter.
        script: What it reads.
    """
    ended = subprocess.run(
        [sys.executable, *argv],
        input=script,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def command_line(script: str, *names: str) -> str:
    """Run `moefabric mininet` with a script on its standard input."""
    return printed("-m", "moefabric", "mininet", *names, script=script)


def test_network_and_nodes_are_those_of_mininet(net: Any) -> None:
    from mininet.net import Mininet
    from mininet.node import Controller, Host, Switch

    assert isinstance(net, Mininet)
    assert set(net) == NODES
    assert all(isinstance(host, Host) for host in net.hosts)
    assert [host.name for host in net.hosts] == ["s0", "s1", "s2", "s3"]
    assert all(isinstance(switch, Switch) for switch in net.switches)
    assert all(isinstance(controller, Controller) for controller in net.controllers)
    [(near, far)] = net["sw-s0"].connectionsTo(net["leaf0"])
    assert (near.name, far.name) == ("s0-e0", "leaf0-p1")
    assert len(net["sw-s0"].connectionsTo(net["ocs0"])) == 3
    assert (net["s2"].IP(), net["s2"].MAC()) == ("10.0.2.1", "02:00:0a:00:02:01")


def test_commands_run_in_the_nodes_namespaces(net: Any) -> None:
    for name, interface in (("s0", "eth0"), ("leaf0", "leaf0-p1"), ("ocs0", "ocs0-p1")):
        assert f"{interface}@" in net[name].cmd("ip -br link")
        inside = net[name].cmd("readlink /proc/self/ns/net").strip()
        assert inside == str(Path(namespaces.path_of(net[name].pid)).readlink())
    output, _, status = net["s1"].pexec("hostname")
    assert (output.strip(), status) == ("s1", 0)
    assert net["r0"].cmd("readlink /proc/self/ns/net").strip() == str(
        Path("/proc/thread-self/ns/net").readlink()
    )
    assert net.pingPair() == 0


def test_interrupt_ends_a_command_of_a_node(net: Any) -> None:
    host = net["s0"]
    # The interrupted process itself says that it runs: a shell between two commands loses Ctrl-C.
    host.sendCmd("sh -c 'echo started; exec sleep 600'")
    assert "started" in host.monitor()
    host.sendInt()
    assert host.waitOutput() is not None
    assert host.cmd("echo again").strip() == "again"


def test_node_without_a_shell_is_reported(net: Any) -> None:
    net["s3"]._enter = lambda command: ["sh", "-c", f"echo {command[0]}: not found >&2; exit 127"]
    with pytest.raises(FabricError, match="s3: no shell without bash: bash: not found"):
        net["s3"].cmd("true")


def test_switches_show_their_flows_and_are_connected(net: Any) -> None:
    assert "nw_dst=10.0.1.0/24" in net["leaf0"].dpctl("dump-flows")
    assert net.waitConnected(timeout=5, delay=0.1)
    assert "SCPI" in net["ocs0"].dpctl("dump-flows")


def test_shells_start_when_used_and_end_with_the_network(lab: Lab) -> None:
    before = set(marked_pids(lab.name))
    with Lab.running(lab.name) as own:
        dump = repr(own.net["s0"])
        assert set(marked_pids(lab.name)) == before, f"{dump} needs no shell"
        own.net["s0"].cmd("sleep 600 &")
        assert len(set(marked_pids(lab.name)) - before) == 2
    Deadline.after(10).wait_for(  # a signal ends them, not at once
        lambda: set(marked_pids(lab.name)) == before, "the end of the shell and its program"
    )


def test_network_keeps_the_links_and_nodes_of_the_fabric(net: Any) -> None:
    link = net.links[0]
    with pytest.raises(FabricError, match="a fabric's links stay"):
        net.delLink(link)
    with pytest.raises(FabricError, match="bw: the fabric's file decides about links"):
        link.intf1.config(bw=10)
    for add in (net.addNAT, lambda: net.addHost("h1"), lambda: net.addLink("s0", "leaf0")):
        with pytest.raises(FabricError, match="a fabric has the nodes and links of its file"):
            add()
    assert net.pingPair() == 0


def test_script_on_standard_input_runs_mininets_commands_until_exit(lab: Lab) -> None:
    shown = command_line(
        "nodes\nnet\npingall\n# a comment\ns0 ping -c 1 s1\nsw-s0 ip -br link show s0-e0\n"
        "py net['s3'].IP()\nlinks\nexit\nnodes\n",
        lab.name,
    )
    assert shown.count("available nodes are") == 1, "nothing runs after `exit`"
    assert set(shown.splitlines()[1].split()) == NODES
    assert "sw-s0 lo:  s0-host:eth0 s0-o0:ocs0-p1" in shown
    assert ALL_PAIRS in shown
    assert "PING 10.0.1.1 (10.0.1.1)" in shown, "a name of a node is its address"
    assert "s0-e0@leaf0-p1" in shown
    assert "\n10.0.3.1\n" in shown
    assert "s0-e0<->leaf0-p1 (OK OK)" in shown
    assert Lab.running().name == lab.name, "the fabric runs on"


def test_iperf_measures_the_rate_of_a_nic(net: Any) -> None:
    received, sent = (float(rate.split()[0]) for rate in net.iperf(seconds=1))
    assert 30 < received <= 50  # a NIC's 50 Mb/s with headers
    assert sent >= received
    asked, received_of_it, _ = net.iperf(net.hosts[:2], l4Type="UDP", udpBw="5M", seconds=1)
    assert asked == "5M"
    assert 4 < float(received_of_it.split()[0]) < 6
    with net["s3"].popen("iperf3", "-s", "--forceflush", "-p", "5001") as other:
        assert any(b"listening" in line for line in other.stdout)
        with pytest.raises(FabricError, match="s3: iperf3"):
            net.iperf(seconds=1)
        other.terminate()


def test_link_down_is_a_failure_of_its_nics_as_by_fault(lab: Lab) -> None:
    command_line("link s0 leaf0 down\nlink ocs0 sw-s1 down\n")
    failed = [(entry["kind"], entry["what"]) for entry in lab.faults()]
    assert failed == [("nic", ["s0/e0"]), ("nic", ["s1/o0", "s1/o1", "s1/o2"])]
    command_line("link leaf0 s0 up\nlink s1 ocs0 up\n", "--name", lab.name)
    assert lab.faults() == []


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("link s0 s1 down", "s0 and s1: no NIC is between them"),
        ("link s0 leaf7 down", "leaf7: no such node; there are s0, s1"),
        ("link s0 leaf0 up", "s0/e0: no such fault"),
        ("switch leaf0 stop", "leaf0: a fabric's switches stay on"),
        ("source nofile", "source: nofile: No such file or directory"),
    ],
)
def test_what_a_fabric_can_not_do_is_refused(lab: Lab, command: str, answer: str) -> None:
    assert answer in command_line(f"{command}\n")
    assert lab.faults() == []


SCRIPTS = {
    "multiping": (
        "Mininet( topo=topo, waitConnected=True )",
        [f"s{i}: 10.0.{i}.1 -> 10.0.3.1 1 packets transmitted, 1 received" for i in range(3)]
        + ["s0: 10.0.0.1 -> 10.0.0.200 1 packets transmitted, 0 received"],
    ),
    "popen": (
        "Mininet( topo=mytopo, waitConnected=True )",
        [f"<s{i}>: 5 packets transmitted, 5 received" for i in range(4)],
    ),
    "tree1024": (
        f"TreeNet( depth=2, fanout=32, host=HostV4,\n{'':23}switch=OVSSwitch, waitConnected=True)",
        [ALL_PAIRS],
    ),
}
"""Scripts of Mininet's, with their construction of a network, and what they print on the fabric."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_mininets_own_script_runs_on_a_fabric(lab: Lab, name: str, tmp_path: Path) -> None:
    construction, expected = SCRIPTS[name]
    spec = mininet_spec()
    assert spec is not None
    assert spec.submodule_search_locations
    script = Path(spec.submodule_search_locations[0], "examples", f"{name}.py")
    if not script.is_file():
        pytest.skip(f"{script} is not there: apt install mininet")
    source = script.read_text()
    assert source.count(construction) == 1
    changed = tmp_path / script.name
    changed.write_text(
        "import moefabric\n" + source.replace(construction, f"moefabric.Lab({lab.name!r}).net")
    )
    shown = printed("-W", "ignore", changed, script="pingall\nexit\n")
    for text in expected:
        assert text in shown, shown
    assert lab.check().passed, "the script's `net.stop()` leaves the fabric as it is"


def test_custom_file_that_can_not_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from moefabric.api.mininet import custom_file

    monkeypatch.setenv("MOEFABRIC_RUN_DIR", "/proc/nowhere")
    with pytest.raises(
        OutputError, match=r"/proc/nowhere/mn\.py: there is no folder /proc/nowhere"
    ):
        custom_file()


def test_failed_mn_leaves_other_fabrics_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mininet's cleaning ends processes of the whole machine by their names."""
    from moefabric.api import mininet

    monkeypatch.setattr(mininet, "clean_machine", lambda: pytest.fail(f"{lab.name} runs"))
    mininet.cleanup()
    with pytest.raises(SpecError, match=r"name its file: `--topo fabric,FABRIC\.yaml`"):
        mininet.topos["fabric"]()


def test_absence_of_mininet_is_reported_with_the_remedy() -> None:
    source = """
        from moefabric.core.errors import UnsupportedError
        from moefabric.emulator.fabric import mininet_package
        mininet_package.mininet_spec = lambda: None
        try:
            from moefabric.emulator.fabric import mininet_nodes
        except UnsupportedError as error:
            print(error)
    """
    shown = printed("-W", "ignore", "-c", textwrap.dedent(source), script="")
    assert shown == "Mininet is missing: apt install mininet; see `moefabric doctor`\n"


def test_loggers_of_the_process_stay_what_they_are() -> None:
    source = """
        import logging
        from moefabric.emulator.fabric import mininet_nodes
        import mininet.log
        assert type(mininet.log.lg) is mininet.log.MininetLogger
        assert type(logging.getLogger("later")) is logging.Logger
    """
    printed("-W", "ignore", "-c", textwrap.dedent(source), script="")
