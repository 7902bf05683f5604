"""Throughput between two hosts of a bench, by iperf3."""

import json
import subprocess

from tests.kernel.optical_bench import Wires


def gigabits_per_second(wires: Wires) -> float:
    """One TCP flow of a second from host 1 to host 2."""
    listening = subprocess.Popen(
        wires.argv(2, "iperf3", "--server", "--one-off", "--forceflush"), stdout=subprocess.PIPE, text=True
    )
    assert listening.stdout
    try:
        while "listening" not in listening.stdout.readline():
            assert listening.poll() is None, "iperf3 does not listen"
        command = wires.argv(1, "iperf3", "--client", "10.9.0.2", "--time", "1", "--json")
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        listening.wait(timeout=10)
    finally:
        listening.kill()
        listening.wait()
        listening.stdout.close()
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 1e9
