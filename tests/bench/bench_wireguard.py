"""Throughput of a tunnel between two machines, inside WireGuard and without it."""

import os
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest

from moefabric.emulator.fabric.tunnels import TUNNEL_HEADERS
from tests.bench.recording import record
from tests.kernel.iperf import flow_gigabits_per_second
from tests.support.machine_namespaces import NamespaceMachine, machine_namespaces
from tests.support.wireguard import WIREGUARD_HEADERS, encrypted

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not shutil.which("iperf3"), reason="needs iperf3"),
]

ROUNDS = 5


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_throughput_inside_wireguard(mtu: int, tmp_path: Path) -> None:
    with machine_namespaces(["a", "b"], mtu) as plain:
        inside = encrypted(plain, tmp_path, mtu)
        tunnel(plain, "plain", 1, mtu)
        tunnel(inside, "inside", 2, mtu - WIREGUARD_HEADERS)
        clear, secret = [], []
        before_s = encryption_cpu_s(plain)
        for _ in range(ROUNDS):  # interleaved, so that load of the machine affects both
            clear.append(throughput(plain, 1))
            secret.append(throughput(plain, 2))
        cpu_s = encryption_cpu_s(plain) - before_s
    inside_gbps, clear_gbps = statistics.median(secret), statistics.median(clear)
    print(
        f"\nMTU {mtu}: {inside_gbps:.2f} Gb/s inside WireGuard, {clear_gbps:.2f} Gb/s without: "
        f"ratio {inside_gbps / clear_gbps:.3f}; wireguard-go has "
        f"{cpu_s / len(plain) / sum(secret):.2f} cores of each machine for 1 Gb/s"
    )
    record(
        f"throughput of a tunnel inside WireGuard: MTU {mtu}", "Gb/s", inside_gbps * 1e9, n=ROUNDS
    )
    record(
        f"throughput of a tunnel without WireGuard: MTU {mtu}", "Gb/s", clear_gbps * 1e9, n=ROUNDS
    )
    record(
        f"inside WireGuard relative to without: MTU {mtu}", "", inside_gbps / clear_gbps, n=ROUNDS
    )
    name = f"cores of each machine that wireguard-go has for 1 Gb/s: MTU {mtu}"
    record(name, "", cpu_s / len(plain) / sum(secret), n=ROUNDS)
    assert inside_gbps > 0


def tunnel(machines: Mapping[str, NamespaceMachine], name: str, number: int, mtu: int) -> None:
    """Join two machines by a VXLAN like that of a fabric, with addresses of its own."""
    size = ("mtu", str(mtu - TUNNEL_HEADERS))
    options = ("dstport", "4789", "ttl", "64", "nolearning", "noudpcsum")
    for (here, there), host in zip((("a", "b"), ("b", "a")), (1, 2), strict=True):
        machine, remote = machines[here], machines[there].address
        ends = ("id", str(number), "local", machine.address, "remote", remote)
        machine.run("ip", "link", "add", "name", name, *size, "type", "vxlan", *ends, *options)
        machine.run("ip", "address", "add", f"10.96.{number}.{host}/24", "dev", name)
        machine.run("ip", "link", "set", name, "up")


def encryption_cpu_s(machines: Mapping[str, NamespaceMachine]) -> float:
    """Return the CPU time of wireguard-go on all machines; 0 where the kernel encrypts."""
    script = "for p in $(pgrep -f ^wireguard-go); do cut -d' ' -f14,15 /proc/$p/stat; done"
    ticks = " ".join(one.run("sh", "-c", script).stdout for one in machines.values())
    return sum(map(int, ticks.split())) / os.sysconf("SC_CLK_TCK")


def throughput(machines: Mapping[str, NamespaceMachine], number: int) -> float:
    """Return the rate of a TCP flow from `a` to `b` in a tunnel, in Gb/s."""
    sender, receiver = machines["a"].argv(), machines["b"].argv()
    return flow_gigabits_per_second(sender, receiver, f"10.96.{number}.2")
