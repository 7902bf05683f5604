"""Measurements on a running fabric: collectives, replays of traces, machines and OCSes."""

import os
from pathlib import Path

from moefabric.api.lab import Lab
from moefabric.api.signals import graceful_shutdown
from moefabric.core.errors import SpecError
from moefabric.core.machine_speed import MachineSpeed
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.machine_probe import probe_machine, readiness
from moefabric.emulator.fabric.run_directories import hold
from moefabric.emulator.linux.processes import ProcessRole
from moefabric.execution import machine_calibration
from moefabric.execution.programs.perf import Perf, PerfOptions, PerfResult, PerfRow, sizes_between
from moefabric.execution.programs.program_results import JudgedResult
from moefabric.execution.programs.replay import ReplayOptions, ReplayResult
from moefabric.runtime.cpu_monitor import usable_cores
from moefabric.runtime.measured_speed import store_speed
from moefabric.runtime.run_directory import RunDirectory
from moefabric.testbed.dark_time import Calibration, calibration_table
from moefabric.testbed.fabric_processes import fabric_processes, up_timeout_s
from moefabric.testbed.ocs_calibration import CALIBRATION_FABRIC, calibrate, calibration_fabric

__all__ = [
    "Calibration", "JudgedResult", "Perf", "PerfOptions", "PerfResult", "PerfRow",
    "ReplayOptions", "ReplayResult",
    "calibrate_machine", "calibrate_new_ocses", "calibrate_ocses", "calibration_table",
    "machine_table", "probe_machine", "readiness", "sizes_between",
]  # fmt: skip


def calibrate_machine() -> tuple[MachineSpeed, Path]:
    """Measure the speed of this machine, and keep it for `scale: auto`.

    Returns:
        The speed, and the file that keeps it.

    Raises:
        MoefabricError: If the machine can't be measured.
    """
    with graceful_shutdown():
        speed = machine_calibration.calibrate_machine()
    return speed, store_speed(speed)


def machine_table(speed: MachineSpeed, path: Path) -> list[str]:
    """Return the lines that report the speed of a machine."""
    return [
        f"a frame of 64 KB on a link      {1e6 * speed.frame_s:.1f} us of a core",
        f"start of 12 transfers within    {1e3 * speed.start_spread_s(12, usable_cores()):.2f} ms",
        f"kept in {path}: `scale: auto` uses it",
    ]


def calibrate_ocses(name: str, moves: int, spacing_ns: int) -> list[Calibration]:
    """Measure the dark time of each OCS of a running fabric.

    Args:
        name: The fabric, whose circuits change meanwhile.
        moves: Number of changes of each OCS.
        spacing_ns: Time between two frames.

    Raises:
        SpecError: If the fabric has no OCS.
    """
    lab = Lab(name)
    if not lab.fabric.ocses:
        raise SpecError([("--name", f"{name} has no OCS")])
    folder = lab.run_directory
    return [calibrate(lab.wiring, folder, region, moves, spacing_ns) for region in lab.fabric.ocses]


def calibrate_new_ocses(settle_ns: list[int], moves: int, spacing_ns: int) -> list[Calibration]:
    """Start an OCS for each settle time, measure its dark time, and end them.

    Args:
        settle_ns: Settle times.
        moves: Number of changes of each OCS.
        spacing_ns: Time between two frames.

    Raises:
        SpecError: If the fabric of another calibration is up.
    """
    if CALIBRATION_FABRIC in lifecycle.running_fabrics():
        remedy = f"`moefabric down {CALIBRATION_FABRIC}` first, or measure it with --name"
        raise SpecError([("", f"{CALIBRATION_FABRIC} is up already: {remedy}")])
    fabric = calibration_fabric(settle_ns)
    lifecycle.up(
        fabric,
        lambda wiring, run_dir: [
            process
            for process in fabric_processes(wiring, run_dir)
            if process.role is ProcessRole.OCS
        ],
        up_timeout_s(fabric),
        owner=os.getpid(),
    )
    try:
        with hold(RunDirectory.of_fabric(CALIBRATION_FABRIC)):
            return calibrate_ocses(CALIBRATION_FABRIC, moves, spacing_ns)
    finally:
        lifecycle.down(CALIBRATION_FABRIC, force=True)
