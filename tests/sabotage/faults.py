"""The deliberate faults, each with the culprit that a verdict's reasons have to name."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_network
from typing import Any, Final

from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import Failure
from moefabric.emulator.fabric.shaping import burst_bytes
from moefabric.emulator.ocs import client as ocs_client
from moefabric.testbed import failure_injection
from tests.sabotage.sabotage_lab import RunningFabric, Sabotage
from tests.support.openflow_lab import flow_mod, flows_request, output

_OUTPUT: Final = 0
_DELETE_STRICT: Final = 4
"""OFPAT_OUTPUT and OFPFC_DELETE_STRICT of OpenFlow 1.3."""
_BURSTS: Final = """
import os, time
os.nice(-20)
while True:
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    time.sleep(0.1)
"""
_FOREIGN_TRAFFIC: Final = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
payload, start, sent = bytes(1400), time.monotonic(), 0
while True:
    sender.sendto(payload, (sys.argv[1], 9))
    sent += 1442
    time.sleep(max(0.0, start + 8 * sent / float(sys.argv[2]) - time.monotonic()))
"""


def _program(fabric: RunningFabric, *argv: str) -> None:
    """Start a program that ends with the run."""
    program = subprocess.Popen(argv)
    fabric.undo.callback(program.wait)
    fabric.undo.callback(program.kill)


def _delete_rules(switch: str, is_culprit: Callable[[Any, set[int]], bool]) -> Callable[..., None]:
    """Return a function that deletes a switch's rules, chosen by destination and ports."""

    def delete(fabric: RunningFabric) -> None:
        with fabric.switch(switch) as peer:
            for entry in peer.statistics(flows_request()):
                if "ipv4_dst" not in entry.match:
                    continue
                prefix = ip_network("/".join(entry.match["ipv4_dst"]))
                ports = {
                    action.port
                    for instruction in entry.instructions
                    for action in getattr(instruction, "actions", ())
                    if action.type == _OUTPUT
                }
                if is_culprit(str(prefix), ports):
                    peer.after(flow_mod(entry.priority, match=entry.match, command=_DELETE_STRICT))

    return delete


def _crowd_spine(fabric: RunningFabric) -> None:
    """Let all leaves send by the first spine what their rules send by the second."""
    for leaf in fabric.fabric.leaves:
        ports = fabric.fabric.openflow.ports(leaf)
        with fabric.switch(leaf) as peer:
            for entry in peer.statistics(flows_request()):
                actions = [
                    action
                    for instruction in entry.instructions
                    for action in getattr(instruction, "actions", ())
                ]
                if [getattr(action, "port", None) for action in actions] == [ports["spine1"]]:
                    peer.after(flow_mod(entry.priority, [output(ports["spine0"])], entry.match))


def _swap_circuits(fabric: RunningFabric) -> None:
    """Swap the far ends of two circuits at the OCS, as an operator would by mistake."""
    inputs, outputs = (
        part.strip("()@").split(",") for part in fabric.scpi(":oxc:swit:conn:stat?").split("),(")
    )
    swapped = [outputs[1], outputs[0], *outputs[2:]]
    fabric.scpi(f":oxc:swit:conn:only (@{','.join(inputs)}),(@{','.join(swapped)});*opc?")


def _inject(kind: str, **fields: Any) -> Callable[[RunningFabric], None]:
    """Return a function that injects a fault into the OCS itself, behind the project's log."""

    def inject(fabric: RunningFabric) -> None:
        fault = {"kind": kind, "ports": [], "value": 0.0, "times": None, **fields}
        socket_path = fabric.run_dir.ocs_socket(fabric.fabric.regions[0])
        ocs_client.request(socket_path, {"do": "inject", "fault": fault})

    return inject


def _refuse_after_a_failure(fabric: RunningFabric) -> None:
    """Let the OCS refuse commands, and let a NIC fail for a moment by the project's own log."""
    _inject("reject")(fabric)
    failure = Failure(FailureKind.NIC, ("s1/o0",))
    failure_injection.inject(fabric.run_dir, failure)
    failure_injection.clear(fabric.run_dir, failure)


def _resume(pid: int) -> None:
    with suppress(ProcessLookupError):  # the end of the fabric has killed it
        os.kill(pid, signal.SIGCONT)


def _stop_switches(fabric: RunningFabric) -> None:
    """Stop the switches' process until the run's end."""
    pid = fabric.process("switches")
    os.kill(pid, signal.SIGSTOP)
    fabric.undo.callback(_resume, pid)


