"""`moefabric calibrate`: measure the emulated hardware."""

import os
from typing import TYPE_CHECKING, Final

import click

from moefabric.cli.options import json_option, parse_option, running_lab
from moefabric.cli.output import print_result
from moefabric.config.run_directory import RunDirectory
from moefabric.core.errors import SpecError
from moefabric.core.units import duration_ns, duration_text

if TYPE_CHECKING:
    from moefabric.runner.dark_time import Calibration

_MIN_SPACING_NS: Final = 10_000


@click.group(short_help="Measure the emulated hardware.")
def calibrate() -> None:
    """Measure the emulated hardware against its configuration."""


@calibrate.command(short_help="Measure the dark time of OCSes.")
@click.option(
    "--settle",
    default="1ms,10ms,25ms,100ms",
    callback=parse_option(lambda text: [duration_ns(part) for part in text.split(",")]),
    help="Settle times of the OCSes that are started for the measurement.",
)
@click.option(
    "--moves", type=click.IntRange(2, 10_000), default=100, help="Number of changes of each OCS."
)
@click.option(
    "--spacing", default="50us", callback=parse_option(duration_ns), help="Time between two frames."
)
@click.option(
    "--name", help="Running fabric whose circuits change under traffic. Default: start OCSes."
)
@json_option
def ocs(settle: list[int], moves: int, spacing: int, name: str | None, as_json: bool) -> None:
    """Measure the dark time of OCSes with frames, and compare it with the configured one."""
    from moefabric.runner.dark_time import calibration_table

    if spacing < _MIN_SPACING_NS:
        message = f"{duration_text(spacing)} is too short: frames are sent every 10 us at most"
        raise SpecError([("--spacing", message)])
    calibrations = (
        _calibrate(name, moves, spacing) if name else _start_and_calibrate(settle, moves, spacing)
    )
    result = [calibration.to_json() for calibration in calibrations]
    print_result(result, [calibration_table(calibrations)], as_json=as_json)


def _calibrate(name: str, moves: int, spacing: int) -> "list[Calibration]":
    from moefabric.runner.ocs_calibration import calibrate as calibrate_ocs

    lab = running_lab(name)
    run_dir, wiring = lab.run_directory, lab.wiring
    regions = [region for region in wiring.fabric.regions if region.ocs]
    if not regions:
        raise SpecError([("--name", f"{name} has no OCS")])
    return [calibrate_ocs(wiring, run_dir, region, moves, spacing) for region in regions]


def _start_and_calibrate(settle: list[int], moves: int, spacing: int) -> "list[Calibration]":
    from moefabric.emulator.fabric import lifecycle
    from moefabric.emulator.fabric.run_directories import hold
    from moefabric.emulator.linux.processes import ProcessRole
    from moefabric.runner.fabric_processes import UP_TIMEOUT_S, fabric_processes
    from moefabric.runner.ocs_calibration import CALIBRATION_FABRIC, calibration_fabric

    if CALIBRATION_FABRIC in lifecycle.running_fabrics():
        remedy = f"`moefabric down {CALIBRATION_FABRIC}` first, or measure it with --name"
        raise SpecError([("", f"{CALIBRATION_FABRIC} is up already: {remedy}")])
    lifecycle.up(
        calibration_fabric(settle),
        lambda wiring, run_dir: [
            process
            for process in fabric_processes(wiring, run_dir)
            if process.role is ProcessRole.OCS
        ],
        UP_TIMEOUT_S,
        owner=os.getpid(),
    )
    try:
        with hold(RunDirectory.of_fabric(CALIBRATION_FABRIC)):
            return _calibrate(CALIBRATION_FABRIC, moves, spacing)
    finally:
        lifecycle.down(CALIBRATION_FABRIC, force=True)
