"""What it costs that server switches or hosts forward, beside sending the same bytes directly."""

from pathlib import Path

import pytest

from tests.bench.recording import record
from tests.kernel.timed.test_forwarded_transfers import SCRIPT
from tests.support.namespaces import isolated_result

pytestmark = pytest.mark.kernel

SIZE = 64_000_000
FLOWS = 4
LATEST = 1.05
"""Bound of the time that hosts take, relative to switches."""


@pytest.mark.timeout(120)
def test_hosts_forward_as_soon_as_switches_and_need_more_cpu(tmp_path: Path) -> None:
    """Four paced flows that share no circuit; each is forwarded once."""
    results = isolated_result(SCRIPT, "compare", str(SIZE), folder=tmp_path)
    direct = results["direct"]
    for kind, result in results.items():
        late = result["measured_s"] / result["predicted_s"] - 1
        per_gb, ratio = result["cpu_s"] / (FLOWS * SIZE / 1e9), result["cpu_s"] / direct["cpu_s"]
        print(f"\n{kind}: {late:+.2%} of the predicted time, CPU of the agents ", end="")
        print(f"{per_gb:.2f} s a GB, {ratio:.2f} times that of direct flows", end="")
        assert result["whole"], result["why"]
        record(f"end of forwarded bytes relative to the prediction: {kind}", "%", late)
        record(f"CPU of the agents for a GB: {kind}", "s", per_gb)
        record(f"CPU of the agents relative to direct flows: {kind}", "", ratio)
    host, switch = results["host"], results["switch"]
    times, cpu = host["measured_s"] / switch["measured_s"], host["cpu_s"] / switch["cpu_s"]
    print(f"\nhost relative to switch: time {times:.3f}, CPU {cpu:.2f}")
    record("time of forwarding by hosts relative to switches", "", times, at_most=LATEST)
    record("CPU of the agents of forwarding by hosts relative to switches", "", cpu, at_least=1)
    assert times < LATEST
    assert cpu > 1
