"""Measure the throughput between two hosts of a bench by iperf3."""

import json
import subprocess

from tests.kernel.optical_bench import HostNetwork


def gigabits_per_second(network: HostNetwork) -> float:
    """Return the rate of a TCP flow of one second from host 1 to host 2."""
    server = subprocess.Popen(
        network.argv(2, "iperf3", "--server", "--one-off", "--forceflush"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout
    try:
        while "listening" not in server.stdout.readline():
            assert server.poll() is None, "iperf3 does not listen"
        flow = "--client", "10.9.0.2", "--time", "1", "--congestion", "cubic"
        command = network.argv(1, "iperf3", *flow, "--json")
        client = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        server.wait(timeout=10)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    return float(json.loads(client.stdout)["end"]["sum_received"]["bits_per_second"]) / 1e9
