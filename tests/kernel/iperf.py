"""Measure the throughput between two hosts of a bench by iperf3."""

import json
import subprocess
from collections.abc import Sequence

from tests.kernel.optical_bench import HostNetwork


def gigabits_per_second(network: HostNetwork) -> float:
    """Return the rate of a TCP flow of one second from host 1 to host 2."""
    return flow_gigabits_per_second(network.argv(1), network.argv(2), "10.9.0.2")


def flow_gigabits_per_second(sender: Sequence[str], receiver: Sequence[str], address: str) -> float:
    """Return the rate of a TCP flow of one second.

    Args:
        sender: First words of the argv that runs a program on the sender.
        receiver: Those of the receiver.
        address: The receiver's.
    """
    server = subprocess.Popen(
        [*receiver, "iperf3", "--server", "--one-off", "--forceflush"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout
    try:
        while "listening" not in server.stdout.readline():
            assert server.poll() is None, "iperf3 does not listen"
        flow = "--client", address, "--time", "1", "--congestion", "cubic"
        command = [*sender, "iperf3", *flow, "--json"]
        client = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        server.wait(timeout=10)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    return float(json.loads(client.stdout)["end"]["sum_received"]["bits_per_second"]) / 1e9