def _stop_controller(fabric: RunningFabric) -> None:
    """Stop the region's controller until the run's end."""
    pid = int(fabric.run_dir.controller_pid_file(fabric.fabric.regions[0]).read_text())
    os.kill(pid, signal.SIGSTOP)
    fabric.undo.callback(_resume, pid)


def _shorten_queue(fabric: RunningFabric) -> None:
    """Let the NICs of s1 queue two frames at most."""
    for nic in ("s1/o0", "s1/o1", "s1/e0"):
        for node, interface in fabric.ends(nic):
            words = f"tc qdisc replace dev {interface} parent 1:1 handle 10: pfifo limit 2"
            fabric.command(node, *words.split())


def _lengthen_queue(fabric: RunningFabric) -> None:
    """Give the queue of an electrical NIC ten times its room."""
    for node, interface in fabric.ends("s1/e0"):
        words = f"tc qdisc change dev {interface} parent 1:1 handle 10: pfifo limit 1000"
        fabric.command(node, *words.split())


def _set_limits(ceil: float = 1, burst: float = 1) -> Callable[[RunningFabric], None]:
    """Return a function that sets ceil and burst of a NIC's link, relative to the planned ones."""

    def change(fabric: RunningFabric) -> None:
        rate = fabric.fabric.scale.rate_bps(fabric.fabric.nic_rate_bps)
        most = burst * burst_bytes(rate)
        limits = f"rate {rate:.0f}bit ceil {ceil * rate:.0f}bit"
        limits += f" burst {most:.0f} cburst {ceil * most:.0f}"
        for node, interface in fabric.ends("s1/o0"):
            words = f"tc class change dev {interface} parent 1: classid 1:1 htb {limits}"
            fabric.command(node, *words.split())

    return change


def _hog_cpu(fabric: RunningFabric) -> None:
    for _ in range(os.cpu_count() or 1):
        _program(fabric, sys.executable, "-S", "-c", _BURSTS)


def _send_foreign_traffic(fabric: RunningFabric) -> None:
    """Send datagrams from s2 to s1 at a fifth of a NIC's rate."""
    rate = 0.2 * fabric.fabric.scale.rate_bps(fabric.fabric.nic_rate_bps)
    address = fabric.fabric.addressing.addresses("s1")[0]
    argv = (sys.executable, "-S", "-c", _FOREIGN_TRAFFIC, address, str(rate))
    _program(fabric, *fabric.argv("s2", *argv))


