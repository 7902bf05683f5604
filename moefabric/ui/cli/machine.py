"""`moefabric doctor` and `calibrate`: what this machine and the emulated hardware can do."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from moefabric import SpecError, duration_ns, duration_text
from moefabric.api.commands import print_result
from moefabric.report.formatting import wrapped
from moefabric.ui.cli.command import cli_command, cli_group, json_option, name_option
from moefabric.ui.cli.options import parse_option

_MIN_SPACING_NS: Final = 10_000


@cli_group("moefabric calibrate ocs", "moefabric calibrate machine")
def calibrate() -> None:
    """Measure this machine and the emulated hardware."""


@calibrate.command(
    short_help="Measure the dark time of OCSes.",
    examples=["moefabric calibrate ocs --settle 5ms", "moefabric calibrate ocs lab --moves 200"],
)
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
@name_option
@json_option
def ocs(
    settle: list[int], moves: int, spacing: int, name: str | None, as_json: Path | None
) -> None:
    """Measure the dark time of OCSes with frames, and compare it with the configured one.

    With NAME, they are those of a running fabric, whose circuits change under its traffic. Else
    OCSes are started for the measurement.
    """
    from moefabric.api.measurements import calibrate_new_ocses, calibrate_ocses, calibration_table

    if spacing < _MIN_SPACING_NS:
        message = f"{duration_text(spacing)} is too short: frames are sent every 10 us at most"
        raise SpecError([("--spacing", message)])
    calibrations = (
        calibrate_ocses(name, moves, spacing)
        if name
        else calibrate_new_ocses(settle, moves, spacing)
    )
    result = [calibration.to_json() for calibration in calibrations]
    print_result(result, [calibration_table(calibrations)], as_json=as_json)


@calibrate.command(
    short_help="Measure the speed of this machine.",
    examples=["moefabric calibrate machine", "moefabric calibrate machine --json"],
)
@json_option
def machine(as_json: Path | None) -> None:
    """Measure what frames and starts of transfers cost on this machine, in about ten seconds.

    `scale: auto` uses the result from then on. Other programs should be idle meanwhile.
    """
    from moefabric.api.measurements import calibrate_machine, machine_table

    speed, path = calibrate_machine()
    print_result({**asdict(speed), "file": str(path)}, machine_table(speed, path), as_json=as_json)


@cli_command("moefabric doctor", "moefabric doctor --json")
@json_option
def doctor(as_json: Path | None) -> None:
    """Check what this machine can do, and print the remedy for what it can't.

    The last line says what is possible. The exit status is 1 unless `run` and `up` are.
    """
    from moefabric.api.measurements import probe_machine, readiness

    findings = probe_machine()
    lines = []
    for finding in findings:
        word, colour = ("ok", "green") if finding.ok else ("no", "yellow")
        word = "unknown" if finding.is_unknown else word
        remedy = f"; {finding.remedy}" if finding.remedy and not finding.ok else ""
        mark = click.style(f"{word:7}", fg=colour)
        lines.append(f"{mark} {wrapped(f'{finding.what}: {finding.why}{remedy}', 8)}")
    ready = readiness(findings)
    lines.append(ready.text)
    print_result([asdict(finding) for finding in findings], lines, as_json=as_json)
    sys.exit(not ready.is_ready)
