"""Congestion controls in BPF: windows follow the table and the marks; nothing stays behind."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from moefabric.agents.engine.sockets import KEEPS_PACE
from moefabric.config.plugins import transport_named
from moefabric.core.link import LinkBehaviour
from moefabric.emulator.congestion.dctcp import dctcp
from moefabric.emulator.congestion.paced import WINDOW, paced
from moefabric.emulator.congestion.window_table import window_table
from moefabric.emulator.link.hosts import link_between
from moefabric.testbed.testbed import ready_transport
from tests.kernel.tcp_flow import Flow

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
UNSET = 0x7FFFFFFF


def registered() -> list[str]:
    return AVAILABLE.read_text().split()


def test_window_and_measurements_of_a_socket_are_in_its_row() -> None:
    with window_table("table") as table:
        flow = Flow(table.name)
        assert flow.window() == 10
        for window in (30, 7, 200):
            numbers, _ = table.measured()
            table.decide(numbers, np.full(len(numbers), window), np.zeros(len(numbers)))
            flow.send(3)
            assert flow.window() == window
        _, rows = table.measured()
        sender = rows[rows["delivered"].argmax()]
        assert sender["snd_cwnd"] == 200
        assert sender["srtt_us"] > 0
        assert sender["acknowledgements"] > 0
        flow.close()


def test_sockets_have_rows_of_their_own_until_they_close() -> None:
    with window_table("table") as table:
        flows = [Flow(table.name) for _ in range(3)]
        for flow in flows:
            flow.send()
        numbers, rows = table.measured()
        assert len(set(rows["socket"].tolist())) == len(numbers) == 6  # both ends
        senders = numbers[np.argsort(rows["delivered"])[-3:]]
        table.decide(senders, np.array([20, 40, 80]), np.zeros(3))
        for flow in flows:
            flow.send(3)
        assert sorted(flow.window() for flow in flows) == [20, 40, 80]
        for flow in flows:
            flow.close()


@pytest.mark.parametrize("marks", [True, False])
def test_dctcp_shrinks_with_marks_and_loses_nothing(marks: bool) -> None:
    behaviour = LinkBehaviour(20e6, 2_000_000, queue_bytes=10**6, ecn_bytes=0 if marks else None)
    with dctcp() as name, link_between(behaviour, LinkBehaviour()) as net:
        flow = Flow(name, net)
        net.reset()
        flow.send(12)
        counts = net.counters().ports["p1"]
        assert counts.dropped == 0
        if marks:
            assert counts.marked > 100
            assert flow.threshold() <= 4  # alpha stays 1: each round trip halves the window
        else:
            assert counts.marked == 0
            assert flow.threshold() == UNSET
            assert flow.window() > 10
        flow.close()


def test_dctcp_cuts_its_window_little_for_few_marks() -> None:
    """The pipe holds 17 packets and the queue 40 without marks: alpha settles near sqrt(2/57)."""
    behaviour = LinkBehaviour(100e6, 2_000_000, queue_bytes=10**6, ecn_bytes=60_000)
    with dctcp() as name, link_between(behaviour, LinkBehaviour()) as net:
        flow = Flow(name, net)
        flow.send(30, bytes(600_000))
        counts = net.counters().ports["p1"]
        assert counts.dropped == 0
        assert flow.threshold() > 40  # 28 with an alpha of 1
        assert counts.marked < 0.2 * counts.packets  # two in five with an alpha of 0
        flow.close()


def test_window_of_a_paced_connection_is_open_from_the_start_and_after_losses() -> None:
    behaviour = LinkBehaviour(20e6, 2_000_000, queue_bytes=8_000)
    with paced() as name, link_between(behaviour, LinkBehaviour()) as net:
        assert name.startswith(KEEPS_PACE)
        flow = Flow(name, net)
        assert flow.window() == WINDOW
        net.reset()
        flow.send(3)
        assert net.counters().ports["p1"].dropped > 0
        assert flow.window() == WINDOW
        flow.close()


def test_raised_pace_counts_from_the_next_packet_on() -> None:
    with paced() as name:
        flow = Flow(name)
        flow.send(12)  # Linux paces none of the first ten packets
        flow.near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        flow.pace(20_000)
        flow.near.sendall(bytes(200))  # delays the next packet by 5 ms at least
        flow.far.recv(200, socket.MSG_WAITALL)
        gap_ns = flow.two_arrivals_ns(bytes(10_000), bytes(100), 100_000_000)
        assert gap_ns < 250_000_000  # 500 ms at the low pace
        flow.close()


@pytest.mark.parametrize("ends", [True, False])
def test_last_packet_of_a_transfer_delays_no_other(ends: bool) -> None:
    with paced() as name:
        flow = Flow(name)
        flow.send(12)
        flow.near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        flow.pace(1_000, ends=ends)
        gap_ns = flow.two_arrivals_ns(bytes(1_000), bytes(100), 100_000_000)
        assert (gap_ns < 250_000_000) == ends  # 500 ms at least for an idle connection
        flow.close()


def test_nothing_is_registered_after_the_end() -> None:
    with dctcp() as name:
        assert name in registered()
        flow = Flow(name)
    assert name not in registered()
    flow.send()  # a socket keeps what it uses
    flow.close()


@pytest.mark.parametrize("transport", ["paced", "dctcp"])
def test_transport_is_ready_while_a_run_needs_it(transport: str) -> None:
    with ready_transport(transport_named(transport)) as name:
        assert name in registered()
        assert name.startswith(transport)
    assert name not in registered()


def test_process_without_privilege_gets_the_remedy() -> None:
    argv = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", sys.executable, "-c"]
    program = "from moefabric.emulator.congestion.dctcp import dctcp\nwith dctcp(): pass"
    ended = subprocess.run([*argv, program], capture_output=True, text=True, check=False)
    assert "UnsupportedError: congestion control dctcp: " in ended.stderr
    assert "it needs root (CAP_BPF, CAP_NET_ADMIN) and Linux 6.4" in ended.stderr


def test_nothing_is_registered_after_a_kill() -> None:
    program = (
        "from moefabric.emulator.congestion.dctcp import dctcp\n"
        "with dctcp() as name: print(name, flush=True); input()\n"
    )
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        assert name in registered()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert name not in registered()
