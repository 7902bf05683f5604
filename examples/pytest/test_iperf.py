"""iperf3 on a fabric: TCP keeps its connection when light comes and goes."""

import json
import subprocess

import pytest

from moefabric.ui.testing import FabricUnderTest


def measured_bps(fabric: FabricUnderTest, seconds: int) -> "subprocess.Popen[str]":
    """Start iperf3 between s0 and s1, with its server."""
    server = fabric.popen(
        "s1", "iperf3 --server --one-off --forceflush", stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    while "listening" not in server.stdout.readline():
        assert server.poll() is None
    command = f"iperf3 --client {fabric.address('s1')} --time {seconds} --interval 0.5 --json"
    return fabric.popen("s0", command, stdout=subprocess.PIPE, text=True)


@pytest.mark.fabric("fabric.yaml", nics={"optical": 1})
def test_connection_survives_changes_of_light(fabric: FabricUnderTest) -> None:
    """The marker gives this test a fabric of its own."""
    client = measured_bps(fabric, 3)
    while client.poll() is None:
        fabric.lit("s0~s1")
        fabric.dark()
    output, _ = client.communicate()
    report = json.loads(output)
    assert "error" not in report
    intervals = [interval["sum"]["bits_per_second"] for interval in report["intervals"]]
    assert min(intervals) > 0, intervals


def test_two_circuits_carry_more_than_the_eps(shared_fabric: FabricUnderTest) -> None:
    rates = []
    for circuits in ([], ["s0/o0~s1/o0", "s0/o1~s1/o1"]):
        if circuits:
            shared_fabric.lit(*circuits)
        output, _ = measured_bps(shared_fabric, 2).communicate()
        rates.append(json.loads(output)["end"]["sum_received"]["bits_per_second"])
    assert 0.8e8 < rates[0] < 1.0e8  # one electrical NIC of 100 Gb/s, at 1/1000
    assert rates[1] > 0.8 * rates[0]
