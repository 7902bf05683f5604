"""Calibration of a machine: the CPU time of frames, and how late transfers start.

Two experiments replay the same all-to-alls with more and with fewer bytes. What the cores work more
in the larger one is the cost of its frames; planning, orders and the control plane cost as much in
both.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from moefabric.config.experiment import ExperimentSpec
from moefabric.config.loader import experiment_of
from moefabric.core.errors import MoefabricError
from moefabric.core.machine_speed import MOST_SEGMENTS, MachineSpeed, frame_bits
from moefabric.core.units import Scale
from moefabric.execution import run as runner
from moefabric.results.model import FabricResult
from moefabric.runtime.cpu_monitor import busy_core_seconds, usable_cores

_SERVERS: Final = 4
_LINKS: Final = 2
"""Links between the NICs of two servers under one leaf."""
_DILATION: Final = 4.0
_RATES_BPS: Final = (40e6, 400e6)
"""Rates of a NIC in the two experiments. At both, frames take little of the cores."""


class _Silence:
    """Progress reporter that shows nothing: the experiments' verdicts and scales don't matter."""

    def show_message(self, text: str) -> None:
        """Do nothing."""

    def advance(self, text: str) -> None:
        """Do nothing."""


def calibrate_machine() -> MachineSpeed:
    """Measure the speed of this machine on a fabric of four servers, in about ten seconds.

    Other programs should be idle meanwhile.

    Raises:
        MoefabricError: If another calibration runs, or the machine is too busy to be measured.
    """
    frames, busy_s, late_s = list[float](), list[float](), 0.0
    for rate_bps in _RATES_BPS:
        spec = _experiment(rate_bps)
        result, busy = _measured(spec)
        fabric = spec.build_fabric(spec.fabrics[0], "calibration", spec.given_scale() or Scale())
        sent = 8.0 * (result.integrity.bytes_sent or 0)
        frames.append(_LINKS * sent / frame_bits(MOST_SEGMENTS, fabric.mtu))
        busy_s.append(busy)
        seconds = median(one.measured_s for one in result.collectives)
        # At the higher rate, which is last, little of it is the time of a packet.
        late_s = (result.fidelity.start_lateness_p95 or 0.0) * seconds * fabric.scale.dilation
    frame_s = (busy_s[1] - busy_s[0]) / (frames[1] - frames[0])
    if frame_s <= 0:
        raise MoefabricError("other programs used the cores meanwhile: repeat it when they don't")
    defaults, flows = MachineSpeed(), _SERVERS * (_SERVERS - 1)
    ratio = frame_s / defaults.frame_s
    start_flow_s = defaults.start_flow_s * ratio
    return replace(
        defaults,
        frame_s=frame_s,
        packet_s=defaults.packet_s * ratio,
        start_flow_s=start_flow_s,
        start_s=max(late_s - start_flow_s * flows / usable_cores(), 0.0),
    )


def _experiment(rate_bps: float) -> ExperimentSpec:
    """Return the experiment of all-to-alls between NICs of this rate on the wire."""
    nic_bps = 100e9
    keys: Mapping[str, Any] = {
        "experiment": "calibration",
        "model": {"name": "mixtral-8x7b", "layers": 4},
        "training": {
            "ep": 8, "tp": 4, "sequence": 4096, "micro_batch": 8, "iterations": 2,
        },
        "gating": {"generator": "uniform"},
        "wiring": {"nic_rate": "100Gb/s", "regions": [{"servers": _SERVERS}]},
        "fabrics": [{"name": "eps", "optical": 0, "electrical": 4, "policy": "eps"}],
        "scale": {
            "bytes": nic_bps / rate_bps / _DILATION, "dilation": _DILATION, "frame": "20ms",
        },
    }  # fmt: skip
    return experiment_of(keys)


def _measured(spec: ExperimentSpec) -> tuple[FabricResult, float]:
    """Run an experiment; return its result and the core-seconds that the machine worked."""
    before_s = busy_core_seconds()
    result = runner.run(spec, Path(), _Silence())
    return result.results[0], busy_core_seconds() - before_s