SABOTAGE: Final = (
    Sabotage(
        "circuit-by-eps",
        "rules are deleted: a circuit's traffic goes by the EPS",
        r"s0 to s\d by o\d: planned",
        begin=_delete_rules("s0", lambda _prefix, ports: ports <= {2, 3}),
        repeat=True,
    ),
    Sabotage(
        "missing-rule",
        "the EPS loses its rule for a server",
        r"s1 (by|to)",
        begin=_delete_rules("leaf0", lambda prefix, _ports: prefix == "10.0.1.0/24"),
    ),
    Sabotage(
        "nic-half-rate",
        "a NIC runs at half its rate",
        r"goodput .*\(s1/o0 to ocs",
        begin=lambda fabric: fabric.set_rate("s1/o0", 0.5),
    ),
    Sabotage(
        "nic-103-percent",
        "a NIC runs at 103 % of its rate",
        r"s1/o0: .*shaped",
        begin=lambda fabric: fabric.set_rate("s1/o0", 1.03),
    ),
    Sabotage(
        "eps-port-90-percent",
        "an electrical NIC runs at 90 % of its rate",
        r"s1/e0: s1-e0 is shaped to 180000000 b/s, not",
        begin=lambda fabric: fabric.set_rate("s1/e0", 0.9),
    ),
    Sabotage(
        "swapped-circuits",
        "the far ends of two circuits are swapped at the OCS",
        r"s\d to s\d .*: planned",
        begin=_swap_circuits,
        repeat=True,
    ),
    Sabotage(
        "dark-20-percent-longer",
        "circuits settle 20 % later than specified",
        r"dark time.*ocs0",
        settle_ratio=1.2,
    ),
    Sabotage(
        "dark-half", "circuits settle in half the time", r"dark time.*ocs0", settle_ratio=0.5
    ),
    Sabotage("late-agent", "an agent starts 30 ms late", r"worst: s1\b", agent="start_late"),
    Sabotage(
        "late-agents", "all agents start 0.3 s late alike",
        r"first agent starts .*worst: s\d, r0: \w+ \w+ of layer", agents="start_very_late",
    ),
    Sabotage(
        "hidden-slowness",
        "agents send at half their pace and report the planned times",
        r"senders contradict s\d", agents="hide_slowness",
    ),
    Sabotage(
        "claimed-bytes",
        "an agent reports more bytes than it received",
        r"s1 received",
        agent="claim_bytes",
    ),
    Sabotage(
        "claimed-speed",
        "an agent reports that bytes arrived sooner than they did",
        r"to s1",
        agent="claim_speed",
    ),
    Sabotage("corrupt-payload", "an agent sends other bytes", r"s1 to s\d.*byte", agent="corrupt"),
    Sabotage(
        "duplicated-demand", "an agent sends each transfer twice", r"s1 (to|sent)|s1/",
        agent="duplicate",
    ),
    Sabotage(
        "called-resent",
        "an agent sends each transfer twice by greedy TCP, and says that TCP sent it again",
        r"more than planned, most from s1/|s1/\w+ sent", agent="resend",
        settings=("transport=tcp",),
    ),
    Sabotage(
        "wrong-byte-scale", "an agent halves the bytes of its transfers", r"s1 to s\d .*: planned",
        agent="halve",
    ),
    Sabotage(
        "slow-agent", "an agent sends at 90 % of its pace", r"s1 to s\d|s1/", agent="slow_down"
    ),
    Sabotage(
        "clock-step", "the clock of a server steps by 40 ms", r"clocks of s1|and s1 disagree",
        agent="step_clock",
    ),
    Sabotage("cpu-hog", "programs use all CPUs in bursts of 0.3 s", r"CPU", begin=_hog_cpu),
    Sabotage(
        "stopped-switches", "the switches' process stops",
        r"switches: the process is stopped", begin=_stop_switches,
    ),
    Sabotage(
        "lost-completion", "the OCS never reports that a command is complete",
        r"reconfigurations failed \(r0", begin=_inject("drop-completion"),
    ),
    Sabotage(
        "refused-command", "the OCS refuses commands", r"reconfigurations failed \(r0",
        begin=_inject("reject"),
    ),
    Sabotage(
        "refused-after-failure", "the OCS refuses commands, and a NIC has failed for a moment",
        r"reconfigurations failed \(r0", begin=_refuse_after_a_failure,
    ),
    Sabotage(
        "kept-circuits", "the region's controller keeps its circuits, whatever the demand",
        r"r0: .*not the circuits that the policy chooses", controller="keep_circuits",
    ),
    Sabotage(
        "slow-controller", "the region's controller takes 0.5 s longer",
        r"controller of r0 .* times the expected time", controller="slow_down",
        settings=("control_time=measured",),
    ),
    Sabotage(
        "partial-command", "the OCS makes some cross-connects of a command only",
        r"r0|s\d/o\d~", begin=_inject("partial-apply", value=2.0),
    ),
    Sabotage(
        "stuck-mirrors", "mirrors of the OCS don't move, although it says so",
        r"no light on s\d/o\d", begin=_inject("stuck", ports=[1, 2]),
    ),
    Sabotage(
        "stopped-controller", "the region's controller stops", r"reconfigurations failed \(r0",
        begin=_stop_controller,
    ),
    Sabotage(
        "short-queue",
        "the NICs of a server queue two frames",
        r"s1/e0: s1-e0 has pfifo limit 2, not",
        begin=_shorten_queue,
    ),
    Sabotage(
        "long-queue", "a NIC's queue has ten times its room", r"s1/e0: .*pfifo limit 1000, not",
        begin=_lengthen_queue,
        settings=("wiring.queue=100 packets", "scale={bytes: 500, dilation: 10}"),
    ),
    Sabotage(
        "high-ceil", "a NIC may borrow up to 103 % of its rate", r"s1/o0: .*\(ceil\), not",
        begin=_set_limits(ceil=1.03),
    ),
    Sabotage(
        "long-burst", "a NIC sends four times the burst after a pause", r"s1/o0: .*bursts 4 times",
        begin=_set_limits(burst=4),
    ),
    Sabotage(
        "crowded-spine", "all leaves send by one of two spines, which has room",
        r"leaf\d to spine1: planned", begin=_crowd_spine,
        settings=("wiring.eps={servers_per_leaf: 3, spines: 2}",),
    ),
    Sabotage(
        "foreign-traffic", "another program sends at a fifth of a NIC's rate", r"s2",
        begin=_send_foreign_traffic,
    ),
)  # fmt: skip
