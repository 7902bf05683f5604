"""Programmable links between hosts: real packets are marked, dropped, ordered and counted."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from moefabric.core.errors import FabricError
from moefabric.core.link import LinkBehaviour, Scheduling
from moefabric.emulator.link.hosts import Host, LinkedHosts, link_between, star
from moefabric.emulator.link.messages import PortCounts, RelayPort
from moefabric.emulator.link.relay_process import RelayProcess
from moefabric.emulator.linux import namespaces

PORT = 5000
SLOW_BPS = 200e3
"""A frame of 1042 bytes takes 42 ms, so that a burst waits in the link's queue."""
PAYLOAD = bytes(1000)
FRAME = len(PAYLOAD) + 42


def host_socket(host: Host) -> socket.socket:
    return host.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


@contextmanager
def receiver(host: Host) -> Iterator[socket.socket]:
    with host_socket(host) as sock:
        sock.bind((host.address, PORT))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        sock.settimeout(30)
        yield sock


def send(host: Host, to: Host, tos_bytes: list[int]) -> None:
    """Send numbered packets with these type-of-service octets, all at once."""
    with host_socket(host) as sock:
        for number, tos in enumerate(tos_bytes):
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            sock.sendto(bytes([number]) + PAYLOAD[1:], (to.address, PORT))


def receive(sock: socket.socket, count: int) -> list[tuple[int, int]]:
    """Return number and type-of-service octet of so many packets, in the order of arrival."""
    packets = []
    for _ in range(count):
        payload, ancillary, _, _ = sock.recvmsg(2000, 100)
        packets.append((payload[0], ancillary[0][2][0]))
    return packets


def burst(net: LinkedHosts, tos_bytes: list[int], arriving: int) -> list[tuple[int, int]]:
    a, b = net.hosts
    with receiver(b) as sock:
        send(a, b, tos_bytes)
        return receive(sock, arriving)


def test_queue_holds_its_bytes_and_drops_the_rest() -> None:
    with link_between(LinkBehaviour(SLOW_BPS, queue_bytes=4 * FRAME)) as net:
        packets = burst(net, [0] * 12, 5)
        counts = net.counters().ports["p1"]
    assert [number for number, _ in packets] == [0, 1, 2, 3, 4]  # one is sent at once, four wait
    assert counts == PortCounts(5, 5 * FRAME, full={0: 7}, peak_bytes=4 * FRAME)


def test_capable_packets_are_marked_and_others_dropped_early() -> None:
    behaviour = LinkBehaviour(SLOW_BPS, ecn_bytes=2 * FRAME, early_drop_bytes=2 * FRAME)
    with link_between(behaviour) as net:
        packets = burst(net, [2, 0, 2, 0, 2, 1], 5)
        counts = net.counters().ports["p1"]
    assert packets == [(0, 2), (1, 0), (2, 2), (4, 3), (5, 3)]
    assert counts.early == {0: 1}
    assert counts.marked == 2


def test_higher_classes_overtake_what_waits() -> None:
    with link_between(LinkBehaviour(SLOW_BPS, scheduling=Scheduling.PRIORITY)) as net:
        packets = burst(net, [0, 0x20, 0x20, 0xE0, 0x80, 0xE0], 6)
    assert [number for number, _ in packets] == [0, 3, 5, 4, 1, 2]


def test_second_flow_does_not_wait_for_the_burst_of_the_first() -> None:
    with link_between(LinkBehaviour(SLOW_BPS, scheduling=Scheduling.FAIR)) as net:
        a, b = net.hosts
        with receiver(b) as sock:
            send(a, b, [0] * 6)
            send(a, b, [0x40])  # from a port of its own
            classes = [tos for _, tos in receive(sock, 7)]
    # One frame is being sent, and one more of the first flow's waiting frames has its turn before.
    assert classes.index(0x40) == 2


def test_sprayed_packets_overtake_each_other() -> None:
    with link_between(LinkBehaviour(SLOW_BPS, paths=2)) as net:
        a, b = net.hosts
        with receiver(b) as sock, host_socket(a) as sender:
            for number, length in enumerate((1400, 100, 1400, 100)):
                sender.sendto(bytes([number]).ljust(length), (b.address, PORT))
            numbers = [number for number, _ in receive(sock, 4)]
    assert numbers == [1, 3, 0, 2]


def test_tcp_passes_a_shallow_queue_with_every_byte() -> None:
    with link_between(LinkBehaviour(20e6, delay_ns=1_000_000, queue_bytes=30_000)) as net:
        a, b = net.hosts
        data = bytes(range(256)) * 400  # fits into the sockets' buffers
        with ExitStack() as stack:
            server = stack.enter_context(b.call(lambda: socket.create_server((b.address, PORT))))
            connect = partial(socket.create_connection, (b.address, PORT), 5)
            client = stack.enter_context(a.call(connect))
            connection = stack.enter_context(server.accept()[0])
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as incoming:
                assert incoming.read() == data
        counters = net.counters()
    assert counters.ports["p1"].bytes > len(data)
    assert (counters.overflows, counters.unsent, counters.unknown) == (0, 0, 0)


def test_round_trip_takes_the_delays_of_both_ways() -> None:
    with link_between(LinkBehaviour(delay_ns=20_000_000), LinkBehaviour(delay_ns=5_000_000)) as net:
        a, b = net.hosts
        ping = a.argv("ping", "-c", "3", "-i", "0.05", "-q", b.address)
        output = subprocess.run(ping, capture_output=True, text=True, check=True).stdout
    least_ms = float(output.rsplit("= ", 1)[1].split("/")[0])
    assert least_ms >= 25


def test_ports_of_a_switch_have_behaviours_of_their_own() -> None:
    slow = LinkBehaviour(SLOW_BPS, queue_bytes=2 * FRAME)
    with star([LinkBehaviour(), LinkBehaviour(), slow]) as net:
        first, second, third = net.hosts
        with receiver(third) as sock, receiver(first) as other:
            send(first, third, [0] * 2)
            send(second, third, [0] * 4)
            send(third, first, [0] * 9)
            receive(sock, 3)
            assert len(receive(other, 9)) == 9
        counters = net.counters()
        net.reset()
        assert net.counters().ports["p2"] == PortCounts()
    assert counters.ports["p2"].full == {0: 3}
    assert counters.lateness.frames == 12


def test_relay_ends_with_its_hosts_and_their_interfaces() -> None:
    with link_between(LinkBehaviour()) as net:
        relay = net.relay
    with pytest.raises((FabricError, ValueError)):
        relay.counters()
    assert not [path for path in (host.namespace for host in net.hosts) if _exists(path)]


OWNER = """
import time
from moefabric.core.link import LinkBehaviour
from moefabric.emulator.link.hosts import link_between
with link_between(LinkBehaviour()) as net:
    print(net.relay.pid, flush=True)
    time.sleep(60)
"""


def test_relay_ends_with_an_owner_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        relay = os.pidfd_open(int(owner.stdout.readline()))
        owner.kill()
    try:
        assert select.select([relay], [], [], 5)[0], "the relay runs on"
    finally:
        os.close(relay)


def _exists(path: str) -> bool:
    try:
        namespaces.run_in(path, socket.if_nameindex)
    except FabricError:
        return False
    return True


def test_missing_interface_is_one_line() -> None:
    with pytest.raises(FabricError, match="the relay of a link"):
        RelayProcess.start("/proc/self/ns/net", [RelayPort("no-such", LinkBehaviour(), peer=0)])
